"""What a run gets in mid-run: brought to the process that has it, and recorded inputs found again.

Everywhere ``data`` is the caller's request, serialized for the adapter, and ``timeout_s`` is how many seconds the
caller waits, ``None`` for no limit.
"""

import contextlib
from collections.abc import Callable
from typing import Final, TypeAlias

from dragoman.protocol.errors import DragomanError, Reason, not_supported
from dragoman.router.adapters.channel import unavailable
from dragoman.router.model.errors import elsewhere
from dragoman.router.runs.actor import Run
from dragoman.router.runs.answers import finished, is_same
from dragoman.router.runs.state import State, Superseded, assignment_of, is_accepted, is_at_adapter, progress_of
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

Recorded: TypeAlias = adapter_pb2.RespondResponse | adapter_pb2.SendResponse | adapter_pb2.UpdateRunResponse
"""An answer that names the event that records what was asked for."""

_ACCEPTANCE_S: Final = 10.0
"""How long an input waits until an adapter has the run."""
_NEEDED: Final = {pb.INPUT_MODE_STEER: pb.FEATURE_STEER}
_NEEDED_BY_CHANGE: Final = {
    "model": pb.FEATURE_UPDATE_MODEL,
    "permission_mode": pb.FEATURE_UPDATE_PERMISSION_MODE,
}


async def send(run: Run, request: adapter_pb2.SendRequest, data: bytes, timeout_s: float | None) -> bytes:
    """Send an input to the adapter.

    Raises:
        DragomanError: the adapter's status; NOT_SUPPORTED; ADAPTER_UNAVAILABLE while no adapter has the run; or
            RUN_FINISHED, also if the input may have been accepted before.
    """
    await _until_at_adapter(run, timeout_s, lambda: _nowhere(run, "send the input again"))
    _refuse_undeclared(run, "mode", _NEEDED.get(request.mode, pb.FEATURE_QUEUE))
    if request.attachments:
        _refuse_undeclared(run, "attachments", pb.FEATURE_ATTACHMENTS)
    return await ask(run, "Send", adapter_pb2.SendResponse, data, timeout_s)


async def update(
    run: Run, request: adapter_pb2.UpdateRunRequest, data: bytes, timeout_s: float | None, check: Callable[[], None]
) -> bytes:
    """Bring a change to the adapter, unless ``check`` raises, as the one that has the run by now may not get it.

    Raises:
        DragomanError: the adapter's status, or that of ``check``; NOT_SUPPORTED; ADAPTER_UNAVAILABLE while no adapter
            has the run; or RUN_FINISHED.
    """
    await _until_at_adapter(run, timeout_s, lambda: _nowhere(run, "make the change again"))
    name = request.WhichOneof("change") or ""
    check()
    _refuse_undeclared(run, name, _NEEDED_BY_CHANGE[name])
    return await ask(run, "UpdateRun", adapter_pb2.UpdateRunResponse, data, timeout_s)


async def respond(run: Run, data: bytes, request_id: str, timeout_s: float | None) -> bytes:
    """Send an answer to an input request to the adapter.

    Raises:
        DragomanError: the adapter's status, REQUEST_NOT_FOUND, or RUN_FINISHED, also if the input request may have
            been answered before.
    """
    message = f"Run {run.run_id!r} has not requested any input yet."
    metadata = {"run_id": run.run_id, "request_id": request_id}
    # A run that is being recovered may have asked long ago; its answer waits until the adapter is found again.
    await _until_at_adapter(run, timeout_s, lambda: DragomanError(Reason.REQUEST_NOT_FOUND, message, metadata))
    return await ask(run, "Respond", adapter_pb2.RespondResponse, data, timeout_s)


async def _until_at_adapter(run: Run, timeout_s: float | None, otherwise: Callable[[], DragomanError]) -> None:
    """Wait for the adapter that takes what a caller has for a run; raise if there is none."""
    await run.until(is_accepted, _ACCEPTANCE_S if timeout_s is None else min(timeout_s, _ACCEPTANCE_S))
    if run.is_ending:
        raise _over(run)
    if run.instance is None or not is_accepted(run.state):
        raise otherwise()


def _over(run: Run) -> DragomanError:
    """Return the error for what comes too late for a run that ends, or is another router's."""
    return elsewhere(run.run_id) if isinstance(run.state, Superseded) else finished(run.run_id)


def _nowhere(run: Run, advice: str) -> DragomanError:
    """Return the error for what no adapter takes now, nor later if the run is being cancelled."""
    if progress_of(run.state).is_cancelling:
        return finished(run.run_id)
    return unavailable(f"No adapter has run {run.run_id!r} at present; {advice}.")


async def ask(run: Run, method: str, kind: type[Recorded], data: bytes, timeout_s: float | None) -> bytes:
    """Make a call at the adapter that has a run, and wait until the event that its answer names is in the run.

    The answer may come before that event. Should the adapter die between the two, the run never gets the event, and
    its sequence becomes another one's.

    Raises:
        DragomanError: the adapter's status; RUN_FINISHED or ADAPTER_UNAVAILABLE, also if the attempt ends without the
            event.
    """
    instance, at, known = run.instance, assignment_of(run.state), run.record.last_sequence
    if instance is None or instance.gone.is_set():
        because = "is gone" if instance is None else instance.gone_because
        raise unavailable(f"Adapter {run.record.adapter!r} {because}.")
    answer = await instance.channel.answer(method, data, timeout_s=timeout_s)
    sequence = kind.FromString(answer).sequence
    if sequence <= known:
        return answer

    def is_same_attempt(state: State) -> bool:
        return is_at_adapter(state) and assignment_of(state) is at

    await run.until(lambda state: run.record.last_sequence >= sequence or not is_same_attempt(state))
    if is_same_attempt(run.state) or (assignment_of(run.state) is at and await _is_adapters(run, sequence)):
        return answer
    if run.is_ending:
        raise _over(run)
    raise unavailable(f"The adapter of run {run.run_id!r} was gone before the run had what it recorded; try again.")


async def _is_adapters(run: Run, sequence: int) -> bool:
    """Return whether a sequence of a run that has left its adapter is of an event of that one, not of the router."""
    if sequence > run.fanout.last_sequence:
        return False
    with contextlib.closing(run.fanout.reader(sequence - 1)) as reader:
        first, *_rest = await reader.read()
    event = pb.AgentEvent.FromString(first)
    return event.sequence == sequence and event.origin != pb.EVENT_ORIGIN_ROUTER


def _refuse_undeclared(run: Run, path: str, feature: pb.Feature.ValueType) -> None:
    """Refuse what the present adapter does not declare; one of an earlier revision does not serve it."""
    adapter = run.backend.record
    if adapter.description is not None and not adapter.declares(feature):
        name = pb.Feature.Name(feature)
        raise not_supported(path, f"adapter {run.record.adapter!r} does not declare {name}")


def repeat_input(request: adapter_pb2.SendRequest, recorded: pb.AgentEvent) -> adapter_pb2.SendResponse:
    """Return the response to an input that a run accepted before.

    Raises:
        DragomanError: INPUT_ID_REUSED: it was another one.
    """
    accepted = recorded.input_accepted
    text = request.text
    if accepted.truncated_bytes:
        text = text[: len(accepted.text)]
    mode = request.mode or pb.INPUT_MODE_QUEUE
    names = [attachment.name for attachment in request.attachments]
    same_names = len(names) == len(accepted.attachments) and all(
        is_same(known, name, is_masked=recorded.redacted)
        for known, name in zip(accepted.attachments, names, strict=True)
    )
    if mode != accepted.mode or not same_names or not is_same(accepted.text, text, is_masked=recorded.redacted):
        raise DragomanError(
            Reason.INPUT_ID_REUSED,
            f"Input {request.input_id!r} exists with another text, mode or files; choose another ID.",
            {"run_id": request.run_id, "input_id": request.input_id},
        )
    return adapter_pb2.SendResponse(sequence=recorded.sequence)
