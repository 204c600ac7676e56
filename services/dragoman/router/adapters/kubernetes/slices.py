"""EndpointSlices and the endpoints of Services, without I/O: events in, table out.

A Service has one or several slices. An endpoint may be in two of them for a moment, while the cluster moves it, and
in one for each address family. It counts once: with its IPv4 address, and with the better of its conditions.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from dragoman.protocol.addresses import Address
from dragoman.router.adapters.registry import Endpoint
from msgspec import Struct, field

PORT: Final = "grpc"
"""The name of the port that is dialed, if a slice has several."""
SERVICE_LABEL: Final = "kubernetes.io/service-name"
_FAMILIES: Final = ("IPv4", "IPv6")
"""Address types, the preferred first. A slice of names (FQDN) has no addresses to dial."""


class EventError(ValueError):
    """What the API server sent is no watch event."""


class Metadata(Struct, frozen=True, rename="camel"):
    """Of an object, or of a list."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: Mapping[str, str] | None = None
    continue_: str = field(default="", name="continue")


class Conditions(Struct, frozen=True):
    """Of an endpoint; absent is unknown."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Target(Struct, frozen=True):
    """What is behind an endpoint, mostly a pod."""

    name: str = ""
    uid: str = ""


class SliceEndpoint(Struct, frozen=True, rename="camel"):
    """An endpoint as a slice has it."""

    addresses: tuple[str, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)
    target_ref: Target | None = None


class Port(Struct, frozen=True):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True, rename="camel"):
    """A part of the endpoints of a Service."""

    metadata: Metadata
    address_type: str = ""
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Distinguishes it from other slices."""
        return self.metadata.namespace, self.metadata.name


class ServiceName(Struct, frozen=True, order=True):
    """A Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def dns_name(self) -> str:
        """The name that certificates of its pods are for."""
        return f"{self.name}.{self.namespace}.svc"


class Listed(Struct, frozen=True):
    """All slices that there are."""

    slices: tuple[EndpointSlice, ...]
    version: str
    """The resource version from which to watch."""


class Changed(Struct, frozen=True):
    """A slice is new, or another than before."""

    slice: EndpointSlice


class Deleted(Struct, frozen=True):
    """A slice is gone."""

    slice: EndpointSlice


class Bookmark(Struct, frozen=True):
    """Nothing before this version is missing."""

    version: str


class Failed(Struct, frozen=True):
    """The API server ends the watch."""

    code: int
    message: str


Event: TypeAlias = Listed | Changed | Deleted | Bookmark
Table: TypeAlias = Mapping[ServiceName, tuple[Endpoint, ...]]
"""The endpoints of each Service, in order of their keys."""


class _Status(Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Envelope(Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Page(Struct, frozen=True):
    metadata: Metadata
    items: tuple[msgspec.Raw, ...] | None = None


class _Versioned(Struct, frozen=True):
    metadata: Metadata


def read_event(line: bytes) -> Event | Failed | None:
    """Return the event of one line of a watch; ``None`` for one that is of no concern here.

    Raises:
        EventError: it is no event.
    """
    envelope = _decode(line, _Envelope)
    match envelope.type:
        case "ADDED" | "MODIFIED":
            return Changed(_decode(envelope.object, EndpointSlice))
        case "DELETED":
            return Deleted(_decode(envelope.object, EndpointSlice))
        case "BOOKMARK":
            return Bookmark(_decode(envelope.object, _Versioned).metadata.resource_version)
        case "ERROR":
            status = _decode(envelope.object, _Status)
            return Failed(status.code, status.message)
        case _:
            return None


class Page(Struct, frozen=True):
    """A part of a list."""

    slices: tuple[EndpointSlice, ...]
    version: str
    next: str
    """The token of the next part; empty for the last."""
    unreadable: int = 0
    """How many items are no slices."""


def read_page(data: bytes) -> Page:
    """Return one part of a list of slices. One that cannot be read does not hide the others.

    Raises:
        EventError: it is no list.
    """
    page = _decode(data, _Page)
    slices = []
    for item in page.items or ():
        try:
            slices.append(_decode(item, EndpointSlice))
        except EventError:
            continue
    unreadable = len(page.items or ()) - len(slices)
    return Page(tuple(slices), page.metadata.resource_version, page.metadata.continue_, unreadable)


def read_status(data: bytes) -> str:
    """Return the message of an error's body; empty if it has none."""
    try:
        status: _Status = _decode(data, _Status)
    except EventError:
        return ""
    return status.message


def _decode(data: bytes | msgspec.Raw, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"no {kind.__name__.strip('_')}: {type(error).__name__}") from error


class SliceTable(Struct, frozen=True):
    """All slices, as far as they are known."""

    slices: Mapping[tuple[str, str], EndpointSlice] = field(default_factory=dict)
    version: str = ""
    """The resource version from which to watch; empty before the first list."""

    def after(self, event: Event) -> "SliceTable":
        """Return the table after an event. One that comes twice, or late, changes nothing."""
        match event:
            case Listed(listed, version):
                return SliceTable({one.key: one for one in listed}, version)
            case Bookmark(version):
                return SliceTable(self.slices, version or self.version)
            case Changed(one) | Deleted(one):
                known = self.slices.get(one.key)
                if known is not None and _is_older(one.metadata, known.metadata):
                    return self
                slices = {key: other for key, other in self.slices.items() if key != one.key}
                if isinstance(event, Changed):
                    slices[one.key] = one
                return SliceTable(slices, one.metadata.resource_version or self.version)

    def services(self, namespace: str = "") -> Table:
        """Return the endpoints of all Services that have slices.

        Args:
            namespace: of slices that name none.
        """
        found: dict[ServiceName, dict[str, Endpoint]] = {}
        # The preferred family first, as the first address that an endpoint is found with is the one that counts.
        for one in sorted(self.slices.values(), key=lambda one: (one.address_type, one.key)):
            name = (one.metadata.labels or {}).get(SERVICE_LABEL, "")
            if not name or one.address_type not in _FAMILIES:
                continue
            endpoints = found.setdefault(ServiceName(one.metadata.namespace or namespace, name), {})
            for endpoint in _endpoints(one):
                before = endpoints.get(endpoint.key)
                endpoints[endpoint.key] = endpoint if before is None else _merged(before, endpoint)
        return {name: tuple(endpoints[key] for key in sorted(endpoints)) for name, endpoints in sorted(found.items())}


def _is_older(one: Metadata, known: Metadata) -> bool:
    """Return whether a version is before the known one of the same object; versions are numbers that grow."""
    if one.uid != known.uid:
        return False  # the known one was deleted, and this is its successor
    versions = one.resource_version, known.resource_version
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])


def _endpoints(one: EndpointSlice) -> Iterable[Endpoint]:
    port = _port(one.ports or ())
    for endpoint in one.endpoints or () if port else ():
        if not endpoint.addresses:
            continue
        # All addresses of an endpoint are the same, by the API's definition.
        address = str(Address(host=endpoint.addresses[0], port=port))
        target = endpoint.target_ref or Target()
        reason = _reason(endpoint.conditions)
        yield Endpoint(target.uid or address, address, target.name or address, not reason, reason)


def _port(ports: tuple[Port, ...]) -> int:
    """Return the port to dial; 0 if there is none, or it is not known which."""
    numbers = [one.port for one in ports if one.name == PORT] or [one.port for one in ports]
    return numbers[0] or 0 if len(numbers) == 1 else 0


def _reason(conditions: Conditions) -> str:
    """Return why an endpoint takes no new runs; empty if it does. An unknown readiness means ready."""
    if conditions.terminating:
        return "is terminating" if conditions.serving is not False else "is terminating and no longer serves"
    return "" if conditions.ready is not False else "is not ready"


def _merged(before: Endpoint, other: Endpoint) -> Endpoint:
    better = other if other.takes_runs and not before.takes_runs else before
    return msgspec.structs.replace(before, takes_runs=better.takes_runs, reason=better.reason)


class HeldTable(Struct, frozen=True):
    """The endpoints to use: those that were found, and for a while those of Services whose last one has vanished.

    A Service's slices may be deleted and made again, as by a controller that restarts. Endpoints that still answer
    need not be let go of meanwhile.
    """

    table: Table = field(default_factory=dict)
    until: Mapping[ServiceName, float] = field(default_factory=dict)
    """Until when those are held, whose last endpoint has vanished."""

    def after(self, found: Table, now: float, hold_s: float) -> "HeldTable":
        """Return the endpoints to use now.

        Args:
            found: what the slices say.
            now: the time, in seconds.
            hold_s: for how long to hold the last endpoints of a Service.
        """
        table = dict(found)
        until: dict[ServiceName, float] = {}
        for name, endpoints in self.table.items():
            if not endpoints or found.get(name):
                continue
            end = self.until.get(name, now + hold_s)
            if now < end:
                table[name], until[name] = endpoints, end
        return HeldTable(dict(sorted(table.items())), until)

    @property
    def next_end(self) -> float | None:
        """When the next of them is let go of; ``None`` if none is held."""
        return min(self.until.values(), default=None)
