"""The audit log: one line for each decision about a call, by the logger ``dragoman.audit``.

| field | meaning |
| --- | --- |
| decision | ``allow`` or ``deny`` |
| caller | who calls, as authenticated; empty if that failed |
| rpc | the method; empty for a connection that was refused before its first call |
| adapter, run_id | what it was decided for, as far as it is known |
| reason | of a denial, why; of an allowed call that failed before it was decided for what, why it failed |
| peer | where the call came from, as gRPC has it |

A line holds no credential, and nothing of a request but the names of an adapter and of a run.
"""

from contextvars import ContextVar
from typing import Final

from dragoman.protocol.caller import RULES, current_caller
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import Logger
from msgspec import Struct

DENIALS: Final = frozenset(
    {
        Reason.TOKEN_REQUIRED,
        Reason.CALLER_REFUSED,
        Reason.NOT_PERMITTED,
        Reason.POLICY_DENIED,
        Reason.QUOTA_EXCEEDED,
        Reason.ADDRESS_UNTRUSTED,
    }
)
"""Reasons that say that a caller may not do something."""
_MOST: Final = 200
"""Characters of a name that a caller chose."""

_log = Logger("dragoman.audit")


class _Call(Struct):
    """What is known of a call."""

    rpc: str
    peer: str
    is_decided: bool
    adapter: str = ""
    run_id: str = ""


_CALL: ContextVar[_Call | None] = ContextVar("dragoman_audited_call", default=None)


def begin(method: str, peer: str) -> None:
    """Begin a call; what follows in its context is about it.

    Args:
        method: its full name. Calls of public services are only written when they are denied.
        peer: where it comes from.
    """
    _CALL.set(_Call(method.rpartition("/")[2], peer, is_decided=method not in RULES))


def about(*, adapter: str = "", run_id: str = "") -> None:
    """Note what the present call is for."""
    if (call := _CALL.get()) is not None:
        call.adapter, call.run_id = adapter or call.adapter, run_id or call.run_id


def allow(reason: str = "") -> None:
    """Write that the present call is allowed, unless that is written."""
    call = _CALL.get()
    if call is not None and not call.is_decided:
        call.is_decided = True
        _write("allow", call, reason)


def deny(error: DragomanError) -> None:
    """Write that the present call is denied."""
    if (call := _CALL.get()) is not None:
        call.is_decided = True
        _write("deny", call, error.reason.value if error.reason is not None else "")


def end(error: DragomanError | None) -> None:
    """Write what was decided about the present call, if that is not written."""
    if error is not None and error.reason in DENIALS:
        deny(error)
    else:
        allow(error.reason.value if error is not None and error.reason is not None else "")


def deny_connection(uid: int) -> None:
    """Write that a connection over a Unix socket is refused."""
    _log.info("call denied", decision="deny", caller=f"uid {uid}", rpc="", reason=Reason.CALLER_REFUSED.value)


def _write(decision: str, call: _Call, reason: str) -> None:
    optional = {"adapter": call.adapter[:_MOST], "run_id": call.run_id[:_MOST], "reason": reason}
    _log.info(
        "call allowed" if decision == "allow" else "call denied",
        decision=decision,
        caller=current_caller().name[:_MOST],
        rpc=call.rpc,
        peer=call.peer,
        **{name: value for name, value in optional.items() if value},
    )
