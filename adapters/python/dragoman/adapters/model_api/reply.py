"""An answer of the model, in any vendor's wire format: its events, and its message for the conversation. Pure.

Messages have one form for all vendors: ``{"role", "content": [block, ...]}`` with the blocks ``text``,
``thinking``, ``tool_use`` and ``tool_result`` of Anthropic's Messages API, which has all that the others have.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from dragoman.adapters.model_api.tools import tool_kind
from dragoman.sdk.fields import Fields, JsonValue, parse_json_object
from dragoman.sdk.parsing import call_usage, text_event, token_counts
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

Message = dict[str, JsonValue]

Stop = Literal["", "end", "tools", "length", "refusal", "context"]
"""Why a model stopped; empty until it has."""


class Call(Struct, frozen=True):
    """A tool call of the model."""

    id: str
    name: str
    input: dict[str, JsonValue] | None
    """None if it is not a JSON object."""


class Block(Struct):
    """A part of an answer, as far as it was received."""

    kind: str
    """``text``, ``thinking``, ``redacted_thinking`` or ``tool_use``."""
    item_id: str
    """Its ID in the events; a tool call's own."""
    name: str = ""
    """Of a tool."""
    parts: list[str] = field(default_factory=list)
    signature: str = ""
    """The vendor's signature of its own thinking."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.parts)

    def call(self) -> Call:
        """Return it as a tool call."""
        text = self.text
        return Call(self.item_id, self.name, parse_json_object(text.encode("utf-8", "replace")) if text else {})

    def stored(self) -> dict[str, JsonValue] | None:
        """Return it as a part of the conversation; None if it is not stored."""
        match self.kind:
            case "text":
                return {"type": "text", "text": self.text} if self.text.strip() else None
            case "tool_use":
                return {"type": "tool_use", "id": self.item_id, "name": self.name, "input": self.call().input or {}}
            case "thinking" if self.signature:
                return {"type": "thinking", "thinking": self.text, "signature": self.signature}
            case "redacted_thinking":
                return {"type": "redacted_thinking", "data": self.text}
        return None


class Reply:
    """One answer of the model, received piece by piece.

    Args:
        prefix: makes the IDs of its items unique within the run.
        taken: IDs of calls that were used before; the vendor's own are used if they are new.
    """

    def __init__(self, prefix: str, taken: Iterable[str] = ()) -> None:
        self.blocks: dict[str, Block] = {}
        self.stop: Stop = ""
        self.stop_word = ""
        """The vendor's own name of it."""
        self.model = ""
        self.counts: dict[str, int] = {}
        """Tokens by name of ``TokenCounts``; absent is not zero."""
        self._prefix = prefix
        self._taken = frozenset(taken)

    @property
    def text(self) -> str:
        """The answer for people."""
        return "".join(block.text for block in self.blocks.values() if block.kind == "text")

    @property
    def calls(self) -> list[Call]:
        """The tools to call, in order."""
        return [block.call() for block in self.blocks.values() if block.kind == "tool_use"]

    def message(self) -> Message | None:
        """Return it as a message of the conversation; None if it is empty."""
        stored = [block.stored() for block in self.blocks.values()]
        content: list[JsonValue] = [item for item in stored if item is not None]
        return {"role": "assistant", "content": content} if content else None

    def usage(self) -> pb.Usage | None:
        """Return what this call of the model used; None if that is unknown."""
        if not self.counts:
            return None
        return call_usage(token_counts(self.counts, {name: name for name in self.counts}), self.model)

    # What the vendors' readers call.

    def words(self, kind: Literal["text", "thinking"], key: str, words: str) -> Iterator[pb.AgentEvent]:
        """Handle a piece of text or thinking."""
        block = self.blocks.get(key) or self.open(kind, key)
        if words:
            block.parts.append(words)
            yield text_event(block.kind, block.item_id, delta=words)

    def open(self, kind: str, key: str) -> Block:
        """Begin a block that is no call."""
        block = self.blocks[key] = Block(kind, f"{self._prefix}:{key}")
        return block

    def call(self, key: str, call_id: str, name: str) -> Iterator[pb.AgentEvent]:
        """Begin a tool call."""
        is_new = bool(call_id) and call_id not in self._taken
        is_new = is_new and all(block.item_id != call_id for block in self.blocks.values())
        # Vendors accept letters, digits, "_" and "-" only.
        item_id = call_id if is_new else f"call_{self._prefix}_{len(self.blocks)}"
        self.blocks[key] = Block("tool_use", item_id, name)
        call = pb.ToolCall(id=item_id, name=name, kind=tool_kind(name), status=pb.TOOL_STATUS_PENDING)
        yield pb.AgentEvent(tool_call=call)

    def close(self, key: str) -> Iterator[pb.AgentEvent]:
        """End a block."""
        block = self.blocks.get(key)
        if block is not None and block.kind in {"text", "thinking"} and block.parts:
            yield text_event(block.kind, block.item_id)

    def close_all(self) -> Iterator[pb.AgentEvent]:
        """End all blocks, for a format that does not end them itself."""
        for key in self.blocks:
            yield from self.close(key)

    def retract(self) -> Iterator[pb.AgentEvent]:
        """Retract what was emitted: the answer was cut, and the call is retried."""
        for block in self.blocks.values():
            if block.kind == "tool_use":
                yield pb.AgentEvent(tool_call=pb.ToolCall(id=block.item_id, status=pb.TOOL_STATUS_CANCELLED))
            elif block.parts and block.kind in {"text", "thinking"}:
                yield text_event(block.kind, block.item_id, whole="")
                yield text_event(block.kind, block.item_id)


class Reader(Protocol):
    """Reads one vendor's stream. Untrusted input: nothing in it may raise."""

    reply: Reply

    def take(self, data: Fields) -> Iterable[pb.AgentEvent]:
        """Handle one event of the stream."""
