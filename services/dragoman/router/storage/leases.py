"""The runs that this router owns: its lease is renewed, and those of routers that are gone are claimed."""

import asyncio
from typing import Final

from dragoman.protocol.logs import Logger
from dragoman.router.model.ports import Clock
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.store import Store

LEASE_S: Final = 15.0
"""Seconds after which other routers may claim the runs of a router that does not renew its lease."""
_RENEWALS: Final = 3
"""How often a lease is renewed before it expires."""
_MAX_SILENCE: Final = 2 / 3
"""The part of a lease without contact that does not count as an outage."""
_AGAIN_S: Final = 1.0
"""The pause after a failed renewal: the lease does not last much longer."""
RELEASED: Final = 1.0
"""A lease that ends before this second of the epoch was released, by its owner or for one that is dead."""

_log = Logger("dragoman.router")


class StoreHealth:
    """Whether the run log was reachable for long enough that expired leases mean dead routers.

    While a database is unreachable, the leases of all routers expire. The first router to reach it again would see
    the runs of all others without a lease, although they are about to renew it. So it waits for the length of a lease
    before it claims runs; a router that has just started does the same, as it cannot know how long the database was
    reachable.

    Args:
        clock: the time, as for leases.
        lease_s: the length of a lease in seconds.
    """

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._last_success: float | None = None
        """``None`` since the last failure."""
        self._up_since = 0.0

    def record_success(self) -> None:
        """Record that the log was reached."""
        now = self._clock.time()
        if not self._is_recent(now):
            self._up_since = now
        self._last_success = now

    def record_failure(self) -> None:
        """Record that the log could not be reached."""
        self._last_success = None

    def is_stable(self) -> bool:
        """Return whether every living router has had the time to renew its lease: the log was there that long."""
        now = self._clock.time()
        return self._is_recent(now) and now - self._up_since >= self._lease_s

    def _is_recent(self, now: float) -> bool:
        # A suspended machine or a changed clock is like an outage: leases expired without a failure.
        return self._last_success is not None and 0 <= now - self._last_success <= self._lease_s * _MAX_SILENCE


class RunOwnership:
    """The lease of one router.

    Args:
        owner: the name of this router; another one after each start.
        lease_s: see ``LEASE_S``.
    """

    def __init__(self, store: Store, clock: Clock, owner: str, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._clock = clock
        self.owner = owner
        self.lease_s = lease_s
        self.health = StoreHealth(clock, lease_s)
        """Whether an expired lease is its owner's fault, and not that of a log that was unreachable."""
        self._claiming: dict[str, str] = {}
        """Runs of others that were to be claimed, and perhaps were; and of whom."""

    @property
    def lease_until(self) -> float:
        """The end of a lease that begins now."""
        return self._clock.time() + self.lease_s

    async def keep(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            pause_s = self.lease_s / _RENEWALS
            await asyncio.sleep(pause_s if await self.renew() else min(pause_s, _AGAIN_S))

    async def renew(self) -> bool:
        """Renew the lease once; False if the log cannot be written."""
        try:
            await self._store.leases.renew(self.owner, self.lease_until)
        except StoreError as error:
            _log.warning("lease not renewed", why=str(error))
            self.health.record_failure()
            return False
        self.health.record_success()
        return True

    async def claim(self, of: str = "%") -> list[tuple[StoredRun, str]]:
        """Claim the runs of other routers whose lease has expired; return them, and the names of their last owners.

        Just after the log was unreachable these are only released runs: see ``health``.

        A run whose claim ended with a broken connection is returned by the next call: it is this router's by then,
        and no other router would recover it.

        Args:
            of: a pattern of SQL for the names of these routers.

        Raises:
            StoreError: the log cannot be read or written.
        """
        leases, ended_by = self._store.leases, self._clock.time() if self.health.is_stable() else RELEASED
        self._claiming |= await leases.unled(self.owner, ended_by, of)
        if not self._claiming:
            return []
        taken = {run.run_id: run for run in await leases.claim(self.owner, ended_by, self.lease_until, of)}
        for run_id in self._claiming.keys() - taken.keys():
            stored = await self._store.run(run_id)
            if stored is not None and stored.owner == self.owner and stored.finished_at is None:
                taken[run_id] = stored
        owners, self._claiming = self._claiming, {}
        return [(run, owners.get(run_id, "")) for run_id, run in taken.items()]
