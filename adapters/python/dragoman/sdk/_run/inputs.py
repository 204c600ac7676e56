"""A run's questions: asked and answered once, expired to their default, repeated to clients that attach.

The first valid answer wins. The same answer again is fine; another one gets an error with the recorded answer.
"""

import asyncio
import json
import re
import time
from typing import Any, Protocol

from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.limits import DEFAULT_INPUT_TIMEOUT_S
from dragoman.protocol.redaction.patterns import REDACTED
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_REJECTING = (pb.INPUT_OPTION_KIND_REJECT_ONCE, pb.INPUT_OPTION_KIND_REJECT_ALWAYS)
_LONGEST_WAIT_S = 10 * 365 * 24 * 3600.0  # what timestamps and timers can do without end


class Resolution(Struct, frozen=True):
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


class _Open(Struct):
    request: pb.InputRequest
    """As it was shown: redacted."""
    hides_input: bool
    """Whether something is redacted in the input that may be edited."""
    future: asyncio.Future[Resolution]
    timer: asyncio.TimerHandle
    lineage: pb.Lineage | None = None


class _Resolved(Struct, frozen=True):
    resolution: Resolution
    shown: pb.InputAnswer
    """The answer as it is recorded: redacted."""


class AskingRun(Protocol):
    """What input requests need of their run; ``Run`` says what each member means."""

    run_id: str
    request: adapter_pb2.ExecuteRequest
    attempt: int
    phase: pb.RunPhase.ValueType
    finished: asyncio.Event

    def emit(self, event: pb.AgentEvent) -> None:
        """Write an event."""

    def state(self, phase: pb.RunPhase.ValueType, **fields: Any) -> None:
        """Write a change of phase."""


class Inputs:
    """The questions of one run."""

    def __init__(self, run: AskingRun) -> None:
        self._run = run
        self._open: dict[str, _Open] = {}
        self._resolved: dict[str, _Resolved] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a question is open."""
        return bool(self._open)

    def pending_copies(self) -> list[bytes]:
        """Return the open questions as ephemeral events, for a client that attaches."""
        copies = []
        for entry in self._open.values():
            event = pb.AgentEvent(input_request=entry.request, lineage=entry.lineage, run_id=self._run.run_id)
            event.attempt = self._run.attempt
            event.origin = pb.EVENT_ORIGIN_ADAPTER
            copies.append(event.SerializeToString())
        return copies

    def knows(self, request_id: str) -> bool:
        """Whether there is, or was, a question with this id."""
        return request_id in self._open or request_id in self._resolved

    async def ask(self, request: pb.InputRequest) -> Resolution:
        """Ask, and wait for the end of the question; cancelled, withdraw it.

        Raises:
            ValueError: the id is not unique.
        """
        answered = self.open(request)
        try:
            return await answered
        finally:
            self.withdraw(request.id)

    def open(self, request: pb.InputRequest, lineage: pb.Lineage | None = None) -> asyncio.Future[Resolution]:
        """Ask, and return what will hold the end of the question.

        Args:
            request: the question.
            lineage: the nested agent that asks; None for the main one.

        Raises:
            ValueError: the id is not unique.
        """
        if self.knows(request.id):
            raise ValueError(f"the request id {request.id} is not unique")
        timeout_s = self._timeout_s()
        if not request.HasField("default_answer"):
            request.default_answer.CopyFrom(default_answer(request))
        request.expires_at.FromNanoseconds(time.time_ns() + int(timeout_s * 1e9))
        event = pb.AgentEvent(input_request=request, lineage=lineage, origin=pb.EVENT_ORIGIN_AGENT)
        self._run.emit(event)
        loop = asyncio.get_running_loop()
        shown = event.input_request
        hides_input = shown.editable_input_json != request.editable_input_json
        timer = loop.call_later(timeout_s, self._expire, request.id)
        entry = _Open(shown, hides_input, loop.create_future(), timer, lineage)
        self._open[request.id] = entry
        if len(self._open) == 1:
            self._run.state(pb.RUN_PHASE_WAITING_FOR_INPUT)
        return entry.future

    def _timeout_s(self) -> float:
        permissions = self._run.request.permissions
        if permissions.HasField("request_timeout"):
            return min(max(0.0, permissions.request_timeout.ToNanoseconds() / 1e9), _LONGEST_WAIT_S)
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
        check_answer(entry.request, answer, hides_input=entry.hides_input)
        return self._resolve(request_id, pb.INPUT_RESOLUTION_ANSWERED, answer, responder)

    def _answer_again(self, request_id: str, answer: pb.InputAnswer) -> int:
        before = self._resolved.get(request_id)
        if before is None:
            raise DragomanError(Reason.REQUEST_NOT_FOUND, f"the run has no request {request_id!r}")
        how = before.resolution.how
        if how == pb.INPUT_RESOLUTION_EXPIRED:
            raise DragomanError(Reason.REQUEST_EXPIRED, "the request has expired; its default was taken")
        if how == pb.INPUT_RESOLUTION_DROPPED and self._run.finished.is_set():
            raise DragomanError(Reason.RUN_FINISHED, "the run is over, and the request with it")
        if how == pb.INPUT_RESOLUTION_DROPPED:
            raise DragomanError(Reason.REQUEST_EXPIRED, "the agent no longer waits for an answer to this request")
        if before.resolution.answer == answer:
            return before.resolution.sequence
        from google.protobuf import json_format  # noqa: PLC0415 - few answers contradict an earlier one

        recorded = json_format.MessageToJson(before.shown, indent=None)
        raise DragomanError(Reason.ALREADY_RESOLVED, "the request was answered otherwise", {"answer": recorded})

    def withdraw(self, request_id: str) -> None:
        """The agent no longer waits for the answer."""
        if request_id in self._open:
            self._resolve(request_id, pb.INPUT_RESOLUTION_DROPPED, pb.InputAnswer(), "")

    def end_turn(self) -> None:
        """End the agent's own questions, as its turn has ended; the one about the budget stays open."""
        for request_id, entry in list(self._open.items()):
            if entry.request.kind != pb.INPUT_KIND_BUDGET:
                self.withdraw(request_id)

    def drop_all(self) -> None:
        """The attempt or run is over; no answers are awaited."""
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
        entry.timer.cancel()
        resolved = pb.InputResolved(id=request_id, resolution=how, responder=responder)
        if how != pb.INPUT_RESOLUTION_DROPPED:
            resolved.answer.CopyFrom(answer)
        by_caller = how == pb.INPUT_RESOLUTION_ANSWERED
        event = pb.AgentEvent(input_resolved=resolved)
        event.origin = pb.EVENT_ORIGIN_OPERATOR if by_caller else pb.EVENT_ORIGIN_ADAPTER
        self._run.emit(event)
        resolution = Resolution(how, answer, event.sequence)
        self._resolved[request_id] = _Resolved(resolution, event.input_resolved.answer)
        if not self._open and self._run.phase == pb.RUN_PHASE_WAITING_FOR_INPUT:
            self._run.state(pb.RUN_PHASE_RUNNING)
        if not entry.future.done():
            entry.future.set_result(resolution)
        return event.sequence


def default_answer(request: pb.InputRequest) -> pb.InputAnswer:
    """Return the answer that a request gets when it expires: a refusal where there is one, else nothing."""
    for kind in _REJECTING:
        for option in request.options:
            if option.kind == kind:
                return pb.InputAnswer(option_ids=[option.id], message="No answer arrived in time.")
    return pb.InputAnswer(message="No answer arrived in time.")


def check_answer(request: pb.InputRequest, answer: pb.InputAnswer, *, hides_input: bool = False) -> None:
    """Check that an answer fits its request.

    Args:
        request: what was asked.
        answer: the answer.
        hides_input: whether something is redacted in the input that the answer may change.

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
        _check_updated_input(request, answer, hides_input=hides_input)
    if request.kind == pb.INPUT_KIND_SCHEMA:
        _check_value(request, answer)
    if request.kind == pb.INPUT_KIND_TEXT and not answer.text:
        raise _unfit("answer.text", "must not be empty")


def _check_updated_input(request: pb.InputRequest, answer: pb.InputAnswer, *, hides_input: bool) -> None:
    path = "answer.updated_input_json"
    if not request.editable_input_json:
        raise _unfit(path, "this request's input cannot be changed")
    if not isinstance(_parse(path, answer.updated_input_json), dict):
        raise _unfit(path, "a tool's input is a JSON object")
    if hides_input and REDACTED in answer.updated_input_json:
        # The agent would get the mask in place of the secret.
        raise _unfit(path, f"it still has {REDACTED} where a secret is hidden; give the value, or leave the input")


def _check_value(request: pb.InputRequest, answer: pb.InputAnswer) -> None:
    import jsonschema  # noqa: PLC0415 - slow to import, and rarely needed
    import referencing  # noqa: PLC0415 - as above

    path = "answer.value_json"
    value = _parse(path, answer.value_json)
    try:
        schema = json.loads(request.schema_json)
        if not isinstance(schema, dict):
            return
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        # An empty registry: an agent's schema must not make us fetch what it refers to.
        kind(schema, registry=referencing.Registry()).validate(value)
    except jsonschema.ValidationError as error:
        raise _unfit(path, f"does not fit the schema at {error.json_path}") from None
    except (ValueError, RecursionError, re.error, jsonschema.SchemaError, referencing.exceptions.Unresolvable):
        return  # the agent's schema is broken; its answer cannot be checked


def _parse(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _unfit(path, "not JSON") from None


def _unfit(path: str, description: str) -> DragomanError:
    error = invalid(path, description)
    return DragomanError(Reason.INVALID_ANSWER, error.message, violations=error.violations)
