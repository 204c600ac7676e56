"""What the kit does with the processes that a target leaves behind."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from dragoman.conformance.launch import end_left

pytestmark = pytest.mark.conformance
MARK = "LAUNCH_TEST_MARK"


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended yet; one that its parent has not yet asked about has."""
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def _left(value: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec("sleep", "60", env={**os.environ, MARK: value})


async def test_what_is_left_has_ended_when_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, kill = asyncio.get_running_loop(), os.kill
    left = [await _left(value) for value in ("a", "a", "b")]
    try:
        with monkeypatch.context() as patched:  # as a busy kernel takes its time
            patched.setattr(os, "kill", lambda *arguments: loop.call_later(0.2, kill, *arguments))
            await end_left("a", MARK)
        assert [is_alive(process.pid) for process in left] == [False, False, True]
    finally:
        for process in left:
            if process.returncode is None:
                process.kill()
            await process.wait()
