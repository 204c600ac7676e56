"""Whether a stored session fits a run: asked by the router that stores it, and by the adapter that resumes it."""

import os.path
from collections.abc import Collection

from dragoman.v1 import event_pb2 as pb


def read_handle(handle: pb.SessionHandle) -> tuple[str, str]:
    """Return native id and cwd of a handle; Paperclip's ``{sessionId, cwd}`` in ``params`` is enough."""
    native_id = handle.native_id or _param(handle, "sessionId") or _param(handle, "session_id")
    return native_id, handle.cwd or _param(handle, "cwd")


def misfit(handle: pb.SessionHandle, names: Collection[str], cwd: str | None) -> str:
    """Return why a session cannot be resumed; empty if nothing is known to be against it.

    Looks at the machine's links: two paths may be one directory.

    Args:
        handle: the session.
        names: the adapter's type and its other names; handles from before it was renamed fit too.
        cwd: where the run works; ``None`` if that is not known here.
    """
    native_id, session_cwd = read_handle(handle)
    if handle.adapter and handle.adapter not in names:
        return f"the session belongs to {handle.adapter}"
    if not native_id:
        return "the handle names no session"
    if session_cwd and cwd is not None and not _is_same_directory(session_cwd, cwd):
        return f"the session belongs to {session_cwd}"
    return ""


def _param(handle: pb.SessionHandle, name: str) -> str:
    return handle.params.fields[name].string_value if name in handle.params.fields else ""


def _is_same_directory(one: str, other: str) -> bool:
    try:
        return os.path.realpath(one) == os.path.realpath(other)
    except (OSError, ValueError):  # a zero byte
        return False
