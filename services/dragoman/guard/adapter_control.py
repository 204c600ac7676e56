"""The files of an adapter's guard: control socket, instance file, log. All or nothing.

Separate from the loop because an agent run needs none of it, nor the import of `_socket`. `socket`, which is made of
it, costs an adapter's guard half as much as the start of its interpreter.
"""

from __future__ import annotations

import _socket
import os

from dragoman.guard.control import Channel
from dragoman.guard.instance import InstanceFile
from dragoman.guard.logfile import RotatedLog

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from dragoman.guard.options import Options
    from dragoman.guard.process import Process

CONNECTIONS = 16
"""Further connections are closed at once: only routers connect here, and there are few."""


class AdapterControl:
    """Control socket, instance file and log of one guarded adapter.

    Attributes:
        listener: The control socket; readable when a router connects.
        output: Read end of the adapter's output, non-blocking.
        child_output: Write end, to be given to the adapter and closed here.

    Raises:
        LockedError: Another guard has this instance file.
        OSError: A path cannot be used.
    """

    def __init__(self, options: Options) -> None:
        assert options.control is not None
        assert options.instance is not None
        assert options.log is not None
        self._options = options
        self._control = options.control
        self._log_path = options.log
        self._file = InstanceFile(options.instance)
        try:
            self.log = RotatedLog(options.log, limit=options.log_bytes, keep=options.log_keep)
            self.listener = _listen(options.control)
        except OSError:
            self._file.remove()
            raise
        self.output, self.child_output = os.pipe()
        os.set_blocking(self.output, False)

    def publish(self, leader: Process) -> None:
        """Write the instance file, by which routers find the adapter."""
        self._file.write(
            leader,
            instance_id=self._options.instance_id,
            control=self._control,
            listen=self._options.listen,
            log=self._log_path,
        )

    def accept(self, connected: int) -> Channel | None:
        """Accept a new connection; None if it is closed already or there are too many."""
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - as `socket` does
        except OSError:
            return None
        if connected < CONNECTIONS:
            return Channel(fd)
        os.close(fd)
        return None

    def copy_output(self) -> bool:
        """Move what the adapter has written to the log; False when it can write no more."""
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return True
        self.log.write(data)
        return bool(data)

    def drain_output(self) -> None:
        """Move all that is left in the pipe; its writers are gone, so the pipe's size bounds it."""
        while True:
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self.log.write(data)

    def log_note(self, text: str) -> None:
        """Write the guard's own line into the adapter's log."""
        self.log.write(f"dragoman-guard: {text}\n".encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Remove all files: the instance file first, so that no router looks for the socket."""
        self._file.remove()
        self.listener.close()
        _unlink(self._control)
        self.log.close()


def _listen(path: str) -> _socket.socket:
    """Listen on a socket that only this user can open; a stale one is replaced.

    It can be nothing but stale: the lock of the instance file was free.
    """
    _unlink(path)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(CONNECTIONS)
    listener.setblocking(False)
    return listener


def _unlink(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - pathlib costs the guard 4 ms of start-up
    except FileNotFoundError:
        return
