"""The messages of one run, read with as many calls as it takes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import grpc
from dragoman.client._channel import Channel, closed_error, is_cancelling
from dragoman.client._events import EventFilter
from dragoman.client._reconnect import ReconnectPolicy, is_rejection, may_reconnect, reconnect_failed
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.tracing import outgoing_trace
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

_Call: TypeAlias = (
    "grpc.aio.UnaryStreamCall[api.ExecuteRequest, pb.AgentEvent]"
    " | grpc.aio.UnaryStreamCall[api.AttachRequest, pb.AgentEvent]"
)

_END_OF_CALL_S = 1.0
"""How long a server may take to end its call after the result."""


class RunCalls:
    """One call at a time; after a call broke, the next one continues after the last event.

    Args:
        channel: the client's channel.
        execute: the request that starts the run; ``None`` for a run that exists.
        attach: the request to continue with; its ``after_sequence`` is set for each call.
        events: what has been read of the run.
        reattach_s: seconds without progress after which reconnecting is given up.
    """

    def __init__(
        self,
        channel: Channel,
        execute: api.ExecuteRequest | None,
        attach: api.AttachRequest,
        events: EventFilter,
        reattach_s: float,
    ) -> None:
        self.accepted = False
        """Whether the server has accepted the run."""
        self.closed = False
        self.on_broken: Callable[[DragomanError], Awaitable[None]] | None = None
        self._channel = channel
        self._execute = execute
        self._attach = attach
        self._events = events
        self._reattach_s = reattach_s
        self._policy = ReconnectPolicy(reattach_s, asyncio.get_running_loop().time)
        self._broken: DragomanError | None = None
        self._reported_broken = False
        self._executed = False
        self._call: _Call | None = None
        self._messages: AsyncIterator[pb.AgentEvent] | None = None

    async def step(self) -> list[pb.AgentEvent]:
        """Open a call if none is open, else read a message; or wait, if the call broke. Return the new events.

        Raises:
            DragomanError: the call was rejected, or reconnecting failed.
        """
        try:
            if self._messages is None:
                await self._open()
                return []
            return self._read(await anext(self._messages))
        except StopAsyncIteration:
            self._drop()
            if self._events.result is None:
                text = f"the server ended the stream of {self._attach.run_id} without a result"
                await self._back_off(DragomanError(None, text, status=grpc.StatusCode.INTERNAL))
        except grpc.aio.AioRpcError as error:
            self._drop()
            status = self._channel.error(error)
            if not self._goes_on_without_batches(status):
                await self._back_off(status)
        except asyncio.CancelledError:
            self._drop()
            if is_cancelling():
                raise
            if not self.closed:
                raise closed_error() from None
        return []

    def _goes_on_without_batches(self, error: DragomanError) -> bool:
        """Return whether only batching was rejected, which is then not requested again; no run began by that call."""
        is_rejected = error.reason is Reason.NOT_SUPPORTED and any(one.path == "batching" for one in error.violations)
        if not is_rejected or not self._attach.HasField("batching"):
            return False
        self._channel.grants_batching = self._executed = False
        for request in (self._execute, self._attach):
            if request is not None:
                request.ClearField("batching")
        return True

    def close(self) -> None:
        """Stop reading; a step that waits returns."""
        self.closed = True
        self._drop()

    def _drop(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call = self._messages = None

    async def end(self) -> None:
        """Let the server end its call after the result; a cancelled call would look like a failure in its log."""
        messages, self._messages = self._messages, None
        try:
            if messages is not None:
                await asyncio.wait_for(anext(messages), _END_OF_CALL_S)
        except (TimeoutError, StopAsyncIteration, grpc.aio.AioRpcError):
            pass  # the result has been read
        except asyncio.CancelledError:
            if is_cancelling():
                raise
        finally:
            self._drop()

    async def _open(self) -> None:
        await self._channel.wait_until_connected()
        if self._channel.closed:
            raise closed_error()
        call: _Call
        if self._execute is not None and not await self._must_attach():
            call = self._channel.adapter.Execute(self._execute, metadata=outgoing_trace().metadata)
        else:
            # A copy: grpc may serialize it later.
            attach = api.AttachRequest()
            attach.CopyFrom(self._attach)
            attach.after_sequence = self._events.last_sequence
            call = self._channel.adapter.Attach(attach)
        # A reader of Execute did not ask for a replay: what reconnecting replays is not reported.
        self._events.expects_replay_done &= not self._executed
        self._executed = self._execute is not None
        self._call, self._messages = call, aiter(call)
        self._channel.streams.add(call)
        for key, value in await call.initial_metadata() or ():
            if key == RUN_ID_METADATA_KEY and isinstance(value, str):
                self._attach.run_id = value
                self._accept()

    async def _must_attach(self) -> bool:
        """Return whether a run of this client is continued by Attach, and not by sending its request again.

        Raises:
            grpc.aio.AioRpcError: the router does not know the run, or does not answer.
        """
        if self._events.last_sequence or not self.accepted:
            return self.accepted
        try:
            # A router that stopped before it dispatched a run leaves one that starts anew by the same request.
            request = router_pb2.GetRunRequest(run_id=self._attach.run_id)
            await self._channel.router.GetRun(request, timeout=self._reattach_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return True  # an adapter, which forgets its runs when it stops and would start the run twice
        return False

    def _read(self, message: pb.AgentEvent) -> list[pb.AgentEvent]:
        self._accept()
        events = list(self._events.events(message))
        if self._events.progressed:
            self._policy.progressed()
            self._broken, self._reported_broken = None, False
        return events

    def _accept(self) -> None:
        self.accepted = self._channel.connected = True

    async def _back_off(self, error: DragomanError) -> None:
        """Wait before the next call.

        Raises:
            DragomanError: the run was rejected, or reconnecting failed.
        """
        cause, self._broken = self._broken, self._broken or error
        accepted = self.accepted
        if cause is not None and accepted and not self._events.last_sequence and is_rejection(cause, then=error):
            raise cause
        if not may_reconnect(error, accepted=accepted, connected=self._channel.connected, in_doubt=cause is not None):
            raise error
        delay = self._policy.next_delay_s(error)
        if delay is None:
            raise reconnect_failed(error, self._attach.run_id, accepted=accepted, after_s=self._reattach_s)
        if cause is not None and delay and self.on_broken is not None and not self._reported_broken:
            self._reported_broken = True
            await self.on_broken(cause)
        await asyncio.sleep(delay)
