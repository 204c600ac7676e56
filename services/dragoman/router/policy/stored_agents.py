"""What a stored agent gives a request that names it, and what it forbids the request. Pure.

``filled`` makes the request that is run.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dragoman.protocol.budgets import budget_problems, lowered_budget
from dragoman.protocol.duties import LIMIT_SETTINGS, settings_of
from dragoman.protocol.errors import FieldViolation, invalid_fields
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, struct_pb2
from google.protobuf.message import Message

MOST_BYTES: Final = 1024 * 1024
"""Of one agent: a page of a list holds several."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PASSED: Final = ("model", "system_prompt", "instructions", "config", "fallback", "permissions")
"""Fields that a request gets as they are, if it does not set them."""
_LIMITS: Final = ("start_up", "idle", "wall", "tool_call")
"""Limits of which zero means none."""
_STRICT: Final = {
    pb.PERMISSION_DECISION_DENY: 0,
    pb.PERMISSION_DECISION_ASK: 1,
    pb.PERMISSION_DECISION_UNSPECIFIED: 1,
    pb.PERMISSION_DECISION_ALLOW: 2,
}
"""Decisions, the strictest first."""


def name_problem(name: str) -> str:
    """Return what is wrong with an agent's name; empty if nothing is."""
    return "" if _NAME.fullmatch(name) else "must match [a-z0-9][a-z0-9._-]{0,63}"


def filled(
    request: adapter_pb2.ExecuteRequest, agent: router_pb2.StoredAgent, same_adapter: Callable[[str], bool]
) -> adapter_pb2.ExecuteRequest:
    """Return the request that is run for one that names a stored agent.

    Args:
        request: the caller's; it is left as it is.
        agent: the agent, with references in place of secrets.
        same_adapter: returns whether a name is one of the agent's adapter.

    Raises:
        DragomanError: INVALID_REQUEST, with each field that would loosen what the agent restricts.
    """
    wrong = [*_locked(request, agent, same_adapter), *loosened(request.permissions, agent)]
    wrong += budget_problems(request.limits.budget)
    if wrong:
        raise invalid_fields(wrong)
    following = adapter_pb2.ExecuteRequest()
    following.CopyFrom(request)
    following.ClearField("agent_name")
    following.adapter = agent.adapter
    for name in _PASSED:
        _pass(following, agent, name)
    if request.HasField("permissions") and agent.HasField("permissions"):
        following.permissions.CopyFrom(_narrowed(request.permissions, agent.permissions))
    _narrow_limits(following, request, agent)
    _add_named(following.skills, agent.skills)
    _add_named(following.mcp_servers, agent.mcp_servers)
    for theirs, own in ((agent.env, following.env), (agent.labels, following.labels)):
        own.update({name: value for name, value in theirs.items() if name not in own})
    return following


def _pass(request: adapter_pb2.ExecuteRequest, agent: router_pb2.StoredAgent, name: str) -> None:
    value = getattr(agent, name)
    if not isinstance(value, Message):
        setattr(request, name, getattr(request, name) or value)
    elif agent.HasField(name) and not request.HasField(name):  # type: ignore[arg-type]  # names of fields
        getattr(request, name).CopyFrom(value)


def _add_named(own: "Iterable[Message]", theirs: "Iterable[Message]") -> None:
    """Put an agent's items before those of a request, but for names that the request has too."""
    mine = list(own)
    names = {item.name for item in mine}  # type: ignore[attr-defined]  # skills and MCP servers have one
    first = [item for item in theirs if item.name not in names]  # type: ignore[attr-defined]  # as above
    copies = [type(item).FromString(item.SerializeToString()) for item in (*first, *mine)]
    del own[:]  # type: ignore[attr-defined]  # a list of a message
    own.extend(copies)  # type: ignore[attr-defined]  # as above


# What a request may not set, and what it may only narrow.


def _locked(
    request: adapter_pb2.ExecuteRequest, agent: router_pb2.StoredAgent, same_adapter: Callable[[str], bool]
) -> Iterator[FieldViolation]:
    restricts = agent.HasField("permissions")
    if request.adapter and not same_adapter(request.adapter):
        yield FieldViolation("adapter", f"is {agent.adapter!r} for agent {agent.name!r}; leave it out")
    if restricts or agent.HasField("config"):
        if request.HasField("config"):
            yield FieldViolation("config", f"agent {agent.name!r} decides about it; leave it out")
        if request.agent.HasField("adapter_config"):
            yield FieldViolation("agent.adapter_config", f"agent {agent.name!r} decides about it; leave it out")
    if restricts:
        yield from _replaced(request, agent)
    if (restricts or agent.HasField("fallback")) and request.HasField("fallback"):
        yield FieldViolation("fallback", f"agent {agent.name!r} decides about it; leave it out")


def _replaced(request: adapter_pb2.ExecuteRequest, agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    """Yield what would put something else under a name that an agent's permissions are about."""
    why = f"agent {agent.name!r} decides about it; leave it out"
    servers = {server.name for server in agent.mcp_servers}
    for number, server in enumerate(request.mcp_servers):
        if server.name in servers:
            yield FieldViolation(f"mcp_servers[{number}].name", why)
    for name in sorted(request.env):
        if name in agent.env:
            yield FieldViolation(f"env.{name}", why)


def loosened(asked: pb.Permissions, agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    """Yield each field of permissions that would loosen those of a stored agent."""
    if not agent.HasField("permissions"):
        return
    most = agent.permissions
    for number, rule in enumerate(asked.rules):
        if rule.decision != pb.PERMISSION_DECISION_DENY:
            why = f"must be DENY: the permissions of agent {agent.name!r} can only be narrowed"
            yield FieldViolation(f"permissions.rules[{number}].decision", why)
    if asked.native_mode and asked.native_mode != most.native_mode:
        own = f"is {most.native_mode!r}" if most.native_mode else "is not set"
        yield FieldViolation("permissions.native_mode", f"{own} for agent {agent.name!r}; leave it out")
    if most.native_mode:
        why = f"the mode {most.native_mode!r} of agent {agent.name!r} may overrule it; leave it out"
        if asked.rules:
            yield FieldViolation("permissions.rules", why)
        if asked.default_decision:
            yield FieldViolation("permissions.default_decision", why)
    if asked.auto_approve and not most.auto_approve:
        yield FieldViolation("permissions.auto_approve", f"must be false for agent {agent.name!r}")


def _narrowed(asked: pb.Permissions, most: pb.Permissions) -> pb.Permissions:
    """Return an agent's permissions as far as a request allows them; it does not loosen them."""
    narrowed = pb.Permissions()
    narrowed.CopyFrom(most)
    del narrowed.rules[:]
    narrowed.rules.extend((*asked.rules, *most.rules))
    # A request that only says whether the caller answers has not said that it approves nothing.
    restricts = bool(asked.rules) or bool(asked.default_decision)
    narrowed.auto_approve = most.auto_approve and not restricts
    default = pb.PERMISSION_DECISION_ALLOW if most.auto_approve else most.default_decision
    if asked.default_decision and _STRICT.get(asked.default_decision, 0) < _STRICT.get(default, 0):
        narrowed.default_decision = asked.default_decision
    elif not narrowed.auto_approve:
        narrowed.default_decision = default
    narrowed.interactive = most.interactive and asked.interactive
    if asked.HasField("request_timeout"):
        _lower(narrowed.request_timeout, asked.request_timeout, is_set=most.HasField("request_timeout"))
    return narrowed


def _narrow_limits(
    following: adapter_pb2.ExecuteRequest, request: adapter_pb2.ExecuteRequest, agent: router_pb2.StoredAgent
) -> None:
    """Give a request the lower one of each limit, its own or the agent's."""
    settings = settings_of(request)
    for name in (*_LIMITS, "grace"):
        bounds = [
            bound
            for bound in (_limit(name, request.limits, settings), _limit(name, agent.limits, agent.config))
            if bound is not None
        ]
        # A setting alone stays where it is. A limit of the other one would hide it, even one of zero, which is none.
        has_limit = any(limits.HasField(name) for limits in (request.limits, agent.limits))
        if has_limit or len(bounds) > 1:
            getattr(following.limits, name).FromNanoseconds(min(bounds, default=0))
    if agent.limits.HasField("budget"):
        _lower_budget(following.limits, agent)
    if agent.limits.output_bytes:
        own = following.limits.output_bytes or agent.limits.output_bytes
        following.limits.output_bytes = min(own, agent.limits.output_bytes)


def _lower_budget(limits: pb.Limits, agent: router_pb2.StoredAgent) -> None:
    most = agent.limits.budget
    wrong = lowered_budget(limits.budget, most)
    if wrong is not None:
        raise invalid_fields([wrong])
    limits.budget.ask = most.ask
    if most.HasField("warn_percent"):
        limits.budget.warn_percent = most.warn_percent


def _limit(name: str, limits: pb.Limits, settings: struct_pb2.Struct) -> int | None:
    """Return a limit in nanoseconds; ``None`` if there is none."""
    if limits.HasField(name):  # type: ignore[arg-type]  # names of fields
        value: int = getattr(limits, name).ToNanoseconds()
        return value if value or name == "grace" else None
    setting = LIMIT_SETTINGS.get(name, "")
    seconds = settings.fields[setting].number_value if setting in settings.fields else 0.0
    return int(seconds * 1e9) if seconds > 0 and seconds < 1e9 else None


def _lower(own: duration_pb2.Duration, other: duration_pb2.Duration, *, is_set: bool) -> None:
    if not is_set or other.ToNanoseconds() < own.ToNanoseconds():
        own.CopyFrom(other)
