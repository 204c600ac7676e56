"""One run, many readers: dense but for explicit gaps, nothing twice, no reader waits for a slow one."""

import asyncio
from collections import deque
from collections.abc import Callable

import pytest
from dragoman.protocol.event_buffer import (
    ENTRY_BYTES,
    EventBuffer,
    Reader,
    SequenceAheadError,
    SharedBound,
    SlowReaderError,
)
from dragoman.protocol.order import OrderChecker
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from .streams import RUN_ID, body, durable


def sized(kind: str, sequence: int, size: int = 30) -> bytes:
    """Return an event of exactly ``size`` bytes where that is possible."""
    event = durable(kind, sequence)
    short = size - event.ByteSize()
    if short > 6:
        event.native.text = "x" * (short - 5)
    return event.SerializeToString()


def room(events: int, size: int = 30) -> int:
    """Return the bytes of memory that events of this size take."""
    return events * (size + ENTRY_BYTES)


def fill(fanout: EventBuffer, first: int, last: int, size: int = 30) -> None:
    for sequence in range(first, last + 1):
        fanout.append(sized("started" if sequence == 1 else "text", sequence, size), sequence)


def heartbeat(after: int) -> bytes:
    event = body("heartbeat")
    event.heartbeat.last_sequence = after
    return event.SerializeToString()


def parse(events: list[bytes]) -> list[pb.AgentEvent]:
    return [pb.AgentEvent.FromString(data) for data in events]


def summary(events: list[bytes]) -> list[str | int]:
    """Return sequences of durable events and words for the others."""
    out: list[str | int] = []
    for event in parse(events):
        if event.WhichOneof("body") == "gap":
            out.append(f"gap {event.gap.from_sequence}-{event.gap.to_sequence}")
        elif event.sequence:
            out.append(event.sequence)
        else:
            out.append(event.WhichOneof("body") or "")
    return out


def poll(reader: Reader) -> list[bytes] | None:
    """Read without waiting; ``None`` if it would wait."""
    reading = reader.read()
    try:
        reading.send(None)
    except StopIteration as done:
        events: list[bytes] = done.value
        return events
    reading.close()
    return None


def start_waiting(reader: Reader) -> Callable[[], list[bytes]]:
    """Read until it waits; the function returned goes on and must not have to wait any more."""
    reading = reader.read()
    blocked: asyncio.Future[bool] = reading.send(None)

    def go_on() -> list[bytes]:
        assert blocked.done()
        try:
            reading.send(None)
        except StopIteration as done:
            events: list[bytes] = done.value
            return events
        raise AssertionError("it waits again")

    return go_on


async def test_a_reader_gets_what_was_and_what_comes() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 3)
    reader = fanout.reader()
    assert summary(await reader.read()) == [1, 2, 3]
    go_on = start_waiting(reader)
    fill(fanout, 4, 4)
    assert summary(go_on()) == [4]
    fill(fanout, 5, 6)
    fanout.close()
    assert summary(await reader.read()) == [5, 6]
    assert await reader.read() == []
    assert await reader.read() == []


async def test_closing_wakes_readers_that_wait() -> None:
    fanout = EventBuffer(RUN_ID)
    reader = fanout.reader()
    go_on = start_waiting(reader)
    fanout.close()
    assert go_on() == []
    with pytest.raises(ValueError, match="over"):
        fanout.append(sized("text", 1), 1)


async def test_readers_join_where_they_say() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 3)
    assert summary(poll(fanout.reader(2)) or []) == [3]
    assert poll(fanout.reader(3)) is None
    with pytest.raises(SequenceAheadError) as ahead:
        fanout.reader(4)
    assert ahead.value.last_sequence == 3
    assert fanout.readers == 2


async def test_sequences_only_grow() -> None:
    fanout = EventBuffer(RUN_ID, first_sequence=5)
    assert fanout.last_sequence == 4
    for wrong in (4, 0):
        with pytest.raises(ValueError, match=f"sequence {wrong} after 4"):
            fanout.append(sized("text", wrong), wrong)
    fanout.append(sized("text", 5), 5)
    with pytest.raises(ValueError, match="sequence 5 after 5"):
        fanout.append(sized("text", 5), 5)


async def test_evicted_events_are_stated_by_a_gap() -> None:
    fanout = EventBuffer(RUN_ID, capacity_bytes=room(3))
    fill(fanout, 1, 10)
    assert fanout.kept_bytes == room(3)
    events = poll(fanout.reader()) or []
    assert summary(events) == ["gap 1-7", 8, 9, 10]
    gap = parse(events)[0]
    assert gap.gap.reason == pb.GAP_REASON_EVICTED
    assert gap.run_id == RUN_ID
    assert summary(poll(fanout.reader(4)) or []) == ["gap 5-7", 8, 9, 10]
    assert summary(poll(fanout.reader(7)) or []) == [8, 9, 10]


async def test_sequences_that_were_left_out_are_stated_by_a_gap() -> None:
    fanout = EventBuffer(RUN_ID, first_sequence=3)
    fill(fanout, 3, 4)
    fill(fanout, 8, 8)
    assert summary(poll(fanout.reader()) or []) == ["gap 1-2", 3, 4, "gap 5-7", 8]
    assert summary(poll(fanout.reader(2)) or []) == [3, 4, "gap 5-7", 8]
    assert summary(poll(fanout.reader(6)) or []) == ["gap 7-7", 8]


async def test_the_last_event_is_kept_however_large() -> None:
    fanout = EventBuffer(RUN_ID, capacity_bytes=room(1) + 10)
    fill(fanout, 1, 2)
    fill(fanout, 3, 3, size=500)
    assert summary(poll(fanout.reader()) or []) == ["gap 1-2", 3]


async def test_what_the_log_does_not_have_yet_is_kept_beyond_the_capacity() -> None:
    stored = 0
    fanout = EventBuffer(RUN_ID, capacity_bytes=room(3), stored=lambda: stored)
    fill(fanout, 1, 10)
    assert (fanout.first_kept, fanout.kept_bytes) == (1, room(10))
    stored = 5
    fill(fanout, 11, 11)
    assert fanout.first_kept == 6
    stored = 11
    fill(fanout, 12, 12)
    assert (fanout.first_kept, fanout.kept_bytes) == (10, room(3))


async def test_many_buffers_together_are_bounded() -> None:
    size, shared = 64 * 1024, SharedBound(4 * 2**20)
    buffers = [EventBuffer(RUN_ID, capacity_bytes=2**20, shared=shared) for _ in range(20)]
    for sequence in range(1, 100):
        for fanout in buffers:
            fill(fanout, sequence, sequence, size)
        assert shared.used <= shared.most + len(buffers) * room(1, size)
    assert shared.used == sum(fanout.kept_bytes for fanout in buffers)
    for fanout in buffers:
        fanout.release()
    assert shared.used == 0


async def test_a_strict_reader_is_dropped_where_another_one_gets_a_gap() -> None:
    fanout = EventBuffer(RUN_ID, capacity_bytes=room(3))
    fill(fanout, 1, 3)
    strict, other = fanout.reader(is_strict=True), fanout.reader()
    fill(fanout, 4, 4)
    assert summary(poll(other) or []) == ["gap 1-1", 2, 3, 4]
    with pytest.raises(SlowReaderError) as dropped:
        poll(strict)
    assert dropped.value.last_sequence == 0
    assert strict.is_dropped


async def test_a_slow_reader_is_dropped_and_no_other() -> None:
    fanout = EventBuffer(RUN_ID, capacity_bytes=room(30), reader_lag_bytes=room(3) + 10)
    slow, quick = fanout.reader(), fanout.reader()
    fill(fanout, 1, 2)
    assert summary(await slow.read()) == [1, 2]
    for sequence in range(3, 9):
        fill(fanout, sequence, sequence)
        await quick.read()
    assert slow.is_dropped
    assert fanout.readers == 1
    with pytest.raises(SlowReaderError) as dropped:
        await slow.read()
    assert dropped.value.last_sequence == 2
    assert quick.last_sequence == 8
    assert summary(await fanout.reader(2).read()) == [3, 4, 5, 6, 7, 8]


async def test_what_the_foremost_holder_has_not_read_is_counted() -> None:
    fanout = EventBuffer(RUN_ID)
    taken: list[int] = []
    fanout.on_taken = lambda: taken.append(fanout.unread_bytes)
    fill(fanout, 1, 10)
    assert fanout.unread_bytes == room(10), "also before a client holds the run"
    fanout.reader()
    assert fanout.unread_bytes == room(10), "one that does not hold it changes nothing"
    behind, ahead = fanout.reader(2, holds=True), fanout.reader(5, holds=True)
    assert fanout.unread_bytes == room(5)
    await ahead.read()
    assert (fanout.unread_bytes, taken[-1]) == (0, 0)
    fill(fanout, 11, 12)
    assert fanout.unread_bytes == room(2)
    ahead.close()
    assert fanout.unread_bytes == room(10)
    behind.close()
    fill(fanout, 13, 13)
    assert fanout.unread_bytes == room(11), "counted on while no client holds it"
    back = fanout.reader(13, holds=True)
    assert fanout.unread_bytes == 0
    back.close()


async def test_a_reader_takes_a_bounded_number_of_bytes_at_once() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 5, size=100_000)
    fill(fanout, 6, 6, size=700_000)
    reader = fanout.reader(holds=True)
    pieces = []
    while fanout.unread_bytes:
        pieces.append(len(await reader.read()))
    assert pieces == [3, 2, 1]


async def test_a_waiting_reader_learns_at_once_that_it_was_dropped() -> None:
    fanout = EventBuffer(RUN_ID, reader_lag_bytes=10)
    reader = fanout.reader()
    go_on = start_waiting(reader)
    fill(fanout, 1, 1)
    with pytest.raises(SlowReaderError):
        go_on()


async def test_a_long_replay_does_not_make_a_reader_slow() -> None:
    fanout = EventBuffer(RUN_ID, capacity_bytes=room(200), reader_lag_bytes=room(5))
    fill(fanout, 1, 150)
    reader = fanout.reader()
    fill(fanout, 151, 155)
    assert summary(await reader.read()) == list(range(1, 156))
    fill(fanout, 156, 160)
    assert not reader.is_dropped
    fill(fanout, 161, 161)
    assert reader.is_dropped


async def test_a_long_replay_comes_in_pieces() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 700)
    reader = fanout.reader(replay_done=True)
    assert summary(await reader.read()) == list(range(1, 257))
    assert summary(await reader.read()) == list(range(257, 513))
    assert summary(await reader.read()) == [*range(513, 701), "replay_done"]


async def test_copies_and_the_mark_come_where_the_replay_ends() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 2)
    copy = body("input_request").SerializeToString()
    reader = fanout.reader(replay_done=True, copies=[copy])
    fill(fanout, 3, 4)  # may well resolve that request, so the copy must not come after it
    events = await reader.read()
    assert summary(events) == [1, 2, "input_request", "replay_done", 3, 4]
    assert summary(await fanout.reader(4, replay_done=True).read()) == ["replay_done"]
    assert summary(await EventBuffer(RUN_ID).reader(replay_done=True).read()) == ["replay_done"]


async def test_nothing_follows_the_result() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 1)
    early = fanout.reader(replay_done=True)
    fanout.send_ephemeral(heartbeat(1))
    fanout.append(sized("result", 2), 2)
    fanout.close()
    fanout.send_ephemeral(heartbeat(2))
    late = fanout.reader(replay_done=True, copies=[body("input_request").SerializeToString()])
    assert summary(await early.read()) == [1, "replay_done", "heartbeat", 2]
    assert summary(await late.read()) == [1, 2]
    assert await early.read() == await late.read() == []


async def test_who_joins_at_the_end_of_a_run_gets_its_result_again() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 1)
    fanout.append(sized("result", 4), 4)
    fanout.close()
    reader = fanout.reader(4, replay_done=True)
    assert summary(await reader.read()) == [4]
    assert await reader.read() == []
    with pytest.raises(SequenceAheadError):
        fanout.reader(5)


async def test_a_run_that_was_closed_without_a_result_repeats_nothing() -> None:
    fanout = EventBuffer(RUN_ID)
    fill(fanout, 1, 2)
    fanout.close()
    assert await fanout.reader(2).read() == []


async def test_ephemeral_events_keep_their_place_and_reach_who_is_there() -> None:
    fanout = EventBuffer(RUN_ID)
    reader = fanout.reader()
    fanout.send_ephemeral(heartbeat(0))
    fill(fanout, 1, 2)
    fanout.send_ephemeral(heartbeat(2))
    fill(fanout, 3, 3)
    assert summary(await reader.read()) == ["heartbeat", 1, 2, "heartbeat", 3]
    assert summary(await fanout.reader().read()) == [1, 2, 3]
    fanout.send_ephemeral(heartbeat(3))
    assert summary(await reader.read()) == ["heartbeat"]


async def test_ephemeral_events_are_bounded() -> None:
    fanout = EventBuffer(RUN_ID)
    reader = fanout.reader()
    for number in range(1000):
        fanout.send_ephemeral(heartbeat(number))
    kept = [event.heartbeat.last_sequence for event in parse(await reader.read())]
    assert kept == list(range(936, 1000))


async def test_leaving_twice_is_fine() -> None:
    fanout = EventBuffer(RUN_ID)
    reader = fanout.reader()
    reader.close()
    reader.close()
    assert fanout.readers == 0


async def test_memory_is_bounded_over_a_long_run() -> None:
    fanout = EventBuffer(RUN_ID, capacity_bytes=room(60))
    reader = fanout.reader()
    for sequence in range(1, 10_000):
        fill(fanout, sequence, sequence)
        if sequence % 40 == 0:
            assert len(await reader.read()) == 40
    assert fanout.kept_bytes <= room(60)
    assert len(fanout._entries) < 3000
    assert "last=9999" in repr(fanout)


# --- any interleaving


class Follower:
    """A reader together with what it must see."""

    def __init__(self, fanout: EventBuffer, model: "Model", after: int, *, replay_done: bool) -> None:
        self.reader = fanout.reader(after, replay_done=replay_done)
        self.checker = OrderChecker(after)
        self.model = model
        self.joined_at = self.read_until = model.end
        self.replay_until = fanout.last_sequence
        self.marks_due = 1 if replay_done and not fanout.is_closed else 0
        self.last_gap = (0, -1)
        self.is_slow = False

    def appended(self) -> None:
        self.is_slow = self.is_slow or self.model.end - max(self.joined_at, self.read_until) > self.model.lag

    def read(self) -> bool:
        """Read once and check; return whether there may be more."""
        if self.is_slow:
            with pytest.raises(SlowReaderError) as dropped:
                poll(self.reader)
            assert dropped.value.last_sequence == self.checker.last_sequence
            return False
        events = poll(self.reader)
        for event in parse(events or []):
            self._check(event)
        return bool(events)

    def _check(self, event: pb.AgentEvent) -> None:
        before = self.checker.last_sequence
        kind = event.WhichOneof("body")
        if kind == "gap":
            self.last_gap = (event.gap.from_sequence, event.gap.to_sequence)
            kept = {sequence for sequence, _, _ in self.model.kept}
            assert not kept & set(range(event.gap.from_sequence, event.gap.to_sequence + 1))
        elif kind == "replay_done":
            self.marks_due -= 1
            assert before >= self.replay_until
        elif kind == "heartbeat":
            after = event.heartbeat.last_sequence
            assert after == before or self.last_gap[0] <= after <= self.last_gap[1] == before
        else:
            assert event.sequence > before
            _, self.read_until, data = next(item for item in self.model.all if item[0] == event.sequence)
            assert data == event.SerializeToString()
            if self.marks_due:
                assert event.sequence <= self.replay_until
        self.checker.observe(event)


class Model:
    """What was appended, and what of it must still be kept."""

    def __init__(self, capacity: int, lag: int) -> None:
        self.capacity, self.lag = capacity, lag
        self.all: list[tuple[int, int, bytes]] = []
        self.kept: deque[tuple[int, int, bytes]] = deque()
        self.end = 0

    def append(self, data: bytes, sequence: int) -> None:
        self.end += len(data) + ENTRY_BYTES
        entry = (sequence, self.end, data)
        self.all.append(entry)
        self.kept.append(entry)
        while len(self.kept) > 1 and sum(len(item[2]) + ENTRY_BYTES for item in self.kept) > self.capacity:
            self.kept.popleft()


class Scenario:
    """A fanout, its model and its readers, moved one step at a time."""

    def __init__(self, capacity: int, lag: int) -> None:
        self.fanout = EventBuffer(RUN_ID, capacity_bytes=capacity, reader_lag_bytes=lag)
        self.model = Model(capacity, lag)
        self.followers: list[Follower] = []

    def append(self, kind: str, size: int, *, skip: int = 0) -> None:
        sequence = self.fanout.last_sequence + 1 + skip
        data = sized(kind, sequence, size)
        self.model.append(data, sequence)
        self.fanout.append(data, sequence)
        for follower in self.followers:
            follower.appended()

    def attach(self, after: int, *, replay_done: bool) -> None:
        if after > self.fanout.last_sequence:
            with pytest.raises(SequenceAheadError):
                self.fanout.reader(after)
            return
        self.followers.append(Follower(self.fanout, self.model, after, replay_done=replay_done))

    def step(self, operation: str, number: int) -> None:
        match operation:
            case "append":
                self.append("text", number)
            case "skip":
                self.append("text", 30, skip=number)
            case "ephemeral":
                self.fanout.send_ephemeral(heartbeat(self.fanout.last_sequence))
            case "attach" | "attach and mark":
                self.attach(number, replay_done=operation != "attach")
            case "read" if self.followers:
                self.followers[number % len(self.followers)].read()
            case "leave" if self.followers:
                self.followers.pop(number % len(self.followers)).reader.close()


operations = st.one_of(
    st.tuples(st.just("append"), st.integers(30, 60)),
    st.tuples(st.just("append"), st.integers(30, 60)),
    st.tuples(st.just("skip"), st.integers(1, 3)),
    st.tuples(st.just("ephemeral"), st.just(0)),
    st.tuples(st.just("attach"), st.integers(0, 40)),
    st.tuples(st.just("attach and mark"), st.integers(0, 40)),
    st.tuples(st.just("read"), st.integers(0, 5)),
    st.tuples(st.just("read"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
)


@settings(max_examples=300)
@given(
    steps=st.lists(operations, max_size=60),
    capacity=st.integers(30 + ENTRY_BYTES, 12 * ENTRY_BYTES),
    lag=st.integers(60 + ENTRY_BYTES, 12 * ENTRY_BYTES),
)
async def test_any_interleaving_gives_each_reader_a_true_stream(
    steps: list[tuple[str, int]], capacity: int, lag: int
) -> None:
    scenario = Scenario(capacity, lag)
    scenario.append("started", 30)
    for operation, number in steps:
        scenario.step(operation, number)
    scenario.append("result", 30)
    scenario.fanout.close()
    scenario.attach(0, replay_done=True)
    assert scenario.fanout.readers == sum(not follower.is_slow for follower in scenario.followers)
    for follower in scenario.followers:
        while follower.read():
            pass
        assert follower.is_slow or follower.checker.is_done
        assert follower.is_slow or follower.marks_due == 0
