"""Statuses with reasons, and the one place where they become gRPC statuses and come back.

Nothing of an exception's text reaches a peer: only what is put into a ``DragomanError`` on purpose.
"""

import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import grpc
from dragoman.protocol.limits import MAX_TRAILER_BYTES
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from msgspec import Struct

DOMAIN = "dragoman"
"""ErrorInfo.domain of every status."""

_FITS = ((100, 1500, 500), (16, 800, 200), (4, 240, 60), (1, 80, 20))
"""Tried in turn until the trailers are small enough: violations, characters of the message, of a value."""


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


@dataclass(eq=False)
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

    reason: Reason | None
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Sequence[FieldViolation] = ()
    retry_after_s: float | None = None
    status: grpc.StatusCode | None = None
    details: Sequence[any_pb2.Any] = ()

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


def invalid_fields(violations: Sequence[FieldViolation]) -> DragomanError:
    """Return the error for several wrong fields."""
    first = violations[0]
    return DragomanError(Reason.INVALID_REQUEST, f"{first.path}: {first.description}", violations=tuple(violations))


def not_supported(path: str, description: str) -> DragomanError:
    """Return the error for a set field that is not honoured here."""
    return DragomanError(
        Reason.NOT_SUPPORTED, f"{path}: {description}", violations=(FieldViolation(path, description),)
    )


def to_status(error: DragomanError) -> grpc.Status:
    """Return the gRPC status of ``error``, cut to the trailers' size limit."""
    tried = itertools.chain(_passed_on(error), (_status_proto(error, *sizes) for sizes in _FITS))
    small = next((proto for proto in tried if _trailer_bytes(proto) <= MAX_TRAILER_BYTES), None)
    from grpc_status import rpc_status  # noqa: PLC0415 - most processes never fail a call

    return rpc_status.to_status(small or _status_proto(error, *_FITS[-1]))


def _passed_on(error: DragomanError) -> Iterator[status_pb2.Status]:
    if error.details:
        yield status_pb2.Status(code=error.code.value[0], message=error.message, details=error.details)


def _trailer_bytes(proto: status_pb2.Status) -> int:
    """Return what the status takes on the wire: the text percent-encoded, all of it again in base64."""
    text = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in proto.message.encode())
    details: int = proto.ByteSize()
    return text + (details + 2) // 3 * 4


def _status_proto(
    error: DragomanError, violations: int, message_characters: int, value_characters: int
) -> status_pb2.Status:
    def cut(text: str, characters: int = value_characters) -> str:
        # A lone surrogate, as in the name of a file, must not keep an error from being reported.
        return text[:characters].encode("utf-8", "replace").decode()

    details: list[any_pb2.Any] = []
    if error.reason is not None:
        metadata = {cut(key): cut(value) for key, value in list(error.metadata.items())[:16]}
        details.append(
            _pack(error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=metadata))
        )
    if error.violations:
        bad = error_details_pb2.BadRequest()
        for item in error.violations[:violations]:
            bad.field_violations.add(field=cut(item.path), description=cut(item.description))
        details.append(_pack(bad))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    message = cut(error.message, message_characters)
    return status_pb2.Status(code=error.code.value[0], message=message, details=details)


def _pack(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def from_rpc_error(error: grpc.RpcError) -> DragomanError:
    """Return what a peer's status says.

    Args:
        error: a ``grpc.RpcError`` that is also a call, as both grpc and grpc.aio raise them.
    """
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    text = error.details() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else ""
    reason: Reason | None = None
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    retry: float | None = None
    details = _details(error)
    for packed in details:
        info, bad, when = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        if _unpack(packed, info) and info.domain == DOMAIN:
            reason = _known_reason(info.reason, code)
            metadata = dict(info.metadata)
        elif _unpack(packed, bad):
            violations = [FieldViolation(v.field, v.description) for v in bad.field_violations]
        elif _unpack(packed, when):
            retry = when.retry_delay.ToNanoseconds() / 1e9
    return DragomanError(reason, text or code.name, metadata, tuple(violations), retry, code, tuple(details))


def is_explained(error: DragomanError) -> bool:
    """Return whether a peer's status speaks of the contract, in a message that is meant for callers.

    A status without our ErrorInfo may be made by a library of an exception, and quote it.
    """
    info = error_details_pb2.ErrorInfo()
    return any(_unpack(packed, info) and info.domain == DOMAIN for packed in error.details)


def _known_reason(text: str, code: grpc.StatusCode) -> Reason | None:
    # A later peer may know more reasons; then the status alone decides.
    reason = Reason[text] if text in Reason.__members__ else None
    return reason if reason is not None and reason.status is code else None


# A peer's broken detail must not hide its status: what cannot be read is left out.


def _details(error: grpc.RpcError) -> list[any_pb2.Any]:
    trailers = error.trailing_metadata() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    for key, value in trailers or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []
    return []


def _unpack(packed: any_pb2.Any, into: Message) -> bool:
    try:
        return packed.Unpack(into)
    except DecodeError:
        return False
