"""Inputs in Claude Code's present turn: the line that gives one, and what the frames about it come down to."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.adapters.claude_code.system import TESTED_VERSION
from dragoman.sdk import Line, Output, Terminal, Write
from dragoman.sdk.parsing import Steering, Untaken
from dragoman.sdk.run import AttachedFile
from dragoman.v1 import event_pb2 as pb

from tests.adapters.claude_code.replay import recorded

INIT = recorded("text").splitlines()[0]
RESULT = recorded("text").splitlines()[-1]
WORDS = Steering("word", "Use blue.")


def end(parser: ClaudeParser) -> Terminal | None:
    return parser.report.terminal


def take(parser: ClaudeParser, *lines: bytes) -> list[Output]:
    return [output for data in lines for output in parser.line("stdout", Line(data, 0, True))]


def running(run_id: str = "r", version: str = TESTED_VERSION) -> ClaudeParser:
    parser = ClaudeParser(run_id=run_id, version=version)
    take(parser, INIT)
    return parser


def sent(parser: ClaudeParser, steering: Steering = WORDS) -> dict[str, Any]:
    (write,) = parser.steer(steering) or ()
    assert isinstance(write, Write)
    assert write.data.endswith(b"\n")
    frame: dict[str, Any] = json.loads(write.data)
    return frame


def lifecycle(name: str, state: str) -> bytes:
    return json.dumps({"type": "command_lifecycle", "command_uuid": name, "state": state}).encode()


def test_an_input_is_a_user_message_with_a_name() -> None:
    parser = running()
    frame = sent(parser)
    name = frame.pop("uuid")
    assert frame == {"type": "user", "message": {"role": "user", "content": "Use blue."}}
    assert str(uuid.UUID(name)) == name
    assert take(parser, lifecycle(name, "queued")) == []
    assert take(parser, lifecycle(name, "started")) == [WORDS.taken]
    assert take(parser, lifecycle(name, "completed")) == [], "once"
    take(parser, RESULT)
    assert parser.report.terminal is not None


def test_a_slash_is_text() -> None:
    assert sent(running(), Steering("i", "/compact"))["message"]["content"] == " /compact"


def test_files_are_named_and_images_come_along() -> None:
    files = (
        AttachedFile("a.png", "image/png", Path("/run/sent-1/a.png"), 3, b"png"),
        AttachedFile("b.txt", "", Path("/run/sent-1/b.txt"), 5),
    )
    content = sent(running(), Steering("i", "/see", files))["message"]["content"]
    assert content[0]["source"] == {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    files_of_it = "- a.png (image/png, 3 bytes, given as an image too)\n- b.txt (5 bytes)"
    assert content[1]["text"] == f" /see\n\nAttached files, in /run/sent-1:\n{files_of_it}"


def test_runs_of_a_session_name_their_inputs_apart() -> None:
    assert sent(running("r1"))["uuid"] != sent(running("r2"))["uuid"]


def test_an_input_waits_until_the_turn_runs_and_is_none_of_an_old_version() -> None:
    assert ClaudeParser(version=TESTED_VERSION).steer(WORDS) is None
    assert running(version="2.0.1").steer(WORDS) is None
    parser = running()
    take(parser, RESULT)
    assert parser.steer(WORDS) is None, "its turn is over"


def test_an_input_that_comes_after_the_last_call_begins_another_turn() -> None:
    parser = running()
    name = sent(parser)["uuid"]
    take(parser, RESULT)
    assert end(parser) is None, "Claude Code continues"
    assert take(parser, lifecycle(name, "started")) == [WORDS.taken]
    assert end(parser) is None
    list(parser.finish())
    assert end(parser) is None, "the second turn has no end yet"
    take(parser, RESULT)
    assert parser.report.terminal is not None
    assert parser.report.terminal.succeeded


@pytest.mark.parametrize("state", ["cancelled", "discarded", "refused"])
def test_an_input_that_is_rejected_ends_the_wait_for_another_turn(state: str) -> None:
    parser = running()
    name = sent(parser)["uuid"]
    take(parser, RESULT)
    assert take(parser, lifecycle(name, state)) == [Untaken("word")]
    assert parser.report.terminal is not None
    assert parser.report.terminal.succeeded


def test_an_interruption_is_the_end_whatever_waits() -> None:
    parser = running()
    sent(parser)
    aborted = {"type": "result", "subtype": "error_during_execution", "terminal_reason": "aborted_streaming"}
    take(parser, json.dumps(aborted).encode())
    assert parser.report.terminal is not None
    assert parser.report.terminal.interrupted


def test_frames_about_others_change_nothing() -> None:
    parser = running()
    sent(parser)
    outputs = take(parser, lifecycle("another", "started"), b'{"type":"command_lifecycle","command_uuid":7}')
    assert not any(isinstance(output, pb.AgentEvent) and output.HasField("message") for output in outputs)
