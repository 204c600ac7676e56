"""Failures of the model's service. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from dragoman.adapters.model_api.reply import Reply
from dragoman.protocol.backoff import backoff_s
from dragoman.protocol.failures import is_passing
from dragoman.sdk import FailureInfo
from dragoman.sdk import fields as read
from dragoman.sdk.failures import CHECK_NETWORK, OTHER_MODEL, REPHRASE, SHORTER_PROMPT, classify_http, classify_text
from dragoman.sdk.fields import parse_json_object
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

MOST_DELAY_S: Final = 60.0
"""The longest wait before a retry, in seconds; if the service requires a longer one, the run fails."""

_FIRST_DELAY_S: Final = 0.5
_WINDOW: Final = "anthropic-ratelimit-unified-status"
"""The header by which Anthropic reports a used-up subscription; its message is that of a rate limit."""
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{2,60}")
_CUT: Final = "The answer broke off before its end."
_HELP: Final = {
    pb.FAILURE_KIND_AUTH_REQUIRED: "Give a valid key in env.",
    pb.FAILURE_KIND_QUOTA_EXCEEDED: "Pay, or use another account.",
    pb.FAILURE_KIND_MODEL_NOT_FOUND: OTHER_MODEL,
    pb.FAILURE_KIND_CONTEXT_OVERFLOW: SHORTER_PROMPT,
    pb.FAILURE_KIND_NETWORK: CHECK_NETWORK,
}


class ServiceError(Exception):
    """An error that a vendor's SDK raised.

    Args:
        message: its message.
        status: HTTP status. None: there was no answer, or it began without an error.
        headers: of the answer.
        body: as JSON, or as received.
        trouble: ``answer``: the service reports it; ``network``: the answer is cut; ``garbage``: it is no JSON.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str = "",
        trouble: Literal["answer", "network", "garbage"] = "answer",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.headers = headers or {}
        self.body = body
        self.trouble = trouble


def cut() -> ServiceError:
    """Return the error of a stream that ended before the end of the answer."""
    return ServiceError(_CUT, trouble="network")


def failure_of(error: ServiceError, now: datetime | None = None) -> FailureInfo:
    """Return the failure of an error of the service."""
    code, words = _words(error)
    if error.trouble == "garbage":
        kind = pb.FAILURE_KIND_UNPARSEABLE_OUTPUT
        return FailureInfo(kind, f"The service's answer: {error.message}", code="garbage", errors=(error.message,))
    if error.trouble == "network":
        return FailureInfo(
            pb.FAILURE_KIND_NETWORK,
            f"{error.message} {_HELP[pb.FAILURE_KIND_NETWORK]}",
            code="stream_cut" if error.message == _CUT else "connection_failed",
            errors=(error.message,),
        )
    if error.status is not None:
        info = classify_http(error.status, error.body or words, error.headers, now)
    else:
        info = classify_text(error.body or words, now)
    errors = (words or error.message,)
    if info is None:
        kind = pb.FAILURE_KIND_INVALID_CONFIG
        message = f"The model's service refused the request: {words or error.message}"
        return FailureInfo(
            kind, message, code=code or f"http_{error.status}", errors=errors, http_status=error.status
        )
    if info.kind == pb.FAILURE_KIND_RATE_LIMITED and error.headers.get(_WINDOW) == "rejected":
        info = replace(info, kind=pb.FAILURE_KIND_QUOTA_EXCEEDED)
    message = f"The model's service says: {words or info.message} {_HELP.get(info.kind, '')}".strip()
    return FailureInfo(
        info.kind,
        message,
        code=code or (f"http_{error.status}" if error.status else "reported"),
        errors=errors,
        retry_not_before=info.retry_not_before,
        http_status=error.status,
    )


def failure_of_stop(reply: Reply) -> FailureInfo | None:
    """Return the failure of a model that stopped early; None if its answer is whole."""
    errors = (reply.text or reply.stop_word,)
    match reply.stop:
        case "refusal":
            message = f"The model refused. {REPHRASE}"
            return FailureInfo(pb.FAILURE_KIND_MODEL_REFUSED, message, code="refusal", errors=errors)
        case "length":
            message = (
                "The answer reached the limit of its length. Raise config.maxTokens, or ask for a shorter answer."
            )
            return FailureInfo(pb.FAILURE_KIND_OUTPUT_LIMIT, message, code="max_tokens", errors=errors)
        case "context":
            message = f"The conversation fills the model's context. {SHORTER_PROMPT}"
            return FailureInfo(pb.FAILURE_KIND_CONTEXT_OVERFLOW, message, code="context_window", errors=errors)
    return None


def turns_used_up(turns: int) -> FailureInfo:
    """Return the failure of a run that needed more answers of the model than it may have."""
    message = f"The run has had its {turns} turns. Raise config.maxTurns, or continue in a new run."
    return FailureInfo(pb.FAILURE_KIND_MAX_TURNS, message, code="max_turns", errors=(message,))


def retry_delay(error: ServiceError, info: FailureInfo, tries: int, jitter: float) -> float | None:
    """Return the seconds to wait before a retry; None if there should be none.

    Args:
        error: the error.
        info: its failure.
        tries: the number of tries, from 1.
        jitter: from 0 to 1, so that many runs do not retry at once.
    """
    if not is_passing(info.kind) or error.headers.get("x-should-retry", "") == "false":
        return None
    if info.retry_not_before is not None:
        delay_s = (info.retry_not_before - datetime.now(UTC)).total_seconds()
        # The margin allows for rounding: never earlier than the service requires.
        return max(0.0, delay_s) + 0.05 if delay_s <= MOST_DELAY_S else None
    return backoff_s(tries, _FIRST_DELAY_S, 8.0) * (0.75 + 0.25 * jitter)


def _words(error: ServiceError) -> tuple[str, str]:
    """Return the vendor's own code and message."""
    body = parse_json_object(error.body.encode("utf-8", "replace")) or {}
    inner = read.inner(body, "error") or body
    words = (read.text(inner, "code"), read.text(inner, "type"))
    code = next((word for word in words if _CODE.fullmatch(word)), "")
    return code, read.text(inner, "message") or error.message
