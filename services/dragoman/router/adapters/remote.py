"""Adapters that run already, which the router does not start; it keeps a connection to each."""

import abc
import asyncio
import contextlib

from dragoman.protocol.dialing import may_listen
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.channel import AdapterChannel, unavailable
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.health import NOT_SERVING, HealthWatch, introduction
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.registry import AdapterRecord
from dragoman.router.adapters.restart_delay import LONGEST_DELAY_S, RestartDelay
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.router.model.ports import Processes
from dragoman.router.model.tasks import first_of
from dragoman.v1 import adapter_pb2, router_pb2

_FIRST_TRY_S = 1.0
"""After this long without a connection it is said to be unavailable."""
_SECOND_ASK_S = 5.0
_LOOK_S = 0.25
"""How often a process that cannot be reached is looked for."""

_log = Logger("dragoman.router")


class RunningAdapter(AdapterBackend):
    """An adapter that runs already: the router connects to it, and does not end it."""

    def __init__(self, record: AdapterRecord, context: AdapterContext) -> None:
        super().__init__(record, context)
        self.tried = asyncio.Event()
        """Set once it is known, or was tried long enough, what is there."""

    @property
    def is_up(self) -> bool:
        """Always: what is behind an address may know runs that this router does not."""
        return True

    @abc.abstractmethod
    def begin(self) -> None:
        """Connect, and reconnect from now on."""

    @abc.abstractmethod
    def reconsider(self) -> None:
        """Try it again now."""


class RemoteAdapter(RunningAdapter):
    """An adapter at an address."""

    def __init__(self, record: AdapterRecord, context: AdapterContext) -> None:
        super().__init__(record, context)
        self.instance: AdapterInstance | None = None
        """The process that answered last, which may be gone by now; ``None`` if none has."""
        self._channel: AdapterChannel | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: tuple[int, int] | None = None
        """Pid and start mark of what answers; ``None`` if it cannot be seen from here."""
        self._reached = asyncio.Event()
        self._again = asyncio.Event()
        """Set if it is worth another try now."""

    def begin(self) -> None:
        """Connect, and reconnect from now on."""
        if self._task is not None:
            return  # it registered while the router was starting
        self.set_state(router_pb2.ADAPTER_STATE_STARTING)
        self._task = self._context.tasks.start(self._keep(), f"address {self.record.spec.address}")

    def serves(self, instance_id: str) -> bool:
        """Return whether it takes new runs; or whether it is a certain process, which may only end its last runs.

        Args:
            instance_id: the process's; empty for any.
        """
        instance = self.instance
        if instance is None or instance.gone.is_set():
            return False
        return instance_id == instance.instance_id if instance_id else instance.serving.is_set()

    def reconsider(self) -> None:
        """Try it again now."""
        self._again.set()

    async def _end_unused(self) -> None:
        instance = self.instance
        if instance is not None and not instance.gone.is_set():
            await first_of(instance.unused(), instance.gone.wait())
        await self.stop(0.0)

    async def stop(self, grace_s: float) -> None:  # noqa: ARG002 - it is not ours to end
        """Close the connection; the adapter lives on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    async def _acquire(self, instance_id: str) -> AdapterInstance:  # noqa: ARG002 - there is one
        if self.instance is None or self.instance.gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._context.timing.patience_s):
                    await self._reached.wait()
        if self.record.is_rejected:
            raise self.refusal()
        if self.instance is None or self.instance.gone.is_set():
            raise self.unavailable(self.record.reason or "is not responding")
        return self.instance

    async def _keep(self) -> None:
        backoff = RestartDelay()
        while not self.is_removed:
            self._again.clear()
            if await self._meet():
                backoff = RestartDelay()
                assert self.instance is not None
                await HealthWatch(self.instance, self.set_state, self._reconnect).run()
                self._part()
            else:
                now = self._context.clock.monotonic()
                backoff = backoff.failed(now, self._context.clock.chance())
                wait_s = LONGEST_DELAY_S if self.record.is_rejected else backoff.wait_s(now)
                await first_of(self._again.wait(), timeout_s=wait_s)

    async def _meet(self) -> bool:
        """Connect, however long it takes, and check the adapter; False if it cannot be used."""
        try:
            if self._channel is None:
                self._channel = _open_channel(self.record.spec)
            channel = self._channel
            if not await self._connect(channel):
                # A new one tries at once, where gRPC would wait two seconds after the last failure.
                self._channel = None
                await channel.close()
                return False
            async with asyncio.timeout(self._context.timing.start_s):
                description, is_serving = await introduction(channel)
            is_one = await _is_one(channel, self.record.spec, description.instance_id)
        except TimeoutError:
            self.set_state(
                router_pb2.ADAPTER_STATE_UNAVAILABLE,
                f"did not become ready within {self._context.timing.start_s:g} s of the connection",
            )
            return False
        except DragomanError as error:
            if error.reason in {Reason.ADAPTER_REFUSED, Reason.ADDRESS_UNTRUSTED}:
                self.reject(error.message)
            else:
                self.set_state(router_pb2.ADAPTER_STATE_UNAVAILABLE, f"failed to answer Describe: {error.message}")
            return False
        finally:
            self.tried.set()
        if not is_one:
            self.reject(
                f"Two processes answer at {channel.address}; runs stay with one process,"
                " so configure one address each."
            )
            return False
        return self._welcome(channel, description, is_serving=is_serving)

    async def _connect(self, channel: AdapterChannel) -> bool:
        """Connect, however long it takes; False if it is worth another try now, and nothing was reached before."""
        try:
            async with asyncio.timeout(_FIRST_TRY_S):
                await channel.connected()
        except TimeoutError:
            self.set_state(router_pb2.ADAPTER_STATE_UNAVAILABLE, _unreachable(self.record.spec))
            self.tried.set()
        else:
            return True
        connected = asyncio.ensure_future(channel.connected())
        again = self._again.wait() if self.instance is None else asyncio.Event().wait()
        await first_of(connected, again)
        return not connected.cancelled()

    def _welcome(
        self, channel: AdapterChannel, description: adapter_pb2.DescribeResponse, *, is_serving: bool
    ) -> bool:
        if rejection := self._describe(description):
            self.reject(rejection)
            return False
        self.instance = AdapterInstance(channel, description)
        self._process = _visible_process(self._context.processes, channel.address, description.pid)
        self._reached.set()
        if is_serving:
            self.set_state(router_pb2.ADAPTER_STATE_READY)
        else:
            self.instance.serving.clear()
            self.set_state(router_pb2.ADAPTER_STATE_UNAVAILABLE, NOT_SERVING)
        what = "adapter ready" if is_serving else "adapter reached, which drains or starts"
        _log.info(what, adapter=description.adapter, instance=description.instance_id)
        return True

    def _describe(self, description: adapter_pb2.DescribeResponse) -> str:
        """Store its description; return why it is rejected because of that, empty if it is not."""
        return self._context.registry.describe(self.record, description)

    async def _reconnect(self) -> None:
        """Wait until there is a connection again, or the process is known to be gone."""
        instance = self.instance
        assert instance is not None
        connected = asyncio.ensure_future(instance.channel.connected())
        try:
            while not connected.done():
                if self._has_ended():
                    instance.leave("is unreachable and its process has exited")
                    return
                await asyncio.wait([connected], timeout=_LOOK_S)
        finally:
            connected.cancel()
            await asyncio.gather(connected, return_exceptions=True)

    def _has_ended(self) -> bool:
        """Return whether the process is known to be gone; one that was never visible is not."""
        if self._process is None:
            return False
        pid, started = self._process
        return self._context.processes.started(pid) != started

    def _part(self) -> None:
        """The process is another one now."""
        assert self.instance is not None
        _log.warning(
            "adapter process replaced or gone", adapter=self.instance.adapter, instance=self.instance.instance_id
        )
        self._reached.clear()


def _open_channel(spec: AdapterSpec) -> AdapterChannel:
    return AdapterChannel(spec.address, spec.server_name)


async def _is_one(channel: AdapterChannel, spec: AdapterSpec, instance_id: str) -> bool:
    """Ask over another connection who is there: behind one name may be several processes."""
    if channel.address.startswith("unix:"):
        return True
    second = _open_channel(spec)
    try:
        other = (await second.describe(_SECOND_ASK_S)).instance_id
        if instance_id != other and (await channel.describe(_SECOND_ASK_S)).instance_id == other:
            raise unavailable("The adapter is restarting; try again.")
        return instance_id == other
    finally:
        await second.close()


def _unreachable(spec: AdapterSpec) -> str:
    is_found = spec.source is Source.SOCKET_DIRECTORY
    return f"is unreachable at {spec.address}{'; if its adapter has ended, remove the socket' if is_found else ''}"


def _visible_process(processes: Processes, address: str, pid: int) -> tuple[int, int] | None:
    """Return pid and start mark of the process that answers; ``None`` if it is not visible from here.

    In another pid namespace, as in another container, the pid that it reports is another process's here.
    """
    if pid <= 0 or not may_listen(pid, address):
        return None
    started = processes.started(pid)
    return None if started is None else (pid, started)
