"""OpenAI's chat.completions, which many others serve too: its requests and its stream. Pure.

OpenAI has no field for reasoning; compatible servers send ``reasoning_content`` or ``reasoning``. ``prompt_tokens``
includes tokens read from a cache; the contract's ``input`` does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dragoman.adapters.model_api.reply import Message, Reply, Stop
from dragoman.adapters.model_api.tools import Tool
from dragoman.sdk import fields as read
from dragoman.sdk.fields import Fields, JsonValue, compact
from dragoman.v1 import event_pb2 as pb

_STOPS: Final[Mapping[str, Stop]] = {
    "stop": "end",
    "tool_calls": "tools",
    "function_call": "tools",
    "length": "length",
    "content_filter": "refusal",
}
_TEXT: Final = "text"
_THINKING: Final = "thinking"


def arguments(
    model: str, system: str, messages: Sequence[Message], tools: Sequence[Tool], config: Mapping[str, JsonValue]
) -> dict[str, Any]:
    """Return the arguments of the SDK's ``chat.completions.create`` for the next answer."""
    translated = [item for message in messages for item in _translated(message)]
    if system:
        translated.insert(0, {"role": "system", "content": system})
    request: dict[str, Any] = {
        "model": model,
        "messages": translated,
        "tools": [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in tools
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if config.get("maxTokens"):
        request["max_completion_tokens"] = config["maxTokens"]
    if config.get("effort"):
        request["reasoning_effort"] = config["effort"]
    return request


def _translated(message: Message) -> Iterator[dict[str, Any]]:
    blocks = read.objects(message, "content")
    text = "\n\n".join(read.text(block, "text") for block in blocks if block.get("type") == "text")
    if message.get("role") == "assistant":
        calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
        if text or calls:  # this format has no thinking
            yield {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        return
    for block in blocks:  # results have to follow the calls that they answer
        if block.get("type") == "tool_result":
            content = read.text(block, "content")
            yield {"role": "tool", "tool_call_id": read.text(block, "tool_use_id"), "content": content}
    images = [_image(block) for block in blocks if block.get("type") == "image"]
    if text or images:
        yield {"role": "user", "content": [*images, {"type": "text", "text": text}] if images else text}


def _image(block: Fields) -> dict[str, Any]:
    source = read.inner(block, "source")
    url = f"data:{read.text(source, 'media_type')};base64,{read.text(source, 'data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Fields) -> dict[str, Any]:
    function = {"name": read.text(block, "name"), "arguments": compact(dict(read.inner(block, "input")))}
    return {"id": read.text(block, "id"), "type": "function", "function": function}


class OpenAIReader:
    """Follows one streamed completion."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._refused = False

    def take(self, data: Fields) -> Iterator[pb.AgentEvent]:
        """Handle one chunk of the stream."""
        self.reply.model = read.text(data, "model") or self.reply.model
        self._count(read.inner(data, "usage"))
        for choice in read.objects(data, "choices")[:1]:
            yield from self._delta(read.inner(choice, "delta"))
            word = read.text(choice, "finish_reason")
            if word:
                yield from self._end(word)

    def _delta(self, delta: Fields) -> Iterator[pb.AgentEvent]:
        thought = read.text(delta, "reasoning_content") or read.text(delta, "reasoning")
        if thought:
            yield from self.reply.words("thinking", _THINKING, thought)
        refusal = read.text(delta, "refusal")
        self._refused = self._refused or bool(refusal)
        words = read.text(delta, "content") or refusal
        if words:
            yield from self.reply.words("text", _TEXT, words)
        for call in read.objects(delta, "tool_calls"):
            yield from self._call(call)

    def _call(self, call: Fields) -> Iterator[pb.AgentEvent]:
        function = read.inner(call, "function")
        key = f"call-{read.count(call, 'index') or 0}"
        if key not in self.reply.blocks:
            yield from self.reply.call(key, read.text(call, "id"), read.text(function, "name"))
        self.reply.blocks[key].parts.append(read.text(function, "arguments"))

    def _end(self, word: str) -> Iterator[pb.AgentEvent]:
        yield from self.reply.close_all()
        self.reply.stop_word = word
        self.reply.stop = "refusal" if self._refused else _STOPS.get(word, "end")

    def _count(self, usage: Fields) -> None:
        prompt, output = read.count(usage, "prompt_tokens"), read.count(usage, "completion_tokens")
        details = read.inner(usage, "prompt_tokens_details")
        cached = read.count(details, "cached_tokens")
        found = {
            "input": max(0, prompt - (cached or 0)) if prompt is not None else None,
            "output": output,
            "cache_read": cached,
            "cache_write": read.count(details, "cache_write_tokens"),
            "reasoning": read.count(read.inner(usage, "completion_tokens_details"), "reasoning_tokens"),
        }
        self.reply.counts.update({name: value for name, value in found.items() if value is not None})
