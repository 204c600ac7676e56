"""pi's RPC mode: how it is opened, and what becomes of inputs, of another model, and of the end."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.pi import adapter
from dragoman.adapters.pi.rpc import PiRpcParser, has_rpc
from dragoman.sdk import CloseInput, Line, Output, Terminal, Write
from dragoman.sdk.parsing import NotUpdated, Steering, Untaken, Update, Updated
from dragoman.sdk.run import INTERRUPT, AttachedFile
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.adapters.jobs import job_of, request_of

VERSION = adapter().spec.tested_version
WORDS = Steering("word", "Use blue.")
IMAGE = AttachedFile("a.png", "image/png", Path("/run/sent-1/a.png"), 3, b"png")
STARTED = {"type": "agent_start"}
ENDED = {"type": "agent_end", "messages": [], "willRetry": False}
SETTLED = {"type": "agent_settled"}
QUEUED = {"type": "queue_update", "steering": ["Note: use blue."], "followUp": []}
UNQUEUED = {"type": "queue_update", "steering": [], "followUp": []}
STATE = {"sessionId": "s-1", "model": {"id": "one", "provider": "acme"}, "isStreaming": False}


def message(role: str, words: str, kind: str = "message_start", **more: Any) -> dict[str, Any]:
    return {"type": kind, "message": {"role": role, "content": [{"type": "text", "text": words}], **more}}


def answer(command_id: str, *, success: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": "response", "id": command_id, "command": "any", "success": success, **more}


ASSISTANT = (message("assistant", ""), message("assistant", "Done.", "message_end", stopReason="stop"))
ABORTED = (message("assistant", ""), message("assistant", "", "message_end", stopReason="aborted"))


def take(tested: PiRpcParser, *frames: dict[str, Any]) -> list[Output]:
    lines = (Line(json.dumps(frame).encode(), 0, True) for frame in frames)
    found = [output for line in lines for output in tested.line("stdout", line)]
    assert not [output for output in found if isinstance(output, pb.AgentEvent) and output.HasField("log")]
    return found


def written(outputs: object) -> list[dict[str, Any]]:
    assert isinstance(outputs, list)
    assert all(isinstance(output, Write) for output in outputs)
    return [json.loads(line) for output in outputs for line in output.data.splitlines()]


def running() -> PiRpcParser:
    tested = PiRpcParser()
    assert tested.steer(WORDS) is None, "the prompt is not sent yet"
    assert tested.update(Update("u", model="two")) is None
    take(tested, answer("get_state", data=STATE), STARTED, message("user", "Use blue. No, red."))
    assert tested.report.session_id == "s-1"
    return tested


def ended(tested: PiRpcParser) -> Terminal | None:
    return tested.report.terminal


@pytest.mark.parametrize(
    ("version", "expected"), [("0.84.3", True), ("0.87.1", True), ("1.0.0", True), ("0.84.2", False), ("", False)]
)
def test_the_versions_with_this_mode(tmp_path: Path, version: str, expected: bool) -> None:
    job = job_of(adapter(), request_of(tmp_path), executable="/bin/pi", version=version)
    plan = adapter().plan(job)
    assert has_rpc(version) is plan.keep_stdin_open is expected
    assert plan.argv[1:3] == ("--mode", "rpc" if expected else "json")
    assert isinstance(adapter().parser(job), PiRpcParser) is expected


@pytest.mark.parametrize(
    ("extra_args", "expected"), [(["@README.md"], False), (["--mode", "json"], False), (["--verbose"], True)]
)
def test_arguments_that_this_mode_rejects_select_the_other_one(
    tmp_path: Path, extra_args: list[str], expected: bool
) -> None:
    request = request_of(tmp_path, {"extraArgs": extra_args})
    job = job_of(adapter(), request, executable="/bin/pi", version=VERSION)
    plan = adapter().plan(job)
    assert isinstance(adapter().parser(job), PiRpcParser) is plan.keep_stdin_open is expected
    assert plan.argv[1:3] == ("--mode", "rpc" if expected else "json")
    assert plan.argv[-len(extra_args) :] == tuple(extra_args)


@pytest.mark.parametrize(("model", "names"), [("one", True), ("two", True), ("open/three", False)])
def test_another_model_than_that_of_the_request_names_its_provider_itself(
    tmp_path: Path, model: str, names: bool
) -> None:
    request = request_of(tmp_path, {"provider": "acme", "model": "two"}, model="one")
    job = job_of(adapter(), request, executable="/bin/pi", version=VERSION)
    argv = adapter().plan(replace(job, settings=replace(job.settings, model=model))).argv
    assert argv[argv.index("--model") + 1] == model
    assert ("--provider" in argv) is names


def test_it_is_opened_by_two_commands(tmp_path: Path) -> None:
    request = request_of(tmp_path, prompt="/clear")
    plan = adapter().plan(job_of(adapter(), request, executable="/bin/pi", version=VERSION, attachments=(IMAGE,)))
    state, prompt = (json.loads(line) for line in plan.stdin.splitlines())
    assert state["type"] == "get_state"
    assert (prompt["type"], prompt["message"]) == ("prompt", " /clear"), "a slash is text"
    assert prompt["images"] == [{"type": "image", "data": "cG5n", "mimeType": "image/png"}]
    assert "streamingBehavior" not in prompt
    assert plan.cancel == INTERRUPT


def test_an_input_steers_the_turn_and_is_taken_once_it_is_in_the_conversation() -> None:
    tested = running()
    (sent,) = written(tested.steer(WORDS))
    assert (sent["type"], sent["message"], sent["streamingBehavior"]) == ("prompt", "Use blue.", "steer")
    assert take(tested, answer(sent["id"]), message("user", "Use green.")) == []
    assert take(tested, message("user", "Use blue.")) == [WORDS.taken]
    assert take(tested, message("user", "Use blue.")) == [], "once"
    take(tested, *ASSISTANT, ENDED, SETTLED)
    assert ended(tested) == Terminal(succeeded=True)
    assert tested.steer(WORDS) is None


def test_inputs_of_the_same_words_are_taken_in_their_order() -> None:
    tested, again = running(), Steering("again", "Use blue.")
    tested.steer(WORDS)
    tested.steer(again)
    frame = message("user", "Use blue.")
    assert take(tested, frame, frame) == [WORDS.taken, again.taken]


def test_an_input_with_an_image_is_taken_though_pi_adds_what_it_did_to_it() -> None:
    tested, seen = running(), Steering("i", "See.", (IMAGE,))
    (sent,) = written(tested.steer(seen))
    assert sent["images"][0]["data"] == "cG5n"
    assert take(tested, message("user", f"{seen.prompt}\n\n[Image: resized]")) == [seen.taken]


def test_the_words_of_a_message_may_be_in_several_parts_around_its_images() -> None:
    tested, seen = running(), Steering("i", "See this.", (IMAGE,))
    tested.steer(seen)
    parts = [{"type": "image"}, *({"type": "text", "text": part} for part in ("See", seen.prompt[3:]))]
    frame = {"type": "message_start", "message": {"role": "user", "content": parts}}
    assert take(tested, frame) == [seen.taken]


def test_an_input_that_comes_after_the_last_call_begins_another_turn() -> None:
    tested = running()
    tested.steer(WORDS)
    take(tested, *ASSISTANT, ENDED, SETTLED)
    assert ended(tested) is None
    assert tested.report.deferred == Terminal(succeeded=True)
    taken = take(tested, answer("steer word"), STARTED, message("user", "Use blue."))
    assert WORDS.taken in taken
    tested.report.deferred = None  # as the SDK does
    take(tested, *ASSISTANT, ENDED, SETTLED)
    assert ended(tested) == Terminal(succeeded=True)


@pytest.mark.parametrize(
    "frames", [[QUEUED, answer("steer word"), UNQUEUED, message("user", "Note: use blue.")], [answer("steer word")]]
)
def test_an_input_that_an_extension_changes_or_keeps_is_taken_by_the_end_of_the_turn(
    frames: list[dict[str, Any]],
) -> None:
    tested = running()
    tested.steer(WORDS)
    assert take(tested, *frames) == []
    assert WORDS.taken in take(tested, *ASSISTANT, ENDED, SETTLED)
    assert ended(tested) == Terminal(succeeded=True)


def test_an_input_that_pi_has_in_its_queue_at_the_end_is_not_taken() -> None:
    tested = running()
    tested.steer(WORDS)
    assert WORDS.taken not in take(tested, QUEUED, answer("steer word"), *ASSISTANT, ENDED, SETTLED)
    assert tested.report.deferred == Terminal(succeeded=True)


def test_the_message_that_begins_another_turn_is_the_input_though_an_extension_has_changed_it() -> None:
    tested = running()
    tested.steer(WORDS)
    take(tested, *ASSISTANT, ENDED, SETTLED)
    assert WORDS.taken in take(tested, answer("steer word"), STARTED, message("user", "Note: use blue."))


def test_an_input_of_a_turn_that_is_stopped_is_not_taken() -> None:
    tested = running()
    tested.steer(WORDS)
    take(tested, QUEUED, answer("steer word"))
    list(tested.interrupt())
    assert WORDS.taken not in take(tested, UNQUEUED, *ABORTED, ENDED, SETTLED)
    assert ended(tested) is not None


def test_an_input_that_is_rejected_is_for_another_turn() -> None:
    tested = running()
    tested.steer(WORDS)
    refused = answer("steer word", success=False, error="Cannot submit a prompt.")
    assert take(tested, refused) == [Untaken("word")]
    tested.steer(WORDS)
    take(tested, *ASSISTANT, ENDED, SETTLED)
    assert take(tested, refused) == [Untaken("word")]
    assert ended(tested) == Terminal(succeeded=True), "no turn follows after all"


def test_inputs_wait_while_the_conversation_is_compacted() -> None:
    tested = running()
    take(tested, {"type": "compaction_start", "reason": "threshold"})
    assert tested.steer(WORDS) is None
    take(tested, {"type": "compaction_end", "reason": "threshold", "result": {"summary": "So far."}})
    assert tested.steer(WORDS) is not None


def test_a_process_that_ends_while_an_input_waits_has_ended_as_it_reported() -> None:
    tested = running()
    tested.steer(WORDS)
    take(tested, *ASSISTANT, ENDED, SETTLED)
    list(tested.finish())
    assert ended(tested) == Terminal(succeeded=True)


def asked(outputs: object) -> tuple[str, str]:
    (sent,) = written(outputs)
    assert sent["type"] == "set_model"
    return sent["provider"], sent["modelId"]


def test_another_model_is_set_once_pi_says_so() -> None:
    tested = running()
    assert asked(tested.update(Update("u", model="two"))) == ("acme", "two")
    set_two = answer("update u", data={"id": "two", "provider": "acme"})
    assert take(tested, set_two) == [Updated("u", "acme/two")], "as a later turn has to name it"
    assert asked(tested.update(Update("v", model="three"))) == ("acme", "three")
    refused = answer("update v", success=False, error="Model not found: acme/three")
    assert take(tested, refused) == [NotUpdated("v", "Model not found: acme/three")]


def test_a_model_with_a_slash_is_one_of_the_present_provider_or_names_another_one() -> None:
    tested = running()
    assert asked(tested.update(Update("u", model="open/two"))) == ("acme", "open/two")
    refused = answer("update u", success=False, error="Model not found")
    assert asked(take(tested, refused)) == ("open", "two")
    assert take(tested, refused) == [NotUpdated("u", "Model not found")], "once"
    tested.update(Update("v", model="open/two"))
    take(tested, answer("update v", success=False))
    assert take(tested, answer("update v", data={"id": "two", "provider": "open"})) == [Updated("v", "open/two")]
    assert asked(tested.update(Update("w", model="open/two"))) == ("open", "open/two"), "now of that provider"
    found = answer("update w", data={"id": "open/two", "provider": "open"})
    assert take(tested, found) == [Updated("w", "open/open/two")]


def test_a_version_without_this_mode_rejects_another_model(tmp_path: Path) -> None:
    job = job_of(adapter(), request_of(tmp_path), executable="/bin/pi", version="0.73.1")
    parser: Any = adapter().parser(job)
    (refused,) = parser.update(Update("u", model="two"))
    assert isinstance(refused, NotUpdated)
    assert not hasattr(parser, "steer")


def test_it_is_stopped_by_its_own_command_and_drops_what_waits() -> None:
    tested = running()
    tested.steer(WORDS)
    assert [sent["type"] for sent in written(list(tested.interrupt()))] == ["clear_queue", "abort"]
    assert tested.steer(WORDS) is None
    take(tested, *ABORTED, ENDED, SETTLED)
    terminal = ended(tested)
    assert terminal is not None
    assert (terminal.succeeded, terminal.interrupted) == (False, True)


def test_before_the_prompt_is_taken_it_is_stopped_by_the_end_of_its_input() -> None:
    assert list(PiRpcParser().interrupt()) == [CloseInput()]


def test_once_its_turn_is_over_it_is_stopped_by_the_end_of_its_input() -> None:
    tested = running()
    tested.steer(WORDS)
    take(tested, *ASSISTANT, ENDED, SETTLED)
    assert list(tested.interrupt()) == [CloseInput()]
    list(tested.finish())
    assert ended(tested) == Terminal(succeeded=True)


def test_an_error_is_the_end_once_nothing_follows() -> None:
    tested = running()
    failed = message("assistant", "", "message_end", stopReason="error", errorMessage="500 Oh")
    take(tested, message("assistant", ""), failed, ENDED)
    assert ended(tested) is None
    take(tested, SETTLED)
    terminal = ended(tested)
    assert terminal is not None
    assert terminal.failure is not None
    assert (terminal.failure.code, terminal.interrupted) == ("pi_error", False)


def test_a_prompt_that_is_rejected_has_failed() -> None:
    tested = PiRpcParser()
    take(tested, answer("prompt", success=False, error="No API key found for acme."))
    terminal = ended(tested)
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.message == "No API key found for acme."


@pytest.mark.parametrize(("is_streaming", "closes"), [(False, True), (True, False)])
def test_a_prompt_that_an_extension_takes_for_itself_ends_it(is_streaming: bool, closes: bool) -> None:
    tested = PiRpcParser()
    (sent,) = written(take(tested, answer("prompt")))
    assert sent["type"] == "get_state"
    found = take(tested, answer(sent["id"], data={**STATE, "isStreaming": is_streaming}))
    assert (found == [CloseInput()]) is closes


def test_without_an_answer_nothing_has_succeeded() -> None:
    tested = running()
    assert take(tested, ENDED, SETTLED) == [CloseInput()]
    assert ended(tested) is None


def test_a_question_of_an_extension_is_cancelled() -> None:
    ask = {"type": "extension_ui_request", "id": "q-1", "method": "confirm", "title": "Sure?"}
    (sent,) = written(take(running(), ask))
    assert sent == {"type": "extension_ui_response", "id": "q-1", "cancelled": True}
    assert take(running(), {**ask, "method": "setStatus"}) == []


def test_a_failing_extension_is_a_notice() -> None:
    (event,) = take(running(), {"type": "extension_error", "extensionPath": "/x.ts", "error": "Oh"})
    assert isinstance(event, pb.AgentEvent)
    assert event.notice.code == "extension_failed"


KEYS = st.sampled_from(
    ["id", "success", "error", "data", "model", "message", "role", "content", "method", "steering"]
)
VALUES = st.none() | st.booleans() | st.text(max_size=3) | st.sampled_from(["prompt", "get_state", "steer word"])
TYPES = st.sampled_from(
    ["response", "message_start", "queue_update", "agent_settled", "extension_ui_request", "extension_error"]
)


@settings(max_examples=100)
@given(st.lists(st.tuples(TYPES, st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES)))))
def test_no_frame_raises(frames: list[tuple[str, dict[str, Any]]]) -> None:
    tested = running()
    tested.steer(WORDS)
    take(tested, *({**fields, "type": kind} for kind, fields in frames))
    list(tested.finish())
