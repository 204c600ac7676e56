"""A run's questions to its caller: asked once, answered once, expired to their default, told again to whoever joins.

The first valid answer wins. The same answer again is fine; another one is told what was recorded.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.limits import DEFAULT_INPUT_TIMEOUT_S
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

if TYPE_CHECKING:  # the two know each other; only one can import the other at run time
    from dragoman.sdk._run import Run

_REJECTING = (pb.INPUT_OPTION_KIND_REJECT_ONCE, pb.INPUT_OPTION_KIND_REJECT_ALWAYS)


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a question ended."""

    how: pb.InputResolution.ValueType
    answer: pb.InputAnswer
    """Empty if DROPPED."""
    sequence: int
    """Where input_resolved stands."""

    def option(self, request: pb.InputRequest) -> pb.InputOption | None:
        """Return the option chosen, the first if several."""
        for option in request.options:
            if option.id in self.answer.option_ids[:1]:
                return option
        return None


@dataclass(slots=True)
class _Open:
    request: pb.InputRequest
    future: asyncio.Future[Resolution]
    timer: asyncio.TimerHandle


class Inputs:
    """The questions of one run."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._open: dict[str, _Open] = {}
        self._resolved: dict[str, Resolution] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a question is open."""
        return bool(self._open)

    def pending_copies(self) -> list[bytes]:
        """Return the open questions as ephemeral events, for somebody who joins."""
        copies = []
        for entry in self._open.values():
            event = pb.AgentEvent(input_request=entry.request, run_id=self._run.run_id)
            event.attempt = self._run.attempt
            event.origin = pb.EVENT_ORIGIN_ADAPTER
            copies.append(event.SerializeToString())
        return copies

    async def ask(self, request: pb.InputRequest) -> Resolution:
        """Ask, and wait for the end of the question."""
        loop = asyncio.get_running_loop()
        if request.id in self._open or request.id in self._resolved:
            raise ValueError(f"the request id {request.id} is not unique")
        timeout_s = self._timeout_s()
        if not request.HasField("default_answer"):
            request.default_answer.CopyFrom(default_answer(request))
        request.expires_at.GetCurrentTime()
        request.expires_at.FromNanoseconds(request.expires_at.ToNanoseconds() + int(timeout_s * 1e9))
        event = pb.AgentEvent(input_request=request, origin=pb.EVENT_ORIGIN_AGENT)
        self._run.emit(event)
        timer = loop.call_later(timeout_s, self._expire, request.id)
        # What was emitted is redacted; what is kept here is what readers get again.
        entry = _Open(event.input_request, loop.create_future(), timer)
        self._open[request.id] = entry
        if len(self._open) == 1:
            self._run.state(pb.RUN_PHASE_WAITING_FOR_INPUT)
        try:
            return await entry.future
        finally:
            timer.cancel()

    def _timeout_s(self) -> float:
        wanted = self._run.request.permissions
        if wanted.HasField("request_timeout"):
            return wanted.request_timeout.ToNanoseconds() / 1e9
        return DEFAULT_INPUT_TIMEOUT_S

    def answer(self, request_id: str, answer: pb.InputAnswer, responder: str) -> int:
        """Answer a question.

        Returns:
            The sequence of input_resolved.

        Raises:
            DragomanError: there is no such question, it was answered otherwise or expired, the run is over, or
                the answer does not fit.
        """
        entry = self._open.get(request_id)
        if entry is None:
            return self._answer_again(request_id, answer)
        check_answer(entry.request, answer)
        return self._resolve(request_id, pb.INPUT_RESOLUTION_ANSWERED, answer, responder)

    def _answer_again(self, request_id: str, answer: pb.InputAnswer) -> int:
        before = self._resolved.get(request_id)
        if before is None:
            raise DragomanError(Reason.REQUEST_NOT_FOUND, f"the run has no request {request_id!r}")
        if before.how == pb.INPUT_RESOLUTION_EXPIRED:
            raise DragomanError(Reason.REQUEST_EXPIRED, "the request has expired; its default was taken")
        if before.how == pb.INPUT_RESOLUTION_DROPPED:
            raise DragomanError(Reason.RUN_FINISHED, "the request was dropped, as its attempt or run is over")
        if before.answer == answer:
            return before.sequence
        recorded = json_format.MessageToJson(before.answer, indent=None)
        raise DragomanError(
            Reason.ALREADY_RESOLVED,
            "the request was answered otherwise",
            {"answer": self._run.redactor.text(recorded)},
        )

    def withdraw(self, request_id: str) -> None:
        """The agent no longer waits for the answer."""
        if request_id in self._open:
            self._resolve(request_id, pb.INPUT_RESOLUTION_DROPPED, pb.InputAnswer(), "")

    def drop_all(self) -> None:
        """The attempt or run is over; nobody waits for answers."""
        for request_id in list(self._open):
            self.withdraw(request_id)

    def _expire(self, request_id: str) -> None:
        if request_id in self._open:
            default = self._open[request_id].request.default_answer
            self._resolve(request_id, pb.INPUT_RESOLUTION_EXPIRED, default, "")

    def _resolve(
        self, request_id: str, how: pb.InputResolution.ValueType, answer: pb.InputAnswer, responder: str
    ) -> int:
        entry = self._open.pop(request_id)
        resolved = pb.InputResolved(id=request_id, resolution=how, responder=responder)
        if how != pb.INPUT_RESOLUTION_DROPPED:
            resolved.answer.CopyFrom(answer)
        self._run.emit(pb.AgentEvent(input_resolved=resolved, origin=pb.EVENT_ORIGIN_OPERATOR))
        sequence = self._run.fanout.last_sequence
        resolution = Resolution(how, answer, sequence)
        self._resolved[request_id] = resolution
        if not self._open and self._run.phase == pb.RUN_PHASE_WAITING_FOR_INPUT:
            self._run.state(pb.RUN_PHASE_RUNNING)
        if not entry.future.done():
            entry.future.set_result(resolution)
        return sequence


def default_answer(request: pb.InputRequest) -> pb.InputAnswer:
    """Return what is taken when nobody answers: a refusal where there is one, else nothing."""
    for kind in _REJECTING:
        for option in request.options:
            if option.kind == kind:
                return pb.InputAnswer(option_ids=[option.id], message="Nobody answered in time.")
    return pb.InputAnswer(message="Nobody answered in time.")


def check_answer(request: pb.InputRequest, answer: pb.InputAnswer) -> None:
    """Check that an answer fits its request.

    Raises:
        DragomanError: INVALID_ANSWER, with the field.
    """
    known = [option.id for option in request.options]
    if request.options and not answer.option_ids:
        raise _unfit("answer.option_ids", f"choose one of {', '.join(known)}")
    if len(answer.option_ids) > 1 and not request.multiple:
        raise _unfit("answer.option_ids", "choose one option only")
    for chosen in answer.option_ids:
        if chosen not in known:
            raise _unfit("answer.option_ids", f"{chosen!r} is not an option; choose one of {', '.join(known)}")
    if answer.updated_input_json:
        _check_updated_input(request, answer)
    if request.kind == pb.INPUT_KIND_SCHEMA:
        _check_value(request, answer)
    if request.kind == pb.INPUT_KIND_TEXT and not answer.text:
        raise _unfit("answer.text", "a text is wanted")


def _check_updated_input(request: pb.InputRequest, answer: pb.InputAnswer) -> None:
    path = "answer.updated_input_json"
    if not request.editable_input_json:
        raise _unfit(path, "this request's input cannot be changed")
    try:
        value = json.loads(answer.updated_input_json)
    except ValueError:
        raise _unfit(path, "not JSON") from None
    if not isinstance(value, dict):
        raise _unfit(path, "a tool's input is a JSON object")


def _check_value(request: pb.InputRequest, answer: pb.InputAnswer) -> None:
    import jsonschema  # noqa: PLC0415 - slow to import, and rarely needed

    path = "answer.value_json"
    try:
        value = json.loads(answer.value_json)
        jsonschema.validate(value, json.loads(request.schema_json))
    except ValueError:
        raise _unfit(path, "not JSON") from None
    except jsonschema.ValidationError as error:
        raise _unfit(path, f"does not fit the schema at {error.json_path}") from None
    except jsonschema.SchemaError:
        return  # the agent's schema is broken; its answer cannot be checked


def _unfit(path: str, description: str) -> DragomanError:
    error = invalid(path, description)
    return DragomanError(Reason.INVALID_ANSWER, error.message, violations=error.violations)
