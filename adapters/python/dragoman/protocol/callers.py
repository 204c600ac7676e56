"""Who calls over a Unix socket: the peers of our own connections, judged by what the kernel says of them.

gRPC exposes neither a connection's descriptor nor its peer's credentials. But the connections are sockets of this
process, so on Linux they are found here: gRPC waits for them with epoll, and ``/proc/self/fdinfo`` lists what an
epoll descriptor waits for. Each is judged once; a look at an unchanged list is one read. Where there is no such list,
all descriptors of the process are looked through. Where there is no /proc, the modes of socket and directory keep
other users out, and calls of agents are not distinguished from others.

A call does not say which connection it came on. So a connection that is refused is cut, and calls that came meanwhile
wait until gRPC has closed it, which cancels the calls on it.
"""

import base64
import contextlib
import os
import re
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from dragoman.protocol.audit import deny_connection
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import TOKEN_VARIABLE, is_trusted_user

MARKER: Final = "DRAGOMAN_RUN_MARKER"
"""Environment variable that every run's guard and agent are started with."""

_ENTRY: Final = re.compile(rb"^tfd: +(\d+) .*?\bino:([0-9a-f]+)", re.MULTILINE)
_CREDENTIALS: Final = struct.Struct("3i")
_FIRST_READ: Final = 1 << 14
_MOST_READ: Final = 1 << 24
_ROUNDS: Final = 3
_DEEPEST: Final = 1000

_log = Logger("dragoman.rpc")


class _GoneError(Exception):
    """A descriptor is closed by now, or is another file's."""


class Connections:
    """The connections to the Unix sockets that this process listens on.

    Args:
        paths: the sockets' paths.
        token: returns the token that a run must have been given for its agent's calls to be answered; empty if none.
    """

    def __init__(self, paths: Iterable[str], token: Callable[[], str]) -> None:
        self._paths = frozenset(paths)
        self._token = token
        self._known: dict[int, bool] = {}
        """By inode: whether the connection is refused. Of other sockets, False."""
        self._list: int | None = None
        """Descriptor of the list of what gRPC waits for."""
        self._seen = b""

    def close(self) -> None:
        """Let go of the list."""
        if self._list is not None:
            os.close(self._list)
        self._list = None

    def any_refused(self) -> bool:
        """Judge the connections that are new, cut those that are refused; return whether such a one is still open."""
        if not self._paths or sys.platform != "linux":
            return False
        for _ in range(_ROUNDS):
            if self._is_unchanged():
                break
            if self._judge_new():
                continue  # a descriptor changed meanwhile
            break
        return any(self._known.values())

    def _is_unchanged(self) -> bool:
        if self._list is None:
            return False
        now = _read_all(self._list)
        is_same = now == self._seen
        self._seen = now
        return is_same

    def _judge_new(self) -> bool:
        """Judge what is new; return whether the list is to be read again."""
        if self._list is None:
            self._find_list()
        entries = dict(_parse(self._seen)) if self._list is not None else dict(_own_sockets())
        self._known = {inode: refused for inode, refused in self._known.items() if inode in entries}
        is_stale = False
        for inode, descriptor in entries.items():
            if inode in self._known:
                continue
            try:
                with _borrowed(descriptor, inode) as connection:
                    self._known[inode] = connection is not None and self._is_refused(connection)
            except _GoneError:
                is_stale = self._list is not None
                self._seen = b""
        return is_stale

    def _find_list(self) -> None:
        """Find the epoll descriptor that has all our listening sockets."""
        listeners = {inode for inode, descriptor in _own_sockets() if self._listens(descriptor, inode)}
        for name in _names("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if "eventpoll" not in str(Path(f"/proc/self/fd/{name}").readlink()):
                    continue
                found = os.open(f"/proc/self/fdinfo/{name}", os.O_RDONLY | os.O_CLOEXEC)
                seen = _read_all(found)
                if listeners and listeners <= {inode for inode, _ in _parse(seen)}:
                    self._list, self._seen = found, seen
                    return
                os.close(found)

    def _listens(self, descriptor: int, inode: int) -> bool:
        with contextlib.suppress(_GoneError), _borrowed(descriptor, inode) as found:
            return found is not None and self._is_ours(found) and _is_listening(found)
        return False

    def _is_ours(self, found: socket.socket) -> bool:
        if found.family != socket.AF_UNIX:
            return False
        with contextlib.suppress(OSError):
            return found.getsockname() in self._paths
        return False

    def _is_refused(self, connection: socket.socket) -> bool:
        if not self._is_ours(connection) or _is_listening(connection):
            return False
        refusal = self._refusal(connection)
        if refusal is None:
            return False
        pid, uid = credentials(connection)
        deny_connection(uid)
        _log.warning("connection refused", peer_pid=pid, peer_uid=uid, reason=refusal.message)
        with contextlib.suppress(OSError):
            connection.send(farewell(refusal), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        return True

    def _refusal(self, connection: socket.socket) -> DragomanError | None:
        pid, uid = credentials(connection)
        if not is_trusted_user(uid):
            return _refused("this server answers its own user only", uid=uid)
        if pid and _has_ended(pid) and not _is_hung_up(connection):
            return _refused(
                "the process that opened this connection has ended, and an agent's run may have the connection now; "
                "call over a connection of your own",
                uid=uid,
            )
        if pid and not self._may_call(pid):
            return _refused(
                "this call comes from an agent's run, which may not call the server that it runs under; to allow it, "
                f"start the run with {TOKEN_VARIABLE} in its env, set to what 'dragoman token' prints",
                uid=uid,
            )
        return None

    def _may_call(self, pid: int) -> bool:
        run = run_environment(pid)
        if run is None:
            return True
        import secrets  # noqa: PLC0415 - few callers belong to a run

        token, run_token = self._token(), run.get(TOKEN_VARIABLE, "")
        return bool(token) and secrets.compare_digest(token.encode(), run_token.encode("utf-8", "surrogateescape"))


def _refused(message: str, *, uid: int) -> DragomanError:
    return DragomanError(Reason.CALLER_REFUSED, message, {"uid": str(uid)})


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user id of a Unix socket's peer, as they were when it connected or listened."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return pid, uid


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _is_hung_up(connection: socket.socket) -> bool:
    """Return whether the other end is closed."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


def run_environment(pid: int) -> dict[str, str] | None:
    """Return the environment of the run that a process is beneath of; ``None`` if it is beneath none.

    A run of which this process is a part itself does not count. One is known by the marker that its guard was started
    with; all its processes stay beneath the guard, whatever they do to their own environment.
    """
    own = set(_line(os.getpid()))
    for ancestor in _line(pid):
        if ancestor in own:
            return None
        environment = _environment(ancestor)
        if MARKER in environment:
            return environment
    return None


def _line(pid: int) -> Iterator[int]:
    """Yield a process and those above it."""
    for _ in range(_DEEPEST):
        if pid <= 0:
            return
        yield pid
        pid = _parent(pid)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = file.read()
    except OSError:
        return 0
    # The program's name stands in parentheses and may hold any byte, parentheses included.
    return int(status[status.rindex(b")") + 2 :].split()[1])


def _environment(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are wanted, and quickly
    except OSError:
        return []


def _own_sockets() -> Iterator[tuple[int, int]]:
    """Yield inode and descriptor of all sockets of this process."""
    for name in _names("/proc/self/fd"):
        with contextlib.suppress(OSError):
            kind, _, inode = str(Path(f"/proc/self/fd/{name}").readlink()).partition(":[")
            if kind == "socket":
                yield int(inode.removesuffix("]")), int(name)


def _parse(listed: bytes) -> Iterator[tuple[int, int]]:
    """Yield inode and descriptor of what an epoll descriptor waits for."""
    for descriptor, inode in _ENTRY.findall(listed):
        yield int(inode, 16), int(descriptor)


def _read_all(descriptor: int) -> bytes:
    size = _FIRST_READ
    while len(data := os.pread(descriptor, size, 0)) == size and size < _MOST_READ:
        size *= 4
    return data


@contextlib.contextmanager
def _borrowed(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """Hold a descriptor of our own for a socket that gRPC may close at any time; ``None`` if it is no socket.

    Raises:
        _GoneError: it was closed.
    """
    try:
        own = os.dup(descriptor)
    except OSError as error:
        raise _GoneError from error
    if os.fstat(own).st_ino != inode:
        os.close(own)
        raise _GoneError
    try:
        found = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        yield None
        return
    with found:
        yield found


def _is_listening(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


_HEADERS, _GOAWAY = 1, 7
_END_OF_STREAM_AND_HEADERS: Final = 5
_INADEQUATE_SECURITY: Final = 12
_FIRST_STREAM: Final = 1


def farewell(refusal: DragomanError) -> bytes:
    """Return the HTTP/2 frames that answer a connection's first call with a status, and end the connection.

    gRPC would close it without a word. See RFC 9113, and RFC 7541 for the literals: none is indexed, so that the
    state of the connection's compression does not matter.
    """
    from dragoman.protocol.statuses import to_status  # noqa: PLC0415 - most callers are answered

    status = to_status(refusal)
    fields: list[tuple[str, str | bytes]] = [
        ("content-type", "application/grpc"),
        ("grpc-status", str(refusal.code.value[0])),
        ("grpc-message", _percent_encoded(refusal.message)),
    ]
    fields += [(key, value) for key, value in status.trailing_metadata or ()]
    block = b"\x88" + b"".join(_literal(key, value) for key, value in fields)  # 0x88: ":status: 200"
    end = struct.pack(">II", _FIRST_STREAM, _INADEQUATE_SECURITY) + refusal.message.encode()
    return _frame(_HEADERS, _END_OF_STREAM_AND_HEADERS, _FIRST_STREAM, block) + _frame(_GOAWAY, 0, 0, end)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode().rstrip("=")
    return b"\0" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    left = len(data) - 127
    size = bytearray([127])
    while left >= 128:
        size.append(left % 128 + 128)
        left //= 128
    return bytes([*size, left]) + data


def _percent_encoded(text: str) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 37 else f"%{byte:02X}" for byte in text.encode())
