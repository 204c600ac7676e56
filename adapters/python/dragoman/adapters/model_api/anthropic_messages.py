"""Anthropic's Messages API: its requests and its stream. Pure.

Facts of its documentation: usage in ``message_delta`` is cumulative and replaces that of ``message_start``;
``message_stop`` ends a stream properly, and one without it was cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dragoman.adapters.model_api.reply import Message, Reply, Stop
from dragoman.adapters.model_api.tools import Tool
from dragoman.sdk import fields as read
from dragoman.sdk.fields import Fields, JsonValue
from dragoman.v1 import event_pb2 as pb

DEFAULT_MAX_TOKENS: Final = 32_000
"""Tokens of an answer without a setting; the API requires a number."""

_STOPS: Final[Mapping[str, Stop]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tools",
    "max_tokens": "length",
    "refusal": "refusal",
    "model_context_window_exceeded": "context",
}
_TOKENS: Final = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
}


def arguments(
    model: str, system: str, messages: Sequence[Message], tools: Sequence[Tool], config: Mapping[str, JsonValue]
) -> dict[str, Any]:
    """Return the arguments of the SDK's ``messages.create`` for the next answer."""
    request: dict[str, Any] = {
        "model": model,
        "max_tokens": config.get("maxTokens") or DEFAULT_MAX_TOKENS,
        "messages": _with_mark(messages),
        "tools": [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in tools
        ],
        "stream": True,
    }
    if system:
        request["system"] = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
    if config.get("effort"):
        request["output_config"] = {"effort": config["effort"]}
    if config.get("thinking") is True:
        request["thinking"] = {"type": "adaptive", "display": "summarized"}
    return request


def _with_mark(messages: Sequence[Message]) -> list[Message]:
    """Mark the end of the conversation for the vendor's cache: the next request repeats it."""
    *before, last = messages
    content = last["content"]
    assert isinstance(content, list)
    *blocks, end = content
    assert isinstance(end, dict)
    return [*before, {**last, "content": [*blocks, {**end, "cache_control": {"type": "ephemeral"}}]}]


class AnthropicReader:
    """Follows one streamed message."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def take(self, data: Fields) -> Iterator[pb.AgentEvent]:
        """Handle one event of the stream."""
        index = str(read.count(data, "index") or 0)
        match read.text(data, "type"):
            case "message_start":
                message = read.inner(data, "message")
                self.reply.model = read.text(message, "model")
                self._count(read.inner(message, "usage"))
            case "content_block_start":
                yield from self._begin(index, read.inner(data, "content_block"))
            case "content_block_delta":
                yield from self._delta(index, read.inner(data, "delta"))
            case "content_block_stop":
                yield from self.reply.close(index)
            case "message_delta":
                self.reply.stop_word = read.text(read.inner(data, "delta"), "stop_reason")
                self._count(read.inner(data, "usage"))
            case "message_stop":
                # An unknown reason still means that it ended properly.
                self.reply.stop = _STOPS.get(self.reply.stop_word, "end")

    def _begin(self, index: str, block: Fields) -> Iterator[pb.AgentEvent]:
        kind = read.text(block, "type")
        if kind == "tool_use":
            yield from self.reply.call(index, read.text(block, "id"), read.text(block, "name"))
        elif kind in {"text", "thinking"}:
            opened = self.reply.open(kind, index)
            opened.signature = read.text(block, "signature")
            yield from self.reply.words("text" if kind == "text" else "thinking", index, read.text(block, kind))
        elif kind == "redacted_thinking":
            self.reply.open(kind, index).parts.append(read.text(block, "data"))

    def _delta(self, index: str, delta: Fields) -> Iterator[pb.AgentEvent]:
        block = self.reply.blocks.get(index)
        kind = read.text(delta, "type")
        if kind == "text_delta" and (block is None or block.kind == "text"):
            yield from self.reply.words("text", index, read.text(delta, "text"))
        elif kind == "thinking_delta" and (block is None or block.kind == "thinking"):
            yield from self.reply.words("thinking", index, read.text(delta, "thinking"))
        elif kind == "signature_delta" and block is not None:
            block.signature += read.text(delta, "signature")
        elif kind == "input_json_delta" and block is not None and block.kind == "tool_use":
            block.parts.append(read.text(delta, "partial_json"))

    def _count(self, usage: Fields) -> None:
        for theirs, ours in _TOKENS.items():
            value = read.count(usage, theirs)
            if value is not None:
                self.reply.counts[ours] = value
        thought = read.count(read.inner(usage, "output_tokens_details"), "thinking_tokens")
        if thought is not None:
            self.reply.counts["reasoning"] = thought
