"""Cancel and Respond: what people and programs want of a run, brought to the process that has it."""

import asyncio
from typing import Any

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router._rpc.endpoint import Endpoint
from dragoman.router._rpc.link import first_of, is_cut, unavailable
from dragoman.router._rpc.run import Run
from dragoman.router._rpc.scene import Scene
from dragoman.v1 import adapter_pb2, event_pb2

_ACCEPTANCE_S = 10.0
"""How long a Cancel waits for the adapter to have the run; then it is sent all the same."""
_RECORDED_S = 5.0
"""How long the adapter's answer to a Cancel may be ahead of the result in its stream."""
_PAUSE_S = 0.1
_PROOF_S = 10.0
"""How long, beyond the grace that was given, an adapter may take to end a run and prove it."""


def end_orphan(run: Run, scene: Scene) -> None:
    """Cancel a run that nobody holds any more."""
    run.cancelling.set()
    run.remark("run_orphaned", "Nobody holds the run any more; it is being cancelled.")
    request = adapter_pb2.CancelRequest(run_id=run.run_id, reason="nobody holds the run").SerializeToString()
    run.stop_waiting()
    scene.tasks.start(_end_orphan(run, request, scene), f"cancel {run.run_id}")


async def _end_orphan(run: Run, request: bytes, scene: Scene) -> None:
    try:
        await _tell(run, request, scene)
    except DragomanError as error:
        run.log.warning("run could not be cancelled", code=error.code.name)


async def cancel(run: Run, request: bytes, scene: Scene) -> adapter_pb2.CancelResponse:
    """Cancel a run, and say how it ended. Who asks may go away; it is cancelled all the same.

    Raises:
        DragomanError: the adapter's status.
    """
    run.cancelling.set()
    run.stop_waiting()
    if run.is_ending:
        return await _told_response(run)
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    scene.tasks.start(_tell_and_answer(run, request, scene, told), f"cancel {run.run_id}")
    over = asyncio.ensure_future(run.over.wait())
    patience_s = _patience(request)
    try:
        either: set[asyncio.Future[Any]] = {told, over}
        done, _ = await asyncio.wait(either, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if told.done() and told.exception() is None:
            await asyncio.wait([over], timeout=_RECORDED_S)
        if not done:
            run.lose(f"did not end the run within {patience_s:.0f} s of being told to")
    finally:
        over.cancel()
    if run.record.is_over or run.over.is_set():
        return await _told_response(run)
    return adapter_pb2.CancelResponse.FromString(told.result())


def _patience(request: bytes) -> float | None:
    """Return the seconds to wait for a run's end.

    Without a grace in the request it is the run's own, which only its adapter knows; then there is no bound, but
    whoever is tired of waiting can say one.
    """
    wish = adapter_pb2.CancelRequest.FromString(request)
    return wish.grace.ToNanoseconds() / 1e9 + _PROOF_S if wish.HasField("grace") else None


async def _tell_and_answer(run: Run, request: bytes, scene: Scene, told: "asyncio.Future[bytes]") -> None:
    try:
        answer = await _tell(run, request, scene)
    except DragomanError as error:
        told.set_exception(error)
        told.exception()  # read once, as perhaps nobody waits any more
    else:
        told.set_result(answer)


async def _tell(run: Run, request: bytes, scene: Scene) -> bytes:
    """Bring a Cancel to the adapter, through broken connections, as long as the run lives."""
    while not run.over.is_set():
        await first_of(
            asyncio.ensure_future(run.accepted.wait()),
            asyncio.ensure_future(run.over.wait()),
            timeout_s=_ACCEPTANCE_S,
        )
        if run.endpoint is not None:
            scene.tasks.start(run.host.end_if_deaf(run.endpoint), f"hear {run.run_id}")
            break  # else it is being looked for, and is found or lost
    while not run.over.is_set() and run.endpoint is not None:
        answer = asyncio.ensure_future(run.endpoint.link.answer("Cancel", request))
        over = asyncio.ensure_future(run.over.wait())
        try:
            await asyncio.wait({answer, over}, return_when=asyncio.FIRST_COMPLETED)
            # If it is over, by its own stream or by our word, an answer that comes late tells nothing new.
            return answer.result() if answer.done() else b""
        except DragomanError as error:
            if not is_cut(error):
                raise
        finally:
            answer.cancel()
            over.cancel()
            await asyncio.gather(answer, over, return_exceptions=True)
        await asyncio.sleep(_PAUSE_S)
        await _reachable(run, run.endpoint)
    return b""


async def _reachable(run: Run, endpoint: Endpoint) -> None:
    await first_of(
        asyncio.ensure_future(endpoint.link.connected()),
        asyncio.ensure_future(run.over.wait()),
    )


async def _told_response(run: Run) -> adapter_pb2.CancelResponse:
    """Return how a run ended once others are told, which is when it is written down."""
    await first_of(asyncio.ensure_future(run.over.wait()), timeout_s=_RECORDED_S)
    return _response(run)


def _response(run: Run) -> adapter_pb2.CancelResponse:
    result = run.record.result
    if result is None or run.is_given_up:
        raise run.refusal or unknown_run(run.run_id)
    return how_it_ended(result, run.record.last_sequence)


def how_it_ended(result: event_pb2.Result, sequence: int) -> adapter_pb2.CancelResponse:
    """Return the answer to a Cancel of a run that is over."""
    response = adapter_pb2.CancelResponse(outcome=result.outcome, result_sequence=sequence)
    if result.HasField("tree_confirmed_dead"):
        response.tree_confirmed_dead = result.tree_confirmed_dead
    return response


async def respond(run: Run, request: bytes, request_id: str, timeout_s: float | None) -> bytes:
    """Bring an answer to the adapter.

    Raises:
        DragomanError: the adapter's status, or RUN_FINISHED.
    """
    # A run that is just being taken over may have asked long ago; who answers it waits until it is found again.
    await first_of(
        asyncio.ensure_future(run.accepted.wait()),
        asyncio.ensure_future(run.over.wait()),
        timeout_s=_ACCEPTANCE_S if timeout_s is None else min(timeout_s, _ACCEPTANCE_S),
    )
    if run.is_given_up and run.refusal is not None:
        raise run.refusal
    if run.is_ending:
        raise finished(run.run_id)
    if run.endpoint is None or not run.accepted.is_set():
        raise DragomanError(
            Reason.REQUEST_NOT_FOUND,
            f"run {run.run_id!r} has asked nothing yet",
            {"run_id": run.run_id, "request_id": request_id},
        )
    if run.endpoint.gone.is_set():
        raise unavailable(f"the adapter {run.record.adapter!r} {run.endpoint.gone_because}")
    return await run.endpoint.link.answer("Respond", request, timeout_s=timeout_s)


def finished(run_id: str) -> DragomanError:
    """Return the error for an answer to a run that is over."""
    return DragomanError(Reason.RUN_FINISHED, f"run {run_id!r} is over", {"run_id": run_id})


def unknown_run(run_id: str) -> DragomanError:
    """Return the error for a run that nobody here knows."""
    return DragomanError(
        Reason.RUN_NOT_FOUND,
        f"no run {run_id!r} here: it is over and forgotten, or never was; to follow or steer one that was started"
        " without this router and its log, name its adapter",
        {"run_id": run_id},
    )
