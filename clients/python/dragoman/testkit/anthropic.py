"""The Anthropic Messages dialect: ``POST /v1/messages``, streamed or not, and its error bodies."""

import json
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from dragoman.testkit.conversation import Conversation, fill, fill_text, steers
from dragoman.testkit.http1 import HttpRequest
from dragoman.testkit.scenarios import Block, Failure, Reply, Text, Thinking, Tool, Usage

_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_HARNESS = ("<system-reminder>", "<task-notification>", "[Request interrupted by user")


class AnthropicMessages:
    """Speaks Anthropic Messages; see `dragoman.testkit.dialect.Dialect`."""

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

    def events(self, reply: Reply, conversation: Conversation, number: int) -> Iterator[bytes]:
        """Render the server-sent events of a reply."""
        for event in stream_events(reply, conversation, number):
            yield sse(event)

    def whole(self, reply: Reply, conversation: Conversation, number: int) -> object:
        """Render a reply as one ``message`` object."""
        message = _message(conversation, number, reply.usage)
        message["content"] = [
            _whole_block(block, conversation, _tool_id(number, index)) for index, block in enumerate(reply.blocks)
        ]
        message["stop_reason"] = _stop_reason(reply)
        message["usage"]["output_tokens"] = reply.usage.output
        return message

    def failure(self, failure: Failure, conversation: Conversation) -> object:
        """Render an error body."""
        kind = failure.kind or _KINDS.get(failure.status, "api_error")
        message = fill_text(failure.message, conversation)
        error = {"type": kind, "message": message}
        return {"type": "error", "error": error, "request_id": "req_scripted"}

    def failure_event(self, failure: Failure, conversation: Conversation) -> bytes:
        """Render an ``error`` event inside a stream."""
        body = self.failure(failure, conversation)
        assert isinstance(body, dict)
        return sse(body)


def sse(event: Mapping[str, Any]) -> bytes:
    """Frame one event; non-ASCII characters travel raw."""
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def read_conversation(body: Mapping[str, Any], session: str = "") -> Conversation:
    """Reduce a Messages request body to what scripts look at.

    Args:
        body: The parsed request.
        session: What tells agent sessions apart, if a header said so.

    Returns:
        The conversation; odd or missing parts read as empty.
    """
    texts: list[tuple[int, str]] = []
    results: list[tuple[int, str, str]] = []  # sorted by call, as agents report them by completion
    system = [_flat(body.get("system"))]
    for index, message in enumerate(body.get("messages") or ()):
        if message.get("role") == "system":
            system.append(_flat(message.get("content")))
        elif message.get("role") == "user":
            for call_id, text in _user_parts(message.get("content")):
                if call_id is None:
                    texts.append((index, text))
                else:
                    results.append((index, call_id, text))
    typed = [(index, text) for index, text in texts if not text.lstrip().startswith(_HARNESS)]
    at, prompt = _chosen(typed)
    after = [(index, text) for index, _, text in sorted(results) if index > at]
    later = sorted([*(t for t in texts if t[0] > at), *after], key=itemgetter(0))
    return Conversation(
        user_texts=tuple(text for _, text in typed),
        later_texts=tuple(text for _, text in later),
        tool_results=tuple(text for _, text in after),
        rounds=len({index for index, _ in after}),
        prompt=prompt,
        prompt_number=sum(index <= at for index, _ in typed),
        tools=tuple(str(tool.get("name", "")) for tool in body.get("tools") or ()),
        model=str(body.get("model", "")),
        system="\n".join(system),
        stream=bool(body.get("stream")),
        session=session,
    )


def _chosen(typed: list[tuple[int, str]]) -> tuple[int, str]:
    """Return index and text of the prompt: the last that steers the model, else the last."""
    for index, text in reversed(typed):
        if steers(text):
            return index, text
    return typed[-1] if typed else (-1, "")


def _user_parts(content: object) -> Iterator[tuple[str | None, str]]:
    """Yield the parts of a user message: the call a result belongs to, or None for text; its text."""
    if isinstance(content, str):
        yield None, content
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "text":
            yield None, str(part.get("text", ""))
        elif part.get("type") == "tool_result":
            yield str(part.get("tool_use_id", "")), _flat(part.get("content"))


def _flat(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if "text" in part)


def stream_events(reply: Reply, conversation: Conversation, number: int) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a streamed reply, unframed.

    Args:
        reply: What to say.
        conversation: The request, for its placeholders and model.
        number: Makes message and tool ids unique.
    """
    yield {"type": "message_start", "message": _message(conversation, number, reply.usage)}
    for index, block in enumerate(reply.blocks):
        yield from _block_events(index, block, conversation, _tool_id(number, index))
    delta = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    usage = _usage(reply.usage, reply.usage.output)
    yield {"type": "message_delta", "delta": delta, "usage": usage}
    yield {"type": "message_stop"}


def _block_events(index: int, block: Block, conversation: Conversation, tool_id: str) -> Iterator[Mapping[str, Any]]:
    start, deltas = _block_parts(block, conversation, tool_id)
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _block_parts(
    block: Block, conversation: Conversation, tool_id: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the opening of a content block and its deltas."""
    if isinstance(block, Text):
        text = fill_text(block.text, conversation)
        pieces = [{"type": "text_delta", "text": piece} for piece in _cut(text, block.chunk)]
        return {"type": "text", "text": ""}, pieces
    if isinstance(block, Thinking):
        text = fill_text(block.text, conversation)
        pieces = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(text, block.chunk)]
        pieces.append({"type": "signature_delta", "signature": "c2NyaXB0ZWQ="})
        return {"type": "thinking", "thinking": "", "signature": ""}, pieces
    name, inputs = _call(block, conversation)
    text = json.dumps(inputs, ensure_ascii=False)
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _cut(text, block.chunk)]
    return {"type": "tool_use", "id": tool_id, "name": name, "input": {}}, pieces


def _whole_block(block: Block, conversation: Conversation, tool_id: str) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": fill_text(block.text, conversation)}
    if isinstance(block, Thinking):
        text = fill_text(block.text, conversation)
        return {"type": "thinking", "thinking": text, "signature": "c2NyaXB0ZWQ="}
    name, inputs = _call(block, conversation)
    return {"type": "tool_use", "id": tool_id, "name": name, "input": inputs}


def _call(tool: Tool, conversation: Conversation) -> tuple[str, dict[str, object]]:
    inputs = fill(tool.inputs, conversation)
    assert isinstance(inputs, dict)
    return tool.action, inputs


def _cut(text: str, size: int) -> list[str]:
    if size <= 0:
        return [text]
    return [text[at : at + size] for at in range(0, len(text), size)]


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
    if reply.stop_reason is not None:
        return reply.stop_reason
    return "tool_use" if any(isinstance(block, Tool) for block in reply.blocks) else "end_turn"


def _tool_id(number: int, index: int) -> str:
    return f"toolu_{number:06d}_{index}"
