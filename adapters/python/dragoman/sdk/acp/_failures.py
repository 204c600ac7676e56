"""What an error of the agent means. Pure but for the present, which times of day in a text are meant from."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from dragoman.sdk._encoding.fields import Fields, text
from dragoman.sdk._encoding.json_text import JsonValue, compact
from dragoman.sdk._encoding.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from dragoman.sdk._encoding.lines import cut_text
from dragoman.sdk._output.failures import classify_http, classify_text, unknown_session
from dragoman.sdk._output.outcome import failure_from_hint
from dragoman.sdk._output.parser import FailureInfo
from dragoman.v1 import event_pb2 as pb

AUTH_REQUIRED: Final = -32000
NOT_FOUND: Final = -32002
CANCELLED: Final = -32800

_LONGEST: Final = 2000
_DETAILS: Final = ("details", "message", "error", "errorName", "reason", "responseBody")


def error_text(error: RpcError) -> str:
    """Return an error's text: its message, and what its data adds."""
    parts = [error.message, *_texts_in(error.data)]
    return cut_text("\n".join(dict.fromkeys(part for part in parts if part)), _LONGEST)[0]


def _texts_in(data: JsonValue) -> list[str]:
    if isinstance(data, str):
        return [data]
    if not isinstance(data, dict):
        return []
    return [value if isinstance(value, str) else compact(value) for key in _DETAILS if (value := data.get(key))]


def failure_of(error: RpcError, method: str, auth_methods: Sequence[Fields]) -> FailureInfo:
    """Return what an error means.

    Args:
        error: the error.
        method: what was asked for.
        auth_methods: ways to log in, as the agent lists them.
    """
    message_text = error_text(error)
    code = f"acp_error_{error.code}" if error.code is not None else "acp_error"
    if error.code == AUTH_REQUIRED:
        return FailureInfo(
            pb.FAILURE_KIND_AUTH_REQUIRED, _log_in(message_text, auth_methods), code=code, errors=(message_text,)
        )
    now = datetime.now(UTC)
    # Some put the status with which the model's service refused in place of the protocol's code.
    is_status = error.code is not None and 400 <= error.code < 600
    hint = (
        classify_http(error.code or 0, message_text, {}, now)
        if is_status
        else classify_text(message_text, now, status_leads=True)
    )
    if hint is not None:
        failure = failure_from_hint(hint, code=code)
        return FailureInfo(
            failure.kind,
            failure.message,
            code=code,
            errors=(message_text,),
            retry_not_before=failure.retry_not_before,
            login_url=failure.login_url,
            http_status=failure.http_status,
        )
    kind = pb.FAILURE_KIND_VERSION_UNSUPPORTED if error.code == METHOD_NOT_FOUND else pb.FAILURE_KIND_PROCESS_CRASHED
    message = f"The agent answered {method} with an error: {message_text or f'code {error.code}'}"
    return FailureInfo(kind, message, code=code, errors=(message_text,) if message_text else ())


def is_lost_session(error: RpcError) -> bool:
    """Return whether an answer to load, resume or fork says that there is no such session."""
    if error.code == AUTH_REQUIRED:
        return False
    message_text = error_text(error)
    if error.code == NOT_FOUND or unknown_session(message_text):
        return True
    return error.code == INVALID_PARAMS and "session" in message_text.lower()


def _log_in(message_text: str, methods: Sequence[Fields]) -> str:
    ways = [": ".join(part for part in (text(item, "name"), text(item, "description")) if part) for item in methods]
    message = "The agent wants you to log in."
    if message_text and message_text.lower().rstrip(".") != "authentication required":
        message = f"{message} It says: {message_text}"
    known = [way for way in ways if way]
    return f"{message} Ways that it knows: {'; '.join(known)}." if known else message
