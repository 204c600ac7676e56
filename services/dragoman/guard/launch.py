"""Command lines that start a guard; for owners, not for the guard itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.guard.options import (
    DEFAULT_GRACE_S,
    DEFAULT_LINGER_S,
    DEFAULT_ORPHAN_AFTER_S,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# -I: neither the child's PYTHON* variables nor its cwd reach the guard. -S: no site-packages, which
# halves the start-up; where psutil has to answer for a missing /proc they must stay.
_FLAGS = ("-I", "-S") if sys.platform == "linux" else ("-I",)


def run_guard(
    argv: Sequence[str], *, control_fd: int, linger_s: float = DEFAULT_LINGER_S, remove: str | None = None
) -> list[str]:
    """Return the command that runs `argv` under a guard owned through `control_fd`.

    Start it with the environment, working directory, stdin, stdout and stderr meant for `argv`, in
    a session of its own, and with `control_fd` (one end of a stream socket pair) inherited. The
    other end speaks as `dragoman.guard.control` says; closing it kills everything beneath. The
    directory `remove` is removed once all is gone, even if the owner is, too.
    """
    options = [f"--control-fd={control_fd}", f"--linger={linger_s}"]
    return _command([*options, f"--remove={remove}"] if remove else options, argv)


def adapter_guard(
    argv: Sequence[str],
    *,
    instance: Path,
    instance_id: str,
    control: Path,
    log: Path,
    listen: str,
    log_bytes: int = 8 << 20,
    log_keep: int = 3,
    orphan_after_s: float = DEFAULT_ORPHAN_AFTER_S,
    grace_s: float = DEFAULT_GRACE_S,
    linger_s: float = DEFAULT_LINGER_S,
) -> list[str]:
    """Return the command that runs an adapter under a guard of its own.

    Start it in a session of its own, without stdin, with stdout and stderr as pipes. Both reach
    their end once the adapter runs, and hold until then: on stdout the ``spawned`` or
    ``spawn_failed`` event as one line of JSON, on stderr what went wrong. The instance file exists
    by then. The folders of all paths must exist; `control` may have at most 107 bytes.
    """
    options = {
        "instance": instance,
        "instance-id": instance_id,
        "control": control,
        "log": log,
        "listen": listen,
        "log-bytes": log_bytes,
        "log-keep": log_keep,
        "orphan-after": orphan_after_s,
        "grace": grace_s,
        "linger": linger_s,
    }
    return _command([f"--{name}={value}" for name, value in options.items()], argv)


def _command(options: list[str], argv: Sequence[str]) -> list[str]:
    return [
        sys.executable,
        *_FLAGS,
        str(Path(__file__).with_name("__main__.py")),
        *options,
        "--",
        *argv,
    ]
