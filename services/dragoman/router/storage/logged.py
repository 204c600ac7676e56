"""One run as its writer sees it: the state of its row, the events that wait, and how far they may be published."""

import enum
from collections.abc import Callable
from typing import Final

from dragoman.router.model.stored import AHEAD, StoredRun
from dragoman.router.storage.batches import UnpackedEvents
from msgspec import Struct, field

ROW_BYTES: Final = 64 * 1024
"""A row of events is closed at this size, as a reader of the log takes whole ones."""
GATHERED_BYTES: Final = 4 * ROW_BYTES
"""So much is written without a wait for more."""
WRITE_BYTES: Final = 16 * ROW_BYTES
"""The size of one transaction: a backlog is written in steps, each of which a slow server completes in time."""


class RowState(enum.Enum):
    """What the store has of a run."""

    NEW = "new"
    """Nothing, or its row by a write whose answer was lost: the next write inserts it."""
    STORED = "stored"
    """Its row."""
    CONFLICT = "conflict"
    """The row of another router's run with this id; no more is written."""
    LOST = "lost"
    """Its row, which another router has taken over; no more is written."""
    DROPPED = "dropped"
    """Nothing that counts, as the run cannot be stored; no more is written."""
    REMOVED = "removed"
    """Perhaps its row, which is to be deleted: the run never was."""


_WRITTEN: Final = frozenset({RowState.NEW, RowState.STORED})


class LoggedRun(Struct, eq=False):
    """A run as its writer sees it. Made by ``RunLog.follow``."""

    stored: StoredRun
    """Its row as it was written last."""
    snapshot: Callable[[], StoredRun]
    """Returns the row to write; ``logged`` and ``size`` are the writer's own."""
    remark: Callable[[str, str], None]
    """Emits a notice to its readers: a code and a text."""
    lost: Callable[[], None]
    """Called when another router has taken the run."""
    state: RowState = RowState.NEW
    is_tried: bool = False
    """Whether the store was asked to insert it."""
    is_over: bool = False
    is_tracked: bool = False
    """Whether the writer has it, and takes more of it."""
    is_behind: bool = False
    """Whether its readers know that the store fails."""
    waiting: list[tuple[int, bytes]] = field(default_factory=list)
    waiting_bytes: int = 0
    logged: int = 0
    """The last sequence whose event the store has, or that it knows to be missing."""
    size: int = 0
    """Bytes of its stored events."""
    dropped: int = 0
    """The last sequence that is missing, while none after it is written; 0 if there is none."""
    last: int = 0
    """The last sequence."""
    changes: int = 0
    """The number of changes that are to be written."""
    written: int = 0
    """How many of ``changes`` the store has."""
    row_change: int = 0
    """The last of ``changes`` that was one of its row, not only an event more."""

    @property
    def is_begun(self) -> bool:
        """Whether the store has inserted it."""
        return self.state in {RowState.STORED, RowState.LOST}

    @property
    def is_gone(self) -> bool:
        """Whether no more of it is written."""
        return self.state not in _WRITTEN

    @property
    def is_taken(self) -> bool:
        """Whether another router has it."""
        return self.state in {RowState.CONFLICT, RowState.LOST}

    @property
    def is_changed(self) -> bool:
        """Whether something is to be written."""
        return self.written < self.changes

    @property
    def is_row_changed(self) -> bool:
        """Whether its row is to be written."""
        return self.written < self.row_change

    @property
    def is_due(self) -> bool:
        """Whether the writer has something to write of it."""
        return self.is_changed and (self.state in _WRITTEN or self.state is RowState.REMOVED)

    def may_publish(self, sequence: int) -> bool:
        """Return whether a sequence may be published: a router that takes the run over leaves it out, too."""
        return sequence <= self.logged + AHEAD or self.is_gone

    def supersede(self) -> None:
        """Note that another router has it."""
        self.state = RowState.LOST if self.is_begun else RowState.CONFLICT

    def trim(self, written: int) -> int:
        """Drop the waiting events up to a sequence, which are written; return their size."""
        count = size = 0
        for sequence, data in self.waiting:
            if sequence > written:
                break
            count += 1
            size += len(data)
        del self.waiting[:count]
        self.waiting_bytes -= size
        if self.dropped <= written:
            self.dropped = 0
        return size


def rows_of(run: LoggedRun, most: int = WRITE_BYTES) -> tuple[list[UnpackedEvents], int]:
    """Return the waiting events as rows, and their size; missing events are a row without data.

    Args:
        run: the run.
        most: the maximum size of all events, unless the first one alone is larger.
    """
    run_id, expected = run.stored.run_id, run.logged + 1
    rows: list[UnpackedEvents] = []
    events: list[bytes] = []
    first = size = total = 0
    missing = run.dropped
    for sequence, data in run.waiting:
        if total + len(data) > most and events:
            missing = 0
            break
        if sequence != expected or size + len(data) > ROW_BYTES:
            if events:
                rows.append(UnpackedEvents(run_id, first, first + len(events) - 1, events))
                events, size = [], 0
            if sequence != expected:
                rows.append(UnpackedEvents(run_id, expected, sequence - 1, None))
        if not events:
            first = sequence
        events.append(data)
        size += len(data)
        total += len(data)
        expected = sequence + 1
    if events:
        rows.append(UnpackedEvents(run_id, first, first + len(events) - 1, events))
    if missing >= expected:
        rows.append(UnpackedEvents(run_id, expected, missing, None))
    return rows, total
