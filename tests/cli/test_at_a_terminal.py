"""What differs at a terminal: colours, and the agent's questions."""

import asyncio
import contextlib
import os
import pty
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from dragoman.testkit.fakes.adapter import Action, EventFactory, FakeAdapter, Until
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import Message

from tests.cli.program import DESCRIBED, routed, start

REQUEST = pb.InputRequest(
    id="q1",
    kind=pb.INPUT_KIND_PERMISSION,
    title="May I delete it?",
    options=[
        pb.InputOption(id="yes", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow"),
        pb.InputOption(id="no", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Deny"),
    ],
)


@dataclass
class Terminal:
    """A person at a terminal in front of the program."""

    process: asyncio.subprocess.Process
    descriptor: int
    seen: bytes = b""

    @property
    def screen(self) -> str:
        """What was shown so far; what is read at once may end within a character, or a line's end."""
        return self.seen.decode(errors="ignore").replace("\r\n", "\n")

    async def see(self, text: str) -> None:
        """Look until ``text`` is on the screen."""
        while text not in self.screen:
            await self._more()

    async def _more(self) -> None:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.descriptor, ready.set)
        try:
            await ready.wait()
            self.seen += os.read(self.descriptor, 65536)
        finally:
            loop.remove_reader(self.descriptor)

    def type(self, text: str) -> None:
        """Type."""
        os.write(self.descriptor, text.encode())

    async def end(self) -> int:
        """Look until the program has ended, and return its exit code."""
        with contextlib.suppress(OSError):  # a terminal whose program is gone answers EIO
            while True:
                await self._more()
        return await self.process.wait()


@contextlib.asynccontextmanager
async def at_a_terminal(
    *arguments: str, env: Mapping[str, str], stdout: int | None = None
) -> AsyncIterator[Terminal]:
    """Start the program there, with another standard output if one is given."""
    person, program = pty.openpty()
    try:
        output = program if stdout is None else stdout
        process = await start(*arguments, env=env, stdin=program, stdout=output, stderr=program)
    finally:
        os.close(program)
    try:
        yield Terminal(process, person)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(person)


def fake_of(*script: Action) -> FakeAdapter:
    return FakeAdapter(script, answers={"Describe": DESCRIBED})


async def test_a_question_is_asked_and_answered() -> None:
    emit = EventFactory()
    answered = pb.InputResolved(id="q1", resolution=pb.INPUT_RESOLUTION_ANSWERED)
    asked = emit.started(), emit.event(input_request=REQUEST)
    fake = fake_of(*asked, Until("respond"), emit.event(input_resolved=answered), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see("May I delete it? [1-2] > ")
        assert "  1) Allow\x1b[0m\n" in terminal.screen
        terminal.type("2 too dangerous\n")
        assert await terminal.end() == 0
    assert fake.requests("Execute")[0].permissions.interactive
    [sent] = fake.requests("Respond")
    assert sent.request_id == "q1"
    assert sent.answer == pb.InputAnswer(option_ids=["no"], message="too dangerous")
    assert sent.responder == "dragoman command line"


async def test_a_question_that_another_client_answers_gives_way_to_the_next() -> None:
    emit = EventFactory()
    answered = pb.InputResolved(id="q1", resolution=pb.INPUT_RESOLUTION_ANSWERED, responder="another client")
    asked = emit.started(), emit.event(input_request=REQUEST)
    then = emit.event(input_resolved=answered), emit.event(input_request=pb.InputRequest(id="q2", title="And how?"))
    fake = fake_of(*asked, Until("elsewhere"), *then, Until("respond"), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see("[1-2] > ")
        fake.open("elsewhere")
        await terminal.see("And how? [your answer] > ")
        terminal.type("slowly\n")
        assert await terminal.end() == 0
    assert "answered by another client" in terminal.screen
    assert [(sent.request_id, sent.answer.text) for sent in fake.requests("Respond")] == [("q2", "slowly")]


async def test_attach_asks_only_what_still_waits_for_an_answer() -> None:
    emit = EventFactory()
    answered = pb.InputResolved(id="q1", resolution=pb.INPUT_RESOLUTION_ANSWERED, responder="another client")
    again = pb.InputRequest(id="q2", title="And how?")
    stored = emit.started(), emit.event(input_request=REQUEST), emit.event(input_resolved=answered)
    waits = emit.event(input_request=again), emit.ephemeral(replay_done=pb.ReplayDone())
    fake = fake_of(*stored, *waits, Until("respond"), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("attach", "run-1", env=env) as terminal:
        await terminal.see("And how? [your answer] > ")
        terminal.type("slowly\n")
        assert await terminal.end() == 0
    assert "May I delete it? [" not in terminal.screen
    assert [(sent.request_id, sent.answer.text) for sent in fake.requests("Respond")] == [("q2", "slowly")]


async def test_attach_asks_nothing_of_a_run_that_is_over() -> None:
    emit = EventFactory()
    fake = fake_of(emit.started(), emit.event(input_request=REQUEST), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("attach", "run-1", env=env) as terminal:
        assert await terminal.end() == 0
    assert "May I delete it?" in terminal.screen
    assert "[1-2] >" not in terminal.screen


async def test_ctrl_c_at_the_terminal_cancels_while_a_question_is_open() -> None:
    emit = EventFactory()
    fake = fake_of(
        emit.started(), emit.event(input_request=REQUEST), Until("cancel"), emit.result(pb.OUTCOME_CANCELLED)
    )
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see("[1-2] > ")
        terminal.process.send_signal(2)
        assert await terminal.end() == 130


class _Slow(FakeAdapter):
    """Does not answer one unary call until the test opens the gate ``answer``."""

    slow = ""

    async def handle(self, name: str, request: Any, context: Any) -> Message | None:
        if name == self.slow:
            await self.gate("answer").wait()
        return await super().handle(name, request, context)


@pytest.mark.parametrize(
    ("arguments", "slow", "notice"),
    [
        (["detect"], "Detect", "still detecting agents…\n"),
        (["run", "fake", "hi"], "Describe", "waiting for the adapter 'fake' to start…\n"),
    ],
)
async def test_a_slow_call_is_reported(arguments: list[str], slow: str, notice: str) -> None:
    emit = EventFactory()
    fake = _Slow([emit.started(), emit.succeeded()], answers={"Describe": DESCRIBED, "Detect": api.DetectResponse()})
    fake.slow = slow
    async with routed(fake) as env, at_a_terminal(*arguments, env=env) as terminal:
        await terminal.see(notice)
        fake.open("answer")
        assert await terminal.end() == 0
    assert terminal.screen.count(notice) == 1


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
async def test_colours_at_a_terminal_unless_switched_off(no_color: str, coloured: bool) -> None:
    emit = EventFactory()
    fake = fake_of(emit.started(), emit.text("hello"), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env={**env, "NO_COLOR": no_color}) as terminal:
        assert await terminal.end() == 0
    assert ("\x1b[32mhello\x1b[0m" in terminal.screen) is coloured
    assert bool(re.search("\x1b", terminal.screen)) is coloured
