"""Reading a run from the log, and then from memory while it is live."""

import asyncio
from collections.abc import Callable

from dragoman.protocol.event_buffer import EventBuffer, Reader
from dragoman.protocol.wire import peek
from dragoman.router.model.errors import log_unavailable, unknown_run
from dragoman.router.model.stored import StoredEvents
from dragoman.router.storage.batches import unpack
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2 as pb


class StoredEventReader:
    """Reads a run whose first events only the log has; an ``EventReader``.

    Args:
        store: the log.
        run_id: the run.
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
        self.dropped = asyncio.Event()
        """Set when it was dropped for being slow; never while it reads the log, at a pace of its own."""
        self._after = after_sequence
        self._store = store
        self._run_id = run_id
        self._fanout = fanout
        self._end = end
        self._copies = copies
        self._live: Reader | None = None

    async def read(self) -> list[bytes]:
        """Return the next events; see ``EventReader``.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE, or RUN_NOT_FOUND if the run was deleted meanwhile.
        """
        if self._live is None:
            events = await self._from_log()
            if not events and self.last_sequence < self._end:
                raise unknown_run(self._run_id)
            if events or self._fanout is None or self._has_read_result(self._fanout):
                return events
            self._live = self._go_live(self._fanout)
        events = await self._live.read()
        self.last_sequence = self._live.last_sequence
        return events

    def close(self) -> None:
        """Leave."""
        if self._live is not None:
            self._live.close()

    async def _from_log(self) -> list[bytes]:
        if self._fanout is not None and self._fanout.first_kept <= self.last_sequence + 1:
            return []
        try:
            rows = await self._store.events(self._run_id, self.last_sequence)
        except StoreError as error:
            raise log_unavailable(error) from error
        return [event for row in rows if self._is_published(row.first) for event in self._events(row)]

    def _is_published(self, sequence: int) -> bool:
        """Return whether an event is published: a result is in the log before it is in memory."""
        return self._fanout is None or sequence <= self._fanout.last_sequence

    def _has_read_result(self, fanout: EventBuffer) -> bool:
        """Return whether the log had all of a run that is over; a reader in memory would get its end again."""
        return fanout.is_closed and self._after < self.last_sequence == fanout.last_sequence

    def _go_live(self, fanout: EventBuffer) -> Reader:
        copies = self._copies
        live = fanout.reader(self.last_sequence, replay_done=copies is not None, copies=copies() if copies else [])
        live.dropped = self.dropped  # a watcher has this one
        return live

    def _events(self, row: StoredEvents) -> list[bytes]:
        events: list[bytes] = []
        if row.first > self.last_sequence + 1:
            events.append(self._gap(row.first - 1))
        if row.data is None:
            events.append(self._gap(row.last))
            return events
        for data in unpack(row.data):
            sequence = peek(data).sequence
            if sequence > self.last_sequence and self._is_published(sequence):
                events.append(data)
                self.last_sequence = sequence
        return events

    def _gap(self, last: int) -> bytes:
        gap = pb.Gap(from_sequence=self.last_sequence + 1, to_sequence=last, reason=pb.GAP_REASON_NOT_DURABLE)
        self.last_sequence = last
        return pb.AgentEvent(gap=gap, run_id=self._run_id).SerializeToString()
