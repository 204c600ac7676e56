"""JSON-RPC 2.0 with an agent, for adapter authors: ``from dragoman.sdk import jsonrpc``."""

from dragoman.sdk._framing import with_length
from dragoman.sdk._jsonrpc import METHOD_NOT_FOUND, Notification, Peer, Request, Response, RpcError, Stray

__all__ = ["METHOD_NOT_FOUND", "Notification", "Peer", "Request", "Response", "RpcError", "Stray", "with_length"]
