"""Runs a gateway for as long as the adapter lives: when standard input closes, however that came, it is ended.

A program of its own: ``keeper.py LOG COMMAND ...``. What the gateway prints goes to LOG, the last of it.
"""

import os
import selectors
import signal
import subprocess
import sys
from typing import IO, Final

_LOG_BYTES: Final = 256 * 1024
_GRACE_S: Final = 8.0


def main(log: str, command: list[str]) -> int:
    """Run the command to its end, or to that of standard input, and return its exit status."""
    with (
        open(log, "w+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as gateway,
        selectors.DefaultSelector() as selector,
    ):
        assert gateway.stdout is not None
        signal.signal(signal.SIGTERM, lambda *_: gateway.terminate())
        selector.register(gateway.stdout, selectors.EVENT_READ, file)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while _pump(selector):
            pass
        return _ended(gateway)


def _pump(selector: selectors.BaseSelector) -> bool:
    for key, _ in selector.select():
        data = os.read(key.fd, 65536)
        if not data:
            return False
        if key.data is not None:
            _keep(key.data, data)
    return True


def _keep(file: IO[bytes], data: bytes) -> None:
    if file.tell() > _LOG_BYTES:
        file.seek(0)
        file.truncate()
    file.write(data)
    file.flush()


def _ended(gateway: "subprocess.Popen[bytes]") -> int:
    gateway.terminate()
    try:
        return gateway.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(gateway.pid, signal.SIGKILL)  # it leads a session of its own
        return gateway.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
