"""``limits.output_bytes`` in the events of an adapter that does not keep it itself. Pure."""

from collections import OrderedDict
from typing import Any, Final

from dragoman.protocol.texts import cut_text, utf8_bytes
from dragoman.v1 import event_pb2 as pb

_MOST_ITEMS: Final = 1024
"""Texts that are remembered as cut."""


class OutputLimit:
    """Cuts what an attempt says beyond a limit. Its events stay, with nothing in them, as their sequences do.

    Args:
        most_bytes: how much it may say: in answers, reasoning, output of tools and logs.
    """

    def __init__(self, most_bytes: int) -> None:
        self.is_exceeded = False
        """Whether something was cut."""
        self._left = most_bytes
        self._removed: OrderedDict[tuple[object, ...], int] = OrderedDict()
        """The bytes that are missing in texts which arrive in pieces: offsets count what is published."""

    def cut(self, event: pb.AgentEvent, kind: str | None) -> None:
        """Cut the text of an event, in place."""
        if kind == "started":
            self._removed.clear()
        if kind in {"text", "thinking"}:
            body = getattr(event, kind)
            key: tuple[object, ...] = (kind, body.item_id)
            content = body.WhichOneof("content")
            if content == "delta":
                self._cut_piece(body, content, key)
            elif content == "whole":
                self._cut_whole(body, content)
        elif kind == "tool_output":
            output = event.tool_output
            self._cut_piece(output, "text", (kind, output.tool_call_id, output.stream))
        elif kind == "log":
            self._cut_whole(event.log, "text")
        elif kind == "tool_result":
            self._cut_whole(event.tool_result, "content")

    def _cut_piece(self, body: Any, field: str, key: tuple[object, ...]) -> None:
        before = self._removed.get(key, 0)
        body.offset -= min(before, body.offset)
        cut = self._cut(body, field)
        if cut:
            self._removed[key] = before + cut
            self._removed.move_to_end(key)
            if len(self._removed) > _MOST_ITEMS:
                self._removed.popitem(last=False)

    def _cut_whole(self, body: Any, field: str) -> None:
        body.truncated_bytes += self._cut(body, field)

    def _cut(self, body: Any, field: str) -> int:
        text = getattr(body, field)
        kept, cut = cut_text(text, self._left)
        self._left -= utf8_bytes(kept)
        if cut:
            self.is_exceeded, self._left = True, 0
            setattr(body, field, kept)
            if getattr(body, "raw", b""):
                cut = len(body.raw) - utf8_bytes(kept)
                body.ClearField("raw")
        return cut
