"""Statuses with reasons; ``dragoman.protocol.statuses`` makes them gRPC statuses and reads them back.

Nothing of an exception's text reaches a peer: only what is put into a ``DragomanError`` on purpose.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import grpc
from msgspec import Struct

if TYPE_CHECKING:
    from google.protobuf import any_pb2


class Reason(enum.StrEnum):
    """ErrorInfo.reason: what programs decide by."""

    _value_: str
    status: grpc.StatusCode
    """The status that it always comes with."""

    def __new__(cls, text: str, status: grpc.StatusCode) -> Self:
        """Return a reason that is its text."""
        reason = str.__new__(cls, text)
        reason._value_, reason.status = text, status
        return reason

    INVALID_REQUEST = "INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT
    NOT_SUPPORTED = "NOT_SUPPORTED", grpc.StatusCode.INVALID_ARGUMENT
    ADAPTER_REQUIRED = "ADAPTER_REQUIRED", grpc.StatusCode.INVALID_ARGUMENT
    INVALID_ANSWER = "INVALID_ANSWER", grpc.StatusCode.INVALID_ARGUMENT
    INVALID_PAGE_TOKEN = "INVALID_PAGE_TOKEN", grpc.StatusCode.INVALID_ARGUMENT
    ADAPTER_NOT_FOUND = "ADAPTER_NOT_FOUND", grpc.StatusCode.NOT_FOUND
    RUN_NOT_FOUND = "RUN_NOT_FOUND", grpc.StatusCode.NOT_FOUND
    REQUEST_NOT_FOUND = "REQUEST_NOT_FOUND", grpc.StatusCode.NOT_FOUND
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND", grpc.StatusCode.NOT_FOUND
    AGENT_NOT_FOUND = "AGENT_NOT_FOUND", grpc.StatusCode.NOT_FOUND
    ARTIFACT_NOT_FOUND = "ARTIFACT_NOT_FOUND", grpc.StatusCode.NOT_FOUND
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN", grpc.StatusCode.NOT_FOUND
    RUN_ID_REUSED = "RUN_ID_REUSED", grpc.StatusCode.ALREADY_EXISTS
    INPUT_ID_REUSED = "INPUT_ID_REUSED", grpc.StatusCode.ALREADY_EXISTS
    ADAPTER_TAKEN = "ADAPTER_TAKEN", grpc.StatusCode.ALREADY_EXISTS
    AGENT_EXISTS = "AGENT_EXISTS", grpc.StatusCode.ALREADY_EXISTS
    VERSION_MISMATCH = "VERSION_MISMATCH", grpc.StatusCode.ABORTED
    CAPABILITY_MISSING = "CAPABILITY_MISSING", grpc.StatusCode.FAILED_PRECONDITION
    SESSION_BUSY = "SESSION_BUSY", grpc.StatusCode.FAILED_PRECONDITION
    ALREADY_RESOLVED = "ALREADY_RESOLVED", grpc.StatusCode.FAILED_PRECONDITION
    REQUEST_EXPIRED = "REQUEST_EXPIRED", grpc.StatusCode.FAILED_PRECONDITION
    RUN_FINISHED = "RUN_FINISHED", grpc.StatusCode.FAILED_PRECONDITION
    UPDATE_REFUSED = "UPDATE_REFUSED", grpc.StatusCode.FAILED_PRECONDITION
    CHANGES_UNKNOWN = "CHANGES_UNKNOWN", grpc.StatusCode.FAILED_PRECONDITION
    ARTIFACTS_GONE = "ARTIFACTS_GONE", grpc.StatusCode.FAILED_PRECONDITION
    REVISION_TOO_OLD = "REVISION_TOO_OLD", grpc.StatusCode.FAILED_PRECONDITION
    ADAPTER_UNREACHABLE = "ADAPTER_UNREACHABLE", grpc.StatusCode.FAILED_PRECONDITION
    ADAPTER_REFUSED = "ADAPTER_REFUSED", grpc.StatusCode.FAILED_PRECONDITION
    ADAPTER_NOT_LAUNCHED = "ADAPTER_NOT_LAUNCHED", grpc.StatusCode.FAILED_PRECONDITION
    ADDRESS_UNTRUSTED = "ADDRESS_UNTRUSTED", grpc.StatusCode.FAILED_PRECONDITION
    AGENT_INCOMPLETE = "AGENT_INCOMPLETE", grpc.StatusCode.FAILED_PRECONDITION
    TOKEN_REQUIRED = "TOKEN_REQUIRED", grpc.StatusCode.UNAUTHENTICATED
    CALLER_REFUSED = "CALLER_REFUSED", grpc.StatusCode.PERMISSION_DENIED
    NOT_PERMITTED = "NOT_PERMITTED", grpc.StatusCode.PERMISSION_DENIED
    POLICY_DENIED = "POLICY_DENIED", grpc.StatusCode.PERMISSION_DENIED
    SEQUENCE_AHEAD = "SEQUENCE_AHEAD", grpc.StatusCode.OUT_OF_RANGE
    SLOW_CONSUMER = "SLOW_CONSUMER", grpc.StatusCode.RESOURCE_EXHAUSTED
    TOO_MANY_RUNS = "TOO_MANY_RUNS", grpc.StatusCode.RESOURCE_EXHAUSTED
    TOO_MANY_INPUTS = "TOO_MANY_INPUTS", grpc.StatusCode.RESOURCE_EXHAUSTED
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED
    BUDGET_SPENT = "BUDGET_SPENT", grpc.StatusCode.RESOURCE_EXHAUSTED
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE", grpc.StatusCode.RESOURCE_EXHAUSTED
    ADAPTER_UNAVAILABLE = "ADAPTER_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE
    DRAINING = "DRAINING", grpc.StatusCode.UNAVAILABLE
    RUN_LOG_UNAVAILABLE = "RUN_LOG_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE
    BREAKER_OPEN = "BREAKER_OPEN", grpc.StatusCode.UNAVAILABLE
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED", grpc.StatusCode.UNIMPLEMENTED
    INTERNAL = "INTERNAL", grpc.StatusCode.INTERNAL


class FieldViolation(Struct, frozen=True):
    """One wrong field of a request."""

    path: str
    """E.g. ``config.maxTurns`` or ``workspace.cwd``."""
    description: str
    """What is wrong and what would be right; never a secret's value."""


class DragomanError(Exception):
    """A call failed with a status; raised by servers on purpose and by clients for what they got.

    Attributes:
        reason: ErrorInfo.reason; ``None`` if the peer gave none (then only ``code`` is known).
        message: for people: what went wrong, where, and what to do.
        metadata: ErrorInfo.metadata.
        violations: the wrong fields.
        retry_after_s: when to try again, in seconds from now.
        status: the peer's gRPC status; used only where there is no reason.
        details: the peer's status details as they came; who passes the error on passes them on unchanged.
    """

    details: "Sequence[any_pb2.Any]" = ()

    def __init__(
        self,
        reason: Reason | None,
        message: str,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after_s: float | None = None,
        status: grpc.StatusCode | None = None,
    ) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message
        self.metadata = {} if metadata is None else metadata
        self.violations = violations
        self.retry_after_s = retry_after_s
        self.status = status

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status."""
        if self.reason is not None:
            return self.reason.status
        return self.status or grpc.StatusCode.UNKNOWN

    def __str__(self) -> str:
        wrong = [f"{item.path}: {item.description}" for item in self.violations]
        return "\n  ".join([self.message, *(line for line in wrong if line != self.message)])


def invalid(path: str, description: str) -> DragomanError:
    """Return the error for one wrong field."""
    return invalid_fields([FieldViolation(path, description)])


def invalid_fields(violations: Sequence[FieldViolation], reason: Reason = Reason.INVALID_REQUEST) -> DragomanError:
    """Return the error for several wrong fields."""
    first = violations[0]
    return DragomanError(reason, f"{first.path}: {first.description}", violations=tuple(violations))


def not_supported(path: str, description: str) -> DragomanError:
    """Return the error for a set field that is not honoured here."""
    return invalid_fields([FieldViolation(path, description)], Reason.NOT_SUPPORTED)
