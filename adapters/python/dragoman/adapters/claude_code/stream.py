"""The model's messages as they stream: items of text and thinking, and tool calls. Pure.

The same text comes several times: as deltas, then whole in an ``assistant`` frame, and at the end in ``result``. A
whole is emitted only if it differs from the deltas. An item's ID is its message's ID and the index of its block.

After a broken call of the model another message begins anew. The items of the broken one end as they are, and those
that Claude Code discards (``abandoned_blocks``) are retracted: replaced by nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from dragoman.adapters.claude_code.tools import mcp_server, tool_kind
from dragoman.adapters.claude_code.usage import message_usage
from dragoman.sdk.fields import Fields, JsonValue, count, inner, objects, text
from dragoman.sdk.parsing import context_used, notice_event, text_event
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks that call a tool."""
_WORDS: Final = {"text": "text", "thinking": "thinking"}
"""Blocks of text, and the key of the text in them."""
_DELTAS: Final = {"text_delta": "text", "thinking_delta": "thinking"}
_MOST_MESSAGES: Final = 8
"""Messages that are remembered; the whole of an older one is emitted as if it had had no deltas."""


class _Block(Struct):
    kind: str
    item_id: str
    parts: list[str] = field(default_factory=list)
    is_open: bool = True
    is_confirmed: bool = False
    """Its whole has come."""


class _Message(Struct):
    prefix: str
    model: str
    usage: dict[str, JsonValue] = field(default_factory=dict)
    is_counted: bool = True
    """Its usage was emitted, or will not be."""
    blocks: dict[int, _Block] = field(default_factory=dict)


class WholeBlock(Struct, frozen=True):
    """A block of an ``assistant`` frame, with the events for text that the deltas did not have."""

    content: Fields
    events: tuple[pb.AgentEvent, ...] = ()


class MessageStream:
    """Follows the messages of one run."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, _Message] = OrderedDict()
        self._current: dict[str, _Message] = {}
        self._names: dict[str, int] = {}
        self.context_used: int | None = None
        """Tokens in the main agent's context after its newest call of the model."""
        self.context_size: int | None = None
        """Tokens that the context can hold, once that is known."""

    def take(self, frame: Fields) -> Iterator[pb.AgentEvent]:
        """Handle a ``stream_event`` frame."""
        event = inner(frame, "event")
        parent = text(frame, "parent_tool_use_id")
        kind = text(event, "type")
        if kind == "message_start":
            yield from self._start(parent, inner(event, "message"))
            return
        message = self._current.get(parent)
        if message is None:
            return  # its beginning is missing; the whole will come
        if kind == "content_block_delta":
            yield from _delta(message, event)
        elif kind == "content_block_start":
            yield from _begin(message, event)
        elif kind == "content_block_stop":
            yield from _close(message.blocks.get(_index(event)))
        elif kind == "message_delta":
            message.usage.update(inner(event, "usage"))
            yield from self._count(parent, message)
            if text(inner(event, "delta"), "stop_reason") == "max_tokens":
                yield _cut()
        elif kind == "message_stop":
            yield from self._end(parent, message, frame)

    def whole(self, frame: Fields) -> Iterator[WholeBlock]:
        """Handle an ``assistant`` frame: yield each of its blocks."""
        body = inner(frame, "message")
        message = self._messages.get(text(body, "id")) or self._remember(body)
        for content in objects(body, "content"):
            kind = text(content, "type")
            if kind in _WORDS:
                yield WholeBlock(content, tuple(_whole(message, kind, text(content, _WORDS[kind]))))
            else:
                yield WholeBlock(content)

    def _start(self, parent: str, body: Fields) -> Iterator[pb.AgentEvent]:
        before = self._current.get(parent)
        if before is not None:
            yield from self._leave(parent, before)
        message = self._remember(body)
        message.usage.update(inner(body, "usage"))
        message.is_counted = not message.usage
        self._current[parent] = message

    def _remember(self, body: Fields) -> _Message:
        name = text(body, "id") or "message"
        self._names[name] = number = self._names.get(name, 0) + 1
        message = _Message(prefix=name if number == 1 else f"{name}-{number}", model=text(body, "model"))
        self._messages[name] = message
        self._messages.move_to_end(name)
        if len(self._messages) > _MOST_MESSAGES:
            self._messages.popitem(last=False)
        return message

    def _end(self, parent: str, message: _Message, frame: Fields) -> Iterator[pb.AgentEvent]:
        abandoned = count(inner(frame, "abandoned_blocks"), "from_block_index")
        for index, block in message.blocks.items():
            yield from _close(block)
            if abandoned is not None and index >= abandoned:
                yield from _retract(block)
        yield from self._leave(parent, message)
        self._current.pop(parent, None)

    def _leave(self, parent: str, message: _Message) -> Iterator[pb.AgentEvent]:
        for block in message.blocks.values():
            yield from _close(block)
        yield from self._count(parent, message)

    def _count(self, parent: str, message: _Message) -> Iterator[pb.AgentEvent]:
        if message.is_counted:
            return
        message.is_counted = True
        usage = message_usage(message.usage, message.model)
        used = context_used(usage.tokens)
        if not parent:
            self.context_used = used
        usage.MergeFrom(pb.Usage(context_used=used, context_size=None if parent else self.context_size))
        yield pb.AgentEvent(usage=usage)


def _begin(message: _Message, event: Fields) -> Iterator[pb.AgentEvent]:
    index, content = _index(event), inner(event, "content_block")
    kind = text(content, "type")
    if kind in CALLS and text(content, "id"):
        name = text(content, "name")
        message.blocks[index] = _Block(kind, text(content, "id"))
        call = pb.ToolCall(id=text(content, "id"), name=name, kind=tool_kind(name), mcp_server=mcp_server(name))
        call.status = pb.TOOL_STATUS_PENDING
        yield pb.AgentEvent(tool_call=call)
    elif kind in _WORDS:
        block = message.blocks[index] = _Block(kind, f"{message.prefix}:{index}")
        yield from _words(block, text(content, _WORDS[kind]))


def _delta(message: _Message, event: Fields) -> Iterator[pb.AgentEvent]:
    block = message.blocks.get(_index(event))
    delta = inner(event, "delta")
    key = _DELTAS.get(text(delta, "type"))
    if block is not None and block.is_open and key == block.kind:
        yield from _words(block, text(delta, key))


def _words(block: _Block, words: str) -> Iterator[pb.AgentEvent]:
    if words:
        block.parts.append(words)
        yield text_event(block.kind, block.item_id, delta=words)


def _whole(message: _Message, kind: str, words: str) -> Iterator[pb.AgentEvent]:
    """Match a whole with the oldest streamed block that has none; emit it if they differ."""
    waiting = (block for block in message.blocks.values() if block.kind == kind and not block.is_confirmed)
    block = next(waiting, None)
    if block is None:
        index = max(message.blocks, default=-1) + 1
        block = message.blocks[index] = _Block(kind, f"{message.prefix}:{index}", is_open=False)
        is_known = not words
    else:
        is_known = "".join(block.parts) == words
    block.is_confirmed = True
    block.parts.clear()
    if not is_known:
        yield text_event(block.kind, block.item_id, whole=words)
        if not block.is_open:
            yield text_event(block.kind, block.item_id)


def _close(block: _Block | None) -> Iterator[pb.AgentEvent]:
    if block is not None and block.is_open:
        block.is_open = False
        if block.kind in _WORDS:
            yield text_event(block.kind, block.item_id)


def _retract(block: _Block) -> Iterator[pb.AgentEvent]:
    if block.kind in CALLS:
        yield pb.AgentEvent(tool_call=pb.ToolCall(id=block.item_id, status=pb.TOOL_STATUS_CANCELLED))
    elif block.parts:
        block.parts.clear()
        yield text_event(block.kind, block.item_id, whole="")
        yield text_event(block.kind, block.item_id)


def _index(event: Fields) -> int:
    return count(event, "index") or 0


def _cut() -> pb.AgentEvent:
    """Return a notice of a cut answer. Claude Code asks for the rest a few times, then fails."""
    message = "The model's answer was cut at its limit of output tokens; Claude Code asks it to go on."
    return notice_event("output_limit", message)
