"""What an adapter's parser gets and gives. Pure: lines in, events and wishes out; no clock, no I/O."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from dragoman.sdk._json import JsonValue
from dragoman.sdk._lines import Line
from dragoman.sdk._workbench import Workbench
from dragoman.v1 import event_pb2 as pb

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class FailureInfo:
    """What went wrong, as far as an adapter knows."""

    kind: pb.FailureKind.ValueType
    message: str
    """For people: what went wrong, where, and what to do."""
    code: str = ""
    """A stable finer code."""
    errors: tuple[str, ...] = ()
    """The agent's own error texts."""
    retry_not_before: datetime | None = None
    login_url: str = ""
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Terminal:
    """The agent's own word that it is done."""

    succeeded: bool
    subtype: str = ""
    failure: FailureInfo | None = None
    """Why, if it did not succeed and says so."""
    interrupted: bool = False
    """It says that it was interrupted."""


@dataclass(slots=True)
class Report:
    """What a parser has learned of an attempt so far. Absent is not zero: None means not said."""

    terminal: Terminal | None = None
    session_id: str = ""
    display_id: str = ""
    model: str = ""
    provider: str = ""
    summary: str = ""
    usage: pb.Usage | None = None
    """Totals of this run."""
    question: pb.Question | None = None
    raw_json: str = ""
    structured_output_json: str = ""
    turns: int | None = None
    has_output: bool = False
    """Anything that could be parsed came."""
    session_params: dict[str, str] = field(default_factory=dict)
    """What else must be kept to resume."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent is to be told about its question."""

    allowed: bool
    """A permission: it was given. Anything else: somebody answered."""
    option: pb.InputOption | None = None
    """The option chosen, the first if several. None: none was."""
    chosen: tuple[pb.InputOption, ...] = ()
    """All options chosen."""
    updated_input_json: str = ""
    text: str = ""
    value_json: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Perform:
    """The agent wants something done for it: a file read, a command run. It is cancelled with the attempt."""

    operation: Callable[[Workbench], Awaitable[JsonValue]]
    """Does it. It may take its time."""
    encode: Callable[["JsonValue | Exception"], bytes]
    """Makes the bytes for the agent's standard input: of what came of it, or of what went wrong."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The agent asks. Policy or the caller answers; ``encode`` makes the bytes for its standard input."""

    request: pb.InputRequest
    encode: Callable[[Answer], bytes]
    lineage: pb.Lineage | None = None
    """The nested agent that asks. None: the main one."""
    perform: Callable[[Answer], Perform | None] | None = None
    """What is done if it is allowed, in place of ``encode``. None, or returning None: nothing."""
    is_free: bool = False
    """It is allowed, and nobody is asked, unless the run's permissions refuse it in so many words."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The agent no longer wants an answer to its request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes for the agent's standard input."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseInput:
    """Close the agent's standard input: it has all it needs."""


Output: TypeAlias = pb.AgentEvent | Ask | Perform | Withdraw | Write | CloseInput
"""What comes out of a parser."""


class Parser(Protocol):
    """Understands one attempt's output, line by line. Untrusted input: nothing in it may raise."""

    report: Report

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""


@runtime_checkable
class Interrupts(Protocol):
    """A parser that knows how to stop its agent, where that needs what only the agent's output tells."""

    def interrupt(self) -> Iterable[Output]:
        """Ask the agent to stop what it does. Called once, when a ``CancelStep`` says so."""


def log_event(stream: Stream, line: Line) -> pb.AgentEvent:
    """Return the event for a line that has no better kind."""
    text = line.data.decode("utf-8", "replace")
    which = pb.OUTPUT_STREAM_STDOUT if stream == "stdout" else pb.OUTPUT_STREAM_STDERR
    log = pb.Log(stream=which, text=text, truncated_bytes=line.cut_bytes, unterminated=not line.complete)
    if "\ufffd" in text and text.encode() != line.data:
        log.raw = line.data
    return pb.AgentEvent(log=log)


def words_event(kind: str, item_id: str, *, delta: str | None = None, whole: str | None = None) -> pb.AgentEvent:
    """Return the event for words of an agent: a piece more, the whole, or, with neither, the end of the item.

    Args:
        kind: ``thinking``; any other is text.
        item_id: the item that the words belong to.
        delta: what comes behind what was told.
        whole: what stands in place of it; empty takes it back.
    """
    event = pb.AgentEvent()
    piece = event.thinking if kind == "thinking" else event.text
    piece.item_id = item_id
    if delta is not None:
        piece.delta = delta
    elif whole is not None:
        piece.whole = whole
    return event


def outputs_of(
    report: Report, stream: Stream, line: Line, read: Callable[[], Iterable[Output] | None] | None, native: str = ""
) -> list[Output]:
    """Return what a line comes down to; the line itself, as a log, where it says nothing that is known.

    Args:
        report: the parser's; it is told that the agent said something.
        stream: where the line came from.
        line: as it came.
        read: reads the line's frame; None, or a reader that returns None, where nothing is known of it. What is
            nested so deeply that it can be read but not written is not known either.
        native: the frame's own name, put on the first event; empty where nobody asks for names.
    """
    if read is None:
        return [log_event(stream, line)]
    report.has_output = True
    try:
        found = read()
        outputs = None if found is None else list(found)
    except RecursionError:
        outputs = None
    if outputs is None:
        return [log_event(stream, line)]
    event = next((output for output in outputs if isinstance(output, pb.AgentEvent)), None)
    if native and event is not None:
        event.native.type = native
    return outputs
