"""The one place where errors with reasons become gRPC statuses with details, and come back.

It is imported where a call fails: few processes need what it imports from their start on.
"""

import itertools
from collections.abc import Iterator

import grpc
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason
from dragoman.protocol.limits import MAX_TRAILER_BYTES
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "dragoman"
"""ErrorInfo.domain of every status."""

_FITS = ((100, 1500, 500), (16, 800, 200), (4, 240, 60), (1, 80, 20))
"""Tried in turn until the trailers are small enough: violations, characters of the message, of a value."""


def to_status(error: DragomanError) -> grpc.Status:
    """Return the gRPC status of ``error``, cut to the trailers' size limit."""
    tried = itertools.chain(_passed_on(error), (_status_proto(error, *sizes) for sizes in _FITS))
    small = next((proto for proto in tried if _trailer_bytes(proto) <= MAX_TRAILER_BYTES), None)
    from grpc_status import rpc_status  # noqa: PLC0415 - a client never fails a call

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
    failure = DragomanError(reason, text or code.name, metadata, tuple(violations), retry, code)
    failure.details = tuple(details)
    return failure


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
