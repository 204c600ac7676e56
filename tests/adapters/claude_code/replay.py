"""Recordings of the real Claude Code, put through the parser; and the golden streams they must give.

``python -m tests.adapters.claude_code.replay`` writes the golden files anew: look at the difference.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.sdk import Ask, FailureInfo, Output, Report, Withdraw, Write
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.sdk.feeding import feed

RECORDINGS = Path(__file__).parents[2] / "recordings" / "claude"
GOLDEN = Path(__file__).parent / "golden"
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


def shown(outputs: Iterable[Output], report: Report) -> str:
    """Return all of it as text, a line each."""
    lines = [_output(output) for output in outputs]
    lines.append(f"report {_compact(_report(report))}")
    return "\n".join(lines) + "\n"


def _output(output: Output) -> str:
    if isinstance(output, pb.AgentEvent):
        return f"{output.WhichOneof('body')} {_compact(_body(output))}"
    if isinstance(output, Ask):
        lineage = f" {_compact(_dict(output.lineage))}" if output.lineage is not None else ""
        return f"ask {_compact(_dict(output.request))}{lineage}"
    if isinstance(output, Withdraw):
        return f"withdraw {output.request_id}"
    if isinstance(output, Write):
        return f"write {output.data.decode()}"
    return "close"


def _body(event: pb.AgentEvent) -> dict[str, Any]:
    kind = event.WhichOneof("body") or ""
    body = _dict(getattr(event, kind))
    for key in ("tools", "commands", "skills"):  # as long as they are dull
        if kind == "session" and key in body:
            body[key] = f"{len(body[key])} of them"
    if event.HasField("lineage"):
        body["@lineage"] = _dict(event.lineage)
    return body


def _report(report: Report) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "session": report.session_id,
        "model": report.model,
        "provider": report.provider,
        "summary": report.summary,
        "turns": report.turns,
        "usage": _dict(report.usage) if report.usage is not None else None,
    }
    terminal = report.terminal
    if terminal is None:
        return {**fields, "terminal": None}
    failure = _failure(terminal.failure) if terminal.failure is not None else None
    return {
        **fields,
        "terminal": {
            "succeeded": terminal.succeeded,
            "subtype": terminal.subtype,
            "interrupted": terminal.interrupted,
            "failure": failure,
        },
    }


def _failure(failure: FailureInfo) -> dict[str, Any]:
    return {
        "kind": pb.FailureKind.Name(failure.kind),
        "code": failure.code,
        "message": failure.message,
        "errors": list(failure.errors),
        "retry_not_before": failure.retry_not_before.isoformat() if failure.retry_not_before else None,
        "http_status": failure.http_status,
    }


def _dict(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main() -> None:
    """Write the golden files."""
    GOLDEN.mkdir(exist_ok=True)
    for name in NAMES:
        (GOLDEN / f"{name}.txt").write_text(shown(*replay(name)), encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
