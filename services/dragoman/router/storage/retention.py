"""Retention: old runs and sessions are deleted from the run log in the background."""

import asyncio
from typing import Final

from dragoman.protocol.logs import Logger
from dragoman.router.model.ports import Clock
from dragoman.router.storage.agent_table import TOUCH_S
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.store import Store
from msgspec import Struct

FORGET_S: Final = 60.0
"""How often old runs are looked for: each look reads an entry per run."""
_SOONEST_S: Final = 1.0
_SPENDING_S: Final = 86400.0
"""How long what was spent in a period is kept after its end."""
_ACTIVE_S: Final = 2 * TOUCH_S
"""How long a task's active agent is kept at least: that it is in use is written late."""

_FOLDED_S: Final = 3600.0
"""How long after its end what a run has spent is added to that of others: longer than its last write is repeated."""

_log = Logger("dragoman.router")


class RetentionPolicy(Struct, frozen=True):
    """How long finished runs are kept, and how many bytes of their events; and how long unused sessions."""

    seconds: float
    most_bytes: int
    sessions_s: float = 0.0
    """0 for ever."""


class RetentionTask:
    """Bounds the size of the log."""

    def __init__(self, store: Store, clock: Clock, kept: RetentionPolicy) -> None:
        self._store = store
        self._clock = clock
        self._kept = kept

    async def run(self) -> None:
        """Delete what is old, now and every minute, until cancelled."""
        while True:
            try:
                await self.forget()
            except StoreError as error:
                _log.warning("retention failed, will retry", why=str(error))
            except Exception as error:  # noqa: BLE001 - it is tried again, and nothing else waits for it
                _log.error("retention failed, will retry", failure=type(error).__name__)
            # Runs that are kept for less than a minute are to be gone after that.
            await asyncio.sleep(min(FORGET_S, max(_SOONEST_S, self._kept.seconds)))

    async def forget(self) -> None:
        """Delete all that is old now.

        Raises:
            StoreError: the log cannot be used.
        """
        now, kept = self._clock.time(), self._kept
        if kept.sessions_s:
            await self._store.sessions.delete_unused(before=now - kept.sessions_s)
            await self._store.active.delete_unused(before=now - max(kept.sessions_s, _ACTIVE_S))
        await self._store.spending.delete_ended(before=now - _SPENDING_S)
        began = self._clock.monotonic()
        while await self._store.spending.fold(before=now - _FOLDED_S) or await self._store.delete_old(
            before=now - kept.seconds, most_bytes=kept.most_bytes
        ):
            # As long as that took, the log is others': several routers may write to one file.
            await asyncio.sleep(self._clock.monotonic() - began)
            began = self._clock.monotonic()
        await self._store.reclaim()
