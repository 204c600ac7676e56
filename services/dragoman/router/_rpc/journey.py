"""The way of one run: from its first adapter, by what its request allows, to others, until it has a result.

Each attempt has the run's id, the next sequences and the next number. Nothing of it is silent: the attempt that
failed ends with ``attempt_ended``, and whoever does not take the run is told as a notice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dragoman.protocol.errors import DragomanError
from dragoman.router._domain.fallback import Course, onward, refused, refused_as, shortened, wants_candidates
from dragoman.router._ports import Clock
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.link import first_of
from dragoman.router._rpc.pump import Pump
from dragoman.router._rpc.run import Run
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

if TYPE_CHECKING:
    from dragoman.router._rpc.admitting import Admitting


async def _allow(_host: Host) -> None:
    """Let it go anywhere."""


class Journey:
    """Brings one run from adapter to adapter.

    Args:
        run: the run.
        admitting: lets it through to them.
        clock: time and chance.
        wishes: the caller's ``fallback`` and ``admission``.
    """

    def __init__(self, run: Run, admitting: "Admitting", clock: Clock, wishes: adapter_pb2.ExecuteRequest) -> None:
        assert run.course is not None
        self._run = run
        self._course: Course = run.course
        self._admitting = admitting
        self._clock = clock
        self._wishes = wishes
        self.refuse_switch: Callable[[Host], Awaitable[None]] = _allow
        """Raises what keeps it from going on there, as another adapter works on its task."""
        self._name = ""
        """The present adapter's name in ``fallback``."""
        self._first = adapter_pb2.ExecuteRequest()
        """What the first adapter got: one adapter's own settings are no other's."""
        self._prepare: Callable[[], Awaitable[None]]
        """Completes that."""
        self._began = 0.0
        """When its first attempt did, in seconds of a clock that goes evenly."""
        self._skipped: DragomanError | None = None
        """Why the first adapter was not asked, if the run went to the others without that."""

    async def go(
        self, pump: Pump, request: adapter_pb2.ExecuteRequest, prepare: Callable[[], Awaitable[None]]
    ) -> None:
        """Start the run at its adapter, and follow it to its end.

        Args:
            pump: follows it.
            request: what the first adapter gets.
            prepare: completes that, by what is known only once the run has its place there.

        Raises:
            DragomanError: nobody takes it.
        """
        self._first, self._prepare = request, prepare
        following: adapter_pb2.ExecuteRequest | None = request
        while following is not None:
            error = await self._attempts(pump, following)
            following = None if self._is_done() else await self._next(error)

    def _is_done(self) -> bool:
        return self._run.is_ending

    async def _attempts(self, pump: Pump, request: adapter_pb2.ExecuteRequest) -> DragomanError | None:
        """Have one adapter try, and again as often as it may, in one place; return why it did not take the run."""
        try:
            async with self._admitting.place(self._run, request, self._wishes):
                if self._run.has_waited and not self._is_done():
                    await self.refuse_switch(self._run.host)  # another one may have gone elsewhere with the task
                if request is self._first and not self._is_done():
                    await self._prepare()
                refusal = await self._attempt(pump, request)
                while refusal is None and await self._is_tried_again():
                    refusal = await self._attempt(pump, self._numbered(request))
        except DragomanError as error:
            refusal = error
        if refusal is not None:
            self._run.unpin()
        return refusal

    async def _attempt(self, pump: Pump, request: adapter_pb2.ExecuteRequest) -> DragomanError | None:
        self._course.begin(tells_tools=True)
        with self._admitting.attempt(self._run, request, self._wishes):
            return None if self._is_done() else await pump.execute(self._in_time(request).SerializeToString())

    def _in_time(self, request: adapter_pb2.ExecuteRequest) -> adapter_pb2.ExecuteRequest:
        """Return the request for an attempt that begins now: the limits of a run are for all of them together."""
        now = self._clock.monotonic()
        if self._run.failed is None:
            self._began = now
            return request
        return shortened(request, now - self._began)

    async def _next(self, error: DragomanError | None) -> adapter_pb2.ExecuteRequest | None:
        """Return what another adapter is asked for next; ``None`` once the run is over."""
        if error is None:
            return await self._after_failure()
        run, failed = self._run, self._run.failed
        is_first = failed is None and self._skipped is None
        if is_first and not self._skips(error):
            self._refuse(error)
            return None
        if is_first:
            self._skipped = error
        else:
            self._remark_refusal(error)
        host = await self._successor() if failed is None or self._course.may_fall_back(failed) else None
        if self._is_called_off():
            return None
        if host is None:
            self._end()
            return None
        if is_first:
            run.pass_over("adapter_skipped", f"{error.message}; the run goes to {host.record.type!r}.")
        return self._moved(host)

    def _remark_refusal(self, error: DragomanError) -> None:
        is_again = self._course.retries_done > 0
        code, again = ("retry_refused", " again") if is_again else ("fallback_refused", "")
        told = f"The adapter {self._run.record.adapter!r} did not take the run{again}: {error.message.rstrip('.')}."
        self._run.pass_over(code, told)

    def _end(self) -> None:
        """End the run, as nobody is left who would take it: for its first reason."""
        if self._run.failed is not None:
            self._run.end_as(self._run.failed)
        elif self._skipped is not None:
            self._refuse(self._skipped)

    def _refuse(self, error: DragomanError) -> None:
        """End a run that nobody took: as if it never was, unless it was told to be waiting."""
        result = refused(error) if self._run.has_waited else None
        if result is None:
            self._run.refuse(error)
            return
        if wants_candidates(result) and self._course.is_alone:
            result.fallback_candidates.extend(self._run.suggest())
        self._run.end_as(result)

    def _skips(self, error: DragomanError) -> bool:
        """Tell whether a run that has not begun may go to another adapter: as if it had failed as others did."""
        kind = refused_as(error)
        return kind is not None and self._course.falls_back_on(kind)

    async def _may_turn(self, otherwise: str) -> bool:
        """Tell whether an attempt may follow the one whose result is held back; else that ends the run.

        Args:
            otherwise: the code of the notice that it may not.
        """
        may_turn = await self._run.may_turn()
        if self._is_done():
            return False
        if not may_turn:
            self._run.pass_over(otherwise, "The run log cannot be written; so no other attempt follows.")
            await self._run.release()
        return may_turn

    async def _after_failure(self) -> adapter_pb2.ExecuteRequest | None:
        run = self._run
        assert run.held_back is not None
        result = run.held_back[0].result
        if not await self._may_turn("fallback_refused"):
            return None
        host = await self._successor()
        if self._is_done():
            return None
        if host is None or run.cancelling.is_set():
            await run.release()
            return None
        kind = pb.FailureKind.Name(result.failure.kind).removeprefix("FAILURE_KIND_")
        await run.turn(host.record.type, f"{kind}: the run falls back to {host.record.type!r}.")
        return None if self._is_called_off() else self._moved(host)

    async def _is_tried_again(self) -> bool:
        """Wait until the adapter may try again; False if it may not, or nothing is to follow any more."""
        run = self._run
        if self._is_done() or run.held_back is None or not self._course.may_retry(run.held_back[0].result):
            return False
        result = run.held_back[0].result
        if not await self._may_turn("retry_refused"):
            return False
        delay_s = self._course.retry(self._clock.chance())
        reason = f"The model's service failed before the agent did any work; it is tried again in {delay_s:.1f} s."
        await run.turn("", reason)
        if self._is_called_off():
            return False
        state = pb.State(
            phase=pb.RUN_PHASE_RETRYING,
            retry_attempt=self._course.retries_done,
            reason=reason,
            retry_cause=result.failure.kind,
        )
        state.retry_delay.FromNanoseconds(int(delay_s * 1e9))
        run.tell(state)
        over, cancelled = run.over.wait(), run.cancelling.wait()
        await first_of(asyncio.ensure_future(over), asyncio.ensure_future(cancelled), timeout_s=delay_s)
        return not self._is_called_off()

    def _is_called_off(self) -> bool:
        """Tell whether nothing is to follow; a run that is between two attempts then ends as cancelled."""
        if self._run.cancelling.is_set():
            self._run.stop_waiting()
        return self._is_done()

    async def _successor(self) -> Host | None:
        """Return the next adapter's place; who is not there is told and passed over."""
        while not self._is_done() and (name := self._course.next_adapter()) is not None:
            try:
                host = await self._admitting.find(name)
                if host.record.is_refused:
                    raise host.refusal()
                await self.refuse_switch(host)
            except DragomanError as error:
                told = f"The run cannot fall back to {name[:64]!r}: {error.message.rstrip('.')}."
                self._run.pass_over("fallback_refused", told)
            else:
                self._name = name
                return host
        return None

    def _moved(self, host: Host) -> adapter_pb2.ExecuteRequest:
        run = self._run
        following = onward(self._first, self._name, host.record.type, run.cwd, self._wishes.fallback)
        run.move(host)
        return self._numbered(following)

    def _numbered(self, request: adapter_pb2.ExecuteRequest) -> adapter_pb2.ExecuteRequest:
        if self._run.failed is not None:
            request.relay.first_sequence = self._run.record.last_sequence + 1
            request.relay.first_attempt = self._run.record.attempt + 1
        return request
