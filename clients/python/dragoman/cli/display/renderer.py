"""Events as styled text: one renderer for the runs of all agents. No I/O.

Text, thinking and tool output are streamed; every other event has lines of its own. The renderer keeps the state that
it needs to continue in the middle of a line and to show nothing twice: the offset of each item, and the tool calls
that were shown. Control characters of an agent, a tool or an adapter are replaced before the text is styled.
"""

import hashlib
from collections import defaultdict

from dragoman.cli.display.phrases import PHRASES, Line, session, tool_result, tool_subject
from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.text import count, enum_label, one_line, sanitize
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

_NEWLINE = Segment("\n")
_SUBJECT = 160
_AGENT_FEATURES = frozenset(
    {pb.FEATURE_TEXT_DELTAS, pb.FEATURE_TOOL_START, pb.FEATURE_RESUME, pb.FEATURE_MODEL_CHOICE}
)
"""Capabilities of adapters that parse their agent's output. The lines of any other agent are its answer."""
_OPEN_ITEMS = 64
"""Items follow one another; one that so many others have followed is complete."""


class _Item(Struct):
    """What was shown of one item: its length in bytes, and a digest, to compare it with the whole text."""

    length: int = 0
    digest: "hashlib.blake2b" = field(default_factory=hashlib.blake2b)
    has_gap: bool = False

    def add(self, text: bytes) -> None:
        self.length += len(text)
        self.digest.update(text)

    def skip_to(self, offset: int) -> None:
        """Record that text before ``offset`` is missing."""
        self.length = offset
        self.has_gap = True

    def begins(self, whole: bytes) -> bool:
        """Return whether the shown text is the beginning of ``whole``."""
        return not self.has_gap and hashlib.blake2b(whole[: self.length]).digest() == self.digest.digest()


class _Tool(Struct):
    name: str = ""
    shown: str = ""
    streamed: bool = False


class Renderer:
    """Turns a run's events, in order, into styled text.

    Args:
        debug: show everything; unrecognized lines in grey.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self._debug = debug
        self._flow: object = None
        self._fresh_line = True
        self._attempt = 0
        self._items: dict[tuple[str, str], _Item] = {}
        self._tools: dict[str, _Tool] = {}
        self._shown_of_session: defaultdict[str, set[str]] = defaultdict(set)
        self._shows_lines = debug
        self.hidden_lines = 0
        """Number of unrecognized lines that were not shown."""

    def render(self, event: pb.AgentEvent) -> list[Segment]:
        """Return what ``event`` adds to the screen, which may be nothing."""
        if event.attempt > self._attempt:
            # IDs of items and tool calls are unique within an attempt only.
            self._attempt = event.attempt
            self._items.clear()
            self._tools.clear()
            self._shown_of_session.clear()
        kind = event.WhichOneof("body")
        if kind == "text":
            return self._piece("text", event.text, Style.ASSISTANT, event)
        if kind == "thinking":
            return self._piece("thinking", event.thinking, Style.FAINT, event)
        if kind == "tool_output":
            return self._tool_output(event)
        if kind == "log":
            return self._log(event)
        return self._lines(self._block(kind, event), event)

    @property
    def is_at_line_start(self) -> bool:
        """Whether no line is incomplete."""
        return self._fresh_line

    def break_line(self) -> list[Segment]:
        """Return what finishes an incomplete line."""
        self._flow = None
        if self._fresh_line:
            return []
        self._fresh_line = True
        return [_NEWLINE]

    def _block(self, kind: str | None, event: pb.AgentEvent) -> list[Line]:
        if kind == "batch":
            raise ValueError("a batch is unrolled before it is shown")
        if kind == "tool_call":
            return self._tool_call(event.tool_call)
        if kind == "tool_result":
            tool = self._tools.pop(event.tool_result.tool_call_id, _Tool())
            return tool_result(event, self._debug, name=tool.name, streamed=tool.streamed)
        if kind == "started":
            features = {item.feature for item in event.started.capabilities.items}
            self._shows_lines = self._debug or not features & _AGENT_FEATURES
        if kind == "session":
            # Agents repeat it with more information.
            lines, news = session(event, self._debug, self._shown_of_session[_lineage(event)])
            self._shown_of_session[_lineage(event)].update(news)
            return lines
        if kind in PHRASES:
            return PHRASES[kind](event, self._debug)
        if not self._debug:
            return []
        return [[Segment(f"… an event of a later revision, sequence {event.sequence}", Style.FAINT)]]

    def _lines(self, lines: list[Line], event: pb.AgentEvent) -> list[Segment]:
        if not lines:
            return []
        prefix = _lineage(event)
        out = self.break_line()
        for line in lines:
            if prefix:
                out.append(Segment(prefix, Style.FAINT))
            out.extend(line)
            out.append(_NEWLINE)
        return out

    def _piece(self, kind: str, body: pb.Text | pb.Thinking, style: Style, event: pb.AgentEvent) -> list[Segment]:
        key = (kind, body.item_id)
        item = self._items.pop(key, _Item())
        missing, offset = "", body.offset
        if body.WhichOneof("content") == "whole":
            new, offset = body.whole.encode(), 0
            if not item.begins(new):
                # The agent replaced the text: what was shown is obsolete, and cannot be removed.
                item = _Item()
                self._flow = None
        else:
            new = body.delta.encode()
            if offset > item.length:
                item.skip_to(offset)
                missing = "…"
        new = new[item.length - offset :]
        item.add(new)
        self._items[key] = item
        if len(self._items) > _OPEN_ITEMS:
            del self._items[next(iter(self._items))]
        if not new:
            return []
        return self._flowing(key, missing + new.decode(errors="replace"), style, _lineage(event))

    def _tool_output(self, event: pb.AgentEvent) -> list[Segment]:
        body = event.tool_output
        self._tools.setdefault(body.tool_call_id, _Tool()).streamed = True
        key = ("output", body.tool_call_id, body.stream)
        return self._flowing(key, body.text, Style.TOOL, f"{_lineage(event)}  │ ")

    def _log(self, event: pb.AgentEvent) -> list[Segment]:
        body = event.log
        rows = body.text.split("\n")
        if not self._shows_lines:
            self.hidden_lines += len(rows)
            return []
        cut = f" … {count(body.truncated_bytes)} bytes cut" if body.truncated_bytes else ""
        head, style = _lineage(event), Style.ASSISTANT
        if body.stream != pb.OUTPUT_STREAM_STDOUT or self._debug:
            head += f"{enum_label(pb.OutputStream.DESCRIPTOR, body.stream, 'OUTPUT_STREAM_')} │ "
            style = Style.FAINT
        rows[-1] += cut
        return [
            *self.break_line(),
            *(part for row in rows for part in (Segment(f"{head}{sanitize(row)}", style), _NEWLINE)),
        ]

    def _tool_call(self, call: pb.ToolCall) -> list[Line]:
        """Show a tool call once its input is known, and again when the input changes."""
        tool = self._tools.setdefault(call.id, _Tool())
        tool.name = one_line(call.name, 60) or tool.name
        subject = tool_subject(call, 2000 if self._debug else _SUBJECT)
        if not subject and call.status == pb.TOOL_STATUS_PENDING:
            return []
        text = f"● {tool.name} {subject}".rstrip()
        if text == tool.shown or (tool.shown and not subject):
            return []
        tool.shown = text
        return [[Segment(text, Style.TOOL)]]

    def _flowing(self, key: object, text: str, style: Style, prefix: str) -> list[Segment]:
        out = self.break_line() if key != self._flow else []
        self._flow = key
        rows = sanitize(text).split("\n")
        for index, row in enumerate(rows):
            if index:
                out.append(_NEWLINE)
                self._fresh_line = True
            if row:
                lead = prefix if self._fresh_line else ""
                out.append(Segment(lead + row, style))
                self._fresh_line = False
        return out


def _lineage(event: pb.AgentEvent) -> str:
    return f"[{one_line(event.lineage.subagent_id, 24)}] " if event.lineage.subagent_id else ""
