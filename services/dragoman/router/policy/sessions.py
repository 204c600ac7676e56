"""Stored sessions: which one a request selects, when a new one replaces it, and how a run updates it.

A stored session has a key of company, agent, adapter and task. A request with ``session.key`` selects the session
with that key; the request's own values replace empty fields of it. A request with a ``task_key`` and no selector
selects the task's session. A run updates the session that it resumed; a new session of a task is stored under the
task's key. A fork never replaces its original. A caller that passes a handle stores the session itself.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from dragoman.protocol.duties import settings_of
from dragoman.protocol.sessions import read_handle
from dragoman.router.model.stored import SessionId
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2
from msgspec import Struct, field

CONFIG_KEY: Final = "sessionCompaction"
"""The setting that only a router evaluates; Paperclip uses the same name."""
MAX_SUMMARY_CHARS: Final = 2000
"""Maximum number of characters stored of a run's summary."""
_SWITCH: Final = "enabled"
_BOUNDS: Final = {"maxSessionRuns": "runs", "maxRawInputTokens": "input_tokens", "maxSessionAgeHours": "hours"}


class SessionDecision(Struct, frozen=True):
    """Whether to resume the session that a request selects, or to start a new one."""

    handle: pb.SessionHandle | None = None
    """The session to resume."""
    reason: str = ""
    """Why a new session is started although one was selected. Empty if none was."""
    handover: str = ""
    """The text about the previous session for the agent."""

    @property
    def native_id(self) -> str:
        """The agent's own id of the session to resume; empty for none."""
        return read_handle(self.handle)[0] if self.handle is not None else ""


NO_SESSION: Final = SessionDecision()


class SessionRequest(Struct, frozen=True):
    """The session that a request selects."""

    stored_key: SessionId | None = None
    """Its key, if it is selected by key."""
    of_run: str = ""
    """The run that left it, if it is selected by run."""
    store_under: SessionId | None = None
    """The key to store the run's session under; ``None`` to store none."""
    fork: bool = False
    choice: SessionDecision = NO_SESSION
    """What was decided about it, as far as it was looked up."""

    @property
    def is_stored_here(self) -> bool:
        """Whether the router has to find the session."""
        return self.stored_key is not None or bool(self.of_run)


def session_request(request: adapter_pb2.ExecuteRequest, adapter: str, caller: str = "") -> SessionRequest:
    """Return the session that a request to this adapter selects.

    Args:
        request: the request.
        adapter: the adapter's type.
        caller: whose sessions these are, if they are not for all callers: they are stored apart.
    """
    selector = request.session.WhichOneof("selector")
    suffix = f"@{caller}" if caller else ""
    own = SessionId(request.agent.company_id + suffix, request.agent.id, adapter, request.task_key)
    of_task = own if request.task_key else None
    fork = request.session.fork
    if selector == "handle" or (selector is None and of_task is None):
        return SessionRequest()
    if selector == "fresh":
        return SessionRequest(store_under=of_task)
    if selector == "resume_run_id":
        return SessionRequest(of_run=request.session.resume_run_id, store_under=of_task, fork=fork)
    key = request.session.key
    found_by = SessionId(
        key.company_id + suffix if key.company_id else own.company_id,
        key.agent_id or own.agent_id,
        adapter,
        key.task_key or own.task_key,
    )
    beside = of_task if of_task != found_by else None
    return SessionRequest(stored_key=found_by, store_under=beside if fork else found_by, fork=fork)


def key_of(session: SessionId) -> adapter_pb2.SessionKey:
    """Return the contract's key of a session, which does not contain the adapter."""
    return adapter_pb2.SessionKey(company_id=session.company_id, agent_id=session.agent_id, task_key=session.task_key)


def id_of(key: adapter_pb2.SessionKey, adapter: str) -> SessionId:
    """Return what a session of an adapter with this key is stored by."""
    return SessionId(key.company_id, key.agent_id, adapter, key.task_key)


def cwd_of(request: adapter_pb2.ExecuteRequest) -> str | None:
    """Return the working directory of a request; ``None`` if it has none."""
    config = settings_of(request)
    configured = config.fields["cwd"].string_value if "cwd" in config.fields else ""
    return request.workspace.cwd or configured or None


# When a session is replaced by a new one.


class Compaction(Struct, frozen=True):
    """The bounds beyond which a new session replaces a stored one; 0 is none. The defaults are Paperclip's."""

    runs: int = 200
    input_tokens: int = 2_000_000
    hours: float = 72.0

    def reason(self, session: router_pb2.StoredSession, now: float) -> str:
        """Return which bound the session has reached; empty if none."""
        hours = (now - session.created_at.ToNanoseconds() / 1e9) / 3600
        if 0 < self.runs <= session.runs:
            return f"the session reached {session.runs:,} run{'' if session.runs == 1 else 's'}"
        if 0 < self.input_tokens <= session.input_tokens:
            return f"the session reached {session.input_tokens:,} input tokens"
        if 0 < self.hours <= hours:
            return f"the session is {int(hours):,} hours old"
        return ""


NEVER: Final = Compaction(0, 0, 0.0)


def compaction(request: adapter_pb2.ExecuteRequest, *, compacts_itself: bool) -> Compaction:
    """Return the policy for a request: its configuration, else the default.

    Args:
        request: a request without a ``compaction_problem``.
        compacts_itself: whether the agent compacts its own context; then the default is no bound.
    """
    configured = _configured_policy(request)
    if _SWITCH in configured and not configured[_SWITCH].bool_value:
        return NEVER
    default = NEVER if compacts_itself else Compaction()

    def bound(name: str, default_value: float) -> float:
        return configured[name].number_value if name in configured else default_value

    return Compaction(
        runs=int(bound("maxSessionRuns", default.runs)),
        input_tokens=int(bound("maxRawInputTokens", default.input_tokens)),
        hours=bound("maxSessionAgeHours", default.hours),
    )


def compaction_problem(request: adapter_pb2.ExecuteRequest) -> tuple[str, str] | None:
    """Return the path of an invalid field of a request's policy, and why it is invalid; ``None`` if it is valid.

    Configurations of fallback adapters are checked, too, although these start new sessions.
    """
    configs = request.fallback.configs
    by_path = {"config": settings_of(request)}
    by_path |= {f"fallback.configs.{name}": configs[name] for name in sorted(configs)}
    wrong = (_policy_problems(config, f"{path}.{CONFIG_KEY}") for path, config in by_path.items())
    return next((problem for problems in wrong for problem in problems), None)


def _policy_problems(config: struct_pb2.Struct, path: str) -> Iterator[tuple[str, str]]:
    if CONFIG_KEY not in config.fields:
        return
    if config.fields[CONFIG_KEY].WhichOneof("kind") != "struct_value":
        yield path, "must be an object"
        return
    for name, value in config.fields[CONFIG_KEY].struct_value.fields.items():
        if name == _SWITCH:
            if value.WhichOneof("kind") != "bool_value":
                yield f"{path}.{name}", "must be true or false"
        elif name not in _BOUNDS:
            yield f"{path}.{name}", f"is not a known field; known are {', '.join([_SWITCH, *_BOUNDS])}"
        elif not 0 <= value.number_value < float("inf") or value.WhichOneof("kind") != "number_value":
            yield f"{path}.{name}", "must be a number, 0 or more"


def _configured_policy(request: adapter_pb2.ExecuteRequest) -> Mapping[str, struct_pb2.Value]:
    config = settings_of(request)
    return config.fields[CONFIG_KEY].struct_value.fields if CONFIG_KEY in config.fields else {}


# What the router passes to the adapter.


def apply_decision(request: adapter_pb2.ExecuteRequest, selected: SessionRequest) -> None:
    """Replace what only a router understands, the selector and its settings, by the decision for the adapter."""
    config, choice = settings_of(request), selected.choice
    if CONFIG_KEY in config.fields:
        del config.fields[CONFIG_KEY]
    if not selected.is_stored_here:
        return
    request.ClearField("session")
    if choice.handle is not None:
        request.session.handle.CopyFrom(choice.handle)
        request.session.fork = selected.fork
    elif choice.reason:
        request.session.fresh, request.session.reason = True, choice.reason
        request.session.handover = choice.handover


def handover(session: router_pb2.StoredSession, reason: str) -> str:
    """Return the text for an agent about its previous session, which is not resumed; its last message is quoted."""
    lines = [
        f"You worked on this task in an earlier conversation, which is not being resumed ({reason}).",
        f"Its last run was {session.last_run_id}.",
    ]
    if session.last_summary:
        lines.append("Your final message of that run, quoted:")
        lines += [f"> {line}".rstrip() for line in session.last_summary.splitlines()]
    lines.append("Continue from the current state of the workspace; re-read only what you need.")
    return "\n".join(lines)


# How a run updates the stored session.


class SessionReport(Struct, frozen=True):
    """What a run reports about its session. Times are seconds since the epoch."""

    run_id: str
    accepted_at: float
    update: pb.SessionUpdate = field(default_factory=pb.SessionUpdate)
    resumed_id: str = ""
    """The agent's own id of the session that the run was asked to resume."""
    resumed: bool | None = None
    """Whether the adapter resumed that session; ``None`` if it did not report it."""
    result: pb.Result | None = None
    """The run's result; ``None`` if only an attempt has ended."""
    is_fallback: bool = False
    """Whether the run fell back to this adapter, where it started a new session that no caller requested."""
    deleted: Collection[str] = ()
    """The agent's own ids of sessions that callers deleted meanwhile."""


def updated_session(
    key: SessionId, before: router_pb2.StoredSession | None, report: SessionReport, now: float
) -> router_pb2.StoredSession | None:
    """Return the session to store: ``before`` itself for no change, ``None`` to delete it.

    Args:
        key: the session's key.
        before: the stored session.
        report: what the run reports.
        now: seconds since the epoch.
    """
    held, named = _native_id(before), read_handle(report.update.handle)[0]
    if report.is_fallback and before is not None and before.runs > 1 and held != named:
        return before  # a session of several runs is worth more than one of a single run
    if report.update.change == pb.SESSION_CHANGE_CLEAR:
        # Another run may have stored another session meanwhile, which is not the one that is lost.
        return before if report.resumed_id and held != report.resumed_id else None
    session = _left(key, before, report, named)
    if session is None:
        return before
    _count(session, report)
    session.used_at.FromNanoseconds(int(now * 1e9))
    return session


def _native_id(before: router_pb2.StoredSession | None) -> str:
    return read_handle(before.handle)[0] if before is not None else ""


def _left(
    key: SessionId, before: router_pb2.StoredSession | None, report: SessionReport, named: str
) -> router_pb2.StoredSession | None:
    """Return the session that a run leaves, without its use of it; ``None`` if it leaves none that is to be stored.

    Args:
        key: the session's key.
        before: the stored session.
        report: what the run reports.
        named: the agent's own id of the session that it names; empty for none.
    """
    has_resumed_it = bool(report.resumed and report.resumed_id) and _native_id(before) == report.resumed_id
    session = router_pb2.StoredSession()
    if report.update.change == pb.SESSION_CHANGE_SET and report.update.HasField("handle"):
        if named in report.deleted or (report.resumed and report.resumed_id in report.deleted):
            return None
        if before is not None and (has_resumed_it or _native_id(before) == named):
            session.CopyFrom(before)
        else:
            session.key.CopyFrom(key_of(key))
            session.adapter = key.adapter
            session.created_at.FromNanoseconds(int(report.accepted_at * 1e9))
        session.handle.CopyFrom(report.update.handle)
        return session
    if before is None or not has_resumed_it or report.result is None:
        return None
    session.CopyFrom(before)  # the same session, with one more run
    return session


def _count(session: router_pb2.StoredSession, report: SessionReport) -> None:
    if report.result is None or session.last_run_id == report.run_id:
        return  # not finished yet, or reported again to a router that recovered the run
    session.runs += 1
    session.last_run_id = report.run_id
    tokens = _input_tokens(report.result.usage)
    is_total = report.result.usage.scope == pb.USAGE_SCOPE_SESSION
    session.input_tokens = tokens if is_total and tokens else session.input_tokens + tokens
    session.last_summary = report.result.summary[:MAX_SUMMARY_CHARS].strip() or session.last_summary


def _input_tokens(usage: pb.Usage) -> int:
    counts = [usage.tokens] if usage.HasField("tokens") else [model.tokens for model in usage.models]
    return sum(one.input + one.cache_write for one in counts)
