"""What a router does not take in a request."""

from collections.abc import Mapping
from typing import NamedTuple

from dragoman.protocol.identity import is_run_id
from dragoman.protocol.limits import MAX_ORPHAN_AFTER_S
from dragoman.router._domain.admission import admission_problem
from dragoman.router._domain.fallback import fallback_problem
from dragoman.router._domain.sessions import compaction_problem
from dragoman.v1 import adapter_pb2


class Objection(NamedTuple):
    """Why a field cannot be taken."""

    path: str
    description: str
    is_unsupported: bool
    """True if the field is right and not honoured here; False if it is wrong."""


def execute_objection(request: adapter_pb2.ExecuteRequest) -> Objection | None:
    """Return the first thing wrong with a request to run; ``None`` if the router can pass it on."""
    if request.run_id and not is_run_id(request.run_id):
        return Objection("run_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}", is_unsupported=False)
    if request.HasField("relay"):
        return Objection("relay", "is set by routers towards adapters, not by callers", is_unsupported=False)
    if (path := _zero_byte(request)) is not None:
        return Objection(path, "must not contain a zero byte", is_unsupported=False)
    if (path := _too_long(request)) is not None:
        return Objection(path, f"must not be longer than {LONGEST_NAME} bytes", is_unsupported=False)
    if request.HasField("orphan_after") and request.orphan_after.ToNanoseconds() < 0:
        return Objection("orphan_after", "must not be negative", is_unsupported=False)
    if (problem := fallback_problem(request.fallback) or admission_problem(request)) is not None:
        return Objection(*problem, is_unsupported=False)
    if request.HasField("batching"):
        return _batching()
    return _session(request)


def _session(request: adapter_pb2.ExecuteRequest) -> Objection | None:
    session, agent = request.session, request.agent
    selector = session.WhichOneof("selector")
    names = (*_names(session.key), agent.company_id, agent.id, request.task_key)
    if selector == "key" and not any(names):
        return Objection("session.key", "names neither a task nor an agent nor a company", is_unsupported=False)
    if selector == "resume_run_id" and not is_run_id(session.resume_run_id):
        return Objection("session.resume_run_id", "is no run's id", is_unsupported=False)
    problem = compaction_problem(request)
    return Objection(*problem, is_unsupported=False) if problem is not None else None


def _names(key: adapter_pb2.SessionKey) -> tuple[str, str, str]:
    return key.company_id, key.agent_id, key.task_key


def attach_objection(request: adapter_pb2.AttachRequest) -> Objection | None:
    """Return the first thing wrong with a request to follow a run; ``None`` if there is nothing."""
    return _batching() if request.HasField("batching") else None


def cancel_objection(request: adapter_pb2.CancelRequest) -> Objection | None:
    """Return the first thing wrong with a request to end a run; ``None`` if there is nothing."""
    if request.HasField("grace") and request.grace.ToNanoseconds() < 0:
        return Objection("grace", "must not be negative", is_unsupported=False)
    return None


def _batching() -> Objection:
    return Objection("batching", "this router does not send batches yet; leave it out", is_unsupported=True)


def orphan_after_s(request: adapter_pb2.ExecuteRequest) -> float:
    """Return how many seconds the run goes on while nobody holds it, capped."""
    if not request.HasField("orphan_after"):
        return 0.0
    return min(request.orphan_after.ToNanoseconds() / 1e9, MAX_ORPHAN_AFTER_S)


def _zero_byte(request: adapter_pb2.ExecuteRequest) -> str | None:
    """Return the path of a text that the router keeps and that no database can."""
    kept = {
        **_found_by(request),
        **{f"labels.{name[:40]}": f"{name}{value}" for name, value in request.labels.items()},
    }
    return next((path for path, text in kept.items() if "\0" in text), None)


LONGEST_NAME = 512
"""Bytes of what runs and sessions are found by: databases keep such names in indexes, which have little room."""


def _too_long(request: adapter_pb2.ExecuteRequest) -> str | None:
    names = _found_by(request)
    return next((path for path, text in names.items() if len(text.encode()) > LONGEST_NAME), None)


def _found_by(request: adapter_pb2.ExecuteRequest) -> dict[str, str]:
    """Return what a run and its session are found by, under the paths of the fields."""
    key = request.session.key
    return {
        "task_key": request.task_key,
        "agent.id": request.agent.id,
        "agent.company_id": request.agent.company_id,
        "session.key.task_key": key.task_key,
        "session.key.agent_id": key.agent_id,
        "session.key.company_id": key.company_id,
    }


def list_objection(asked: Mapping[str, str]) -> Objection | None:
    """Return the first thing wrong with what runs or sessions are asked for, by field; ``None`` if nothing is."""
    path = next((path for path, text in asked.items() if "\0" in text), None)
    return Objection(path, "must not contain a zero byte", is_unsupported=False) if path is not None else None


_SHORTEST_SECRET = 6
"""Characters. Shorter values of variables are no secrets, and stand in other words by chance."""


def safe_labels(request: adapter_pb2.ExecuteRequest) -> dict[str, str]:
    """Return the labels, as they are kept and listed: a value that repeats a variable or the token is masked."""
    given = {request.auth_token, *request.env.values()}
    secrets = [text for text in given if len(text) >= _SHORTEST_SECRET]
    return {
        name: "[redacted]" if any(secret in value for secret in secrets) else value
        for name, value in request.labels.items()
    }
