"""What a run gets in mid-run - an answer, an input, a change - brought to the process that has it.

What it got before, it may get again: the same response is then found in its events.
"""

import contextlib
from collections.abc import Callable
from typing import Final, TypeAlias

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.event_buffer import EventReader
from dragoman.router.adapters.channel import unavailable
from dragoman.router.model.assignment import Assignment
from dragoman.router.model.errors import elsewhere, finished
from dragoman.router.model.tasks import nothing
from dragoman.router.policy.answers import repeat_answer, repeat_input
from dragoman.router.policy.duties import refuse_undeclared
from dragoman.router.runs.actor import Run
from dragoman.router.runs.state import State, Superseded, assignment_of, is_accepted, is_at_adapter, progress_of
from dragoman.router.storage.reader import events_of
from dragoman.v1 import adapter_pb2

Sent: TypeAlias = adapter_pb2.RespondRequest | adapter_pb2.SendRequest | adapter_pb2.UpdateRunRequest
"""What an adapter records in the run, by an event whose sequence its answer has."""
_ACCEPTANCE_S: Final = 10.0
"""How long what is sent waits until an adapter has the run."""


def method_of(request: Sent) -> str:
    """Return the name of the call that a request is for."""
    return request.DESCRIPTOR.name.removesuffix("Request")


async def send(
    run: Run, request: Sent, data: bytes, timeout_s: float | None = None, check: Callable[[], None] = nothing
) -> bytes:
    """Bring a request to the adapter that has the run, and return its answer.

    A run that is being recovered may have asked long ago: what is sent waits until its adapter is found again.

    Args:
        run: the run.
        request: the caller's.
        data: the same, serialized for the adapter.
        timeout_s: how many seconds the caller waits; ``None`` for no limit.
        check: raises what is against it at the adapter that the run has by then.

    Raises:
        DragomanError: the adapter's status, or that of ``check``; NOT_SUPPORTED; REQUEST_NOT_FOUND, or
            ADAPTER_UNAVAILABLE, while no adapter has the run; or RUN_FINISHED. The latter, also if it may have been
            accepted before.
    """
    if isinstance(request, adapter_pb2.SendRequest) and not run.is_ending:
        check()  # what is forbidden need not wait; a fallback's adapter is asked about once more
    await run.until(is_accepted, _ACCEPTANCE_S if timeout_s is None else min(timeout_s, _ACCEPTANCE_S))
    if run.is_ending:
        raise _over(run)
    instance = run.instance
    if instance is None or not is_accepted(run.state):
        raise _nowhere(run, request)
    check()
    adapter = run.backend.record
    if adapter.description is not None:
        refuse_undeclared(request, adapter.type, adapter.declares)
    if instance.gone.is_set():
        raise unavailable(f"Adapter {run.record.adapter!r} {instance.gone_because}.")
    at, known = assignment_of(run.state), run.record.last_sequence
    answer = await instance.channel.answer(method_of(request), data, timeout_s=timeout_s)
    sequence = adapter_pb2.SendResponse.FromString(answer).sequence  # the other answers have it in the same field
    if sequence > known:
        await _until_recorded(run, at, sequence)
    return answer


def _over(run: Run) -> DragomanError:
    """Return the error for what comes too late for a run that ends, or is another router's."""
    return elsewhere(run.run_id) if isinstance(run.state, Superseded) else finished(run.run_id)


def _nowhere(run: Run, request: Sent) -> DragomanError:
    """Return the error for what no adapter takes now, nor later if the run is being cancelled."""
    if isinstance(request, adapter_pb2.RespondRequest):
        metadata = {"run_id": run.run_id, "request_id": request.request_id}
        message = f"Run {run.run_id!r} has not requested any input yet."
        return DragomanError(Reason.REQUEST_NOT_FOUND, message, metadata)
    if progress_of(run.state).is_cancelling:
        return finished(run.run_id)
    return unavailable(f"No adapter has run {run.run_id!r} at present; try again.")


async def _until_recorded(run: Run, at: Assignment, sequence: int) -> None:
    """Wait until the event that an adapter's answer names is in the run, as it may come after the answer.

    Should the adapter die between the two, the run never gets the event, and its sequence becomes another one's.

    Raises:
        DragomanError: RUN_FINISHED or ADAPTER_UNAVAILABLE: the attempt has ended, perhaps without the event.
    """

    def is_same_attempt(state: State) -> bool:
        return is_at_adapter(state) and assignment_of(state) is at

    await run.until(lambda state: run.record.last_sequence >= sequence or not is_same_attempt(state))
    if is_same_attempt(run.state):
        return
    if run.is_ending:
        raise _over(run)
    raise unavailable(f"The adapter of run {run.run_id!r} was gone before the run had what it recorded; try again.")


async def recorded(
    request: Sent, reader: EventReader, end: int, error: DragomanError
) -> adapter_pb2.RespondResponse | adapter_pb2.SendResponse:
    """Return the response to an answer or an input that a run took before.

    Args:
        request: the same.
        reader: at the beginning of the run; closed when this returns.
        end: the last sequence there is, behind which a live run is not waited for.
        error: why it is not taken now; raised if it was not before, either.

    Raises:
        DragomanError: that; REQUEST_NOT_FOUND if the run never asked; ALREADY_RESOLVED, REQUEST_EXPIRED or
            INPUT_ID_REUSED; RUN_LOG_UNAVAILABLE; or RUN_NOT_FOUND if the run was forgotten meanwhile.
    """
    with contextlib.closing(reader):
        if isinstance(request, adapter_pb2.SendRequest):
            async for event in events_of(reader, end, {"input_accepted"}):
                if event.input_accepted.input_id == request.input_id:
                    return repeat_input(request, event)
        elif isinstance(request, adapter_pb2.RespondRequest):
            may_be_requested, asked = False, request.request_id
            async for event in events_of(reader, end, {"gap", "input_request", "input_resolved"}):
                # Where events are missing, it may have been one of them.
                may_be_requested = may_be_requested or event.HasField("gap") or event.input_request.id == asked
                if event.input_resolved.id == asked:
                    is_over = error.reason is Reason.RUN_FINISHED
                    return repeat_answer(request.run_id, event, request.answer, is_over=is_over)
            if not may_be_requested:
                message = f"Run {request.run_id!r} has no input request {asked[:200]!r}."
                facts = {"run_id": request.run_id, "request_id": asked}
                raise DragomanError(Reason.REQUEST_NOT_FOUND, message, facts)
    raise error
