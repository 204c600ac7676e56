"""What follows an attempt that failed: a further try of the same adapter, or the next adapter, or nothing.

A further try of the same adapter is the router's own policy and needs no leave: only where the model's service was
out of order, and only before the agent did any work. Another adapter is tried only where the request names it, for
the failures it names, and not once the failed attempt may have had effects: it called a tool, changed a file, asked
somebody, or told so little that nobody can know.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.failures import is_retryable
from dragoman.router._domain.sessions import CONFIG_KEY, cwd_of
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2

MOST_ADAPTERS: Final = 16
"""How many adapters a request may name."""
FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 20.0
_FACTOR: Final = 3.0

_EFFECTS: Final = frozenset(
    {"tool_call", "tool_output", "tool_result", "file_change", "input_request", "input_resolved", "subagent"}
)
_WORK: Final = _EFFECTS | {"text", "thinking", "plan", "compaction"}
_FAILED: Final = frozenset({pb.OUTCOME_FAILED, pb.OUTCOME_TIMED_OUT})
"""Of a run that was cancelled nothing is wanted, and of one that is lost nobody knows what it did."""
_CANDIDATES_ON: Final = frozenset(
    {
        pb.FAILURE_KIND_AUTH_REQUIRED,
        pb.FAILURE_KIND_QUOTA_EXCEEDED,
        pb.FAILURE_KIND_RATE_LIMITED,
        pb.FAILURE_KIND_NOT_INSTALLED,
        pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
        pb.FAILURE_KIND_NETWORK,
    }
)
"""Failures that another agent may not have."""
_REFUSED_AS: Final = {
    Reason.ADAPTER_UNAVAILABLE: pb.FAILURE_KIND_SPAWN_FAILED,
    Reason.TOO_MANY_RUNS: pb.FAILURE_KIND_RATE_LIMITED,
    Reason.SESSION_BUSY: pb.FAILURE_KIND_RATE_LIMITED,
}
"""What it is called in ``on`` that an adapter is not there, has no place, or that another one is at the run's task.

A breaker says itself what opened it.
"""
_GOOD_AUTH: Final[dict[int, int]] = {
    adapter_pb2.AUTH_STATE_OK: 0,
    adapter_pb2.AUTH_STATE_NOT_NEEDED: 1,
    adapter_pb2.AUTH_STATE_UNKNOWN: 2,
}
"""Logins that may do, and which of them first."""
_OWN: Final = ("command", "model", "extraArgs", "args")
"""Settings that mean one agent's program and no other's."""
_WALL: Final = "timeoutSec"
"""The setting that bounds a run where ``limits.wall`` does not."""
_SHORTEST_S: Final = 1.0
"""What an attempt gets at least of a run's time: less is of no use."""
_WITHHELD: Final = (
    "The run does not fall back: the agent had called a tool, changed a file or asked something, or may have done so"
    " untold. With fallback.after_side_effects it would."
)
_OF_A_MODEL: Final = frozenset({pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_MODEL_CHOICE})
"""What an adapter can do that works on a task without an agent's program: ask a model itself."""


@dataclass(eq=False, slots=True)
class Course:
    """What a request allows after a failure, and what its present attempt was seen to do.

    Args:
        fallback: the request's wish.
        retries: how often an attempt that failed upstream is made again.
    """

    fallback: adapter_pb2.Fallback
    retries: int = 0
    tells_tools: bool = True
    """Whether the present adapter tells when a tool is called."""
    did_work: bool = False
    had_effects: bool = False
    at_work: Callable[[], None] = lambda: None
    """Called whenever the agent is seen to do any work, where ``did_work`` also holds what nobody saw."""
    _tried: int = 0
    _left: "deque[str] | None" = None

    def begin(self, *, tells_tools: bool) -> None:
        """Say that an attempt of another, or the same, adapter begins."""
        self.tells_tools = tells_tools
        self.did_work = self.had_effects = False

    def note(self, event: pb.AgentEvent, kind: str | None) -> None:
        """Take note of a durable event. One that this revision does not know may be anything."""
        self.did_work = self.did_work or kind is None or kind in _WORK
        self.had_effects = self.had_effects or kind is None or kind in _EFFECTS
        if kind in _WORK:
            self.at_work()
        is_running = kind == "state" and event.state.phase == pb.RUN_PHASE_RUNNING
        if not self.tells_tools and (is_running or self.did_work):
            self.miss()

    def miss(self) -> None:
        """Take note that something happened which was not told."""
        self.did_work = self.had_effects = True

    def may_go_on(self, result: pb.Result) -> bool:
        """Tell whether anything could follow this result, so that it is to be held back."""
        return self.may_retry(result) or (self.may_fall_back(result) and bool(self._adapters))

    def may_retry(self, result: pb.Result) -> bool:
        """Tell whether the same adapter may try again."""
        return (
            result.outcome in _FAILED
            and result.failure.kind == pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
            and not result.failure.HasField("retry_not_before")
            and not self.did_work
            and not _counts_effects(result)
            and self._tried < self.retries
        )

    def may_fall_back(self, result: pb.Result) -> bool:
        """Tell whether another adapter may try after this result."""
        is_harmless = self.fallback.after_side_effects or not (self.had_effects or _counts_effects(result))
        return result.outcome in _FAILED and self.falls_back_on(result.failure.kind) and is_harmless

    @property
    def is_alone(self) -> bool:
        """Whether the request leaves it to others who tries after a failure: then they are told who could."""
        return not (self.fallback.adapters and self.fallback.on)

    def withheld(self, result: pb.Result) -> str:
        """Return that another adapter does not try for nothing but what the attempt did; empty if that is not so."""
        is_named = result.outcome in _FAILED and self.falls_back_on(result.failure.kind)
        return _WITHHELD if is_named and self._adapters and not self.may_fall_back(result) else ""

    def falls_back_on(self, kind: pb.FailureKind.ValueType) -> bool:
        """Tell whether the request names this failure."""
        return kind in self.fallback.on

    def retry(self, chance: float) -> float:
        """Count a further try of the same adapter.

        Args:
            chance: a random number from 0 up to 1; what failed together is not tried again together.

        Returns:
            The seconds to wait before it.
        """
        delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * _FACTOR**self._tried)
        self._tried += 1
        return delay * (0.5 + chance / 2)

    def next_adapter(self) -> str | None:
        """Take the next adapter's name; ``None`` if none is left."""
        self._tried = 0
        return self._adapters.popleft() if self._adapters else None

    @property
    def retries_done(self) -> int:
        """How often the present adapter was tried again."""
        return self._tried

    @property
    def _adapters(self) -> "deque[str]":
        if self._left is None:
            self._left = deque(self.fallback.adapters)
        return self._left


def _counts_effects(result: pb.Result) -> bool:
    """Tell whether a result itself counts what was not told by events. Turns are none: one is counted that failed."""
    return bool(result.counters.tool_calls or result.counters.file_changes)


def refused_as(error: DragomanError) -> "pb.FailureKind.ValueType | None":
    """Return the failure as which it counts that an adapter did not take a run; ``None`` if the call may be wrong."""
    if error.reason is Reason.BREAKER_OPEN:
        name = error.metadata.get("failure_kind", "")
        return pb.FailureKind.Value(name) if name in pb.FailureKind.keys() else None  # noqa: SIM118 - no mapping
    return _REFUSED_AS.get(error.reason) if error.reason is not None else None


def refused(error: DragomanError) -> pb.Result | None:
    """Return the result of a run that no adapter took though it was told to be waiting; ``None`` as for `refused_as`.

    Such a run is known by its id, and is not to become unknown again.
    """
    kind = refused_as(error)
    if kind is None or error.reason is None:
        return None
    failure = pb.Failure(
        kind=kind,
        code="no_place" if error.reason is Reason.TOO_MANY_RUNS else error.reason.value.lower(),
        message=error.message,
        retryable=is_retryable(kind) or error.reason in _REFUSED_AS,
        login_url=error.metadata.get("login_url", ""),
    )
    return pb.Result(outcome=pb.OUTCOME_FAILED, subtype="not_started", failure=failure, tree_confirmed_dead=True)


def fallback_problem(fallback: adapter_pb2.Fallback) -> tuple[str, str] | None:
    """Return what is wrong with a request's wish, as a field and why; ``None`` if nothing is."""
    if len(fallback.adapters) > MOST_ADAPTERS:
        return "fallback.adapters", f"at most {MOST_ADAPTERS}"
    if "" in fallback.adapters:
        return "fallback.adapters", "must not be empty"
    if pb.FAILURE_KIND_ADAPTER_LOST in fallback.on:
        return "fallback.on", "nothing follows ADAPTER_LOST: nobody knows what the lost attempt did"
    if pb.FAILURE_KIND_UNSPECIFIED in fallback.on:
        return "fallback.on", "must name failures"
    strange = sorted(set(fallback.configs) - set(fallback.adapters))
    return (f"fallback.configs.{strange[0]}", "is not one of fallback.adapters") if strange else None


def onward(
    request: adapter_pb2.ExecuteRequest, name: str, adapter: str, cwd: str, fallback: adapter_pb2.Fallback
) -> adapter_pb2.ExecuteRequest:
    """Return the request for another adapter: the same task in the same place, in a fresh session.

    Args:
        request: as the first adapter got it.
        name: the adapter's name in ``fallback``.
        adapter: its type.
        cwd: where the attempt before worked; empty if unknown, as when there was none: then where the request says.
        fallback: the caller's wish.
    """
    following = adapter_pb2.ExecuteRequest()
    following.CopyFrom(request)
    following.adapter = adapter
    for other in ("session", "model", "relay"):
        following.ClearField(other)
    if _means_a_session(request):
        why = f"the run fell back from {request.adapter!r}, and no other agent goes on with its sessions"
        following.session.fresh, following.session.reason = True, why
    following.config.CopyFrom(settings_for(request, name, fallback))
    cwd = cwd or cwd_of(request) or ""
    if cwd and not following.workspace.cwd:
        following.workspace.cwd = cwd
    return following


def shortened(request: adapter_pb2.ExecuteRequest, passed_s: float) -> adapter_pb2.ExecuteRequest:
    """Return the request for a later attempt: with what is left of the time that the whole run may take.

    Args:
        request: with that time, in ``limits.wall`` or in the setting for it; none is left as it is.
        passed_s: the seconds since the first attempt began.
    """
    following = adapter_pb2.ExecuteRequest()
    following.CopyFrom(request)
    if request.limits.HasField("wall"):
        wall_s = request.limits.wall.ToNanoseconds() / 1e9
        if wall_s > 0:
            following.limits.wall.FromNanoseconds(int(_left(wall_s, passed_s) * 1e9))
        return following
    settings = following.config if request.HasField("config") else following.agent.adapter_config
    wall_s = settings.fields[_WALL].number_value if _WALL in settings.fields else 0.0
    if wall_s > 0 and math.isfinite(wall_s):
        settings[_WALL] = math.ceil(_left(wall_s, passed_s))
    return following


def _left(wall_s: float, passed_s: float) -> float:
    return max(wall_s - passed_s, min(wall_s, _SHORTEST_S))


def _means_a_session(request: adapter_pb2.ExecuteRequest) -> bool:
    """Tell whether a request means a session that may be there: one it names, else that of its task."""
    selector = request.session.WhichOneof("selector")
    if selector == "fresh":
        return bool(request.session.reason)
    return selector is not None or bool(request.task_key)


def settings_for(request: adapter_pb2.ExecuteRequest, name: str, fallback: adapter_pb2.Fallback) -> struct_pb2.Struct:
    """Return the settings that another adapter gets: its own, else the request's without those of one program.

    Args:
        request: as the first adapter got it, or as the caller sent it.
        name: the adapter's name in ``fallback``.
        fallback: the caller's wish.
    """
    settings = struct_pb2.Struct()
    if name in fallback.configs:
        settings.CopyFrom(fallback.configs[name])
    else:
        settings.CopyFrom(request.config if request.HasField("config") else request.agent.adapter_config)
        for key in _OWN:
            settings.fields.pop(key, None)
    settings.fields.pop(CONFIG_KEY, None)
    return settings


def ended(result: pb.Result, next_adapter: str, reason: str) -> pb.AttemptEnded:
    """Return what takes the place of a failed attempt's result."""
    return pb.AttemptEnded(
        failure=result.failure,
        reason=reason,
        next_adapter=next_adapter,
        exit_code=result.exit_code if result.HasField("exit_code") else None,
        session=result.session if result.HasField("session") else None,
        usage=result.usage if result.HasField("usage") else None,
    )


def wants_candidates(result: pb.Result) -> bool:
    """Tell whether another adapter might do what this one could not."""
    return result.outcome in _FAILED and may_others(result.failure.kind)


def may_others(kind: pb.FailureKind.ValueType) -> bool:
    """Tell whether another adapter might do what failed so."""
    return kind in _CANDIDATES_ON


def candidates(detections: "list[adapter_pb2.Detection]", failed: str) -> list[str]:
    """Return the adapters that could take over, best first: agents that were found, then what asks a model itself.

    Args:
        detections: what was found, perhaps a while ago.
        failed: the adapter that failed.
    """
    agents: list[tuple[int, str]] = []
    models: list[tuple[int, str]] = []
    for one in detections:
        login = _GOOD_AUTH.get(one.auth)
        features = {item.feature for item in one.capabilities.items}
        if one.adapter == failed or not one.available or login is None or pb.FEATURE_PROMPT not in features:
            continue
        if one.executable:
            agents.append((login, one.adapter))
        elif features >= _OF_A_MODEL:
            models.append((login, one.adapter))
    return [name for _login, name in [*sorted(agents), *sorted(models)]]
