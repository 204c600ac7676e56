"""Recordings of the real Codex, put through the parsers."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.parse import AppServerParser
from dragoman.sdk import Job, Line, Output, SessionPlan
from dragoman.sdk._request.sessions import NEW
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import job_of, request_of
from tests.sdk.feeding import feed

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))


def recorded(name: str) -> bytes:
    """Return what Codex printed."""
    return (RECORDINGS / f"{name}.jsonl").read_bytes()


request = partial(request_of, "/")


def job(run_request: api.ExecuteRequest | None = None, session: SessionPlan = NEW, **facts: Any) -> Job:
    """Return a job as the SDK makes it."""
    known = {"executable": "/opt/codex", "version": "0.169.0", **facts}
    return job_of(adapter(), run_request or request(), session, **known)


def parser() -> AppServerParser:
    """Return a parser for a recording."""
    return AppServerParser(job(), adapter().spec.version)


def replay(name: str) -> tuple[list[Output], AppServerParser]:
    """Return what comes out of a recording."""
    reader = parser()
    return feed(reader, [recorded(name)]), reader


def frame(**fields: Any) -> Line:
    """Return a line with an object."""
    return Line(json.dumps(fields).encode(), 0, True)


def of_kind(outputs: Iterable[Output], kind: str) -> list[Any]:
    """Return the bodies of the events of a kind."""
    events = (output for output in outputs if isinstance(output, pb.AgentEvent))
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]
