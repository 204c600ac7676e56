"""One run in the router: its events, who reads them, who holds it, and how it is ended."""

import asyncio
from collections.abc import Callable, Iterator

import structlog
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.fanout import Fanout
from dragoman.protocol.holding import Holders
from dragoman.protocol.limits import HEARTBEAT_AFTER_S
from dragoman.protocol.wire import split
from dragoman.router._domain.conduct import ProtocolViolationError
from dragoman.router._domain.fallback import Course, ended, wants_candidates
from dragoman.router._domain.run_states import RunState, Step, after
from dragoman.router._domain.runs import VIOLATION_CODE, RunRecord, between, lost, never_started
from dragoman.router._rpc.endpoint import Endpoint
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.link import elsewhere
from dragoman.router._rpc.scene import Scene
from dragoman.router._rpc.sessions import RunSession
from dragoman.router._store.database import BUSY_S
from dragoman.router._store.writer import LoggedRun, Writer
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import DecodeError

_MOVED_S = 5.0
"""How long a run waits until it is seen that the log can be written, before it goes to another adapter."""
_PLACED_S = BUSY_S + 1.0
"""How long a run waits until it is written down which process gets it: longer than for what others have locked."""
_HEARTBEAT_S = HEARTBEAT_AFTER_S
_TOLD_S = 2.0
"""How long the end of a run waits until it is written down; for longer only a log keeps it that is out of order."""

_log = structlog.get_logger("dragoman.router")


def _nothing(*_of: object) -> None:
    """Do nothing."""


class Run:
    """One run.

    Args:
        record: what is kept of it.
        host: the place of its adapter.
        scene: what the router's parts share.
        on_over: called once it is over.
        first_sequence: of the first event that will come.
    """

    awaits_request: bool = False
    """Whether the router that accepted it is gone, and no adapter ever had it: its request has to come again."""
    is_doubtful: bool = False
    """Whether its router died when it was about to reach its adapter, or just had: nothing more is written down."""
    catches_up: bool = False
    """Whether it was begun by others; then ``replayed`` says when all is here that came before."""
    has_waited: bool = False
    """Whether it was told to be waiting for a place: then it is known, and ends with a result."""
    cwd: str = ""
    """Where the agent works, as far as it was told."""
    is_turning: bool = False
    """Whether it is between two attempts, at no adapter."""
    is_given_up: bool = False
    """Whether another router has taken it."""
    refusal: DragomanError | None = None
    """The status that it ended with instead of a result."""
    _passed_over: tuple[str, ...] = ()
    """Why adapters did not take it, as far as no stored event tells that yet."""
    _writer: Writer | None = None
    _logged: LoggedRun | None = None

    def __init__(
        self,
        record: RunRecord,
        host: Host,
        scene: Scene,
        on_over: "Callable[[Run], None]",
        *,
        first_sequence: int = 1,
    ) -> None:
        self.record = record
        self.host = host
        self.fanout = Fanout(record.run_id, first_sequence=first_sequence)
        self.endpoint: Endpoint | None = None
        """The process it is pinned to; ``None`` until there is one."""
        self.kept = asyncio.Event()
        """Set once it is written down that there is this run, or it is known that there is not."""
        self.accepted = asyncio.Event()
        """Set once the adapter has the run."""
        self.over = asyncio.Event()
        """Set once its result is told, it was refused, or another router has it."""
        self.state = RunState.WAITING
        """Where the router stands with it; see ``_domain.run_states``."""
        self.replayed = asyncio.Event()
        """Set once what the adapter had kept of it is here."""
        self.settled = asyncio.Event()
        """Set once it is known whether the adapter of a run that was taken over ever got it."""
        self.streams_end = asyncio.Event()
        """Set when its readers' streams are to end before it does, as the router stops."""
        self.work: asyncio.Task[None] | None = None
        """What follows it; cancelled when another router takes it."""
        self.given_up: Callable[[Run], None] = _nothing
        """Called when another router has taken it."""
        self.held: Callable[[], None] = _nothing
        """Called when somebody begins to hold it."""
        self.session: RunSession | None = None
        """What becomes of its session; ``None`` if that is not stored here."""
        self.hosts = [host]
        """All whose adapters it was given to, the present one last."""
        self.course: Course | None = None
        """What may follow a failure; ``None`` for a run that was begun by others."""
        self.cancelling = asyncio.Event()
        """Set once somebody wants it ended: nothing is tried again after that."""
        self.held_back: tuple[pb.AgentEvent, bytes] | None = None
        """The result of an attempt that another one may follow."""
        self.failed: pb.Result | None = None
        """How the last attempt ended that was followed by another."""
        self._failed_at = host, ""
        """Where that attempt was: the adapter's place, and its process."""
        self.suggest: Callable[[], list[str]] = list
        """Returns the adapters that could take over from the present one."""
        self.standing = b""
        """Where it stands while no adapter has it, for who joins it meanwhile; empty if there is nothing to say."""
        self._early: list[bytes] = []
        self._beating: asyncio.TimerHandle | None = None
        self._clock = scene.clock
        self._tasks = scene.tasks
        self._on_over = on_over
        self._holders: Holders | None = None
        self.log = _log.bind(run_id=record.run_id, adapter=record.adapter)

    @property
    def run_id(self) -> str:
        """Its id."""
        return self.record.run_id

    @property
    def is_ending(self) -> bool:
        """Whether it is known how it ends, which is told once it is written down; or another router tells."""
        return self.over.is_set() or self.record.is_over

    @property
    def is_between(self) -> bool:
        """Whether an attempt of it has failed, and another one may follow."""
        return self.held_back is not None or self.is_turning

    @property
    def is_at_no_adapter(self) -> bool:
        """Whether no adapter ever had it, as far as this router knows."""
        return self.endpoint is None and self.failed is None and not self.is_ending and not self.catches_up

    @property
    def holders(self) -> Holders:
        """Who keeps it alive."""
        assert self._holders is not None
        return self._holders

    @holders.setter
    def holders(self, holders: Holders) -> None:
        self._holders = holders

    def step(self, step: Step) -> None:
        """Go from one state to the next; a step that cannot be taken is a fault of ours, and told in the log."""
        following = after(self.state, step)
        if following is None:
            self.log.error("impossible step of a run", state=self.state.value, step=step.name)
        else:
            self.state = following

    def keep(self, writer: Writer, logged: LoggedRun) -> None:
        """Have its events kept from now on."""
        self._writer, self._logged = writer, logged

    async def recorded(self) -> bool:
        """Wait until it is written down that there is this run; False if another router has one of its id."""
        if self._writer is None or self._logged is None or self._logged.is_begun:
            return True
        return await self._writer.begin(self._logged)

    async def placed(self) -> None:
        """Wait until it is written down which process gets it, or until it is known that the log fails."""
        self.write()
        if self._writer is not None and self._logged is not None and not self._writer.failing:
            await self._writer.flushed(self._logged, _PLACED_S)

    def write(self) -> None:
        """Have what is known of it written, and what waits."""
        if self._writer is not None and self._logged is not None:
            self._writer.changed(self._logged)

    async def written(self, timeout_s: float) -> None:
        """Wait until all that was told so far is written down, but no longer than that."""
        if self._writer is not None and self._logged is not None:
            await self._writer.flushed(self._logged, timeout_s)

    def pin(self, endpoint: Endpoint) -> None:
        """Say which process has it from now on."""
        if self.endpoint is not endpoint:
            self.step(Step.PINNED)
        self.endpoint = endpoint
        self.standing = b""
        self.is_turning = False
        self.record.instance_id = endpoint.instance_id
        self.log = self.log.bind(instance=endpoint.instance_id)

    async def take(self, message: bytes) -> None:
        """Take what the adapter sent, once it may be told to others.

        Raises:
            ProtocolViolationError: it is not what the contract allows.
        """
        for event, data in _events(message):
            # Decided once: it may be cancelled while this waits, and what was not heard here is heard when released.
            holds_back = self._holds_back(event, len(data))
            if self.session is not None and not holds_back:
                await self.session.hear(event)
            if self._writer is not None and self._logged is not None:
                await self._writer.reserved(self._logged, event.sequence)
            if self.is_ending:
                return  # meanwhile
            self._take_one(event, data, holds_back=holds_back)

    def _take_one(self, event: pb.AgentEvent, data: bytes, *, holds_back: bool) -> None:
        if self.held_back is not None:
            raise ProtocolViolationError("an event came after the result")
        if self.is_doubtful:
            self._settle()
        if not event.sequence:
            self._take_ephemeral(event, data)
        elif holds_back:
            self.held_back = event, data
            self.step(Step.FAILED)
        else:
            self._take_durable(event, data)

    def _settle(self) -> None:
        self.is_doubtful = False
        self.accepted.set()
        self.settled.set()

    def _take_durable(self, event: pb.AgentEvent, data: bytes) -> None:
        kind = event.WhichOneof("body")
        withheld = ""
        if kind == "result":
            if self.course is not None and not self.cancelling.is_set():
                withheld = self.course.withheld(event.result)
            # Put behind, not written anew: what a later revision says in a result stays as it came.
            more = pb.AgentEvent(result=self._own_words(event.result, withheld))
            data += more.SerializeToString() if more.result.ListFields() else b""
            event.MergeFrom(more)
        if not self.record.take(event, len(data), self._clock.time()):
            return
        self.accepted.set()
        if withheld:
            self.remark("fallback_withheld", withheld)
        self._note(event, kind)
        if self.record.result is None:
            self._append(data, event.sequence)
        else:
            self._end(data, event.sequence, Step.ENDED)

    def _own_words(self, result: pb.Result, withheld: str) -> pb.Result:
        """Return what the router adds to an adapter's result."""
        more = pb.Result()
        is_anyones = withheld or (self.course is not None and self.course.is_alone)
        if is_anyones and wants_candidates(result):
            tried = {host.record.type for host in self.hosts}
            more.fallback_candidates.extend(name for name in self.suggest() if name not in tried)
        told = [text for text in (*self._passed_over, withheld) if text]
        if told and result.HasField("failure"):
            more.failure.errors.extend(told)
        # Odd, and so never zero nanoseconds, which would leave the adapter's in their place.
        took_ns = int((self._clock.time() - self.record.accepted_at) * 1e9) | 1
        if (self.record.attempt > 1 or self.has_waited) and took_ns > result.duration.ToNanoseconds():
            more.duration.FromNanoseconds(took_ns)
        return more

    def _note(self, event: pb.AgentEvent, kind: str | None) -> None:
        if self.course is None:
            return
        if kind == "started":
            self.cwd = event.started.cwd or self.cwd
            description = self.host.record.description
            features = description.capabilities.items if description is not None else []
            self.course.tells_tools = any(item.feature == pb.FEATURE_TOOL_START for item in features)
        self.course.note(event, kind)

    def _holds_back(self, event: pb.AgentEvent, size: int) -> bool:
        return (
            event.HasField("result")
            and bool(event.sequence)
            and self.course is not None
            and not self.cancelling.is_set()
            and self.course.may_go_on(event.result)
            and self.record.conduct.would_take(event, "result", size)
        )

    async def release(self) -> None:
        """Let the result that was held back be the run's."""
        assert self.held_back is not None
        event, data = self.held_back
        if self.session is not None:
            await self.session.hear(event)
        self.held_back = None
        if not self.is_ending:
            self._take_durable(event, data)

    async def may_turn(self) -> bool:
        """Tell whether another attempt may follow: only while the log can be written, which must know of it first."""
        if self._writer is None or self._logged is None:
            return True
        return await self._writer.flushed(self._logged, _MOVED_S)

    async def turn(self, next_adapter: str, reason: str) -> None:
        """End the attempt whose result was held back, as another one follows.

        It is written down before it is told: a router that takes the run over must not hear the adapter's result
        under the same sequence. Should the log fail just then, the run waits for it, unless it is cancelled.
        """
        assert self.held_back is not None
        failed = self.held_back[0].result
        told = ended(failed, next_adapter, " ".join([reason, *self._passed_over]))
        self._passed_over = ()
        if self.session is not None:
            await self.session.hear(pb.AgentEvent(attempt_ended=told))
        self.is_turning = True
        sequence, data = self.record.turn(told, self._clock.time())
        writer, logged = self._writer, self._logged
        if writer is not None and logged is not None:
            writer.append(logged, sequence, data)
            while not self._is_called_off() and not await writer.flushed(logged, _MOVED_S):
                self.log.warning("attempt ended, and not written yet", sequence=sequence)
                if logged.is_taken:
                    self.give_up()
                    break
        if self.is_ending:
            return
        self.fanout.append(data, sequence)
        self.failed, self.held_back, self.endpoint = failed, None, None
        self._failed_at = self.host, self.record.instance_id
        self.step(Step.ANOTHER)
        self.accepted.clear()
        self.log.info("attempt ended", sequence=sequence, failure=pb.FailureKind.Name(failed.failure.kind))

    def _is_called_off(self) -> bool:
        return self.is_ending or self.cancelling.is_set()

    def unpin(self) -> None:
        """Say that the adapter that was asked did not take it: it is at none."""
        if self.state in {RunState.FOLLOWED, RunState.BROKEN}:
            self.step(Step.ANOTHER)
        self.endpoint = None
        self.is_turning = self.failed is not None

    def never_came(self) -> None:
        """Say that the adapter of a doubtful run never got it: it is at none, and its request has to come again."""
        self.step(Step.NEVER_CAME)
        self.endpoint = None
        self.is_doubtful, self.awaits_request = False, True
        self.write()
        self.settled.set()
        if self.cancelling.is_set():
            self.stop_waiting()

    def move(self, host: Host) -> None:
        """Say which adapter has it from now on."""
        self.host = host
        self.hosts.append(host)
        self.record.adapter = host.record.type
        self.log = self.log.bind(adapter=host.record.type)
        if self.session is not None:
            self.session.begin_anew()

    def tell(self, state: pb.State) -> None:
        """Tell present readers, and those that are about to come, where it stands before its adapter has it."""
        if self.is_ending:
            return  # meanwhile
        self.record.phase = state.phase
        self.has_waited = self.has_waited or state.phase == pb.RUN_PHASE_QUEUED
        self.write()
        self.standing = self.record.own_event(self._clock.time(), state=state)
        self._tell(self.standing)

    def _tell(self, data: bytes) -> None:
        if not self.fanout.readers and not self.record.has_events:
            self._early.append(data)
        self.fanout.send_ephemeral(data)

    def beat(self) -> None:
        """Tell present readers now and then that it lives, as long as no adapter does."""
        if self.over.is_set() or self.streams_end.is_set():
            return
        if self.endpoint is None:
            beat = pb.Heartbeat(last_sequence=self.fanout.last_sequence)
            self.fanout.send_ephemeral(self.record.own_event(self._clock.time(), heartbeat=beat))
        self._beating = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self.beat)

    def tell_early(self) -> None:
        """Tell what was said before anybody read."""
        early, self._early = self._early, []
        for data in early:
            self.fanout.send_ephemeral(data)

    def _append(self, data: bytes, sequence: int) -> None:
        self.fanout.append(data, sequence)
        if self._writer is not None and self._logged is not None:
            self._writer.append(self._logged, sequence, data)

    def _take_ephemeral(self, event: pb.AgentEvent, data: bytes) -> None:
        kind = event.WhichOneof("body")
        self.record.conduct.ephemeral(event, kind, len(data))
        if kind == "gap":
            self.record.skip(event.gap)
            if self.course is not None:
                self.course.miss()
        elif kind == "replay_done":
            # All that its adapter ever said is here; a router before this one cannot have told more.
            self.record.reserved = 0
            if self.catches_up and not self.replayed.is_set():
                self.write()  # where it is now: it may say nothing for long, and who asks elsewhere is sent here
            self.replayed.set()
        elif kind != "input_request" or self.record.remember_request(event):
            self.fanout.send_ephemeral(data)

    def remark(self, code: str, text: str, cause: str = "", *, each_time: bool = False) -> None:
        """Make a remark of the router's own, to present readers and for ``GetRun``.

        One that was made before is only counted, as who reads has seen it; but for what comes and goes.
        """
        if self.record.remark(text) or each_time:
            notice = pb.Notice(severity=pb.SEVERITY_WARNING, code=code, message=text)
            self._tell(self.record.own_event(self._clock.time(), notice=notice))
        fields = {"cause": cause} if cause else {}
        self.log.warning("run", remark=code, **fields)

    def pass_over(self, code: str, text: str) -> None:
        """Make a remark that an adapter did not take it; the next stored event that can says so too."""
        self.remark(code, text)
        self._passed_over += (text,)

    def lose(self, why: str) -> None:
        """End it: its adapter is gone, and nobody knows how it ended."""
        message = f"The adapter {self.record.adapter!r} {why}. Nobody knows how the run ended."
        self._end_by_word(lost(pb.FAILURE_KIND_ADAPTER_LOST, "adapter_lost", message))

    def distrust(self, error: ProtocolViolationError) -> None:
        """End it: what its adapter sends cannot be followed."""
        message = f"The adapter {self.record.adapter!r} broke the contract: {error}. It is no longer followed."
        self._end_by_word(lost(pb.FAILURE_KIND_INTERNAL, VIOLATION_CODE, message))

    def fail(self) -> None:
        """End it: a fault of the router's own."""
        message = "The router failed to follow the run. Its log has more under the run's id."
        self._end_by_word(lost(pb.FAILURE_KIND_INTERNAL, "router_failed", message))

    def stop_waiting(self) -> None:
        """End it as cancelled, if no adapter has it yet; then none gets it."""
        if self.endpoint is not None or (self.catches_up and not self.awaits_request):
            return  # one has it, or had it and is being looked for
        if self.failed is None:
            told = never_started("The run was cancelled before its adapter was ready.")
        else:
            told = between(self.failed, "The run was cancelled between two attempts.")
        self._end_by_word(told, Step.STOPPED)

    def end_as(self, failed: pb.Result) -> None:
        """End it as its last attempt ended, and where that was, as none follows after all; or, if none began, so."""
        self.host, self.record.instance_id = self._failed_at
        self.record.adapter = self.host.record.type
        self.log = self.log.bind(adapter=self.record.adapter, instance=self.record.instance_id)
        result = pb.Result()
        result.CopyFrom(failed)
        self._end_by_word(result, Step.ENDED)

    def refuse(self, error: DragomanError) -> None:
        """End it without a result: the call was wrong, or there is no adapter. The id may be used again."""
        if not self.is_ending:
            self.refusal = error
            self.step(Step.REFUSED)
            self.log.info("run refused", reason=error.reason.value if error.reason else error.code.name)
            self._close()

    def give_up(self) -> None:
        """Let go of it: another router has taken it, or had it before, and tells how it goes on."""
        if self.over.is_set():
            return
        self.log.warning("run of another router")
        self.is_given_up, self.refusal = True, elsewhere(self.run_id)
        self.step(Step.TAKEN)
        self._writer = self._logged = None
        self._stop_beating()
        # Whoever waits for anything of it is to ask again, and is sent there.
        for event in (self.streams_end, self.kept, self.replayed, self.settled, self.accepted, self.over):
            event.set()
        if self._holders is not None:
            self._holders.close()
        if self.work is not None:
            self.work.cancel()
        self.given_up(self)

    def _end_by_word(self, result: pb.Result, step: Step = Step.LOST) -> None:
        if self.is_ending:
            return
        if self._passed_over and result.HasField("failure"):
            result.failure.errors.extend(self._passed_over)
        sequence, data = self.record.end(result, self._clock.time())
        self._end(data, sequence, step)

    def _end(self, data: bytes, sequence: int, step: Step) -> None:
        self.awaits_request = False
        if self._writer is None or self._logged is None:
            self._tell_end(data, sequence, step)
            return
        self._writer.over(self._logged)
        self._writer.append(self._logged, sequence, data)
        self._tasks.start(self._tell_written_end(data, sequence, step), f"end {self.run_id}")

    async def _tell_written_end(self, data: bytes, sequence: int, step: Step) -> None:
        """Tell how it ended once that is written down: should this router die, nobody may find another end there."""
        writer, logged = self._writer, self._logged
        if writer is not None and logged is not None:
            # Also where the log fails just now: mostly it is tried again with success within that time.
            await writer.flushed(logged, _TOLD_S)
            if logged.is_taken:
                self.give_up()
        if not self.is_given_up:
            self._tell_end(data, sequence, step)

    def _tell_end(self, data: bytes, sequence: int, step: Step) -> None:
        assert self.record.result is not None
        self.step(step)
        skipped = pb.GAP_REASON_EVICTED if step is Step.ENDED else pb.GAP_REASON_NOT_DURABLE
        self.fanout.append(data, sequence, skipped=skipped)
        self.log.info("run ended", outcome=pb.Outcome.Name(self.record.result.outcome), sequence=sequence)
        self._close()

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    def _close(self) -> None:
        self._stop_beating()
        self.fanout.close()
        self.over.set()
        self.kept.set()
        self.replayed.set()
        self.settled.set()
        self.accepted.set()
        if self._holders is not None:
            self._holders.close()
        self._on_over(self)


def _events(message: bytes) -> Iterator[tuple[pb.AgentEvent, bytes]]:
    try:
        event = pb.AgentEvent.FromString(message)
    except DecodeError as error:
        raise ProtocolViolationError("what came is no event") from error
    if event.HasField("batch"):
        # Not asked for, and right all the same.
        for data in split(message):
            yield pb.AgentEvent.FromString(data), data
    else:
        yield event, message
