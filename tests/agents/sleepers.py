"""Processes that a tool leaves; most have shed all that says whose they are.

Each is recognised by an argument that no other process has: its seconds, with a fraction of the test's own.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import pytest
from dragoman.client import RunStream
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import PATIENCE_S, Ability, Harness, Recipe, Seen, when

WAYS: Final = (
    # A new session.
    "setsid nohup {0} >/dev/null 2>&1 &",
    # A new session, and nothing in the environment.
    "setsid nohup env -i {0} >/dev/null 2>&1 &",
    # Orphaned by a second fork, too.
    "(setsid sh -c 'env -i {0} &' >/dev/null 2>&1 &)",
    # Without descriptors.
    "(setsid env -i {0} <&- >&- 2>&- &)",
    # In another directory, and deaf to what can be ignored.
    "(trap '' TERM INT HUP; cd / && setsid env -i {0} >/dev/null 2>&1 &)",
    # Under another name.
    "(setsid env -i bash -c '. {0}' >/dev/null 2>&1 &)",
)
"""How they are started, ``{0}`` being a script that becomes the sleeper."""


class Sleepers:
    """The processes of one test."""

    def __init__(self, folder: Path) -> None:
        self._fraction = f".{secrets.randbelow(10**9):09d}"
        self._folder = folder
        self._begun = folder / "begun"

    def command(self, *, stay: bool = False) -> str:
        """Return a command line that leaves them, and ends when all are there; or, if it is to stay, does not end."""
        lines = [way.format(self._script(number)) for number, way in enumerate(WAYS)]
        lines.append(f'until [ "$(wc -l <{self._begun})" -eq {len(WAYS)} ]; do sleep 0.05; done')
        lines.append(f"exec sleep {self._seconds(len(WAYS))}" if stay else "echo left")
        script = self._folder / "leaves.sh"
        script.write_text("\n".join(lines) + "\n")
        self._begun.write_text("")
        return f"sh {script}"

    def _script(self, number: int) -> Path:
        script = self._folder / f"sleeper{number}.sh"
        name = "-a kworker " if "bash" in WAYS[number] else ""
        script.write_text(f"#!/bin/sh\necho >>{self._begun}\nexec {name}/bin/sleep {self._seconds(number)}\n")
        script.chmod(0o700)
        return script

    def _seconds(self, number: int) -> str:
        return f"{300 + number}{self._fraction}"

    def have_been(self) -> bool:
        """Return whether all have been there."""
        return len(self._begun.read_text().splitlines()) == len(WAYS)

    async def are_there(self) -> None:
        """Wait until all are there, and the tool that stays."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.left()) <= len(WAYS):  # noqa: ASYNC110 - they have no event for it
                await asyncio.sleep(0.05)

    def left(self) -> list[int]:
        """Return the pids of those that live, the tool that stays among them."""
        durations = [self._seconds(number).encode() for number in range(len(WAYS) + 1)]
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    if len(words) > 1 and words[1] in durations:
                        found.append(int(folder.name))
        return found

    def clean_up(self) -> None:
        """Kill what a failed test has left."""
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def proves(scenario: str, *uses: Ability) -> pytest.MarkDecorator:
    """Mark a test; see `tests.agents.suite.proves`."""
    return pytest.mark.proves(scenario, features=(), uses=uses)


class SleeperTests:
    """No process of a tool survives its run, whatever it does to hide. A part of what all adapters must stand."""

    recipe: ClassVar[Recipe]

    @pytest.fixture
    def sleepers(self, harness: Harness) -> Iterator[Sleepers]:
        sleepers = Sleepers(harness.root)
        yield sleepers
        sleepers.clean_up()

    @proves("cancel in a tool, no survivor", "shell")
    async def test_cancel_in_a_tool_leaves_no_survivor_that_hides(self, harness: Harness, sleepers: Sleepers) -> None:
        seen = await self.stop_with_sleepers(harness, sleepers, self.recipe.grace_s)
        statuses = {result.status for result in seen.of("tool_result")}
        assert statuses <= {pb.TOOL_STATUS_CANCELLED, pb.TOOL_STATUS_FAILED}

    @proves("kill in a tool, no survivor", "shell", "program")
    async def test_kill_in_a_tool_leaves_no_survivor_that_hides(self, harness: Harness, sleepers: Sleepers) -> None:
        seen = await self.stop_with_sleepers(harness, sleepers, 0)
        assert seen.result.signal == "SIGKILL"

    async def stop_with_sleepers(self, harness: Harness, sleepers: Sleepers, grace_s: float) -> Seen:
        """Stop a run in a tool that has left what can hardly be found."""

        async def act(stream: RunStream) -> None:
            await sleepers.are_there()
            await stream.cancel(grace_s=grace_s)

        react = when(lambda event: event.state.phase == pb.RUN_PHASE_RUNNING, act)
        prompt = f'MOCK_SHELL command="{sleepers.command(stay=True)}"'
        seen = await harness.run(prompt, permissions=pb.Permissions(auto_approve=True), react=react)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED
        assert sleepers.left() == []
        return seen

    @proves("a daemon left by a tool is gone", "shell")
    async def test_a_daemon_that_hides_is_gone_too(self, harness: Harness, sleepers: Sleepers) -> None:
        prompt = f'MOCK_SHELL command="{sleepers.command()}"'
        seen = await harness.run(prompt, permissions=pb.Permissions(auto_approve=True))
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert sleepers.have_been(), "the tool left none"
        assert sleepers.left() == []

    @proves("silent tool, its own limit", "shell")
    async def test_a_silent_tool_is_ended_by_its_own_limit_only(self, harness: Harness) -> None:
        limits = pb.Limits()
        limits.idle.FromSeconds(int(self.recipe.silent_tool_s or 3 * self.recipe.idle_s))  # its start is silent, too
        limits.tool_call.FromSeconds(limits.idle.seconds + 2)
        limits.grace.FromSeconds(8)
        allowed = pb.Permissions(auto_approve=True)
        seen = await harness.run("MOCK_SLEEP", permissions=allowed, limits=limits)
        if not seen.of("tool_call"):  # its start was silent for longer: the machine is busy
            seen = await harness.run("MOCK_SLEEP", permissions=allowed, limits=limits)
        assert seen.result.outcome == pb.OUTCOME_TIMED_OUT
        assert seen.result.failure.kind == pb.FAILURE_KIND_TOOL_TIMEOUT
