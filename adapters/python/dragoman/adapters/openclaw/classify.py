"""Failures, by the code of a failed call of the model (``failoverReason``), else by OpenClaw's messages. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from dragoman.sdk import FailureInfo
from dragoman.sdk import fields as read
from dragoman.sdk.failures import ANSWER_CUT, classify_text
from dragoman.sdk.fields import Fields
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

LOGIN_HINT: Final = agent_spec(__package__).login_hint

_KINDS: Final[Mapping[str, pb.FailureKind.ValueType]] = {
    "auth": pb.FAILURE_KIND_AUTH_REQUIRED,
    "auth_permanent": pb.FAILURE_KIND_AUTH_REQUIRED,
    "billing": pb.FAILURE_KIND_QUOTA_EXCEEDED,
    "rate_limit": pb.FAILURE_KIND_RATE_LIMITED,
    "overloaded": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    "server_error": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    "timeout": pb.FAILURE_KIND_NETWORK,
    "network": pb.FAILURE_KIND_NETWORK,
    "model_not_found": pb.FAILURE_KIND_MODEL_NOT_FOUND,
    "context_overflow": pb.FAILURE_KIND_CONTEXT_OVERFLOW,
    "session_expired": pb.FAILURE_KIND_SESSION_LOST,
    "format": pb.FAILURE_KIND_INVALID_CONFIG,
}
_COOLDOWN: Final = re.compile(
    r"temporarily disabled after a provider auth/billing failure|"
    r"No (?:available auth profile|API key found|route-compatible authentication source)",
)
_HTTP: Final = re.compile(r"\bHTTP (\d{3})\b")
_NO_PROVIDER: Final = re.compile(r"^Unknown provider\b")
_NO_TURN: Final = re.compile(r"incomplete_turn|couldn't generate a response|without a (?:visible )?reply")


def retry_cause(reason: str) -> pb.FailureKind.ValueType:
    """Return why OpenClaw calls its model again."""
    return _KINDS.get(reason, pb.FAILURE_KIND_UNSPECIFIED)


def failure_of_stop(reason: str) -> FailureInfo | None:
    """Return the failure of a model that stopped early; None if its answer is whole."""
    if reason != "length":
        return None
    return FailureInfo(pb.FAILURE_KIND_OUTPUT_LIMIT, ANSWER_CUT, code="openclaw_output_limit", errors=(reason,))


def failure_of(message: str, observed: Fields) -> FailureInfo:
    """Return why a run failed.

    Args:
        message: OpenClaw's message to its user.
        observed: the last ``errorObservation`` of the run; empty if there was none.
    """
    reason = read.text(observed, "failoverReason")
    kind = _KINDS.get(reason)
    if _COOLDOWN.search(message):  # after a refusal OpenClaw does not call the provider for a minute
        kind = pb.FAILURE_KIND_AUTH_REQUIRED
    found = classify_text(message)
    if kind is None:
        kind = found.kind if found is not None else pb.FAILURE_KIND_PROCESS_CRASHED
    if found is None and _NO_PROVIDER.search(message):
        kind = pb.FAILURE_KIND_MODEL_NOT_FOUND
    if found is None and _NO_TURN.search(message):
        kind = pb.FAILURE_KIND_NO_RESULT
    if found is not None and found.kind == pb.FAILURE_KIND_CONTEXT_OVERFLOW:
        kind = found.kind
    status = _HTTP.search(message)
    words = message.strip() or "OpenClaw reports a failure without a reason."
    return FailureInfo(
        kind,
        f"{words} {LOGIN_HINT}" if kind == pb.FAILURE_KIND_AUTH_REQUIRED else words,
        code=f"openclaw_{reason or 'error'}",
        errors=(words,),
        retry_not_before=found.retry_not_before if found is not None else None,
        http_status=int(status[1]) if status else (found.http_status if found is not None else None),
    )
