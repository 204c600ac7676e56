"""All adapters of the router, by name."""

import asyncio
import contextlib

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters.adapter_set import AdapterSet
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.remote import RunningAdapter
from dragoman.router.adapters.service import ServiceAdapter
from dragoman.v1 import router_pb2


class AdapterPool:
    """Finds adapters."""

    def __init__(self, context: AdapterContext, adapters: AdapterSet) -> None:
        self._registry = context.registry
        self._timing = context.timing
        self._changes = context.changes
        self._adapters = adapters

    @property
    def backends(self) -> list[AdapterBackend]:
        """The backends of all adapters that are not rejected, by type."""
        usable = [backend for backend in self._adapters if not backend.record.is_rejected]
        return sorted(usable, key=lambda backend: backend.record.type)

    def entries(self) -> list[router_pb2.AdapterEntry]:
        """Return all adapters as ``ListAdapters`` shows them, without what the router says of their runs."""
        return self._adapters.entries()

    def similar_names(self, name: str) -> list[str]:
        """Return known names that a wrong one may have meant."""
        return self._registry.similar_names(name)

    def present(self, name: str) -> AdapterBackend | None:
        """Return the adapter with this name, if the name is known by now."""
        record = self._registry.find(name)
        return self._adapters.of(record) if record is not None else None

    def at_address(self, address: str) -> AdapterBackend | None:
        """Return the adapter that runs already at an address, whatever it turns out to be."""
        return next((one for one in self._adapters if one.record.spec.address == address), None)

    def restore(self, address: str) -> AdapterBackend:
        """Add an adapter that was registered at a router which is gone; it is known here once it was reached."""
        return self._adapters.restore(address)

    async def get(self, name: str) -> AdapterBackend:
        """Return the adapter with this type or alias. A rejected one is returned too.

        Raises:
            DragomanError: ADAPTER_REQUIRED or ADAPTER_NOT_FOUND.
        """
        self.require(name)
        backend = await self.find(name)
        if backend is None:
            near = self.similar_names(name)
            hint = f"did you mean {' or '.join(near)}?" if near else "ListAdapters lists the available ones."
            metadata = {"adapter": name[:200], "did_you_mean": ",".join(near)}
            raise DragomanError(Reason.ADAPTER_NOT_FOUND, f"Adapter {name[:200]!r} not found; {hint}", metadata)
        return backend

    def require(self, name: str) -> None:
        """Raise ADAPTER_REQUIRED if no adapter is named."""
        if not name:
            known = ", ".join(self._registry.types())
            raise DragomanError(
                Reason.ADAPTER_REQUIRED, f"The request names no adapter; available: {known or 'none'}."
            )

    async def find(self, name: str) -> AdapterBackend | None:
        """Return the adapter with this type or alias; ``None`` if there is none."""
        if self.present(name) is None:
            # No adapter is started for it: a typo must cost nothing. The name of a remote one is known once it was
            # reached.
            await self.tried()
            await self._introduced(name)
        return self.present(name)

    async def learn(self) -> None:
        """Ask all adapters for their descriptions that are unknown, starting them if need be."""
        asking = [asyncio.ensure_future(self._learn(backend)) for backend in self.backends]
        if asking:
            # A slow one goes on being asked; this call does not wait for it.
            await asyncio.wait(asking, timeout=self._timing.learn_s)

    async def tried(self) -> None:
        """Wait until each adapter that runs already was reached, or was tried for long enough."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.learn_s):
                for source in tuple(self._adapters.sources):
                    await source.wait()
                await asyncio.gather(*(one.tried.wait() for one in self.backends if isinstance(one, RunningAdapter)))

    async def _introduced(self, name: str) -> None:
        """Wait for a moment while a pod of an unknown Service may yet be reached: it may be the one with this name.

        The routers and the pods of a release start at once, and the last of them may have become ready just now.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.patience_s):
                while self.present(name) is None and self._has_strangers():
                    await self._changes.next().wait()

    def _has_strangers(self) -> bool:
        return any(isinstance(one, ServiceAdapter) and one.is_stranger for one in self.backends)

    async def _learn(self, backend: AdapterBackend) -> None:
        if isinstance(backend, RunningAdapter):
            await backend.tried.wait()
        elif backend.record.description is None:
            try:
                with await backend.use():
                    pass
            except DragomanError:
                return  # its state says why
