"""The guard above this process, where a router started it as an adapter: it finds what a run's guard has lost.

A run's guard is the parent of all that the run leaves behind. If it is killed, all that becomes the children of the
next subreaper above, which is the guard of the adapter. Its only other child is the adapter, so they can be
distinguished from all others, whatever they did to their sessions and environments, and their end can be proven.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from typing import Any

from dragoman.guard.control import CONTROL_VARIABLE
from dragoman.guard.tree import KILL_BOUND_S

_ANSWER_S = KILL_BOUND_S + 5.0
"""Seconds that the guard has for an answer; others of its runs may have asked for the same before."""

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def sweep_orphans() -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """Have the guard above kill what was orphaned beneath this process.

    Blocks for some seconds at most: call it in a thread.

    Returns:
        Whether it is proven that no orphan is left, the killed and the surviving pids. Nothing is proven if there is
        no such guard.
    """
    path = os.environ.get(CONTROL_VARIABLE, "")
    if not path or sys.platform != "linux":
        return False, (), ()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(path)
            if (
                _peer(connection) != os.getppid()
            ):  # inherited from an adapter above: its orphans belong to another run
                return False, (), ()
            connection.sendall(b'{"sweep":true}\n')
            with connection.makefile("rb") as lines:
                return _answer(lines)
    except (OSError, ValueError):  # it is dead, or stuck
        return False, (), ()


def _peer(connection: socket.socket) -> int:
    """Return the pid of the process that listens."""
    if sys.platform == "linux":
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(raw)[0]
        return pid
    else:  # noqa: RET505 - a type checker sees one of the two branches
        return 0


def _answer(lines: Any) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """Return the guard's answer on its orphans; its broadcasts come first."""
    for line in lines:
        event = json.loads(line)
        if event.get("event") == "swept":
            return event["confirmed"], tuple(event["killed"]), tuple(event["survivors"])
    return False, (), ()
