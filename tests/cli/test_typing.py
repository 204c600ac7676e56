"""Lines that are typed while an agent works, and what of the run's usage is shown meanwhile."""

import asyncio
import os
import pty
from typing import Any

import pytest
from dragoman.cli.display.so_far import SoFar
from dragoman.cli.interaction.terminal import LineReader
from dragoman.cli.interaction.typed import TypedInputs
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.fakes.adapter import Action, EventFactory, FakeAdapter, Until
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import Message

from tests.cli.program import DESCRIBED, dragoman, routed
from tests.cli.test_at_a_terminal import REQUEST, at_a_terminal

HINT = "type a line and press Enter to send it to the agent"
ERASE = "\r\x1b[2K"


class Taking(FakeAdapter):
    """Takes inputs, or refuses them with a status; the gate ``send`` opens with the first."""

    refusal: DragomanError | None = None

    async def _answer(self, name: str, request: Any) -> Message:
        if name != "Send":
            return await super()._answer(name, request)
        self.open("send")
        if self.refusal is not None:
            raise self.refusal
        return api.SendResponse(sequence=2)


def taking(*script: Action) -> Taking:
    return Taking(script, answers={"Describe": DESCRIBED})


def started(emit: EventFactory, *features: pb.Feature.ValueType) -> pb.AgentEvent:
    items = [pb.Capability(feature=feature) for feature in features]
    return emit.started(capabilities=pb.Capabilities(items=items))


def sent(fake: FakeAdapter) -> list[tuple[str, int]]:
    return [(request.text, request.mode) for request in fake.requests("Send")]


@pytest.mark.parametrize(
    ("features", "mode"),
    [
        ([pb.FEATURE_QUEUE, pb.FEATURE_STEER], pb.INPUT_MODE_STEER),
        ([pb.FEATURE_QUEUE], pb.INPUT_MODE_QUEUE),
    ],
)
async def test_a_typed_line_is_sent_to_the_run(features: list[pb.Feature.ValueType], mode: int) -> None:
    emit = EventFactory()
    fake = taking(started(emit, *features), Until("send"), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see(HINT)
        terminal.type("\n  look at the tests \n")
        assert await terminal.end() == 0
    assert sent(fake) == [("look at the tests", mode)]
    [request] = fake.requests("Send")
    assert request.sender == "dragoman command line"
    assert request.input_id


async def test_a_question_gets_what_is_typed_while_it_is_open() -> None:
    emit = EventFactory()
    answered = pb.InputResolved(id="q1", resolution=pb.INPUT_RESOLUTION_ANSWERED)
    asked = started(emit, pb.FEATURE_QUEUE), emit.event(input_request=REQUEST), Until("respond")
    then = emit.event(input_resolved=answered), emit.text("go on\n"), Until("send"), emit.succeeded()
    fake = taking(*asked, *then)
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see("[1-2] > ")
        terminal.type("1\n")
        await terminal.see("go on")
        terminal.type("more\n")
        assert await terminal.end() == 0
    assert [list(request.answer.option_ids) for request in fake.requests("Respond")] == [["yes"]]
    assert sent(fake) == [("more", pb.INPUT_MODE_QUEUE)]


async def test_nothing_is_sent_to_an_agent_that_takes_nothing() -> None:
    emit = EventFactory()
    fake = taking(started(emit), emit.text("working\n"), Until("go"), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see("working")
        terminal.type("hello\n")
        fake.open("go")
        assert await terminal.end() == 0
    assert sent(fake) == []
    assert HINT not in terminal.screen


async def test_standard_input_that_is_no_terminal_is_not_sent() -> None:
    emit = EventFactory()
    fake = taking(started(emit, pb.FEATURE_STEER), emit.text("working\n"), emit.succeeded())
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", stdin=b"hello\n", env=env)
    assert (done.code, sent(fake), HINT in done.err) == (0, [], False)


async def test_the_keys_of_a_pager_are_left_to_it() -> None:
    emit = EventFactory()
    fake = taking(started(emit, pb.FEATURE_STEER), emit.text("working\n"), Until("go"), emit.succeeded())
    pipe = asyncio.subprocess.PIPE
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env, stdout=pipe) as terminal:
        assert terminal.process.stdout is not None
        await terminal.process.stdout.readuntil(b"working\n")
        terminal.type("q\n")
        fake.open("go")
        assert await terminal.end() == 0
    assert (sent(fake), HINT in terminal.screen) == ([], False)


async def test_what_was_typed_before_the_agent_takes_any_is_not_sent() -> None:
    emit = EventFactory()
    fake = taking(Until("go"), started(emit, pb.FEATURE_STEER), Until("send"), emit.succeeded())
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        terminal.type("early\n")
        await terminal.see("early")  # the terminal's echo: there it is
        fake.open("go")
        await terminal.see(HINT)
        terminal.type("late\n")
        assert await terminal.end() == 0
    assert sent(fake) == [("late", pb.INPUT_MODE_STEER)]


def test_in_the_background_the_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system would stop a program in the background that discards what was typed."""
    flushed: list[int] = []
    monkeypatch.setattr("termios.tcflush", lambda descriptor, _queue: flushed.append(descriptor))
    person, program = pty.openpty()
    try:
        monkeypatch.setattr(os, "tcgetpgrp", lambda _descriptor: -1)
        LineReader(program).discard(in_background=False)
        assert flushed == []
        monkeypatch.setattr(os, "tcgetpgrp", lambda _descriptor: os.getpgrp())
        LineReader(program).discard(in_background=False)
        assert flushed == [program]
    finally:
        os.close(person)
        os.close(program)


class OneLine(LineReader):
    """A person that types one line."""

    def __init__(self) -> None:
        super().__init__(-1)
        self._lines = ["hello"]

    async def line(self, *, in_background: bool = True) -> str:
        if not self._lines:
            await asyncio.Event().wait()
        return self._lines.pop()

    def discard(self, *, in_background: bool = True) -> None:
        """Nothing was typed before."""


async def test_what_is_being_sent_at_the_end_is_sent() -> None:
    begun, goes = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def send(line: str) -> None:
        begun.set()
        await goes.wait()
        done.append(line)

    typed = TypedInputs(OneLine(), send)
    typed.enable(takes=True)
    await begun.wait()
    closing = asyncio.create_task(typed.close(wait_s=600))
    await asyncio.sleep(0)  # until it waits
    goes.set()
    await closing
    assert done == ["hello"]


class Silent(Taking):
    """Never answers an input."""

    async def _answer(self, name: str, request: Any) -> Message:
        answer = await super()._answer(name, request)
        if name == "Send":
            await asyncio.Event().wait()
        return answer


async def test_what_may_not_have_been_sent_at_the_end_is_reported() -> None:
    emit = EventFactory()
    script = started(emit, pb.FEATURE_STEER), Until("send"), emit.succeeded()
    fake = Silent(script, answers={"Describe": DESCRIBED})
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see(HINT)
        terminal.type("hello\n")
        assert await terminal.end() == 0
    assert "perhaps not sent to the agent: hello" in terminal.screen


async def test_what_is_not_accepted_is_reported() -> None:
    emit = EventFactory()
    fake = taking(started(emit, pb.FEATURE_STEER), Until("go"), emit.succeeded())
    fake.refusal = DragomanError(Reason.TOO_MANY_INPUTS, "16 inputs wait already.")
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env=env) as terminal:
        await terminal.see(HINT)
        terminal.type("hello\n")
        await terminal.see("16 inputs wait already.")
        fake.open("go")
        assert await terminal.end() == 0


def a_call(amount: str, into: int, out: int) -> pb.Usage:
    usage = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA)
    usage.tokens.CopyFrom(pb.TokenCounts(input=into, output=out))
    if amount:
        usage.cost.CopyFrom(pb.Cost(amount=amount, currency="USD"))
    return usage


async def test_what_a_run_has_used_stands_below_its_output_while_it_lives() -> None:
    emit = EventFactory()
    calls = [a_call("0.5", 1000, 30), a_call("0.25", 200, 4)]
    fake = taking(
        emit.started(),
        *(emit.event(usage=call) for call in calls),
        Until("go"),
        emit.text("hello"),
        Until("end"),
        emit.succeeded(),
    )
    async with routed(fake) as env, at_a_terminal("run", "fake", "hi", env={**env, "NO_COLOR": ""}) as terminal:
        await terminal.see("$0.7500 · 1,200 in / 34 out tokens so far")
        fake.open("go")
        await terminal.see("hello")
        fake.open("end")
        assert await terminal.end() == 0
    behind = terminal.screen.partition("34 out tokens so far")[2]
    assert behind.removeprefix("\x1b[0m").startswith(ERASE)
    assert "so far" not in behind


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["no-colour", "dumb"])
async def test_a_terminal_without_escapes_gets_none(env: dict[str, str]) -> None:
    emit = EventFactory()
    fake = taking(emit.started(), emit.event(usage=a_call("0.5", 1, 1)), emit.succeeded())
    async with routed(fake) as router, at_a_terminal("run", "fake", "hi", env={**router, **env}) as terminal:
        assert await terminal.end() == 0
    assert "so far" not in terminal.screen
    assert "\x1b" not in terminal.screen


def test_what_is_not_reported_is_not_shown() -> None:
    so_far = SoFar()
    assert so_far.text == ""
    so_far.take(pb.AgentEvent(usage=a_call("", 0, 7)))
    assert so_far.text == "0 in / 7 out tokens so far"
    only = SoFar()
    only.take(pb.AgentEvent(usage=pb.Usage(cost=pb.Cost(amount="1", currency="USD"))))
    assert only.text == "$1.00 so far"


async def test_what_is_typed_for_another_program_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """While that one has the terminal; reading it would stop this one."""
    person, program = pty.openpty()
    groups = iter((-1, -1))
    monkeypatch.setattr(os, "tcgetpgrp", lambda _descriptor: next(groups, os.getpgrp()))
    monkeypatch.setattr("dragoman.cli.interaction.terminal._BACKGROUND_S", 0.01)
    try:
        os.write(person, b"hello\n")
        assert await LineReader(program).line(in_background=False) == "hello"
        assert next(groups, None) is None
    finally:
        os.close(person)
        os.close(program)
