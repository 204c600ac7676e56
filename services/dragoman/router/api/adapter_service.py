"""``AdapterService`` at the router: forwarded to the adapter that is named.

Requests and responses stay bytes; only what the router decides by is parsed, and only ``Execute`` is serialized anew.
So what a later revision of the contract adds passes through.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from dragoman.protocol.access import caller_name
from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.event_buffer import EventReader
from dragoman.protocol.server import Context
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.channel import addressed
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.relay import relay
from dragoman.router.api.acceptance import Acceptance
from dragoman.router.api.authorization import allow, allow_answer, allow_control, allow_read
from dragoman.router.api.calls import read, refuse, remaining_s
from dragoman.router.api.detection import AgentDetector
from dragoman.router.api.drain import Drain
from dragoman.router.api.locate import Finished, Local, Located, Remote, RunLocator
from dragoman.router.api.queries import Process, QueryServicer, call
from dragoman.router.api.streaming import RunStreams, SupersededError, kept_alive
from dragoman.router.api.validation import execute_objection
from dragoman.router.cluster.forwarding import came_from_a_router
from dragoman.router.runs.actor import Run
from dragoman.router.runs.answers import find_end_of_input, find_event, finished, repeat_answer, unknown_request
from dragoman.router.runs.cancellation import cancel, how_it_ended
from dragoman.router.runs.sending import repeat_input, respond, send, update
from dragoman.router.runs.state import Superseded, is_replayed
from dragoman.v1 import adapter_pb2 as pb

_MAYBE_ANSWERED: Final = frozenset({Reason.RUN_FINISHED, Reason.REQUEST_NOT_FOUND})
"""Why an answer is not taken that was perhaps taken before: the adapter that asked may be no longer the run's."""
_MAYBE_SENT: Final = frozenset(
    {Reason.RUN_FINISHED, Reason.RUN_NOT_FOUND, Reason.NOT_SUPPORTED, Reason.ADAPTER_UNAVAILABLE}
)
"""Why an adapter, or a later one, does not take an input that was perhaps accepted before."""


class AdapterServicer(QueryServicer):
    """Serves ``AdapterService`` for all adapters. Made for ``service_handler(..., raw_requests=True)``."""

    def __init__(
        self,
        adapters: AdapterPool,
        acceptance: Acceptance,
        locator: RunLocator,
        streams: RunStreams,
        detector: AgentDetector,
        drain: Drain,
    ) -> None:
        super().__init__(adapters, acceptance, detector, drain)
        self._locator = locator
        self._streams = streams

    async def Execute(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Accept a run, or join the one that this request started before; then stream it."""
        self._drain.refuse_new()
        request = read(pb.ExecuteRequest, data)
        refuse(execute_objection(request))
        while not await self._executed(request, context):
            # Another router accepted this very request first, so the run is found there; or none that had accepted
            # it brought it to an adapter. What was accepted here was rewritten for its adapter.
            request = read(pb.ExecuteRequest, data)

    async def _executed(self, request: pb.ExecuteRequest, context: Context) -> bool:
        """Accept a run, or find it, and stream it; False if it is to be looked for once more."""
        located = await self._locator.of_request(request)
        if isinstance(located, Remote | Finished):
            allow(adapter=located.facts.adapter, run_id=located.facts.run_id)
            attach = pb.AttachRequest(run_id=request.run_id, hold=True)
            if request.HasField("batching"):
                attach.batching.CopyFrom(request.batching)
            await self._streams.elsewhere(located, attach, context)
            return True
        batching = request.HasField("batching")  # before it is rewritten for its adapter
        run, is_new = (located.run, False) if located is not None else await self._acceptance.accept(request)
        allow(adapter=run.record.adapter, run_id=run.run_id)
        # Held before the next await: a run whose caller is gone already must be an orphan, not a stray.
        with kept_alive(run):
            await run.until(is_replayed)
            if run.record.is_free or isinstance(run.state, Superseded):
                return False
            try:
                await self._streams.live(run, context, joined=not is_new, sends_id=True, batching=batching)
            except SupersededError:
                return False
        return True

    async def Attach(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Stream a run that this router, another one, or the log knows."""
        if not came_from_a_router(context):  # which has nowhere else to send it, and this router's run is still live
            self._drain.refuse_new()
        request = read(pb.AttachRequest, data)
        located = await _settled(self._locator, request)
        allow_read(located.facts)
        if isinstance(located, Remote | Finished):
            await self._streams.elsewhere(located, request, context)
            return
        keep_alive = kept_alive(located.run, is_relayed=came_from_a_router(context))
        with keep_alive if request.hold else contextlib.nullcontext():
            after, batching = request.after_sequence, request.HasField("batching")
            await self._streams.live(located.run, context, after_sequence=after, joined=True, batching=batching)

    async def Cancel(self, data: bytes, context: Context) -> pb.CancelResponse | bytes:  # noqa: N802 - the contract's name
        """Cancel a run, and return how it ended."""
        request = read(pb.CancelRequest, data)
        located = await self._locator.resolve(request.run_id, request.adapter)
        allow_control(located.facts)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, "Cancel", data, context)
        if isinstance(located, Finished):
            return how_it_ended(located.stored.state.run.result, located.stored.logged)
        if request.adapter:  # which may be a name that the adapter itself does not know
            request.adapter = located.run.backend.record.type
        return await cancel(located.run, request)

    async def Respond(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Answer an input request of a run."""
        request = read(pb.RespondRequest, data)
        if not request.responder:
            # Appended, as the adapter's name is: only this router knows who called it.
            data += pb.RespondRequest(responder=caller_name()).SerializeToString()
        located = await self._locator.resolve(request.run_id, request.adapter)
        allow_answer(located.facts)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, "Respond", data, context)
        try:
            run = _not_finished(located)
            data = addressed(pb.RespondRequest, data, request.adapter, run.backend.record.type)
            return await respond(run, data, request.request_id, remaining_s(context))
        except DragomanError as error:
            if error.reason not in _MAYBE_ANSWERED:
                raise
            return await _answer_again(request, *await self._record_of(located), error)

    async def Send(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Give a run an input."""
        request = read(pb.SendRequest, data)
        if not request.sender:
            data += pb.SendRequest(sender=caller_name()).SerializeToString()
        located = await self._locator.resolve(request.run_id, request.adapter)
        allow_control(located.facts)
        if request.attachments:
            self._acceptance.policy.check_input(request)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, "Send", data, context)
        try:
            run = _not_finished(located)
            data = addressed(pb.SendRequest, data, request.adapter, run.backend.record.type)
            return await send(run, request, data, remaining_s(context))
        except DragomanError as error:
            if error.reason not in _MAYBE_SENT:
                raise
            return await _send_again(request, *await self._record_of(located), error)

    async def UpdateRun(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Change the model or the permission mode of a run."""
        request = read(pb.UpdateRunRequest, data)
        if request.WhichOneof("change") is None:
            raise invalid("change", "there is nothing to change; set model or permission_mode")
        if not request.sender:
            data += pb.UpdateRunRequest(sender=caller_name()).SerializeToString()
        located = await self._locator.resolve(request.run_id, request.adapter)
        allow_control(located.facts)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, "UpdateRun", data, context)
        run = _not_finished(located)
        data = addressed(pb.UpdateRunRequest, data, request.adapter, run.backend.record.type)
        check = await self._acceptance.update_check(request, run)
        return await update(run, request, data, remaining_s(context), check)

    async def GetChanges(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Say what a run changed: its adapter knows."""
        request = read(pb.GetChangesRequest, data)
        located = await self._locator.resolve(request.run_id, request.adapter)
        allow_read(located.facts)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, "GetChanges", data, context)
        backend, process = await self._keeper(located)
        data = addressed(pb.GetChangesRequest, data, request.adapter, backend.record.type)
        with _unless_forgotten(backend, Reason.CHANGES_UNKNOWN, "knows what the run changed; ask"):
            return await call(backend, "GetChanges", data, context, process=process)

    async def ReadArtifact(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Stream a file that a run left: its adapter keeps it."""
        request = read(pb.ReadArtifactRequest, data)
        located = await self._locator.resolve(request.run_id, request.adapter)
        allow_read(located.facts)
        with self._drain.stream():
            if isinstance(located, Remote):
                ending = self._drain.ending
                await located.forwarder.relay(located.stored, "ReadArtifact", data, context, ended_early=ending)
                return
            backend, process = await self._keeper(located)
            data = addressed(pb.ReadArtifactRequest, data, request.adapter, backend.record.type)
            with _unless_forgotten(backend, Reason.ARTIFACTS_GONE, "has the run's artifacts; read them"):
                async with process as instance:
                    await relay(instance.channel.stream("ReadArtifact", data), context, self._drain.ending)

    async def _record_of(self, located: Local | Finished) -> tuple[EventReader, int]:
        """Return a reader at the beginning of a run, and the last sequence that it has now."""
        if isinstance(located, Finished):
            return self._streams.stored_reader(located.stored), located.stored.logged
        return await self._streams.reader(located.run), located.run.fanout.last_sequence

    async def _keeper(self, located: Local | Finished) -> tuple[AdapterBackend, Process]:
        """Return the adapter that had a run, and the process of it that knows what the run left."""
        if isinstance(located, Local):
            return located.run.backend, _process_of(located.run)
        backend = await self._adapters.get(located.stored.adapter)
        return backend, backend.use(located.stored.state.run.instance_id)


async def _settled(locator: RunLocator, request: pb.AttachRequest) -> Located:
    """Return where a run is, once it is known which of two routers has accepted it."""
    located = await locator.resolve(request.run_id, request.adapter)
    if isinstance(located, Local):
        await located.run.ledger.begin()
        if isinstance(located.run.state, Superseded):  # the other one may have sent events already
            return await locator.resolve(request.run_id, request.adapter)
    return located


@contextlib.asynccontextmanager
async def _process_of(run: Run) -> AsyncIterator[AdapterInstance]:
    """Use the process that knows a run; that of a live one may be draining, and another serve new runs already."""
    live = run.instance
    if live is not None and not live.gone.is_set():
        with live.used():
            yield live
    else:
        async with run.backend.use(run.record.instance_id) as instance:
            yield instance


@contextlib.contextmanager
def _unless_forgotten(backend: AdapterBackend, reason: Reason, what: str) -> Iterator[None]:
    """Have a call fail with this reason if its adapter no longer knows the run.

    Args:
        backend: the adapter.
        reason: the reason.
        what: what it no longer does, and what was to be done, as the error says it.
    """
    message = f"Adapter {backend.record.type!r} no longer {what} sooner after the run's end."
    gone = DragomanError(reason, message)
    if not backend.is_up:
        raise gone
    try:
        yield
    except DragomanError as error:
        raise gone if error.reason is Reason.RUN_NOT_FOUND else error from error


def _not_finished(located: Local | Finished) -> Run:
    """Return a run that is in memory; raise RUN_FINISHED for one that only the log has."""
    if isinstance(located, Finished):
        raise finished(located.stored.run_id)
    return located.run


async def _send_again(request: pb.SendRequest, reader: EventReader, end: int, error: DragomanError) -> bytes:
    """Answer a Send of an input that the run accepted before; raise ``error`` if it did not."""
    recorded = await find_event(
        reader, end, {"input_accepted"}, lambda event: event.input_accepted.input_id == request.input_id
    )
    if recorded is None:
        raise error
    return repeat_input(request, recorded).SerializeToString()


async def _answer_again(request: pb.RespondRequest, reader: EventReader, end: int, error: DragomanError) -> bytes:
    """Answer a Respond to an input request that was answered before; raise ``error`` if it was not.

    Raises:
        DragomanError: the same, or REQUEST_NOT_FOUND if the run did not ask at all.
    """
    resolved, may_be_requested = await find_end_of_input(reader, request.request_id, end)
    if resolved is None:
        raise error if may_be_requested else unknown_request(request.run_id, request.request_id)
    is_over = error.reason is Reason.RUN_FINISHED
    return repeat_answer(request.run_id, resolved, request.answer, is_over=is_over).SerializeToString()
