"""The runs that this router owns: its lease is renewed, and those of routers that are gone are claimed."""

import asyncio
from typing import Final

from dragoman.protocol.logs import Logger
from dragoman.router.model.errors import log_unavailable
from dragoman.router.model.ports import Clock
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.health import StoreHealth
from dragoman.router.storage.store import Store
from dragoman.router.storage.writer import Writer

LEASE_S: Final = 15.0
"""Seconds after which other routers may claim the runs of a router that does not renew its lease."""
_RENEWALS: Final = 3
"""How often a lease is renewed before it expires."""
_AGAIN_S: Final = 1.0
"""The pause after a failed renewal: the lease does not last much longer."""
RELEASED: Final = 1.0
"""A lease that ends before this second of the epoch was released, by its owner or for one that is dead."""

_log = Logger("dragoman.router")


class RunOwnership:
    """The lease of one router.

    Args:
        writer: is notified when the log was replaced.
        owner: the name of this router; another one after each start.
        lease_s: see ``LEASE_S``.
    """

    def __init__(self, store: Store, writer: Writer, clock: Clock, owner: str, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self.owner = owner
        self.lease_s = lease_s
        self.health = StoreHealth(clock, lease_s)
        """Whether an expired lease is its owner's fault, and not that of a log that was unreachable."""
        self._claiming: set[str] = set()
        """Runs of others that were to be claimed, and perhaps were."""

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
            if error.is_replaced:
                self._writer.replaced()
            self.health.record_failure()
            return False
        self.health.record_success()
        return True

    async def claim(self) -> list[StoredRun]:
        """Claim the runs of other routers whose lease has expired, and return them.

        Just after the log was unreachable these are only released runs: see ``health``.

        A run whose claim ended with a broken connection is returned by the next call: it is this router's by then,
        and no other router would recover it.

        Raises:
            StoreError: the log cannot be read or written.
        """
        now = self._clock.time()
        ended_by = now if self.health.is_stable() else RELEASED
        self._claiming.update(await self._store.leases.unled(self.owner, ended_by))
        if not self._claiming:
            return []
        taken = {run.run_id: run for run in await self._store.leases.claim(self.owner, ended_by, now + self.lease_s)}
        for run_id in self._claiming - taken.keys():
            stored = await self._store.run(run_id)
            if stored is not None and stored.owner == self.owner and stored.finished_at is None:
                taken[run_id] = stored
        self._claiming.clear()
        return list(taken.values())

    async def take(self, stored: StoredRun) -> StoredRun | None:
        """Claim one run that no router owns; ``None`` if another router has it by now.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        self._claiming.add(stored.run_id)  # see ``claim``, should the answer not come
        lease_until = self.lease_until
        try:
            taken = await self._store.leases.take(
                stored.run_id, of=stored.owner, owner=self.owner, lease_until=lease_until
            )
        except StoreError as error:
            raise log_unavailable(error) from error
        if taken is not None:  # else perhaps by a call that got no answer, which ``claim`` finds
            self._claiming.discard(stored.run_id)
        return taken
