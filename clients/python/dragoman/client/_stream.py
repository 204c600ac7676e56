"""One run, read as a stream that does not break."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self, TypeAlias

import grpc
from dragoman.client._follow import Patience, given_up, is_followed, is_refusal
from dragoman.client._link import Link, closed_error, is_cancelling
from dragoman.client._requests import duration
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.wire import unroll
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

_Call: TypeAlias = (
    "grpc.aio.UnaryStreamCall[api.ExecuteRequest, pb.AgentEvent]"
    " | grpc.aio.UnaryStreamCall[api.AttachRequest, pb.AgentEvent]"
)

_END_OF_CALL_S = 1.0
"""How long a server may take to end its call after the result."""


class RunStream:
    """The events of one run; made by `Client.execute` and `Client.attach`.

    An asynchronous iterator. Batches come unrolled, no event with a sequence comes twice, and a stream that
    breaks is followed with Attach from the last sequence; one that breaks before its first event is begun again with
    the same Execute, which starts the run or joins it. What cannot be had any more comes as a ``gap``. It ends after
    ``result``, or at once where that is what it was to go on from. A cancelled read loses nothing: the next one goes
    on.

    Use it as a context manager, which opens it, so that a refusal is raised there, and closes it. Closing it
    early does not end the run, but no longer holds it: it is then cancelled after ``orphan_after``, unless
    somebody else holds it. To end it, `cancel` it.

    Example::

        async with client.execute(request) as run:
            async for event in run:
                ...
        assert run.result is not None
    """

    def __init__(
        self,
        link: Link,
        *,
        execute: api.ExecuteRequest | None = None,
        attach: api.AttachRequest,
        reattach_s: float,
    ) -> None:
        self._link = link
        self._execute = execute
        self._attach = attach
        self._reattach_s = reattach_s
        self._patience = Patience(reattach_s, asyncio.get_running_loop().time)
        self._accepted = False
        self._broken: DragomanError | None = None
        self._was_told = False
        self._was_sent = False
        self._call: _Call | None = None
        self._messages: AsyncIterator[pb.AgentEvent] | None = None
        self._ready: deque[pb.AgentEvent] = deque()
        self._asked: set[str] = set()
        self._replay_told = False
        self._closed = False
        self._empty_after: int | None = None
        self._looks_back = False
        self.result: pb.Result | None = None
        """How the run ended; ``None`` until that was read."""
        self.on_broken: Callable[[DragomanError], Awaitable[None]] | None = None
        """Called when the stream broke and was not there again at once; for who waits at a screen."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "over" if self.result else "open" if self._accepted else "not begun"
        return f"<RunStream {self.run_id} {state} after_sequence={self.last_sequence}>"

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._attach.run_id

    @property
    def last_sequence(self) -> int:
        """The last sequence read; what a later `Client.attach` goes on from."""
        return self._attach.after_sequence

    @property
    def is_accepted(self) -> bool:
        """Whether the server has said that the run exists."""
        return self._accepted

    async def __aenter__(self) -> Self:
        while not self._accepted:
            await self._step()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.AgentEvent:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            if self.result is not None:
                await self._end_call()
                raise StopAsyncIteration
            await self._step()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop reading. The run itself is left alone."""
        self._closed = True
        self._ready.clear()
        self._drop()

    async def wait(self) -> pb.Result:
        """Read to the end, throwing the events away, and return how the run ended.

        Raises:
            DragomanError: the call was refused, or the stream broke and could not be followed.
            RuntimeError: the stream was closed before the result.
        """
        async for _event in self:
            pass
        if self.result is None:
            raise RuntimeError(f"the stream of {self.run_id} was closed before its result")
        return self.result

    async def cancel(self, *, grace_s: float | None = None, reason: str = "") -> api.CancelResponse:
        """Cancel the run and wait until its result is recorded; the events can still be read.

        Args:
            grace_s: seconds the agent gets to end by itself; ``None`` for the run's own, 0 kills now.
            reason: why, for people.

        Raises:
            DragomanError: the call failed; RUN_NOT_FOUND if nothing is running.
        """
        request = api.CancelRequest(run_id=self.run_id, reason=reason, adapter=self._attach.adapter)
        if grace_s is not None:
            request.grace.CopyFrom(duration(grace_s, "grace"))
        return await self._link.answer(self._link.adapter.Cancel(request))

    async def respond(self, request_id: str, answer: pb.InputAnswer, *, responder: str = "") -> api.RespondResponse:
        """Answer one ``input_request`` of this run.

        Args:
            request_id: the request's id.
            answer: as the request says.
            responder: who answers, for the record.

        Raises:
            DragomanError: the answer does not fit, came too late, or somebody else answered otherwise.
        """
        request = api.RespondRequest(
            run_id=self.run_id,
            request_id=request_id,
            answer=answer,
            responder=responder,
            adapter=self._attach.adapter,
        )
        return await self._link.answer(self._link.adapter.Respond(request))

    async def _step(self) -> None:
        """Open the stream if none is open, else take one message; or get over that it broke."""
        try:
            if self._messages is None:
                await self._open()
            else:
                self._take(await anext(self._messages))
        except StopAsyncIteration:
            self._drop()
            if self.result is None:
                self._note_empty()
                await self._pause(_no_result(self.run_id))
        except grpc.aio.AioRpcError as error:
            self._drop()
            await self._pause(self._link.error(error))
        except asyncio.CancelledError:
            self._drop()
            if is_cancelling():
                raise
            if not self._closed:
                raise closed_error() from None

    async def _open(self) -> None:
        await self._link.look()
        if self._link.closed:
            raise closed_error()
        call: _Call
        if self._execute is not None and not await self._is_attached_to():
            call = self._link.adapter.Execute(self._execute)
        else:
            call = self._link.adapter.Attach(self._attach_request())
        # Whoever called execute() once did not ask for a replay.
        self._replay_told |= self._was_sent
        self._was_sent = self._execute is not None
        self._call, self._messages = call, aiter(call)
        for key, value in await call.initial_metadata() or ():
            if key == RUN_ID_METADATA_KEY and isinstance(value, str):
                self._attach.run_id = value
                self._accept()

    async def _is_attached_to(self) -> bool:
        """Tell whether Attach is how a run of ours is gone on with, and not its request once more.

        Raises:
            grpc.aio.AioRpcError: nobody says, or there is no such run.
        """
        if self.last_sequence or not self._accepted:
            return self._accepted
        try:
            # A router that died before an adapter had the run leaves one that begins when its request comes again.
            await self._link.router.GetRun(router_pb2.GetRunRequest(run_id=self.run_id), timeout=self._reattach_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return True  # an adapter, which forgets with its process and would do it twice
        return False

    def _attach_request(self) -> api.AttachRequest:
        request = api.AttachRequest()
        request.CopyFrom(self._attach)
        request.after_sequence -= self._looks_back
        self._empty_after, self._looks_back = request.after_sequence, False
        return request

    def _note_empty(self) -> None:
        """Go on from one event earlier if Attach gave nothing: behind its result a run has no more, and ends so."""
        if self._empty_after is not None:
            self._looks_back = 0 < self.last_sequence == self._empty_after

    def _accept(self) -> None:
        self._accepted = True
        self._link.connected = True

    def _drop(self) -> None:
        """Let go of the call, if there is one."""
        if self._call is not None:
            self._call.cancel()
        self._call = self._messages = None

    async def _end_call(self) -> None:
        """Let the server end its call; a cancelled one would look like trouble in its log."""
        messages, self._messages = self._messages, None
        try:
            if messages is not None:
                await asyncio.wait_for(anext(messages), _END_OF_CALL_S)
        except (TimeoutError, StopAsyncIteration, grpc.aio.AioRpcError):
            pass  # the result is what counts
        except asyncio.CancelledError:
            if is_cancelling():
                raise
        finally:
            self._drop()

    async def _pause(self, error: DragomanError) -> None:
        """Wait until it is worth trying again.

        Raises:
            DragomanError: it is not.
        """
        cause, self._broken = self._broken, self._broken or error
        if cause is not None and self._accepted and not self.last_sequence and is_refusal(cause, then=error):
            raise cause
        if not is_followed(
            error, accepted=self._accepted, connected=self._link.connected, in_doubt=cause is not None
        ):
            raise error
        delay = self._patience.next_delay_s(error)
        if delay is None:
            raise given_up(error, self.run_id, accepted=self._accepted, after_s=self._reattach_s)
        if cause is not None and delay and self.on_broken is not None and not self._was_told:
            self._was_told = True
            await self.on_broken(cause)
        await asyncio.sleep(delay)

    def _take(self, message: pb.AgentEvent) -> None:
        self._accept()
        for event in unroll(message):
            if self.result is not None:
                return
            if event.sequence:
                self._take_durable(event)
            else:
                self._take_ephemeral(event)

    def _take_durable(self, event: pb.AgentEvent) -> None:
        if event.sequence <= self.last_sequence:
            if event.HasField("result"):
                self.result = event.result
            return
        self._attach.after_sequence = event.sequence
        self._progressed()
        self._ready.append(event)
        body = event.WhichOneof("body")
        if body == "input_request":
            self._asked.add(event.input_request.id)
        elif body == "input_resolved":
            self._asked.discard(event.input_resolved.id)
        elif body == "result":
            self.result = event.result

    def _progressed(self) -> None:
        self._patience.progressed()
        self._broken, self._was_told, self._empty_after = None, False, None

    def _take_ephemeral(self, event: pb.AgentEvent) -> None:
        body = event.WhichOneof("body")
        if body == "gap":
            if event.gap.to_sequence <= self.last_sequence:
                return
            event.gap.from_sequence = max(event.gap.from_sequence, self.last_sequence + 1)
            self._attach.after_sequence = event.gap.to_sequence
        elif body == "input_request":
            # Every Attach repeats what still waits for an answer; our own ones are nobody's business.
            if event.input_request.id in self._asked:
                return
            self._asked.add(event.input_request.id)
        elif body == "replay_done":
            if self._replay_told:
                return
            self._replay_told = True
        else:
            # Heartbeats show that the stream is alive. What every Attach begins with does not.
            self._progressed()
        self._ready.append(event)


def _no_result(run_id: str) -> DragomanError:
    return DragomanError(
        None, f"the server ended the stream of {run_id} without a result", status=grpc.StatusCode.INTERNAL
    )
