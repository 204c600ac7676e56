"""Statuses with reasons, and the one place where they become gRPC statuses and come back.

| reason | status | who is at fault |
| --- | --- | --- |
| INVALID_REQUEST, NOT_SUPPORTED, ADAPTER_REQUIRED, INVALID_ANSWER, INVALID_PAGE_TOKEN | INVALID_ARGUMENT |
  caller |
| ADAPTER_NOT_FOUND, RUN_NOT_FOUND, REQUEST_NOT_FOUND, SESSION_NOT_FOUND, AGENT_NOT_FOUND,
  ARTIFACT_NOT_FOUND, SERVICE_UNKNOWN | NOT_FOUND | caller |
| RUN_ID_REUSED, INPUT_ID_REUSED, ADAPTER_TAKEN, AGENT_EXISTS | ALREADY_EXISTS | caller |
| VERSION_MISMATCH | ABORTED | caller |
| CAPABILITY_MISSING, SESSION_BUSY, ALREADY_RESOLVED, REQUEST_EXPIRED, RUN_FINISHED, UPDATE_REFUSED, CHANGES_UNKNOWN,
  ARTIFACTS_GONE, REVISION_TOO_OLD, ADAPTER_UNREACHABLE, ADAPTER_REFUSED, ADAPTER_NOT_LAUNCHED,
  ADDRESS_UNTRUSTED, AGENT_INCOMPLETE | FAILED_PRECONDITION | state |
| TOKEN_REQUIRED | UNAUTHENTICATED | caller |
| CALLER_REFUSED, NOT_PERMITTED, POLICY_DENIED | PERMISSION_DENIED | caller |
| SEQUENCE_AHEAD | OUT_OF_RANGE | caller |
| SLOW_CONSUMER, TOO_MANY_RUNS, TOO_MANY_INPUTS, QUOTA_EXCEEDED, BUDGET_SPENT, MESSAGE_TOO_LARGE |
  RESOURCE_EXHAUSTED | load |
| ADAPTER_UNAVAILABLE, DRAINING, RUN_LOG_UNAVAILABLE, BREAKER_OPEN | UNAVAILABLE | a hop |
| NOT_IMPLEMENTED | UNIMPLEMENTED | version |
| INTERNAL | INTERNAL | us |

Nothing of an exception's text reaches a peer: only what is put into a ``DragomanError`` on purpose.
"""

import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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

    INVALID_REQUEST = "INVALID_REQUEST"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    ADAPTER_REQUIRED = "ADAPTER_REQUIRED"
    INVALID_ANSWER = "INVALID_ANSWER"
    INVALID_PAGE_TOKEN = "INVALID_PAGE_TOKEN"  # noqa: S105 - a reason, not a password
    ADAPTER_NOT_FOUND = "ADAPTER_NOT_FOUND"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    REQUEST_NOT_FOUND = "REQUEST_NOT_FOUND"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    AGENT_NOT_FOUND = "AGENT_NOT_FOUND"
    ARTIFACT_NOT_FOUND = "ARTIFACT_NOT_FOUND"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"
    RUN_ID_REUSED = "RUN_ID_REUSED"
    INPUT_ID_REUSED = "INPUT_ID_REUSED"
    ADAPTER_TAKEN = "ADAPTER_TAKEN"
    AGENT_EXISTS = "AGENT_EXISTS"
    VERSION_MISMATCH = "VERSION_MISMATCH"
    CAPABILITY_MISSING = "CAPABILITY_MISSING"
    SESSION_BUSY = "SESSION_BUSY"
    ALREADY_RESOLVED = "ALREADY_RESOLVED"
    REQUEST_EXPIRED = "REQUEST_EXPIRED"
    RUN_FINISHED = "RUN_FINISHED"
    UPDATE_REFUSED = "UPDATE_REFUSED"
    CHANGES_UNKNOWN = "CHANGES_UNKNOWN"
    ARTIFACTS_GONE = "ARTIFACTS_GONE"
    REVISION_TOO_OLD = "REVISION_TOO_OLD"
    ADAPTER_UNREACHABLE = "ADAPTER_UNREACHABLE"
    ADAPTER_REFUSED = "ADAPTER_REFUSED"
    ADAPTER_NOT_LAUNCHED = "ADAPTER_NOT_LAUNCHED"
    ADDRESS_UNTRUSTED = "ADDRESS_UNTRUSTED"
    AGENT_INCOMPLETE = "AGENT_INCOMPLETE"
    TOKEN_REQUIRED = "TOKEN_REQUIRED"  # noqa: S105 - a reason, not a password
    CALLER_REFUSED = "CALLER_REFUSED"
    NOT_PERMITTED = "NOT_PERMITTED"
    POLICY_DENIED = "POLICY_DENIED"
    SEQUENCE_AHEAD = "SEQUENCE_AHEAD"
    SLOW_CONSUMER = "SLOW_CONSUMER"
    TOO_MANY_RUNS = "TOO_MANY_RUNS"
    TOO_MANY_INPUTS = "TOO_MANY_INPUTS"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    BUDGET_SPENT = "BUDGET_SPENT"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    ADAPTER_UNAVAILABLE = "ADAPTER_UNAVAILABLE"
    DRAINING = "DRAINING"
    RUN_LOG_UNAVAILABLE = "RUN_LOG_UNAVAILABLE"
    BREAKER_OPEN = "BREAKER_OPEN"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    INTERNAL = "INTERNAL"


_I, _N, _A = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
)
_F, _R, _U = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
)

STATUS_BY_REASON: dict[Reason, grpc.StatusCode] = {
    Reason.INVALID_REQUEST: _I,
    Reason.NOT_SUPPORTED: _I,
    Reason.ADAPTER_REQUIRED: _I,
    Reason.INVALID_ANSWER: _I,
    Reason.INVALID_PAGE_TOKEN: _I,
    Reason.ADAPTER_NOT_FOUND: _N,
    Reason.RUN_NOT_FOUND: _N,
    Reason.REQUEST_NOT_FOUND: _N,
    Reason.SESSION_NOT_FOUND: _N,
    Reason.AGENT_NOT_FOUND: _N,
    Reason.ARTIFACT_NOT_FOUND: _N,
    Reason.SERVICE_UNKNOWN: _N,
    Reason.RUN_ID_REUSED: _A,
    Reason.INPUT_ID_REUSED: _A,
    Reason.ADAPTER_TAKEN: _A,
    Reason.AGENT_EXISTS: _A,
    Reason.VERSION_MISMATCH: grpc.StatusCode.ABORTED,
    Reason.CAPABILITY_MISSING: _F,
    Reason.SESSION_BUSY: _F,
    Reason.ALREADY_RESOLVED: _F,
    Reason.REQUEST_EXPIRED: _F,
    Reason.RUN_FINISHED: _F,
    Reason.UPDATE_REFUSED: _F,
    Reason.CHANGES_UNKNOWN: _F,
    Reason.ARTIFACTS_GONE: _F,
    Reason.REVISION_TOO_OLD: _F,
    Reason.ADAPTER_UNREACHABLE: _F,
    Reason.ADAPTER_REFUSED: _F,
    Reason.ADAPTER_NOT_LAUNCHED: _F,
    Reason.ADDRESS_UNTRUSTED: _F,
    Reason.AGENT_INCOMPLETE: _F,
    Reason.TOKEN_REQUIRED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.CALLER_REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.NOT_PERMITTED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.POLICY_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.SEQUENCE_AHEAD: grpc.StatusCode.OUT_OF_RANGE,
    Reason.SLOW_CONSUMER: _R,
    Reason.TOO_MANY_RUNS: _R,
    Reason.TOO_MANY_INPUTS: _R,
    Reason.QUOTA_EXCEEDED: _R,
    Reason.BUDGET_SPENT: _R,
    Reason.MESSAGE_TOO_LARGE: _R,
    Reason.ADAPTER_UNAVAILABLE: _U,
    Reason.DRAINING: _U,
    Reason.RUN_LOG_UNAVAILABLE: _U,
    Reason.BREAKER_OPEN: _U,
    Reason.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}


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
            return STATUS_BY_REASON[self.reason]
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
    reason = Reason(text) if text in Reason.__members__ else None
    return reason if reason is not None and STATUS_BY_REASON[reason] is code else None


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
