"""The lengths of texts that arrive in pieces: whether each delta goes on where the last one ended.

An item is a text or a piece of thinking, unique within its attempt; offsets count UTF-8 bytes. What was not seen, as
a gap or a late start hid it, cannot be checked: the first delta of an item then says where it is.
"""

from collections import OrderedDict
from typing import Final

from dragoman.v1 import event_pb2 as pb

_MOST_ITEMS: Final = 1024
"""Items that are remembered; those that were not used for longest are forgotten, and then taken as they come."""


class ItemLengths:
    """The lengths of the items of one attempt."""

    def __init__(self, *, is_complete: bool = True) -> None:
        self._is_complete = is_complete
        self._lengths: OrderedDict[tuple[str, str], int] = OrderedDict()

    def begin(self) -> None:
        """Note that an attempt begins."""
        self._is_complete = True
        self._lengths.clear()

    def miss(self) -> None:
        """Note that something was not seen."""
        self._is_complete = False
        self._lengths.clear()

    def take(self, kind: str, piece: pb.Text | pb.Thinking) -> str:
        """Read the next piece of an item.

        Args:
            kind: which of both it is, by its field's name.
            piece: the piece.

        Returns:
            What is wrong with its offset, by numbers alone; empty if it is right.
        """
        key = (kind, piece.item_id)
        content = piece.WhichOneof("content")
        if content == "whole":
            self._note(key, len(piece.whole.encode()) + piece.truncated_bytes)
        elif content == "delta":
            due = self._lengths.get(key, 0 if self._is_complete else piece.offset)
            if piece.offset != due:
                return f"a delta at offset {piece.offset} where {due} is due"
            self._note(key, due + len(piece.delta.encode()))
        return ""

    def _note(self, key: tuple[str, str], length: int) -> None:
        self._lengths[key] = length
        self._lengths.move_to_end(key)
        if len(self._lengths) > _MOST_ITEMS:
            self._lengths.popitem(last=False)
            self._is_complete = False
