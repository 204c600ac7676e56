"""Inputs in Copilot's present turn: the request that gives one, and what becomes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.copilot.parse import CopilotParser
from dragoman.sdk import Line, Output, Terminal, Write
from dragoman.sdk.parsing import Steering, Untaken
from dragoman.sdk.run import AttachedFile

from tests.adapters.copilot.replay import event, message_in, messages, of_kind, parser

WORDS = Steering("word", "Use blue.")
IDLE = event("session.idle", {})


def end(parser: CopilotParser) -> Terminal | None:
    return parser.report.terminal


def take(tested: CopilotParser, *lines: bytes) -> list[Output]:
    return [output for line in lines for output in tested.line("stdout", Line(line, 0, True))]


def running() -> CopilotParser:
    tested = parser()
    opening = messages("text")[:3]
    assert tested.steer(WORDS) is None, "the prompt is not sent yet"
    take(tested, *opening)
    return tested


def sent(tested: CopilotParser, steering: Steering = WORDS) -> dict[str, Any]:
    (write,) = tested.steer(steering) or ()
    assert isinstance(write, Write)
    return message_in(write.data)


def test_files_are_named_and_images_come_along() -> None:
    files = (AttachedFile("a.png", "image/png", Path("/run/sent-1/a.png"), 3, b"png"),)
    params = sent(running(), Steering("i", "See.", files))["params"]
    named = "See.\n\nAttached files, in /run/sent-1:\n- a.png (image/png, 3 bytes, given as an image too)"
    assert params["prompt"] == named
    assert params["attachments"] == [
        {"type": "blob", "data": "cG5n", "mimeType": "image/png", "displayName": "a.png"}
    ]


def answer(request: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], **fields}).encode()


def noted(name: str, agent: str = "") -> bytes:
    return event("user.message", {"messageId": name, "content": "Use blue.", "delivery": "steering"}, agent)


def test_an_input_is_sent_at_once_and_taken_once_it_is_in_the_conversation() -> None:
    tested = running()
    request = sent(tested)
    assert request["method"] == "session.send"
    expected = {"sessionId": tested.report.session_id, "prompt": "Use blue.", "mode": "immediate"}
    assert request["params"] == expected
    assert take(tested, answer(request, result={"messageId": "m"}), noted("other"), noted("m", "nested")) == []
    assert take(tested, noted("m")) == [WORDS.taken]
    assert take(tested, noted("m")) == [], "once"
    take(tested, IDLE)
    assert tested.report.terminal is not None
    assert tested.steer(WORDS) is None


def test_the_answer_may_come_after_the_message() -> None:
    tested = running()
    request = sent(tested)
    assert take(tested, noted("m")) == []
    assert take(tested, answer(request, result={"messageId": "m"})) == [WORDS.taken]


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_input_that_comes_after_the_last_call_begins_another_turn(is_answered: bool) -> None:
    tested = running()
    request = sent(tested)
    answered = answer(request, result={"messageId": "m"})
    take(tested, *([answered, IDLE] if is_answered else [IDLE, answered]))
    assert end(tested) is None, "Copilot continues"
    assert of_kind(take(tested, noted("m")), "message") == [WORDS.taken.message]
    take(tested, IDLE)
    assert tested.report.terminal is not None
    assert tested.report.terminal.succeeded


def test_an_input_that_is_rejected_ends_the_wait_for_another_turn() -> None:
    tested = running()
    request = sent(tested)
    take(tested, IDLE)
    refused = {"code": -32603, "message": "not now"}
    assert take(tested, answer(request, error=refused)) == [Untaken("word")]
    assert tested.report.terminal is not None
    assert tested.report.terminal.succeeded


def test_an_interruption_is_the_end_whatever_waits() -> None:
    tested = running()
    sent(tested)
    take(tested, event("session.idle", {"aborted": True}))
    assert tested.report.terminal is not None
    assert tested.report.terminal.interrupted
