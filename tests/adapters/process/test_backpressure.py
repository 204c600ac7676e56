"""Programs that print faster than their events are read: they wait, and nothing is lost.

Only a client that holds the run makes them wait; a reader that is merely attached never does.
"""

import asyncio
import sys

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import BACKLOG_BYTES, MIB, RUN_BUFFER_BYTES
from dragoman.sdk import Run
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.process.arena import Arena, duration
from tests.sdk.serving import DEADLINE_S

pytestmark = pytest.mark.timeout(120)

FLOOD_S = 2 * DEADLINE_S
"""How long a flood may take on a busy machine."""
FLOOD = RUN_BUFFER_BYTES // 65536
"""Lines of 64 KiB of which as many bytes as a run keeps in memory come on each of two pipes."""
FLOOD_BOTH = f"""
import sys
for number in range({FLOOD}):
    for file in (sys.stdout, sys.stderr):
        print(str(number).rjust(65535), file=file)
"""


def program(arena: Arena, code: str) -> api.ExecuteRequest:
    return arena.request(sys.executable, "-c", code)


def run_of(arena: Arena, run_id: str) -> Run:
    return arena.sidecar.server.servicer._runs.find(run_id)


async def waits(arena: Arena, run_id: str) -> None:
    """Wait until a program waits for its reader."""
    run = run_of(arena, run_id)
    async with asyncio.timeout(FLOOD_S):
        while run.event_buffer.unread_bytes <= BACKLOG_BYTES:  # noqa: ASYNC110 - what changes it knows of no event
            await asyncio.sleep(0.01)
    # Others are served meanwhile.
    assert (await arena.result(arena.request(sys.executable, "-c", "print('hello')"))).outcome == pb.OUTCOME_SUCCEEDED
    assert run.event_buffer.unread_bytes < BACKLOG_BYTES + 2 * MIB
    assert not run.finished.is_set()


def numbers(events: list[pb.AgentEvent], stream: pb.OutputStream.ValueType = pb.OUTPUT_STREAM_STDOUT) -> list[int]:
    """Return the numbers that are the lines of a stream."""
    logs = [event.log for event in events if event.HasField("log") and event.log.stream == stream]
    return [int(line) for log in logs for line in log.text.split("\n")]


def is_whole(events: list[pb.AgentEvent]) -> bool:
    both = [numbers(events, stream) for stream in (pb.OUTPUT_STREAM_STDOUT, pb.OUTPUT_STREAM_STDERR)]
    return both == [list(range(FLOOD))] * 2 and events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


@pytest.mark.own_adapter
async def test_a_program_waits_for_the_one_that_holds_its_run(arena: Arena) -> None:
    stream = arena.begin(program(arena, FLOOD_BOTH))
    run_id = (await stream.until("started")).run_id
    await waits(arena, run_id)
    events = await asyncio.wait_for(stream.rest(), FLOOD_S)
    assert is_whole(events)


async def test_a_reader_that_is_only_attached_makes_nothing_wait(arena: Arena) -> None:
    stream = arena.begin(program(arena, FLOOD_BOTH))
    run_id = (await stream.until("started")).run_id
    slow = arena.sidecar.follow(run_id)
    await slow.read()
    assert is_whole(await asyncio.wait_for(stream.rest(), FLOOD_S))
    with pytest.raises(DragomanError) as ended:
        await slow.rest()
    assert ended.value.reason is Reason.SLOW_CONSUMER


@pytest.mark.own_adapter
async def test_a_program_waits_for_one_that_comes_back_to_hold_its_run(arena: Arena) -> None:
    stream = arena.begin(program(arena, FLOOD_BOTH))
    started = await stream.until("started")
    stream.cancel()
    await waits(arena, started.run_id)
    back = arena.sidecar.follow(started.run_id, started.sequence, hold=True)
    assert is_whole(await asyncio.wait_for(back.rest(), FLOOD_S))


async def test_a_run_that_no_client_comes_back_to_is_ended_by_its_orphan_clock(arena: Arena) -> None:
    request = program(arena, FLOOD_BOTH)
    request.orphan_after.CopyFrom(duration(0.5))
    stream = arena.begin(request)
    run_id = (await stream.until("started")).run_id
    stream.cancel()
    result = (await arena.sidecar.attach(run_id))[-1].result
    assert (result.outcome, result.tree_confirmed_dead) == (pb.OUTCOME_CANCELLED, True)


@pytest.mark.own_adapter
async def test_a_program_that_waits_can_be_cancelled(arena: Arena) -> None:
    request = program(arena, f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n{FLOOD_BOTH}")
    request.limits.grace.CopyFrom(duration(DEADLINE_S))
    stream = arena.begin(request)
    run_id = (await stream.until("started")).run_id
    await waits(arena, run_id)
    answer = await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id), timeout=DEADLINE_S)
    assert (answer.outcome, answer.tree_confirmed_dead) == (pb.OUTCOME_CANCELLED, True)


@pytest.mark.own_adapter
async def test_the_silence_of_a_program_that_waits_is_not_its_own(arena: Arena) -> None:
    request = program(arena, FLOOD_BOTH)
    request.limits.idle.CopyFrom(duration(2))  # in which a program has begun to print, on a busy machine too
    stream = arena.begin(request)
    run_id = (await stream.until("started")).run_id
    await waits(arena, run_id)
    await asyncio.sleep(2.5)  # not to wait for something: that is how long nothing is read
    assert is_whole(await asyncio.wait_for(stream.rest(), FLOOD_S))


async def test_all_of_many_lines_come_and_in_order(arena: Arena) -> None:
    stream = arena.begin(program(arena, "for number in range(60_000): print(str(number).rjust(60))"))
    events = await asyncio.wait_for(stream.rest(), FLOOD_S)
    assert numbers(events) == list(range(60_000))
    assert len(events) < 10_000, "lines that wait are joined"
    counters = events[-1].result.counters
    assert (counters.unparsed_lines, counters.stdout_bytes) == (60_000, 60_000 * 61)


async def test_a_flood_of_empty_lines_is_a_success(arena: Arena) -> None:
    stream = arena.begin(program(arena, "import sys\nfor _ in range(300): sys.stdout.write('\\n' * 1000)"))
    events = await asyncio.wait_for(stream.rest(), FLOOD_S)
    lines = sum(event.log.text.count("\n") + 1 for event in events if event.HasField("log"))
    assert (lines, events[-1].result.outcome) == (300_000, pb.OUTCOME_SUCCEEDED)
    assert events[-1].result.counters.unparsed_lines == 300_000


async def test_a_few_lines_at_once_are_an_event_each(arena: Arena) -> None:
    events = await arena.run(arena.request(sys.executable, "-c", "print('\\n'.join('abcdefgh'))"))
    assert [event.log.text for event in events if event.HasField("log")] == list("abcdefgh")
