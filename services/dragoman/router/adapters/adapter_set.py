"""The adapters of the router as they come and go."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final

from dragoman.protocol.logs import Logger
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.registry import AdapterRecord
from dragoman.router.adapters.remote import RemoteAdapter, RunningAdapter
from dragoman.router.adapters.service import ServiceAdapter
from dragoman.router.adapters.specs import AdapterSpec, registered_spec
from dragoman.router.adapters.supervisor import ProcessSupervisor
from dragoman.router.model.tasks import first_of
from dragoman.v1 import router_pb2

DEFAULT_LEASE_S: Final = 30.0
"""How long a registration lasts if the adapter does not say."""

_log = Logger("dragoman.router")


class AdapterSet:
    """The backends of all adapters: those of the registry at first, and those that are found later."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context
        self._registry = context.registry
        self._backends: dict[AdapterRecord, AdapterBackend] = {}
        self._removed: set[AdapterBackend] = set()
        """Those that serve their last runs."""
        self.sources: list[asyncio.Event] = []
        """Set once what finds further adapters has looked for the first time."""
        for record in self._registry.records:
            self._open(record)

    def __iter__(self) -> Iterator[AdapterBackend]:
        return iter(list(self._backends.values()))

    def begin(self) -> None:
        """Connect to the adapters that run already, and log which adapters are rejected."""
        for backend in self:
            self._begin(backend)

    def of(self, record: AdapterRecord) -> AdapterBackend:
        """Return the backend of an adapter of the registry."""
        return self._backends[record]

    def add(self, spec: AdapterSpec, lease_s: float | None = None) -> AdapterBackend:
        """Add an adapter that was found while the router runs.

        Args:
            spec: the adapter.
            lease_s: for how many seconds it is registered; ``None`` if it is not registered.
        """
        backend = self._open(self._registry.add(spec))
        if lease_s is not None:
            backend.record.lease_expires_at = self._context.clock.time() + lease_s
        _log.info("adapter found", adapter=backend.record.type, origin=spec.origin or spec.address)
        self._begin(backend)
        self._context.changes.notify()
        return backend

    def restore(self, address: str) -> AdapterBackend:
        """Add an adapter that was registered at a router which is gone, until it registers here."""
        return self.add(registered_spec(address), DEFAULT_LEASE_S)

    def remove(self, backend: AdapterBackend) -> None:
        """Remove an adapter; runs that it has continue to their end."""
        if self._backends.pop(backend.record, None) is None:
            return  # it has been removed
        _log.info("adapter removed", adapter=backend.record.type, live_runs=backend.record.live_runs)
        self._registry.remove(backend.record)
        self._retire(backend)
        for other in self:
            if isinstance(other, RunningAdapter) and other.record.is_rejected:
                other.reconsider()
        self._context.changes.notify()

    def entries(self) -> list[router_pb2.AdapterEntry]:
        """Return all adapters as ``ListAdapters`` shows them, without what admission says of them."""
        entries = []
        for record in self._registry.by_type():
            entry = record.entry()
            entry.remarks.extend(self._backends[record].remarks)
            entries.append(entry)
        return entries

    async def stop_launched(self, stop_s: float, hurry: asyncio.Event) -> None:
        """Stop all launched processes within ``stop_s`` seconds, or at once when ``hurry`` is set."""
        launched = [backend for backend in self._all() if isinstance(backend, ProcessSupervisor)]
        stopping = asyncio.ensure_future(_together(backend.stop(stop_s) for backend in launched))
        await first_of(asyncio.shield(stopping), hurry.wait())
        if not stopping.done():
            await _together(backend.stop(0.0) for backend in launched)
        await stopping

    async def stop(self) -> None:
        """Stop all processes at once, and close all connections."""
        await _together(backend.stop(0.0) for backend in self._all())

    def _all(self) -> list[AdapterBackend]:
        return [*self._backends.values(), *self._removed]

    def _open(self, record: AdapterRecord) -> AdapterBackend:
        if (kept := self._context.descriptions.load(record.identity)) is not None:
            self._registry.restore(record, kept)
        backend = self._backends[record] = _kind(record.spec)(record, self._context)
        return backend

    def _begin(self, backend: AdapterBackend) -> None:
        record = backend.record
        if isinstance(backend, RunningAdapter) and not record.is_rejected:
            backend.begin()
        if record.is_rejected:
            _log.warning("adapter refused", adapter=record.type, reason=record.reason)

    def _retire(self, backend: AdapterBackend) -> None:
        self._removed.add(backend)
        retiring = self._context.tasks.start(backend.retire(), f"retire {backend.record.type}")
        retiring.add_done_callback(lambda _: self._removed.discard(backend))


def _kind(spec: AdapterSpec) -> type[AdapterBackend]:
    if spec.launch is not None:
        return ProcessSupervisor
    return ServiceAdapter if spec.has_endpoints else RemoteAdapter


async def _together(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    await asyncio.gather(*work)
