"""Changes of Claude Code's model or mode while it works: the request that asks for one, and the answers to it."""

import json
from typing import Any

import pytest
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.adapters.claude_code.plan import SKIPS
from dragoman.sdk import Output, Write
from dragoman.sdk.parsing import NotUpdated, Update, Updated
from dragoman.v1 import event_pb2 as pb

from tests.adapters.claude_code.test_inputs import RESULT, running, take

MODEL = Update("update-1", model="haiku")
MODE = Update("update-2", permission_mode="plan")
BYPASS = Update("update-3", permission_mode="bypassPermissions")


def asked(parser: ClaudeParser, update: Update) -> dict[str, Any]:
    (write,) = parser.update(update) or ()
    assert isinstance(write, Write)
    frame: dict[str, Any] = json.loads(write.data)
    return frame


def answered(parser: ClaudeParser, request_id: str, **response: Any) -> list[Output]:
    frame = {"type": "control_response", "response": {"request_id": request_id, **response}}
    return take(parser, json.dumps(frame).encode())


@pytest.mark.parametrize(
    ("update", "request_"),
    [
        (MODEL, {"subtype": "set_model", "model": "haiku"}),
        (MODE, {"subtype": "set_permission_mode", "mode": "plan"}),
    ],
)
def test_a_change_is_a_request_that_is_answered_once(update: Update, request_: dict[str, str]) -> None:
    parser = running()
    frame = asked(parser, update)
    assert frame == {"type": "control_request", "request_id": update.update_id, "request": request_}
    assert answered(parser, "another", subtype="success") == []
    assert answered(parser, update.update_id, subtype="success") == [Updated(update.update_id)]
    assert answered(parser, update.update_id, subtype="success") == []


def test_a_rejected_change_has_the_agents_reason() -> None:
    parser = running()
    asked(parser, MODE)
    outputs = answered(parser, MODE.update_id, subtype="error", error="not available")
    assert outputs == [NotUpdated(MODE.update_id, "not available")]


def test_a_change_after_which_nothing_is_asked_is_announced() -> None:
    parser = running()
    asked(parser, BYPASS)
    notice = pb.Notice(severity=pb.SEVERITY_WARNING, code=SKIPS[0], message=SKIPS[1])
    outputs = answered(parser, BYPASS.update_id, subtype="success")
    assert outputs == [Updated(BYPASS.update_id), pb.AgentEvent(notice=notice)]
    asked(parser, BYPASS)
    outputs = answered(parser, BYPASS.update_id, subtype="error", error="not available")
    assert outputs == [NotUpdated(BYPASS.update_id, "not available")]


def test_a_change_waits_until_the_turn_runs_and_is_none_after_it() -> None:
    assert ClaudeParser().update(MODEL) is None
    parser = running()
    take(parser, RESULT)
    assert parser.update(MODEL) is None
