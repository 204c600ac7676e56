"""What runs spend of the operator's budgets: refused when one is spent, counted, and ended when one is exceeded.

A run's own adapter gets what is left at its start as a budget of the run. Runs that live at once use up the same
rest, so whenever one has used more of what a budget caps, the sums are looked at again.
"""

import asyncio
from typing import Final

from dragoman.protocol.errors import DragomanError
from dragoman.protocol.logs import Logger
from dragoman.router.model.errors import log_unavailable
from dragoman.router.model.ports import RequestPolicy
from dragoman.router.model.spending import Account, Spent
from dragoman.router.policy.spending import COUNTED, Tally, accounts_of, left_of, reached, refusal
from dragoman.router.runs.actor import Run
from dragoman.router.runs.cancellation import end_at_adapter
from dragoman.router.runs.state import is_at_adapter, progress_of
from dragoman.router.storage.database import StoreError, in_time
from dragoman.router.storage.reader import StoredEventReader, events_of
from dragoman.router.storage.run_log import READ_S, RunLog
from dragoman.v1 import event_pb2 as pb

_TURN_S: Final = 30.0
"""How long a run that starts waits for others that do."""
_RECALL_S: Final = 30.0
"""How long the events of a run that is taken over may take to be read."""
_AGAIN_S: Final = 1.0
"""How long to wait for a log that fails."""

_log = Logger("dragoman.router")


class Spending:
    """The operator's budgets, as this router keeps them."""

    def __init__(self, run_log: RunLog, requests: RequestPolicy) -> None:
        self._log = run_log
        self._requests = requests
        self._one_at_a_time = asyncio.Lock()
        """Runs of this router are admitted one after another, so that none is counted too late."""
        self._due: dict[Run, Tally] = {}
        """Runs that have used more than the sums have that were last compared."""
        self._is_comparing = False

    async def admit(self, run: Run) -> list[pb.Budget]:
        """Count a run that starts, and return the budgets that it may use at most.

        Raises:
            DragomanError: BUDGET_SPENT, or RUN_LOG_UNAVAILABLE.
        """
        own = self._requests.budget()
        most = [own] if own.ByteSize() else []
        if (tally := self._tally(run)) is None:
            return most
        await run.ledger.begin()
        try:
            async with asyncio.timeout(_TURN_S):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            raise log_unavailable("too many runs are being counted") from None
        try:
            await self._log.settled()
            for budget, account in tally.accounts:
                spent = await self._total(account)
                if (cap := reached(budget, spent, 100)) is not None:
                    raise refusal(budget, account, cap)
                most.append(left_of(budget, spent))
            tally.note()
        except StoreError as error:
            raise log_unavailable(error) from error
        finally:
            self._one_at_a_time.release()
        run.spending = tally
        return [budget for budget in most if budget.ByteSize()]

    async def recall(self, run: Run) -> None:
        """Count what a run used at a router before this one."""
        run.spending = tally = self._tally(run)
        if tally is None:
            return
        try:
            await in_time(self._read(run, tally), _RECALL_S)
        except (DragomanError, StoreError) as error:
            _log.warning("spending of a run not recalled", run_id=run.run_id, why=str(error))
        tally.note(begins=True)

    async def _read(self, run: Run, tally: Tally) -> None:
        end = run.record.last_sequence
        async for event in events_of(StoredEventReader(self._log.store, run.run_id, 0, end=end), end, COUNTED):
            tally.count(event)

    def _tally(self, run: Run) -> Tally | None:
        """Return what counts what a run spends; ``None`` if no budget applies to it."""
        if not (accounts := accounts_of(self._requests.budgets(), run.record)):
            return None

        def changed(is_due: bool) -> None:
            run.ledger.changed()
            if is_due:
                self._due[run] = tally
                if not self._is_comparing:
                    self._is_comparing = True
                    run.tasks.start(self._compare(), "budgets")

        tally = Tally(run.record, accounts, run.notices.warn, changed)
        return tally

    async def _total(self, account: Account) -> Spent:
        return await in_time(self._log.store.spending.spent(account), READ_S)

    async def _compare(self) -> None:
        """Compare the sums with the budgets of the runs that are due; each sum is read once for all of them."""
        try:
            while self._due:
                due, self._due = self._due, {}
                try:
                    await self._log.settled()
                    accounts = {account for tally in due.values() for _budget, account in tally.accounts}
                    totals = {account: await self._total(account) for account in accounts}
                except StoreError as error:
                    self._due = {run: tally for run, tally in (due | self._due).items() if not run.is_ending}
                    _log.warning("budgets not compared", why=str(error))
                    await asyncio.sleep(_AGAIN_S)
                else:
                    for run, tally in due.items():
                        _compare(run, tally, totals)
        finally:
            self._is_comparing = False


def _compare(run: Run, tally: Tally, totals: dict[Account, Spent]) -> None:
    for budget, account in tally.accounts:
        if is_at_adapter(run.state) and not progress_of(run.state).is_cancelling:
            ending = tally.compare(budget, account, totals[account])
            if ending is not None:
                run.tasks.start(end_at_adapter(run, ending), f"end {run.run_id}")
