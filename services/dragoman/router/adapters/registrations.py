"""Adapters that announce themselves, each until its lease expires."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final
from weakref import WeakValueDictionary

from dragoman.protocol.addresses import AddressError, check_local
from dragoman.protocol.caller import current_caller
from dragoman.protocol.dialing import untrusted
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.adapter_set import AdapterSet
from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.registry import AdapterRecord
from dragoman.router.adapters.remote import RemoteAdapter
from dragoman.router.adapters.specs import registered_spec
from dragoman.router.model.tasks import first_of
from dragoman.v1 import adapter_pb2
from msgspec import Struct

SHORTEST_LEASE_S: Final = 1.0
LONGEST_LEASE_S: Final = 3600.0
_DESCRIBE_S: Final = 5.0
"""How long an adapter that registers may take to answer Describe, and then to be ready."""

_log = Logger("dragoman.router")


class Announcement(Struct, frozen=True):
    """What an adapter says of itself when it registers."""

    address: str
    instance_id: str = ""
    """The process; empty for any."""
    adapter: str = ""
    """The type or an alias that is expected; empty for any."""


class Registrations:
    """Grants leases to adapters, and removes those whose lease has expired."""

    def __init__(self, adapters: AdapterSet, context: AdapterContext) -> None:
        self._adapters = adapters
        self._context = context
        self._granted = asyncio.Event()
        """Set when a lease was granted, which may be the next to expire."""
        self._registering: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By address, while a call registers there."""

    async def register(self, announced: Announcement, lease_s: float) -> AdapterRecord:
        """Register an adapter, or renew its lease.

        Args:
            announced: what it says of itself.
            lease_s: seconds.

        Raises:
            DragomanError: NOT_PERMITTED, ADDRESS_UNTRUSTED, ADAPTER_TAKEN, ADAPTER_UNREACHABLE, REVISION_TOO_OLD
                or ADAPTER_REFUSED.
        """
        address = _checked(announced.address)
        lock = self._registering.setdefault(address, asyncio.Lock())
        async with lock:
            self._refuse_known(address)
            backend = self._at(address)
            if backend is not None:
                _check_caller(backend.record.names)
            if backend is None or not backend.serves(announced.instance_id):
                backend = await self._admit(backend, announced, lease_s)
        backend.record.lease_expires_at = self._context.clock.time() + lease_s
        self._granted.set()
        return backend.record

    def unregister(self, address: str, instance_id: str) -> bool:
        """End a registration; return whether there was one.

        Args:
            address: the adapter's.
            instance_id: its process; empty for any. The registration of another process stays.

        Raises:
            DragomanError: ADDRESS_UNTRUSTED.
        """
        backend = self._at(_checked(address))
        described = backend.record.description if backend is not None else None
        if backend is None or (instance_id and described is not None and described.instance_id != instance_id):
            return False
        _check_caller(backend.record.names)
        self._adapters.remove(backend)
        return True

    async def expire(self) -> None:
        """Remove adapters as their leases expire, without end."""
        while True:
            self._granted.clear()
            now = self._context.clock.time()
            leases = [(one.record.lease_expires_at, one) for one in self._adapters]
            for expires_at, backend in leases:
                if expires_at is not None and expires_at <= now:
                    _log.warning("registration expired", adapter=backend.record.type)
                    self._adapters.remove(backend)
            later = [at - now for at, _ in leases if at is not None and at > now]
            await first_of(self._granted.wait(), timeout_s=min(later, default=LONGEST_LEASE_S))

    def _at(self, address: str) -> RemoteAdapter | None:
        """Return what is registered at an address."""
        return next((one for one in self._registered() if one.record.spec.address == address), None)

    def _registered(self) -> Iterator[RemoteAdapter]:
        for backend in self._adapters:
            if isinstance(backend, RemoteAdapter) and backend.record.is_registered:
                yield backend

    def _refuse_known(self, address: str) -> None:
        """Raise ADAPTER_TAKEN if the router knows an adapter at this address from elsewhere."""
        for record in self._context.registry.records:
            if record.spec.address == address and not record.is_registered:
                kind = "a watched socket directory" if record.spec.origin else "this router's configuration"
                message = f"The adapter at {address} is known from {kind}; it need not register."
                raise DragomanError(Reason.ADAPTER_TAKEN, message, {"address": address})

    async def _admit(self, known: RemoteAdapter | None, announced: Announcement, lease_s: float) -> RemoteAdapter:
        """Examine what answers at an address, and add it.

        Args:
            known: what is registered there, which does not answer, or is another process.
            announced: what the adapter says of itself.
            lease_s: seconds.

        Raises:
            DragomanError: it is refused.
        """
        address, backend = _checked(announced.address), known
        try:
            description = await _described(address)
            _check(description, address, announced)
            _check_caller((description.adapter, *description.aliases))
            self._yield_names(description, address)
            if backend is None:
                self._check_names(description, address)
                added = self._adapters.add(registered_spec(address), lease_s)
                assert isinstance(added, RemoteAdapter)
                backend = added
            await first_of(backend.tried.wait(), timeout_s=_DESCRIBE_S)
            _check_state(backend)
        except DragomanError as error:
            _log.warning("registration refused", address=address, reason=error.message)
            # One that does not answer just now keeps what is left of its lease.
            if backend is not None and error.reason is not Reason.ADAPTER_UNREACHABLE:
                self._adapters.remove(backend)
            raise
        _log.info("adapter registered", adapter=backend.record.type, address=address)
        return backend

    def _check_names(self, description: adapter_pb2.DescribeResponse, address: str) -> None:
        refusal = self._context.registry.refusal(registered_spec(address), description)
        if refusal is not None:
            facts = {"address": address, "adapter": description.adapter[:200]}
            raise DragomanError(
                Reason[refusal.reason], f"The adapter at {address} is rejected: {refusal.message}.", facts
            )

    def _yield_names(self, description: adapter_pb2.DescribeResponse, address: str) -> None:
        """Remove registrations of the same adapter at other addresses where nothing answers any more."""
        names = {description.adapter, *description.aliases}
        for backend in self._registered():
            is_elsewhere = backend.record.spec.address != address
            if is_elsewhere and not names.isdisjoint(backend.record.names) and not backend.serves(""):
                self._adapters.remove(backend)


def _check_caller(names: Iterable[str]) -> None:
    """Refuse a caller that is not for all names of an adapter: each of them gets that adapter runs."""
    for name in names:
        current_caller().check_adapter(name)


def _check_state(backend: RemoteAdapter) -> None:
    if backend.record.is_rejected:
        address, why = backend.record.spec.address, backend.record.reason.rstrip(".")
        message = f"The adapter at {address} is rejected: {why}."
        raise DragomanError(Reason.ADAPTER_REFUSED, message, {"address": address})


def _checked(text: str) -> str:
    try:
        return str(check_local(text))
    except AddressError as error:
        raise untrusted(error) from error


async def _described(address: str) -> adapter_pb2.DescribeResponse:
    channel = AdapterChannel(address)
    try:
        return await channel.describe(_DESCRIBE_S)
    except DragomanError as error:
        if error.reason is Reason.ADAPTER_REFUSED:
            raise
        message = f"The adapter at {address} does not answer Describe: {error.message.rstrip('.')}."
        raise DragomanError(Reason.ADAPTER_UNREACHABLE, message, {"address": address}) from error
    finally:
        await channel.close()


def _check(description: adapter_pb2.DescribeResponse, address: str, announced: Announcement) -> None:
    facts = {"address": address, "adapter": description.adapter[:200]}
    if announced.instance_id not in {"", description.instance_id}:
        message = (
            f"Another process answers at {address} than the one that registers; give the address at which this router"
            " reaches the adapter itself."
        )
        raise DragomanError(Reason.ADAPTER_UNREACHABLE, message, facts)
    if announced.adapter not in {"", description.adapter, *description.aliases}:
        message = f"The adapter at {address} is {description.adapter[:200]!r}, not {announced.adapter[:200]!r}."
        raise DragomanError(Reason.ADAPTER_REFUSED, message, facts)
