"""Repeated answers and inputs: the same again is accepted, because the first response may have been lost. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.errors import finished
from dragoman.router.model.ports import Asked
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_PERHAPS_RECORDED: Final = {
    adapter_pb2.RespondRequest: {Reason.RUN_FINISHED, Reason.REQUEST_NOT_FOUND},
    adapter_pb2.SendRequest: {
        *(Reason.RUN_FINISHED, Reason.RUN_NOT_FOUND, Reason.NOT_SUPPORTED, Reason.ADAPTER_UNAVAILABLE)
    },
}
"""Why something is not taken that was perhaps taken before: the adapter that took it may be no longer the run's."""
_MASK: Final = "[redacted]"


def is_perhaps_recorded(request: Asked, error: DragomanError) -> bool:
    """Return whether what is not taken now, for this reason, may have been taken before."""
    return error.reason in _PERHAPS_RECORDED.get(type(request), ())


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
    names = [field.name for field in pb.InputAnswer.DESCRIPTOR.fields]
    first, again = ([getattr(one, name) for name in names] for one in (recorded.answer, answer))
    if recorded.answer != answer and not (resolved.redacted and _is_same(first, again)):
        from google.protobuf import json_format  # noqa: PLC0415 - few answers contradict an earlier one

        facts["answer"] = json_format.MessageToJson(recorded.answer, indent=None)
        raise DragomanError(
            Reason.ALREADY_RESOLVED,
            "The input request was already answered differently; metadata `answer` has the recorded answer.",
            facts,
        )
    return adapter_pb2.RespondResponse(sequence=resolved.sequence)


def repeat_input(request: adapter_pb2.SendRequest, recorded: pb.AgentEvent) -> adapter_pb2.SendResponse:
    """Return the response to an input that a run accepted before.

    Raises:
        DragomanError: INPUT_ID_REUSED: it was another one.
    """
    accepted, text = recorded.input_accepted, request.text
    if accepted.truncated_bytes:
        text = text[: len(accepted.text)]
    first = [accepted.mode, accepted.text, *accepted.attachments]
    again = [request.mode or pb.INPUT_MODE_QUEUE, text, *(attachment.name for attachment in request.attachments)]
    if first != again and not (recorded.redacted and _is_same(first, again)):
        raise DragomanError(
            Reason.INPUT_ID_REUSED,
            f"Input {request.input_id!r} exists with another text, mode or files; choose another ID.",
            {"run_id": request.run_id, "input_id": request.input_id},
        )
    return adapter_pb2.SendResponse(sequence=recorded.sequence)


def _is_same(recorded: Sequence[object], again: Sequence[object]) -> bool:
    """Return whether what is sent again may be what is recorded, in whose texts secrets are redacted."""
    return len(recorded) == len(again) and all(map(_matches, recorded, again))


def _matches(recorded: object, again: object) -> bool:
    if not isinstance(recorded, str) or not isinstance(again, str) or _MASK not in recorded:
        return recorded == again
    first, *middle, last = map(re.escape, recorded.split(_MASK))
    # In groups that are not tried again: otherwise the time would grow with each mask by the length of the answer.
    pattern = "".join((first, *(f"(?>.*?{piece})" for piece in middle), ".*", last))
    return re.fullmatch(pattern, again, re.DOTALL) is not None
