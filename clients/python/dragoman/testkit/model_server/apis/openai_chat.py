"""The OpenAI chat completions API: ``POST */chat/completions``, streamed or not, and its error bodies.

Reasoning is sent as ``reasoning_content``, as do services and programs that use this format beyond
OpenAI's own models.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.testkit.model_server.api import ErrorAnswer, cut, flat, sse, texts
from dragoman.testkit.model_server.apis.openai_errors import error_answer, error_object
from dragoman.testkit.model_server.conversation import Conversation, Part, read_parts
from dragoman.testkit.model_server.http1 import HttpRequest
from dragoman.testkit.model_server.script import Block, Failure, Reply, Text, Thinking, Tool, Usage

#: What ``GET /models`` lists; any other model is answered too.
MODELS = ("scripted-1", "scripted-2")

_CREATED = 1_700_000_000
_FINISH: Mapping[str, str] = {"refusal": "content_filter", "max_tokens": "length"}


class OpenAIChat:
    """Speaks OpenAI chat completions; see `dragoman.testkit.model_server.api.ModelApi`."""

    name = "openai-chat"

    def conversation(self, request: HttpRequest) -> Conversation | None:
        """Read ``POST */chat/completions``; None for anything else."""
        if request.method != "POST" or not request.path.endswith("/chat/completions"):
            return None
        body = request.json()
        return read_conversation(body) if isinstance(body, dict) else None

    def aside(self, request: HttpRequest) -> object | None:
        """Answer ``GET */models`` with two models."""
        if request.method != "GET" or not request.path.endswith("/models"):
            return None
        owned = {"object": "model", "created": _CREATED, "owned_by": "scripted"}
        return {"object": "list", "data": [{"id": model, **owned} for model in MODELS]}

    def events(
        self, reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
    ) -> Iterator[bytes]:
        """Render the server-sent events of a reply; ``ending`` becomes an ``error`` object among them."""
        for chunk in stream_chunks(reply, conversation, number, ending):
            yield sse(chunk)
        if ending is None:
            yield b"data: [DONE]\n\n"

    def whole(self, reply: Reply, conversation: Conversation, number: int) -> object:
        """Render a reply as one ``chat.completion`` object."""
        message: dict[str, Any] = {"role": "assistant", "content": _joined(reply, Text) or None, "refusal": None}
        if thought := _joined(reply, Thinking):
            message["reasoning_content"] = thought
        calls = [
            _call(block, index, number, json.dumps(block.inputs, ensure_ascii=False))
            for index, block in enumerate(_tools(reply))
        ]
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
        head = _head("chat.completion", conversation, number)
        return {**head, "choices": [choice], "usage": _usage(reply.usage, _joined(reply, Thinking))}

    def failure(self, failure: Failure, conversation: Conversation) -> ErrorAnswer:
        """Render an error answer."""
        return error_answer(failure, conversation)


def read_conversation(body: Mapping[str, Any]) -> Conversation:
    """Reduce a chat completions request body to what scripts use.

    Returns:
        The conversation; odd or missing parts read as empty.
    """
    parts: list[Part] = []
    system: list[str] = []
    turn = 0
    for message in body.get("messages") or ():
        role, content = message.get("role"), message.get("content")
        if role in {"system", "developer"}:
            system.append(flat(content))
        elif role == "user":
            parts += [Part(turn, text) for text in texts(content)]
        elif role == "tool":
            parts.append(Part(turn, flat(content), str(message.get("tool_call_id", ""))))
        elif role == "assistant":
            turn += 1
    options = body.get("stream_options")
    request = Conversation(
        tools=tuple(str((tool.get("function") or {}).get("name", "")) for tool in body.get("tools") or ()),
        model=str(body.get("model", "")),
        system="\n".join(system),
        stream=bool(body.get("stream")),
        stream_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
    )
    return read_parts(parts, request)


def stream_chunks(
    reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
) -> Iterator[Mapping[str, Any]]:
    """Yield the chunks of a streamed reply, unframed and without the final ``[DONE]``.

    Args:
        reply: The reply.
        conversation: The request, for its model and whether it asks for the usage.
        number: Makes completion and call ids unique.
        ending: An error that ends the stream instead.
    """
    head = _head("chat.completion.chunk", conversation, number)

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> Mapping[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]}

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for block in reply.blocks:
        for delta in _deltas(block, calls, number):
            yield chunk(delta)
        calls += isinstance(block, Tool)
    if ending is not None:
        yield {"error": error_object(ending, conversation)}
        return
    yield chunk({}, _finish_reason(reply))
    if conversation.stream_usage:
        yield {**head, "choices": [], "usage": _usage(reply.usage, _joined(reply, Thinking))}


def _deltas(block: Block, index: int, number: int) -> Iterator[Mapping[str, Any]]:
    if isinstance(block, Text):
        yield from ({"content": piece} for piece in cut(block.text, block.chunk))
    elif isinstance(block, Thinking):
        yield from ({"reasoning_content": piece} for piece in cut(block.text, block.chunk))
    else:
        yield {"tool_calls": [{"index": index, **_call(block, index, number, "")}]}
        for piece in cut(json.dumps(block.inputs, ensure_ascii=False), block.chunk):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _call(tool: Tool, index: int, number: int, arguments: str) -> dict[str, Any]:
    call_id = f"call_{number:06d}_{index}"
    return {"id": call_id, "type": "function", "function": {"name": tool.action, "arguments": arguments}}


def _tools(reply: Reply) -> list[Tool]:
    return [block for block in reply.blocks if isinstance(block, Tool)]


def _joined(reply: Reply, kind: type[Text] | type[Thinking]) -> str:
    return "".join(block.text for block in reply.blocks if isinstance(block, kind))


def _head(kind: str, conversation: Conversation, number: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number:06d}",
        "object": kind,
        "created": _CREATED,
        "model": conversation.model,
        "system_fingerprint": "fp_scripted",
    }


def _usage(usage: Usage, thought: str) -> dict[str, Any]:
    """Return usage the way OpenAI counts: cached tokens are among the prompt's, reasoning among the completion's."""
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": min(len(thought) // 4, usage.output)},
    }


def _finish_reason(reply: Reply) -> str:
    if reply.stop is not None:
        return _FINISH[reply.stop]
    return "tool_calls" if _tools(reply) else "stop"
