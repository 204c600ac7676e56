"""A run's inputs in mid-run: each is accepted once, then taken by the agent or dropped; none is lost in silence.

An input for the present turn is offered to the agent whenever that may take one (``on_steer``); a queued one waits
for the end of the turn. So does one for the present turn that the agent had no time for, or rejected.
"""

from collections.abc import Callable
from typing import Final, Protocol

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk._output.parser import Steering
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

MOST_WAITING: Final = 64
"""Inputs of a run that may wait for its agent."""
_RETRY_S: Final = 1.0

RUN_ENDED: Final = ("run_ended", "The run ended before the agent took the input.")
CANCELLED: Final = ("cancelled", "The run was cancelled before the agent took the input.")
TURN_FAILED: Final = ("turn_failed", "The turn before it did not end well, so that no other one follows.")
NO_SESSION: Final = ("no_session", "The agent reported no session that another turn could continue.")
ATTEMPT_ENDED: Final = ("attempt_ended", "The attempt ended before the agent took the input; send it again.")
OUT_OF_BUDGET: Final = ("budget_exceeded", "The budget of the run allows no further turn.")
UNCONFIRMED: Final = (
    "unconfirmed",
    "The agent got the input and ended its turn; it did not say in time whether it took the input.",
)
REFUSED: Final = ("refused", "The agent rejected the input, and no turn follows that could begin with it.")


class _Known(Struct, frozen=True):
    digest: bytes
    """Of its text and its files, which are not kept."""
    mode: pb.InputMode.ValueType
    sequence: int


class SendingRun(Protocol):
    """What inputs need of their run; ``Run`` says what each member means."""

    run_id: str

    def emit(self, event: pb.AgentEvent) -> None:
        """Write an event."""


class SentInputs:
    """The inputs of one run.

    Args:
        run: the run.
    """

    def __init__(self, run: SendingRun) -> None:
        self._run = run
        self._known: dict[str, _Known] = {}
        self._waiting: dict[str, Steering] = {}
        self._steering: list[str] = []
        """Those for the present turn that the agent was not given yet."""
        self._offered: set[str] = set()
        """Those that the agent was given in its present turn, and has said nothing about."""
        self._refused: set[str] = set()
        """Those that the agent rejected in its present turn."""
        self._closed = False
        self.on_steer: Callable[[Steering], bool] | None = None
        """Gives an input to the agent in its present turn; False if it takes none just now. None: nothing can."""

    def repeated(self, request: adapter_pb2.SendRequest) -> int | None:
        """Return the sequence of the input that a request repeats; None if its ID is new.

        Raises:
            DragomanError: INPUT_ID_REUSED.
        """
        known = self._known.get(request.input_id)
        if known is None:
            return None
        if (known.digest, known.mode) != (_digest(request), mode_of(request)):
            raise DragomanError(
                Reason.INPUT_ID_REUSED,
                f"input {request.input_id!r} exists with another text, mode or files; choose another ID",
                {"run_id": request.run_id, "input_id": request.input_id},
            )
        return known.sequence

    def check_open(self, request: adapter_pb2.SendRequest) -> None:
        """Refuse an input that would be one too many, or too late.

        Raises:
            DragomanError: RUN_FINISHED, or TOO_MANY_INPUTS.
        """
        if self._closed:
            raise DragomanError(
                Reason.RUN_FINISHED, f"run {request.run_id!r} takes no input any more", {"run_id": request.run_id}
            )
        if len(self._waiting) >= MOST_WAITING:
            raise DragomanError(
                Reason.TOO_MANY_INPUTS,
                f"{MOST_WAITING} inputs wait for the agent; send more once it has taken one",
                {"run_id": request.run_id},
                retry_after_s=_RETRY_S,
            )

    def accept(self, request: adapter_pb2.SendRequest, sender: str, files: tuple[AttachedFile, ...] = ()) -> int:
        """Accept an input whose ID is new; return the sequence of ``input_accepted``.

        Args:
            request: the input.
            sender: who sent it.
            files: what came with it, laid out.

        Raises:
            DragomanError: RUN_FINISHED, or TOO_MANY_INPUTS.
        """
        self.check_open(request)
        mode = mode_of(request)
        accepted = pb.InputAccepted(
            input_id=request.input_id,
            text=request.text,
            mode=mode,
            sender=sender,
            attachments=[attachment.name for attachment in request.attachments],
        )
        event = pb.AgentEvent(input_accepted=accepted, origin=pb.EVENT_ORIGIN_OPERATOR)
        self._run.emit(event)
        self._known[request.input_id] = _Known(_digest(request), mode, event.sequence)
        self._waiting[request.input_id] = Steering(request.input_id, request.text, files)
        if mode == pb.INPUT_MODE_STEER:
            self._steering.append(request.input_id)
            self.offer()
        return event.sequence

    def offer(self) -> None:
        """Give the agent what is for its present turn, in order, as far as it takes it now."""
        while self._steering and self.on_steer is not None:
            input_id = self._steering.pop(0)
            sent = self._waiting.get(input_id)
            if sent is None:
                continue
            self._offered.add(input_id)  # now, as it may be taken at once
            if not self.on_steer(sent):
                self._offered.discard(input_id)
                self._steering.insert(0, input_id)
                return

    def settle(self, message: pb.Message) -> None:
        """Note that the agent took an input; a message is about none that does not wait."""
        if self._waiting.pop(message.input_id, None) is None:
            message.ClearField("input_id")

    def refuse(self, input_id: str) -> None:
        """Note that the agent rejected what it was given in its present turn; another turn may begin with it."""
        self._offered.discard(input_id)
        if input_id in self._waiting:
            self._refused.add(input_id)

    def give_up(self) -> None:
        """Drop what the agent was given in its present turn and has said nothing about: it may have taken that."""
        offered = [input_id for input_id in self._waiting if input_id in self._offered]
        self._drop(offered, UNCONFIRMED)

    def end_turn(self) -> None:
        """Note that the present turn is over: what was for it waits for the next one."""
        self.on_steer = None
        self._steering.clear()
        self._offered.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether an input waits for the agent."""
        return bool(self._waiting)

    def begin_turn(self) -> Steering | None:
        """Write that the agent takes the input that has waited longest, and return it; None if none waits."""
        sent = next(iter(self._waiting.values()), None)
        if sent is not None:
            self._refused.discard(sent.input_id)
            event = sent.taken
            event.origin = pb.EVENT_ORIGIN_ADAPTER
            self._run.emit(event)
        return sent

    def close(self, why: tuple[str, str]) -> None:
        """Accept no more, and drop what waits, for a reason."""
        self._closed = True
        self.drop_all(why)

    def drop_all(self, why: tuple[str, str]) -> None:
        """Drop what waits, for a reason."""
        waiting = list(self._waiting)
        self.end_turn()
        self._drop(waiting, why)

    def _drop(self, input_ids: list[str], why: tuple[str, str]) -> None:
        for input_id in input_ids:
            del self._waiting[input_id]
            reason, message = REFUSED if why is RUN_ENDED and input_id in self._refused else why
            dropped = pb.InputDropped(input_id=input_id, reason=reason, message=message)
            self._run.emit(pb.AgentEvent(input_dropped=dropped, origin=pb.EVENT_ORIGIN_ADAPTER))


def mode_of(request: adapter_pb2.SendRequest) -> pb.InputMode.ValueType:
    """Return when the agent is to get an input; without a word about it, in another turn."""
    return request.mode or pb.INPUT_MODE_QUEUE


def _digest(request: adapter_pb2.SendRequest) -> bytes:
    import hashlib  # noqa: PLC0415 - few runs are sent anything

    content = adapter_pb2.SendRequest(text=request.text, attachments=request.attachments)
    return hashlib.sha256(content.SerializeToString(deterministic=True)).digest()
