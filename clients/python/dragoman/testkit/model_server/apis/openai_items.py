"""The output items of OpenAI Responses, and the events that stream them."""

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from dragoman.testkit.model_server.api import cut
from dragoman.testkit.model_server.apis.openai_errors import error_object
from dragoman.testkit.model_server.conversation import Conversation
from dragoman.testkit.model_server.script import Block, Failure, Reply, Thinking, Tool, Usage

_REASONING_TOKENS = 7

#: How Codex's code mode calls a function of its JavaScript tool and shows what came back.
_SCRIPT = """const result = await tools.{name}({argument});
text(typeof result === "string" ? result : result?.output ?? JSON.stringify(result));
"""

Event = dict[str, Any]
Item = dict[str, Any]


def whole_response(reply: Reply, conversation: Conversation, number: int) -> Item:
    """Return a reply that is not streamed.

    Args:
        reply: The reply.
        conversation: The request, for its model and tools.
        number: Makes ids unique.
    """
    items = [_item(block, reply, conversation, f"{number:06d}_{at}") for at, block in enumerate(reply.blocks)]
    return _closed(_opened(conversation, number), reply, items)


def stream_events(
    reply: Reply, conversation: Conversation, number: int, ending: Failure | None = None
) -> Iterator[Event]:
    """Yield the events of a streamed reply, numbered, unframed.

    ``response.in_progress`` is left out: it carries no information, and scripts count events up to the first text.

    Args:
        reply: The reply.
        conversation: The request, for its model and tools.
        number: Makes ids unique.
        ending: An error that ends the stream instead.
    """
    for at, event in zip(count(), _events(reply, conversation, number, ending), strict=False):
        yield {**event, "sequence_number": at}


def _events(reply: Reply, conversation: Conversation, number: int, ending: Failure | None) -> Iterator[Event]:
    opened = _opened(conversation, number)
    yield {"type": "response.created", "response": opened}
    items = []
    for index, block in enumerate(reply.blocks):
        item = _item(block, reply, conversation, f"{number:06d}_{index}")
        items.append(item)
        here = {"output_index": index}
        yield {"type": "response.output_item.added", **here, "item": _begun(item)}
        for event in _growth(block, item):
            yield {**event, **here, "item_id": item["id"]}
        yield {"type": "response.output_item.done", **here, "item": item}
    if ending is not None:
        error = error_object(ending, conversation)
        detail = {"code": error["code"] or error["type"], "message": error["message"]}
        failed = {**opened, "status": "failed", "error": detail}
        yield {"type": "response.failed", "response": failed}
        return
    closed = _closed(opened, reply, items)
    yield {"type": f"response.{closed['status']}", "response": closed}


def _item(block: Block, reply: Reply, conversation: Conversation, unique: str) -> Item:
    """Return a block as a finished output item."""
    if isinstance(block, Thinking):
        summary = [{"type": "summary_text", "text": block.text}]
        return {"type": "reasoning", "id": f"rs_{unique}", "summary": summary, "encrypted_content": "c2NyaXB0ZWQ="}
    if isinstance(block, Tool):
        return _call(block, conversation, unique)
    part: Item = {"type": "output_text", "text": block.text, "annotations": []}
    if reply.stop == "refusal":
        part = {"type": "refusal", "refusal": block.text}
    status = "incomplete" if reply.stop == "max_tokens" else "completed"
    return {"type": "message", "id": f"msg_{unique}", "role": "assistant", "status": status, "content": [part]}


def _call(tool: Tool, conversation: Conversation, unique: str) -> Item:
    inputs = tool.inputs
    known = {"status": "completed", "call_id": f"call_{unique}"}
    custom = {"type": "custom_tool_call", "id": f"ctc_{unique}", **known}
    if tool.action in conversation.text_tools:
        return {**custom, "name": tool.action, "input": _text(inputs)}
    if "exec" in conversation.text_tools and tool.action not in conversation.tools:
        argument = _text(inputs) if tool.action == "apply_patch" else inputs
        script = _SCRIPT.format(name=tool.action, argument=json.dumps(argument, ensure_ascii=False))
        return {**custom, "name": "exec", "input": script}
    arguments = json.dumps(inputs, ensure_ascii=False)
    namespace, _, name = tool.action.rpartition(".")
    called = {"type": "function_call", "id": f"fc_{unique}", **known, "name": name, "arguments": arguments}
    return {**called, "namespace": namespace} if namespace else called


def _text(inputs: Mapping[str, Any]) -> str:
    """Return the input of a tool that takes plain text: unchanged, or a patch that writes or edits a file."""
    if "path" not in inputs:
        return str(inputs.get("input", ""))
    if "old" in inputs:
        change = [f"*** Update File: {inputs['path']}", "@@"]
        change += [f"-{line}" for line in str(inputs["old"]).splitlines()]
        change += [f"+{line}" for line in str(inputs.get("new", "")).splitlines()]
    else:
        change = [f"*** Add File: {inputs['path']}"]
        change += [f"+{line}" for line in str(inputs.get("content", "")).splitlines()]
    return "\n".join(["*** Begin Patch", *change, "*** End Patch"])


def _begun(item: Item) -> Item:
    """Return a finished item as it is announced: in progress and empty."""
    empty = {"content": [], "summary": [], "arguments": "", "input": "", "status": "in_progress"}
    return {key: empty.get(key, value) for key, value in item.items() if key != "encrypted_content"}


def _growth(block: Block, item: Item) -> Iterator[Event]:
    """Yield what happens between an item's announcement and its end."""
    if item["type"] == "message":
        yield from _content(block, item["content"][0])
    elif item["type"] == "reasoning":
        yield from _summary(block, item["summary"][0])
    elif item["type"] == "function_call":
        for piece in cut(item["arguments"], block.chunk):
            yield {"type": "response.function_call_arguments.delta", "delta": piece}
        yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"]}
    else:
        for piece in cut(item["input"], block.chunk):
            yield {"type": "response.custom_tool_call_input.delta", "delta": piece}
        yield {"type": "response.custom_tool_call_input.done", "input": item["input"]}


def _content(block: Block, part: Item) -> Iterator[Event]:
    field = "refusal" if part["type"] == "refusal" else "text"
    name = "response.refusal" if field == "refusal" else "response.output_text"
    yield {"type": "response.content_part.added", "content_index": 0, "part": {**part, field: ""}}
    for piece in cut(part[field], block.chunk):
        yield {"type": f"{name}.delta", "content_index": 0, "delta": piece}
    yield {"type": f"{name}.done", "content_index": 0, field: part[field]}
    yield {"type": "response.content_part.done", "content_index": 0, "part": part}


def _summary(block: Block, part: Item) -> Iterator[Event]:
    yield {"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": {**part, "text": ""}}
    for piece in cut(part["text"], block.chunk):
        yield {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": piece}
    yield {"type": "response.reasoning_summary_text.done", "summary_index": 0, "text": part["text"]}
    yield {"type": "response.reasoning_summary_part.done", "summary_index": 0, "part": part}


def _opened(conversation: Conversation, number: int) -> Item:
    return {
        "id": f"resp_{number:06d}",
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "model": conversation.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }


def _closed(opened: Item, reply: Reply, items: list[Item]) -> Item:
    cut_off = reply.stop == "max_tokens"
    return {
        **opened,
        "status": "incomplete" if cut_off else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
        "output": items,
        "usage": _usage(reply.usage, any(isinstance(block, Thinking) for block in reply.blocks)),
    }


def _usage(usage: Usage, thought: bool) -> Item:
    """Return token numbers as OpenAI counts them: the input includes what caches served."""
    total = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": total,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": _REASONING_TOKENS if thought else 0},
        "total_tokens": total + usage.output,
    }
