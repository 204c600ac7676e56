"""One run as its writer sees it: the state of its row, the events that wait, and how far they may be published."""

import enum
from collections.abc import Callable
from typing import Final

from dragoman.router.model.stored import AHEAD, StoredEvents, StoredRun
from msgspec import Struct, field

ROW_BYTES: Final = 64 * 1024
"""A row of events is closed at this size, as a reader of the log takes whole ones."""
GATHERED_BYTES: Final = 4 * ROW_BYTES
"""So much of one run is written without a wait for more."""
WRITE_BYTES: Final = 16 * ROW_BYTES
"""The size of one transaction: a backlog is written in steps, each of which a slow server completes in time. So much
of all runs is written without a wait for more."""
NOTED: Final = AHEAD // 2
"""After so many events a run's row is written even if no more than its end has changed."""
WRITE_RUNS: Final = 100
"""The most runs of one transaction: to plan it, and to note that it is done, holds the event loop."""


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


# Names of their own, as Python 3.11 looks each member of an enumeration up by a function, and hashes it by another.
_NEW: Final = RowState.NEW
_STORED: Final = RowState.STORED
_REMOVED: Final = RowState.REMOVED


class WaitingEvent(Struct, frozen=True, gc=False):
    """An event that waits for the store. No tuple: each that waits would bring the next search for garbage nearer."""

    sequence: int
    data: bytes


class LoggedRun(Struct, eq=False):
    """A run as its writer sees it."""

    stored: StoredRun
    """Its row as it was written last, then without its state."""
    snapshot: Callable[[], StoredRun]
    """Returns the row to write; ``logged`` and ``size`` are the writer's own."""
    remark: Callable[[str, str], None]
    """Emits a notice to its readers: a code and a text."""
    lost: Callable[[], None]
    """Called when another router has taken the run."""
    state: RowState = RowState.NEW
    is_tried: bool = False
    """Whether the store was asked to insert it, and perhaps has."""
    is_over: bool = False
    is_behind: bool = False
    """Whether its readers know that the store fails."""
    waiting: list[WaitingEvent] = field(default_factory=list)
    waiting_bytes: int = 0
    logged: int = 0
    """The last sequence whose event the store has, or that it knows to be missing."""
    noted: int = 0
    """The same as its row has it for sure."""
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
        return self.state is not _STORED and self.state is not _NEW

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
        return self.written < self.changes and (not self.is_gone or self.state is _REMOVED)

    def is_publishable(self, sequence: int) -> bool:
        """Return whether a sequence may be published: a router that takes the run over leaves it out, too."""
        return sequence <= self.noted + AHEAD or self.is_gone

    def supersede(self) -> None:
        """Note that another router has it."""
        self.state = RowState.LOST if self.is_begun else RowState.CONFLICT


def rows_of(run: LoggedRun, most: int = WRITE_BYTES) -> tuple[list[StoredEvents], int]:
    """Return the waiting events as rows, and their size; missing events are a row without data.

    Args:
        run: the run.
        most: the maximum size of all events, unless the first one alone is larger.
    """
    run_id, expected = run.stored.run_id, run.logged + 1
    waiting, missing = run.waiting, run.dropped
    # Mostly some small events, one after the other.
    if waiting and missing < expected and run.waiting_bytes <= min(most, ROW_BYTES):
        last = waiting[-1].sequence
        if last - expected + 1 == len(waiting):
            row = StoredEvents(run_id, expected, last, [event.data for event in waiting])
            return [row], run.waiting_bytes
    rows: list[StoredEvents] = []
    events: list[bytes] = []
    size = total = 0
    for event in waiting:
        sequence, length = event.sequence, len(event.data)
        if total + length > most and events:
            missing = 0
            break
        if sequence != expected:
            rows.append(StoredEvents(run_id, expected, sequence - 1, None))
        if sequence != expected or not events or size + length > ROW_BYTES:
            events, size = [], 0
            rows.append(StoredEvents(run_id, sequence, sequence, events))
        events.append(event.data)
        size += length
        total += length
        rows[-1].last, expected = sequence, sequence + 1
    if missing >= expected:
        rows.append(StoredEvents(run_id, expected, missing, None))
    return rows, total
