"""Where a run is: in this router, in another one, or only in the log."""

from typing import TypeAlias

from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason
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


def stored_facts(stored: StoredRun) -> RunFacts:
    """Return what decides about calls for a run of the log."""
    return RunFacts(stored.run_id, stored.adapter, stored.state.run.started_by, stored.finished_at is not None)


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
        return stored_facts(self.stored)


class Finished(_Stored, frozen=True):
    """A run that is over, and is no longer in memory."""


class Remote(_Stored, frozen=True):
    """A run that another router owns."""

    forwarder: ReplicaForwarder


Located: TypeAlias = Local | Remote | Finished


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

    async def resolve(self, run_id: str, adapter: str) -> Located:
        """Return where a run is, which must be of this adapter if one is named.

        Raises:
            DragomanError: RUN_NOT_FOUND, RUN_LOG_UNAVAILABLE, or ADAPTER_NOT_FOUND.
        """
        if (run := self._runs.find(run_id)) is not None:
            await self._check_adapter(run, adapter)
            return Local(run)
        if (stored := await self._run_log.find(run_id)) is not None:
            return await self._of_stored(stored)
        if adapter:
            await self._adapters.get(adapter)
        raise unknown_run(run_id)

    async def of_request(self, request: adapter_pb2.ExecuteRequest) -> Located | None:
        """Return where the run is that this very request started; ``None`` if its id is new.

        Raises:
            DragomanError: RUN_ID_REUSED, or RUN_LOG_UNAVAILABLE.
        """
        if (run := self._runs.same(request)) is not None:
            return self._joined(Local(run), request)
        stored = await self._runs.recall(request)
        located = None if stored is None else await self._of_stored(stored)
        # One that ended just now, as no adapter had it, is started anew.
        found = None if isinstance(located, Finished) and located.stored.digest is None else located
        return self._joined(found, request)

    def _joined(self, located: Located | None, request: adapter_pb2.ExecuteRequest) -> Located | None:
        """Refuse an ID whose run another caller started with the same request: that is no reason to see it."""
        if located is not None and not current_caller().may_read(located.facts.started_by):
            raise taken(request.run_id)
        return located

    async def _of_stored(self, stored: StoredRun) -> Located:
        found = await self._failover.take(stored)
        if isinstance(found, Run):
            return Local(found)
        return Remote(found, self._forwarder) if found.finished_at is None else Finished(found)

    async def _check_adapter(self, run: Run, adapter: str) -> None:
        """Raise RUN_NOT_FOUND if a run never was at the adapter that is named."""
        # An adapter that was removed still has the run, and perhaps another one has its names by now.
        if not adapter or any(adapter in backend.record.names for backend in run.backends):
            return
        backend = await self._adapters.get(adapter)
        if backend not in run.backends:
            raise DragomanError(
                Reason.RUN_NOT_FOUND,
                f"Run {run.run_id!r} belongs to adapter {run.record.adapter!r}, not to {backend.record.type!r}.",
                {"run_id": run.run_id, "adapter": run.record.adapter},
            )
