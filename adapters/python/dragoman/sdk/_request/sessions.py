"""The rules of sessions: when one is resumed, when not and why, and what to store afterwards. Pure."""

import re
from collections.abc import Callable

from dragoman.protocol.sessions import misfit, read_handle
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


class SessionPlan(Struct, frozen=True):
    """What is intended with the session."""

    disposition: pb.SessionDisposition.ValueType
    native_id: str = ""
    """The session to resume or to copy. Empty for a new one."""
    reason: str = ""
    """Why the session asked for is not resumed."""

    @property
    def resumes(self) -> bool:
        """Whether an earlier conversation is resumed or forked."""
        return bool(self.native_id)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of a plan that resumes or copies a session; none for a new one."""
        verb = "copies" if self.disposition == pb.SESSION_DISPOSITION_FORK else "resumes"
        return (f"{verb} session {self.native_id}",) if self.native_id else ()


NEW = SessionPlan(pb.SESSION_DISPOSITION_NEW)
"""A new session, as none was asked for."""


def is_uuid(text: str, *, lower_case: bool = False) -> bool:
    """Return whether ``text`` is a UUID, the whole of it, as many agents' session ids are.

    Args:
        text: what may be one.
        lower_case: whether only one in lower case will do, e.g. as it is the name of a file.
    """
    return _UUID.fullmatch(text) is not None and not (lower_case and text != text.lower())


def plan_session(
    request: adapter_pb2.ExecuteRequest,
    *,
    adapter: str,
    aliases: tuple[str, ...],
    cwd: str,
    is_session_id: Callable[[str], bool],
) -> SessionPlan:
    """Decide what to do with the session asked for.

    Args:
        request: what was asked.
        adapter: this adapter's type.
        aliases: its other names; handles from before it was renamed fit too.
        cwd: where the run works; a session of another directory is not resumed.
        is_session_id: whether a text has the shape of this agent's ids.
    """
    session = request.session
    if session.WhichOneof("selector") != "handle":
        return _refused(session.reason) if session.fresh and session.reason else NEW
    native_id, _ = read_handle(session.handle)
    if why := misfit(session.handle, {adapter, *aliases}, cwd):
        return _refused(why)
    if not is_session_id(native_id):
        return _refused("the session's id does not have the shape of this agent's ids")
    if session.fork:
        return SessionPlan(pb.SESSION_DISPOSITION_FORK, native_id)
    return SessionPlan(pb.SESSION_DISPOSITION_RESUME, native_id)


def _refused(reason: str) -> SessionPlan:
    return SessionPlan(pb.SESSION_DISPOSITION_RESUME_REFUSED, reason=reason)


def make_handle(
    *, adapter: str, version: str, native_id: str, display_id: str, cwd: str, params: dict[str, str]
) -> pb.SessionHandle:
    """Return the handle to store. ``params`` always repeats id and cwd, by Paperclip's names."""
    handle = pb.SessionHandle(
        adapter=adapter, native_id=native_id, display_id=display_id, cwd=cwd, adapter_version=version
    )
    handle.params.update({"sessionId": native_id, "cwd": cwd, **params})
    return handle


def session_update(
    outcome: pb.Outcome.ValueType,
    *,
    lost: bool,
    handle: pb.SessionHandle | None,
    kept: pb.SessionHandle | None = None,
) -> pb.SessionUpdate | None:
    """Return what to do with the stored session.

    A run that succeeded, or was cancelled, leaves a conversation that can be resumed. No id is kept from a failed
    one. A session that was lost is forgotten, unless a new one takes its place.

    Args:
        outcome: how the last turn ended.
        lost: whether a session to resume was lost.
        handle: what the last turn reported.
        kept: the session of a turn before it that succeeded.
    """
    if handle is not None and outcome in {pb.OUTCOME_SUCCEEDED, pb.OUTCOME_CANCELLED}:
        return pb.SessionUpdate(change=pb.SESSION_CHANGE_SET, handle=handle)
    if kept is not None:
        return pb.SessionUpdate(change=pb.SESSION_CHANGE_SET, handle=kept)
    if lost:
        return pb.SessionUpdate(change=pb.SESSION_CHANGE_CLEAR)
    return None
