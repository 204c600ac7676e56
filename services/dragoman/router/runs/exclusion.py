"""One task of one agent is worked on by one adapter at a time: two would work in one place on the same thing."""

from collections.abc import Callable, Iterable

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.model.run_record import RunRecord
from dragoman.router.runs.actor import Run
from dragoman.router.runs.state import Deciding, Queued
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.run_log import RunLog


class TaskExclusion:
    """Refuses runs whose task another adapter's run works on. Its methods raise SESSION_BUSY."""

    def __init__(self, live: Callable[[], Iterable[Run]], run_log: RunLog) -> None:
        self._live = live
        self._run_log = run_log

    async def refuse_move(self, run: Run, backend: AdapterBackend) -> None:
        """Refuse that a run goes on at another adapter."""
        record = run.record
        await self.refuse_elsewhere(record, backend.record.type)
        self.refuse_beside((record.company_id, record.agent_id, record.task_key), backend, but=run)

    async def refuse_elsewhere(self, record: RunRecord, adapter: str) -> None:
        """Refuse a run beside those of other routers, once it is stored: of two, at least one sees the other."""
        if not record.task_key:
            return
        try:
            found = await self._run_log.store.at_task(record.company_id, record.agent_id, record.task_key)
        except StoreError:
            return  # a log that fails keeps no run from starting
        for other in found:
            if other.adapter != adapter and other.owner != self._run_log.owner:
                raise _busy(other.run_id, other.adapter)

    def refuse_beside(self, task: tuple[str, str, str], backend: AdapterBackend, but: Run | None = None) -> None:
        """Refuse a run of a company, agent and task beside those of this router; ``but`` is itself, as it moves."""
        for run in self._live() if task[-1] else ():
            record = run.record
            # For a move: whose attempt has failed, too, or no adapter has, is not at work.
            is_idle = but is not None and isinstance(run.state, Deciding | Queued)
            is_other = run is not but and run.backend is not backend and not is_idle
            if is_other and (record.company_id, record.agent_id, record.task_key) == task:
                raise _busy(run.run_id, record.adapter)


def _busy(run_id: str, adapter: str) -> DragomanError:
    return DragomanError(
        Reason.SESSION_BUSY,
        f"Run {run_id!r} of adapter {adapter!r} is already working on this task; wait for it or cancel it.",
        {"run_id": run_id, "adapter": adapter},
    )
