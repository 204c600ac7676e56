"""What an adapter's parser gets and gives. Pure: lines in, events and requests out; no clock, no I/O."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from dragoman.sdk._encoding.fields import Fields, text
from dragoman.sdk._encoding.lines import Line
from dragoman.sdk._output.attached import AttachedFile, attachments_section
from dragoman.sdk._output.billing import Billing
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

Stream = Literal["stdout", "stderr"]


class FailureInfo(Struct, frozen=True):
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


class Terminal(Struct, frozen=True):
    """The agent's own word that it is done."""

    succeeded: bool
    subtype: str = ""
    failure: FailureInfo | None = None
    """Why, if it did not succeed and says so."""
    interrupted: bool = False
    """It says that it was interrupted."""


class Report(Struct):
    """What a parser has learned of an attempt so far. Absent is not zero: None means not said."""

    terminal: Terminal | None = None
    """The agent's own statement that it is done. An attempt without one fails, unless ``needs_terminal`` is false."""
    deferred: Terminal | None = None
    """The same, of an agent that got an input in its turn and may begin another turn with it. It stands if the agent
    does not say in time that it takes the input, which is dropped then."""
    session_id: str = ""
    """The agent's own ID of the conversation, with which ``plan`` can resume it; empty if there is none."""
    display_id: str = ""
    """The session's name for people, where that is another."""
    model: str = ""
    """The model that answered, as the agent names it."""
    provider: str = ""
    """Whose model it is, as the agent names it."""
    summary: str = ""
    """What the attempt came to, for people: mostly the agent's last answer."""
    usage: pb.Usage | None = None
    """Totals of this run."""
    billing: Billing = field(default_factory=Billing)
    """Who pays how, where the agent itself says so; else the adapter's ``billing`` is asked."""
    question: pb.Question | None = None
    raw_json: str = ""
    structured_output_json: str = ""
    turns: int | None = None
    has_output: bool = False
    """Anything that could be parsed came. An attempt whose output has nothing of the kind fails.

    A parser for which any text is right sets this from the beginning.
    """
    session_params: dict[str, str] = field(default_factory=dict)
    """What else must be kept to resume."""


class Answer(Struct, frozen=True):
    """The answer to the agent's question."""

    allowed: bool
    """A permission: it was granted. Anything else: there is an answer."""
    option: pb.InputOption | None = None
    """The option chosen, the first if several. None: none was."""
    chosen: tuple[pb.InputOption, ...] = ()
    """All options chosen."""
    updated_input_json: str = ""
    text: str = ""
    value_json: str = ""
    message: str = ""


class Ask(Struct, frozen=True):
    """The agent asks. Policy or the caller answers; ``encode`` makes the bytes for its standard input."""

    request: pb.InputRequest
    encode: Callable[[Answer], bytes]
    lineage: pb.Lineage | None = None
    """The nested agent that asks. None: the main one."""


class Withdraw(Struct, frozen=True):
    """The agent no longer wants an answer to its request."""

    request_id: str


class Write(Struct, frozen=True):
    """Bytes for the agent's standard input."""

    data: bytes


class Untaken(Struct, frozen=True):
    """The agent rejected an input that it was given in its present turn; another turn may begin with it."""

    input_id: str


class Updated(Struct, frozen=True):
    """The agent has taken a change of its model or permission mode."""

    update_id: str
    model: str = ""
    """What ``settings.model`` is in later turns, where that has to be more exact than what was asked for."""


class NotUpdated(Struct, frozen=True):
    """The agent has rejected a change of its model or permission mode; nothing has changed."""

    update_id: str
    why: str
    """In the agent's own words. May be empty."""


class CloseInput(Struct, frozen=True):
    """Close the agent's standard input: it has all it needs."""


Output: TypeAlias = pb.AgentEvent | Ask | Withdraw | Write | Untaken | Updated | NotUpdated | CloseInput
"""What comes out of a parser."""


class Parser(Protocol):
    """Understands one attempt's output, line by line. Untrusted input: nothing in it may raise."""

    report: Report

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""


@runtime_checkable
class Interrupts(Protocol):
    """A parser that knows how to stop its agent, where that needs what only the agent's output contains."""

    def interrupt(self) -> Iterable[Output]:
        """Ask the agent to stop what it does. Called once, when a ``CancelStep`` says so."""


class Steering(Struct, frozen=True):
    """An input for the agent's present turn."""

    input_id: str
    text: str
    files: tuple[AttachedFile, ...] = ()
    """What came with it, laid out."""

    @property
    def prompt(self) -> str:
        """What the agent gets: the text, and where the files are."""
        section = attachments_section(self.files)
        return f"{self.text}\n\n{section}" if section else self.text

    @property
    def images(self) -> list[AttachedFile]:
        """The files that go to the model as images."""
        return [file for file in self.files if file.image]

    @property
    def taken(self) -> pb.AgentEvent:
        """The event that the agent took it, which a parser yields once the agent has said so."""
        return pb.AgentEvent(message=pb.Message(role=pb.MESSAGE_ROLE_USER, text=self.text, input_id=self.input_id))


@runtime_checkable
class Steers(Protocol):
    """A parser whose agent takes inputs in its present turn; its adapter declares FEATURE_STEER."""

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        """Give the agent an input; None if it takes none just now, and is to be asked again after its next output.

        What is yielded has a ``Write``, and ``steering.taken`` if nothing of the agent's output confirms it. An agent
        that confirms it makes the parser yield that later, or ``Untaken`` if it rejects the input. What neither
        happened to by the end of the turn becomes another turn, or is dropped. An agent that may begin a turn with
        it by itself ends with ``report.deferred``.
        """


class Update(Struct, frozen=True):
    """A change of the agent's model or of its permission mode: exactly one of them is set."""

    update_id: str
    """Distinguishes it from the other changes of the run."""
    model: str = ""
    permission_mode: str = ""


@runtime_checkable
class Updates(Protocol):
    """A parser whose agent changes its model or permission mode while it works; its adapter declares which.

    The features are FEATURE_UPDATE_MODEL and FEATURE_UPDATE_PERMISSION_MODE.
    """

    def update(self, update: Update) -> Iterable[Output] | None:
        """Give the agent a change; None if it takes none just now, and is to be asked again after its next output.

        Once the agent has answered, the parser yields ``Updated`` or ``NotUpdated``: at once where that is certain,
        else later. A change that is not answered by the end of the turn is given again in the next one. Where the
        plan keeps no standard input open, the parser can only reject it.
        """


def log_event(stream: Stream, line: Line) -> pb.AgentEvent:
    """Return the event for a line that has no better kind."""
    # Field by field, and in place: a third of the time of keywords and a copy, and agents print lines by the million.
    event = pb.AgentEvent()
    log = event.log
    log.stream = pb.OUTPUT_STREAM_STDOUT if stream == "stdout" else pb.OUTPUT_STREAM_STDERR
    data, cut_bytes, is_complete = line
    if data:
        log.text = text = data.decode("utf-8", "replace")
        if "\ufffd" in text and text.encode() != data:
            log.raw = data
    if cut_bytes:
        log.truncated_bytes = cut_bytes
    if not is_complete:
        log.unterminated = True
    return event


def text_event(kind: str, item_id: str, *, delta: str | None = None, whole: str | None = None) -> pb.AgentEvent:
    """Return the event for an agent's text: a delta, the whole, or, with neither, the end of the item.

    Args:
        kind: ``thinking``; any other is text.
        item_id: the item that the text belongs to.
        delta: what follows the text emitted so far.
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


def notice_event(
    code: str, message: str, severity: pb.Severity.ValueType = pb.SEVERITY_WARNING, *, hint: str = ""
) -> pb.AgentEvent:
    """Return the event for a remark that people should see; ``hint`` says what they can do."""
    return pb.AgentEvent(notice=pb.Notice(severity=severity, code=code, message=message, hint=hint))


def compaction_event(
    trigger: str = "",
    summary: str = "",
    *,
    finished: bool = False,
    tokens_before: int | None = None,
    tokens_after: int | None = None,
) -> pb.AgentEvent:
    """Return the event that the agent shortens its conversation, or has done so."""
    compaction = pb.Compaction(
        trigger=trigger, summary=summary, finished=finished, tokens_before=tokens_before, tokens_after=tokens_after
    )
    return pb.AgentEvent(compaction=compaction)


_PLAN_STATUSES: Final = {
    "pending": pb.PLAN_ENTRY_STATUS_PENDING,
    "in_progress": pb.PLAN_ENTRY_STATUS_IN_PROGRESS,
    "completed": pb.PLAN_ENTRY_STATUS_COMPLETED,
    "cancelled": pb.PLAN_ENTRY_STATUS_CANCELLED,
}


def plan_entry(item: Fields) -> pb.PlanEntry:
    """Return an entry of a plan, as most agents write it; an unknown status is none."""
    return pb.PlanEntry(
        id=text(item, "id"),
        content=text(item, "content"),
        status=_PLAN_STATUSES.get(text(item, "status"), pb.PLAN_ENTRY_STATUS_UNSPECIFIED),
        priority=text(item, "priority"),
    )


def outputs_of(
    report: Report, stream: Stream, line: Line, read: Callable[[], Iterable[Output] | None] | None, native: str = ""
) -> list[Output]:
    """Return what a line comes down to; the line itself, as a log, where it says nothing that is known.

    Args:
        report: the parser's; it notes that the agent produced output.
        stream: where the line came from.
        line: as it came.
        read: reads the line's frame; None, or a reader that returns None, where nothing is known of it. What is
            nested so deeply that it can be read but not written is not known either.
        native: the frame's own name, put on the first event; empty where names are not requested.
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
