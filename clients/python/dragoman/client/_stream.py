"""One run as a stream of events that survives broken connections."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from dragoman.client._calls import RunCalls
from dragoman.client._channel import Channel
from dragoman.client._control import RunControl
from dragoman.client._events import EventFilter
from dragoman.protocol.errors import DragomanError
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb


class RunStream(RunControl):
    """The events of one run; made by `Client.execute` and `Client.attach`.

    An asynchronous iterator. Batches are unrolled, and no event with a sequence comes twice. After a broken
    connection the stream continues with Attach after the last sequence; before the first event it sends the same
    Execute again, which is idempotent. Events that are no longer stored are reported by a ``gap``. The stream ends
    after ``result``; one that is attached at the end of a run ends at once. In either case `result` says how the run
    ended. Cancelling a read loses no event.

    As a context manager it sends the request on entry, so that a rejection is raised there, and closes the stream on
    exit. Closing it early detaches from the run: without another client the run is orphaned, and cancelled after
    ``orphan_after``. `cancel` ends the run.

    Example::

        async with client.execute(request) as run:
            async for event in run:
                ...
        assert run.result is not None
    """

    def __init__(
        self,
        channel: Channel,
        *,
        execute: api.ExecuteRequest | None = None,
        attach: api.AttachRequest,
        reattach_s: float,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(channel, attach, timeout_s)
        self._events = EventFilter(attach.after_sequence)
        self._calls = RunCalls(channel, execute, attach, self._events, reattach_s)
        self._ready: deque[pb.AgentEvent] = deque()

    def __repr__(self) -> str:
        state = (
            "closed" if self._calls.closed else "over" if self.result else "open" if self.is_accepted else "not begun"
        )
        return f"<RunStream {self.run_id} {state} after_sequence={self.last_sequence}>"

    @property
    def last_sequence(self) -> int:
        """The last sequence that was read; a later `Client.attach` can continue after it."""
        return self._events.last_sequence

    @property
    def is_accepted(self) -> bool:
        """Whether the server has accepted the run."""
        return self._calls.accepted

    @property
    def result(self) -> pb.Result | None:
        """How the run ended; ``None`` until that was read."""
        return self._events.result

    async def __aenter__(self) -> Self:
        while not self.is_accepted:
            self._ready.extend(await self._calls.step())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.AgentEvent:
        while not self._ready:
            if self._calls.closed:
                raise StopAsyncIteration
            if self.result is not None:
                await self._calls.end()
                raise StopAsyncIteration
            self._ready.extend(await self._calls.step())
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Detach from the run."""
        self._ready.clear()
        self._calls.close()

    async def wait(self) -> pb.Result:
        """Read to the end, discarding the events, and return how the run ended.

        Raises:
            DragomanError: the call was rejected, or the stream broke and reconnecting failed.
            RuntimeError: the stream was closed before the result.
        """
        async for _event in self:
            pass
        if self.result is None:
            raise RuntimeError(f"the stream of {self.run_id} was closed before its result")
        return self.result

    def notify_broken(self, callback: Callable[[DragomanError], Awaitable[None]]) -> None:
        """Call ``callback`` when the stream breaks and the first attempt to reconnect fails."""
        self._calls.on_broken = callback
