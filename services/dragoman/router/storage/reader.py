"""Reading a run from the log, and then from memory while it is live."""

from collections.abc import AsyncIterator, Callable, Collection

from dragoman.protocol.event_buffer import EventBuffer, EventReader, Reader, SlowReaderError
from dragoman.protocol.wire import FIELD_BY_KIND, peek
from dragoman.router.model.errors import log_unavailable, unknown_run
from dragoman.router.model.stored import StoredEvents
from dragoman.router.model.tasks import nothing
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2 as pb


class StoredEventReader:
    """Reads a run from memory, and from the log what is no longer there: at a pace of its own; an ``EventReader``.

    A reader that cannot keep up with a live run is never ended for that: it goes on in the log, and comes back.

    Args:
        after_sequence: the last sequence the reader has.
        fanout: the run's events in memory. ``None`` if it is over and only the log has it.
        end: the last sequence of a run that only the log has; it may be deleted while it is read.
        copies: returns what ``EventBuffer.reader`` sends where the replay ends, which it marks unless the run is
            over. Called only then, as a pending request may have an answer by then. ``None``: no mark.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        after_sequence: int,
        *,
        fanout: EventBuffer | None = None,
        end: int = 0,
        copies: Callable[[], list[bytes]] | None = None,
    ) -> None:
        self.last_sequence = after_sequence
        """The last sequence handed out."""
        self.on_dropped: Callable[[], None] = nothing
        """Never called: see above."""
        self._after = after_sequence
        self._store = store
        self._run_id = run_id
        self._fanout = fanout
        self._end = end
        self._copies = copies
        self._fell_behind = False
        self._live: Reader | None = None
        if fanout is not None and self._is_in_memory(fanout):
            self._live = self._go_live(fanout)

    async def read(self) -> list[bytes]:
        """Return the next events; see ``EventReader``.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE, or RUN_NOT_FOUND if the run was deleted meanwhile.
        """
        while True:
            if self._live is None:
                events = await self._from_log()
                if not events and self.last_sequence < self._end:
                    raise unknown_run(self._run_id)
                if events or self._fanout is None or self._has_read_result(self._fanout):
                    return events
                self._live = self._go_live(self._fanout)
            try:
                events = await self._live.read()
            except SlowReaderError:
                self._fall_behind(self._live)
                continue
            self.last_sequence = self._live.last_sequence
            return events

    def close(self) -> None:
        """Leave."""
        if self._live is not None:
            self._live.close()

    def _fall_behind(self, live: Reader) -> None:
        """Leave memory for the log."""
        if not live.is_replaying:
            self._copies = None  # it had them
        self._live, self._fell_behind = None, True

    def _is_in_memory(self, fanout: EventBuffer) -> bool:
        return fanout.first_kept <= self.last_sequence + 1

    async def _from_log(self) -> list[bytes]:
        if self._fanout is not None and self._is_in_memory(self._fanout):
            return []
        try:
            rows = await self._store.events(self._run_id, self.last_sequence)
        except StoreError as error:
            raise log_unavailable(error) from error
        if not rows and self._fell_behind:
            raise log_unavailable("it does not have what is no longer in memory")
        return [event for row in rows if self._is_published(row.first) for event in self._events(row)]

    def _is_published(self, sequence: int) -> bool:
        """Return whether an event is published: a result is in the log before it is in memory."""
        return self._fanout is None or sequence <= self._fanout.last_sequence

    def _has_read_result(self, fanout: EventBuffer) -> bool:
        """Return whether the log had all of a run that is over; a reader in memory would get its end again."""
        return fanout.is_closed and self._after < self.last_sequence == fanout.last_sequence

    def _go_live(self, fanout: EventBuffer) -> Reader:
        copies = self._copies
        return fanout.reader(
            self.last_sequence,
            replay_done=copies is not None,
            copies=copies() if copies else [],
            is_strict=self._is_in_memory(fanout),
        )

    def _events(self, row: StoredEvents) -> list[bytes]:
        events: list[bytes] = []
        if row.first > self.last_sequence + 1:
            events.append(self._gap(row.first - 1))
        if row.events is None:
            events.append(self._gap(row.last))
            return events
        for data in row.events:
            sequence = peek(data).sequence
            if sequence > self.last_sequence and self._is_published(sequence):
                events.append(data)
                self.last_sequence = sequence
        return events

    def _gap(self, last: int) -> bytes:
        gap = pb.Gap(from_sequence=self.last_sequence + 1, to_sequence=last, reason=pb.GAP_REASON_NOT_DURABLE)
        self.last_sequence = last
        return pb.AgentEvent(gap=gap, run_id=self._run_id).SerializeToString()


async def events_of(reader: EventReader, end: int, kinds: Collection[str]) -> AsyncIterator[pb.AgentEvent]:
    """Yield the events of some kinds up to a sequence, behind which a live run is not waited for."""
    fields = {FIELD_BY_KIND[kind] for kind in kinds}
    while reader.last_sequence < end and (events := await reader.read()):
        for data in events:
            if peek(data).field in fields:
                yield pb.AgentEvent.FromString(data)
