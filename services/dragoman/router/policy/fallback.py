"""What a fallback needs besides the decision: the next request, the event that ends an attempt, and candidates."""

import json
import math
from typing import Final

from dragoman.protocol.duties import LIMIT_SETTINGS, settings_of
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.failures import is_retryable
from dragoman.router.policy.sessions import CONFIG_KEY, cwd_of
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2

FAILED: Final = frozenset({pb.OUTCOME_FAILED, pb.OUTCOME_TIMED_OUT})
"""Outcomes that an attempt may follow: a cancelled run is to end, and what a lost one did is unknown."""
_OF_LOGIN_OR_MODEL: Final = frozenset(
    {
        pb.FAILURE_KIND_AUTH_REQUIRED,
        pb.FAILURE_KIND_QUOTA_EXCEEDED,
        pb.FAILURE_KIND_RATE_LIMITED,
        pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
        pb.FAILURE_KIND_NETWORK,
        pb.FAILURE_KIND_MODEL_NOT_FOUND,
    }
)
_CANDIDATES_ON: Final = _OF_LOGIN_OR_MODEL | {
    pb.FAILURE_KIND_NOT_INSTALLED,
    pb.FAILURE_KIND_VERSION_UNSUPPORTED,
    # The agent crashed, or produced no usable output.
    pb.FAILURE_KIND_SPAWN_FAILED,
    pb.FAILURE_KIND_PROCESS_CRASHED,
    pb.FAILURE_KIND_NO_RESULT,
    pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
    # It took too long.
    pb.FAILURE_KIND_START_TIMEOUT,
    pb.FAILURE_KIND_IDLE_TIMEOUT,
    pb.FAILURE_KIND_WALL_TIMEOUT,
}
"""Failures of an agent, its login or its model, which another agent may avoid."""
_KIND_BY_REASON: Final = {
    Reason.ADAPTER_UNAVAILABLE: pb.FAILURE_KIND_SPAWN_FAILED,
    Reason.TOO_MANY_RUNS: pb.FAILURE_KIND_RATE_LIMITED,
    Reason.SESSION_BUSY: pb.FAILURE_KIND_RATE_LIMITED,
}
"""The failure in ``on`` for an adapter that is unavailable, is at its limit, or has a live run of the same task.

An open circuit breaker has the failure that opened it.
"""
_GOOD_AUTH: Final[dict[int, int]] = {
    adapter_pb2.AUTH_STATE_OK: 0,
    adapter_pb2.AUTH_STATE_NOT_NEEDED: 1,
    adapter_pb2.AUTH_STATE_UNKNOWN: 2,
}
"""Usable states of a login, in order of preference."""
_NAMED_BY_REQUEST: Final = adapter_pb2.DETECTION_CONFIDENCE_NOT_APPLICABLE
"""Of an adapter that runs whatever program or service a request names."""
_AGENT_SETTINGS: Final = ("command", "model", "extraArgs", "args")
"""Settings that belong to one agent's program."""
_LONGEST_NAMES: Final = 500
"""Characters of unknown settings that an error names."""
_SHORTEST_S: Final = 1.0
"""The least time that an attempt gets: less is of no use."""
_MODEL_FEATURES: Final = frozenset({pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_MODEL_CHOICE})
"""Features of an adapter that works on a task without an agent's program, by calling a model itself."""


def failure_kind_of(error: DragomanError) -> "pb.FailureKind.ValueType | None":
    """Return the failure that a rejection by an adapter counts as; ``None`` if the call itself may be wrong."""
    if error.reason is Reason.BREAKER_OPEN:
        name = error.metadata.get("failure_kind", "")
        return pb.FailureKind.Value(name) if name in pb.FailureKind.keys() else None  # noqa: SIM118 - no mapping
    return _KIND_BY_REASON.get(error.reason) if error.reason is not None else None


def rejected_result(error: DragomanError) -> pb.Result | None:
    """Return the result of a queued run that every adapter rejected; ``None`` as for ``failure_kind_of``.

    Callers know a queued run by its id, so it must end with a result.
    """
    kind = failure_kind_of(error)
    if kind is None or error.reason is None:
        return None
    failure = pb.Failure(
        kind=kind,
        code="no_place" if error.reason is Reason.TOO_MANY_RUNS else error.reason.value.lower(),
        message=error.message,
        retryable=is_retryable(kind) or error.reason in _KIND_BY_REASON,
        login_url=error.metadata.get("login_url", ""),
        work_begun=False,
    )
    return pb.Result(outcome=pb.OUTCOME_FAILED, subtype="not_started", failure=failure, tree_confirmed_dead=True)


def fallback_problem(fallback: adapter_pb2.Fallback) -> tuple[str, str] | None:
    """Return the invalid field of a fallback and why it is invalid; ``None`` if it is valid."""
    if "" in fallback.adapters:
        return "fallback.adapters", "must not be empty"
    if pb.FAILURE_KIND_ADAPTER_LOST in fallback.on:
        return "fallback.on", "must not contain ADAPTER_LOST: what the lost attempt did is unknown"
    if pb.FAILURE_KIND_UNSPECIFIED in fallback.on:
        return "fallback.on", "must not contain FAILURE_KIND_UNSPECIFIED"
    strange = sorted(set(fallback.configs) - set(fallback.adapters))
    return (f"fallback.configs.{strange[0]}", "is not one of fallback.adapters") if strange else None


def fallback_request(
    request: adapter_pb2.ExecuteRequest, name: str, adapter: str, cwd: str, fallback: adapter_pb2.Fallback
) -> adapter_pb2.ExecuteRequest:
    """Return the request for another adapter: the same task in the same workspace, in a fresh session.

    Args:
        request: the request to the first adapter.
        name: the adapter's name in ``fallback``.
        adapter: its type.
        cwd: the working directory of the previous attempt; empty for that of the request.
        fallback: the caller's fallback.
    """
    following = adapter_pb2.ExecuteRequest()
    following.CopyFrom(request)
    following.adapter = adapter
    for other in ("session", "model", "relay"):
        following.ClearField(other)
    if _selects_session(request):
        why = f"the run fell back from {request.adapter!r}, whose sessions no other agent can resume"
        following.session.fresh, following.session.reason = True, why
    following.config.CopyFrom(_settings_for(request, name, fallback))
    cwd = cwd or cwd_of(request) or ""
    if cwd and not following.workspace.cwd:
        following.workspace.cwd = cwd
    return following


def with_remaining_time(request: adapter_pb2.ExecuteRequest, passed_s: float) -> adapter_pb2.ExecuteRequest:
    """Return the request for a later attempt, with the remaining time of the whole run.

    Args:
        request: the request with the whole time, in ``limits.wall`` or in the setting for it, if any.
        passed_s: the seconds since the first attempt began.
    """
    following = adapter_pb2.ExecuteRequest()
    following.CopyFrom(request)
    if request.limits.HasField("wall"):
        wall_s = request.limits.wall.ToNanoseconds() / 1e9
        if wall_s > 0:
            following.limits.wall.FromNanoseconds(int(_remaining_s(wall_s, passed_s) * 1e9))
        return following
    settings, wall = settings_of(following), LIMIT_SETTINGS["wall"]
    wall_s = settings.fields[wall].number_value if wall in settings.fields else 0.0
    if wall_s > 0 and math.isfinite(wall_s):
        settings[wall] = math.ceil(_remaining_s(wall_s, passed_s))
    return following


def _remaining_s(wall_s: float, passed_s: float) -> float:
    return max(wall_s - passed_s, min(wall_s, _SHORTEST_S))


def _selects_session(request: adapter_pb2.ExecuteRequest) -> bool:
    """Return whether a request selects a session that may exist: one that it names, else that of its task."""
    selector = request.session.WhichOneof("selector")
    if selector == "fresh":
        return bool(request.session.reason)
    return selector is not None or bool(request.task_key)


def _settings_for(
    request: adapter_pb2.ExecuteRequest, name: str, fallback: adapter_pb2.Fallback
) -> struct_pb2.Struct:
    """Return the settings for a fallback adapter: its own, else the request's without those of one agent's program.

    Args:
        request: the request to the first adapter, or of the caller.
        name: the adapter's name in ``fallback``.
        fallback: the caller's fallback.
    """
    settings = struct_pb2.Struct()
    if name in fallback.configs:
        settings.CopyFrom(fallback.configs[name])
    else:
        settings.CopyFrom(settings_of(request))
        for key in _AGENT_SETTINGS:
            settings.fields.pop(key, None)
    settings.fields.pop(CONFIG_KEY, None)
    return settings


def settings_problem(request: adapter_pb2.ExecuteRequest, name: str, schema_json: str) -> str:
    """Return why a fallback adapter would reject the settings it would get; empty if its schema does not say so.

    Without this the caller would learn it when the fallback is needed.

    Args:
        request: as the caller sent it.
        name: the adapter's name in ``fallback``.
        schema_json: the schema of its ``config``: a JSON object, or empty.
    """
    unknown = unknown_settings(_settings_for(request, name, request.fallback), schema_json)
    names = ", ".join(unknown)[:_LONGEST_NAMES]
    if not names or name in request.fallback.configs:
        return names and f"adapter {name!r} does not know these settings: {names}"
    return (
        f"adapter {name!r} does not know these settings of the request: {names}; set this field to the settings"
        " it gets instead, {} for none"
    )


def unknown_settings(settings: struct_pb2.Struct, schema_json: str) -> list[str]:
    """Return the settings that a schema does not have, if it allows no others; but for the router's own.

    Args:
        settings: the settings.
        schema_json: the schema of an adapter's ``config``: a JSON object, or empty.
    """
    schema = json.loads(schema_json or "{}")
    known = schema.get("properties", {})
    is_open = schema.get("additionalProperties") is not False or "patternProperties" in schema
    return [] if is_open or not isinstance(known, dict) else sorted(set(settings.fields) - {*known, CONFIG_KEY})


def attempt_ended(result: pb.Result, next_adapter: str, reason: str) -> pb.AttemptEnded:
    """Return the event that replaces a failed attempt's result."""
    return pb.AttemptEnded(
        failure=result.failure,
        reason=reason,
        next_adapter=next_adapter,
        exit_code=result.exit_code if result.HasField("exit_code") else None,
        session=result.session if result.HasField("session") else None,
        usage=result.usage if result.HasField("usage") else None,
        billing_type=result.billing_type,
        biller=result.biller,
    )


def needs_candidates(result: pb.Result) -> bool:
    """Return whether another adapter might succeed after this result."""
    return result.outcome in FAILED and others_may_succeed(result.failure.kind)


def others_may_succeed(kind: pb.FailureKind.ValueType) -> bool:
    """Return whether another adapter might succeed after this failure."""
    return kind in _CANDIDATES_ON


def candidates(detections: "list[adapter_pb2.Detection]", failed: str, kind: pb.FailureKind.ValueType) -> list[str]:
    """Return the adapters that could run the task, best first: detected agents, then adapters that call a model.

    Args:
        detections: what is known of all adapters.
        failed: the type of the one that failed.
        kind: how it failed. Nothing can do the work of a program that the request itself names, and that is wrong.
    """
    generic = {one.adapter for one in detections if one.confidence == _NAMED_BY_REQUEST and not one.executable}
    if failed in generic and kind not in _OF_LOGIN_OR_MODEL:
        return []
    agents: list[tuple[int, str]] = []
    models: list[tuple[int, str]] = []
    for one in detections:
        login = _GOOD_AUTH.get(one.auth)
        features = {item.feature for item in one.capabilities.items}
        if one.adapter == failed or not one.available or login is None or pb.FEATURE_PROMPT not in features:
            continue
        if one.executable:
            agents.append((login, one.adapter))
        elif features >= _MODEL_FEATURES and one.adapter not in generic:
            # Otherwise it runs what a request's settings name, and those of another adapter name nothing.
            models.append((login, one.adapter))
    return [name for _login, name in [*sorted(agents), *sorted(models)]]
