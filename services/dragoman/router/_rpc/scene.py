"""What all parts of the running router share."""

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog
from dragoman.protocol.limits import DEFAULT_GRACE_S, REATTACH_S
from dragoman.router._domain.directory import Directory
from dragoman.router._ports import Clock, Launcher, Processes

_log = structlog.get_logger("dragoman.router")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things may take, in seconds."""

    start_s: float = 30.0
    """From launch to ready."""
    idle_s: float = 300.0
    """How long a launched adapter is kept without a run and without a call."""
    stop_s: float = DEFAULT_GRACE_S + 5.0
    """How long a launched adapter may take to drain when it is let go."""
    patience_s: float = 2.0
    """How long a call waits for an adapter that is about to come back."""
    learn_s: float = 10.0
    """How long an unknown name may hold a call up while adapters tell their aliases."""
    reattach_s: float = REATTACH_S
    """How long a run whose stream broke is tried to be followed, before it is LOST."""
    detect_s: float = 30.0
    """How long one adapter's Detect may take when several are asked."""


class Tasks:
    """Background tasks that are not forgotten."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task; what it raises is logged."""
        # In a context of its own: it outlives the call that starts it, and so should not log as part of that.
        task = asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("internal error", task=task.get_name(), failure=failure)

    async def end(self) -> None:
        """Cancel those that still run, and wait for them."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Their callbacks run in the loop's next turn.
            await asyncio.sleep(0)


class Changes:
    """Wakes whoever waits for the list of adapters to change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Say that something changed."""
        self._next.set()
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return an event that is set with the next change."""
        return self._next


@dataclass(frozen=True, slots=True)
class Scene:
    """What all parts of the running router share."""

    directory: Directory
    launcher: Launcher
    clock: Clock
    processes: Processes
    timing: Timing
    tasks: Tasks = field(default_factory=Tasks)
    changes: Changes = field(default_factory=Changes)
