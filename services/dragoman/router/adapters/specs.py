"""What is configured of an adapter. It imports little: an adapter may start before protobuf and gRPC are imported."""

import enum
from collections.abc import Callable

from dragoman.router.adapters.launch_spec import LaunchSpec
from msgspec import Struct


class Source(enum.Enum):
    """Where an adapter comes from; the values are for people."""

    ENTRY_POINT = "entry point"
    MANIFEST = "manifest"
    ADDRESS = "address"
    SOCKET_DIRECTORY = "socket"
    REGISTRATION = "registration"
    KUBERNETES = "Kubernetes Service"


class AdapterSpec(Struct, frozen=True):
    """One adapter, as it was configured."""

    name: str
    """The type; for an address the address."""
    source: Source
    aliases: tuple[str, ...] = ()
    launch: LaunchSpec | None = None
    address: str = ""
    """Its address; empty for a launched adapter."""
    origin: str = ""
    """Where this specification comes from, for people: the path of a manifest or a socket directory."""
    file: str = ""
    """The path of the file that it was read from, or of the socket that was found; empty if there is none."""
    inode: int = 0
    """Of the socket that was found: another one at the same path is another adapter."""
    problem: str = ""
    """Why it is unusable; empty if it is usable."""
    reference: str = ""
    """Its object, ``module:attribute``, if it may be detected in one process with others. Else empty."""
    identity: str | Callable[[], str] = ""
    """The key of its cached description, which changes with each upgrade; a function finds it once that has time.

    Empty: its description is not cached.
    """
    server_name: str = ""
    """The name that certificates at its address are for; empty for the host of the address."""
    has_endpoints: bool = False
    """Whether several processes may serve it, at addresses that come and go; see ``Endpoint``."""


def registered_spec(address: str) -> AdapterSpec:
    """Return the specification of an adapter that has announced itself at an address."""
    return AdapterSpec(address, Source.REGISTRATION, address=address)
