"""Inputs in Codex's present turn: the request that gives one, and what becomes of it."""

import json
from pathlib import Path
from typing import Any

from dragoman.adapters.codex.parse import AppServerParser
from dragoman.sdk import Output, Terminal, Write
from dragoman.sdk.parsing import Steering, Untaken
from dragoman.sdk.run import AttachedFile

from tests.adapters.codex.replay import frame, of_kind, parser

WORDS = Steering("word", "Use blue.")


def end(parser: AppServerParser) -> Terminal | None:
    return parser.report.terminal


def take(reader: AppServerParser, **fields: Any) -> list[Output]:
    return list(reader.line("stdout", frame(**fields)))


def running() -> AppServerParser:
    reader = parser()
    take(reader, id=1, result={})
    take(reader, id=2, result={"thread": {"id": "t"}, "model": "m"})
    assert reader.steer(WORDS) is None, "there is no turn yet"
    take(reader, id=3, result={"turn": {"id": "u"}})
    return reader


def sent(reader: AppServerParser, steering: Steering = WORDS) -> dict[str, Any]:
    (write,) = reader.steer(steering) or ()
    assert isinstance(write, Write)
    request: dict[str, Any] = json.loads(write.data)
    return request


def item(name: str, thread: str = "t", kind: str = "userMessage") -> dict[str, Any]:
    noted = {"type": kind, "id": "i", "clientId": name, "content": [{"type": "text", "text": "Use blue."}]}
    return {"method": "item/started", "params": {"threadId": thread, "turnId": "u", "item": noted}}


def test_files_are_named_and_images_come_along() -> None:
    files = (AttachedFile("a.png", "image/png", Path("/run/sent-1/a.png"), 3, b"png"),)
    words, image = sent(running(), Steering("i", "See.", files))["params"]["input"]
    named = "See.\n\nAttached files, in /run/sent-1:\n- a.png (image/png, 3 bytes, given as an image too)"
    assert words == {"type": "text", "text": named}
    assert image == {"type": "localImage", "path": "/run/sent-1/a.png"}


def test_an_input_steers_the_turn_and_is_taken_once_it_is_in_the_conversation() -> None:
    reader = running()
    request = sent(reader)
    name = request["params"].pop("clientUserMessageId")
    assert request["method"] == "turn/steer"
    words = [{"type": "text", "text": "Use blue."}]
    assert request["params"] == {"threadId": "t", "expectedTurnId": "u", "input": words}
    assert take(reader, id=request["id"], result={"turnId": "u"}) == []
    assert take(reader, **item("another")) == []
    assert take(reader, **item(name, thread="nested")) == []
    assert take(reader, **item(name, kind="agentMessage")) == []
    assert take(reader, **item(name)) == [WORDS.taken]
    assert of_kind(take(reader, **item(name)), "message") == [], "once"


def test_an_input_for_a_turn_that_is_over_is_rejected() -> None:
    reader = running()
    request = sent(reader)
    refused = {"code": -32600, "message": "no active turn to steer"}
    assert take(reader, id=request["id"], error=refused) == [Untaken("word")]
    assert end(reader) is None
    take(reader, method="turn/completed", params={"threadId": "t", "turn": {"id": "u", "status": "completed"}})
    assert reader.report.terminal is not None
    assert reader.steer(WORDS) is None
