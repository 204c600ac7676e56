"""What runs spend of the operator's budgets: refused when one is spent, counted, and ended when one is exceeded.

A run's own adapter gets what is left at its start as a budget of the run. Runs that live at once use up the same
rest, so each event that reports usage of what a budget caps has the sums looked at again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from dragoman.protocol.budgets import BudgetMeter
from dragoman.protocol.logs import Logger
from dragoman.router.model.errors import log_unavailable
from dragoman.router.model.ports import RequestPolicy
from dragoman.router.model.spending import Account, LabelBudget, Spent
from dragoman.router.policy import spending as policy
from dragoman.router.runs.actor import Run
from dragoman.router.runs.cancellation import end_at_adapter
from dragoman.router.runs.state import is_at_adapter, progress_of
from dragoman.router.storage.batches import unpack
from dragoman.router.storage.database import StoreError, in_time
from dragoman.router.storage.run_log import READ_S, RunLog
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

_COUNTED: Final = frozenset({"usage", "tool_call", "started", "attempt_ended", "result"})
"""Kinds of events that say what a run has used."""
_TURN_S: Final = 30.0
"""How long a run that starts waits for others that do."""
_HIGHEST: Final = "999999999999"

_log = Logger("dragoman.router")


class Spending:
    """The operator's budgets, as this router keeps them."""

    def __init__(self, run_log: RunLog, requests: RequestPolicy) -> None:
        self._run_log = run_log
        self._reads = _SharedReads(run_log)
        self._requests = requests
        self._one_at_a_time = asyncio.Lock()
        """Runs of this router are admitted one after another, so that none is counted too late."""

    async def admit(self, run: Run) -> list[pb.Budget]:
        """Count a run that starts, and return the budgets that it may use at most.

        Raises:
            DragomanError: BUDGET_SPENT, or RUN_LOG_UNAVAILABLE.
        """
        own = self._requests.budget()
        most = [own] if own.ByteSize() else []
        spending = self.of(run)
        if spending is None:
            return most
        await run.ledger.begin()
        try:
            async with asyncio.timeout(_TURN_S):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            raise log_unavailable("too many runs are being counted") from None
        try:
            left = await spending.begin()
        except StoreError as error:
            raise log_unavailable(error) from error
        finally:
            self._one_at_a_time.release()
        run.spending = spending
        return [*most, *left]

    def of(self, run: Run) -> "RunSpending | None":
        """Return what counts what a run spends; ``None`` if no budget applies to it."""
        accounts = policy.accounts_of(self._requests.budgets(), run.record)
        return RunSpending(run, self._run_log, self._reads.total, accounts) if accounts else None


class _SharedReads:
    """Reads what is spent, one account after another: those that ask for one meanwhile share the next read of it."""

    def __init__(self, run_log: RunLog) -> None:
        self._log = run_log
        self._one_at_a_time = asyncio.Lock()
        self._next: dict[Account, asyncio.Future[Spent]] = {}
        """Reads that have not begun."""

    async def total(self, account: Account) -> Spent:
        """Return what is spent in an account, with all that has just happened here.

        Raises:
            StoreError: it cannot be read, or not in time.
        """
        await self._log.settled()
        return await in_time(self._share(account), READ_S)

    async def _share(self, account: Account) -> Spent:
        if account not in self._next:
            self._next[account] = asyncio.ensure_future(self._read(account))
        return await asyncio.shield(self._next[account])

    async def _read(self, account: Account) -> Spent:
        async with self._one_at_a_time:
            del self._next[account]  # what is written from now on, it may miss
            return await self._log.store.spending.spent(account)


class RunSpending:
    """What one run spends.

    Args:
        total: returns what is spent in an account.
        accounts: the budgets that apply to it, with its accounts.
    """

    def __init__(
        self,
        run: Run,
        run_log: RunLog,
        total: Callable[[Account], Awaitable[Spent]],
        accounts: list[tuple[LabelBudget, Account]],
    ) -> None:
        self._run = run
        self._log = run_log
        self._total = total
        self._accounts = accounts
        currencies = {budget.caps.currency for budget, _ in accounts}
        self._meters = {name: BudgetMeter(pb.Budget(cost=_HIGHEST, currency=name)) for name in currencies}
        self._currencies = {budget.caps.currency for budget, _ in accounts if budget.caps.cost}
        """Those of budgets that cap cost."""
        self._before: dict[Account, Spent] = {}
        """What another router wrote of it."""
        self._warned: set[Account] = set()
        self._is_due, self._is_checking = True, False
        self._ending: pb.Result | None = None
        """How the run ends, as a budget is exceeded."""

    async def begin(self) -> list[pb.Budget]:
        """Count the run, and return what it may use.

        Raises:
            DragomanError: BUDGET_SPENT.
            StoreError: what is spent cannot be read.
        """
        left = []
        for budget, account in self._accounts:
            spent = await self._total(account)
            if (cap := policy.reached(budget, spent, 100)) is not None:
                raise policy.refusal(budget, account, cap)
            left.append(policy.left_of(budget, spent))
        self._write()
        return [budget for budget in left if budget.ByteSize()]

    async def recall(self) -> None:
        """Count what the run used at a router before this one."""
        try:
            self._before = await in_time(self._log.store.spending.of_run(self._run.run_id), READ_S)
            after = 0
            while rows := await in_time(self._log.store.events(self._run.run_id, after), READ_S):
                for row in rows:
                    for data in unpack(row.data or b""):
                        self._count(pb.AgentEvent.FromString(data))
                after = rows[-1].last
        except StoreError as error:
            _log.warning("spending of a run not recalled", run_id=self._run.run_id, why=str(error))
        self._write()
        self._look()

    def take(self, event: pb.AgentEvent, kind: str | None) -> None:
        """Count a durable event of the run."""
        if kind in _COUNTED:
            self._count(event)
            if self._write() or self._is_due:
                self._look()

    def ends(self, event: pb.AgentEvent) -> bool:
        """Have a result say that the run ended as a budget was exceeded, if it did; return whether it is another."""
        result, ending = event.result, self._ending
        if result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED:
            names = " and ".join(policy.described(budget, account) for budget, account in self._accounts)
            result.failure.errors.append(f"Its budget was what was left of {names}, if that was less.")
            return True
        if ending is None or result.outcome == pb.OUTCOME_SUCCEEDED:
            return False
        result.outcome = ending.outcome
        result.failure.kind, result.failure.code = ending.failure.kind, ending.failure.code
        result.failure.message, result.failure.retryable = ending.failure.message, False
        return True

    def _count(self, event: pb.AgentEvent) -> None:
        for currency, meter in self._meters.items():
            for decision in meter.take(event):
                if decision.kind == "unknown" and currency in self._currencies:
                    self._run.notices.warn("budget_unknown", policy.uncounted(decision))

    def _own(self, budget: LabelBudget, account: Account) -> Spent:
        used = policy.as_spent(self._meters[budget.caps.currency].used, runs=1)
        return used.most(self._before.get(account, used))

    def _write(self) -> bool:
        """Have the log store what is spent; return whether it is more of what a budget caps."""
        before = self._run.record.spent
        spent = {account: self._own(budget, account) for budget, account in self._accounts}
        if spent == before:
            return False
        self._run.record.spent = spent
        self._run.ledger.changed()
        return any(
            policy.is_nearer(budget, before.get(account, Spent()), spent[account])
            for budget, account in self._accounts
        )

    def _look(self) -> None:
        """Have the sums looked at again, soon; by one task at a time."""
        self._is_due = True
        if not self._is_checking and self._ending is None:
            self._is_checking = True
            self._run.tasks.start(self._check(), f"budgets of {self._run.run_id}")

    async def _check(self) -> None:
        try:
            while self._is_due and self._ending is None and is_at_adapter(self._run.state):
                self._is_due = False
                for budget, account in self._accounts:
                    self._compare(budget, account, await self._total(account))
        except StoreError as error:
            self._is_due = True  # at the next event
            _log.warning("budgets not compared", run_id=self._run.run_id, why=str(error))
        finally:
            self._is_checking = False

    def _compare(self, budget: LabelBudget, account: Account, total: Spent) -> None:
        run = self._run
        if not is_at_adapter(run.state) or self._ending is not None:
            return
        if account not in self._warned and (near := policy.reached(budget, total, budget.warn_percent)) is not None:
            self._warned.add(account)
            run.notices.warn("budget_warning", policy.warning(budget, account, near))
        # How many runs there are decides about those that start.
        cap = policy.reached(budget, replace(total, runs=0), 100, beyond=True)
        if cap is not None and not progress_of(run.state).is_cancelling:
            self._ending = pb.Result(outcome=pb.OUTCOME_FAILED, failure=policy.failure(budget, account, cap))
            run.tasks.start(end_at_adapter(run, self._ending), f"end {run.run_id}")
