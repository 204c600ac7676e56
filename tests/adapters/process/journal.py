"""The fake agent's journal and a client's events, in the same form for comparison."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.v1 import event_pb2 as pb

OUTPUT_KINDS = frozenset({"log", "answer", "piece", "thinking", "user", "system", "tool_call", "tool_result"})
"""Kinds of journal entries that a client receives."""

_STREAMS = {pb.OUTPUT_STREAM_STDOUT: "stdout", pb.OUTPUT_STREAM_STDERR: "stderr"}
_ROLES = {pb.MESSAGE_ROLE_USER: "user", pb.MESSAGE_ROLE_SYSTEM: "system"}


class Output(NamedTuple):
    """One output of the agent."""

    kind: str
    text: str


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return a journal's entries in order; a last one that was not finished is left out."""
    *lines, _unfinished = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def facts(journal: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the entries of one kind, e.g. ``stdin`` or ``daemon``."""
    return [entry for entry in journal if entry["is"] == kind]


def journalled(journal: Iterable[dict[str, Any]]) -> dict[str, list[Output]]:
    """Return the agent's outputs by stream; consecutive pieces are joined."""
    outputs: dict[str, list[Output]] = {"stdout": [], "stderr": []}
    for entry in journal:
        if entry["is"] in OUTPUT_KINDS:
            _add(outputs[entry["stream"]], Output(entry["is"], entry["text"]))
    return outputs


def received(events: Iterable[pb.AgentEvent]) -> dict[str, list[Output]]:
    """Return the agent's outputs that a client received, in the same form; the order of streams is undefined."""
    outputs: dict[str, list[Output]] = {"stdout": [], "stderr": []}
    for event in events:
        stream = outputs[_STREAMS.get(event.log.stream, "stdout")]
        if event.HasField("log"):
            stream += [Output("log", line) for line in event.log.text.split("\n")]
        elif (output := _output(event)) is not None:
            _add(stream, output)
    return outputs


def _output(event: pb.AgentEvent) -> Output | None:
    match event.WhichOneof("body"):
        case "text" if event.text.HasField("whole"):
            return Output("answer", event.text.whole)
        case "text":
            return Output("piece", event.text.delta)
        case "thinking":
            return Output("thinking", event.thinking.whole)
        case "message":
            return Output(_ROLES[event.message.role], event.message.text)
        case "tool_call":
            return Output("tool_call", event.tool_call.name)
        case "tool_result":
            return Output("tool_result", event.tool_result.content)
        case _:
            return None


def _add(outputs: list[Output], output: Output) -> None:
    if output.kind == "piece" and outputs and outputs[-1].kind == "piece":
        outputs[-1] = Output("piece", outputs[-1].text + output.text)
    else:
        outputs.append(output)
