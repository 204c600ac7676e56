"""The active agents of tasks: which stored agent runs a request that names its task alone."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.router.model.errors import log_unavailable
from dragoman.router.model.ports import Clock
from dragoman.router.model.stored import TaskId
from dragoman.router.storage.agent_table import TOUCH_S
from dragoman.router.storage.database import StoreError, in_time
from dragoman.router.storage.run_log import READ_S, RunLog

_T = TypeVar("_T")


class ActiveAgents:
    """The active agents of all routers that share a run log. Every method may raise RUN_LOG_UNAVAILABLE."""

    def __init__(self, run_log: RunLog, clock: Clock) -> None:
        self._run_log = run_log
        self._clock = clock

    async def name(self, task: TaskId) -> str:
        """Return the name of a task's agent; empty if it has none."""
        found = await asked(self._run_log.store.active.get(task))
        return "" if found is None else found[0]

    async def use(self, task: TaskId) -> str:
        """Return the name of a task's agent, which is about to run; empty if it has none."""
        found, now = await asked(self._run_log.store.active.get(task)), self._clock.time()
        if found is None:
            return ""
        name, used_at = found
        if now - used_at > TOUCH_S:
            await asked(self._run_log.store.active.touch(task, now))
        return name

    async def set(self, task: TaskId, name: str) -> bool:
        """Give a task an agent; False if there is no agent of that name."""
        return await asked(self._run_log.store.active.put(task, name, self._clock.time()))

    async def clear(self, task: TaskId) -> None:
        """Leave a task without an agent."""
        await asked(self._run_log.store.active.delete(task))


async def asked(work: Coroutine[Any, Any, _T]) -> _T:
    """Return what the run log's database returns.

    Raises:
        DragomanError: RUN_LOG_UNAVAILABLE.
    """
    try:
        return await in_time(work, READ_S)
    except StoreError as error:
        raise log_unavailable(error) from error
