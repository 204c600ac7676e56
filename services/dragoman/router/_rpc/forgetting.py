"""Forgetting what is old in the run log: beside all else, and never in its way."""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog
from dragoman.router._ports import Clock
from dragoman.router._store.database import StoreError
from dragoman.router._store.store import Store

FORGET_S: Final = 60.0
"""How often what is old is looked for. Nobody minds a minute more, and the least look reads an entry per run."""
_SOONEST_S: Final = 1.0

_log = structlog.get_logger("dragoman.router")


@dataclass(frozen=True, slots=True)
class Kept:
    """How long runs that are over are kept, and how many bytes of their events; and how long unused sessions."""

    seconds: float
    most_bytes: int
    sessions_s: float = 0.0
    """0 for ever."""


class Forgetting:
    """Keeps the log from growing for ever.

    Args:
        store: the log.
        clock: the time.
        kept: what is not forgotten.
    """

    def __init__(self, store: Store, clock: Clock, kept: Kept) -> None:
        self._store = store
        self._clock = clock
        self._kept = kept

    async def run(self) -> None:
        """Forget what is old, now and every minute, until cancelled."""
        while True:
            try:
                await self.forget()
            except StoreError as error:
                _log.warning("run log forgets nothing now", why=str(error))
            except Exception as error:  # noqa: BLE001 - it is tried again, and nothing else waits for it
                _log.error("run log forgets nothing now", failure=type(error).__name__)
            # What is kept for less than a minute is to be gone after that.
            await asyncio.sleep(min(FORGET_S, max(_SOONEST_S, self._kept.seconds)))

    async def forget(self) -> None:
        """Forget all that is old now.

        Raises:
            StoreError: the log cannot be used.
        """
        now, kept = self._clock.time(), self._kept
        if kept.sessions_s:
            await self._store.forget_sessions(before=now - kept.sessions_s)
        began = self._clock.monotonic()
        while await self._store.forget(before=now - kept.seconds, most_bytes=kept.most_bytes):
            # As long as that took, the log is others': several routers may write to one file.
            await asyncio.sleep(self._clock.monotonic() - began)
            began = self._clock.monotonic()
