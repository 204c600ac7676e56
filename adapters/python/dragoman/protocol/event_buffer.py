"""One run's events in memory, read by many.

There is one writer and one buffer of serialized events, bounded in the bytes that it really uses. A reader is a
position in it, so it costs nothing while it keeps up and cannot make others wait: when it is further behind than its
limit it is *dropped*. In an adapter its stream then ends with RESOURCE_EXHAUSTED and the last sequence, and it may
attach again; in a router it goes on from the run log. Events that are no longer buffered are reported by a ``gap``,
never left out silently.

A reader may *hold* the run: the run is done for it. Nothing waits for such a reader here either, but ``unread_bytes``
says how far the foremost of them is behind, so that the producer of events can wait (back-pressure).

Everything happens in one event loop; appending is synchronous and takes constant time per waiting reader.
"""

import asyncio
import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, Protocol

from dragoman.protocol.limits import READER_LAG_BYTES, RUN_BUFFER_BYTES
from dragoman.protocol.wire import RESULT, peek
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_CHUNK_EVENTS = 256
_CHUNK_BYTES = 256 * 1024
"""Events that a reader takes at once: so many, and no more once they have so many bytes. So a long replay lets others
in between, and what a stalled stream has taken and not written stays small."""
ENTRY_BYTES: Final = 200
"""What an event takes in memory beside its bytes."""
_MOST_EPHEMERAL: Final = 64
"""Events without sequence that wait for a reader; the oldest are dropped."""


class _Entry(Struct, frozen=True, gc=False):
    data: bytes
    sequence: int
    end: int
    """Bytes ever taken, up to the end of this entry."""
    skipped: pb.GapReason.ValueType = pb.GAP_REASON_EVICTED
    """Why sequences are missing before it."""

    @property
    def size(self) -> int:
        """What it takes in memory."""
        return len(self.data) + ENTRY_BYTES


_EVICTED = _Entry(b"", 0, 0)


def _nothing() -> None:
    """Do nothing."""


def _all_stored() -> int:
    return sys.maxsize


class SharedBound:
    """Bounds the memory of many buffers together: each keeps less while all of them have more than this.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        """Bytes that the buffers keep."""


class EventReader(Protocol):
    """A cursor in a run's events, wherever they come from."""

    last_sequence: int
    """The last sequence handed out."""
    on_dropped: Callable[[], None]
    """Called when it is dropped for being slow."""

    async def read(self) -> list[bytes]:
        """Return the next events, waiting for at least one; an empty list at the end of the run.

        Raises:
            SlowReaderError: it was dropped.
        """

    def close(self) -> None:
        """Leave. Closing twice is fine."""


class SlowReaderError(Exception):
    """The reader fell too far behind and was dropped."""

    def __init__(self, last_sequence: int) -> None:
        super().__init__(f"dropped after sequence {last_sequence}")
        self.last_sequence = last_sequence
        """The last sequence that was handed to it."""


class SequenceAheadError(Exception):
    """The cursor is past the end of the run."""

    def __init__(self, last_sequence: int) -> None:
        super().__init__(f"the last sequence is {last_sequence}")
        self.last_sequence = last_sequence
        """The last sequence there is."""


class EventBuffer:
    """The events of one run.

    Args:
        run_id: put into gaps and ``replay_done``.
        capacity_bytes: what is kept for readers that come later; the last event is always kept.
        reader_lag_bytes: how far a reader may fall behind. Well above the largest event, and batch, as a single one
            beyond it drops even a reader that keeps up.
        first_sequence: the first sequence that will be appended.
        stored: returns up to which sequence the run log has the events. Others are kept beyond the capacity, up to
            ``RUN_BUFFER_BYTES``.
        shared: bounds this buffer and others together.
    """

    def __init__(
        self,
        run_id: str,
        *,
        capacity_bytes: int = RUN_BUFFER_BYTES,
        reader_lag_bytes: int = READER_LAG_BYTES,
        first_sequence: int = 1,
        stored: Callable[[], int] = _all_stored,
        shared: SharedBound | None = None,
    ) -> None:
        self.run_id = run_id
        self.last_sequence = first_sequence - 1
        self.is_closed = False
        # A list with a moving start: indexing the middle of a deque takes linear time.
        self._entries: list[_Entry] = []
        self._start = 0  # the first entry kept is _entries[_start]
        self._removed = 0  # entries deleted from the list's front
        self._end_bytes = 0
        self.kept_bytes = 0
        """Bytes of memory that the events take."""
        self._capacity = capacity_bytes
        self._stored = stored
        self._shared = shared or SharedBound(sys.maxsize)
        self._lag = reader_lag_bytes
        self._readers: set[Reader] = set()
        self._taken_bytes = 0  # by the foremost reader that holds the run, or by the last one while there is none
        self.on_taken: Callable[[], None] = _nothing
        """Called whenever a reader that holds the run has taken events."""

    def __repr__(self) -> str:
        return (
            f"<EventBuffer {self.run_id} last={self.last_sequence} kept={self.kept_bytes}B "
            f"readers={len(self._readers)}{' closed' if self.is_closed else ''}>"
        )

    @property
    def readers(self) -> int:
        """How many readers there are."""
        return len(self._readers)

    @property
    def unread_bytes(self) -> int:
        """Bytes that no reader that holds the run has taken: where several do, the foremost counts.

        While none does, what was appended since the last one left is counted too.
        """
        return self._end_bytes - self._taken_bytes

    @property
    def first_kept(self) -> int:
        """The sequence of the first event held in memory; the next one's, if none is."""
        return self._entries[self._start].sequence if self._start < len(self._entries) else self.last_sequence + 1

    def append(self, data: bytes, sequence: int, *, skipped: pb.GapReason.ValueType = pb.GAP_REASON_EVICTED) -> None:
        """Append a durable event. Sequences that are left out become gaps for the readers.

        Args:
            data: the event.
            sequence: its sequence.
            skipped: why sequences are left out before it, if any are.

        Raises:
            ValueError: the sequence is not above the last one, or the run is closed.
        """
        if self.is_closed:
            raise ValueError("the run is over")
        if sequence <= self.last_sequence:
            raise ValueError(f"sequence {sequence} after {self.last_sequence}")
        self.last_sequence = sequence
        size = len(data) + ENTRY_BYTES
        self._end_bytes += size
        self.kept_bytes += size
        self._shared.used += size
        self._entries.append(_Entry(data, sequence, self._end_bytes, skipped))
        if self.kept_bytes > self._capacity or self._shared.used > self._shared.most:
            self._evict()
        for reader in tuple(self._readers):
            reader._appended(self._end_bytes, self._lag)  # noqa: SLF001 - one machine in two classes

    def send_ephemeral(self, data: bytes) -> None:
        """Hand an event without sequence to all present readers; to none when the run is closed."""
        if self.is_closed:
            return
        for reader in self._readers:
            reader._send_ephemeral(data, self.last_sequence)  # noqa: SLF001 - one machine in two classes

    def close(self) -> None:
        """Note that nothing follows. Readers end once they have read everything.

        Call it together with appending the result, so that nothing comes between them.
        """
        self.is_closed = True
        for reader in self._readers:
            reader._wake()  # noqa: SLF001 - one machine in two classes

    def release(self) -> None:
        """Give the memory back, as no reader comes any more; those that are there read on."""
        self._shared.used -= self.kept_bytes
        self._shared = SharedBound(sys.maxsize)

    def reader(
        self,
        after_sequence: int = 0,
        *,
        replay_done: bool = False,
        copies: list[bytes] | None = None,
        holds: bool = False,
        is_strict: bool = False,
    ) -> "Reader":
        """Join after ``after_sequence``; at the end of a run that is over its result comes again.

        Args:
            after_sequence: the last sequence the reader has.
            replay_done: mark where the replay ends, unless the run is closed: nothing follows a result.
            copies: ephemeral events to send just before that mark, as they are after the last event appended.
            holds: whether the run is done for this reader; see ``unread_bytes``.
            is_strict: whether the reader is dropped where it would get a ``gap`` for what is no longer buffered.

        Raises:
            SequenceAheadError: there is no such sequence yet.
        """
        if after_sequence > self.last_sequence:
            raise SequenceAheadError(self.last_sequence)
        ends_with_result = self.is_closed and self._entries and peek(self._entries[-1].data).field == RESULT
        if after_sequence == self.last_sequence and ends_with_result:
            after_sequence -= 1
        reader = Reader(
            self, after_sequence, replay_done=replay_done, copies=copies or [], holds=holds, is_strict=is_strict
        )
        self._readers.add(reader)
        self._note_taken()
        return reader

    def _advance(self, taken_bytes: int) -> None:
        """Note that one of the readers that hold the run has got this far."""
        if taken_bytes > self._taken_bytes:
            self._taken_bytes = taken_bytes
            self.on_taken()

    def _note_taken(self) -> None:
        """Note how far the foremost reader is that holds the run."""
        holding = [reader._taken_bytes for reader in self._readers if reader.holds]  # noqa: SLF001 - one machine in two classes
        if holding:
            self._taken_bytes = max(holding)
            self.on_taken()

    def _evict(self) -> None:
        capacity = self._capacity if self._shared.used <= self._shared.most else min(self._capacity, _CHUNK_BYTES)
        while self.kept_bytes > capacity and self._start < len(self._entries) - 1:
            first = self._entries[self._start]
            if self.kept_bytes <= RUN_BUFFER_BYTES and first.sequence > self._stored():
                break
            self.kept_bytes -= first.size
            self._shared.used -= first.size
            self._entries[self._start] = _EVICTED
            self._start += 1
        if self._start > 1024 and self._start * 2 > len(self._entries):
            del self._entries[: self._start]
            self._removed += self._start
            self._start = 0

    def _seek(self, after_sequence: int) -> tuple[int, int]:
        """Return the index of what follows, counted from the first entry ever, and the bytes appended before it."""
        position = bisect_right(self._entries, after_sequence, lo=self._start, key=lambda entry: entry.sequence)
        is_end = position >= len(self._entries)
        before = self._end_bytes if is_end else self._entries[position].end - self._entries[position].size
        return self._removed + position, before

    def _from(self, index: int) -> tuple[int, list[_Entry]]:
        """Return the next entries from ``index``, or from the first that is kept, and the index after them."""
        position = max(index - self._removed, self._start)
        entries = self._entries[position : position + _CHUNK_EVENTS]
        if entries and entries[-1].end - entries[0].end > _CHUNK_BYTES:
            most = entries[0].end + _CHUNK_BYTES
            entries = entries[: bisect_right(entries, most, key=lambda entry: entry.end)]
        return self._removed + position + len(entries), entries


class Reader:
    """One reader's cursor in a run. Made by ``EventBuffer.reader``; close it when done."""

    def __init__(
        self,
        fanout: EventBuffer,
        after_sequence: int,
        *,
        replay_done: bool,
        copies: list[bytes],
        holds: bool,
        is_strict: bool,
    ) -> None:
        self.last_sequence = after_sequence
        """The last sequence handed out."""
        self.holds = holds
        """Whether the run is done for this reader."""
        self.on_dropped: Callable[[], None] = _nothing
        """Called when the reader is dropped for being slow."""
        self.is_dropped = False
        self._fanout = fanout
        self._index, self._taken_bytes = fanout._seek(after_sequence)  # noqa: SLF001 - one machine in two classes
        # A reader that joins may be a whole buffer behind; only what is appended from now on counts.
        self._joined_at = fanout._end_bytes  # noqa: SLF001 - one machine in two classes
        self._read_bytes = self._joined_at
        self._ephemeral: list[tuple[int, bytes]] = []  # with the sequence they come after
        self._waiter: asyncio.Future[None] | None = None
        self._replay_until = fanout.last_sequence if replay_done and not fanout.is_closed else None
        self._copies = copies
        self._is_strict = is_strict

    @property
    def is_replaying(self) -> bool:
        """Whether the mark of the replay's end is still to come."""
        return self._replay_until is not None

    async def read(self) -> list[bytes]:
        """Return the next events, waiting for at least one; an empty list at the end of the run.

        Raises:
            SlowReaderError: this reader was dropped.
        """
        while True:
            if self.is_dropped:
                raise SlowReaderError(self.last_sequence)
            if self._has_more() and (events := self._take()):
                return events
            if self._fanout.is_closed:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def close(self) -> None:
        """Leave. Closing twice is fine."""
        self._fanout._readers.discard(self)  # noqa: SLF001 - one machine in two classes
        if self.holds:
            self._fanout._note_taken()  # noqa: SLF001 - one machine in two classes

    def _has_more(self) -> bool:
        """Return whether there is something to take, perhaps: mostly not, as it comes later."""
        end = self._fanout._removed + len(self._fanout._entries)  # noqa: SLF001 - as above
        return self._index < end or bool(self._ephemeral) or self._replay_until is not None

    def _take(self) -> list[bytes]:
        fanout = self._fanout
        if self._is_strict and self._index < fanout._removed + fanout._start:  # noqa: SLF001 - as above
            self.is_dropped = True
            self.close()
            raise SlowReaderError(self.last_sequence)
        self._index, entries = fanout._from(self._index)  # noqa: SLF001 - as above
        events: list[bytes] = []
        if entries and self._is_all_of(entries):
            events = [entry.data for entry in entries]
            self.last_sequence = entries[-1].sequence
        else:
            for entry in entries:
                self._take_between(events)
                if entry.sequence != self.last_sequence + 1:
                    events.append(self._gap(entry.sequence, entry.skipped))
                    self._take_between(events)
                events.append(entry.data)
                self.last_sequence = entry.sequence
            self._take_between(events)
        if entries:
            self._read_bytes = max(self._read_bytes, entries[-1].end)
            if self.holds:
                self._taken_bytes = entries[-1].end
                fanout._advance(self._taken_bytes)  # noqa: SLF001 - as above
        return events

    def _is_all_of(self, entries: list[_Entry]) -> bool:
        """Return whether nothing comes before, between or behind these entries: mostly so."""
        is_dense = entries[-1].sequence - self.last_sequence == len(entries)
        return is_dense and not self._ephemeral and self._replay_until is None

    def _take_between(self, events: list[bytes]) -> None:
        """Take what belongs between the last sequence and the next: exactly here, it says what is true here."""
        if self._replay_until is not None and self.last_sequence >= self._replay_until:
            events.extend(self._copies)
            events.append(self._replay_done())
            self._replay_until = None
        while self._ephemeral and self._ephemeral[0][0] <= self.last_sequence:
            events.append(self._ephemeral.pop(0)[1])

    def _gap(self, first: int, reason: pb.GapReason.ValueType) -> bytes:
        gap = pb.Gap(from_sequence=self.last_sequence + 1, to_sequence=first - 1, reason=reason)
        self.last_sequence = first - 1
        return pb.AgentEvent(gap=gap, run_id=self._fanout.run_id).SerializeToString()

    def _replay_done(self) -> bytes:
        done = pb.ReplayDone(last_sequence=self._fanout.last_sequence)
        return pb.AgentEvent(replay_done=done, run_id=self._fanout.run_id).SerializeToString()

    def _appended(self, end_bytes: int, lag: int) -> None:
        if end_bytes - self._read_bytes > lag:
            self.is_dropped = True
            self.close()
            self.on_dropped()
        self._wake()

    def _send_ephemeral(self, data: bytes, after: int) -> None:
        self._ephemeral.append((after, data))
        del self._ephemeral[:-_MOST_EPHEMERAL]
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
