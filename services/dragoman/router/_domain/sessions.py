"""Stored sessions: which one a request means, when a new one is begun in its place, and what is kept afterwards.

A session is found by company, agent, adapter and task. A request that says ``session.key`` means the one with that
key; what is empty in it is taken from the request. One with a ``task_key`` and no selector means the task's own. What
a run leaves is stored where it was found, and for a new session of a task under the task's key. A copy never takes
the place of its original. Who gives a handle stores it himself.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dragoman.protocol.sessions import read_handle
from dragoman.router._domain.stored import SessionId
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2

CONFIG_KEY: Final = "sessionCompaction"
"""The settings' key that a router keeps to itself, as the seeds call it."""
LONGEST_SUMMARY: Final = 2000
"""Characters that are kept of an agent's last words."""
_SWITCH: Final = "enabled"
_BOUNDS: Final = {"maxSessionRuns": "runs", "maxRawInputTokens": "input_tokens", "maxSessionAgeHours": "hours"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which session a request means."""

    found_by: SessionId | None = None
    """Its key."""
    of_run: str = ""
    """The run that left it."""
    kept_by: SessionId | None = None
    """What the session that the run leaves is to be stored by; ``None``: not here."""
    fork: bool = False

    @property
    def is_here(self) -> bool:
        """Whether the router has to find it."""
        return self.found_by is not None or bool(self.of_run)


def wanted(request: adapter_pb2.ExecuteRequest, adapter: str) -> Wanted:
    """Return which session a request to this adapter means."""
    selector = request.session.WhichOneof("selector")
    own = SessionId(request.agent.company_id, request.agent.id, adapter, request.task_key)
    of_task = own if request.task_key else None
    fork = request.session.fork
    if selector == "handle" or (selector is None and of_task is None):
        return Wanted()
    if selector == "fresh":
        return Wanted(kept_by=of_task)
    if selector == "resume_run_id":
        return Wanted(of_run=request.session.resume_run_id, kept_by=of_task, fork=fork)
    key = request.session.key
    found_by = SessionId(
        key.company_id or own.company_id, key.agent_id or own.agent_id, adapter, key.task_key or own.task_key
    )
    beside = of_task if of_task != found_by else None
    return Wanted(found_by=found_by, kept_by=beside if fork else found_by, fork=fork)


def key_of(session: SessionId) -> adapter_pb2.SessionKey:
    """Return the contract's key of a session; the adapter stands beside it there."""
    return adapter_pb2.SessionKey(company_id=session.company_id, agent_id=session.agent_id, task_key=session.task_key)


def cwd_of(request: adapter_pb2.ExecuteRequest) -> str | None:
    """Return where a run is to work; ``None`` if the request does not say."""
    config = _config(request)
    configured = config.fields["cwd"].string_value if config is not None and "cwd" in config.fields else ""
    return request.workspace.cwd or configured or None


# When a session has been gone on with for long enough.


@dataclass(frozen=True, slots=True)
class Compaction:
    """After how much a session is followed by a new one; 0 is never. The numbers are the seeds'."""

    runs: int = 200
    input_tokens: int = 2_000_000
    hours: float = 72.0

    def reason(self, session: router_pb2.StoredSession, now: float) -> str:
        """Return why a new session is due; empty if it is not."""
        hours = (now - session.created_at.ToNanoseconds() / 1e9) / 3600
        if 0 < self.runs <= session.runs:
            return f"the session has had {session.runs:,} run{'' if session.runs == 1 else 's'}"
        if 0 < self.input_tokens <= session.input_tokens:
            return f"the session has taken {session.input_tokens:,} input tokens"
        if 0 < self.hours <= hours:
            return f"the session is {int(hours):,} hours old"
        return ""


NEVER: Final = Compaction(0, 0, 0.0)


def compaction(request: adapter_pb2.ExecuteRequest, *, compacts_itself: bool) -> Compaction:
    """Return the policy for a request: its own words, else the default.

    Args:
        request: one that ``compaction_problem`` has nothing against.
        compacts_itself: whether the agent cuts its own context; then there is no default.
    """
    told = _told(request)
    if _SWITCH in told and not told[_SWITCH].bool_value:
        return NEVER
    default = NEVER if compacts_itself else Compaction()

    def bound(name: str, unless_told: float) -> float:
        return told[name].number_value if name in told else unless_told

    return Compaction(
        runs=int(bound("maxSessionRuns", default.runs)),
        input_tokens=int(bound("maxRawInputTokens", default.input_tokens)),
        hours=bound("maxSessionAgeHours", default.hours),
    )


def compaction_problem(request: adapter_pb2.ExecuteRequest) -> tuple[str, str] | None:
    """Return the path of what is wrong with a request's policy, and what is; ``None`` if nothing is.

    What is said for adapters to fall back to is looked at too, although they begin new sessions.
    """
    configs = request.fallback.configs
    given = {"config": _config(request), **{f"fallback.configs.{name}": configs[name] for name in sorted(configs)}}
    wrong = (_wrong(config, f"{path}.{CONFIG_KEY}") for path, config in given.items() if config is not None)
    return next((problem for problems in wrong for problem in problems), None)


def _wrong(config: struct_pb2.Struct, path: str) -> Iterator[tuple[str, str]]:
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
            yield f"{path}.{name}", f"is none of {', '.join([_SWITCH, *_BOUNDS])}"
        elif not 0 <= value.number_value < float("inf") or value.WhichOneof("kind") != "number_value":
            yield f"{path}.{name}", "must be a number, 0 or more"


def _told(request: adapter_pb2.ExecuteRequest) -> Mapping[str, struct_pb2.Value]:
    config = _config(request)
    if config is None or CONFIG_KEY not in config.fields:
        return {}
    return config.fields[CONFIG_KEY].struct_value.fields


def _config(request: adapter_pb2.ExecuteRequest) -> struct_pb2.Struct | None:
    """Return the settings in force; ``None`` if there are none."""
    if request.HasField("config"):
        return request.config
    return request.agent.adapter_config if request.agent.HasField("adapter_config") else None


# What the adapter is told.


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of the session that a request means."""

    handle: pb.SessionHandle | None = None
    """What the adapter goes on with."""
    reason: str = ""
    """Why it begins a new one although another was meant. Empty if there was none."""
    handover: str = ""
    """What the agent is told of the other."""

    @property
    def native_id(self) -> str:
        """The session that the adapter is asked to go on with, by the agent's own id; empty for none."""
        return read_handle(self.handle)[0] if self.handle is not None else ""


def strip(request: adapter_pb2.ExecuteRequest) -> None:
    """Take out of a request's settings what only a router understands."""
    config = _config(request)
    if config is not None and CONFIG_KEY in config.fields:
        del config.fields[CONFIG_KEY]


def tell(request: adapter_pb2.ExecuteRequest, wish: Wanted, choice: Choice) -> None:
    """Write into a request what its adapter is to do, in place of what only a router understands."""
    strip(request)
    if not wish.is_here:
        return
    request.ClearField("session")
    if choice.handle is not None:
        request.session.handle.CopyFrom(choice.handle)
        request.session.fork = wish.fork
    elif choice.reason:
        request.session.fresh, request.session.reason = True, choice.reason
        request.session.handover = choice.handover


def handover(session: router_pb2.StoredSession, reason: str) -> str:
    """Return what an agent is told of a session that is not gone on with; what was said in it is quoted."""
    lines = [
        f"You have worked on this before, in a conversation that is not gone on with: {reason}.",
        f"Its last run was {session.last_run_id}.",
    ]
    if session.last_summary:
        lines.append("It ended with these words, quoted as they were said then:")
        lines += [f"> {line}".rstrip() for line in session.last_summary.splitlines()]
    lines.append("Go on from what is there now, and look up only what you need.")
    return "\n".join(lines)


# What is kept afterwards.


@dataclass(frozen=True, slots=True)
class Heard:
    """What a run says of its session. Times are seconds since the epoch."""

    run_id: str
    accepted_at: float
    update: pb.SessionUpdate
    sent: str = ""
    """The session that it was asked to go on with, by the agent's own id."""
    resumed: bool | None = None
    """Whether the adapter set out to go on with that; ``None`` if it did not say."""
    result: pb.Result | None = None
    """How the run ended; ``None`` if only an attempt did."""
    stands_in: bool = False
    """Whether it fell back to this adapter, where it began a new session without anybody asking for one."""
    deleted: Collection[str] = ()
    """Sessions, by the agent's own ids, that somebody asked to forget meanwhile."""


def kept(
    key: SessionId, before: router_pb2.StoredSession | None, heard: Heard, now: float
) -> router_pb2.StoredSession | None:
    """Return what is to be stored from now on: ``before`` itself if nothing changes, ``None`` for nothing.

    Args:
        key: what it is found by.
        before: what is stored now.
        heard: what the run says.
        now: seconds since the epoch.
    """
    held = read_handle(before.handle)[0] if before is not None else ""
    is_its_own = bool(heard.sent) and held == heard.sent
    change = heard.update.change
    if heard.stands_in and before is not None and before.runs > 1 and held != read_handle(heard.update.handle)[0]:
        return before  # a conversation that was gone on with is worth more than one of a single run
    if change == pb.SESSION_CHANGE_CLEAR:
        # Another run may have stored another session meanwhile, which is not the one that is gone.
        return before if heard.sent and not is_its_own else None
    if change == pb.SESSION_CHANGE_SET and heard.update.HasField("handle"):
        native_id = read_handle(heard.update.handle)[0]
        if native_id in heard.deleted or (heard.resumed and heard.sent in heard.deleted):
            return before
        goes_on = (bool(heard.resumed) and is_its_own) or (before is not None and held == native_id)
        session = _copy(before) if goes_on else _new(key, heard)
        session.handle.CopyFrom(heard.update.handle)
    elif before is not None and is_its_own and heard.resumed and heard.result is not None:
        session = _copy(before)  # it said nothing new, and has had one run more
    else:
        return before
    _count(session, heard)
    session.used_at.FromNanoseconds(int(now * 1e9))
    return session


def _copy(before: router_pb2.StoredSession | None) -> router_pb2.StoredSession:
    copy = router_pb2.StoredSession()
    if before is not None:
        copy.CopyFrom(before)
    return copy


def _new(key: SessionId, heard: Heard) -> router_pb2.StoredSession:
    session = router_pb2.StoredSession(key=key_of(key), adapter=key.adapter)
    session.created_at.FromNanoseconds(int(heard.accepted_at * 1e9))
    return session


def _count(session: router_pb2.StoredSession, heard: Heard) -> None:
    if heard.result is None or session.last_run_id == heard.run_id:
        return  # not over yet; or told a second time, to a router that took the run over
    session.runs += 1
    session.last_run_id = heard.run_id
    tokens = _input_tokens(heard.result.usage)
    is_total = heard.result.usage.scope == pb.USAGE_SCOPE_SESSION
    session.input_tokens = tokens if is_total and tokens else session.input_tokens + tokens
    session.last_summary = heard.result.summary[:LONGEST_SUMMARY].strip() or session.last_summary


def _input_tokens(usage: pb.Usage) -> int:
    counts = [usage.tokens] if usage.HasField("tokens") else [model.tokens for model in usage.models]
    return sum(one.input + one.cache_write for one in counts)
