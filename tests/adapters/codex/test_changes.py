"""Another model in Codex's present turn: the request that asks for it, and what its answers come down to."""

import json
from typing import Any

from dragoman.adapters.codex.parse import AppServerParser
from dragoman.sdk import Output, Write
from dragoman.sdk.parsing import NotUpdated, Update, Updated

from tests.adapters.codex.replay import of_kind, parser
from tests.adapters.codex.test_inputs import running, take

MODEL = Update("update-1", model="gpt-6-astra")


def asked(reader: AppServerParser) -> dict[str, Any]:
    (write,) = reader.update(MODEL) or ()
    assert isinstance(write, Write)
    request: dict[str, Any] = json.loads(write.data)
    return request


def answered(reader: AppServerParser, **answer: Any) -> list[Output]:
    return take(reader, id=asked(reader)["id"], **answer)


def test_a_change_is_asked_of_the_turn_that_runs() -> None:
    request = asked(running())
    assert request["method"] == "turn/settings/update"
    assert request["params"] == {"threadId": "t", "turnId": "u", "model": "gpt-6-astra"}


def test_what_is_applied_is_the_sessions_model() -> None:
    outputs = answered(running(), result={"status": "applied"})
    assert outputs[0] == Updated("update-1")
    assert [session.model for session in of_kind(outputs, "session")] == ["gpt-6-astra"]


def test_a_rejected_change_has_codexs_reason() -> None:
    why = "the destination model has only fallback metadata"
    assert answered(running(), error={"code": -32600, "message": why}) == [NotUpdated("update-1", why)]


def test_a_turn_that_is_over_leaves_the_change_to_the_next_one() -> None:
    assert answered(running(), result={"status": "targetUnavailable"}) == []


def test_there_is_none_before_a_turn_nor_after_it() -> None:
    assert parser().update(MODEL) is None
    reader = running()
    take(reader, method="turn/completed", params={"threadId": "t", "turn": {"id": "u", "status": "completed"}})
    assert reader.update(MODEL) is None
