"""Children that behave badly, and the hunt for what they leave behind.

Each script beside this file is one kind of misbehaviour; its first lines say which. They announce
on stdout what a test has to wait for.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from dragoman.guard.processes import carriers
from dragoman.guard.tree import MARKER

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
DEADLINE_S = 10.0
"""Seconds after which anything awaited here is a failure; nothing takes that long."""


def hostile(script: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs one of the scripts."""
    return (sys.executable, "-I", "-S", str(HERE / f"{script}.py"), *arguments)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_end(pid: int) -> None:
    """Wait until a process, child of ours or not, has ended."""
    give_up_at = time.monotonic() + DEADLINE_S
    while is_alive(pid):
        assert time.monotonic() < give_up_at, f"{pid} lives on"


class Hunt:
    """A marker for one test's processes, and the check that none of them is left."""

    def __init__(self) -> None:
        self.marker = f"test-{secrets.token_hex(8)}"
        self.env = {"PATH": os.environ["PATH"], MARKER: self.marker}
        self.also: list[int] = []
        """Pids that the marker does not find, because they wiped their environment."""

    def left(self) -> list[int]:
        """Return every process of this test that is still there, guards included."""
        return carriers(f"{MARKER}={self.marker}".encode()) + [pid for pid in self.also if is_alive(pid)]

    def clean_up(self) -> None:
        """Kill what a failed test has left, so that it affects no other test.

        What forks faster than it is killed here ends by itself: every hostile script has its time.
        """
        for pid in self.left():
            try:
                psutil.Process(pid).kill()
            except psutil.NoSuchProcess:
                continue


@contextmanager
def hunting() -> Iterator[Hunt]:
    """Give a test its hunt, and fail it if anything is left at the end."""
    hunt = Hunt()
    try:
        yield hunt
        assert hunt.left() == []
    finally:
        hunt.clean_up()
