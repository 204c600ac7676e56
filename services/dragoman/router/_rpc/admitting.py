"""What lets a run through to an adapter: its place there, and the breaker of its login."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router._domain.admission import MOST_WAITING, Places, longest_wait_s
from dragoman.router._domain.breaker import CRASHES, Breakers, Key, Open
from dragoman.router._domain.directory import AdapterRecord
from dragoman.router._domain.fallback import Course, candidates, may_others
from dragoman.router._domain.logins import login_of
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.journey import Journey
from dragoman.router._rpc.keeping import Keeping
from dragoman.router._rpc.link import first_of
from dragoman.router._rpc.run import Run
from dragoman.router._rpc.scene import Scene
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_RETRY_S = 1.0

_log = structlog.get_logger("dragoman.router")


@dataclass(frozen=True, slots=True)
class Policy:
    """What the router's configuration says of it; see ``RouterConfig``."""

    max_runs: Mapping[str, int] = field(default_factory=dict)
    upstream_retries: int = 2
    breaker_crashes: int = CRASHES


class Admitting:
    """Lets runs through.

    Args:
        scene: what the router's parts share.
        keeping: has the key of digests.
        policy: how much is let through.
        find: returns the place of an adapter by its name, or raises ADAPTER_NOT_FOUND.
    """

    def __init__(
        self, scene: Scene, keeping: Keeping, policy: Policy, find: Callable[[str], Awaitable[Host]]
    ) -> None:
        self._scene = scene
        self._keeping = keeping
        self._policy = policy
        self._places = Places(policy.max_runs)
        self._breakers = Breakers(policy.breaker_crashes)
        self.find = find
        self.detections: Callable[[], list[adapter_pb2.Detection]] = list
        """Returns what was found of agents so far."""

    def journey(self, run: Run, request: adapter_pb2.ExecuteRequest) -> Journey:
        """Return what brings a run from adapter to adapter; the wishes for that are taken out of its request."""
        wishes = adapter_pb2.ExecuteRequest(fallback=request.fallback, admission=request.admission)
        run.suggest = lambda: self._candidates(run.record.adapter)
        request.ClearField("fallback")
        request.ClearField("admission")
        run.course = Course(wishes.fallback, self._policy.upstream_retries)
        return Journey(run, self, self._scene.clock, wishes)

    @contextlib.asynccontextmanager
    async def place(
        self, run: Run, request: adapter_pb2.ExecuteRequest, wishes: adapter_pb2.ExecuteRequest
    ) -> AsyncIterator[None]:
        """Give a run its place at its adapter while the block runs: for all its attempts there.

        Args:
            run: the run.
            request: what its adapter will get.
            wishes: what the caller says of its admission.

        Raises:
            DragomanError: BREAKER_OPEN, TOO_MANY_RUNS for as long as the caller waits, or there is no adapter.
        """
        if run.host.record.description is None:
            # How many runs it can have, and what chooses a login, it says once it was started, which it will be.
            async with run.host.use():
                pass
        key = self._key(run.host.record, request)
        opened = self._breakers.refusal(key, run.run_id, self._scene.clock.time())
        if opened is not None and not wishes.admission.ignore_breaker:
            raise _is_open(run, key.adapter, opened)
        async with self._room(run, longest_wait_s(wishes)):
            yield

    @contextlib.contextmanager
    def attempt(
        self, run: Run, request: adapter_pb2.ExecuteRequest, wishes: adapter_pb2.ExecuteRequest
    ) -> Iterator[None]:
        """Let a run through that has its place, for the attempt that the block is; its breaker hears how that ended.

        Args:
            run: the run.
            request: what its adapter will get.
            wishes: what the caller says of its admission.

        Raises:
            DragomanError: BREAKER_OPEN.
        """
        adapter = run.host.record
        key = self._key(adapter, request)
        if not run.is_ending:
            self._admit(key, run, is_forced=wishes.admission.ignore_breaker)
        assert run.course is not None
        run.course.at_work = lambda: self._works(adapter, request, run)
        try:
            yield
        finally:
            # What it says of its settings may be known only since it was started for this run.
            known = self._key(adapter, request)
            if known != key:
                self._breakers.release(key, run.run_id)
            self._note(known, run)

    def _key(self, adapter: AdapterRecord, request: adapter_pb2.ExecuteRequest) -> Key:
        login, keyed = login_of(request, adapter.traits), self._keeping.digests.keyed
        return Key(adapter.type, keyed(login.given), keyed(login.settings))

    def _admit(self, key: Key, run: Run, *, is_forced: bool) -> None:
        """Ask the breaker for a run that has its place: it may have opened while the run waited for that."""
        opened = self._breakers.admit(key, run.run_id, self._scene.clock.time(), is_forced=is_forced)
        if opened is not None:
            raise _is_open(run, key.adapter, opened)
        if self._breakers.is_probe(key, run.run_id):
            self._scene.changes.tell()

    async def keep(self, run: Run, work: Awaitable[None]) -> None:
        """Count a run that another router admitted while ``work`` goes on; it has a place even if there is none."""
        ticket = self._places.take(run.record.adapter, None, lambda: None)
        try:
            await work
        finally:
            self._places.leave(ticket)

    @contextlib.asynccontextmanager
    async def _room(self, run: Run, wait_s: float) -> AsyncIterator[None]:
        record = run.host.record
        most = record.description.capabilities.max_concurrent_runs if record.description is not None else 0
        limit, adapter, granted = self._places.limit(record.type, record.names, most), record.type, asyncio.Event()
        is_crowded = self._places.waiting(adapter) >= MOST_WAITING
        ticket = self._places.take(adapter, limit, granted.set)
        try:
            if not granted.is_set() and wait_s and not is_crowded:
                await self._wait(run, granted, wait_s)
            if not granted.is_set() and not run.is_ending:
                raise self._full(adapter, limit, waited=bool(wait_s))
            yield
        finally:
            self._places.leave(ticket)

    async def _wait(self, run: Run, granted: asyncio.Event, wait_s: float) -> None:
        run.tell(pb.State(phase=pb.RUN_PHASE_QUEUED, reason=f"waits for a place at {run.record.adapter!r}"))
        run.log.info("run waits for a place", longest_s=wait_s)
        self._scene.changes.tell()
        await first_of(
            asyncio.ensure_future(granted.wait()), asyncio.ensure_future(run.over.wait()), timeout_s=wait_s
        )
        run.record.phase = pb.RUN_PHASE_STARTING if not run.is_ending else run.record.phase
        self._scene.changes.tell()

    def _full(self, adapter: str, limit: int | None, *, waited: bool) -> DragomanError:
        told = "and no place came free in time" if waited else "admission.longest_wait lets a run wait for a place"
        return DragomanError(
            Reason.TOO_MANY_RUNS,
            f"the adapter {adapter!r} has as many runs as it may have, {limit}; {told}",
            {"adapter": adapter, "limit": str(limit)},
            retry_after_s=_RETRY_S,
        )

    def _note(self, key: Key, run: Run) -> None:
        was_probe = self._breakers.is_probe(key, run.run_id)
        result = run.held_back[0].result if run.held_back is not None else run.record.result
        if result is None or run.course is None:
            self._breakers.release(key, run.run_id)
            if was_probe:
                self._scene.changes.tell()
            return
        now = self._scene.clock.time()
        has_changed = self._breakers.note(key, run.run_id, result, now, did_work=run.course.did_work)
        if has_changed:
            open_ = bool(self._breakers.opened(key.adapter, now))
            _log.warning("breaker changed", adapter=key.adapter, run_id=run.run_id, open=open_)
        if has_changed or was_probe:
            self._scene.changes.tell()

    def _works(self, adapter: AdapterRecord, request: adapter_pb2.ExecuteRequest, run: Run) -> None:
        """Take note that a run's agent works: its login does, and nobody need wait for the run's end."""
        assert run.course is not None
        run.course.at_work = lambda: None
        if self._breakers.works(self._key(adapter, request), run.run_id):
            _log.info("breaker closed", adapter=adapter.type, run_id=run.run_id, why="its probe works")
            self._scene.changes.tell()

    def mended(self, adapter: str, since: float) -> None:
        """Take note that the machine's own login is good again, as it was looked at then."""
        if self._breakers.reset(adapter, since):
            _log.info("breaker closed", adapter=adapter, why="its login was mended")
            self._scene.changes.tell()

    def next_end_s(self) -> float | None:
        """Return after how many seconds ``remarks`` are others though nothing happens; ``None`` if they stay."""
        return self._breakers.next_end_s(self._scene.clock.time())

    def remarks(self, adapter: str) -> list[str]:
        """Return what keeps runs from an adapter now."""
        told = []
        for key, opened in self._breakers.opened(adapter, self._scene.clock.time()):
            whose = "of some requests" if key.login else "of this machine"
            which = f"{whose}, by some settings," if key.settings else whose
            told.append(f"runs with a login {which} are refused for {math.ceil(opened.wait_s)} s: {opened.told}")
        if waiting := self._places.waiting(adapter):
            told.append(f"runs that wait for a place: {waiting}")
        return told

    def _candidates(self, failed: str) -> list[str]:
        now = self._scene.clock.time()
        found = candidates(self.detections(), failed)
        return [name for name in found if not any(not key.login for key, _ in self._breakers.opened(name, now))]


def _is_open(run: Run, adapter: str, opened: Open) -> DragomanError:
    """Return the error for a run that is kept away: it says what a result would say of that failure."""
    more = {"failure_message": opened.message, "login_url": opened.login_url}
    if may_others(opened.cause) and run.course is not None and run.course.is_alone:
        more["candidates"] = ",".join(run.suggest())
    return DragomanError(
        Reason.BREAKER_OPEN,
        f"runs of {adapter!r} with this login failed just now: {opened.told}",
        {
            "adapter": adapter,
            "failure_kind": pb.FailureKind.Name(opened.cause),
            **{key: value for key, value in more.items() if value},
        },
        retry_after_s=max(opened.wait_s, 0.1),
    )
