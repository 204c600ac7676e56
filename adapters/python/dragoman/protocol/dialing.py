"""Channels to servers that may be trusted with prompts, secrets and tokens; in the clear, unless there is TLS."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast

import grpc
from dragoman.protocol.access import AUTHORIZATION
from dragoman.protocol.addresses import TLS_CA, Address, AddressError, check_local, connected, parse_address
from dragoman.protocol.callers import credentials
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import ChannelOption
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import (
    TOKEN_VARIABLE,
    check_socket_path,
    check_token,
    environment_token,
    is_trusted_user,
    read_token,
)
from dragoman.protocol.tls import TlsFiles, client_files
from dragoman.protocol.wary import WaryChannel, WrappedChannel

_LISTEN: Final = "0A"

_log = Logger("dragoman.tls")


def check_peer(address: Address) -> None:
    """Refuse an address where another user of this machine listens, or could.

    An address without a listener is fine: for a Unix socket no other user can take its path, and on a TCP port
    nothing is there to send a token to.

    Raises:
        AddressError: the text says whose it is, and what to do.
    """
    if address.path:
        check_socket_path(address.path)
        listener = _listener(address.path)  # where it is not known, the socket's file and its directories are ours
        uid = listener[1] if listener is not None else None
    else:
        uid = _listener_on(address.port)
    if uid is not None and not is_trusted_user(uid):
        raise AddressError(
            f"{address}: the server there is run by uid {uid}, not by you (uid {os.geteuid()}); nothing was sent. "
            f"Choose another address; to call that server over TCP nevertheless, set {TOKEN_VARIABLE} to its token"
        )


def may_listen(pid: int, address: str) -> bool:
    """Return whether a process, by its id here, may be the one that listens at an address.

    It is known for Unix sockets on Linux: a process of another pid namespace says the id that it has there.
    """
    path = parse_address(address).path
    if not path or sys.platform != "linux":
        return True
    listener = _listener(path)
    return listener is not None and listener[0] == pid


def _listener(path: str) -> tuple[int, int] | None:
    """Return pid and user of the process that listens on a Unix socket; ``None`` if that is not known."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError), connected(path) as probe:
        return credentials(probe)
    return None


def _listener_on(port: int) -> int | None:
    """Return the user whose server listens on a TCP port here, a stranger first; ``None`` if none is known."""
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[7]))
    return next((uid for uid in found if not is_trusted_user(uid)), next(iter(found), None))


def token_for(address: Address, token: str | None) -> str:
    """Return the token that calls to an address carry; empty for none.

    Args:
        address: where.
        token: what the caller said; ``None`` for what ``DRAGOMAN_TOKEN`` says, or this user's file.

    Raises:
        AddressError: the server there is another user's, the token's file is not safe, or no call can carry it.
    """
    if token is not None:
        return check_token(token, "the client's arguments")
    if address.path:
        return ""
    return read_token() if address.is_local else environment_token()


def open_channel(
    address: str, options: Sequence[ChannelOption], *, token: str | None = None, only_local: bool = False
) -> grpc.aio.Channel:
    """Return a channel whose calls carry the token, where the server asks for one.

    Args:
        address: ``unix:/path`` or ``host:port``.
        options: for the channel.
        token: instead of this user's own.
        only_local: whether to refuse addresses of other machines, unless there is TLS.

    Raises:
        DragomanError: ADDRESS_UNTRUSTED: it is no address, or what listens there may be another user's.
    """
    try:
        return _open(address, options, token, only_local=only_local)
    except AddressError as error:
        raise untrusted(error) from error


def untrusted(error: AddressError) -> DragomanError:
    """Return the error for an address that nothing may be sent to."""
    return DragomanError(Reason.ADDRESS_UNTRUSTED, str(error))


def _open(address: str, options: Sequence[ChannelOption], token: str | None, *, only_local: bool) -> grpc.aio.Channel:
    where = check_local(address) if only_local else parse_address(address)
    is_explicit = not where.path and bool(token if token is not None else environment_token())
    if where.is_local and not is_explicit:
        check_peer(where)
    carried = token_for(where, token)
    files = None if where.path else client_files()
    if files is None and carried and not where.is_local:
        raise AddressError(
            f"{where}: the token would go to another machine in the clear; nothing was sent. Set {TLS_CA} to the "
            "authorities that sign the server's certificate, or tunnel to a local address (ssh -L)"
        )
    if files is None:
        channel = grpc.aio.insecure_channel(str(where), options=list(options))
        if not where.path:
            channel = cast("grpc.aio.Channel", WaryChannel(channel, str(where), lambda: _is_authenticated(where)))
    else:
        channel = cast("grpc.aio.Channel", _TlsChannel(str(where), options, files))
    if not carried:
        return channel
    checked = where if where.is_local and not is_explicit else None
    return cast("grpc.aio.Channel", _TokenChannel(channel, carried, checked))


def _is_authenticated(where: Address) -> bool:
    """Return whether this user, or root, listens on a TCP port of this machine; where it can be known."""
    if not where.is_local:
        return False
    if not Path("/proc/net/tcp").exists():
        return True  # SECURITY.md says so
    uid = _listener_on(where.port)
    return uid is not None and is_trusted_user(uid)


class _TlsChannel:
    """A channel whose new calls use the certificates that are in the files by then; gRPC reads them once.

    Calls that are under way, and waits for the connection, continue on the connection that they have.

    Raises:
        AddressError: the files cannot be used.
    """

    def __init__(self, address: str, options: Sequence[ChannelOption], files: TlsFiles) -> None:
        self._address = address
        self._options = list(options)
        self._files = files
        self._stamp = files.stamp()
        self._channels = [self._open()]
        """One per rotation, the newest last. gRPC closes the connection of one that is not used any more, and a later
        rotation drops it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current(), name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def unary_unary(self, *args: Any, **named: Any) -> Callable[..., Any]:
        return self._late("unary_unary", args, named)

    def unary_stream(self, *args: Any, **named: Any) -> Callable[..., Any]:
        return self._late("unary_stream", args, named)

    def _late(self, kind: str, args: Sequence[Any], named: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a method that chooses its channel when it is called."""

        def call(*request: Any, **options: Any) -> Any:
            return getattr(self.current(), kind)(*args, **named)(*request, **options)

        return call

    async def close(self, grace: float | None = None) -> None:
        for channel in self._channels:
            await channel.close(grace)

    def current(self) -> grpc.aio.Channel:
        """Return the channel for a new call."""
        # Taken before the files are read: what is written meanwhile is read at the next call.
        if (stamp := self._files.stamp()) != self._stamp:
            self._stamp = stamp
            try:
                fresh = self._open()
                self._channels = [*filter(_is_in_use, self._channels[:-1]), self._channels[-1], fresh]
            except AddressError as error:
                _log.warning("certificate not reloaded; the last one stays", error=str(error))
        return self._channels[-1]

    def _open(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self._address, self._files.channel_credentials(), options=self._options)


def _is_in_use(channel: grpc.aio.Channel) -> bool:
    return channel.get_state() is not grpc.ChannelConnectivity.IDLE


class _TokenChannel(WrappedChannel):
    """A channel whose calls carry the token. Interceptors would make other objects of the calls.

    Args:
        channel: the channel.
        token: the token.
        checked: the address, if it is to be looked at again before there is a new connection: another user may
            listen there by then.
    """

    def __init__(self, channel: grpc.aio.Channel, token: str, checked: Address | None) -> None:
        super().__init__(channel)
        self._metadata = ((AUTHORIZATION, f"Bearer {token}"),)
        self._checked = checked

    def unary_unary(self, *args: Any, **named: Any) -> Callable[..., Any]:
        return self._carrying(self._channel.unary_unary(*args, **named))

    def unary_stream(self, *args: Any, **named: Any) -> Callable[..., Any]:
        return self._carrying(self._channel.unary_stream(*args, **named))

    def _carrying(self, call: Any) -> Callable[..., Any]:
        """Return what makes the calls of one method with the token."""

        def carried(request: Any, *, metadata: Any = None, **named: Any) -> Any:
            return call(request, metadata=(*(metadata or ()), *self._credential()), **named)

        return carried

    def _credential(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata with the token, if it may be sent now.

        Raises:
            DragomanError: ADDRESS_UNTRUSTED.
        """
        if self._checked is not None and self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            try:
                check_peer(self._checked)
            except AddressError as error:
                raise untrusted(error) from error
        return self._metadata
