"""Recordings of the real Claude Code, put through the parser."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.sdk import Output, Report
from dragoman.v1 import event_pb2 as pb

from tests.sdk.feeding import feed

RECORDINGS = Path(__file__).parents[2] / "recordings" / "claude"
NAMES = sorted(path.name.removesuffix(".stdout.jsonl") for path in RECORDINGS.glob("*.stdout.jsonl"))

INDEX = json.loads((RECORDINGS / "index.json").read_text(encoding="utf-8"))["runs"]


def recorded(name: str) -> bytes:
    """Return what Claude Code printed."""
    return (RECORDINGS / f"{name}.stdout.jsonl").read_bytes()


def resumes(name: str) -> bool:
    """Whether the recorded run was to go on with a session."""
    return "--resume" in INDEX[name]["args"]


def parse(chunks: Iterable[bytes], *, resumed: bool = False) -> tuple[list[Output], Report]:
    """Return what comes out of a stream that arrives in these pieces."""
    parser = ClaudeParser(resumes=resumed)
    return feed(parser, chunks), parser.report


def replay(name: str) -> tuple[list[Output], Report]:
    """Return what comes out of a recording."""
    return parse([recorded(name)], resumed=resumes(name))


def events(outputs: Iterable[Output]) -> list[pb.AgentEvent]:
    """Return the events among the outputs."""
    return [output for output in outputs if isinstance(output, pb.AgentEvent)]


def of_kind(outputs: Iterable[Output], kind: str) -> list[Any]:
    """Return the bodies of the events of a kind."""
    return [getattr(event, kind) for event in events(outputs) if event.WhichOneof("body") == kind]
