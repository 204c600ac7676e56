"""How a turn ended, what it used, and what an error of the agent means.

Pure but for the present, which durations in a text are counted from.
"""

from collections.abc import Sequence
from typing import Final

from dragoman.protocol.texts import cut_text
from dragoman.sdk._encoding.fields import Fields, inner, text
from dragoman.sdk._encoding.json_text import JsonValue, compact
from dragoman.sdk._encoding.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from dragoman.sdk._output import usage
from dragoman.sdk._output.advice import ANSWER_CUT
from dragoman.sdk._output.failures import classify_http, classify_text, unknown_session
from dragoman.sdk._output.parser import FailureInfo, Terminal
from dragoman.sdk.acp._session import AcpOptions, TurnEnd
from dragoman.sdk.acp._updates import SessionCost, Updates, read_tokens
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

_FAILURES: Final = {
    "max_tokens": (pb.FAILURE_KIND_OUTPUT_LIMIT, ANSWER_CUT),
    "max_turn_requests": (pb.FAILURE_KIND_MAX_TURNS, "The agent reached its limit of model calls in one turn."),
    "refusal": (pb.FAILURE_KIND_MODEL_REFUSED, "The agent refused to continue."),
}


def ending(reason: str, result: Fields, updates: Updates, options: AcpOptions, *, interrupted: bool) -> Terminal:
    """Return how the agent's turn ended."""
    if reason == "cancelled":
        message = "The agent says that its turn was cancelled, and not by this run."
        failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="acp_cancelled")
        return Terminal(succeeded=False, subtype=reason, failure=None if interrupted else failure, interrupted=True)
    if reason in _FAILURES:
        kind, message = _FAILURES[reason]
        errors = (updates.speech.last_words or reason,)  # what it refuses, or was about to say
        failure = FailureInfo(kind, message, code=f"acp_{reason}", errors=errors)
        return Terminal(succeeded=False, subtype=reason, failure=failure)
    reported = options.turn_failure(TurnEnd(updates.speech.last_words, result))
    if reported is not None:
        return Terminal(succeeded=False, subtype=reason, failure=reported)
    if reason and reason != "end_turn":
        message = f"The agent ended its turn for a reason that is not known here: {reason}."
        failure = FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, code="acp_stop_reason")
        return Terminal(succeeded=False, subtype=reason, failure=failure)
    if interrupted:  # opencode, stopped at the wrong moment, answers as if it had finished
        return Terminal(succeeded=False, subtype=reason, interrupted=True)
    if not updates.speech.has_spoken and not updates.has_acted:
        message = "The agent ended its turn without a word; agents do that when their model cannot be reached."
        failure = FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, code="acp_empty_turn")
        return Terminal(succeeded=False, subtype=reason, failure=failure)
    return Terminal(succeeded=True, subtype=reason)


def other_usage(result: Fields, options: AcpOptions) -> pb.Usage | None:
    """Return what the prompt's result counts where that is not this run; None if it says nothing of the sort."""
    tokens = _tokens(result) if options.usage != "turn" else None
    if tokens is None:
        return None
    if options.usage == "last_call":
        return usage.call_usage(tokens)
    return pb.Usage(scope=pb.USAGE_SCOPE_SESSION, semantics=pb.USAGE_SEMANTICS_CUMULATIVE, tokens=tokens)


def _tokens(result: Fields) -> pb.TokenCounts | None:
    return read_tokens(inner(result, "usage"))


def run_usage(result: Fields, options: AcpOptions, updates: Updates, cost: SessionCost) -> pb.Usage | None:
    """Return what the run used; None if nothing is known.

    Args:
        result: the prompt's result; empty if there is none.
        options: the agent's ways.
        updates: what came before.
        cost: the session's cost.
    """
    tokens = options.tokens(result) or (_tokens(result) if options.usage == "turn" else None)
    counted = updates.calls_usage.total
    used = usage.run_usage(tokens or (counted.tokens if counted is not None else None), updates.model)
    spent = cost.of_run()
    if spent is not None:
        used.cost.CopyFrom(spent)
    updates.add_context(used)
    known = used.HasField("tokens") or used.HasField("cost") or used.HasField("context_used")
    return used if known else None


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
    # Some put the status with which the model's service refused in place of the protocol's code.
    is_status = error.code is not None and 400 <= error.code < 600
    failure = (
        classify_http(error.code or 0, message_text, {})
        if is_status
        else classify_text(message_text, status_leads=True)
    )
    if failure is not None:
        return replace(failure, code=code, errors=(message_text,))
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
