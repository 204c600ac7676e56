"""One side of a JSON-RPC 2.0 conversation, one message a line. Pure: lines in, messages out, and lines for them.

Ids of the two sides have nothing to do with each other. What fits nothing is returned as ``Stray``, and what is no
message at all as None; nothing in a line raises.
"""

import json
from collections.abc import Mapping
from typing import Final, Generic, TypeAlias, TypeVar

from dragoman.sdk._encoding.config import as_int, as_object
from dragoman.sdk._encoding.fields import Fields, text
from dragoman.sdk._encoding.json_text import JsonValue, parse_json_object
from msgspec import Struct

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

RequestId: TypeAlias = str | int | float | None
"""An id of the other side, given back as it came."""

Tag = TypeVar("Tag")


class RpcError(Struct, frozen=True):
    """An error response."""

    code: int | None
    """None if it has none that is a number."""
    message: str
    data: JsonValue = None


class Request(Struct, frozen=True):
    """The other side wants an answer."""

    id: RequestId
    method: str
    params: Fields


class Notification(Struct, frozen=True):
    """A notification from the other side."""

    method: str
    params: Fields


class Response(Struct, Generic[Tag], frozen=True):
    """The other side answers a request of ours."""

    tag: Tag
    """What the request was made with."""
    result: JsonValue = None
    error: RpcError | None = None

    @property
    def fields(self) -> Fields:
        """The result, if it is an object; else empty."""
        return as_object(self.result, {})


class Stray(Struct, frozen=True):
    """An answer without a pending request: never requested, or answered before."""

    error: RpcError | None = None


class Peer(Generic[Tag]):
    """Our side of a conversation.

    Args:
        says_version: whether messages have the member ``jsonrpc``, as the standard wants; some programs leave it out.
    """

    def __init__(self, *, says_version: bool = True) -> None:
        self._base: dict[str, object] = {"jsonrpc": "2.0"} if says_version else {}
        self._pending: dict[int, Tag] = {}
        self._last_id = 0

    @property
    def pending(self) -> tuple[Tag, ...]:
        """The tags of the requests that wait for their answer, oldest first."""
        return tuple(self._pending.values())

    def request(self, method: str, params: Mapping[str, object], tag: Tag) -> bytes:
        """Return the line of a request; its answer comes back with ``tag``."""
        self._last_id += 1
        self._pending[self._last_id] = tag
        return self._line({"id": self._last_id, "method": method, "params": params})

    def notify(self, method: str, params: Mapping[str, object] | None = None) -> bytes:
        """Return the line of a notification."""
        return self._line({"method": method} if params is None else {"method": method, "params": params})

    def result(self, request_id: RequestId, result: object) -> bytes:
        """Return the line that answers a request."""
        return self._line({"id": request_id, "result": result})

    def error(self, request_id: RequestId, code: int, message: str) -> bytes:
        """Return the line that refuses a request."""
        return self._line({"id": request_id, "error": {"code": code, "message": message}})

    def read(self, data: bytes) -> Request | Notification | Response[Tag] | Stray | None:
        """Understand a line. None: it is no message."""
        frame = parse_json_object(data)
        if frame is None:
            return None
        method = frame.get("method")
        if isinstance(method, str) and method:
            params = as_object(frame.get("params"), {})
            if "id" not in frame:
                return Notification(method, params)
            is_id, request_id = _read_id(frame["id"])
            return Request(request_id, method, params) if is_id else None
        if "id" not in frame or not ("result" in frame or "error" in frame):
            return None
        return self._response(frame)

    def _response(self, frame: Fields) -> Response[Tag] | Stray:
        error = _read_error(frame["error"]) if frame.get("error") is not None else None
        is_id, response_id = _read_id(frame["id"])
        if not is_id or not isinstance(response_id, int) or response_id not in self._pending:
            return Stray(error)
        return Response(self._pending.pop(response_id), frame.get("result"), error)

    def _line(self, members: Mapping[str, object]) -> bytes:
        # ASCII only: no character of a text can end the line, or be half of a pair.
        return json.dumps({**self._base, **members}).encode() + b"\n"


def answer_to(request_id: int, line: str) -> Fields:
    """Return the answer to one request, if a line is that; else empty. For programs that are asked one thing."""
    frame = parse_json_object(line.encode()) or {}
    return frame if frame.get("id") == request_id and "method" not in frame else {}


def _read_id(value: JsonValue) -> tuple[bool, RequestId]:
    """Return whether ``value`` can be an id, and the id. Truth values compare like numbers, and are none."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return True, value
    return False, None


def _read_error(value: JsonValue) -> RpcError:
    if not isinstance(value, dict):
        return RpcError(None, value if isinstance(value, str) else "", value)
    return RpcError(as_int(value.get("code"), None), text(value, "message"), value.get("data"))
