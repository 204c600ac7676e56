"""What the fake agent journalled, and what a client received, made comparable."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.v1 import event_pb2 as pb

SAID = frozenset({"log", "answer", "piece", "thinking", "user", "system", "tool_call", "tool_result"})
"""Kinds of journal entries that a client receives."""

_STREAMS = {pb.OUTPUT_STREAM_STDOUT: "stdout", pb.OUTPUT_STREAM_STDERR: "stderr"}
_ROLES = {pb.MESSAGE_ROLE_USER: "user", pb.MESSAGE_ROLE_SYSTEM: "system"}


class Said(NamedTuple):
    """One thing the agent said."""

    kind: str
    text: str


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return a journal's entries in order; a last one that was not finished is left out."""
    *lines, _unfinished = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def facts(journal: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the entries of one kind, e.g. ``stdin`` or ``daemon``."""
    return [entry for entry in journal if entry["is"] == kind]


def journalled(journal: Iterable[dict[str, Any]]) -> dict[str, list[Said]]:
    """Return what the agent said, by stream; pieces that follow one another are one."""
    said: dict[str, list[Said]] = {"stdout": [], "stderr": []}
    for entry in journal:
        if entry["is"] in SAID:
            _add(said[entry["stream"]], Said(entry["is"], entry["text"]))
    return said


def received(events: Iterable[pb.AgentEvent]) -> dict[str, list[Said]]:
    """Return what a client received of the agent, in the same form. How the two streams mix is nobody's promise."""
    said: dict[str, list[Said]] = {"stdout": [], "stderr": []}
    for event in events:
        one = _said(event)
        if one is not None:
            _add(said[_STREAMS.get(event.log.stream, "stdout")], one)
    return said


def _said(event: pb.AgentEvent) -> Said | None:
    match event.WhichOneof("body"):
        case "log":
            return Said("log", event.log.text)
        case "text" if event.text.HasField("whole"):
            return Said("answer", event.text.whole)
        case "text":
            return Said("piece", event.text.delta)
        case "thinking":
            return Said("thinking", event.thinking.whole)
        case "message":
            return Said(_ROLES[event.message.role], event.message.text)
        case "tool_call":
            return Said("tool_call", event.tool_call.name)
        case "tool_result":
            return Said("tool_result", event.tool_result.content)
        case _:
            return None


def _add(said: list[Said], one: Said) -> None:
    if one.kind == "piece" and said and said[-1].kind == "piece":
        said[-1] = Said("piece", said[-1].text + one.text)
    else:
        said.append(one)
