"""Addresses to listen on and to dial: ``unix:/path`` or ``host:port``.

Without TLS (see ``tls``) a server listens on loopback or on a Unix socket, and nowhere else: who can reach the
contract can run programs as the server's user. Who may call there, see ``access``.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TLS_CERT: Final = "DRAGOMAN_TLS_CERT"
"""The variable with the path of this process's certificate. A server that has one uses TLS on TCP."""
TLS_CA: Final = "DRAGOMAN_TLS_CA"
"""The variable with the path of the authorities that peers' certificates are of. Clients then use TLS on TCP."""

_PROBE_S: Final = 2.0
"""How long a probe of a socket waits."""
_UDS_LIMIT = 107
"""The longest path of a Unix socket on Linux; macOS allows 103."""
_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})


class AddressError(ValueError):
    """The address cannot be used; the text says why and what would do."""


class Address(NamedTuple):
    """Where a server listens. Either a socket path or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return bool(self.path) or is_loopback(self.host)


def parse_address(text: str) -> Address:
    """Read ``unix:/path``, ``unix:///path``, ``host:port`` or ``[v6]:port``.

    Raises:
        AddressError: it is none of these, or a socket path that is relative or too long.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not Path(path).is_absolute() or path.startswith("//"):  # gRPC takes unix://a/b for a host and a path
            raise AddressError(f"{text!r}: a Unix socket's path is absolute, e.g. unix:/run/dragoman.sock")
        if len(os.fsencode(path)) > _UDS_LIMIT:
            raise AddressError(f"{text!r}: a Unix socket's path has at most {_UDS_LIMIT} bytes; use a shorter one")
        return Address(path=path)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{text!r} is no address; use unix:/path or host:port, e.g. 127.0.0.1:7777")
    return Address(host=host, port=int(port))


def port_address(text: str) -> Address:
    """Return the TCP address of ``9464`` or ``0.0.0.0:9464``; a port alone is one on loopback.

    For ports beside the server's own, which anyone who can reach them may read.

    Raises:
        AddressError: it is neither.
    """
    address = parse_address(f"127.0.0.1:{text}" if text.isdecimal() else text)
    if address.path:
        raise AddressError(f"{text}: this is read over TCP, not at a Unix socket; give a port, or host:port")
    return address


def check_listen(address: Address) -> None:
    """Allow what needs no TLS, and everything else with a certificate.

    Raises:
        AddressError: others could reach it.
    """
    if not address.is_local and not os.environ.get(TLS_CERT):
        raise AddressError(
            f"refusing to listen on {address} without TLS: what can reach it can run programs as this user. "
            f"Listen on 127.0.0.1:PORT or unix:/path, or set {TLS_CERT} and DRAGOMAN_TLS_KEY to the files of a "
            "certificate and its key."
        )


def check_local(text: str) -> Address:
    """Return an address to dial, if requests may travel there: in the clear on this machine, else by TLS.

    Raises:
        AddressError: it is none, or is on another machine and there is no TLS.
    """
    address = parse_address(text)
    if not address.is_local and not os.environ.get(TLS_CA):
        raise AddressError(
            f"{address} is on another machine, and prompts and secrets would travel there in the clear; "
            f"set {TLS_CA} to the file of the authority that its certificate is of, or bring it here through "
            "something that encrypts, e.g. ssh -L"
        )
    return address


def is_served(address: str) -> bool:
    """Return whether any process listens at a Unix socket."""
    with contextlib.suppress(OSError), connected(parse_address(address).path):
        return True
    return False


@contextlib.contextmanager
def connected(path: str) -> Iterator[socket.socket]:
    """Yield a connection to a Unix socket, to see who listens there.

    Raises:
        OSError: no process does.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        probe.connect(path)
        yield probe


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own."""
    if host in _LOOPBACK_NAMES:
        return True
    import ipaddress  # noqa: PLC0415 - most addresses are those of Unix sockets

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def why_not_bound(address: Address) -> str:
    """Return why a server could not be bound to ``address``, and what would do, as a clause for people.

    gRPC does not report the error's number; so this binds a plain socket there, for a moment, to learn it.
    """
    try:
        _bind_once(address)
    except OSError as error:
        kind, text = error.errno, error.strerror or str(error)
    else:
        return "it could not be bound a moment ago, but is free now; try again"
    other = "choose another path" if address.path else "choose another port, or 0 for any free one"
    if kind == errno.EADDRINUSE and address.path:
        return f"something is there that is no socket of this server; {other}"
    if kind == errno.EADDRINUSE:
        return f"another program listens there already; {other}"
    if kind in {errno.EACCES, errno.EPERM}:
        low = "" if address.path else " (ports below 1024 mostly are the administrator's)"
        return f"this user is not allowed to{low}; {other}"
    if kind == errno.EADDRNOTAVAIL:
        return "this machine has no such address; 127.0.0.1 is there on most"
    return f"{text}; {other}"


def _bind_once(address: Address) -> None:
    if address.path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(address.path)
            os.unlink(address.path)  # noqa: PTH108 - an address, not a path object
        return
    family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        probe.bind(where)


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Create files and sockets that only this user can open, while the block runs.

    The umask belongs to the whole process; keep the block short and free of awaits.
    """
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
