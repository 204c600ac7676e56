"""Runs that never were, and are to be deleted from the store, as they were inserted before that was known."""

from collections.abc import Callable

import structlog
from dragoman.router.storage.backlog import Signals
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.logged import LoggedRun
from dragoman.router.storage.store import Store

_log = structlog.get_logger("dragoman.router")


class Removals:
    """Deletes runs from the store. It is retried until the store does it."""

    def __init__(self, store: Store, signals: Signals, is_failing: Callable[[], bool]) -> None:
        self._store = store
        self._signals = signals
        self._is_failing = is_failing
        self._pending: dict[str, tuple[str, LoggedRun | None]] = {}
        """By run id: the owner, and the run if it was in the backlog."""

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._pending

    def add(self, run_id: str, owner: str, run: LoggedRun | None) -> None:
        """Have a run deleted, if it is still this owner's."""
        self._pending[run_id] = owner, run
        self._signals.work.set()

    @property
    def is_due(self) -> bool:
        """Whether one can be deleted now: not while the store is still inserting it."""
        return any(not _is_inserting(run) for _, run in self._pending.values())

    async def wait(self, run_id: str) -> None:
        """Wait until a run is deleted, or the store is known to fail."""
        if run_id in self._pending:
            self._signals.hurry.set()
            await self._signals.written.until(lambda: run_id not in self._pending or self._is_failing())

    async def execute(self) -> None:
        """Delete the runs that can be deleted now.

        Raises:
            StoreError: the store fails.
        """
        for run_id, (owner, run) in list(self._pending.items()):
            if _is_inserting(run):
                continue
            try:
                await self._store.remove(run_id, owner)
            except StoreError as error:
                if not error.is_lasting:
                    raise
                _log.error("rejected run not removed from the run log", run_id=run_id, why=str(error))
            except Exception as error:  # noqa: BLE001 - one run must not keep all others from being written
                _log.error("rejected run not removed from the run log", run_id=run_id, why=type(error).__name__)
            del self._pending[run_id]
            self._signals.written.check()


def _is_inserting(run: LoggedRun | None) -> bool:
    return run is not None and run.is_inserting
