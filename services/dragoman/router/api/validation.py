"""Validation of requests by the router, beyond the contract's bounds."""

from collections.abc import Mapping
from typing import TypeAlias

from dragoman.protocol.budgets import budget_problems
from dragoman.protocol.identity import is_run_id
from dragoman.router.policy.concurrency import admission_problem
from dragoman.router.policy.fallback import fallback_problem
from dragoman.router.policy.sessions import compaction_problem
from dragoman.v1 import adapter_pb2

Objection: TypeAlias = tuple[str, str]
"""The path of a field that the router rejects, and why."""


def execute_objection(request: adapter_pb2.ExecuteRequest) -> Objection | None:
    """Return the first objection to a request to run; ``None`` if there is none."""
    if request.run_id and not is_run_id(request.run_id):
        return "run_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}"
    if request.HasField("relay"):
        return "relay", "is set by routers only; leave it out"
    if (path := _zero_byte(request)) is not None:
        return path, "must not contain a zero byte"
    if (problem := fallback_problem(request.fallback) or admission_problem(request)) is not None:
        return problem
    if wrong := budget_problems(request.limits.budget):
        return wrong[0].path, wrong[0].description
    return _session(request)


def _session(request: adapter_pb2.ExecuteRequest) -> Objection | None:
    session, agent = request.session, request.agent
    selector = session.WhichOneof("selector")
    key = session.key
    names = (key.company_id, key.agent_id, key.task_key, agent.company_id, agent.id, request.task_key)
    if selector == "key" and not any(names):
        return "session.key", "is empty; set task_key, agent_id or company_id, here or in the request"
    if selector == "resume_run_id" and not is_run_id(session.resume_run_id):
        return "session.resume_run_id", "is not a valid run ID: [A-Za-z0-9][A-Za-z0-9._-]{0,127}"
    return compaction_problem(request)


def _zero_byte(request: adapter_pb2.ExecuteRequest) -> str | None:
    """Return the path of a string with a zero byte among those that the run log stores, as no database can."""
    key = request.session.key
    stored = {
        "task_key": request.task_key,
        "agent.id": request.agent.id,
        "agent.company_id": request.agent.company_id,
        "session.key.task_key": key.task_key,
        "session.key.agent_id": key.agent_id,
        "session.key.company_id": key.company_id,
        **{f"labels.{name[:40]}": f"{name}{value}" for name, value in request.labels.items()},
    }
    return next((path for path, text in stored.items() if "\0" in text), None)


def list_objection(asked: Mapping[str, str]) -> Objection | None:
    """Return the first objection to the filters of a list, given by field; ``None`` if there is none."""
    path = next((path for path, text in asked.items() if "\0" in text), None)
    return None if path is None else (path, "must not contain a zero byte")
