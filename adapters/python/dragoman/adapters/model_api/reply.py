"""What the model answers, whatever its vendor's wire format: told as it comes, kept as a message. Pure.

Messages are kept in one form for all vendors: ``{"role", "content": [block, ...]}`` with the blocks ``text``,
``thinking``, ``tool_use`` and ``tool_result`` of Anthropic's Messages API, which can say all that the others can.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dragoman.adapters.model_api.tools import tool_kind
from dragoman.sdk import JsonValue, parse_json_object, words_event
from dragoman.v1 import event_pb2 as pb

Fields = Mapping[str, JsonValue]
Message = dict[str, JsonValue]

Stop = Literal["", "end", "tools", "length", "refusal", "context"]
"""Why a model stopped; empty as long as it has not said so."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model."""

    id: str
    name: str
    input: dict[str, JsonValue] | None
    """None if what came is no JSON object."""


@dataclass(slots=True)
class Block:
    """A part of an answer, as far as it has come."""

    kind: str
    """``text``, ``thinking``, ``redacted_thinking`` or ``tool_use``."""
    item_id: str
    """Its id in the events; a tool call's own."""
    name: str = ""
    """Of a tool."""
    parts: list[str] = field(default_factory=list)
    signature: str = ""
    """By which the vendor knows its own thinking again."""

    @property
    def text(self) -> str:
        """What has come of it."""
        return "".join(self.parts)

    def call(self) -> Call:
        """Return it as the call that it is."""
        text = self.text
        return Call(self.item_id, self.name, parse_json_object(text.encode("utf-8", "replace")) if text else {})

    def kept(self) -> dict[str, JsonValue] | None:
        """Return it as it stays in the conversation; None if nothing is to stay."""
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
    """One answer of the model, taken piece by piece.

    Args:
        prefix: makes the ids of its items unique within the run.
        taken: ids of calls that were used before; the vendor's own are kept where they are new.
    """

    def __init__(self, prefix: str, taken: Iterable[str] = ()) -> None:
        self.blocks: dict[str, Block] = {}
        self.stop: Stop = ""
        self.stop_word = ""
        """The vendor's own word for it."""
        self.model = ""
        self.counts: dict[str, int] = {}
        """Tokens by name of ``TokenCounts``; absent is not zero."""
        self.tools: tuple[str, ...] = ()
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
        """Return it as a message of the conversation; None if it said nothing."""
        kept = [block.kept() for block in self.blocks.values()]
        content: list[JsonValue] = [item for item in kept if item is not None]
        return {"role": "assistant", "content": content} if content else None

    def usage(self) -> pb.Usage | None:
        """Return what this call of the model used; None if it was not said."""
        if not self.counts:
            return None
        usage = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA)
        for name, value in self.counts.items():
            setattr(usage.tokens, name, value)
        if self.model:
            usage.models.add(model=self.model).tokens.CopyFrom(usage.tokens)
        return usage

    # What the vendors' readers call.

    def words(self, kind: Literal["text", "thinking"], place: str, words: str) -> Iterator[pb.AgentEvent]:
        """Take a piece of text or thinking."""
        block = self.blocks.get(place) or self.open(kind, place)
        if words:
            block.parts.append(words)
            yield words_event(block.kind, block.item_id, delta=words)

    def open(self, kind: str, place: str) -> Block:
        """Begin a block that is no call."""
        block = self.blocks[place] = Block(kind, f"{self._prefix}:{place}")
        return block

    def call(self, place: str, call_id: str, name: str) -> Iterator[pb.AgentEvent]:
        """Begin a tool call."""
        is_new = bool(call_id) and call_id not in self._taken
        is_new = is_new and all(block.item_id != call_id for block in self.blocks.values())
        # Vendors accept letters, digits, "_" and "-" only.
        made = call_id if is_new else f"call_{self._prefix}_{len(self.blocks)}"
        self.blocks[place] = Block("tool_use", made, name)
        call = pb.ToolCall(id=made, name=name, kind=tool_kind(name), status=pb.TOOL_STATUS_PENDING)
        yield pb.AgentEvent(tool_call=call)

    def close(self, place: str) -> Iterator[pb.AgentEvent]:
        """Say that a block is complete."""
        block = self.blocks.get(place)
        if block is not None and block.kind in {"text", "thinking"} and block.parts:
            yield words_event(block.kind, block.item_id)

    def close_all(self) -> Iterator[pb.AgentEvent]:
        """Say so of all, at the end of a format that does not."""
        for place in self.blocks:
            yield from self.close(place)

    def take_back(self) -> Iterator[pb.AgentEvent]:
        """Undo what was told: the answer broke off and is asked for again."""
        for block in self.blocks.values():
            if block.kind == "tool_use":
                yield pb.AgentEvent(tool_call=pb.ToolCall(id=block.item_id, status=pb.TOOL_STATUS_CANCELLED))
            elif block.parts and block.kind in {"text", "thinking"}:
                yield words_event(block.kind, block.item_id, whole="")
                yield words_event(block.kind, block.item_id)


class Reader(Protocol):
    """Understands one vendor's stream. Untrusted input: nothing in it may raise."""

    reply: Reply

    def take(self, data: Fields) -> Iterable[pb.AgentEvent]:
        """Take one event of the stream."""
