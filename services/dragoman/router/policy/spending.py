"""Budgets of an operator over many runs: which apply to a run, what is left, and when they are spent. Pure."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Final

from dragoman.protocol.budgets import BudgetMeter, Used, amount_text, lowered_budget, narrowed_budget
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.spending import AMOUNTS, LABEL, Account, LabelBudget, Period, Spent
from dragoman.router.policy.duties import unkept_caps
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct
from msgspec.structs import replace

COUNTED: Final = frozenset({"usage", "tool_call", "started", "attempt_ended", "result"})
"""Kinds of events that say what a run has used."""
_HIGHEST: Final = "999999999999"
_CURRENCY: Final = "USD"
_BILLION: Final = 10**9
_MOST: Final = 10**15
"""The most of an amount that one run counts for: a database must be able to add up those of many."""
_PERIODS: Final = {
    "hour": router_pb2.BUDGET_PERIOD_HOUR,
    "day": router_pb2.BUDGET_PERIOD_DAY,
    "month": router_pb2.BUDGET_PERIOD_MONTH,
    "total": router_pb2.BUDGET_PERIOD_TOTAL,
}
_MOST_NAMED: Final = 200
"""Characters of a value that a message repeats."""


class Reached(Struct, frozen=True):
    """A cap of a budget of which much, or more than all, is used."""

    cap: str
    spent: str
    """For people; of money with its currency."""
    limit: str
    """For people, with what it counts, e.g. ``2.13 USD`` or ``7 tool calls``."""


def span(period: Period, now: float) -> tuple[int, int]:
    """Return when the period of a time began, and when it ends, in seconds since the epoch; zeros for ``total``."""
    moment = datetime.fromtimestamp(now, UTC)
    hour = moment.replace(minute=0, second=0, microsecond=0)
    if period == "hour":
        begin, end = hour, hour + timedelta(hours=1)
    elif period == "day":
        begin = hour.replace(hour=0)
        end = begin + timedelta(days=1)
    elif period == "month":
        begin = hour.replace(hour=0, day=1)
        end = (begin + timedelta(days=31)).replace(day=1)
    else:
        return 0, 0
    return int(begin.timestamp()), int(end.timestamp())


def accounts_of(budgets: Iterable[LabelBudget], record: RunRecord) -> list[tuple[LabelBudget, Account]]:
    """Return the budgets that apply to a run, with its account of each: that of the time when it was accepted."""
    found = []
    for budget in budgets:
        value = _value(budget.field, record)
        if budget.value is None or budget.value == value:
            found.append((budget, Account(budget.key, value, *span(budget.period, record.accepted_at))))
    return found


def _value(field: str, record: RunRecord) -> str:
    if field.startswith(LABEL):
        return record.labels.get(field.removeprefix(LABEL), "")
    return str(getattr(record, field)) if field else ""


def as_spent(used: Used, runs: int) -> Spent:
    """Return what a run has used as it is added up."""
    cost = int((used.cost * _BILLION).to_integral_value(ROUND_CEILING))
    amounts = (cost, used.input_tokens, used.output_tokens, used.model_calls, used.tool_calls, runs)
    return Spent(*(min(amount, _MOST) for amount in amounts))


def left_of(budget: LabelBudget, spent: Spent) -> pb.Budget:
    """Return what a run may use of a budget."""
    left = pb.Budget()
    left.CopyFrom(budget.caps)
    narrowed_budget(left, _used(spent))
    return left


def _used(spent: Spent) -> Used:
    return Used(
        cost=Decimal(spent.cost) / _BILLION,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        model_calls=spent.model_calls,
        tool_calls=spent.tool_calls,
    )


def reached(budget: LabelBudget, spent: Spent, percent: int, *, beyond: bool = False) -> Reached | None:
    """Return the first cap of which so many percent are spent; ``None`` if there is none.

    Args:
        budget: the budget.
        spent: what is spent.
        percent: the share.
        beyond: whether more must be spent than that.
    """
    for cap in AMOUNTS:
        most = _cap(budget, cap)
        if most is None:
            continue
        share, whole = getattr(spent, cap) * 100, most * percent
        if share > whole or (share == whole and not beyond):
            used = f"{getattr(spent, cap):,}" if cap != "cost" else _text(budget, cap, spent.cost)
            return Reached(cap, used, _text(budget, cap, most))
    return None


def is_nearer(budget: LabelBudget, before: Spent, after: Spent) -> bool:
    """Return whether what a budget caps is used more than before."""
    return any(_cap(budget, cap) is not None and getattr(after, cap) > getattr(before, cap) for cap in AMOUNTS)


def _cap(budget: LabelBudget, cap: str) -> int | None:
    if cap == "runs":
        return budget.runs
    if cap == "cost":
        return int(Decimal(budget.caps.cost) * _BILLION) if budget.caps.cost else None
    return getattr(budget.caps, cap) if budget.caps.HasField(cap) else None  # type: ignore[arg-type] # a cap


def _text(budget: LabelBudget, cap: str, amount: int) -> str:
    if cap == "cost":
        return f"{amount_text(Decimal(amount) / _BILLION)} {budget.caps.currency}"
    noun = cap.replace("_", " ")
    return f"{amount:,} {noun.removesuffix('s') if amount == 1 else noun}"


def described(budget: LabelBudget, account: Account) -> str:
    """Return a budget and its value, for people."""
    value = f" of {budget.field} {account.value[:_MOST_NAMED]!r}" if budget.field else ""
    return f"the router's budget {budget.name!r}{value}"


def refusal(budget: LabelBudget, account: Account, cap: Reached) -> DragomanError:
    """Return the error for a run that starts when a budget is spent."""
    resets_at = _time(account.until)
    until = f" It resets at {resets_at}." if resets_at else " It does not reset."
    what = described(budget, account)
    metadata = {"budget": budget.name, "field": budget.field, "value": account.value[:_MOST_NAMED], "cap": cap.cap}
    metadata |= {"spent": cap.spent, "limit": cap.limit, "resets_at": resets_at}
    return DragomanError(
        Reason.BUDGET_SPENT,
        f"{what[0].upper()}{what[1:]} is spent: {cap.spent} of {cap.limit}.{until}",
        {key: text for key, text in metadata.items() if text},
    )


class Tally:
    """What one run uses of the budgets that apply to it.

    Args:
        record: the run; it gets what is spent.
        accounts: the budgets, each with the run's account.
        warn: emits a notice: a code and a text.
        changed: called when more is spent; with whether the sums are to be compared, as a budget caps that.
    """

    def __init__(
        self,
        record: RunRecord,
        accounts: list[tuple[LabelBudget, Account]],
        warn: Callable[[str, str], None],
        changed: Callable[[bool], None],
    ) -> None:
        self.accounts = accounts
        self._record = record
        self._warn = warn
        self._changed = changed
        # A budget without a cap on cost has no currency.
        self._meters = {
            budget.caps.currency: BudgetMeter(pb.Budget(cost=_HIGHEST, currency=budget.caps.currency))
            for budget, _account in accounts
        }
        self._warned: set[Account] = set()
        self._ending: pb.Result | None = None
        """How the run ends, as a budget is exceeded."""

    def take(self, event: pb.AgentEvent, kind: str | None) -> None:
        """Count a durable event of the run."""
        if kind in COUNTED:
            self.count(event)
            self.note(begins=kind == "started")

    def count(self, event: pb.AgentEvent) -> None:
        """Count an event; what is spent then ``note`` says."""
        for currency, meter in self._meters.items():
            for decision in meter.take(event):
                if decision.kind == "unknown" and currency:
                    text = f"Cost in {decision.used!r} does not count towards the router's budgets in {currency}."
                    self._warn("budget_unknown", text)

    def note(self, *, begins: bool = False) -> None:
        """Put into the record what is spent; a run that begins is to be compared with what others have spent."""
        before, nothing = self._record.spent, Spent()
        spent = {account: as_spent(self._meters[of.caps.currency].used, 1) for of, account in self.accounts}
        if spent != before or begins:
            self._record.spent = spent
            self._changed(
                begins
                or any(is_nearer(of, before.get(account, nothing), spent[account]) for of, account in self.accounts)
            )

    def compare(self, budget: LabelBudget, account: Account, total: Spent) -> pb.Result | None:
        """Compare what all runs have spent in an account with its budget; return how the run ends if that is more."""
        if account not in self._warned and (near := reached(budget, total, budget.warn_percent)) is not None:
            self._warned.add(account)
            text = f"Runs have used {near.spent} of {near.limit} of {described(budget, account)}."
            self._warn("budget_warning", text)
        # How many runs there are decides about those that start.
        cap = reached(budget, replace(total, runs=0), 100, beyond=True)
        if cap is None or self._ending is not None:
            return None
        message = (
            f"The run and others exceeded {described(budget, account)}: they used {cap.spent} of {cap.limit}."
            " Resume the session when there is more."
        )
        kind, code = pb.FAILURE_KIND_BUDGET_EXCEEDED, f"router_budget_{cap.cap}"
        failure = pb.Failure(kind=kind, code=code, message=message, retryable=False)
        self._ending = pb.Result(outcome=pb.OUTCOME_FAILED, failure=failure)
        return self._ending

    def ends(self, event: pb.AgentEvent) -> bool:
        """Have a result say that the run ended as a budget was exceeded, if it did; return whether it is another."""
        result, ending = event.result, self._ending
        if result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED:
            names = " and ".join(described(budget, account) for budget, account in self.accounts)
            result.failure.errors.append(f"Its budget was what was left of {names}, if that was less.")
            return True
        if ending is None or result.outcome == pb.OUTCOME_SUCCEEDED:
            return False
        result.outcome = ending.outcome
        result.failure.kind, result.failure.code = ending.failure.kind, ending.failure.code
        result.failure.message, result.failure.retryable = ending.failure.message, False
        return True


def bounded(
    own: pb.Budget, most: Sequence[pb.Budget], description: adapter_pb2.DescribeResponse | None
) -> tuple[pb.Budget, str]:
    """Return a request's own budget, lowered to others as far as they can be kept; and what cannot, for people.

    Args:
        own: the request's.
        most: the highest caps.
        description: the adapter's; ``None`` leaves nothing out.
    """
    budget = pb.Budget()
    budget.CopyFrom(own)
    unkept, why = dict[str, None](), list[str]()
    for other in most:
        caps = pb.Budget()
        caps.CopyFrom(other)
        for violation in unkept_caps(caps, description) if description is not None else ():
            name = violation.path.rpartition(".")[2]
            caps.ClearField(name)  # type: ignore[arg-type] # the name of a cap
            unkept[name.replace("_", " ")] = None
        if lowered_budget(budget, caps) is not None:
            ours, theirs = budget.currency or _CURRENCY, caps.currency or _CURRENCY
            why.append(f"The router's cap on cost in {theirs} does not lower the run's budget, which is in {ours}.")
            caps.ClearField("cost")
            caps.ClearField("currency")
            lowered_budget(budget, caps)
    if unkept:
        why.insert(0, f"The agent does not report {' and '.join(unkept)}, which the router's budgets cap.")
    return budget, " ".join(dict.fromkeys(why))


def meter(own: bytes, most: Sequence[pb.Budget]) -> BudgetMeter | None:
    """Return what counts the use of all attempts of a run; ``None`` if neither caller nor operator caps it."""
    budget, _unkept = bounded(pb.Budget.FromString(own), most, None)
    return BudgetMeter(budget) if budget.ByteSize() else None


def lower(
    request: adapter_pb2.ExecuteRequest,
    own: bytes,
    most: Sequence[pb.Budget],
    description: adapter_pb2.DescribeResponse | None,
) -> str:
    """Lower the budget that an adapter gets as ``bounded`` does; return what cannot be kept, for people.

    Args:
        request: what it gets.
        own: the caller's budget, serialized.
        most: the highest caps.
        description: the adapter's; of one that gives none nothing is known to be reported.
    """
    if not most:
        return ""
    budget, unkept = bounded(pb.Budget.FromString(own), most, description or adapter_pb2.DescribeResponse())
    request.limits.ClearField("budget")
    if budget.ByteSize():
        request.limits.budget.CopyFrom(budget)
    return unkept


def status(budget: LabelBudget, account: Account, spent: Spent) -> router_pb2.BudgetStatus:
    """Return a budget as ``ListBudgets`` shows it."""
    shown = router_pb2.BudgetStatus(
        name=budget.name,
        field=budget.field,
        value=account.value,
        period=_PERIODS[budget.period],
        warn_percent=budget.warn_percent,
    )
    if account.until:
        shown.starts_at.FromNanoseconds(account.since * _BILLION)
        shown.resets_at.FromNanoseconds(account.until * _BILLION)
    for cap in AMOUNTS:
        most, used = _cap(budget, cap), getattr(spent, cap)
        for amounts, amount in ((shown.limit, most), (shown.spent, used), (shown.left, max(0, (most or 0) - used))):
            if most is None or amount is None:
                continue
            if cap == "cost":
                amounts.cost, amounts.currency = amount_text(Decimal(amount) / _BILLION), budget.caps.currency
            else:
                setattr(amounts, cap, amount)
    return shown


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else ""
