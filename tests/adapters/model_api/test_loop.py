"""The agent loop against a service that answers as a test wants it, on a clock that only the test turns."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.adapters.model_api import adapter
from dragoman.adapters.model_api.failures import ServiceError
from dragoman.adapters.model_api.loop import Loop
from dragoman.adapters.model_api.reply import Reply
from dragoman.adapters.model_api.tools import offered
from dragoman.sdk import FailureError, FailureInfo, Report
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import job_of, request_of
from tests.sdk.running import travel

TOOLS = offered(whole_files_only=False)
BUSY = ServiceError("overloaded", status=529)
CUT = {"stop": ""}


class Reader:
    """Reads answers of one object each: the words, a call, what stopped it."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def take(self, data: Any) -> list[pb.AgentEvent]:
        found = list(self.reply.words("text", "0", data.get("words", "")))
        if "call" in data:
            found += self.reply.call("1", data.get("id", "call-1"), data["call"])
            self.reply.blocks["1"].parts.append(data.get("input", "{}"))
        self.reply.stop = data.get("stop", "tools" if "call" in data else "end")
        self.reply.stop_word = self.reply.stop.upper()
        self.reply.model = data.get("model", "")
        self.reply.counts = data.get("counts", {})
        return found


class Talk:
    """A conversation whose answers are given.

    Attributes:
        asked: the messages, tools and the like of each call of the model.
        events: all that was written.
        seconds: how long the talk took on the clock of the test.
        closed: how many streams were.
    """

    def __init__(self, cwd: Path, answers: Sequence[Any], messages: Sequence[Any] = (), **config: Any) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.events: list[pb.AgentEvent] = []
        self.activities = 0
        self.closed = 0
        self.seconds = 0.0
        self.report = Report()
        self.failure: FailureInfo | None = None
        self.messages = [*messages, {"role": "user", "content": [{"type": "text", "text": "Do it."}]}]
        self._answers = iter(answers)
        self._job = job_of(adapter(), request_of(cwd, config, system_prompt="Be brief."))

    def events_of(self, _request: Any) -> AsyncIterator[Any]:
        async def events() -> AsyncIterator[Any]:
            try:
                answer = next(self._answers)
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                await asyncio.sleep(0)
            finally:
                self.closed += 1

        return events()

    def arguments(self, model: str, system: str, messages: Any, tools: Any, config: Any) -> None:
        self.asked.append((model, system, [dict(message) for message in messages], tools, config))

    def active(self) -> None:
        self.activities += 1

    async def go(self) -> None:
        turn: Any = SimpleNamespace(
            job=self._job,
            report=self.report,
            activity=self.active,
            run=SimpleNamespace(
                emit=self.events.append,
                emit_all=self.events.extend,
                state=lambda phase: self.events.append(pb.AgentEvent(state=pb.State(phase=phase))),
            ),
        )
        provider: Any = SimpleNamespace(reader=Reader, arguments=self.arguments)
        service: Any = SimpleNamespace(events=self.events_of)
        began = asyncio.get_running_loop().time()
        try:
            await Loop(turn, provider, service, "model-1", TOOLS, self.messages).go()
        except FailureError as error:
            self.failure = error.info
        self.seconds = asyncio.get_running_loop().time() - began

    def states(self) -> list[pb.State]:
        return [event.state for event in self.events if event.HasField("state")]


def talk(cwd: Path, *answers: Any, messages: Sequence[Any] = (), **config: Any) -> Talk:
    done = Talk(cwd, answers, messages, **config)
    travel(done.go)
    return done


def test_an_answer_without_a_call_ends_it(tmp_path: Path) -> None:
    done = talk(tmp_path, {"words": "Hello.", "model": "model-1-2026"})
    assert done.failure is None
    report = done.report
    assert (report.turns, report.summary, report.model) == (1, "Hello.", "model-1-2026")
    assert report.terminal is not None
    assert (report.terminal.succeeded, report.terminal.subtype) == (True, "END")
    assert done.messages[1:] == [{"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}]
    ((model, system, messages, tools, _),) = done.asked
    assert (model, tools, messages) == ("model-1", TOOLS, done.messages[:1])
    assert "Be brief." in system
    assert str(tmp_path) in system
    assert [event.text.delta for event in done.events] == ["Hello."]
    assert (done.activities, done.closed) == (1, 1)


def test_an_empty_answer_is_no_message(tmp_path: Path) -> None:
    done = talk(tmp_path, {})
    assert (done.failure, len(done.messages)) == (None, 1)


def test_calls_are_run_and_their_results_go_back(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("found")
    done = talk(tmp_path, {"call": "Read", "input": '{"file_path": "a.txt"}', "model": "m-2"}, {"words": "Done."})
    assert done.failure is None
    assert (done.report.turns, done.report.summary, done.report.model) == (2, "Done.", "m-2")
    assert done.asked[1][2] == done.messages[:-1]
    call, result = done.messages[1:3]
    assert call == {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "call-1", "name": "Read", "input": {"file_path": "a.txt"}}],
    }
    assert result == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "call-1", "content": "found"}],
    }


def test_the_tools_that_are_offered_are_those_that_run(tmp_path: Path) -> None:
    done = talk(tmp_path, {"call": "Bash"}, {})
    (result,) = [event.tool_result for event in done.events if event.HasField("tool_result")]
    assert result.content == "There is no tool 'Bash'; there are Read, Write, Edit."


def test_an_id_is_used_once_in_a_conversation(tmp_path: Path) -> None:
    before: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "old", "name": "Read", "input": {}}]}
    calls: list[Any] = [{"call": "Read", "id": name} for name in ("old", "new", "new")]
    done = talk(tmp_path, *calls, {}, messages=[before])
    results = [event.tool_result.tool_call_id for event in done.events if event.HasField("tool_result")]
    assert results == ["call_m1_1", "new", "call_m3_1"]


def test_an_answer_that_is_not_whole_fails_and_is_no_message(tmp_path: Path) -> None:
    done = talk(tmp_path, {"words": "So far", "stop": "length"})
    assert done.failure is not None
    assert done.failure.kind == pb.FAILURE_KIND_OUTPUT_LIMIT
    assert (done.report.turns, done.report.summary, done.report.terminal) == (1, "So far", None)
    assert len(done.messages) == 1


def test_turns_run_out(tmp_path: Path) -> None:
    done = talk(tmp_path, *[{"call": "Read", "id": f"c{number}"} for number in range(3)], maxTurns=2)
    assert done.failure is not None
    assert (done.failure.kind, done.report.turns) == (pb.FAILURE_KIND_MAX_TURNS, 2)
    assert done.failure.message.startswith("The run has had its 2 turns.")


def test_a_run_has_a_hundred_turns_without_a_setting(tmp_path: Path) -> None:
    done = talk(tmp_path, *[{"call": "Read", "id": f"c{number}"} for number in range(101)])
    assert (done.failure and done.failure.kind, done.report.turns) == (pb.FAILURE_KIND_MAX_TURNS, 100)


def test_a_busy_service_is_asked_again_three_times(tmp_path: Path) -> None:
    done = talk(tmp_path, BUSY, BUSY, BUSY, BUSY, {"words": "never"})
    assert done.failure is not None
    assert (done.failure.kind, len(done.asked), done.closed) == (pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, 4, 4)
    retries = [state for state in done.states() if state.phase == pb.RUN_PHASE_RETRYING]
    assert [state.phase for state in done.states()] == [pb.RUN_PHASE_RETRYING, pb.RUN_PHASE_RUNNING] * 3
    assert [(state.retry_attempt, state.max_retries) for state in retries] == [(1, 3), (2, 3), (3, 3)]
    assert {state.retry_cause for state in retries} == {pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE}
    assert {state.reason for state in retries} == {done.failure.message}
    delays = [state.retry_delay.ToNanoseconds() / 1e9 for state in retries]
    assert done.seconds == pytest.approx(sum(delays), abs=0.001)
    assert 0 < delays[0] <= 0.5 < delays[2]
    assert done.activities == 6


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (1, 2)])
def test_how_often_is_a_setting(retries: int, asked: int, tmp_path: Path) -> None:
    done = talk(tmp_path, BUSY, BUSY, BUSY, maxRetries=retries)
    assert len(done.asked) == asked
    assert done.failure is not None


def test_what_does_not_pass_is_not_asked_again(tmp_path: Path) -> None:
    done = talk(tmp_path, ServiceError("who are you?", status=401), {"words": "never"})
    assert (done.failure and done.failure.kind, len(done.asked)) == (pb.FAILURE_KIND_AUTH_REQUIRED, 1)
    assert done.states() == []


def test_an_answer_that_breaks_off_is_taken_back_and_asked_for_again(tmp_path: Path) -> None:
    done = talk(tmp_path, {"words": "Hel", **CUT}, {"words": "Hello."})
    assert done.failure is None
    assert done.report.summary == "Hello."
    texts = [event.text for event in done.events if event.HasField("text")]
    assert [(text.item_id, text.delta) for text in texts if text.delta] == [("m1:0", "Hel"), ("m1t2:0", "Hello.")]
    assert [text.item_id for text in texts].count("m1:0") == 3, "replaced by nothing, and ended"
    assert done.states()[0].retry_cause == pb.FAILURE_KIND_NETWORK


def test_what_broke_off_counts_too(tmp_path: Path) -> None:
    done = talk(
        tmp_path,
        {"words": "Hel", "counts": {"input": 10, "output": 1}, **CUT},
        {"words": "Hello.", "counts": {"input": 10, "output": 2}, "model": "m"},
    )
    calls = [event.usage for event in done.events if event.HasField("usage")]
    assert [(call.scope, call.tokens.output) for call in calls] == [
        (pb.USAGE_SCOPE_CALL, 1),
        (pb.USAGE_SCOPE_CALL, 2),
    ]
    total = done.report.usage
    assert total is not None
    assert (total.scope, total.tokens.input, total.tokens.output) == (pb.USAGE_SCOPE_RUN, 20, 3)
    assert total.context_used == 12, "of the last call alone"


def test_a_service_that_counts_nothing_has_no_usage(tmp_path: Path) -> None:
    done = talk(tmp_path, {"words": "Hello."})
    assert done.report.usage is None
    assert not any(event.HasField("usage") for event in done.events)
