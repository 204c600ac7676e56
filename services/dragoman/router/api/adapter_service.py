"""``AdapterService`` at the router: forwarded to the adapter that is named.

Requests and responses stay bytes; only what the router decides by is parsed, and only ``Execute`` is serialized anew.
So what a later revision of the contract adds passes through.
"""

import contextlib
from collections.abc import AsyncIterator

from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.logs import bind_context
from dragoman.protocol.server import Context
from dragoman.router.adapters.channel import addressed, is_cut
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.relay import relay
from dragoman.router.api.acceptance import Acceptance
from dragoman.router.api.authorization import allow, allow_answer, allow_control, allow_read
from dragoman.router.api.calls import read, refuse, remaining_s
from dragoman.router.api.detection import AgentDetector
from dragoman.router.api.drain import Drain
from dragoman.router.api.locate import Finished, Local, Located, Remote, RunLocator
from dragoman.router.api.queries import QueryServicer, lost
from dragoman.router.api.streaming import KeptAlive, RunStreams, SupersededError
from dragoman.router.api.validation import execute_objection
from dragoman.router.cluster.forwarding import came_from_a_router
from dragoman.router.model.errors import finished
from dragoman.router.policy.answers import is_perhaps_recorded
from dragoman.router.runs.cancellation import cancel, how_it_ended
from dragoman.router.runs.sending import Sent, method_of, recorded, send
from dragoman.router.runs.state import Superseded, is_replayed
from dragoman.v1 import adapter_pb2 as pb
from google.protobuf.message import Message


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
        super().__init__(adapters, acceptance.policy, detector, drain)
        self._acceptance = acceptance
        self._locator = locator
        self._streams = streams

    async def Execute(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Accept a run, or join the one that this request started before; then stream it."""
        self._drain.refuse_new()
        while not await self._executed(data, context):
            pass  # another router accepted it first, so the run is found there; or none brought it to an adapter

    async def _executed(self, data: bytes, context: Context) -> bool:
        """Accept a run, or find it, and stream it; False if it is to be looked for once more."""
        request = read(pb.ExecuteRequest, data)
        refuse(execute_objection(request))
        batching = request.HasField("batching")  # before it is rewritten for its adapter
        located = await self._locator.of_request(request)
        if isinstance(located, Remote | Finished):
            allow(adapter=located.facts.adapter, run_id=located.facts.run_id)
            attach = pb.AttachRequest(run_id=request.run_id, hold=True)
            if batching:
                attach.batching.CopyFrom(request.batching)
            await self._streams.elsewhere(located, attach, context)
            return True
        run, is_new = (located.run, False) if located is not None else await self._acceptance.accept(request)
        allow(adapter=run.record.adapter, run_id=run.run_id)
        del request  # which may be large, and is the run's
        # Held before the next await: a run whose caller is gone already must be an orphan, not a stray.
        with KeptAlive(run):
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
        if isinstance(located, Remote | Finished):
            await self._streams.elsewhere(located, request, context)
            return
        keep_alive = KeptAlive(located.run, is_relayed=came_from_a_router(context))
        with keep_alive if request.hold else contextlib.nullcontext():
            after, batching = request.after_sequence, request.HasField("batching")
            await self._streams.live(located.run, context, after, batching=batching)

    async def Cancel(self, data: bytes, context: Context) -> pb.CancelResponse | bytes:  # noqa: N802 - the contract's name
        """Cancel a run, and return how it ended."""
        request = read(pb.CancelRequest, data)
        located = await self._locator.resolve(request.run_id, allow_control, request.adapter)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, "Cancel", data, context)
        if isinstance(located, Finished):
            return how_it_ended(located.stored.state.run.result, located.stored.logged)
        if request.adapter:  # by a name that the adapter itself does not know
            request.adapter = located.run.backend.record.type
        return await cancel(located.run, request)

    async def Respond(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Answer an input request of a run."""
        return await self._send(read(pb.RespondRequest, data), data, context)

    async def Send(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Give a run an input."""
        return await self._send(read(pb.SendRequest, data), data, context)

    async def UpdateRun(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Change the model or the permission mode of a run."""
        request = read(pb.UpdateRunRequest, data)
        if request.WhichOneof("change") is None:
            raise invalid("change", "there is nothing to change; set model or permission_mode")
        return await self._send(request, data, context)

    async def GetChanges(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Say what a run changed: its adapter knows."""
        request = read(pb.GetChangesRequest, data)
        located = await self._locator.resolve(request.run_id, allow_read, request.adapter)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, "GetChanges", data, context)
        data = addressed(pb.GetChangesRequest, data, request.adapter, located.facts.adapter)
        async with self._keeper(located, Reason.CHANGES_UNKNOWN, "knows what the run changed; ask") as instance:
            return await instance.channel.answer("GetChanges", data, timeout_s=remaining_s(context))

    async def ReadArtifact(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Stream a file that a run left: its adapter keeps it."""
        request = read(pb.ReadArtifactRequest, data)
        located = await self._locator.resolve(request.run_id, allow_read, request.adapter)
        with self._drain.stream():
            if isinstance(located, Remote):
                await located.forwarder.stream(located.stored, "ReadArtifact", data, context, self._drain.ending)
                return
            data = addressed(pb.ReadArtifactRequest, data, request.adapter, located.facts.adapter)
            async with self._keeper(located, Reason.ARTIFACTS_GONE, "has the run's artifacts; read them") as instance:
                await relay(instance.channel.stream("ReadArtifact", data), context, self._drain.ending)

    async def _send(self, request: Sent, data: bytes, context: Context) -> bytes:
        """Bring to a run what its adapter records there; what it recorded before gets the same response again."""
        is_answer = isinstance(request, pb.RespondRequest)
        by = "responder" if is_answer else "sender"
        if not getattr(request, by):
            # Appended, as the adapter's name is: only this router knows who called it.
            named: Message = type(request)(**{by: current_caller().name})  # type: ignore[arg-type]  # it knows fields one by one
            data += named.SerializeToString()
        allowed = allow_answer if is_answer else allow_control
        located = await self._locator.resolve(request.run_id, allowed, request.adapter)
        if isinstance(located, Remote):
            return await located.forwarder.answer(located.stored, method_of(request), data, context)
        try:
            if isinstance(located, Finished):
                raise finished(request.run_id)
            data = addressed(type(request), data, request.adapter, located.facts.adapter)
            check = await self._acceptance.check_sent(request, located.run)
            return await send(located.run, request, data, remaining_s(context), check)
        except DragomanError as error:
            if not is_perhaps_recorded(request, error):
                raise
            if isinstance(located, Finished):
                reader, end = self._streams.stored_reader(located.stored), located.stored.logged
            else:
                reader, end = await self._streams.reader(located.run), located.run.fanout.last_sequence
            return (await recorded(request, reader, end, error)).SerializeToString()

    @contextlib.asynccontextmanager
    async def _keeper(self, located: Local | Finished, reason: Reason, what: str) -> AsyncIterator[AdapterInstance]:
        """Use the process of an adapter that knows what a run left.

        Args:
            located: the run.
            reason: why the call fails if the adapter no longer knows the run.
            what: what it no longer does then, and what was to be done, as the error says it.
        """
        live: AdapterInstance | None = None
        if isinstance(located, Local):
            backend, instance_id, live = located.run.backend, located.run.record.instance_id, located.run.instance
        else:
            backend = await self._adapters.get(located.stored.adapter)
            instance_id = located.stored.state.run.instance_id
        bind_context(adapter=backend.record.type)
        gone = DragomanError(reason, f"Adapter {backend.record.type!r} no longer {what} sooner after the run's end.")
        if not backend.is_up:
            raise gone
        with contextlib.ExitStack() as held:
            if live is not None and not live.gone.is_set():
                held.enter_context(live.used())  # it may be draining, while another process serves new runs
            else:
                live = held.enter_context(await backend.use(instance_id))
            try:
                yield live
            except DragomanError as error:
                if error.reason is Reason.RUN_NOT_FOUND:
                    raise gone from error
                if is_cut(error):
                    raise lost(backend) from error
                raise


async def _settled(locator: RunLocator, request: pb.AttachRequest) -> Located:
    """Return where a run is that may be read, once it is known which of two routers has accepted it."""
    located = await locator.resolve(request.run_id, allow_read, request.adapter)
    if isinstance(located, Local):
        await located.run.ledger.begin()
        if isinstance(located.run.state, Superseded):  # the other one may have sent events already
            return await locator.resolve(request.run_id, allow_read, request.adapter)
    return located
