"""One adapter process under a guard, from its start to the proof that it is gone."""

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.health import HealthWatch, handshake
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.launcher import GuardedProcess, LaunchError
from dragoman.router.model.tasks import first_of
from dragoman.v1 import adapter_pb2, router_pb2

_LAST_READS_S = 1.0
"""How long the last messages of a dead process may take to be read."""
_LOOK_S = 0.05
"""The shortest pause before it is checked again whether a process is idle."""

_log = Logger("dragoman.router")


class Ownership(enum.Enum):
    """Who stops a process."""

    LAUNCHED = "launched"
    """This router, which started it."""
    ADOPTED = "adopted"
    """This router while it needs the process, then its guard: a third router may have runs in it."""
    LEFT = "left"
    """Another router, which has taken it over, or its guard."""


class ProcessOwner(Protocol):
    """What a process reports to."""

    present: "AdapterProcess | None"
    """The process that gets new calls."""
    waiting: int
    """How many calls and runs wait for a process."""

    def unavailable(self, why: str) -> DragomanError:
        """Return the error for a call that gets no process."""

    def set_state(self, state: router_pb2.AdapterState.ValueType, reason: str = "") -> None:
        """Set the state of the adapter."""

    def accept(self, process: "AdapterProcess", description: adapter_pb2.DescribeResponse) -> str:
        """Note that it is ready; return why its description is rejected, or nothing."""

    def reject(self, why: str) -> DragomanError:
        """Note that its description is rejected; return the error for the calls that wait."""

    def failed(self, process: "AdapterProcess", why: str, ready_since: float | None = None) -> DragomanError:
        """Note that it failed; return the error for the calls that wait."""

    def ended(self, process: "AdapterProcess", *, is_gone: bool) -> None:
        """Note that it gets no new calls, or that it is gone."""


class AdapterProcess:
    """One process of an adapter.

    Args:
        owner: what it reports to.
        context: what the backends of all adapters share.
        adapter: the adapter's type, for logs.
        address: where it listens; empty until it is started.
    """

    def __init__(self, owner: ProcessOwner, context: AdapterContext, adapter: str, address: str = "") -> None:
        self.address = address
        self.ready: asyncio.Future[AdapterInstance] = asyncio.get_running_loop().create_future()
        self.ownership = Ownership.ADOPTED if address else Ownership.LAUNCHED
        self.launched: GuardedProcess | None = None
        self.stopping = asyncio.Event()
        """Set once it is to stop."""
        self.retiring = asyncio.Event()
        """Set once it is to stop as soon as it is not used."""
        self._owner = owner
        self._context = context
        self._adapter = adapter
        self._grace_s = 0.0
        self._why = "was stopped"
        """Why it is gone for its runs, once it is to stop."""
        self.task: asyncio.Task[None] | None = None
        """Ends when it is gone; ``None`` before it is started."""

    def serves(self, instance: AdapterInstance) -> bool:
        """Return whether this is the process."""
        return _has_result(self.ready) and self.ready.result() is instance

    def retire(self, grace_s: float | None = None) -> None:
        """Have it stopped once its last call and run is over, or after ``grace_s`` seconds; ``None`` for no limit.

        One that is not ready is stopped at once: what waits for it gets another process.
        """
        stop_s = self._context.timing.stop_s
        if not _has_result(self.ready):
            self.request_stop(0.0)
        elif grace_s is not None and grace_s <= 0:
            self.request_stop(stop_s)
        else:
            self.retiring.set()
            if grace_s is not None:
                self._context.tasks.start(_stop_after(self, grace_s, stop_s), f"grace {self._adapter}")

    def start(self, launch: Callable[[], Awaitable[GuardedProcess]], wait_s: float = 0.0) -> None:
        """Start it, after ``wait_s`` seconds."""
        self.task = self._context.tasks.start(self._run(launch, wait_s), f"adapter {self._adapter}")

    def start_adopted(self, launched: GuardedProcess) -> None:
        """Begin with a process that runs already."""

        async def running() -> GuardedProcess:
            return launched

        self.launched = launched
        self.start(running)

    def request_stop(self, grace_s: float, why: str = "") -> None:
        """Have it stopped within ``grace_s`` seconds."""
        self._grace_s, self._why = grace_s, why or self._why
        self.stopping.set()

    async def stop(self, grace_s: float, why: str = "") -> None:
        """Stop it within ``grace_s`` seconds, and wait until it is gone; a later call may shorten that."""
        if self.stopping.is_set():
            await self._end(grace_s)
        self.request_stop(grace_s, why)
        if self.task is not None:
            await asyncio.shield(self.task)

    async def _end(self, grace_s: float) -> None:
        """End the process, if it is this router's to end."""
        if self.launched is not None and self.ownership is not Ownership.LEFT:
            await self.launched.stop(grace_s)

    def _fail(self, error: DragomanError) -> None:
        """Fail the calls that wait for it."""
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # read once, as perhaps no call waits

    async def _run(self, launch: Callable[[], Awaitable[GuardedProcess]], wait_s: float) -> None:
        try:
            if wait_s:
                await first_of(self.stopping.wait(), timeout_s=wait_s)
            if self.launched is not None or not self.stopping.is_set():
                self.launched = await launch()
                self.address = self.launched.address
                await self._see_through(self.launched)
        except LaunchError as error:
            self._fail(self._owner.failed(self, f"failed to start: {error}"))
        finally:
            self._owner.ended(self, is_gone=True)
            self._fail(self._owner.unavailable("is stopping"))

    async def _see_through(self, launched: GuardedProcess) -> None:
        """Serve it from its start to the proof that it is gone."""
        try:
            channel = AdapterChannel(launched.address)
        except DragomanError as error:
            await asyncio.shield(self._end(0.0))
            self._fail(self._owner.failed(self, error.message))
            return
        try:
            instance = await self._reach(launched, channel)
            if instance is None:
                await self._end(0.0)
            else:
                await self._serve(launched, instance)
        finally:
            # A no-op after the stops above; after a bug here no process may stay behind either.
            await asyncio.shield(self._end(0.0))
            is_left = self.ownership is Ownership.LEFT
            if is_left:
                launched.leave()
            await channel.close()
            what = "adapter left to its guard" if is_left else "adapter stopped"
            _log.info(what, adapter=self._adapter, pid=launched.pid)

    async def _reach(self, launched: GuardedProcess, channel: AdapterChannel) -> AdapterInstance | None:
        """Wait until it is ready; ``None`` if it will not be, and the calls that wait have failed."""
        start_s = self._context.timing.start_s
        ended = asyncio.ensure_future(launched.ended())
        hands = asyncio.ensure_future(_first_handshake(channel))
        stopping = asyncio.ensure_future(self.stopping.wait())
        await first_of(ended, hands, stopping, timeout_s=start_s)
        output = f"(log: {launched.log_path})"
        if _has_result(hands):
            return self._welcome(channel, hands.result(), launched.pid)
        if _has_result(ended):
            self._fail(self._owner.failed(self, f"{ended.result()} before it became ready {output}"))
        elif hands.cancelled() and not _has_result(stopping):
            self._fail(self._owner.failed(self, f"did not become ready within {start_s:g} s {output}"))
        elif not hands.cancelled():
            failure = hands.exception()
            if isinstance(failure, DragomanError) and failure.reason is Reason.ADAPTER_REFUSED:
                self._fail(self._owner.reject(failure.message))
                return None
            message = failure.message if isinstance(failure, DragomanError) else "the connection failed"
            why = f"failed to answer Describe: {message.rstrip('.')} {output}"
            self._fail(self._owner.failed(self, why))
        return None

    def _welcome(
        self, channel: AdapterChannel, description: adapter_pb2.DescribeResponse, pid: int
    ) -> AdapterInstance | None:
        rejection = self._owner.accept(self, description)
        if rejection:
            self._fail(self._owner.reject(rejection))
            return None
        instance = AdapterInstance(channel, description)
        _log.info("adapter ready", adapter=instance.adapter, instance=instance.instance_id, pid=pid)
        self.ready.set_result(instance)
        return instance

    async def _serve(self, launched: GuardedProcess, instance: AdapterInstance) -> None:
        """Serve it until it ends, or is stopped."""
        tasks, ready_since = self._context.tasks, self._context.clock.monotonic()

        def report(state: router_pb2.AdapterState.ValueType, reason: str) -> None:
            # One that only serves its last runs beside a newer process does not speak for the adapter.
            if self._owner.present is self:
                self._owner.set_state(state, reason)

        watch = tasks.start(
            HealthWatch(instance, report, instance.channel.connected).run(), f"health {instance.adapter}"
        )
        idle = tasks.start(self._stop_when_idle(instance), f"idle stop {instance.adapter}")
        ended = asyncio.ensure_future(launched.ended())
        try:
            await first_of(ended, self.stopping.wait())
            if _has_result(ended):
                log = _log.bind(adapter=instance.adapter, instance=instance.instance_id, pid=launched.pid)
                log.warning("adapter exited", how=ended.result())
                instance.leave(ended.result())
                self._owner.failed(self, f"{ended.result()} (log: {launched.log_path})", ready_since)
            else:
                watch.cancel()
                self._owner.ended(self, is_gone=False)
                # Its runs are followed until it is gone: it may still report how they end.
                await self._end(self._grace_s)
            instance.leave(self._why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_READS_S):
                    await instance.unused()
        finally:
            watch.cancel()
            idle.cancel()

    async def _stop_when_idle(self, instance: AdapterInstance) -> None:
        """Stop it once neither a run nor a call has used it for a while."""
        clock, timing = asyncio.get_running_loop().time, self._context.timing
        while not self.stopping.is_set():
            await instance.unused()
            left_s = 0.0 if self.retiring.is_set() else timing.idle_s - instance.idle_s(clock())
            is_awaited = self._owner.present is self and self._owner.waiting > 0
            if left_s > 0 or is_awaited:
                # A call that came and went meanwhile has restarted the idle time.
                await first_of(self.retiring.wait(), timeout_s=max(left_s, _LOOK_S))
                continue
            _log.info("idle adapter stopping", adapter=self._adapter)
            if self.ownership is Ownership.ADOPTED:
                self.ownership = Ownership.LEFT
            self.request_stop(timing.stop_s)


async def _first_handshake(channel: AdapterChannel) -> adapter_pb2.DescribeResponse:
    await channel.listening()
    return await handshake(channel)


async def _stop_after(process: AdapterProcess, grace_s: float, stop_s: float) -> None:
    await first_of(process.stopping.wait(), timeout_s=grace_s)
    if not process.stopping.is_set():
        process.request_stop(stop_s)


def users_of(process: AdapterProcess) -> int:
    """Return the number of calls and runs that use a process."""
    return process.ready.result().users if _has_result(process.ready) else 0


def _has_result(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
