"""Where a run is: in this router, in another one, or only in the log."""

from collections.abc import Callable
from typing import TypeAlias

from dragoman.protocol.caller import current_caller
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.api.authorization import RunFacts
from dragoman.router.cluster.failover import Failover
from dragoman.router.cluster.forwarding import ReplicaForwarder
from dragoman.router.model.errors import unknown_run
from dragoman.router.model.stored import StoredRun
from dragoman.router.runs.actor import Run
from dragoman.router.runs.registry import RunRegistry, taken
from dragoman.router.runs.state import is_over
from dragoman.router.storage.run_log import RunLog
from dragoman.v1 import adapter_pb2
from msgspec import Struct


class Local(Struct, frozen=True):
    """A run of this router."""

    run: Run

    @property
    def facts(self) -> RunFacts:
        """What decides about calls for it."""
        record = self.run.record
        return RunFacts(record.run_id, record.adapter, record.started_by, is_over(self.run.state))


class _Stored(Struct, frozen=True):
    stored: StoredRun

    @property
    def facts(self) -> RunFacts:
        """What decides about calls for it."""
        stored = self.stored
        return RunFacts(stored.run_id, stored.adapter, stored.state.run.started_by, stored.finished_at is not None)


class Finished(_Stored, frozen=True):
    """A run that is over, and is no longer in memory."""


class Remote(_Stored, frozen=True):
    """A run that another router owns."""

    forwarder: ReplicaForwarder


Located: TypeAlias = Local | Remote | Finished
Allow: TypeAlias = Callable[[RunFacts], None]
"""Raises if the present call is not allowed for a run."""


class RunLocator:
    """Finds runs, and recovers those whose router is gone."""

    def __init__(
        self,
        runs: RunRegistry,
        run_log: RunLog,
        failover: Failover,
        adapters: AdapterPool,
        forwarder: ReplicaForwarder,
    ) -> None:
        self._runs = runs
        self._run_log = run_log
        self._failover = failover
        self._adapters = adapters
        self._forwarder = forwarder

    async def resolve(self, run_id: str, allow: Allow, adapter: str = "") -> Located:
        """Return where a run is, which must be of this adapter if one is named.

        Raises:
            DragomanError: that the call is not allowed, RUN_NOT_FOUND, RUN_LOG_UNAVAILABLE, or ADAPTER_NOT_FOUND.
        """
        if (run := self._runs.find(run_id)) is not None:
            # An adapter that was removed still has the run, and perhaps another one has its names by now.
            is_its = not adapter or any(adapter in backend.record.names for backend in run.backends)
            if is_its or await self._adapters.get(adapter) in run.backends:
                located = Local(run)
                allow(located.facts)
                return located
        elif (stored := await self._run_log.find(run_id)) is not None:
            return await self.of_stored(stored, allow)
        elif adapter:
            await self._adapters.get(adapter)
        raise unknown_run(run_id, adapter)

    async def of_request(self, request: adapter_pb2.ExecuteRequest) -> Located | None:
        """Return where the run is that this very request started; ``None`` if its id is new.

        Raises:
            DragomanError: RUN_ID_REUSED, or RUN_LOG_UNAVAILABLE.
        """

        def allow(facts: RunFacts) -> None:
            # That another caller started it with the same request is no reason to see it.
            if not current_caller().may_read(facts.started_by):
                raise taken(request.run_id)

        run = self._runs.same(request)
        stored = await self._run_log.find(request.run_id) if run is None and request.run_id else None
        if (run := run or self._runs.same(request)) is not None:  # it may be known by now
            located: Located = Local(run)
            allow(located.facts)
        elif stored is None or stored.digest is None:
            return None
        elif stored.digest != self._run_log.digests.digest(request):
            raise taken(request.run_id)
        else:
            located = await self.of_stored(stored, allow)
            if isinstance(located, Finished) and located.stored.digest is None:
                return None  # it ended just now, as no adapter had it, and is started anew
        return located

    async def of_stored(self, stored: StoredRun, allow: Allow) -> Located:
        """Return where a run of the log is, which is recovered if its router is gone.

        Raises:
            DragomanError: that the call is not allowed, or RUN_LOG_UNAVAILABLE.
        """
        allow(Finished(stored).facts)  # a run is not recovered for a caller who may not have it
        found = await self._failover.take(stored)
        located: Located
        if isinstance(found, Run):
            located = Local(found)
        else:
            located = Remote(found, self._forwarder) if found.finished_at is None else Finished(found)
        allow(located.facts)  # it may have ended, and its token with it
        return located
