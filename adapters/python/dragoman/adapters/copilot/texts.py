"""What the model writes, as it writes it: items of text and reasoning. Pure.

The words of an item come as deltas and then whole. What a call of the model that broke off had said is taken back,
as the next one begins anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dragoman.sdk.fields import Fields, text
from dragoman.v1 import event_pb2 as pb


@dataclass(slots=True)
class _Item:
    id: str
    is_reasoning: bool
    agent: str
    parts: list[str] = field(default_factory=list)


class Texts:
    """Follows the items of one run."""

    def __init__(self) -> None:
        self._open: dict[str, _Item] = {}
        self._done: set[str] = set()

    def delta(self, data: Fields, agent: str, *, is_reasoning: bool) -> Iterator[pb.AgentEvent]:
        """Take a piece of an item."""
        item_id, words = _id(data, is_reasoning=is_reasoning), text(data, "deltaContent")
        if words and item_id not in self._done:
            item = self._open.setdefault(item_id, _Item(item_id, is_reasoning, agent))
            item.parts.append(words)
            yield _piece(item, delta=words)

    def whole(self, data: Fields, agent: str, *, is_reasoning: bool) -> Iterator[pb.AgentEvent]:
        """Take an item as it is in the end; it is told only where the deltas did not give it."""
        item_id, words = _id(data, is_reasoning=is_reasoning), text(data, "content")
        if item_id in self._done:
            return
        item = self._open.pop(item_id, None) or _Item(item_id, is_reasoning, agent)
        if "".join(item.parts) != words:
            item.parts = [words]
            yield _piece(item, whole=words)
        if item.parts:
            self._done.add(item_id)
            yield _piece(item)

    def take_back(self, agent: str) -> Iterator[pb.AgentEvent]:
        """Take back what an agent's broken call had said."""
        for item in [item for item in self._open.values() if item.agent == agent]:
            del self._open[item.id]
            self._done.add(item.id)
            yield _piece(item, whole="")
            yield _piece(item)

    def close(self) -> Iterator[pb.AgentEvent]:
        """Close what is open, as nothing more comes."""
        for item in self._open.values():
            yield _piece(item)
        self._done.update(self._open)
        self._open.clear()


def _id(data: Fields, *, is_reasoning: bool) -> str:
    return text(data, "reasoningId" if is_reasoning else "messageId") or ("reasoning" if is_reasoning else "message")


def _piece(item: _Item, *, delta: str | None = None, whole: str | None = None) -> pb.AgentEvent:
    event = pb.AgentEvent()
    piece = event.thinking if item.is_reasoning else event.text
    piece.item_id = item.id
    if delta is not None:
        piece.delta = delta
    elif whole is not None:
        piece.whole = whole
    return event
