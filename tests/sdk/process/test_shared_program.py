"""A program that serves several runs, and what each leaves in it: a shell that runs what it reads from a pipe."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from dragoman.guard.processes import variable
from dragoman.guard.tree import MARKER
from dragoman.sdk.run import SharedProgram

from tests.hostile import DEADLINE_S, is_alive

SERVES = 'exec 3<>"$1"; echo ready; while read -r line <&3; do eval "$line"; done'

RUN, OTHER = f"run-{secrets.token_hex(8)}", f"run-{secrets.token_hex(8)}"
"""Markers that tests in other processes do not have: the end of a run kills everything that carries its own."""

LEFT = {
    "plain": "{run} sleep {s} &",
    "child": "{run} sh -c 'env -i /bin/sleep {s}; :' &",
    "alone": "(exec env -i /bin/sleep {s}) &",
    "daemon": "{run} sh -c 'setsid env -i sh -c \"/bin/sleep {s} &\" &' &",
    "deaf": "(trap '' TERM; {run} sh -c 'env -i /bin/sleep {s} & exit') &",
}
"""What a tool may leave, with ``{run}`` as what the program adds to its environment."""


class Shared:
    """One shared program, and the processes that it was to start."""

    def __init__(self, program: SharedProgram, pipe: Path) -> None:
        self.program = program
        self._pipe = pipe
        self._fraction = secrets.randbelow(10**9)
        self._count = 0

    async def start(self, line: str, marker: str = "") -> int:
        """Have it start something; return the pid of the sleeper in it."""
        self._count += 1
        seconds = f"{60 + self._count}.{self._fraction:09d}"
        run = f"{MARKER}={marker}" if marker else ""
        self._pipe.write_text(line.format(s=seconds, run=run) + "\n")
        async with asyncio.timeout(DEADLINE_S):
            while not (found := self._bearing(seconds)):  # noqa: ASYNC110 - it has no event for it
                await asyncio.sleep(0.01)
        return found[0]

    def _bearing(self, seconds: str) -> list[int]:
        words = (["/bin/sleep", seconds], ["sleep", seconds])
        return [process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] in words]


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    pipe, private = tmp_path / "pipe", tmp_path / "private"
    os.mkfifo(pipe)
    private.mkdir()
    program = await SharedProgram.start(
        ("sh", "-c", SERVES, "sh", str(pipe)), cwd="/", env={"PATH": os.environ["PATH"]}, private_dir=str(private)
    )
    async with asyncio.timeout(DEADLINE_S):
        while program.words() != "ready":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    yield Shared(program, pipe)
    await program.stop(0)


async def test_all_that_a_run_left_is_ended_and_the_program_lives(shared: Shared) -> None:
    helper = await shared.start("sleep {s} &")
    assert variable(helper, MARKER)
    left = [await shared.start(line, RUN) for line in LEFT.values()]
    assert await shared.program.end_run(RUN, frozenset(), is_alone=True)
    assert [pid for pid in left if is_alive(pid)] == []
    assert is_alive(helper)
    assert shared.program.is_alive


async def test_nothing_of_another_run_is_ended(shared: Shared) -> None:
    mine = [await shared.start(LEFT[kind], RUN) for kind in ("plain", "child")]
    others = [await shared.start(LEFT[kind], OTHER) for kind in ("plain", "child")]
    assert await shared.program.end_run(RUN, frozenset(), is_alone=False)
    assert [pid for pid in mine if is_alive(pid)] == []
    assert [pid for pid in others if is_alive(pid)] == others
    assert await shared.program.end_run(OTHER, frozenset(), is_alone=True)
    assert [pid for pid in others if is_alive(pid)] == []


@pytest.mark.parametrize("kind", ["alone", "daemon", "deaf"])
async def test_what_may_be_anybodys_is_left_to_the_last(shared: Shared, kind: str) -> None:
    stray = await shared.start(LEFT[kind], RUN)
    assert not await shared.program.end_run(RUN, frozenset(), is_alone=False)
    assert is_alive(stray)
    assert await shared.program.end_run(OTHER, frozenset(), is_alone=True)
    assert not is_alive(stray)


async def test_what_was_there_before_the_run_is_not_the_runs(shared: Shared) -> None:
    """A server of the program's own, which it starts with an environment of its own."""
    server = await shared.start(LEFT["alone"].replace("(exec", "exec").replace(") &", " &"))
    earlier = await shared.program.begin_run()
    left = [await shared.start(line, RUN) for line in LEFT.values()]
    assert await shared.program.end_run(RUN, earlier, is_alone=True)
    assert [pid for pid in left if is_alive(pid)] == []
    assert is_alive(server)
    earlier = await shared.program.begin_run()
    assert await shared.program.end_run(OTHER, earlier, is_alone=False)
    assert is_alive(server)


async def test_a_program_that_has_ended_has_taken_all_with_it(shared: Shared, tmp_path: Path) -> None:
    left = [await shared.start(line, RUN) for line in LEFT.values()]
    assert shared.program.pid is not None
    os.kill(shared.program.pid, signal.SIGKILL)
    assert await shared.program.stop(DEADLINE_S)
    assert not (tmp_path / "private").exists()
    assert not shared.program.is_alive
    assert await shared.program.end_run(RUN, frozenset(), is_alone=True)
    assert [pid for pid in left if is_alive(pid)] == []


async def test_without_its_guard_nothing_is_proven(shared: Shared) -> None:
    left = await shared.start(LEFT["plain"], RUN)
    assert shared.program.pid is not None
    os.kill(psutil.Process(shared.program.pid).ppid(), signal.SIGKILL)
    assert not await shared.program.end_run(RUN, frozenset(), is_alone=True)
    assert not is_alive(left)
    assert not await shared.program.stop(0)
    assert not shared.program.is_alive


async def test_one_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    program = await SharedProgram.start(("/nowhere/program",), cwd="/", env={}, private_dir=str(private))
    assert not program.is_alive
    assert "ENOENT" in program.words()
    assert await program.stop(0)
