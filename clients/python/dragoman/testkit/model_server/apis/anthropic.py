"""The Anthropic Messages API: ``POST /v1/messages``, streamed or not, and its error bodies."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.testkit.model_server.api import ErrorAnswer, cut, flat, sse
from dragoman.testkit.model_server.conversation import Conversation, Part, read_parts
from dragoman.testkit.model_server.http1 import HttpRequest
from dragoman.testkit.model_server.script import Block, Cause, Failure, Reply, Text, Thinking, Tool, Usage
from msgspec import Struct, field

_WINDOW = "anthropic-ratelimit-unified"


class _Wording(Struct, frozen=True):
    status: int
    kind: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


_WORDINGS: Mapping[Cause, _Wording] = {
    "unauthorized": _Wording(401, "authentication_error", "invalid x-api-key"),
    "forbidden": _Wording(
        403, "permission_error", "Your API key does not have permission to use the specified resource."
    ),
    "rate_limited": _Wording(429, "rate_limit_error", "This request would exceed your rate limit."),
    "quota": _Wording(
        429,
        "rate_limit_error",
        "This request would exceed your account's usage limit.",
        {  # by which the vendor reports a subscription's five-hour window
            f"{_WINDOW}-status": "rejected",
            f"{_WINDOW}-reset": "4102444800",
            f"{_WINDOW}-representative-claim": "five_hour",
            f"{_WINDOW}-5h-status": "rejected",
            f"{_WINDOW}-5h-reset": "4102444800",
            f"{_WINDOW}-5h-utilization": "1.0",
        },
    ),
    "no_credit": _Wording(
        400,
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. "
        "Please go to Plans & Billing to upgrade or purchase credits.",
    ),
    "overflow": _Wording(400, "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
    "no_model": _Wording(404, "not_found_error", "model: {model}"),
    "malformed": _Wording(400, "invalid_request_error", "scripted failure"),
    "overloaded": _Wording(529, "overloaded_error", "Overloaded"),
    "server_error": _Wording(500, "api_error", "Internal server error"),
}


class AnthropicMessages:
    """Speaks Anthropic Messages; see `dragoman.testkit.model_server.api.ModelApi`."""

    name = "anthropic"

    def conversation(self, request: HttpRequest) -> Conversation | None:
        """Read ``POST /v1/messages``; None for anything else."""
        if request.method != "POST" or request.path != "/v1/messages":
            return None
        body = request.json()
        if not isinstance(body, dict):
            return None
        return read_conversation(body, request.headers.get("x-claude-code-session-id", ""))

    def aside(self, request: HttpRequest) -> object | None:
        """Answer ``POST /v1/messages/count_tokens`` with a quarter of the bytes."""
        if request.method == "POST" and request.path == "/v1/messages/count_tokens":
            return {"input_tokens": len(request.body) // 4}
        return None

    def events(
        self, reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
    ) -> Iterator[bytes]:
        """Render the server-sent events of a reply; ``ending`` becomes its ``error`` event."""
        for event in stream_events(reply, conversation, number, ending):
            yield sse(event, event["type"])

    def whole(self, reply: Reply, conversation: Conversation, number: int) -> object:
        """Render a reply as one ``message`` object."""
        message = _message(conversation, number, reply.usage)
        message["content"] = [
            _whole_block(block, _tool_id(number, index)) for index, block in enumerate(reply.blocks)
        ]
        message["stop_reason"] = _stop_reason(reply)
        message["usage"]["output_tokens"] = reply.usage.output
        return message

    def failure(self, failure: Failure, conversation: Conversation) -> ErrorAnswer:
        """Render an error answer."""
        wording = _WORDINGS[failure.cause]
        headers = dict(wording.headers)
        if failure.retry_after_s is not None:
            headers["retry-after"] = str(failure.retry_after_s)
        message = failure.message or wording.message.replace("{model}", conversation.model)
        error = {"type": wording.kind, "message": message}
        body = {"type": "error", "error": error, "request_id": "req_scripted"}
        return ErrorAnswer(wording.status, body, headers)


def read_conversation(body: Mapping[str, Any], session: str = "") -> Conversation:
    """Reduce a Messages request body to what scripts use.

    Args:
        body: The parsed request.
        session: What distinguishes agent sessions, if a header does.

    Returns:
        The conversation; odd or missing parts read as empty.
    """
    parts: list[Part] = []
    system = [flat(body.get("system"))]
    for turn, message in enumerate(body.get("messages") or ()):
        if message.get("role") == "system":
            system.append(flat(message.get("content")))
        elif message.get("role") == "user":
            parts += [Part(turn, text, call) for call, text in _user_parts(message.get("content"))]
    request = Conversation(
        tools=tuple(str(tool.get("name", "")) for tool in body.get("tools") or ()),
        model=str(body.get("model", "")),
        system="\n".join(system),
        stream=bool(body.get("stream")),
        session=session,
    )
    return read_parts(parts, request)


def _user_parts(content: object) -> Iterator[tuple[str | None, str]]:
    """Yield the parts of a user message: the call a result belongs to, or None for text; its text."""
    if isinstance(content, str):
        yield None, content
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "text":
            yield None, str(part.get("text", ""))
        elif part.get("type") == "tool_result":
            yield str(part.get("tool_use_id", "")), flat(part.get("content"))


def stream_events(
    reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a streamed reply, unframed.

    Args:
        reply: The reply.
        conversation: The request, for its model.
        number: Makes message and tool ids unique.
        ending: An error that ends the stream instead.
    """
    yield {"type": "message_start", "message": _message(conversation, number, reply.usage)}
    for index, block in enumerate(reply.blocks):
        yield from _block_events(index, block, _tool_id(number, index))
    if ending is not None:
        error = AnthropicMessages().failure(ending, conversation).body
        assert isinstance(error, dict)
        yield error
        return
    delta = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    usage = _usage(reply.usage, reply.usage.output)
    yield {"type": "message_delta", "delta": delta, "usage": usage}
    yield {"type": "message_stop"}


def _block_events(index: int, block: Block, tool_id: str) -> Iterator[Mapping[str, Any]]:
    start, deltas = _block_parts(block, tool_id)
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _block_parts(block: Block, tool_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the opening of a content block and its deltas."""
    if isinstance(block, Text):
        pieces = [{"type": "text_delta", "text": piece} for piece in cut(block.text, block.chunk)]
        return {"type": "text", "text": ""}, pieces
    if isinstance(block, Thinking):
        pieces = [{"type": "thinking_delta", "thinking": piece} for piece in cut(block.text, block.chunk)]
        pieces.append({"type": "signature_delta", "signature": "c2NyaXB0ZWQ="})
        return {"type": "thinking", "thinking": "", "signature": ""}, pieces
    text = json.dumps(block.inputs, ensure_ascii=False)
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(text, block.chunk)]
    return {"type": "tool_use", "id": tool_id, "name": block.action, "input": {}}, pieces


def _whole_block(block: Block, tool_id: str) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        return {"type": "thinking", "thinking": block.text, "signature": "c2NyaXB0ZWQ="}
    return {"type": "tool_use", "id": tool_id, "name": block.action, "input": block.inputs}


def _message(conversation: Conversation, number: int, usage: Usage) -> dict[str, Any]:
    return {
        "id": f"msg_{number:06d}",
        "type": "message",
        "role": "assistant",
        "model": conversation.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage, 1),
    }


def _usage(usage: Usage, output: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": output,
        "service_tier": "standard",
    }


def _stop_reason(reply: Reply) -> str:
    if reply.stop is not None:
        return reply.stop  # the vendor's terms are the neutral ones
    return "tool_use" if any(isinstance(block, Tool) for block in reply.blocks) else "end_turn"


def _tool_id(number: int, index: int) -> str:
    return f"toolu_{number:06d}_{index}"
