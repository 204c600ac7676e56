"""The upstream stream of a run: always drained, and attached to again when it breaks.

A stream can break in four ways, and each has its answer:

* the process is known to be gone, or another one answers in its place: the run is LOST at once
* the adapter says that it does not know the run: LOST; if the router that was to bring it there died before it did,
  the result says so
* anything else: Attach from the last sequence, as often as it takes, for 30 seconds; then LOST
* it ends, and there was no result, or what came was no such stream as the contract allows: LOST too, as a fault

Before the first event there is a fifth: the adapter rejects the call. Its status is passed on, and the run never
existed.
"""

import asyncio
import contextlib
from typing import Any

import grpc
from dragoman.protocol.backoff import Backoff
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import RUN_ID_METADATA_KEY, RUN_TOKEN_METADATA_KEY
from dragoman.protocol.limits import MAX_REQUEST_BYTES, MIB, RETAIN_FINISHED_S
from dragoman.router.adapters.channel import StreamCall, explained, is_cut, is_too_large, never_connected
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.model.ports import Clock
from dragoman.router.model.run_record import (
    VIOLATION_CODE,
    adapter_lost,
    not_started,
    protocol_violated,
)
from dragoman.router.model.stream_validator import ProtocolViolationError
from dragoman.router.model.tasks import first_of
from dragoman.router.runs.actor import Run
from dragoman.router.runs.cancellation import request_cancel
from dragoman.router.runs.inputs import Abandoned, Accepted, Declined, Disconnected, Reconnected
from dragoman.router.runs.intake import EventIntake, parsed
from dragoman.router.runs.stand_in import StandIn
from dragoman.router.runs.state import Reconnecting, is_at_adapter, progress_of
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_LAST_WORDS_S = 0.5
"""How long a stream may go on after its process is known to be gone: for what was already on its way."""
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_OFTEN_S = 5.0
_PROCESSES = 3
"""How many processes of an adapter may turn out to be ending before one takes the run."""
_REMEMBERED_S = RETAIN_FINISHED_S / 10
"""The age up to which an adapter is sure to know a run still that it ever got; far less than it keeps one."""
_BATCHING = [
    kind(batching=adapter_pb2.Batching()).SerializeToString()
    for kind in (adapter_pb2.ExecuteRequest, adapter_pb2.AttachRequest)
]
"""Put behind an Execute, or an Attach: what the caller said of batching is not the adapter's concern."""
_NOTHING = contextlib.nullcontext()
_FORGOTTEN = "no longer knows the run"
_REFUSED = "rejected Attach"
_FINAL = {
    grpc.StatusCode.NOT_FOUND: _FORGOTTEN,
    grpc.StatusCode.OUT_OF_RANGE: _FORGOTTEN,
    grpc.StatusCode.UNIMPLEMENTED: "does not implement Attach",
    grpc.StatusCode.INVALID_ARGUMENT: _REFUSED,
    grpc.StatusCode.FAILED_PRECONDITION: _REFUSED,
    grpc.StatusCode.PERMISSION_DENIED: _REFUSED,
    grpc.StatusCode.UNAUTHENTICATED: _REFUSED,
}
"""What an adapter answers to an Attach that will not succeed later either, and what that means."""


class _BrokenError(Exception):
    """The stream ended before the run."""

    def __init__(
        self, error: DragomanError | None, code: grpc.StatusCode | None = None, *, was_sent: bool = True
    ) -> None:
        super().__init__()
        self.error = error
        """What the status means; ``None`` if the stream was ended here."""
        self.code = code
        """The status that came, whatever it means."""
        self.was_sent = was_sent
        """False if there never was a connection to send the call on."""


class UpstreamStream:
    """Follows one run from its adapter's first event to its result.

    Args:
        reattach_s: how long a broken stream is tried to be followed.
    """

    def __init__(self, run: Run, clock: Clock, reattach_s: float) -> None:
        self._run = run
        self._clock = clock
        self._reattach_s = reattach_s
        self.intake = EventIntake(run, clock)
        self.request = b""
        """What the adapter is to run, serialized."""
        self._cause = ""
        self._begins_at = 1
        """The sequence of the first event that the present adapter may send."""

    async def execute(self, stand_in: StandIn | None) -> None:
        """Write down where the run is, start it at its adapter by ``request``, and follow it until that one is done.

        Args:
            stand_in: does what the adapter leaves to a router; ``None`` if that is nothing.

        Raises:
            DragomanError: there is no adapter, or it does not take the run.
        """
        self._begins_at = self._run.record.last_sequence + 1
        for number in range(1, _PROCESSES + 1):
            with await self._run.backend.use() as instance:
                if self._run.is_ending:
                    return
                self._run.assign(instance, is_bound=stand_in is not None and stand_in.is_needed)
                # Before it may begin there: who takes the run over must not take it for one that never began.
                await self._run.ledger.assigned()
                if progress_of(self._run.state).is_cancelling:
                    self._run.send(Declined())  # it was cancelled before it was sent there
                    return
                self.intake.stand_in = stand_in
                try:
                    with _NOTHING if stand_in is None else stand_in.watching():
                        await self._follow(instance)
                except DragomanError as error:
                    if error.reason is not Reason.DRAINING or number == _PROCESSES:
                        raise
                else:
                    return
            # Its health is about to say so, too. Another process, or its successor, takes the run.
            instance.serving.clear()
            self._run.send(Declined())

    async def follow_on(self) -> None:
        """Follow a run that a router followed before, at the process it is pinned to, from its last event here."""
        instance = self._run.instance
        assert instance is not None
        with instance.used():
            await self._follow(instance, is_attach=True)

    async def _follow(self, instance: AdapterInstance, *, is_attach: bool = False) -> None:
        """Read one stream after another: of Execute, unless the adapter has the run, and then of Attach.

        Raises:
            DragomanError: the adapter does not take the run.
        """
        run, record = self._run, self._run.backend.record
        patience = ReconnectPolicy(self._reattach_s)
        record.live_runs += 1
        try:
            while is_at_adapter(run.state):
                try:
                    await self._drain(instance, patience, is_attach=is_attach)
                except ProtocolViolationError as error:
                    run.send(Abandoned(protocol_violated(run.record.adapter, error)))
                    run.tasks.start(request_cancel(run, instance), f"cancel {run.run_id}")
                except _BrokenError as broken:
                    if is_at_adapter(run.state):
                        run.send(Disconnected())
                        await self._recover(instance, broken, patience, is_attach=is_attach)
                        is_attach |= broken.was_sent  # it was perhaps received: Attach shows whether it was
        finally:
            record.live_runs -= 1

    async def _recover(
        self, instance: AdapterInstance, broken: _BrokenError, patience: "ReconnectPolicy", *, is_attach: bool
    ) -> None:
        """Wait until another try is worth it; else end the run.

        Raises:
            DragomanError: the adapter does not take the run.
        """
        run, error = self._run, broken.error
        if error is not None and not is_attach and self._is_refusal(error):
            raise error
        if (ending := self._final(broken, is_attach=is_attach)) is not None:
            run.send(Abandoned(ending))
            return
        if error is not None and broken.was_sent and patience.deadline is None:
            self._remark(error, broken)
        if await patience.outlast(instance):
            return
        if instance.gone.is_set():
            run.send(Abandoned(adapter_lost(run.record.adapter, instance.gone_because)))
        elif not is_attach and not broken.was_sent and error is not None:
            raise error
        else:
            run.send(Abandoned(adapter_lost(run.record.adapter, f"was unreachable for {self._reattach_s:g} s")))
            run.tasks.start(request_cancel(run, instance), f"cancel {run.run_id}")

    def _final(self, broken: _BrokenError, *, is_attach: bool) -> pb.Result | None:
        """Return how the run ends, as a later Attach would get the same status; ``None`` if it may succeed."""
        record, code = self._run.record, broken.code
        is_young = self._clock.time() - record.accepted_at < _REMEMBERED_S
        is_untouched = record.published_before and not record.last_sequence
        if code is grpc.StatusCode.NOT_FOUND and is_untouched and is_young:
            return not_started(record.adapter)  # it never was there: its adapter would remember one of that age
        if code not in _FINAL or not is_attach:
            return None
        after = f" after its stream broke ({self._cause})" if self._cause else ""
        return adapter_lost(record.adapter, f"{_FINAL[code]} ({code.name}){after}")

    def _remark(self, error: DragomanError, broken: _BrokenError) -> None:
        if error.reason is Reason.SLOW_CONSUMER:
            self._cause, code = error.reason.value, "adapter_stream_behind"
            text = "The router fell behind the adapter's stream; it is attaching again to fetch the missed events."
        else:
            self._cause, code = (broken.code or error.code).name, "adapter_stream_broken"
            text = f"The stream from the adapter broke ({self._cause}); the router is attaching again."
        self._run.notices.warn(code, text, self._cause)

    def _is_refusal(self, error: DragomanError) -> bool:
        """Return whether the adapter answered to an Execute that it will not do this at all."""
        return self._run.record.last_sequence < self._begins_at and not is_cut(error)

    async def _drain(self, instance: AdapterInstance, patience: "ReconnectPolicy", *, is_attach: bool) -> None:
        """Read one upstream stream until the run is over: of Execute, or of Attach.

        Raises:
            ProtocolViolationError: what came is not allowed.
            _BrokenError: the stream ended before the run.
        """
        token, metadata = self._run.adapter_token, self._run.span.trace.metadata
        metadata += ((RUN_TOKEN_METADATA_KEY, token),) if token else ()
        method = "Attach" if is_attach else "Execute"
        call = instance.channel.stream(method, self._asked(instance, is_attach=is_attach), metadata=metadata)
        self._run.end_upstream = call.cancel
        self._run.record.validator.begin_stream()
        if self.intake.stand_in is not None:
            self.intake.stand_in.restart()
        try:
            # Should the stream not end with its process, it is ended; what was on its way may still come.
            loop = asyncio.get_running_loop()
            with instance.gone.calling(lambda: loop.call_later(_LAST_WORDS_S, call.cancel)):
                async with asyncio.timeout_at(patience.deadline):
                    # Not by dict(): older releases of grpc count keys and values as one there.
                    if any(key == RUN_ID_METADATA_KEY for key, _value in await call.initial_metadata()):
                        self._run.send(Accepted())
                    message = await call.read()
                patience.deadline = None
                if isinstance(self._run.state, Reconnecting):
                    self._run.send(Reconnected())
                await self._read(call, message)
        except TimeoutError:
            raise _BrokenError(None) from None
        except grpc.aio.AioRpcError as error:
            if is_too_large(error):
                what = f"an event of over {MAX_REQUEST_BYTES // MIB + 1} MiB"
                raise ProtocolViolationError(f"the adapter sent {what}") from error
            raise _BrokenError(explained(error), error.code(), was_sent=not never_connected(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _BrokenError(None) from None
        finally:
            call.cancel()

    def _asked(self, instance: AdapterInstance, *, is_attach: bool) -> bytes:
        request, run = self.request, self._run
        if is_attach:
            sequence = run.record.last_sequence
            request = adapter_pb2.AttachRequest(
                run_id=run.run_id, after_sequence=sequence, hold=True
            ).SerializeToString()
        return request + _BATCHING[is_attach] if instance.grants_batching else request

    async def _read(self, call: StreamCall, message: Any) -> None:
        run = self._run
        while message is not grpc.aio.EOF:
            event = parsed(message)
            if not self.intake.take_at_once(event, message):
                await self.intake.take_waiting(event, message)
            if not is_at_adapter(run.state):
                await _let_end(run, call)
                return
            del event  # which takes a kilobyte for as long as nothing follows
            message = await call.read()
        raise ProtocolViolationError("the stream ended without a result")


class ReconnectPolicy:
    """For how long a broken stream is tried to be followed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._backoff = Backoff(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S)
        self._last_break = float("-inf")
        self.deadline: float | None = None
        """When it ends; set to ``None`` whenever something comes, as nothing is wrong then."""

    async def outlast(self, instance: AdapterInstance) -> bool:
        """Wait until there is a connection again; False if the process is gone or it takes too long."""
        now = asyncio.get_running_loop().time()
        # A stream that breaks as soon as it is opened must not keep two processors busy.
        pause_s = 0.0
        if now - self._last_break < _OFTEN_S:
            pause_s = self._backoff.next_s()
        else:
            self._backoff.reset()
        self._last_break = now
        self.deadline = self.deadline or now + self._seconds
        connected = asyncio.ensure_future(self._connected(instance, pause_s))
        await first_of(connected, instance.gone.wait(), timeout_s=max(0.0, self.deadline - now))
        return not instance.gone.is_set() and not connected.cancelled()

    async def _connected(self, instance: AdapterInstance, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        await instance.channel.connected()


async def _let_end(run: Run, call: StreamCall) -> None:
    """Let the stream end by itself after the result, which counts; an event that comes nevertheless is reported."""
    with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
        async with asyncio.timeout(_LAST_WORDS_S):
            if await call.read() is not grpc.aio.EOF:
                adapter = run.record.adapter
                run.notices.warn(
                    VIOLATION_CODE, f"Adapter {adapter!r} violated the protocol: it sent an event after the result."
                )
