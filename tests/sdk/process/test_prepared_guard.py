"""Guards that wait for their run: which run gets one, and that none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
import pytest_asyncio
from dragoman.guard.tree import MARKER
from dragoman.sdk._process import prepared_guard
from dragoman.sdk._process.child import Child, ChildSpec
from dragoman.sdk._process.prepared_guard import PreparedGuard, SpareGuards

from tests.hostile import DEADLINE_S
from tests.sdk.process.test_child import Witness, end_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SHOWS = "import os, json; print(json.dumps([os.getcwd(), dict(os.environ), os.getppid()]))"


@pytest_asyncio.fixture
async def guards(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SpareGuards]:
    monkeypatch.setattr(prepared_guard, "_FIRST_S", 0.0)
    monkeypatch.setattr(prepared_guard, "_NEXT_S", 0.0)
    guards = SpareGuards(is_keeping=True)
    yield guards
    guards.close()
    assert waiting() == []


def waiting() -> list[psutil.Process]:
    """Return the guards below this process that wait for a run."""
    children = psutil.Process().children()
    return [one for one in children if any("--wait-fd" in part for part in one.cmdline())]


async def spare() -> psutil.Process:
    async with asyncio.timeout(DEADLINE_S):
        while not waiting():  # noqa: ASYNC110 - the start of a process is no event
            await asyncio.sleep(0.01)
    (found,) = waiting()
    return found


async def run(guards: SpareGuards, marker: str, *argv: str, cwd: str = "/") -> tuple[Child, Witness]:
    witness = Witness()
    env = {"PATH": os.environ["PATH"], MARKER: marker}
    child = await Child.start(ChildSpec(argv or ("true",), cwd, env), witness, guards)
    return child, witness


async def test_an_interpreter_for_old_c_libraries_will_do(
    guards: SpareGuards, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that uv installs on Linux have neither, whatever the kernel offers."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with guards.marker() as marker:
        child, witness = await run(guards, marker, sys.executable, "-c", SHOWS, cwd=str(tmp_path))
        end = await end_of(child)
    assert (end.code, end.tree_confirmed_dead) == (0, True)
    assert json.loads(witness.output["stdout"])[0] == str(tmp_path)


async def test_the_guard_that_waited_removes_the_private_directory(guards: SpareGuards, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret")
    with guards.marker() as first:
        await end_of((await run(guards, first))[0])
    ready = await spare()
    with guards.marker() as marker:
        env = {"PATH": os.environ["PATH"], MARKER: marker}
        spec = ChildSpec(("true",), "/", env, private_dir=str(private))
        child = await Child.start(spec, Witness(), guards)
        assert child.guard_pid == ready.pid
        await end_of(child)
    async with asyncio.timeout(DEADLINE_S):
        while private.exists():  # noqa: ASYNC110 - the guard removes it when all has ended
            await asyncio.sleep(0.01)


async def test_the_guard_of_the_first_run_starts_while_the_run_is_prepared(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        (started,) = waiting()
        child, _ = await run(guards, marker)
        assert child.guard_pid == started.pid
        await end_of(child)


async def test_the_next_run_gets_the_guard_that_waited(guards: SpareGuards, tmp_path: Path) -> None:
    with guards.marker() as first:
        child, _ = await run(guards, first)
        assert (await end_of(child)).tree_confirmed_dead
    ready = await spare()
    with guards.marker() as second:
        assert second != first
        assert ready.environ()[MARKER] == second, "by it, all that is beneath is recognized"
        child, witness = await run(guards, second, sys.executable, "-c", SHOWS, cwd=str(tmp_path))
        assert child.guard_pid == ready.pid
        assert (await end_of(child)).code == 0
    cwd, environment, parent = json.loads(witness.output["stdout"])
    assert (cwd, parent) == (str(tmp_path), ready.pid)
    assert environment.items() >= {MARKER: second, "PATH": os.environ["PATH"]}.items()
    assert environment.keys() <= {MARKER, "PATH", "LC_CTYPE"}, "nothing of the guard's own"


async def test_two_runs_never_get_one_guard(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    ready = await spare()
    with guards.marker() as one, guards.marker() as other:
        assert one != other
        children = [(await run(guards, marker))[0] for marker in (other, one)]
        assert [child.guard_pid == ready.pid for child in children] == [False, True]
        for child in children:
            await end_of(child)


async def test_a_second_attempt_of_a_run_has_a_guard_of_its_own_with_the_same_marker(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    await spare()
    with guards.marker() as marker:
        first, _ = await run(guards, marker)
        await end_of(first)
        second, _ = await run(guards, marker, "sleep", "60")
        assert second.guard_pid != first.guard_pid
        assert psutil.Process(second.guard_pid).environ()[MARKER] == marker
        second.kill()
        assert (await end_of(second)).tree_confirmed_dead


async def test_a_guard_that_was_killed_while_it_waited_is_replaced(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    ready = await spare()
    ready.kill()
    async with asyncio.timeout(DEADLINE_S):
        while ready.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110 - its owner has not looked yet
            await asyncio.sleep(0.01)
    with guards.marker() as marker:
        child, _ = await run(guards, marker)
        end = await end_of(child)
        assert (end.code, end.tree_confirmed_dead) == (0, True)


async def test_the_guard_of_a_run_that_starts_nothing_ends(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    ready = await spare()
    with guards.marker():
        pass
    assert not ready.is_running()


async def test_a_guard_that_no_run_needs_ends(guards: SpareGuards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_guard, "_UNUSED_S", 0.0)
    started: list[PreparedGuard] = []

    def start(marker: str) -> PreparedGuard:
        started.append(PreparedGuard(marker))
        return started[-1]

    monkeypatch.setattr(prepared_guard, "PreparedGuard", start)
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    async with asyncio.timeout(DEADLINE_S):
        while len(started) < 2 or started[1].process.returncode is None:  # noqa: ASYNC110 - a timer ends it
            await asyncio.sleep(0.01)
    assert waiting() == []


OWNER = """
import sys
from dragoman.sdk._process.prepared_guard import PreparedGuard
print(PreparedGuard("owned").process.pid, flush=True)
sys.stdin.read()
"""


def test_a_waiting_guard_ends_with_its_owner() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        guard = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    psutil.wait_procs([guard], timeout=DEADLINE_S)
    assert not guard.is_running()


async def test_a_directory_that_is_not_there_is_named(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        child, witness = await run(guards, marker, cwd="/missing/folder")
        end = await end_of(child)
    assert (end.spawn_error, end.tree_confirmed_dead) == ("ENOENT", True)
    assert witness.events[0] == (
        "spawn_failed",
        "ENOENT",
        "No such file or directory: working directory '/missing/folder'",
    )
