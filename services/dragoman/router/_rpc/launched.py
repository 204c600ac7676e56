"""Adapters that the router starts: when first needed, again after a crash, and not for longer than they are used."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import structlog
from dragoman.protocol.errors import DragomanError
from dragoman.router._domain.backoff import Backoff
from dragoman.router._domain.directory import AdapterRecord
from dragoman.router._ports import Launched, LaunchError
from dragoman.router._rpc.endpoint import Endpoint
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.link import Link, first_of
from dragoman.router._rpc.scene import Scene
from dragoman.v1 import adapter_pb2, router_pb2

_LAST_WORDS_S = 1.0
"""How long what a dead process has sent may take to be read."""
DEAF_S: Final = 9.0
"""How long a process may leave the simplest question unanswered while one of its runs is to end."""

_log = structlog.get_logger("dragoman.router")


class _Life:
    """One process, from the wish to have it to the proof that it is gone."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        """Where it listens; empty until it is started."""
        self.ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self.stopping = asyncio.Event()
        self.grace_s = 0.0
        self.why = "was stopped"
        """What becomes of it once it is stopping."""
        self.task: asyncio.Task[None] | None = None
        self.launched: Launched | None = None
        self.is_adopted = False
        """Whether another router started it, which is gone."""
        self.is_anothers = False
        """Whether another router has it now, and ends it when that one has done with it."""

    async def end(self, grace_s: float) -> None:
        """End the process, if it is this router's to end."""
        if self.launched is not None and not self.is_anothers:
            await self.launched.stop(grace_s)

    async def stop(self, grace_s: float) -> None:
        """End it within ``grace_s`` seconds; a later call may shorten that."""
        if self.stopping.is_set():
            await self.end(grace_s)
        self.grace_s = grace_s
        self.stopping.set()
        if self.task is not None:
            await asyncio.shield(self.task)

    def fail(self, error: DragomanError) -> None:
        """Tell who waits that it will not be ready."""
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # read once, as perhaps nobody waits


class LaunchedHost(Host):
    """The place of an adapter that is launched here."""

    def __init__(self, record: AdapterRecord, scene: Scene) -> None:
        super().__init__(record, scene)
        self._life: _Life | None = None
        self._lives: set[_Life] = set()
        self._adopting = asyncio.Lock()
        self._backoff = Backoff()
        self._has_died = False
        self._uses = 0
        """Of who has a process, or waits for one."""
        self._is_closed = False

    @property
    def is_up(self) -> bool:
        """Whether it is started or being started."""
        return self._life is not None

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Endpoint]:
        """Use a living process of this adapter while the block runs; it is started if need be.

        Raises:
            DragomanError: ADAPTER_UNAVAILABLE or ADAPTER_REFUSED.
        """
        self._uses += 1
        try:
            async with super().use() as endpoint:
                yield endpoint
        finally:
            self._uses -= 1

    def _is_present(self, endpoint: Endpoint) -> bool:
        ready = self._life.ready if self._life is not None else None
        return ready is not None and _has_result(ready) and ready.result() is endpoint

    async def stop(self, grace_s: float) -> None:
        """End its processes within ``grace_s`` seconds, and start none again."""
        self._is_closed = True
        await asyncio.gather(*(life.stop(grace_s) for life in self._lives))

    def lose(self, endpoint: Endpoint) -> None:
        """Leave a process to another router, which has taken its runs over: new runs get another one.

        If that router is of another machine, and the process nobody's, it ends by itself, as adapters do.
        """
        for life in self._lives:
            if _has_result(life.ready) and life.ready.result() is endpoint:
                life.is_anothers = True
                if self._forget(life):
                    self._set(router_pb2.ADAPTER_STATE_IDLE)

    async def end_if_deaf(self, endpoint: Endpoint) -> None:
        """End a process that answers nothing any more, with all its agents."""
        try:
            await endpoint.link.describe(DEAF_S)
        except DragomanError as error:
            if error.status is not grpc.StatusCode.DEADLINE_EXCEEDED:
                return
        else:
            return
        for life in self._lives:
            if _has_result(life.ready) and life.ready.result() is endpoint and not life.is_anothers:
                _log.warning("adapter ended: it does not answer", adapter=self.record.type, waited_s=DEAF_S)
                life.why = f"did not answer for {DEAF_S:g} s and was killed, with all its agents"
                await life.stop(0.0)
                return

    def leave_adopted(self) -> None:
        """Leave the processes that were taken over to the next router: they may have runs that are not known here."""
        for life in self._lives:
            if life.is_adopted:
                life.is_anothers = True
                self._forget(life)

    async def _let_go_of_unused(self, life: _Life, endpoint: Endpoint) -> None:
        """Stop a process that neither a run nor a call has used for a while, be it the present one or not."""
        while not life.stopping.is_set():
            await endpoint.unused()
            await first_of(asyncio.ensure_future(endpoint.in_use()), timeout_s=self._scene.timing.idle_s)
            is_wanted = self._life is life and self._uses
            if not endpoint.is_used and not is_wanted:
                _log.info("adapter let go: nobody has used it", adapter=self.record.type)
                # One that another router started may have runs that a third one follows: its guard sees to its end.
                life.is_anothers = life.is_anothers or life.is_adopted
                life.grace_s = self._scene.timing.stop_s
                life.stopping.set()

    async def adopt(self, address: str) -> Endpoint | None:
        """Take over a process of this adapter that a router started which is gone.

        It serves its own runs to their end; new ones go to it only if there is no other yet.

        Args:
            address: where it listens.

        Returns:
            The process; ``None`` if it is not there any more, or does not answer as it should.
        """
        # One at a time: each run of the process asks for it, and it must not be taken over once for each.
        async with self._adopting:
            known = next((life for life in self._lives if life.address == address), None) or await self._take(address)
        if known is None:
            return None
        try:
            return await asyncio.shield(known.ready)
        except DragomanError:
            return None

    async def _take(self, address: str) -> _Life | None:
        launched = await self._scene.launcher.adopt(address)
        if launched is None or self._is_closed:
            return None
        life = _Life(address)
        life.launched, life.is_adopted = launched, True
        self._lives.add(life)
        if self._life is None:
            self._life = life
        life.task = self._scene.tasks.start(self._live_on(life, launched), f"adapter {self.record.type}")
        return life

    async def _live_on(self, life: _Life, launched: Launched) -> None:
        _log.info("adapter taken over", adapter=self.record.type, pid=launched.pid, guard_pid=launched.guard_pid)
        try:
            await self._see_through(life, launched)
        finally:
            self._end_life(life)

    async def _acquire(self) -> Endpoint:
        if self._life is None or self._life.stopping.is_set():
            self._begin()
        assert self._life is not None
        return await asyncio.shield(self._life.ready)

    def _begin(self) -> None:
        if self._is_closed:
            raise self._unavailable("is not started any more: the router ends")
        now = self._scene.clock.monotonic()
        wait_s = self._backoff.wait_s(now)
        if wait_s > self._scene.timing.patience_s:
            raise self._unavailable(
                f"{self.record.reason}; it is not started again for another {wait_s:.0f} s", wait_s
            )
        life = _Life()
        self._life = life
        self._lives.add(life)
        self._set(router_pb2.ADAPTER_STATE_STARTING)
        life.task = self._scene.tasks.start(self._live(life, wait_s), f"adapter {self.record.type}")

    async def _live(self, life: _Life, wait_s: float) -> None:
        try:
            if wait_s:
                await first_of(asyncio.ensure_future(life.stopping.wait()), timeout_s=wait_s)
            await self._launch_and_serve(life)
        except LaunchError as error:
            self._failed(life, f"could not be started: {error}")
        finally:
            self._end_life(life)

    def _end_life(self, life: _Life) -> None:
        if self._forget(life):
            self._set(router_pb2.ADAPTER_STATE_IDLE)
        life.fail(self._unavailable("is being stopped"))
        self._lives.discard(life)

    async def _launch_and_serve(self, life: _Life) -> None:
        if life.stopping.is_set():
            return
        spec = self.record.spec
        assert spec.launch is not None
        launched = life.launched = await self._scene.launcher.launch(spec.name, spec.launch)
        life.address = launched.address
        _log.info("adapter launched", adapter=spec.name, pid=launched.pid, guard_pid=launched.guard_pid)
        if self._has_died:
            self.record.restarts += 1
        await self._see_through(life, launched)

    async def _see_through(self, life: _Life, launched: Launched) -> None:
        """Serve a process from its start to the proof that it is gone."""
        link = Link(launched.address)
        try:
            endpoint = await self._reach(life, launched, link)
            if endpoint is None:
                await life.end(0.0)
            else:
                await self._serve(life, launched, endpoint)
        finally:
            # A no-op after the stops above; after a fault of ours nothing may stay behind all the same.
            await asyncio.shield(life.end(0.0))
            if life.is_anothers:
                launched.leave()
            await link.close()
            what = "adapter left to another router" if life.is_anothers else "adapter gone"
            _log.info(what, adapter=self.record.type, pid=launched.pid)

    async def _reach(self, life: _Life, launched: Launched, link: Link) -> Endpoint | None:
        """Wait until it is ready; ``None`` if it will not be, which is told to who waits."""
        timing = self._scene.timing
        ended = asyncio.ensure_future(launched.ended())
        hands = asyncio.ensure_future(self._shake_hands(link))
        stopping = asyncio.ensure_future(life.stopping.wait())
        await first_of(ended, hands, stopping, timeout_s=timing.start_s)
        output = f"its output is in {launched.log_path}"
        if _has_result(hands):
            return self._welcome(life, launched, link, hands.result())
        if _has_result(ended):
            self._failed(life, f"{ended.result()} before it was ready; {output}")
        elif hands.cancelled() and not _has_result(stopping):
            self._failed(life, f"was not ready within {timing.start_s:g} s; {output}")
        elif not hands.cancelled():
            failure = hands.exception()
            told = failure.message if isinstance(failure, DragomanError) else "could not be reached"
            self._failed(life, f"did not describe itself: {told}; {output}")
        return None

    def _welcome(
        self, life: _Life, launched: Launched, link: Link, description: adapter_pb2.DescribeResponse
    ) -> Endpoint | None:
        # One that was taken over when there was another already serves its own runs; what is told is of the other.
        is_present = self._life is life
        refusal = self._scene.directory.learn(self.record, description) if is_present else ""
        if refusal:
            _log.warning("adapter refused", adapter=self.record.type, reason=refusal)
            self._scene.changes.tell()
            life.fail(self.refusal())
            return None
        endpoint = Endpoint(link, description)
        if is_present:
            self.record.address = launched.address
            self.record.pid, self.record.guard_pid = launched.pid, launched.guard_pid
            self._set(router_pb2.ADAPTER_STATE_READY)
        _log.info("adapter ready", adapter=endpoint.adapter, instance=endpoint.instance_id, pid=launched.pid)
        life.ready.set_result(endpoint)
        return endpoint

    async def _serve(self, life: _Life, launched: Launched, endpoint: Endpoint) -> None:
        """See it through to its end, wanted or not."""
        ready_since = self._scene.clock.monotonic()
        watch = self._scene.tasks.start(self._watch(endpoint), f"watch {endpoint.adapter}")
        idle = self._scene.tasks.start(self._let_go_of_unused(life, endpoint), f"let go {endpoint.adapter}")
        ended = asyncio.ensure_future(launched.ended())
        try:
            await first_of(ended, asyncio.ensure_future(life.stopping.wait()))
            if _has_result(ended):
                self._died(life, endpoint, ended.result(), launched, ready_since)
            else:
                watch.cancel()
                if self._forget(life):
                    self._set(router_pb2.ADAPTER_STATE_IDLE)
                self._backoff = Backoff()
                # Its runs are followed until it is gone: it may still tell how they end.
                await life.end(life.grace_s)
            endpoint.leave(life.why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await endpoint.unused()
        finally:
            watch.cancel()
            idle.cancel()

    def _died(self, life: _Life, endpoint: Endpoint, how: str, launched: Launched, ready_since: float) -> None:
        log = _log.bind(adapter=endpoint.adapter, instance=endpoint.instance_id, pid=launched.pid)
        log.warning("adapter exited", how=how)
        endpoint.leave(how)
        self._failed(life, f"{how}; its output is in {launched.log_path}", ready_since=ready_since)

    def _failed(self, life: _Life, why: str, *, ready_since: float | None = None) -> None:
        now = self._scene.clock.monotonic()
        self._backoff = self._backoff.failed(now, self._scene.clock.chance(), ready_since=ready_since)
        self._has_died = True
        count = self._backoff.failures
        reason = why if count == 1 else f"{why} ({count} times in a row)"
        if self._forget(life):
            self._set(router_pb2.ADAPTER_STATE_UNAVAILABLE, reason)
        _log.warning("adapter failed", adapter=self.record.type, failures=count)
        life.fail(self._unavailable(reason, self._backoff.wait_s(now)))

    def _forget(self, life: _Life) -> bool:
        """Let the next who asks start a new process; False if that has happened before."""
        if self._life is not life:
            return False
        self._life = None
        self.record.address = ""
        self.record.pid = self.record.guard_pid = None
        return True


def _has_result(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
