"""JSON-RPC 2.0 with an agent."""

from dragoman.sdk._encoding.framing import with_length
from dragoman.sdk._encoding.jsonrpc import (
    METHOD_NOT_FOUND,
    Notification,
    Peer,
    Request,
    Response,
    RpcError,
    Stray,
    answer_to,
)

__all__ = [
    "METHOD_NOT_FOUND",
    "Notification",
    "Peer",
    "Request",
    "Response",
    "RpcError",
    "Stray",
    "answer_to",
    "with_length",
]
