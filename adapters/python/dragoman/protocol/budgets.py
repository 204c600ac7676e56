"""What a run may use: what is wrong with a budget, what counts towards it, and what is left of it. Pure.

Absent is not zero: what an agent does not report is not counted. What is counted only grows, however the events come.
"""

import re
from collections.abc import Iterable, Iterator
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final, Literal

from dragoman.protocol.errors import FieldViolation
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

Cap = Literal["cost", "input_tokens", "output_tokens", "model_calls", "tool_calls", "turns", "repeats"]
CAPS: Final[tuple[Cap, ...]] = (
    *("cost", "input_tokens", "output_tokens", "model_calls", "tool_calls", "turns", "repeats"),
)
BUDGET_CONTINUE: Final = "continue"
BUDGET_STOP: Final = "stop"
_WARN_PERCENT: Final = 80
_CURRENCY: Final = "USD"
_DECIMAL: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,10})?")
_SMALLEST: Final = Decimal("1e-10")
"""The last digit of an amount that a budget may have."""
MOST_TOKENS: Final = 10**15
"""Of a cap."""
_LONGEST_AMOUNT: Final = 64
"""Characters of an amount of money that an agent may report."""
_MOST_DIGITS: Final = 30
"""Digits before and behind its point."""
_MOST_CALLS: Final = 1024
"""Open tool calls that are remembered for their results; of more, the oldest are forgotten."""
_MOST_STREAKS: Final = 64
"""Nested agents whose last tool calls are remembered."""
_OF_EACH_ATTEMPT: Final = frozenset({"turns", "repeats"})
_PER_CALL: Final = frozenset({pb.USAGE_REPORTING_EXACT, pb.USAGE_REPORTING_PER_CALL})
_NOUNS: Final[dict[Cap, str]] = {
    "cost": "cost",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "turns": "turns",
    "repeats": "tool calls without progress",
}


def budget_problems(budget: pb.Budget) -> list[FieldViolation]:
    """Return the wrong fields of a budget, by their paths in a request; none of an empty one, which caps nothing."""
    return [FieldViolation(f"limits.budget.{name}" if name else "limits.budget", why) for name, why in _wrong(budget)]


def _wrong(budget: pb.Budget) -> Iterator[tuple[str, str]]:
    if not budget.ByteSize():
        return
    if not any(_is_set(budget, cap) for cap in CAPS):
        yield "", "sets no cap: give cost, input_tokens, output_tokens, model_calls, tool_calls, turns or repeats"
    if budget.cost and (not _DECIMAL.fullmatch(budget.cost) or not Decimal(budget.cost)):
        yield "cost", 'must be a plain decimal number above zero such as "2.50", of 12 digits and 10 behind the point'
    if budget.currency and not budget.cost:
        yield "currency", "goes with cost"
    elif budget.currency and not re.fullmatch(r"[A-Z]{3}", budget.currency):
        yield "currency", 'must be three capital letters such as "USD"'
    for name in ("input_tokens", "output_tokens", "model_calls", "turns", "repeats"):
        if budget.HasField(name) and not 1 <= getattr(budget, name) <= MOST_TOKENS:
            yield name, f"must be from 1 to {MOST_TOKENS:,}"
    if budget.HasField("warn_percent") and not 1 <= budget.warn_percent <= 100:
        yield "warn_percent", "must be from 1 to 100"


def never_reported(budget: pb.Budget, capabilities: pb.Capabilities) -> list[FieldViolation]:
    """Return the caps of a budget on what an agent with these capabilities never reports."""
    features = {item.feature for item in capabilities.items}
    per_call = pb.FEATURE_PER_CALL_USAGE in features or capabilities.usage_reporting in _PER_CALL
    tokens = per_call or bool(capabilities.usage_reporting) or pb.FEATURE_PER_MODEL_USAGE in features
    tools = pb.FEATURE_TOOL_START in features
    reports: dict[Cap, bool] = {
        "cost": pb.FEATURE_COST in features,
        "input_tokens": tokens,
        "output_tokens": tokens,
        "model_calls": per_call,
        "tool_calls": tools,
        "repeats": tools,
    }
    return [
        FieldViolation(f"limits.budget.{cap}", f"its agent does not report {_NOUNS[cap]}; leave it out")
        for cap in CAPS
        if _is_set(budget, cap) and not reports.get(cap, True)
    ]


def at_end_message(budget: pb.Budget, capabilities: pb.Capabilities) -> str:
    """Return which caps may be exceeded before that is known, as usage is reported at the end; empty if none may."""
    exact = capabilities.usage_reporting == pb.USAGE_REPORTING_EXACT
    late = ["limits.budget.cost"] if budget.cost and not exact else []
    if capabilities.usage_reporting not in _PER_CALL:
        late += [f"limits.budget.{cap}" for cap in ("input_tokens", "output_tokens") if budget.HasField(cap)]
    if not late:
        return ""
    return f"The agent may report its usage only when it ends: {' and '.join(late)} may be exceeded before."


def unreported_message(caps: Iterable[Cap]) -> str:
    """Return that nothing of some caps was reported; empty if there are none."""
    names = " and ".join(f"limits.budget.{cap}" for cap in caps)
    return f"The agent did not report what counts towards {names}, so it was not kept." if names else ""


def amount_of(text: str) -> Decimal | None:
    """Return an amount of money that an agent reports; None if it is no number that can be counted with."""
    try:
        amount = Decimal(text) if len(text) <= _LONGEST_AMOUNT else None
    except InvalidOperation:
        return None
    if amount is None or not amount.is_finite() or amount < 0:
        return None
    digits = amount.as_tuple()
    is_long = not -_MOST_DIGITS <= int(digits.exponent) <= _MOST_DIGITS or len(digits.digits) > _MOST_DIGITS
    return None if is_long else amount


class Used(Struct, frozen=True):
    """What a run has used, as far as it is reported."""

    cost: Decimal = Decimal(0)
    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    turns: int = 0
    """Turns that have ended."""
    repeats: int = 0
    """The most tool calls in a row that were the same."""


class Decision(Struct, frozen=True):
    """What is due, as a share of a cap is used or a cap is exceeded."""

    kind: Literal["warn", "ask", "exceeded", "unknown"]
    """``unknown``: cost is reported in another currency, and not counted."""
    cap: Cap
    used: str = ""
    """For people, e.g. ``2.13``; the other currency if that is what is unknown."""
    limit: str = ""
    """The cap, with what it counts, e.g. ``2 USD``."""


def decision_notice(decision: Decision) -> tuple[str, str]:
    """Return the code and message of the notice of a decision; one that is asked about is a warning."""
    field = f"limits.budget.{decision.cap}"
    if decision.kind == "unknown":
        return (
            "budget_unknown",
            f"Cost in {decision.used!r} does not count towards {field}, which is in {decision.limit}.",
        )
    if decision.kind == "exceeded":
        return "budget_exceeded", f"The run used {decision.used} of {decision.limit}, more than {field} allows."
    return "budget_warning", f"The run has used {decision.used} of {decision.limit} ({field})."


def budget_failure(decision: Decision) -> pb.Failure:
    """Return the failure of a run that exceeded a cap, or that the caller stopped near it."""
    verb = "was stopped near" if decision.kind == "ask" else "exceeded"
    message = (
        f"The run {verb} limits.budget.{decision.cap}: it used {decision.used} of {decision.limit}."
        " Raise the cap if the task needs more, and resume the session."
    )
    return pb.Failure(
        kind=pb.FAILURE_KIND_BUDGET_EXCEEDED, code=f"budget_{decision.cap}", message=message, retryable=False
    )


class _Counts(Struct, frozen=True):
    """Input tokens, output tokens and cost; what is not reported is zero."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)

    def plus(self, other: "_Counts") -> "_Counts":
        return _Counts(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, self.cost + other.cost
        )

    def beyond(self, other: "_Counts") -> "_Counts":
        """Return what these are more than others; where they are less, they began anew."""
        return _Counts(
            self.input_tokens - (other.input_tokens if self.input_tokens >= other.input_tokens else 0),
            self.output_tokens - (other.output_tokens if self.output_tokens >= other.output_tokens else 0),
            self.cost - (other.cost if self.cost >= other.cost else 0),
        )

    def most(self, other: "_Counts") -> "_Counts":
        return _Counts(
            max(self.input_tokens, other.input_tokens),
            max(self.output_tokens, other.output_tokens),
            max(self.cost, other.cost),
        )


_NOTHING: Final = _Counts()


class _Scope(Struct):
    """The reports of one scope in one turn."""

    before: _Counts = _NOTHING
    """Of reports that are added, and of periods that are over."""
    latest: _Counts = _NOTHING
    """Of the report that the next one replaces."""

    def total(self) -> _Counts:
        return self.before.plus(self.latest)

    def replace(self, counts: _Counts) -> bool:
        """Handle a report of a period; return whether it is another one than before: numbers only grow within one."""
        begins = self.latest == _NOTHING or self.latest.most(counts) != counts
        if begins:
            self.before = self.total()
        self.latest = counts
        return begins


class _Call(Struct):
    """An open tool call, as far as it is known: hashes of what may be long."""

    name: str = ""
    input_json: int = 0
    title: int = 0


class _Repeats(Struct):
    """How often the same tool call is made in a row."""

    most: int = 0
    calls: dict[str, _Call] = field(default_factory=dict)
    streaks: dict[str, tuple[tuple[object, ...], int]] = field(default_factory=dict)
    """By nested agent: the last call with its result, and how often it came in a row."""

    def announced(self, call: pb.ToolCall) -> None:
        known = self.calls.setdefault(call.id, _Call())
        known.name = call.name or known.name
        known.input_json = hash(call.input_json) if call.input_json else known.input_json
        known.title = hash(call.title) if call.title else known.title
        if len(self.calls) > _MOST_CALLS:
            del self.calls[next(iter(self.calls))]

    def ended(self, result: pb.ToolResult, agent: str) -> None:
        call = self.calls.pop(result.tool_call_id, _Call())
        asked = call.input_json or call.title
        if not asked:  # what is not known to be the same is progress
            self.streaks.pop(agent, None)
            return
        # Messages of failures have times and places in them; another output of the same command is progress.
        output = None if _has_failed(result) else hash(result.content)
        same = (call.name, asked, result.status, output)
        last, count = self.streaks.pop(agent, ((), 0))
        count = count + 1 if last == same else 1
        self.streaks[agent] = (same, count)
        self.most = max(self.most, count)
        if len(self.streaks) > _MOST_STREAKS:
            del self.streaks[next(iter(self.streaks))]


def _has_failed(result: pb.ToolResult) -> bool:
    return result.status != pb.TOOL_STATUS_COMPLETED or result.is_error or result.exit_code != 0


class BudgetMeter:
    """Counts what a run uses. An event takes the same short time, however many came before.

    Args:
        budget: the caps, valid.
        asks: whether a client answers where the budget asks.
    """

    def __init__(self, budget: pb.Budget, *, asks: bool = False) -> None:
        self._caps = dict(_caps(budget))
        self._currency = budget.currency or _CURRENCY
        self._percent = budget.warn_percent if budget.HasField("warn_percent") else _WARN_PERCENT
        self._asks = asks and budget.ask
        self._warned: set[Cap] = set()
        self._raised: set[Cap] = set()
        self._attempts = _NOTHING
        """Of the attempts before."""
        self._turns = _NOTHING
        """Of the turns before in this attempt."""
        self._scopes: dict[int, _Scope] = {}
        self._stated = _NOTHING
        """What is said of the whole attempt."""
        self._session: _Counts | None = _NOTHING
        """The session's counts when the turn began. None: not known yet."""
        self._known: set[Cap] = set()
        self._model_calls = self._turns_ended = 0
        self._tool_calls = [0, 0]
        """Of the attempts before, and of this one."""
        self._call_ids: set[str] = set()
        self._repeats = _Repeats()
        self._currencies: set[str] = set()
        self.exceeded: Decision | None = None
        """The first cap that was exceeded."""

    @property
    def used(self) -> Used:
        """What the run has used."""
        present = self._turns
        for scope in self._scopes.values():
            present = present.most(self._turns.plus(scope.total()))
        total = self._attempts.plus(present.most(self._stated))
        return Used(
            cost=total.cost,
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            model_calls=self._model_calls,
            tool_calls=sum(self._tool_calls),
            turns=self._turns_ended,
            repeats=self._repeats.most,
        )

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left for another attempt: with no tool calls left, one may still answer."""
        used = self.used
        return any(
            getattr(used, cap) >= most if cap != "tool_calls" else used.tool_calls > most
            for cap, most in self._caps.items()
            if cap not in _OF_EACH_ATTEMPT
        )

    @property
    def unreported(self) -> list[Cap]:
        """The caps on money and tokens of which nothing was ever reported."""
        return [cap for cap in ("cost", "input_tokens", "output_tokens") if cap in self._caps.keys() - self._known]

    def take(self, event: pb.AgentEvent) -> list[Decision]:
        """Count an event, and return what is due."""
        kind = event.WhichOneof("body")
        if kind == "batch":
            return [decision for one in event.batch.events for decision in self.take(one)]
        if kind == "usage":
            return self._usage(event.usage)
        if kind == "tool_call":
            if event.tool_call.id not in self._call_ids:
                self._call_ids.add(event.tool_call.id)
                self._tool_calls[1] = max(self._tool_calls[1], len(self._call_ids))
            self._repeats.announced(event.tool_call)
            return self._due("tool_calls")
        if kind == "tool_result":
            self._repeats.ended(event.tool_result, event.lineage.subagent_id)
            return self._due("repeats")
        if kind == "started":
            self._begin_attempt(event.started)
        elif kind == "attempt_ended":
            return self.state(event.attempt_ended.usage)
        elif kind == "result":
            return self.state(event.result.usage, event.result.counters)
        return []

    def state(self, usage: pb.Usage, counters: pb.RunCounters | None = None) -> list[Decision]:
        """Count what the end of an attempt says of all of it, and return what is due; again, it adds nothing."""
        others = self._note(usage)
        self._stated = self._stated.most(_counts(usage, self._currency))
        if counters is not None:
            self._tool_calls[1] = max(self._tool_calls[1], counters.tool_calls)
        return [*others, *self._due("cost", "input_tokens", "output_tokens", "tool_calls")]

    def turn_ended(self) -> None:
        """Note that a turn has ended, as the next one of the attempt is to begin."""
        self._turns_ended += 1
        before = self._turns
        for scope in self._scopes.values():
            self._turns = self._turns.most(before.plus(scope.total()))
        if self._session is not None and pb.USAGE_SCOPE_SESSION in self._scopes:
            self._session = self._session.plus(self._scopes[pb.USAGE_SCOPE_SESSION].total())
        self._scopes.clear()

    def turn_begins(self) -> list[Decision]:
        """Return what is due as another turn is to begin: exceeded if there may be none."""
        most = self._caps.get("turns")
        if most is None or self._turns_ended < most:
            return []
        used = Decision("exceeded", "turns", f"{self._turns_ended + 1}", self._text("turns", most))
        self.exceeded = self.exceeded or used
        return [used]

    def raise_cap(self, cap: Cap) -> None:
        """Double a cap, once."""
        if cap not in self._raised and cap in self._caps:
            self._raised.add(cap)
            self._caps[cap] *= 2
            self._warned.discard(cap)

    def _begin_attempt(self, started: pb.Started) -> None:
        used = self.used
        self._attempts = _Counts(used.input_tokens, used.output_tokens, used.cost)
        self._turns, self._stated = _NOTHING, _NOTHING
        self._scopes.clear()
        self._tool_calls = [sum(self._tool_calls), 0]
        self._call_ids.clear()
        is_new = started.session_disposition not in {pb.SESSION_DISPOSITION_RESUME, pb.SESSION_DISPOSITION_FORK}
        self._session = _NOTHING if is_new else None

    def _usage(self, usage: pb.Usage) -> list[Decision]:
        others, counts = self._note(usage), _counts(usage, self._currency)
        scope = self._scopes.setdefault(usage.scope, _Scope())
        is_call = usage.scope == pb.USAGE_SCOPE_CALL
        if usage.scope == pb.USAGE_SCOPE_SESSION:
            self._take_session(scope, usage, counts)
        elif usage.semantics == pb.USAGE_SEMANTICS_CUMULATIVE and usage.scope == pb.USAGE_SCOPE_RUN:
            self._stated = self._stated.most(counts)  # of all turns of the attempt
        elif usage.semantics == pb.USAGE_SEMANTICS_CUMULATIVE:
            self._model_calls += scope.replace(counts) and is_call
        else:
            scope.before = scope.before.plus(counts)
            # A report of the account's limits alone is no call.
            self._model_calls += is_call and (usage.HasField("tokens") or bool(usage.models))
        return [*others, *self._due("cost", "input_tokens", "output_tokens", "model_calls")]

    def _take_session(self, scope: _Scope, usage: pb.Usage, counts: _Counts) -> None:
        if usage.semantics == pb.USAGE_SEMANTICS_DELTA:
            scope.before = scope.before.plus(counts)
            return
        if self._session is None:
            self._session = counts
        scope.latest = scope.latest.most(counts.beyond(self._session))

    def _note(self, usage: pb.Usage) -> list[Decision]:
        """Note what is reported at all, and return what cannot be counted."""
        for tokens in (usage.tokens, *(model.tokens for model in usage.models)):
            names = {name.name for name, _ in tokens.ListFields()}
            self._known |= {"input_tokens"} if names & {"input", "cache_read", "cache_write"} else set()
            self._known |= {"output_tokens"} if "output" in names else set()
        decisions = []
        for cost in _costs(usage):
            if cost.currency == self._currency and amount_of(cost.amount) is not None:
                self._known.add("cost")
            elif cost.currency != self._currency and cost.currency not in self._currencies and "cost" in self._caps:
                if not self._currencies:
                    decisions.append(Decision("unknown", "cost", cost.currency[:8], self._currency))
                self._currencies.add(cost.currency[:8])
        return decisions

    def _due(self, *caps: Cap) -> list[Decision]:
        if not any(cap in self._caps for cap in caps):
            return []
        used, decisions = self.used, []
        for cap in (cap for cap in caps if cap in self._caps):
            amount, most = getattr(used, cap), self._caps[cap]
            kind: Literal["warn", "ask", "exceeded"] | None = None
            if amount > most:
                kind = "exceeded" if self.exceeded is None else None
            elif amount and amount * 100 >= most * self._percent and cap not in self._warned:
                self._warned.add(cap)
                kind = "ask" if self._asks and cap not in self._raised else "warn"
            if kind is not None:
                decision = Decision(kind, cap, self._text(cap, amount).partition(" ")[0], self._text(cap, most))
                self.exceeded = decision if kind == "exceeded" else self.exceeded
                decisions.append(decision)
        return decisions

    def _text(self, cap: Cap, amount: Decimal | int) -> str:
        if cap == "cost":
            return f"{amount_text(Decimal(amount))} {self._currency}"
        return f"{amount:,} {_NOUNS[cap]}"


def amount_text(amount: Decimal) -> str:
    """Return an amount of money as a plain decimal number."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def narrowed_budget(budget: pb.Budget, used: Used) -> None:
    """Leave in a budget what is left of it for another attempt; each has its own turns and repeats."""
    for cap, most in list(_caps(budget)):
        if cap == "cost":
            # Rounded up, so that something that is left never becomes nothing.
            left = max(Decimal(0), Decimal(most) - used.cost).quantize(_SMALLEST, ROUND_CEILING)
            budget.cost = amount_text(left)
        elif cap not in _OF_EACH_ATTEMPT:
            setattr(budget, cap, max(0, int(most) - getattr(used, cap)))


def lowered_budget(budget: pb.Budget, most: pb.Budget) -> FieldViolation | None:
    """Lower the caps of a budget, in place, to those of another one; missing caps are set.

    Args:
        budget: what is lowered.
        most: the highest caps. Its ``warn_percent`` and ``ask`` are of no effect.

    Returns:
        What cannot be compared: cost in different currencies; nothing is lowered then.
    """
    ours, theirs = budget.currency or _CURRENCY, most.currency or _CURRENCY
    if budget.cost and most.cost and ours != theirs:
        return FieldViolation("limits.budget.currency", f"must be {theirs}")
    caps = dict(_caps(budget))
    for cap, amount in _caps(most):
        if cap not in caps or amount < caps[cap]:
            setattr(budget, cap, getattr(most, cap))
            if cap == "cost":
                budget.currency = most.currency
    return None


def budget_excess(budget: pb.Budget, most: pb.Budget) -> list[FieldViolation]:
    """Return the caps of a budget that are above those of another one; with ``ask`` each counts double.

    Args:
        budget: what is checked, valid. A missing cap is not above.
        most: the highest caps.
    """
    caps, factor = dict(_caps(budget)), 2 if budget.ask else 1
    above = []
    if budget.cost and most.cost and (budget.currency or _CURRENCY) != (most.currency or _CURRENCY):
        above.append(FieldViolation("limits.budget.currency", f"must be {most.currency or _CURRENCY}"))
        del caps["cost"]
    for cap, amount in _caps(most):
        if cap in caps and caps[cap] * factor > amount:
            doubled = ", and its question may double it" if budget.ask else ""
            text = f"{getattr(budget, cap)} is more than the allowed {getattr(most, cap)}{doubled}"
            above.append(FieldViolation(f"limits.budget.{cap}", text))
        elif cap not in caps and budget.ask:
            text = f"may double the cap: set {cap} to at most half of {getattr(most, cap)}"
            above.append(FieldViolation("limits.budget.ask", text))
    return above


def _caps(budget: pb.Budget) -> Iterator[tuple[Cap, Decimal | int]]:
    for cap in CAPS:
        if _is_set(budget, cap):
            yield cap, Decimal(budget.cost) if cap == "cost" else getattr(budget, cap)


def _is_set(budget: pb.Budget, cap: Cap) -> bool:
    return bool(budget.cost) if cap == "cost" else budget.HasField(cap)


def _counts(usage: pb.Usage, currency: str) -> _Counts:
    kinds = [usage.tokens] if usage.HasField("tokens") else [model.tokens for model in usage.models]
    amounts = (amount_of(cost.amount) for cost in _costs(usage) if cost.currency == currency)
    return _Counts(
        sum(tokens.input + tokens.cache_read + tokens.cache_write for tokens in kinds),
        sum(tokens.output for tokens in kinds),
        sum((amount for amount in amounts if amount is not None), Decimal(0)),
    )


def _costs(usage: pb.Usage) -> Iterable[pb.Cost]:
    if usage.HasField("cost"):
        return (usage.cost,)
    return tuple(model.cost for model in usage.models if model.HasField("cost"))
