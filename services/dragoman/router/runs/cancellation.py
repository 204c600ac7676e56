"""Cancel, brought to the process that has a run.

The result of a run says how it ended, and it comes in the run's stream alone. An adapter's answer to Cancel only
acknowledges the request; if it is an error, the caller gets it. A run whose adapter does not implement Cancel is
ended here, with its stream.
"""

import asyncio
import contextlib
from collections.abc import Awaitable

from dragoman.protocol.backoff import Backoff
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import DEFAULT_GRACE_S
from dragoman.protocol.server import draining
from dragoman.router.adapters.channel import is_cut
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.model.errors import unknown_run
from dragoman.router.model.run_record import adapter_lost, cancelled_by_router
from dragoman.router.model.tasks import first_of
from dragoman.router.runs.actor import Run
from dragoman.router.runs.inputs import Abandoned, CancelRequested
from dragoman.router.runs.state import Superseded, is_accepted, is_at_adapter, is_over, is_replayed
from dragoman.v1 import adapter_pb2, event_pb2

_ACCEPTANCE_S = 10.0
"""How long a Cancel waits until the adapter has the run; then it is sent nevertheless."""
_STORED_S = 5.0
"""How long the result may take to be stored, and so to be published."""
_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_RESULT_S = 5.0
"""How long, beyond the grace, an adapter may take to send the result of a run that exceeded a limit."""
_PROOF_S = 10.0
"""How long, beyond the grace period, an adapter may take to end a run and prove it."""


def end_orphan(run: Run) -> None:
    """Cancel a run that no client keeps alive."""
    run.notices.warn("run_orphaned", "No client is attached; cancelling the run (orphan_after elapsed).")
    run.send(CancelRequested())
    _start(run, adapter_pb2.CancelRequest(run_id=run.run_id, reason="no client is attached"))


async def cancel(run: Run, request: adapter_pb2.CancelRequest) -> adapter_pb2.CancelResponse:
    """Cancel a run, and return how it ended. It is cancelled even if the caller goes away.

    Without a grace period in the request it is the run's own, which only its adapter knows; then the caller's
    deadline is the only limit of the time that the run may take to end.

    Raises:
        DragomanError: the adapter's status.
    """
    run.send(CancelRequested())
    if not run.is_ending:
        patience_s = request.grace.ToNanoseconds() / 1e9 + _PROOF_S if request.HasField("grace") else None
        sending = _start(run, request)
        await asyncio.wait([sending], timeout=patience_s)
        if sending.cancelled():
            raise draining()  # with the router's tasks, as it ends
        error = sending.result() if sending.done() else None
        if error is not None and not run.is_ending:
            raise error
        if patience_s is not None and not run.is_ending:
            why = f"did not end the run within {patience_s:.0f} s of the cancel request"
            run.send(Abandoned(adapter_lost(run.record.adapter, why)))
    await run.until(is_over, _STORED_S)
    result = run.record.result
    if result is None or isinstance(run.state, Superseded):
        raise run.refusal or unknown_run(run.run_id)
    return how_it_ended(result, run.record.last_sequence)


def _start(
    run: Run, request: adapter_pb2.CancelRequest, ending: event_pb2.Result | None = None
) -> "asyncio.Task[DragomanError | None]":
    return run.tasks.start(_send(run, request, ending), f"cancel {run.run_id}")


async def _send(
    run: Run, request: adapter_pb2.CancelRequest, ending: event_pb2.Result | None
) -> DragomanError | None:
    """Send a Cancel to the adapter, through broken connections; return its error, or ``None`` once the run is over.

    Args:
        run: the run.
        request: the Cancel. It gets the run's grace period, if its adapter did not and the caller gives none.
        ending: how the run ends if its adapter does not implement Cancel; ``None``: as cancelled by the router.
    """
    if run.grace is not None and not request.HasField("grace"):
        request.grace.CopyFrom(run.grace)
    try:
        await run.until(lambda state: is_accepted(state) and is_replayed(state), _ACCEPTANCE_S)
        while run.instance is None and not is_over(run.state):  # it is being recovered, and will be found or lost
            await run.until(is_accepted, _ACCEPTANCE_S)
        if (instance := run.instance) is not None:
            run.tasks.start(run.backend.end_if_deaf(instance), f"check {run.run_id}")
            await _deliver(instance, request.SerializeToString(), run.until(is_over))
    except DragomanError as error:
        run.log.warning("cancel failed", code=error.code.name)
        if error.reason is not Reason.NOT_IMPLEMENTED:
            return error
        if is_at_adapter(run.state):
            # Nothing else can stop it there than the end of the stream.
            run.send(Abandoned(ending or cancelled_by_router(run.record.adapter)))
            run.end_upstream()
    await run.until(is_over)
    return None


async def request_cancel(run: Run, instance: AdapterInstance) -> None:
    """Cancel a run at its adapter that is over here, once the adapter can be reached."""
    why = "the router stopped following the run"
    request = adapter_pb2.CancelRequest(run_id=run.run_id, reason=why).SerializeToString()
    with contextlib.suppress(DragomanError):
        await _deliver(instance, request, instance.gone.wait())


async def _deliver(instance: AdapterInstance, request: bytes, until: Awaitable[object]) -> None:
    """Send a Cancel, through broken connections, until it is answered or ``until`` is done.

    Raises:
        DragomanError: the adapter's status.
    """

    async def deliver() -> None:
        backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                await instance.channel.answer("Cancel", request)
            except DragomanError as error:
                if not is_cut(error):
                    raise
                await asyncio.sleep(backoff.next_s())
                await instance.channel.connected()
            else:
                return

    delivering = asyncio.ensure_future(deliver())
    await first_of(delivering, until)
    if not delivering.cancelled():
        delivering.result()


async def end_at_adapter(run: Run, ending: event_pb2.Result) -> None:
    """Cancel an attempt that exceeded something at its adapter; end it without the adapter, if no result comes.

    Args:
        run: the run.
        ending: how the attempt ends.
    """
    _start(run, adapter_pb2.CancelRequest(run_id=run.run_id, reason=ending.failure.message), ending)
    grace_s = run.grace.ToNanoseconds() / 1e9 if run.grace is not None else DEFAULT_GRACE_S
    if await run.until(lambda state: not is_at_adapter(state), grace_s + _RESULT_S):
        return
    instance = run.instance
    run.send(Abandoned(ending))
    if instance is not None:
        run.tasks.start(request_cancel(run, instance), f"cancel {run.run_id}")


def how_it_ended(result: event_pb2.Result, sequence: int) -> adapter_pb2.CancelResponse:
    """Return the response to a Cancel of a run that is over."""
    response = adapter_pb2.CancelResponse(outcome=result.outcome, result_sequence=sequence)
    if result.HasField("tree_confirmed_dead"):
        response.tree_confirmed_dead = result.tree_confirmed_dead
    return response
