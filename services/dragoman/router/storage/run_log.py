"""The run log of one router: its runs are written, found and listed, its lease is renewed, old runs are deleted."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from dragoman.protocol.identity import RequestDigests, is_run_id
from dragoman.protocol.logs import Logger
from dragoman.router.model.assignment import Assignment
from dragoman.router.model.errors import log_unavailable
from dragoman.router.model.ports import Clock
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.stored import RunQuery, StoredRun
from dragoman.router.model.tasks import nothing
from dragoman.router.storage.database import StoreError, in_time
from dragoman.router.storage.leases import LEASE_S, RunOwnership
from dragoman.router.storage.ledger import RunLedger
from dragoman.router.storage.logged import RowState
from dragoman.router.storage.retention import RetentionPolicy, RetentionTask
from dragoman.router.storage.store import Store
from dragoman.router.storage.writer import Writer
from dragoman.v1 import event_pb2, router_pb2

_LISTING_S: Final = 1.0
"""How long a list waits for what has just happened to be written."""
_SETTLED_S: Final = 10.0
"""How long to wait where what has just happened must be written: longer than a write that another one delays."""
READ_S: Final = 3.0
"""How long a caller waits for the log to be read: one that takes longer is as good as none."""
_CLOSING_S: Final = 5.0
"""How long a router that ends waits for what is not written yet."""

_log = Logger("dragoman.router")


class RunLog:
    """Stores the runs of one router.

    Args:
        owner: the name of this router; another one after each start.
        lease_s: see ``LEASE_S``.
    """

    def __init__(
        self, store: Store, clock: Clock, owner: str, *, kept: RetentionPolicy, lease_s: float = LEASE_S
    ) -> None:
        self.store = store
        self.writer = Writer(store)
        self.owner = owner
        self.address = ""
        """Where other routers reach this one; empty if none can."""
        self.ownership = RunOwnership(store, clock, owner, lease_s)
        self.digests = RequestDigests()
        """Of requests; with the key of the log once it is open."""
        self._clock = clock
        self._forgetting = RetentionTask(store, clock, kept)
        self.is_in_memory: Callable[[str], bool] = lambda _run_id: False
        """Returns whether a run is known here, whatever the log has."""
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the log.

        Raises:
            StoreError: it cannot be used.
        """
        await self.store.open()
        self.digests = RequestDigests(await self.store.setting("digest_key", secrets.token_bytes(32)))
        self.ownership.health.record_success()
        self._writing = asyncio.ensure_future(self.writer.run())

    async def close(self) -> None:
        """Write what waits, give the lease up, and close the log."""
        if self._writing is not None:
            await self.writer.close()
            await asyncio.wait([self._writing], timeout=_CLOSING_S)
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        try:
            async with asyncio.timeout(_CLOSING_S):
                await self.store.leases.release(self.owner)
        except (StoreError, TimeoutError) as error:
            _log.warning("leases not released", why=str(error))
        finally:
            await self.store.close()

    async def keep_alive(self) -> None:
        """Renew the lease, and delete what is old, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forgetting.run(), name="retention")
            await self.ownership.keep()

    def follow(
        self,
        record: RunRecord,
        assignment: Callable[[], Assignment],
        remark: Callable[[str, str], None],
        lost: Callable[[], None],
        stored: StoredRun | None = None,
    ) -> RunLedger:
        """Begin to store a run, in place of one with its id.

        Args:
            record: the run.
            assignment: returns where it is.
            remark: emits a notice to its readers.
            lost: called when another router has taken it.
            stored: its row; ``None`` for a new one.
        """

        def snapshot() -> StoredRun:
            pending = [event.input_request for event in record.pending.values()]
            return StoredRun(
                run_id=record.run_id,
                accepted_at=record.accepted_at,
                adapter=record.adapter,
                state=router_pb2.GetRunResponse(run=record.summary(0), pending_requests=pending),
                owner=self.owner,
                lease_until=self.ownership.lease_until,
                assignment=assignment(),
                router=self.address,
                orphan_after=record.orphan_after_s,
                digest=record.digest,
                finished_at=record.finished_at,
                spent=record.spent,
            )

        row, state = stored or snapshot(), RowState.NEW if stored is None else RowState.STORED
        run = RunLedger(row, snapshot, remark, lost, state, writer=self.writer, size=row.size)
        run.last = run.logged = run.noted = row.logged
        self.writer.backlog.add(run)
        return run

    async def find(self, run_id: str) -> StoredRun | None:
        """Return a stored run; ``None`` if there is none.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE; also for a run that is no longer in memory, and not written yet.
        """
        if not is_run_id(run_id):
            return None
        if (ending := self.writer.backlog.find(run_id)) is not None and not self.is_in_memory(run_id):
            await self.writer.flushed([ending], _LISTING_S)
        # Each before and after: it may be removed, or written, while it is looked for.
        backlog = self.writer.backlog
        never_was, is_unwritten = backlog.is_removing(run_id), backlog.is_writing(run_id)
        try:
            stored = await in_time(self.store.run(run_id), READ_S)
        except StoreError as error:
            raise log_unavailable(error) from error
        never_was = never_was or backlog.is_removing(run_id)
        is_unwritten = is_unwritten or backlog.is_writing(run_id)
        if stored is None and is_unwritten and not self.is_in_memory(run_id):
            raise log_unavailable("a run with this id is still being written")
        return None if stored is not None and never_was and stored.owner == self.owner else stored

    async def settled(self) -> None:
        """Wait until all that has just happened here is written.

        Raises:
            StoreError: it is not.
        """
        if self.writer.failing or not await self.writer.flushed(self.writer.backlog, _SETTLED_S):
            raise StoreError(self.writer.failing or "what has just happened is not written yet")

    async def list_runs(self, query: RunQuery, *, before: tuple[float, str] | None, size: int) -> list[StoredRun]:
        """Return runs, newest first; see ``Store.runs``.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        if not self.writer.failing:
            await self.writer.flushed(self.writer.backlog, _LISTING_S)
        try:
            return await in_time(self.store.runs(query, before=before, size=size), READ_S)
        except StoreError as error:
            raise log_unavailable(error) from error

    def end(self, stored: StoredRun, result: event_pb2.Result) -> None:
        """End a run that this router has claimed and does not follow."""
        record = RunRecord.of_stored(stored)
        events = record.end(result, self._clock.time())
        ledger = self.follow(record, lambda: stored.assignment, nothing, nothing, stored)
        ledger.over()
        for sequence, data in events:
            ledger.append(sequence, data)
