"""Inputs in mid-run: queued ones become turns of the run, steered ones reach the agent in its present turn."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Self

import pytest
import pytest_asyncio
from dragoman.protocol.errors import Reason
from dragoman.sdk import Job, Output, Parser, Terminal, Write
from dragoman.sdk._run import deadlines
from dragoman.sdk.parsing import Steering, Untaken
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.process.arena import SECRETS, Arena, arena_in, duration
from tests.sdk.agents.test_command_line import WordsAdapter, WordsParser, request
from tests.sdk.running import kinds
from tests.sdk.serving import DEADLINE_S, Stream, refusal

QUEUE, STEER = pb.INPUT_MODE_QUEUE, pb.INPUT_MODE_STEER


class SteeredParser(WordsParser):
    """Gives the agent a line, which it confirms by saying that it read it."""

    def __init__(self) -> None:
        super().__init__()
        self.steered: dict[str, Steering] = {}
        self.is_ready = False

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        if not self.is_ready:
            return None
        if steering.text == "raise":
            raise RuntimeError("do-not-leak-4711")
        self.steered[steering.text] = steering
        return [Write(f"{steering.prompt}\n".encode())]

    def _ready(self) -> Iterable[Output]:
        self.is_ready = True
        return super()._ready()

    def _over(self) -> Iterable[Output]:
        self.report.deferred = Terminal(succeeded=True)
        return [pb.AgentEvent(notice=pb.Notice(code="over"))]

    def _heard(self, *, text: str) -> Iterable[Output]:
        steering = self.steered.pop(text, None)
        if steering is None:
            return super()._heard(text=text)
        return [Untaken(steering.input_id)] if text == "no" else [steering.taken]


class SteeredAdapter(WordsAdapter):
    """Takes inputs in its turn."""

    def parser(self, job: Job) -> Parser:
        del job
        return SteeredParser()


@pytest.fixture
def words() -> WordsAdapter:
    return SteeredAdapter()


@pytest_asyncio.fixture
async def arena(tmp_path: Path, words: WordsAdapter) -> AsyncIterator[Arena]:
    async with arena_in(tmp_path, words) as running:
        yield running


def script(*steps: str | dict[str, Any]) -> str:
    """Return an input that the agent reads as its steps."""
    return json.dumps(steps)


class Begun:
    """A run whose agent is at work, until its gate is opened."""

    def __init__(self, arena: Arena, *steps: str | dict[str, Any]) -> None:
        self.gate = arena.workspace.parent / "gate"
        self.request = request(arena, "session", {"kind": "ready"}, *steps)
        self.request.run_id = "r"
        self._stub = arena.sidecar.stub
        self._stream: Stream | None = None
        self._arena = arena
        self.events: list[pb.AgentEvent] = []

    async def __aenter__(self) -> Self:
        self._stream = self._arena.begin(self.request)
        await self.until(lambda event: event.notice.code == "ready")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._stream is not None
        self._stream.cancel()

    async def until(self, is_it: Callable[[pb.AgentEvent], bool]) -> None:
        assert self._stream is not None
        while (event := await self._stream.read()) is not None:
            self.events.append(event)
            if is_it(event):
                return
        raise AssertionError("the run is over")

    async def send(
        self,
        text: str,
        input_id: str = "i",
        mode: pb.InputMode.ValueType = QUEUE,
        files: Iterable[api.Attachment] = (),
    ) -> int:
        sent = api.SendRequest(run_id="r", input_id=input_id, text=text, mode=mode, sender="me", attachments=files)
        return (await self._stub.Send(sent, timeout=DEADLINE_S)).sequence

    async def cancel(self) -> None:
        await self._stub.Cancel(api.CancelRequest(run_id="r", grace=duration(0)), timeout=DEADLINE_S)

    async def rest(self) -> list[pb.AgentEvent]:
        """Open the gate, and return all events of the run."""
        assert self._stream is not None
        self.gate.touch()
        self.events += await self._stream.rest()
        check_stream(self.events, secrets=SECRETS)
        return self.events


def inputs(events: Iterable[pb.AgentEvent]) -> list[tuple[str, str]]:
    """Return what became of inputs, in order."""
    found = []
    for event in events:
        if event.HasField("input_accepted"):
            found.append(("accepted", event.input_accepted.input_id))
        elif event.message.input_id:
            found.append(("taken", event.message.input_id))
        elif event.HasField("input_dropped"):
            found.append((event.input_dropped.reason, event.input_dropped.input_id))
    return found


def texts(events: Iterable[pb.AgentEvent]) -> list[tuple[str, str]]:
    """Return the agent's texts with their IDs."""
    found: dict[str, str] = {}
    for event in events:
        if event.HasField("text"):
            found[event.text.item_id] = found.get(event.text.item_id, "") + event.text.delta
    return list(found.items())


def word(text: str) -> dict[str, str]:
    return {"kind": "text", "text": text}


# Queued.


async def test_queued_inputs_become_turns_of_the_run_one_by_one(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    async with Begun(arena, f"gate {gate}", word("first")) as run:
        for number in (1, 2):
            sequence = await run.send(script("session", word(f"turn {number}")), f"i{number}")
            await run.until(lambda event: event.HasField("input_accepted"))
            assert run.events[-1].sequence == sequence
        events = await run.rest()
    assert [what for what in inputs(events) if what[0] == "taken"] == [("taken", "i1"), ("taken", "i2")]
    assert texts(events) == [("i", "first"), ("i.turn2", "turn 1"), ("i.turn3", "turn 2")]
    assert [event.session.title for event in events if event.HasField("session")] == ["", "id-new", "id-new"]
    assert kinds(events).count("started") == 1
    assert {event.attempt for event in events} == {1}
    result = events[-1].result
    assert result.outcome == pb.OUTCOME_SUCCEEDED
    assert result.tree_confirmed_dead
    assert result.session.handle.native_id == "id-new"


async def test_each_turn_has_the_files_of_the_run_at_the_same_place(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    begun = Begun(arena, "environment", f"gate {gate}")
    begun.request.skills.add(name="sums").files.content["SKILL.md"] = b"---\nname: sums\n---\nAdd."
    async with begun as run:
        await run.send(script("environment"))
        events = await run.rest()
    first, second = (
        json.loads(event.message.text) for event in events if event.HasField("message") and not event.message.input_id
    )
    assert first == second
    assert "skills/skills-of-agent/sums/SKILL.md" in second["files"]


async def test_an_input_is_accepted_once_also_after_the_end(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    text = script("session")
    async with Begun(arena, f"gate {gate}") as run:
        first = await run.send(text)
        assert await run.send(text) == first
        assert await run.send(text, mode=pb.INPUT_MODE_UNSPECIFIED) == first, "it is the same as QUEUE"
        for again in (run.send("other"), run.send(text, mode=STEER)):
            assert (await refusal(again)).reason is Reason.INPUT_ID_REUSED
        events = await run.rest()
        assert await run.send(text) == first
        assert (await refusal(run.send("other"))).reason is Reason.INPUT_ID_REUSED
        assert (await refusal(run.send("other", "j"))).reason is Reason.RUN_FINISHED
    assert [what for what in inputs(events) if what[0] == "accepted"] == [("accepted", "i")]


async def test_inputs_wait_in_bounds(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    async with Begun(arena, f"gate {gate}", {"kind": "done", "ok": False}, "exit 1") as run:
        for number in range(64):
            await run.send("x", f"i{number}")
        error = await refusal(run.send("x", "one-more"))
        assert error.reason is Reason.TOO_MANY_INPUTS
        assert error.retry_after_s
        events = await run.rest()
    assert len([what for what in inputs(events) if what[0] == "turn_failed"]) == 64


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"text": ""}, "text"),
        ({"input_id": ""}, "input_id"),
        ({"input_id": "a b"}, "input_id"),
        ({"mode": 7}, "mode"),
        ({"text": "x" * (1024 * 1024 + 1)}, "text"),
    ],
)
async def test_an_invalid_input_is_refused_with_its_field(arena: Arena, fields: dict[str, Any], path: str) -> None:
    sent = api.SendRequest(**{"run_id": "unknown", "input_id": "i", "text": "x", **fields})
    error = await refusal(arena.sidecar.stub.Send(sent))
    assert error.reason is Reason.INVALID_REQUEST
    assert [violation.path for violation in error.violations] == [path]


async def test_the_largest_input_reaches_the_agent_whole(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    text = script("session", word("end"))
    text += " " * (1024 * 1024 - len(text))
    async with Begun(arena, f"gate {gate}") as run:
        await run.send(text)
        events = await run.rest()
    accepted = next(event.input_accepted for event in events if event.HasField("input_accepted"))
    assert accepted.truncated_bytes
    assert accepted.truncated_bytes + len(accepted.text) == len(text)
    assert texts(events)[-1][1] == "end"


async def test_an_input_for_an_unknown_run_is_refused(arena: Arena) -> None:
    sent = api.SendRequest(run_id="unknown", input_id="i", text="x")
    assert (await refusal(arena.sidecar.stub.Send(sent))).reason is Reason.RUN_NOT_FOUND


async def test_a_cancelled_run_drops_what_waits_and_takes_no_more(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    async with Begun(arena, f"gate {gate}") as run:
        await run.send("x")
        await run.cancel()
        assert (await refusal(run.send("x", "j"))).reason is Reason.RUN_FINISHED
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("cancelled", "i")]
    assert events[-1].result.outcome == pb.OUTCOME_CANCELLED


async def test_without_a_session_no_turn_follows(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    asked = Begun(arena)
    asked.request = request(arena, {"kind": "ready"}, f"gate {gate}")
    asked.request.run_id = "r"
    async with asked as run:
        await run.send("x")
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("no_session", "i")]
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


async def test_a_later_turn_that_fails_ends_the_run_with_its_reason(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    async with Begun(arena, f"gate {gate}") as run:
        await run.send(script("lost"), "i1")
        await run.send(script("session"), "i2")
        events = await run.rest()
    assert inputs(events)[2:] == [("taken", "i1"), ("turn_failed", "i2")]
    assert kinds(events).count("started") == 1, "the run does not begin again from its prompt"
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_SESSION_LOST
    assert events[-1].result.session.change == pb.SESSION_CHANGE_CLEAR


@pytest.mark.parametrize("last", ["fails", "is cancelled"])
async def test_the_session_of_a_finished_turn_outlives_a_later_one(arena: Arena, last: str) -> None:
    gate = arena.workspace.parent / "gate"
    steps = ("exit 3",) if last == "fails" else ({"kind": "ready"}, f"gate {gate}2")
    async with Begun(arena, f"gate {gate}") as run:
        await run.send(script(*steps))
        if last == "is cancelled":
            gate.touch()
            await run.until(lambda event: event.notice.code == "ready")
            await run.cancel()
        result = (await run.rest())[-1].result
    assert result.outcome == (pb.OUTCOME_FAILED if last == "fails" else pb.OUTCOME_CANCELLED)
    assert result.session.change == pb.SESSION_CHANGE_SET
    assert result.session.handle.native_id == "id-new"


async def test_the_wall_limit_is_for_all_turns(arena: Arena) -> None:
    begun = Begun(arena, "pause 3")
    begun.request.limits.wall.CopyFrom(duration(6))
    async with begun as run:
        await run.send(script("session", "pause 4"))  # each turn alone is within the limit
        events = await run.rest()
    assert events[-1].result.outcome == pb.OUTCOME_TIMED_OUT


async def test_a_limit_of_output_is_for_all_turns(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    begun = Begun(arena, f"gate {gate}")
    begun.request.limits.output_bytes = 400
    async with begun as run:
        await run.send(script("session", *[word("x" * 50)] * 8), "i1")
        await run.send(script("session", word("y")), "i2")
        events = await run.rest()
    assert events[-1].result.counters.dropped_bytes
    assert "y" not in "".join(text for _, text in texts(events))
    assert [event.notice.code for event in events if event.HasField("notice")].count("output_cut") == 1


async def test_questions_of_turns_have_ids_of_their_own(arena: Arena) -> None:
    async with Begun(arena, {"kind": "ask"}, "read") as run:
        await run.send(script("session", {"kind": "ask"}, "read"))
        for request_id in ("q", "q.turn2"):
            await run.until(lambda event: event.HasField("input_request"))
            assert run.events[-1].input_request.id == request_id
            answer = pb.InputAnswer(option_ids=["yes"])
            respond = api.RespondRequest(run_id="r", request_id=request_id, answer=answer)
            await arena.sidecar.stub.Respond(respond, timeout=DEADLINE_S)
        events = await run.rest()
    heard = [event.message.text for event in events if event.HasField("message") and not event.message.input_id]
    assert heard == ["allowed ", "allowed "]


# Steered.


async def test_a_steered_input_reaches_the_agent_in_its_turn(arena: Arena) -> None:
    async with Begun(arena, "read", word("then")) as run:
        await run.send("left", mode=STEER)
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]
    assert texts(events) == [("i", "then")]
    assert kinds(events).count("result") == 1


async def test_a_steered_input_waits_until_the_agent_takes_any(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    begun = Begun(arena)
    begun.request = request(
        arena, "session", {"kind": "text", "text": "early"}, f"gate {gate}", {"kind": "ready"}, "read"
    )
    begun.request.run_id = "r"
    stream = arena.begin(begun.request)
    await stream.until("session")
    await begun.send("left", mode=STEER)
    gate.touch()
    events = await stream.rest()
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]


async def test_a_steered_input_that_the_turn_had_no_time_for_becomes_another_turn(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    text = script("session", word("second"))
    async with Begun(arena, f"gate {gate}") as run:
        await run.send(text, mode=STEER)  # written, and never read
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]
    assert texts(events) == [("i.turn2", "second")]


async def test_a_steered_input_that_the_agent_rejects_becomes_another_turn(arena: Arena) -> None:
    async with Begun(arena, "read") as run:
        await run.send("no", mode=STEER)
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]
    assert events[-1].result.outcome == pb.OUTCOME_FAILED, "no are no steps: the turn that began with it failed"


async def test_a_parser_that_fails_to_steer_loses_nothing(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    async with Begun(arena, f"gate {gate}") as run:
        await run.send("raise", mode=STEER)
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]
    assert "steer_failed" in [event.notice.code for event in events]


async def test_an_input_whose_taking_is_never_confirmed_holds_a_run_open_for_a_time(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "UNCONFIRMED_S", 0.1)
    gate = arena.workspace.parent / "gate"
    async with Begun(arena, f"gate {gate}", {"kind": "over"}, "read all") as run:
        await run.send("left", mode=STEER)  # written, and read only once there is no more to come
        await run.send(script("session", word("second")), "later")
        events = await run.rest()
    assert inputs(events)[2:] == [("unconfirmed", "i"), ("taken", "later")]
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


async def test_an_input_that_is_taken_after_the_end_of_a_turn_begins_another_one(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    async with Begun(arena, f"gate {gate}", {"kind": "over"}, "read", word("more")) as run:
        await run.send("left", mode=STEER)
        events = await run.rest()
    assert inputs(events) == [("accepted", "i"), ("taken", "i")]
    assert texts(events) == [("i", "more")]


async def test_an_input_beyond_the_budget_of_turns_is_dropped(arena: Arena) -> None:
    gate = arena.workspace.parent / "gate"
    begun = Begun(arena, f"gate {gate}", word("first"))
    begun.request.limits.budget.turns = 2
    async with begun as run:
        for number in (1, 2):
            await run.send(script("session", word(f"turn {number}")), f"i{number}")
        events = await run.rest()
    ends = [what for what in inputs(events) if what[0] != "accepted"]
    assert ends == [("taken", "i1"), ("budget_exceeded", "i2")]
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert [event.notice.code for event in events if event.HasField("notice")] == ["ready", "budget_exceeded"]
