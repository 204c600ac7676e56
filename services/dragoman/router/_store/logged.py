"""One run as its writer sees it: what waits to be written, and how far it may be told."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dragoman.router._domain.stored import StoredEvents, StoredRun
from dragoman.router._store.batches import pack

ROW_BYTES: Final = 256 * 1024
"""A row of events is closed when it has so much."""
WRITE_BYTES: Final = 8 * ROW_BYTES
"""What is written at once: a backlog goes in steps, each of which a slow server has in time."""


@dataclass(eq=False, slots=True)
class LoggedRun:
    """A run as its writer sees it. Made by ``Writer.follow``."""

    stored: StoredRun
    """What was written of it last."""
    snapshot: Callable[[], StoredRun]
    """Returns what is to be written; ``reserved``, ``logged`` and ``size`` are the writer's own."""
    remark: Callable[[str, str], None]
    """Tells those who follow it: a code and a text."""
    lost: Callable[[], None]
    """Called when another router has taken the run."""
    is_begun: bool = False
    """Whether the store knows it."""
    is_beginning: bool = False
    """Whether the store is being told; it may know it already."""
    sure_up_to: int | None = None
    """Its first mark that the store may have, where nobody heard whether it does; ``None`` if there is none."""
    is_late: bool = False
    """Whether it is still to be told to the store, which failed when it began."""
    is_over: bool = False
    is_gone: bool = False
    """Whether no more of it is written: another router has it, it cannot be kept, or it never was."""
    is_taken: bool = False
    """Whether another router has it."""
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    waiting_bytes: int = 0
    dropped: int = 0
    """The last sequence of those that wait no more, as there were too many; 0 if there are none."""
    last: int = 0
    wanted: int = 0
    """The highest sequence that is to be told, where a gap went before it."""
    changes: int = 0
    """How often something happened that is to be written."""
    written: int = 0
    """How many of ``changes`` the store has."""
    is_behind: bool = False
    """Whether its followers were told that the store fails."""

    @property
    def is_changed(self) -> bool:
        """Whether something is to be written."""
        return self.written < self.changes

    @property
    def told_up_to(self) -> int | None:
        """The last sequence that may be told to anybody; ``None`` for any."""
        if not self.is_begun and self.sure_up_to is not None:
            return self.sure_up_to
        return self.stored.reserved if self.is_begun or self.is_beginning else None


def rows_of(run: LoggedRun, most: int = WRITE_BYTES) -> list[StoredEvents]:
    """Return what waits as rows; what was let go is a row without events.

    Args:
        run: the run.
        most: no more events than of so many bytes, but one.
    """
    run_id, expected = run.stored.run_id, run.stored.logged + 1
    rows: list[StoredEvents] = []
    events: list[bytes] = []
    first = size = 0
    for sequence, data in run.waiting:
        most -= len(data)
        if most < 0 and (events or rows):
            break
        if sequence != expected or size + len(data) > ROW_BYTES:
            if events:
                rows.append(StoredEvents(run_id, first, first + len(events) - 1, pack(events)))
                events, size = [], 0
            if sequence != expected:
                rows.append(StoredEvents(run_id, expected, sequence - 1, None))
        if not events:
            first = sequence
        events.append(data)
        size += len(data)
        expected = sequence + 1
    if events:
        rows.append(StoredEvents(run_id, first, first + len(events) - 1, pack(events)))
    return rows


def has_all(run: LoggedRun, rows: Sequence[StoredEvents]) -> bool:
    """Tell whether these rows are all that waits."""
    return not run.waiting or bool(rows and rows[-1].last == run.waiting[-1][0])
