"""Reading a run from the log: where it continues in memory, and what is reported when the log fails in between."""

from typing import cast

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.event_buffer import ENTRY_BYTES, EventBuffer
from dragoman.router.api.drain import Drain
from dragoman.router.api.streaming import RunStreams
from dragoman.router.model.stored import StoredEvents, StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.reader import StoredEventReader
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2


def text(sequence: int) -> bytes:
    return pb.AgentEvent(sequence=sequence, text=pb.Text(delta="x")).SerializeToString()


def question(request_id: str) -> bytes:
    return pb.AgentEvent(input_request=pb.InputRequest(id=request_id)).SerializeToString()


class Scripted(Store):
    """A log that answers one page after another; an error is raised."""

    def __init__(self, *pages: list[bytes] | StoreError) -> None:
        self.pages = list(pages)

    async def events(self, run_id: str, after: int) -> list[StoredEvents]:
        page = self.pages.pop(0)
        if isinstance(page, StoreError):
            raise page
        return [StoredEvents(run_id, after + 1, after + len(page), page)] if page else []


def evicted(*sequences: int) -> EventBuffer:
    """Return a run's events in memory, where only the last one is kept."""
    fanout = EventBuffer("r", capacity_bytes=1, reader_lag_bytes=1)
    for sequence in sequences:
        fanout.append(text(sequence), sequence)
    return fanout


async def test_what_is_answered_while_the_log_is_read_is_not_asked_again() -> None:
    fanout, pending = evicted(1, 2, 3), [question("old"), question("new")]
    reader = StoredEventReader(Scripted([text(1), text(2)]), "r", 0, fanout=fanout, copies=lambda: list(pending))
    assert await reader.read() == [text(1), text(2)]
    del pending[0]
    events = [pb.AgentEvent.FromString(data) for data in await reader.read()]
    assert [event.WhichOneof("body") for event in events] == ["text", "input_request", "replay_done"]
    assert events[1].input_request.id == "new"


async def test_a_run_that_ends_while_the_log_is_read_ends_once() -> None:
    end = pb.AgentEvent(sequence=3, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED)).SerializeToString()
    fanout = evicted(1, 2)
    fanout.append(end, 3)
    fanout.close()
    reader = StoredEventReader(Scripted([text(1), text(2), end], []), "r", 0, fanout=fanout)
    assert await reader.read() == [text(1), text(2), end]
    assert await reader.read() == []


async def test_what_is_written_before_it_is_published_is_not_read_from_the_log() -> None:
    fanout = evicted(1, 2)
    reader = StoredEventReader(Scripted([text(1), text(2), text(3)], []), "r", 0, fanout=fanout)
    assert await reader.read() == [text(1), text(2)]
    fanout.append(text(3), 3)
    fanout.close()
    assert await reader.read() == [text(3)]
    assert await reader.read() == []


async def test_a_log_that_fails_in_the_middle_says_so_and_that_it_may_be_tried_again() -> None:
    reader = StoredEventReader(Scripted([text(1)], StoreError("the disk is gone")), "r", 0)
    assert await reader.read() == [text(1)]
    with pytest.raises(DragomanError, match="the disk is gone") as failure:
        await reader.read()
    assert failure.value.reason is Reason.RUN_LOG_UNAVAILABLE
    assert failure.value.retry_after_s
    assert reader.last_sequence == 1


async def test_a_run_that_is_forgotten_while_it_is_read_does_not_end_as_if_it_were_whole() -> None:
    stored = StoredRun("r", 0.0, "fake", router_pb2.GetRunResponse(), "", 0.0, logged=3)
    reader = RunStreams(Scripted([text(1), text(2)], []), cast("Drain", None)).stored_reader(stored)
    assert await reader.read() == [text(1), text(2)]
    with pytest.raises(DragomanError) as failure:
        await reader.read()
    assert failure.value.reason is Reason.RUN_NOT_FOUND
    whole = StoredEventReader(Scripted([text(1), text(2)], []), "r", 0, end=2)
    assert [await whole.read(), await whole.read()] == [[text(1), text(2)], []]


async def test_a_reader_that_falls_behind_goes_on_in_the_log_and_comes_back() -> None:
    fanout = EventBuffer("r", capacity_bytes=3 * ENTRY_BYTES)
    fanout.append(text(1), 1)
    reader = StoredEventReader(Scripted([text(2), text(3), text(4)]), "r", 0, fanout=fanout)
    assert await reader.read() == [text(1)]
    for sequence in range(2, 7):
        fanout.append(text(sequence), sequence)
    assert await reader.read() == [text(2), text(3), text(4)]
    assert await reader.read() == [text(5), text(6)]
    fanout.append(text(7), 7)
    assert await reader.read() == [text(7)]


async def test_a_reader_that_falls_behind_a_log_that_fails_may_attach_again() -> None:
    fanout = EventBuffer("r", capacity_bytes=2 * ENTRY_BYTES)
    reader = StoredEventReader(Scripted([]), "r", 0, fanout=fanout)
    for sequence in range(1, 9):
        fanout.append(text(sequence), sequence)
    with pytest.raises(DragomanError) as failure:
        await reader.read()
    assert failure.value.reason is Reason.RUN_LOG_UNAVAILABLE
    assert reader.last_sequence == 0


async def test_the_mark_of_a_replay_comes_once_wherever_it_is_read() -> None:
    fanout = EventBuffer("r", capacity_bytes=3 * ENTRY_BYTES)
    fanout.append(text(1), 1)
    copies = [question("q")]
    log = Scripted([text(1), text(2), text(3)], [text(sequence) for sequence in range(6, 10)])
    reader = StoredEventReader(log, "r", 0, fanout=fanout, copies=lambda: copies)
    for sequence in range(2, 6):
        fanout.append(text(sequence), sequence)
    assert await reader.read() == [text(1), text(2), text(3)]
    kinds = [pb.AgentEvent.FromString(data).WhichOneof("body") for data in await reader.read()]
    assert kinds == ["text", "text", "input_request", "replay_done"]
    for sequence in range(6, 12):
        fanout.append(text(sequence), sequence)
    assert await reader.read() == [text(sequence) for sequence in range(6, 10)]
    kinds = [pb.AgentEvent.FromString(data).WhichOneof("body") for data in await reader.read()]
    assert kinds == ["text"] * 2
