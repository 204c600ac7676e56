"""Requests to hosts that may be called: by an allow-list, and only at public addresses unless configured otherwise.

A name is resolved once and the connection goes to the address that was checked: a second answer of the name
service cannot lead elsewhere.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct, field

if TYPE_CHECKING:  # imported when first needed
    import httpx2

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_PORTS = {"http": 80, "https": 443}


class RefusedError(Exception):
    """A URL that requests may not go to; the message says why."""


class Target(Struct, frozen=True):
    """Where a URL leads."""

    scheme: str
    host: str
    port: int


def target_of(url: str) -> Target:
    """Return where a URL leads.

    Raises:
        RefusedError: it is no plain URL of HTTP.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        raise RefusedError("is no URL") from None
    if parts.scheme not in _PORTS or not host:
        raise RefusedError("must begin with https:// or http:// and name a host")
    if "@" in parts.netloc:
        raise RefusedError("must not hold a user or password: URLs are shown; use headers")
    if not url.isprintable() or " " in url:
        raise RefusedError("must not hold blanks or control characters")
    return Target(parts.scheme, host, port or _PORTS[parts.scheme])


class Call(Struct, frozen=True):
    """A request."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class EgressGate(Struct, frozen=True):
    """The hosts and networks that requests may go to.

    Attributes:
        own: the target that the configuration itself names.
        hosts: further hosts: a name, ``*.name``, each with a port if it is not any.
        networks: networks that are not public and are allowed nevertheless.
        hint: what to do about an address that is not public, for people.
        never: addresses that are not allowed, whatever network they are in.
    """

    own: Target
    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    hint: str = "list its network in config.allowedNetworks if it is meant"
    never: frozenset[IpAddress] = frozenset()

    def check_host(self, target: Target) -> None:
        """Check a host.

        Raises:
            RefusedError: it is not allowed.
        """
        is_own = (target.host, target.port) == (self.own.host, self.own.port)
        if is_own and (target.scheme == "https" or self.own.scheme == "http"):
            return
        if not is_own and any(_is_meant(pattern, target) for pattern in self.hosts):
            return
        shown = f"{target.scheme}://{target.host}:{target.port}"
        raise RefusedError(f"{shown} is not allowed; list its host in config.allowedHosts if it is meant")

    def allows(self, address: IpAddress) -> bool:
        """Return whether an address is allowed: public, with the addresses that it embeds, or listed."""
        forms = list(_forms(address))
        if not self.never.isdisjoint(forms):
            return False
        listed = all(any(form in network for network in self.networks) for form in forms[-1:])
        return listed or all(form.is_global and not form.is_multicast for form in forms)

    async def addresses(self, target: Target) -> Sequence[str]:
        """Return the addresses of a host that may be connected to.

        Raises:
            RefusedError: the host or all of its addresses are not allowed.
            OSError: the host is not known.
        """
        self.check_host(target)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except UnicodeError:  # an empty or overlong label
            raise RefusedError(f"{target.host} is no host name") from None
        addresses = list(dict.fromkeys(str(info[4][0]).partition("%")[0] for info in found))
        allowed = [text for text in addresses if self.allows(ipaddress.ip_address(text))]
        if not allowed:
            raise RefusedError(f"{target.host} is at {', '.join(addresses)}, which is not public; {self.hint}")
        return allowed


def _is_meant(pattern: str, target: Target) -> bool:
    name, _, port = pattern.rpartition(":") if pattern[-1:].isdigit() and ":" in pattern else (pattern, "", "")
    name = name.strip("[]").casefold().removesuffix(".")
    return fnmatchcase(target.host.casefold(), name) and port in {"", str(target.port)}


def _forms(address: IpAddress) -> Iterator[IpAddress]:
    """Yield an address and the one that it embeds, which is where packets go."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        if inner is not None:
            yield inner


async def send_checked(client: "httpx2.AsyncClient", gate: EgressGate, call: Call) -> "httpx2.Response":
    """Make a request at an address that was checked, and return its answer, of which only the head is read.

    Args:
        client: follows no redirects and takes nothing from the environment.
        gate: where the request may go.
        call: the request. A host that is given as a name is resolved once.

    Raises:
        RefusedError: its address is not allowed.
        OSError: the host is not known.
        httpx2.TransportError: there was no answer.
    """
    import httpx2  # noqa: PLC0415 - slow to import

    target = target_of(call.url)
    addresses = await gate.addresses(target)
    url = httpx2.URL(call.url)
    headers = {"accept-encoding": "identity", **call.headers, "host": url.netloc.decode("ascii")}
    for number, address in enumerate(addresses):
        request = client.build_request(
            call.method,
            url.copy_with(host=address),
            headers=headers,
            content=call.body or None,
            extensions={"sni_hostname": target.host},
        )
        try:
            return await client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            if number == len(addresses) - 1:
                raise
    raise AssertionError("there is at least one address")
