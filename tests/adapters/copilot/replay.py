"""Conversations of the real Copilot CLI, put through the parser."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman.adapters.copilot import adapter
from dragoman.adapters.copilot.parse import CopilotParser
from dragoman.adapters.copilot.plan import session_options
from dragoman.sdk import Job, Line, Output, SessionPlan
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import OLD_ID, job_of, request_of

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))
NEW = SessionPlan(pb.SESSION_DISPOSITION_NEW)
RESUMED = SessionPlan(pb.SESSION_DISPOSITION_RESUME, native_id=OLD_ID)
FORKED = SessionPlan(pb.SESSION_DISPOSITION_FORK, native_id=OLD_ID)


def job(cwd: str = "/", *, session: SessionPlan = NEW, config: dict[str, Any] | None = None, **fields: Any) -> Job:
    """Return an attempt."""
    run_request = request_of(cwd, config, **fields)
    return job_of(adapter(), run_request, session, executable="/opt/copilot", version="1.0.102")


def parser(run_job: Job | None = None, environment: dict[str, str] | None = None) -> CopilotParser:
    """Return a parser of an attempt."""
    run_job = run_job or job()
    return CopilotParser(run_job, session_options(run_job, environment or {}))


def messages(name: str) -> list[bytes]:
    """Return what Copilot said, a message each."""
    return (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines()


def feed(into: CopilotParser, lines: Iterable[bytes]) -> list[Output]:
    """Return what comes out of these messages and of their end."""
    outputs = [output for line in lines for output in into.line("stdout", Line(line, 0, True))]
    return [*outputs, *into.finish()]


def event(kind: str, data: dict[str, Any], agent: str = "") -> bytes:
    """Return a message with an event."""
    fields = {"type": kind, "data": data, **({"agentId": agent} if agent else {})}
    return json.dumps({"jsonrpc": "2.0", "method": "session.event", "params": {"event": fields}}).encode()


def message_in(data: bytes) -> dict[str, Any]:
    """Return a message of ours."""
    header, _, body = data.partition(b"\r\n\r\n")
    assert header == b"Content-Length: %d" % len(body)
    message: dict[str, Any] = json.loads(body)
    return message


def of_kind(outputs: Iterable[Output], kind: str) -> list[Any]:
    """Return the bodies of the events of a kind."""
    events = (output for output in outputs if isinstance(output, pb.AgentEvent))
    return [getattr(item, kind) for item in events if item.WhichOneof("body") == kind]


def shown(outputs: Iterable[Output]) -> str:
    """Return the answer as a client shows it."""
    items: dict[str, str] = {}
    for item in outputs:
        if isinstance(item, pb.AgentEvent) and item.HasField("text") and not item.HasField("lineage"):
            before = "" if item.text.WhichOneof("content") == "whole" else items.get(item.text.item_id, "")
            items[item.text.item_id] = before + item.text.whole + item.text.delta
    return "".join(items.values())
