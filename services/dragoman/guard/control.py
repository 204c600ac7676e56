r"""The control channel: JSON objects, one a line, over a connected stream socket.

Guard to owner, in this order, each at most once::

    {"event":"spawned","pid":7,"pgid":7,"started":12345}
    {"event":"spawn_failed","errno":"ENOENT","message":"No such file or directory: 'x'"}
    {"event":"exited","code":0,"signal":null}
    {"event":"gone","confirmed":true,"killed":[9],"survivors":[]}

and ``{"event":"refused","message":...}`` for an invalid line. With ``"waits":true`` in ``gone`` the guard waits for
another command (`receive_command`), and what it says of that follows; else it ends. A guard that is asked to end
while it waits sends ``{"event":"declined"}`` instead: it starts no command, and ends. Owner to guard::

    {"signal":"SIGINT","to":"leader"}     to: leader (default), group, tree
    {"kill":true}
    {"sweep":true}                        answered on the same connection:
    {"event":"swept","confirmed":true,"killed":[9],"survivors":[]}

A sweep kills the orphans that became children of the guard: daemons, and what another guard beneath it leaves when it
is killed. The command and its descendants live on. A sweep is ``confirmed`` if no orphan is proven to be left, which
is impossible without a subreaper.

``started`` is opaque: equal values with equal pids (and boot ids) mean the same process. ``killed``
names the processes that the guard ended, by TERM or KILL; it is cut at `LISTED` entries.
"""

from __future__ import annotations

import os
import select
import sys

from dragoman.guard.plain_signal import signal

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from dragoman.guard.signals import Signals

CONTROL_VARIABLE = "DRAGOMAN_GUARD_CONTROL"
"""Environment variable that names an adapter's control socket to the adapter."""

LINE_BYTES = 64 << 10
"""Longest command in bytes; the sender of a longer line is disconnected."""

LISTED = 256
"""At most this many pids are listed in an event, so that it always fits the socket's buffer."""

TARGETS = ("leader", "group", "tree")

_INTEGER_BYTES = 4
"""Size of a descriptor in a message."""


class CommandError(Exception):
    """A line on the control channel is not a valid command; the message says why."""


class Command:
    """One command of the owner.

    Attributes:
        kind: ``signal``; ``kill``, of the whole tree; ``sweep``, of its orphans.
        signum: Signal to send.
        to: Recipient of the signal, one of `TARGETS`.
    """

    __slots__ = ("kind", "signum", "to")

    def __init__(self, kind: str, signum: int = 0, to: str = "leader") -> None:
        self.kind = kind
        self.signum = signum
        self.to = to


_USUAL = {
    b'{"kill": true}': Command("kill"),
    b'{"signal": "SIGTERM"}': Command("signal", signal.SIGTERM),
}
"""The commands that end most adapters, as their owners write them: to read any other takes two imports."""


def encode(message: dict[str, object]) -> bytes:
    """Return one line of JSON; ASCII only, whatever the strings hold.

    Written by hand for the few kinds of values events have: `json` takes longer to import than the
    command takes to start, and is needed here once per run.
    """
    return _text(message).encode("ascii") + b"\n"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(str(key))}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    return "null" if value is None else str(value).lower()  # True and False become true and false


def _escaped(character: str) -> str:
    if " " <= character <= "~" and character not in '"\\':
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def decode_command(line: bytes) -> Command:
    """Read one line of the owner.

    Raises:
        CommandError: It is not JSON, not a known command, or names an unknown signal.
    """
    if line in _USUAL:
        return _USUAL[line]
    import json  # noqa: PLC0415 - most runs see no other command and save 4 ms
    from signal import Signals  # noqa: PLC0415 - as above

    try:
        message = json.loads(line)
    except ValueError as error:
        raise CommandError(f"invalid JSON: {error}") from None
    if not isinstance(message, dict):
        raise CommandError("expected a JSON object")
    for kind in ("kill", "sweep"):
        if message.keys() == {kind} and message[kind] is True:
            return Command(kind)
    if not {"signal"} <= message.keys() <= {"signal", "to"}:
        raise CommandError("expected one of the keys signal, kill, sweep")
    to = message.get("to", "leader")
    if to not in TARGETS:
        raise CommandError(f"unknown target {to!r}; expected {', '.join(TARGETS)}")
    try:
        return Command("signal", int(Signals[message["signal"]]), to)
    except (KeyError, TypeError):
        raise CommandError(f"unknown signal {message['signal']!r}") from None


class Channel:
    """The guard's end of one connection; owns the descriptor and never blocks."""

    __slots__ = ("_partial", "fd")

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
        self.fd = fd
        self._partial = b""

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self.fd

    def receive(self) -> list[bytes]:
        """Return the complete lines that have arrived; possibly none.

        Raises:
            EOFError: The peer is gone, or sent a line that is too long.
        """
        try:
            data = os.read(self.fd, LINE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError from error
        *lines, self._partial = (self._partial + data).split(b"\n")
        if not data or len(self._partial) > LINE_BYTES:
            raise EOFError
        return lines

    def send(self, message: dict[str, object]) -> bool:
        """Send one event whole; False when the peer is gone or does not read."""
        line = encode(message)
        try:
            return os.write(self.fd, line) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def receive_command(fd: int, signals: Signals) -> int | None:
    """Wait for a command; return the descriptor of its arguments. Stdin, stdout and stderr are the command's then.

    The owner sends these four descriptors in one message. What comes without any is an order for the command before,
    which was gone by then. After a signal the owner is informed that a command which it has sent, or sends before it
    reads that, is not started.

    Args:
        fd: Connected socket to the owner.
        signals: What ends the guard.

    Returns:
        The descriptor; None if the owner has ended, or there was a signal.
    """
    import _socket  # noqa: PLC0415 - only a guard that waits needs it

    os.set_blocking(fd, False)
    poll = select.poll()
    for waited in (fd, signals.fd):
        poll.register(waited, select.POLLIN)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
    descriptors: list[int] = []
    try:
        while not descriptors:
            poll.poll()
            signals.clear()
            if signals.received():
                os.write(fd, encode({"event": "declined"}))
                return None
            try:
                data, messages, _, _ = connection.recvmsg(LINE_BYTES, _socket.CMSG_SPACE(4 * _INTEGER_BYTES))
            except BlockingIOError:  # a child's end has woken us
                continue
            if not data:
                return None
            for _, _, content in messages:
                starts = range(0, len(content), _INTEGER_BYTES)
                descriptors += [int.from_bytes(content[at : at + _INTEGER_BYTES], sys.byteorder) for at in starts]
    except OSError:
        return None
    finally:
        connection.detach()
    for target, received in enumerate(descriptors[:3]):
        os.dup2(received, target)
        os.close(received)
    os.set_inheritable(descriptors[3], False)
    return descriptors[3]
