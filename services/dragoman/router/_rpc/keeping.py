"""The router's side of the run log: which runs it has, in whose name they are kept, and for how long."""

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import structlog
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import RequestDigests, is_run_id
from dragoman.router._domain.contact import Contact
from dragoman.router._domain.runs import RunRecord, lost
from dragoman.router._domain.stored import RunQuery, StoredRun
from dragoman.router._ports import Clock
from dragoman.router._rpc.forgetting import Forgetting, Kept
from dragoman.router._store.database import StoreError
from dragoman.router._store.store import Store
from dragoman.router._store.writer import LoggedRun, Writer
from dragoman.v1 import event_pb2, router_pb2

LEASE_S: Final = 15.0
"""Seconds after which another router may take the runs of one that says nothing."""
_RENEWALS: Final = 3
"""How often a lease is renewed before it runs out."""
_AGAIN_S: Final = 1.0
"""How soon a lease is renewed again that could not be: it does not last much longer."""
_LISTING_S: Final = 1.0
"""How long a list waits for what has just happened to be written."""
GIVEN_UP: Final = 1.0
"""A lease that ended before this second of the epoch was given up, by its owner or in place of one that is dead."""
_CLOSING_S: Final = 5.0
"""How long a router that ends waits for what is not written yet."""

Remark: TypeAlias = Callable[[str, str], None]

_log = structlog.get_logger("dragoman.router")


class Keeping:
    """Keeps the runs of one router.

    Args:
        store: the log.
        clock: the time.
        owner: the name under which this router keeps its runs; another one after each start.
        kept: what is kept of runs that are over.
        lease_s: see ``LEASE_S``.
    """

    def __init__(self, store: Store, clock: Clock, owner: str, *, kept: Kept, lease_s: float = LEASE_S) -> None:
        self.store = store
        self.writer = Writer(store)
        self.owner = owner
        self.address = ""
        """Where other routers reach this one; empty if none can."""
        self.lease_s = lease_s
        self.digests = RequestDigests()
        """Of requests; with the key of the log once it is open."""
        self._clock = clock
        self._forgetting = Forgetting(store, clock, kept)
        self._contact = Contact(lease_s)
        self.is_in_memory: Callable[[str], bool] = lambda _run_id: False
        """Tells whether a run is known here, whatever the log knows."""
        self._claiming: set[str] = set()
        """Runs of others that were to be taken over, and perhaps were."""
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the log.

        Raises:
            StoreError: it cannot be used.
        """
        await self.store.open()
        self.digests = RequestDigests(await self.store.setting("digest_key", secrets.token_bytes(32)))
        self._contact.worked(self._clock.time())
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
                await self.store.release(self.owner)
        except (StoreError, TimeoutError) as error:
            _log.warning("run log not left in order", why=str(error))
        finally:
            await self.store.close()

    async def keep_alive(self) -> None:
        """Renew the lease, and forget what is old, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forgetting.run(), name="forget old runs")
            while True:
                pause_s = self.lease_s / _RENEWALS
                await asyncio.sleep(pause_s if await self.renew() else min(pause_s, _AGAIN_S))

    async def renew(self) -> bool:
        """Renew the lease once; False if the log cannot be written."""
        try:
            await self.store.renew(self.owner, self._clock.time() + self.lease_s)
        except StoreError as error:
            _log.warning("run log not renewed", why=str(error))
            self.missed()
            return False
        self._contact.worked(self._clock.time())
        return True

    def missed(self) -> None:
        """Take note that the log could not be reached, so that nothing is claimed for a while; see ``may_claim``."""
        self._contact.failed()

    def may_claim(self) -> bool:
        """Tell whether a lease that has run out is its owner's fault, and not that of a log that was out of reach.

        False from its opening, or a failure, until the log was there for a whole lease: by then all that live have
        renewed theirs.
        """
        return self._contact.lasts(self._clock.time())

    async def claim(self) -> list[StoredRun]:
        """Take over the runs of others whose lease has run out, and return them.

        Just after the log was out of reach these are only runs that were given up: see ``may_claim``.

        One whose claim was answered by nothing but a broken connection is returned by the next call: it is this
        router's by then, and nobody else would ever look after it.

        Raises:
            StoreError: the log cannot be read or written.
        """
        now = self._clock.time()
        ended_by = now if self.may_claim() else GIVEN_UP
        self._claiming.update(await self.store.unled(self.owner, ended_by))
        if not self._claiming:
            return []
        taken = {run.run_id: run for run in await self.store.claim(self.owner, ended_by, now + self.lease_s)}
        for run_id in self._claiming - taken.keys():
            stored = await self.store.run(run_id)
            if stored is not None and stored.owner == self.owner and stored.finished_at is None:
                taken[run_id] = stored
        self._claiming.clear()
        return list(taken.values())

    async def take(self, stored: StoredRun) -> StoredRun | None:
        """Take over one run, that no router follows any more; ``None`` if somebody else has it by now.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        self._claiming.add(stored.run_id)  # see ``claim``, should the answer not come
        lease_until = self._clock.time() + self.lease_s
        try:
            taken = await self.store.take(stored.run_id, of=stored.owner, owner=self.owner, lease_until=lease_until)
        except StoreError as error:
            raise unavailable(error) from error
        if taken is not None:  # else perhaps by a take of ours of which no answer came: ``claim`` will tell
            self._claiming.discard(stored.run_id)
        return taken

    def follow(
        self,
        record: RunRecord,
        place: Callable[[], dict[str, str]],
        orphan_after_s: float,
        remark: Remark,
        lost: Callable[[], None],
        stored: StoredRun | None = None,
    ) -> LoggedRun:
        """Begin to keep a run.

        Args:
            record: the run.
            place: returns where its adapter's process is.
            orphan_after_s: how long it goes on while nobody holds it.
            remark: tells those who follow it.
            lost: called when another router has taken it.
            stored: what is kept of it already; ``None`` for a new one.
        """

        def snapshot() -> StoredRun:
            return self._stored(record, place(), orphan_after_s)

        return self.writer.follow(stored or snapshot(), snapshot, remark, lost, is_begun=stored is not None)

    async def find(self, run_id: str) -> StoredRun | None:
        """Return what is kept of a run; ``None`` if nothing is.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE; also for a run that is in memory no more, and not written yet.
        """
        if not is_run_id(run_id):
            return None
        # Each before and after: it may be removed, or written, while it is looked for.
        never_was, is_unwritten = self.writer.is_removing(run_id), self.writer.is_writing(run_id)
        try:
            stored = await self.store.run(run_id)
        except StoreError as error:
            raise unavailable(error) from error
        never_was = never_was or self.writer.is_removing(run_id)
        is_unwritten = is_unwritten or self.writer.is_writing(run_id)
        if stored is None and is_unwritten and not self.is_in_memory(run_id):
            raise unavailable("a run with this id is not written yet")
        return None if stored is not None and never_was and stored.owner == self.owner else stored

    async def has_any_of(self, adapter: str) -> bool:
        """Tell whether a run or a session is kept of the adapter with this very name.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        try:
            return await self.store.has_any_of(adapter)
        except StoreError as error:
            raise unavailable(error) from error

    async def at_task(self, company_id: str, agent_id: str, task_key: str) -> list[StoredRun]:
        """Return the live runs of one agent at one task, here and elsewhere; see ``Store.at_task``.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        try:
            found = await self.store.at_task(company_id, agent_id, task_key)
        except StoreError as error:
            raise unavailable(error) from error
        return [run for run in found if run.owner != self.owner or not self.writer.is_removing(run.run_id)]

    async def list_runs(self, query: RunQuery, *, before: tuple[float, str] | None, size: int) -> list[StoredRun]:
        """Return runs, newest first; see ``Store.runs``.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        await self.writer.flushed_all(_LISTING_S)
        try:
            return await self.store.runs(query, before=before, size=size)
        except StoreError as error:
            raise unavailable(error) from error

    def end_unknown(self, stored: StoredRun) -> None:
        """End a run of an adapter that this router does not have: nobody can tell how it ended."""
        message = f"The router that followed the run is gone, and this one has no adapter {stored.adapter!r}."
        record = RunRecord(
            run_id=stored.run_id,
            adapter=stored.adapter,
            number=0,
            accepted_at=stored.accepted_at,
            digest=stored.digest,
        )
        summary = stored.state.run
        record.agent_id, record.company_id, record.task_key = summary.agent_id, summary.company_id, summary.task_key
        record.labels, record.instance_id = dict(summary.labels), summary.instance_id
        # The mark is the claim's own; what was told ends before it.
        record.go_on(stored.logged, attempt=summary.attempt, reserved=stored.reserved - 1)
        result = lost(event_pb2.FAILURE_KIND_ADAPTER_LOST, "adapter_lost", message)
        sequence, data = record.end(result, self._clock.time())
        logged = self.follow(record, dict, stored.orphan_after, _nothing, _nothing, stored)
        self.writer.over(logged)
        self.writer.append(logged, sequence, data)

    def forget(self, run_id: str) -> Coroutine[Any, Any, None]:
        """Forget a run that never was, from now on; what is returned waits until the log has done so."""
        self.writer.remove(run_id, self.owner)
        return self.writer.removed(run_id)

    def _stored(self, record: RunRecord, place: dict[str, str], orphan_after_s: float) -> StoredRun:
        pending = [event.input_request for event in record.pending.values()]
        return StoredRun(
            run_id=record.run_id,
            accepted_at=record.accepted_at,
            adapter=record.adapter,
            state=router_pb2.GetRunResponse(run=record.summary(0), pending_requests=pending),
            reserved=0,
            owner=self.owner,
            lease_until=self._clock.time() + self.lease_s,
            place=json.dumps({**place, "router": self.address}),
            orphan_after=orphan_after_s,
            digest=record.digest,
            finished_at=record.finished_at,
        )


def unavailable(error: StoreError | str) -> DragomanError:
    """Return the status for a call that needs the log."""
    return DragomanError(Reason.RUN_LOG_UNAVAILABLE, f"the run log cannot be read now: {error}", retry_after_s=1.0)


def _nothing(*_told: str) -> None:
    """Do nothing."""
