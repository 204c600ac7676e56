"""Adapters that the router starts: when first needed, again after a crash, and no longer than they are used."""

import asyncio
from typing import Final

from dragoman.protocol.errors import DragomanError
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.channel import is_overdue
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.launcher import GuardedProcess
from dragoman.router.adapters.process import AdapterProcess, Ownership, users_of
from dragoman.router.adapters.registry import AdapterRecord, without_process
from dragoman.router.adapters.restart_delay import RestartDelay
from dragoman.v1 import adapter_pb2, router_pb2

DEAF_S: Final = 9.0
"""How long a process may leave the simplest call unanswered while one of its runs is to end."""

_log = Logger("dragoman.router")


class ProcessSupervisor(AdapterBackend):
    """Starts and stops the processes of one adapter. One gets the new calls; others serve their last runs."""

    def __init__(self, record: AdapterRecord, context: AdapterContext) -> None:
        super().__init__(record, context)
        self.present: AdapterProcess | None = None
        """The process that gets new calls."""
        self._processes: set[AdapterProcess] = set()
        self._adopting = asyncio.Lock()
        self._delay = RestartDelay()
        self._has_failed = False
        self._is_closed = False

    @property
    def is_up(self) -> bool:
        """Whether it is started or being started."""
        return self.present is not None

    @property
    def remarks(self) -> list[str]:
        """Say which processes serve their last runs."""
        retiring = [one for one in self._processes if one.retiring.is_set() and one.launched is not None]
        return sorted(
            f"Process {one.launched.pid} was replaced and ends after its last {_counted(users_of(one))}."
            for one in retiring
            if one.launched is not None
        )

    async def restart(self, grace_s: float | None) -> int:
        """Replace its process, and wait until the new one is ready; start one if there is none.

        Args:
            grace_s: how long live runs may continue in the old process; ``None`` for no limit.

        Returns:
            The number of calls and runs in old processes.

        Raises:
            DragomanError: ADAPTER_REFUSED or ADAPTER_UNAVAILABLE.
        """
        if self.record.is_rejected and not self.record.names:
            raise self.refusal()  # its configuration is wrong, or another adapter has its name
        _log.info("adapter restarting", adapter=self.record.type, grace_s=grace_s)
        self.present, self._delay, self._has_failed = None, RestartDelay(), False
        self.record.enter(router_pb2.ADAPTER_STATE_IDLE)  # what was wrong with its description may be corrected
        self._start()
        for process in self._processes - {self.present}:
            process.retire(grace_s)
        with await self.use():
            return sum(users_of(process) for process in self._processes - {self.present})

    async def _end_unused(self) -> None:
        self._is_closed = True
        self.present = None
        for process in self._processes:
            process.retire()
        tasks = [process.task for process in self._processes if process.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def stop(self, grace_s: float) -> None:
        """Stop its processes within ``grace_s`` seconds, and start none again."""
        self._is_closed = True
        await asyncio.gather(*(process.stop(grace_s) for process in self._processes))

    def lose(self, instance: AdapterInstance) -> None:
        """Leave a process to another router, which has taken its runs over: new runs get another one.

        If that router is on another machine, no guard client is left, and the process ends by itself.
        """
        for process in self._processes:
            if process.serves(instance):
                process.ownership = Ownership.LEFT
                self.ended(process, is_gone=False)

    async def end_if_deaf(self, instance: AdapterInstance) -> None:
        """Stop a process that no longer answers, with all its agents."""
        try:
            await instance.channel.describe(DEAF_S)
        except DragomanError as error:
            if not is_overdue(error):
                return
        else:
            return
        for process in self._processes:
            if process.serves(instance) and process.ownership is not Ownership.LEFT:
                _log.warning("adapter unresponsive, stopping it", adapter=self.record.type, waited_s=DEAF_S)
                await process.stop(0.0, f"did not answer for {DEAF_S:g} s, so the router killed it and its agents")
                return

    async def adopt(self, address: str) -> AdapterInstance | None:
        """Take over a process of this adapter that a router started which is gone.

        It serves its own runs to their end; new ones go to it only if there is no other yet.

        Returns:
            The process; ``None`` if it is gone, or does not answer as it should.
        """
        # One at a time: each run of the process asks for it, and it must not be adopted once for each.
        async with self._adopting:
            process = next((one for one in self._processes if one.address == address), None)
            if process is None:
                launched = await self._context.launcher.adopt(address)
                if launched is None or self._is_closed:
                    return None
                process = AdapterProcess(self, self._context, self.record.type, address)
                self._processes.add(process)
                self.present = self.present or process

                facts = {"pid": launched.pid, "guard_pid": launched.guard_pid}
                _log.info("adapter process adopted", adapter=self.record.type, **facts)
                process.start_adopted(launched)
        try:
            return await asyncio.shield(process.ready)
        except DragomanError:
            return None

    async def _acquire(self, instance_id: str) -> AdapterInstance:  # noqa: ARG002 - there is one
        while True:
            if self.present is None or self.present.stopping.is_set():
                self._start()
            process = self.present
            assert process is not None
            try:
                return await asyncio.shield(process.ready)
            except DragomanError:
                if self.present in {None, process}:
                    raise
                # It was replaced while it started.

    def _start(self) -> None:
        if self._is_closed:
            raise self.unavailable("cannot be started because the router is shutting down")
        wait_s = self._delay.wait_s(self._context.clock.monotonic())
        if wait_s > self._context.timing.patience_s:
            raise self.unavailable(
                f"{self.record.reason}; the router will try to start it again in {wait_s:.0f} s", wait_s
            )
        spec = self.record.spec

        async def launch() -> GuardedProcess:
            assert spec.launch is not None
            launched = await self._context.launcher.launch(spec.name, spec.launch)
            _log.info("adapter started", adapter=spec.name, pid=launched.pid, guard_pid=launched.guard_pid)
            self.record.restarts += self._has_failed
            return launched

        process = self.present = AdapterProcess(self, self._context, self.record.type)
        self._processes.add(process)
        self.set_state(router_pb2.ADAPTER_STATE_STARTING)
        process.start(launch, wait_s)

    # What its processes report; see ``ProcessOwner``.

    def accept(self, process: AdapterProcess, description: adapter_pb2.DescribeResponse) -> str:
        """Note that a process is ready; return why its description is rejected, or nothing."""
        # A process adopted beside a newer one serves its own runs only; the record describes the newer one.
        if self.present is not process:
            return ""
        rejection = self._context.registry.describe(self.record, description)
        if not rejection:
            identity, data = self.record.identity, without_process(description).SerializeToString()
            if self._context.descriptions.load(identity) != data:
                self._context.descriptions.save(identity, data)
            launched = process.launched
            assert launched is not None
            self.record.address = launched.address
            self.record.pid, self.record.guard_pid = launched.pid, launched.guard_pid
            self.set_state(router_pb2.ADAPTER_STATE_READY)
        return rejection

    def failed(self, process: AdapterProcess, why: str, ready_since: float | None = None) -> DragomanError:
        """Note that a process failed; return the error for the calls that wait."""
        now = self._context.clock.monotonic()
        self._delay = self._delay.failed(now, self._context.clock.chance(), ready_since=ready_since)
        self._has_failed = True
        count = self._delay.failures
        reason = why if count == 1 else f"{why}, {count} times in a row"
        if self._forget(process):
            self.set_state(router_pb2.ADAPTER_STATE_UNAVAILABLE, reason)
        _log.warning("adapter failed", adapter=self.record.type, failures=count)
        return self.unavailable(reason, self._delay.wait_s(now))

    def ended(self, process: AdapterProcess, *, is_gone: bool) -> None:
        """Note that a process gets no new calls, or that it is gone."""
        if self._forget(process):
            self.set_state(router_pb2.ADAPTER_STATE_IDLE)
        if is_gone:
            self._processes.discard(process)
            self._context.changes.notify()  # there may have been a remark about it
        else:
            self._delay = RestartDelay()

    def _forget(self, process: AdapterProcess) -> bool:
        """Have the next call start a new process; False if that has happened before."""
        if self.present is not process:
            return False
        self.present = None
        self.record.address = ""
        self.record.pid = self.record.guard_pid = None
        return True


def _counted(users: int) -> str:
    return f"{users} calls or runs" if users > 1 else "call or run"
