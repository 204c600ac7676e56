"""Follows the EndpointSlices of a namespace, and keeps the adapters like them: one for each Service."""

import asyncio
from typing import Final

from dragoman.protocol.backoff import backoff_s
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.adapter_set import AdapterSet
from dragoman.router.adapters.kubernetes.api import ApiAccess, ApiError, ApiSession, open_session
from dragoman.router.adapters.kubernetes.slices import Event, HeldTable, ServiceName, SliceTable
from dragoman.router.adapters.service import ServiceAdapter
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.router.model.ports import Clock

HOLD_S: Final = 30.0
"""For how long the last endpoints of a Service are held after they have vanished."""
_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 30.0
_STEADY_S: Final = 5.0
"""A watch that lasted for so long was a good one, even if nothing came."""

_log = Logger("dragoman.router")


class KubernetesDiscovery:
    """Adds, changes and removes adapters as Services and their pods come and go.

    Args:
        access: where the API server is, and which slices are asked for.
        adapters: the adapters.
        clock: time and chance.
    """

    def __init__(self, access: ApiAccess, adapters: AdapterSet, clock: Clock) -> None:
        self._access = access
        self._adapters = adapters
        self._clock = clock
        self._slices = SliceTable()
        self._held = HeldTable()
        self._backends: dict[ServiceName, ServiceAdapter] = {}
        self._namespace = ""
        self._failures = 0
        self._letting_go: asyncio.TimerHandle | None = None
        self.listed = asyncio.Event()
        """Set after the first list."""
        adapters.sources.append(self.listed)

    async def run(self) -> None:
        """Follow the slices, without end."""
        try:
            while True:
                try:
                    async with open_session(self._access) as session:
                        self._namespace = session.namespace
                        await self._follow(session)
                except ApiError as error:
                    if error.is_expired:
                        self._slices = SliceTable(self._slices.slices)  # it is listed anew
                    _log.warning("EndpointSlices not followed, will retry", why=str(error))
                await self._pause()
        finally:
            if self._letting_go is not None:
                self._letting_go.cancel()

    async def _follow(self, session: ApiSession) -> None:
        """List the slices if need be, and watch them until that fails."""
        while True:
            if not self._slices.version:
                self._take(await session.list())
                self.listed.set()
            began, has_come = self._clock.monotonic(), False
            async for event in session.watch(self._slices.version):
                has_come, self._failures = True, 0
                self._take(event)
            if has_come or self._clock.monotonic() - began > _STEADY_S:
                self._failures = 0
            else:
                await self._pause()

    async def _pause(self) -> None:
        self._failures += 1
        await asyncio.sleep(backoff_s(self._failures, _FIRST_DELAY_S, _LONGEST_DELAY_S, chance=self._clock.chance()))

    def _take(self, event: Event) -> None:
        self._slices = self._slices.after(event)
        self._settle()

    def _settle(self) -> None:
        """Make the adapters like the table, now and when endpoints are no longer held."""
        now = self._clock.monotonic()
        self._held = self._held.after(self._slices.services(self._namespace), now, HOLD_S)
        for name in self._backends.keys() - self._held.table.keys():
            self._adapters.remove(self._backends.pop(name))
        for name, endpoints in self._held.table.items():
            backend = self._backends.get(name)
            if backend is None:
                added = self._adapters.add(service_spec(name))
                assert isinstance(added, ServiceAdapter)
                backend = self._backends[name] = added
            backend.update(endpoints)
        if self._letting_go is not None:
            self._letting_go.cancel()
            self._letting_go = None
        if (end := self._held.next_end) is not None:
            self._letting_go = asyncio.get_running_loop().call_later(max(0.0, end - now), self._settle)


def service_spec(name: ServiceName) -> AdapterSpec:
    """Return the adapter of a Service; its type is known once one of its pods was reached."""
    return AdapterSpec(
        str(name),
        Source.KUBERNETES,
        origin=f"Service {name}",
        server_name=name.dns_name,
        has_endpoints=True,
    )
