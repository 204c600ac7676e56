"""What the model writes, as it writes it: items of text and reasoning. Pure.

The words of an item come as deltas and then whole. What a call of the model that broke off had said is taken back,
as the next one begins anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dragoman.sdk import words_event
from dragoman.sdk.fields import Fields, text
from dragoman.v1 import event_pb2 as pb


@dataclass(slots=True)
class _Item:
    id: str
    kind: str
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
            item = self._open.setdefault(item_id, _Item(item_id, _kind(is_reasoning=is_reasoning), agent))
            item.parts.append(words)
            yield words_event(item.kind, item.id, delta=words)

    def whole(self, data: Fields, agent: str, *, is_reasoning: bool) -> Iterator[pb.AgentEvent]:
        """Take an item as it is in the end; it is told only where the deltas did not give it."""
        item_id, words = _id(data, is_reasoning=is_reasoning), text(data, "content")
        if item_id in self._done:
            return
        item = self._open.pop(item_id, None) or _Item(item_id, _kind(is_reasoning=is_reasoning), agent)
        if "".join(item.parts) != words:
            item.parts = [words]
            yield words_event(item.kind, item.id, whole=words)
        if item.parts:
            self._done.add(item_id)
            yield words_event(item.kind, item.id)

    def take_back(self, agent: str) -> Iterator[pb.AgentEvent]:
        """Take back what an agent's broken call had said."""
        for item in [item for item in self._open.values() if item.agent == agent]:
            del self._open[item.id]
            self._done.add(item.id)
            yield words_event(item.kind, item.id, whole="")
            yield words_event(item.kind, item.id)

    def close(self) -> Iterator[pb.AgentEvent]:
        """Close what is open, as nothing more comes."""
        for item in self._open.values():
            yield words_event(item.kind, item.id)
        self._done.update(self._open)
        self._open.clear()


def _kind(*, is_reasoning: bool) -> str:
    return "thinking" if is_reasoning else "text"


def _id(data: Fields, *, is_reasoning: bool) -> str:
    return text(data, "reasoningId" if is_reasoning else "messageId") or ("reasoning" if is_reasoning else "message")
