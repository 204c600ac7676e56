"""Several events in one message: asked of adapters that have it, sent to callers that ask, not seen otherwise."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from dragoman.protocol.errors import Reason
from dragoman.protocol.limits import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from dragoman.protocol.order import OrderChecker
from dragoman.protocol.server import Context
from dragoman.protocol.wire import join, unroll
from dragoman.router.model.assignment import Dispatched
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.tasks import Tasks
from dragoman.router.runs.actor import Run, RunHost
from dragoman.router.runs.inputs import Accepted, Assigned
from dragoman.router.runs.intake import EventIntake
from dragoman.router.runs.state import is_over
from dragoman.router.storage.ledger import RunLedger
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.streams import RUN_ID, batched, durable, runs
from tests.router.harness import Caller, Proxy, Stream, config, kinds, routing
from tests.router.runs.unlogged import Unlogged, take
from tests.router.sidecar import Sidecar, serving
from tests.router.test_run import BACKEND, CLOCK
from tests.router.test_runs import beside, event

BURST = ("a", {"flood": [600, 10, 600]}, {"end": "SUCCEEDED"})
BATCHING = pb.Batching(max_delay=duration_pb2.Duration(seconds=1))


def single(messages: Sequence[event_pb2.AgentEvent]) -> list[event_pb2.AgentEvent]:
    """Return the events of messages, whose order is checked."""
    checker = OrderChecker()
    checker.observe_all(messages)
    checker.finish()
    return [event for message in messages for event in unroll(message)]


async def rest_of(stream: Stream) -> list[event_pb2.AgentEvent]:
    return [event for event in await stream.rest() if not event.HasField("replay_done")]


@pytest.mark.parametrize("has_batches", [True, False])
async def test_who_asks_gets_batches_whatever_the_adapter_sends(folder: Path, has_batches: bool) -> None:
    async with beside(folder, Sidecar(batching=has_batches)) as (caller, sidecar):
        plain = await caller.execute("fake", *BURST, run_id="plain").rest()
        assert len(plain) == 603, "nothing changes for who does not ask"
        messages = await caller.execute("fake", *BURST, run_id="whole", batching=BATCHING).rest()
        assert kinds(single(messages)) == kinds(plain)
        for request in sidecar.requests("Execute"):
            assert request.HasField("batching") == has_batches
            assert not request.batching.HasField("max_delay"), "what the caller said is not passed on"
        if has_batches:
            assert len(messages) < 20
        again = await caller.execute("fake", *BURST, run_id="whole").rest()
        assert [event for event in again if event.sequence] == single(messages), "with or without, it is the same run"


async def check_all_readers(caller: Caller) -> None:
    everything = await rest_of(caller.attach("r"))
    assert len(everything) == 603
    for after in (0, 1, 2, 100, 599, 602, 603):
        messages = await rest_of(caller.attach("r", after, batching=pb.Batching()))
        assert [event for message in messages for event in unroll(message)] == everything[min(after, 602) :]
        assert len(messages) < 10


async def test_readers_join_in_the_middle_of_what_was_a_batch(folder: Path) -> None:
    async with beside(folder) as (caller, _sidecar):
        await caller.execute("fake", *BURST, run_id="r", batching=pb.Batching()).rest()
        await check_all_readers(caller)
    async with routing(config(folder)) as (_, caller):  # another router, which has it from the log
        await check_all_readers(caller)


async def test_live_readers_of_both_kinds_get_the_same(folder: Path) -> None:
    steps = ("a", {"gate": "g"}, *BURST[1:])
    async with beside(folder) as (caller, sidecar):
        first = caller.execute("fake", *steps, run_id="r", batching=pb.Batching())
        begun = await first.until("text")
        streams = [caller.attach("r", 2, batching=pb.Batching() if number % 2 else None) for number in range(4)]
        for stream in streams:
            await stream.until("replay_done")
        sidecar.open("g")
        messages = await first.rest()
        events = single([*begun, *messages])
        assert len(messages) < 20
        for stream in streams:
            rest = await stream.rest()
            assert [event for message in rest for event in unroll(message)] == events[2:]


async def test_a_link_that_breaks_is_followed_on_with_batches(folder: Path) -> None:
    sidecar, proxy = Sidecar(), Proxy(folder / "p.sock", folder / "a.sock")
    await proxy.restore()
    address = f"unix:{folder}/p.sock"
    async with (
        serving(sidecar, f"unix:{folder}/a.sock"),
        routing(config(folder, addresses=(address,))) as (_, caller),
    ):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        steps = (*BURST[:2], {"gate": "g"}, *BURST[1:])
        stream = caller.execute("fake", *steps, run_id="r", batching=pb.Batching())
        begun = await stream.until("batch")
        await proxy.cut()
        sidecar.open("g")
        await proxy.restore()
        events = [event for event in single([*begun, *await stream.rest()]) if event.sequence]
        assert [event.sequence for event in events] == [*range(1, 1204)]
        assert [request.HasField("batching") for request in sidecar.requests("Attach")] == [True]
    await proxy.cut()


async def test_each_adapter_of_a_run_is_asked_for_what_it_has(folder: Path) -> None:
    sidecars = Sidecar("fake"), Sidecar("other", batching=False)
    addresses = f"unix:{folder}/a.sock", f"unix:{folder}/b.sock"
    async with (
        serving(sidecars[0], addresses[0]),
        serving(sidecars[1], addresses[1]),
        routing(config(folder, addresses=addresses)) as (_, caller),
    ):
        for name in ("fake", "other"):
            await caller.until(name, router_pb2.ADAPTER_STATE_READY)
        kind = event_pb2.FAILURE_KIND_QUOTA_EXCEEDED
        fallback = pb.Fallback(adapters=["other"], on=[kind], after_side_effects=True)
        fails = [*BURST[:2], {"failed": "QUOTA_EXCEEDED"}]
        request = pb.ExecuteRequest(adapter="fake", run_id="r", fallback=fallback, batching=pb.Batching())
        request.prompt = json.dumps({"fake": [fails], "other": [list(BURST)]})
        messages = await Stream(caller.adapter.Execute(request)).rest()
        assert single(messages)[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        asked = [sidecar.requests("Execute")[0].HasField("batching") for sidecar in sidecars]
        assert asked == [True, False]


def batch_of(*events: bytes, sequence: int = 3) -> bytes:
    """Return a batch with whatever is given."""
    inner = [event_pb2.AgentEvent.FromString(data) for data in events]
    return event_pb2.AgentEvent(sequence=sequence, batch=event_pb2.Batch(events=inner)).SerializeToString()


TWO = event(2, "text"), event(3, "text")
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (batch_of(), "a batch has 0 events"),
    "nested": (batch_of(event(2, "text"), batch_of(event(3, "text"))), "contains batch (sequence 3)"),
    "an ephemeral event": (batch_of(event(0, "heartbeat"), *TWO), "contains heartbeat"),
    "no body": (batch_of(b"", *TWO), "contains an event"),
    "a result": (batch_of(event(2, "text"), event(3, "result")), "contains result (sequence 3)"),
    "a request": (batch_of(event(2, "input_request"), event(3, "text")), "contains input_request (sequence 2)"),
    "another sequence": (batch_of(*TWO, sequence=4), "up to sequence 3 has sequence 4"),
    "no sequence": (batch_of(*TWO, sequence=0), "up to sequence 3 has sequence 0"),
    "out of order": (batch_of(*reversed(TWO), sequence=2), "sequence 3 followed 1 without a gap event"),
    "one twice": (batch_of(TWO[0], *TWO), "sequence 2 followed 2 in one stream"),
    "a hole": (batch_of(TWO[0], event(4, "text"), sequence=4), "sequence 4 followed 2 without a gap event"),
    "another run's": (batch_of(TWO[0], event(3, "text", run_id="x")), "text (sequence 3) names another run"),
    "too many": (
        batch_of(
            *(event(number, "text") for number in range(2, MAX_BATCH_EVENTS + 3)), sequence=MAX_BATCH_EVENTS + 2
        ),
        f"a batch has {MAX_BATCH_EVENTS + 1} events",
    ),
    "too large": (
        batch_of(*TWO) + b"\xca\x0c\x80\x80\x10" + bytes(MAX_BATCH_BYTES),  # a field of a later revision
        "a batch has 2 events and 2",
    ),
}


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("case", MALFORMED)
async def test_a_batch_against_the_contract_ends_the_run(folder: Path, case: str, declares: bool) -> None:
    data, reported = MALFORMED[case]
    async with beside(folder, Sidecar(batching=declares)) as (caller, sidecar):
        steps = ({"raw": data.hex()}, {"gate": "never"})
        messages = await caller.execute("fake", *steps, run_id="r", batching=pb.Batching()).rest()
        result = single(messages)[-1].result
        assert result.outcome == event_pb2.OUTCOME_LOST
        assert reported in result.failure.message
        await sidecar.gate("called Cancel").wait()


async def test_a_batch_that_was_not_requested_is_taken(folder: Path) -> None:
    async with beside(folder, Sidecar(batching=False)) as (caller, _sidecar):
        many = batch_of(*(event(number, "text") for number in range(2, 5)), sequence=4)
        steps = ({"raw": many.hex()}, {"gate": "g"})
        stream = caller.execute("fake", *steps, run_id="r")
        assert [(await stream.next()).sequence for _ in range(4)] == [1, 2, 3, 4]


def followed() -> tuple[Run, EventIntake]:
    record = RunRecord(run_id=RUN_ID, adapter="fake", accepted_at=0.0)
    run = Run(record, BACKEND, RunHost(CLOCK, Tasks()))
    run.ledger = cast("RunLedger", Unlogged())
    run.send(Assigned(Dispatched("unix:/a", "i")))
    run.send(Accepted())
    return run, EventIntake(run, CLOCK)


async def read_all(run: Run, after: int) -> list[bytes]:
    """Return what a reader of batches is sent of a run that is over."""
    reader, messages = run.fanout.reader(after), list[bytes]()
    while events := await reader.read():
        messages += join(events)
    return messages


@given(runs(), st.lists(st.integers(1, 6), max_size=8), st.data())
def test_batches_are_invisible_to_a_reader_that_unrolls_them(
    events: list[event_pb2.AgentEvent], sizes: list[int], data: st.DataObject
) -> None:
    """However an adapter has put a run's events together, and wherever a reader joins."""
    events[-1].result.outcome = event_pb2.OUTCOME_SUCCEEDED
    events[-1].result.duration.FromSeconds(10**11)  # else the router puts a longer one in its place
    after = data.draw(st.integers(0, len(events)))
    cut = data.draw(st.integers(0, len(events) - 1))

    async def follow() -> list[bytes]:
        run, intake = followed()
        for message in batched(events[:cut], sizes):
            await take(intake, message.SerializeToString())
        # The stream broke, and the next one begins before its end: some come again, batched otherwise.
        run.record.validator.begin_stream()
        for message in batched(events[max(0, cut - 2) :], sizes[1:]):
            await take(intake, message.SerializeToString())
        assert await run.until(is_over, 9)
        return await read_all(run, after)

    messages = [event_pb2.AgentEvent.FromString(message) for message in asyncio.run(follow())]
    OrderChecker(after).observe_all(messages)
    assert [event for message in messages for event in unroll(message)] == (events[after:] or events[-1:])


async def test_a_large_batch_lets_others_in_between() -> None:
    _run, intake = followed()
    await take(intake, event(1, "started", run_id=RUN_ID))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    (message,) = join([durable("text", number).SerializeToString() for number in range(2, MAX_BATCH_EVENTS + 2)])
    beside = asyncio.ensure_future(others())
    await take(intake, message)
    beside.cancel()
    assert turns > 2


class Reneging(Sidecar):
    """An adapter that declares batches and rejects each call that requests them."""

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802
        description = await super().Describe(request, context)
        description.batching = True
        return description


async def test_an_adapter_that_rejects_what_it_declares_is_quoted(folder: Path) -> None:
    async with beside(folder, Reneging(batching=False)) as (caller, sidecar):
        error = await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="r").error()
        assert error.reason is Reason.NOT_SUPPORTED
        assert error.message == "batching: this adapter is of an earlier day"
        sidecar.batching = True  # the ID is free again
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest()) == ["started", "result"]


async def test_an_adapter_that_rejects_to_go_on_with_batches_loses_the_run(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", "a", {"gate": "g"}, {"fail": "UNAVAILABLE"}, run_id="r")
        await stream.until("text")
        sidecar.batching = False  # from now on it rejects them
        sidecar.open("g")
        result = (await stream.rest())[-1].result
        assert result.outcome == event_pb2.OUTCOME_LOST
        assert "rejected Attach (INVALID_ARGUMENT)" in result.failure.message
        assert result.failure.message.count("UNAVAILABLE") == 1, "the first cause is reported too"
