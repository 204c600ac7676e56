"""A run under any sequence of events and inputs: its readers see one stream in order, with one end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.event_buffer import Reader
from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.protocol.order import OrderChecker
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.model.assignment import Dispatched
from dragoman.router.model.run_record import RunRecord, adapter_lost
from dragoman.router.model.tasks import Tasks
from dragoman.router.policy.next_step import Rules
from dragoman.router.runs import inputs as to
from dragoman.router.runs import state as states
from dragoman.router.runs.actor import Run, RunHost
from dragoman.router.runs.course import Course
from dragoman.router.runs.intake import EventIntake
from dragoman.router.runs.sessions import RunSession
from dragoman.router.runs.state import ImpossibleInputError
from dragoman.router.storage.ledger import RunLedger
from dragoman.router.storage.reader import StoredEventReader
from dragoman.router.storage.store import Store
from dragoman.router.system import SystemClock
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.router.runs.unlogged import Unlogged, take

ERROR = DragomanError(Reason.ADAPTER_UNAVAILABLE, "unavailable")
FAILED = pb.Result(
    outcome=pb.OUTCOME_FAILED, failure=pb.Failure(kind=pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, message="x")
)


@pytest.fixture(autouse=True)
def no_impossible_inputs() -> None:
    """Not here: these tests try them."""


class World:
    """A run, and what may happen to it."""

    def __init__(self) -> None:
        spec = SimpleNamespace(launch=None, address="unix:/a")
        listed = SimpleNamespace(
            spec=spec, type="fake", description=None, is_registered=False, declares=lambda _: False
        )
        backend: Any = SimpleNamespace(record=listed)
        self.instance: Any = SimpleNamespace(channel=SimpleNamespace(address="unix:/a"), instance_id="i")
        self.closed: list[Run] = []
        host = RunHost(SystemClock(), Tasks(), closed=self.closed.append)
        record = RunRecord(run_id="r", adapter="fake", accepted_at=0.0)
        self.run = Run(record, cast("AdapterBackend", backend), host)
        self.run.ledger = cast("RunLedger", Unlogged())
        self.run.course = Course(Rules(adapter_pb2.Fallback(), 5))
        self.intake = EventIntake(self.run, SystemClock())
        self.reader: Reader = self.run.fanout.reader()
        self.seen: list[bytes] = []

    async def event(self, kind: str) -> None:
        """Have the adapter send its next event; the stream says "started" first."""
        record = self.run.record
        if not states.is_at_adapter(self.run.state):
            return
        if isinstance(self.run.state, states.Reconnecting):
            self.run.send(to.Reconnected())
        if record.validator.phase is not None and record.validator.phase.value in {"initial", "between"}:
            kind = "started"
        event = pb.AgentEvent(sequence=record.last_sequence + 1, run_id="r", attempt=record.attempt)
        match kind:
            case "started":
                self.run.course = Course(Rules(adapter_pb2.Fallback(), 5))
                event.attempt += 1
                event.started.SetInParent()
            case "failed":
                event.result.CopyFrom(FAILED)
            case "result":
                event.result.outcome = pb.OUTCOME_SUCCEEDED
            case _:
                event.log.SetInParent()
        await take(self.intake, event.SerializeToString())

    async def assign(self) -> None:
        self.run.assign(cast("AdapterInstance", self.instance))

    async def end_attempt(self) -> None:
        if isinstance(self.run.state, states.Deciding) and self.run.state.ended is None:
            ending = asyncio.ensure_future(self.run.end_attempt("", "again"))
            await asyncio.sleep(0)
            if ending.done():
                ending.result()

    async def release(self) -> None:
        if isinstance(self.run.state, states.Deciding) and self.run.state.ended is None:
            await self.intake.release()

    async def pause(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


def sent(event: to.Input) -> Callable[[World], Awaitable[None]]:
    async def send(world: World) -> None:
        world.run.send(event)

    return send


OPERATIONS: dict[str, Callable[[World], Awaitable[None]]] = {
    "assign": World.assign,
    "end attempt": World.end_attempt,
    "release": World.release,
    "pause": World.pause,
    **{kind: lambda world, kind=kind: world.event(kind) for kind in ("log", "failed", "result")},  # type: ignore[misc]
    **{
        type(event).__name__: sent(event)
        for event in (
            *(to.Accepted(), to.Declined(), to.Disconnected(), to.Reconnected(), to.Replayed()),
            *(to.StatusReported(pb.State(phase=pb.RUN_PHASE_QUEUED)), to.CancelRequested(), to.Refused(ERROR)),
            *(to.LeaseLost(), to.Abandoned(FAILED)),
        )
    },
    "lost": sent(to.Abandoned(pb.Result(outcome=pb.OUTCOME_LOST, failure=pb.Failure(message="x")))),
}


async def lived(names: list[str]) -> None:
    world = World()
    run = world.run
    for name in names:
        is_over = states.is_over(run.state)
        published = run.fanout.last_sequence
        with contextlib.suppress(ImpossibleInputError):
            await OPERATIONS[name](world)
        assert not is_over or run.fanout.last_sequence == published, "nothing comes after the end"
    run.send(to.CancelRequested())
    if isinstance(run.state, states.Live):
        run.send(to.Abandoned(adapter_lost("fake", "is gone")))
    assert await run.until(states.is_over, 9)
    assert world.closed == [run]
    run.end_streams()
    checker = OrderChecker()
    sequences = []
    while not isinstance(run.state, states.Superseded) and (data := await world.reader.read()):
        for event in map(pb.AgentEvent.FromString, data):
            checker.observe(event)
            sequences += [event.sequence] if event.sequence else []
    if isinstance(run.state, states.Finished):
        checker.finish()
        assert sequences == list(range(1, run.record.last_sequence + 1))
        assert run.record.result is not None
    else:
        assert run.refusal is not None


@given(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=25))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_its_readers_see_one_stream_with_one_end(names: list[str]) -> None:
    asyncio.run(lived(["assign", *names]))


@pytest.mark.parametrize(
    "names",
    [
        ["log", "log", "result"],
        ["log", "failed", "end attempt", "pause", "assign", "log", "result"],
        ["log", "failed", "end attempt", "CancelRequested"],
        ["log", "failed", "CancelRequested", "release"],
        ["log", "failed", "CancelRequested", "end attempt"],
        ["log", "failed", "end attempt", "lost"],
        ["log", "failed", "end attempt", "LeaseLost"],
        ["log", "Disconnected", "log", "result", "LeaseLost"],
        ["Declined", "StatusReported", "CancelRequested"],
    ],
)
def test_so_it_is_where_chance_seldom_leads(names: list[str]) -> None:
    asyncio.run(lived(["assign", *names]))


async def test_a_cancel_while_the_session_of_a_failed_attempt_is_stored_lets_its_result_be_the_runs() -> None:
    world = World()
    run = world.run
    await world.assign()
    await world.event("log")
    await world.event("failed")

    async def hear(_event: pb.AgentEvent) -> None:
        run.send(to.CancelRequested())

    run.session = cast("RunSession", SimpleNamespace(hear=hear))
    await run.end_attempt("", "again")
    assert isinstance(run.state, states.Deciding)
    assert run.state.progress.is_cancelling
    await world.intake.release()
    assert await run.until(states.is_over, 9)
    assert run.record.result is not None
    assert run.record.result.outcome == pb.OUTCOME_FAILED


async def test_what_waits_for_a_state_is_woken_by_a_moment_of_it() -> None:
    run = World().run
    waiting = asyncio.ensure_future(run.until(lambda state: isinstance(state, states.Starting)))
    await asyncio.sleep(0)
    run.send(to.Assigned(Dispatched("unix:/a", "i")))
    run.send(to.Declined())
    assert await asyncio.wait_for(waiting, 9)
    assert isinstance(run.state, states.Queued)
    assert not await run.until(states.is_over, 0.01)


async def test_an_input_that_cannot_happen_raises_and_changes_nothing() -> None:
    run = World().run
    before = run.state
    with pytest.raises(ImpossibleInputError):
        run.send(to.Reconnected())
    assert run.state is before
    run.send(to.CancelRequested())
    assert run.is_ending


@pytest.mark.parametrize(("count", "size"), [(64, 4_040), (256, 1_000), (1, MAX_EVENT_BYTES)])
async def test_no_batch_and_no_event_drops_a_reader_that_keeps_up(count: int, size: int) -> None:
    run = World().run
    run.ledger.logged = 0  # the log has nothing of it yet
    reader = StoredEventReader(cast("Store", None), "r", 0, fanout=run.fanout)
    run.fanout.send_ephemeral(b"notice")
    batch = [pb.AgentEvent(sequence=1 + number, text=pb.Text(delta="x" * (size - 20))) for number in range(count)]
    for event in batch:
        run.fanout.append(event.SerializeToString(), event.sequence)
    events: list[bytes] = []
    while reader.last_sequence < count:
        events += await reader.read()
    assert events == [b"notice", *(event.SerializeToString() for event in batch)]
