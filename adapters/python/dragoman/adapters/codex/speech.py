"""What the model writes, as it writes it: items of text and reasoning. Pure.

The same words come twice: as deltas, then whole when the item is completed. Deltas win; a whole is told only where it
differs. What a try has said that broke off is taken back: the next one says it again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from dragoman.sdk import words_event
from dragoman.v1 import event_pb2 as pb

Kind = Literal["text", "thinking"]


@dataclass(slots=True)
class _Item:
    kind: Kind
    parts: list[str] = field(default_factory=list)


class Speech:
    """The items of words that are open."""

    def __init__(self) -> None:
        self._open: dict[str, _Item] = {}

    def delta(self, item_id: str, kind: Kind, words: str) -> Iterator[pb.AgentEvent]:
        """Take more words of an item."""
        if words and item_id:
            self._open.setdefault(item_id, _Item(kind)).parts.append(words)
            yield words_event(kind, item_id, delta=words)

    def part(self, item_id: str, kind: Kind) -> Iterator[pb.AgentEvent]:
        """Take the beginning of another part of an item; parts are told as paragraphs."""
        if item_id in self._open:
            yield from self.delta(item_id, kind, "\n\n")

    def whole(self, item_id: str, kind: Kind, words: str) -> Iterator[pb.AgentEvent]:
        """Take an item that is complete."""
        item = self._open.pop(item_id, None)
        if item is None and not words:
            return
        if item is None or "".join(item.parts) != words:
            yield words_event(kind, item_id, whole=words)
        yield words_event(kind, item_id)

    def take_back(self) -> Iterator[pb.AgentEvent]:
        """Replace what is open by nothing: it is said again."""
        for item_id, item in self._open.items():
            yield words_event(item.kind, item_id, whole="")
            yield words_event(item.kind, item_id)
        self._open.clear()

    def close(self) -> Iterator[pb.AgentEvent]:
        """Close what is open: nothing more comes."""
        for item_id, item in self._open.items():
            yield words_event(item.kind, item_id)
        self._open.clear()
