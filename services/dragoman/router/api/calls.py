"""What the services do alike with a call: read and check its request, keep its deadline."""

from typing import Any, TypeVar

from dragoman.protocol.bounds import check_request
from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.server import Context
from dragoman.router.api.validation import Objection
from google.protobuf.message import DecodeError, Message

_MARGIN_S = 0.05
"""What is kept of a caller's deadline, so that the error for passing it is the adapter's and has a reason."""

Request = TypeVar("Request", bound=Message)


def read(kind: type[Request], data: bytes) -> Request:
    """Parse a request that is within the contract's bounds.

    Raises:
        DragomanError: INVALID_REQUEST, or MESSAGE_TOO_LARGE.
    """
    check_request(kind.DESCRIPTOR, data)  # type: ignore[arg-type]  # the stubs have two types of descriptors
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise DragomanError(Reason.INVALID_REQUEST, f"The request is not a valid {kind.DESCRIPTOR.name}.") from error


def refuse(objection: Objection | None) -> None:
    """Raise an objection to a request, if there is one."""
    if objection is not None:
        raise invalid(*objection)


def remaining_s(context: Context) -> float | None:
    """Return how long an adapter may take to answer; ``None`` if the caller has no deadline."""
    left: Any = context.time_remaining()  # None without a deadline, which the stubs do not say
    return None if left is None else max(left - _MARGIN_S, 0.001)
