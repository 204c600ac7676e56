"""What a model writes, as it writes it: items of text and of thinking, in pieces and perhaps once more whole. Pure.

Deltas win: where an agent repeats an item as a whole, the whole is emitted only if the deltas did not give it. What a
model call had written before it broke off is retracted, as the next call writes it anew.
"""

from collections.abc import Iterator
from typing import Final

from dragoman.sdk._output.parser import text_event
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

_MOST_ENDED: Final = 4096
"""Items that have ended and are remembered."""


class _Item(Struct):
    id: str
    kind: str
    owner: str = ""
    parts: list[str] = field(default_factory=list)
    length: int = 0

    @property
    def words(self) -> str:
        return "".join(self.parts)


class TextItems:
    """The items of one attempt.

    Args:
        once: whether what comes of an item after its end is ignored. Else it begins anew.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        self._open: dict[str, _Item] = {}
        self._ended: dict[str, str] = {}
        self._unnamed: _Item | None = None
        self._numbers = 0
        self._last_text: _Item | None = None

    @property
    def last_text(self) -> str:
        """The words of the newest item of text."""
        return self._last_text.words if self._last_text is not None else ""

    @property
    def current_text(self) -> str:
        """The words so far of the text that ``piece`` writes; empty if it writes none."""
        return self._unnamed.words if self._unnamed is not None and self._unnamed.kind == "text" else ""

    def open(self, owner: str | None = None) -> list[str]:
        """Return the items that have not ended, of one owner or of all."""
        return [item.id for item in self._open.values() if owner in {None, item.owner}]

    def delta(self, item_id: str, words: str, kind: str = "text", *, owner: str = "") -> Iterator[pb.AgentEvent]:
        """Emit a piece of an item.

        Args:
            item_id: the item; without one nothing is emitted.
            words: what follows what came before.
            kind: "text" or "thinking".
            owner: the nested agent that writes it.
        """
        if not words or not item_id or (self._once and item_id in self._ended):
            return
        item = self._open.setdefault(item_id, _Item(item_id, kind, owner))
        item.parts.append(words)
        item.length += len(words)
        if item.kind == "text":
            self._last_text = item
        yield text_event(item.kind, item_id, delta=words)

    def so_far(self, item_id: str, words: str, kind: str = "text") -> Iterator[pb.AgentEvent]:
        """Emit what is new of an item of which all words so far are known."""
        item = self._open.get(item_id)
        yield from self.delta(item_id, words[item.length if item is not None else 0 :], kind)

    def piece(self, words: str, kind: str = "text") -> Iterator[pb.AgentEvent]:
        """Emit a piece of an item without a name: it continues the piece before, if that is of its kind.

        Whatever else the agent says ends such an item: call ``pause`` before it.
        """
        if not words:
            return
        if self._unnamed is None or self._unnamed.kind != kind:
            yield from self.pause()
            self._unnamed = self._begin(kind)
        yield from self.delta(self._unnamed.id, words)

    def complete(self, words: str, kind: str = "text") -> Iterator[pb.AgentEvent]:
        """Emit an item without a name that comes whole."""
        yield from self.pause()
        item = self._begin(kind)
        item.parts.append(words)
        del self._open[item.id]
        self._note_end(item)
        yield text_event(kind, item.id, whole=words)

    def _begin(self, kind: str) -> _Item:
        self._numbers += 1
        item = _Item(f"{kind}-{self._numbers}", kind)
        self._open[item.id] = item
        if kind == "text":
            self._last_text = item
        return item

    def pause(self) -> Iterator[pb.AgentEvent]:
        """End the item that ``piece`` writes, so that nothing of it is held back until after what follows."""
        if self._unnamed is not None:
            yield from self.end(self._unnamed.id)

    def whole(self, item_id: str, words: str, kind: str = "text", *, owner: str = "") -> Iterator[pb.AgentEvent]:
        """Emit all of an item, as far as its pieces did not, and end it."""
        item = self._open.get(item_id)
        if (self._once and item_id in self._ended) or (item is None and not words):
            return
        if item is None:
            item = self._open[item_id] = _Item(item_id, kind, owner)
        if item.words != words:
            item.parts = [words]
            yield text_event(item.kind, item_id, whole=words)
        if item.kind == "text":
            self._last_text = item
        yield from self.end(item_id)

    def end(self, *item_ids: str) -> Iterator[pb.AgentEvent]:
        """End items that are open; nothing more comes of them."""
        for item_id in item_ids:
            item = self._open.pop(item_id, None)
            if item is None:
                continue
            self._note_end(item)
            yield text_event(item.kind, item_id)

    def end_all(self) -> Iterator[pb.AgentEvent]:
        """End whatever is open."""
        yield from self.end(*self.open())

    def retract(self, *item_ids: str) -> Iterator[pb.AgentEvent]:
        """Replace items by nothing, open or ended: what they said does not stand."""
        for item_id in item_ids:
            item = self._open.pop(item_id, None)
            kind = item.kind if item is not None else self._ended.get(item_id)
            if kind is None:
                continue
            self._note_end(item or _Item(item_id, kind))
            yield text_event(kind, item_id, whole="")
            yield text_event(kind, item_id)

    def _note_end(self, item: _Item) -> None:
        if item is self._unnamed:
            self._unnamed = None
        self._ended[item.id] = item.kind
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
