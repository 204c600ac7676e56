"""Repeated answers to input requests: the same answer is accepted, because its first response may have been lost."""

import contextlib
import re
from collections.abc import Callable, Collection
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.event_buffer import EventReader
from dragoman.protocol.wire import FIELD_BY_KIND, peek
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

_MASK: Final = "[redacted]"


async def find_event(
    reader: EventReader, end: int, kinds: Collection[str], is_it: Callable[[pb.AgentEvent], bool]
) -> pb.AgentEvent | None:
    """Return the first event of a run that is the one looked for; ``None`` if there is none.

    Args:
        reader: at the beginning of the run; closed when this returns.
        end: the last sequence there is, behind which a live run is not waited for.
        kinds: of events that are looked at, by the names of their bodies.
        is_it: returns whether one is it.

    Raises:
        DragomanError: RUN_LOG_UNAVAILABLE, or RUN_NOT_FOUND if the run was forgotten meanwhile.
    """
    fields = {FIELD_BY_KIND[kind] for kind in kinds}
    with contextlib.closing(reader):
        while reader.last_sequence < end and (events := await reader.read()):
            for data in events:
                if peek(data).field in fields and is_it(event := pb.AgentEvent.FromString(data)):
                    return event
    return None


async def find_end_of_input(reader: EventReader, request_id: str, end: int) -> tuple[pb.AgentEvent | None, bool]:
    """Return the event that ends an input request, and whether that was requested: see ``find_event``.

    Where events are missing, it may have been one of them.
    """
    may_be_requested = False

    def is_its_end(event: pb.AgentEvent) -> bool:
        nonlocal may_be_requested
        may_be_requested = may_be_requested or event.HasField("gap") or event.input_request.id == request_id
        return event.input_resolved.id == request_id

    resolved = await find_event(reader, end, {"gap", "input_request", "input_resolved"}, is_its_end)
    return resolved, may_be_requested


def repeat_answer(
    run_id: str, resolved: pb.AgentEvent, answer: pb.InputAnswer, *, is_over: bool
) -> adapter_pb2.RespondResponse:
    """Return the response to a second answer to an input request, which has ``resolved`` as its end.

    Raises:
        DragomanError: ALREADY_RESOLVED, REQUEST_EXPIRED or RUN_FINISHED.
    """
    recorded = resolved.input_resolved
    facts = {"run_id": run_id, "request_id": recorded.id}
    if recorded.resolution == pb.INPUT_RESOLUTION_EXPIRED:
        raise DragomanError(Reason.REQUEST_EXPIRED, "The input request has expired; its default was applied.", facts)
    if recorded.resolution != pb.INPUT_RESOLUTION_ANSWERED:
        if is_over:
            raise finished(run_id)
        raise DragomanError(
            Reason.REQUEST_EXPIRED, "The agent no longer waits for an answer to this input request.", facts
        )
    if recorded.answer != answer and not (
        resolved.redacted
        and all(
            is_same(getattr(recorded.answer, field.name), getattr(answer, field.name), is_masked=True)
            for field in pb.InputAnswer.DESCRIPTOR.fields
        )
    ):
        facts["answer"] = json_format.MessageToJson(recorded.answer, indent=None)
        raise DragomanError(
            Reason.ALREADY_RESOLVED,
            "The input request was already answered differently; metadata `answer` has the recorded answer.",
            facts,
        )
    return adapter_pb2.RespondResponse(sequence=resolved.sequence)


def unknown_request(run_id: str, request_id: str) -> DragomanError:
    """Return the error for an answer to a question that a run never asked."""
    return DragomanError(
        Reason.REQUEST_NOT_FOUND,
        f"Run {run_id!r} has no input request {request_id[:200]!r}.",
        {"run_id": run_id, "request_id": request_id},
    )


def finished(run_id: str) -> DragomanError:
    """Return the error for an answer to a finished run."""
    return DragomanError(Reason.RUN_FINISHED, f"Run {run_id!r} has already finished.", {"run_id": run_id})


def is_same(recorded: object, again: object, *, is_masked: bool) -> bool:
    """Return whether what is sent again equals what is recorded, in which secrets may be redacted if it is a text."""
    if not is_masked or not isinstance(recorded, str) or not isinstance(again, str) or _MASK not in recorded:
        return recorded == again
    first, *middle, last = map(re.escape, recorded.split(_MASK))
    # In groups that are not tried again: otherwise the time would grow with each mask by the length of the answer.
    pattern = "".join((first, *(f"(?>.*?{piece})" for piece in middle), ".*", last))
    return re.fullmatch(pattern, again, re.DOTALL) is not None
