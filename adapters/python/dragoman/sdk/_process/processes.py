"""Finding and ending the processes of a run without its guard.

The guard finds everything by parentage and proves that nothing is left. This module is for the rare
case that the guard itself was killed, and for tests: it finds what carries the run's marker, what
lives in the session of the run's first process, and what is beneath any of these. A process that
left the session *and* wiped its environment *and* lost its parents is missed here: that scans find
nothing is no proof (see `dragoman.sdk._process.outer_guard`).
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from dragoman.guard import processes
from dragoman.guard.tree import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dragoman.guard.process import Process

KILL_BOUND_S = 3.0
"""Seconds after which `kill_remaining` gives up."""

_ROUND_S = 0.02
_EMPTY_ROUNDS = 2  # a process has no readable environment for a moment while it executes another


def find_by_marker(marker: str) -> list[int]:
    """Return the pids of all processes whose environment holds this run marker, zombies excluded.

    The environment is that of the process's start, whatever it has changed since. Processes of
    other users are not seen unless we are root.
    """
    if not marker:
        return []
    return processes.carriers(f"{MARKER}={marker}".encode("utf-8", "surrogateescape"))


def find_remaining(marker: str, leader: tuple[int, int] | None) -> list[Process]:
    """Return the living processes of a run.

    Args:
        marker: The run's marker; empty when it has none.
        leader: Pid and start mark of the run's first process, which began a session; None if it
            never ran.
    """
    table = processes.snapshot()
    roots = set(find_by_marker(marker)) & table.keys()
    if leader is not None and _still_names_the_session(table, leader):
        roots |= {pid for pid, process in table.items() if process.session == leader[0]}
    beneath = {process.pid for process in processes.descendants(table, roots)}
    return [table[pid] for pid in sorted(roots | beneath) if table[pid].is_alive]


def kill_remaining(marker: str, leader: tuple[int, int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kill the processes of a run; see `find_remaining` and `kill_until_none`."""
    return kill_until_none(lambda: find_remaining(marker, leader))


def kill_until_none(find: Callable[[], Sequence[Process]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kill what is found until nothing is; return the killed and the surviving pids.

    Blocks for up to `KILL_BOUND_S` seconds: call it in a thread.
    """
    killed: dict[int, None] = {}
    give_up_at = time.monotonic() + KILL_BOUND_S
    empty = 0
    while True:
        remaining = find()
        empty = 0 if remaining else empty + 1
        if empty == _EMPTY_ROUNDS:
            return tuple(killed), ()
        if time.monotonic() >= give_up_at:
            return tuple(killed), tuple(process.pid for process in remaining)
        for process in remaining:
            if processes.send(process, signal.SIGKILL):
                killed[process.pid] = None
        time.sleep(_ROUND_S)  # death is not announced to those who are not its parent


def _still_names_the_session(table: dict[int, Process], leader: tuple[int, int]) -> bool:
    """Whether processes of session `leader` are ours: its number is free again once all are gone."""
    pid, started = leader
    return pid not in table or table[pid].started == started
