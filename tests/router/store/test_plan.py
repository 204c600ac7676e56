"""What the writer does next, as a table: what waits → the rows of one transaction → what waits then."""

import gc
from collections.abc import Sequence

import pytest
from dragoman.router.model.stored import StoredEvents, StoredProgress, StoredRun
from dragoman.router.storage.logged import NOTED, ROW_BYTES, LoggedRun, RowState, WaitingEvent
from dragoman.router.storage.plan import plan
from dragoman.v1 import router_pb2
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

Waiting = Sequence[tuple[int, bytes]]
BEFORE, NOW = (router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id=name)) for name in ("before", "now"))


def logged(waiting: Waiting, stored: int = 0, *, dropped: int = 0, run_id: str = "r") -> LoggedRun:
    """Return a run whose log ends at ``stored``, and which ended meanwhile, with what waits of it."""
    row = StoredRun(run_id, 1.0, "fake", BEFORE, owner="o", lease_until=9.0)
    return LoggedRun(
        row,
        # The writer alone knows how much is stored; what the run says of that does not count.
        lambda: replace(row, state=NOW, finished_at=5.0, logged=77, size=77),
        lambda _code, _text: None,
        lambda: None,
        RowState.STORED,
        waiting=[WaitingEvent(*one) for one in waiting],
        logged=stored,
        size=100,
        waiting_bytes=sum(len(data) for _, data in waiting),
        dropped=dropped,
        last=max([stored, dropped, *(sequence for sequence, _ in waiting)]),
        changes=len(waiting) + 1,
        row_change=len(waiting) + 1,
    )


def shown(rows: Sequence[StoredEvents]) -> list[tuple[int, int, list[bytes] | None]]:
    return [(row.first, row.last, None if row.events is None else list(row.events)) for row in rows]


LARGE = b"x" * (ROW_BYTES - 1)
TABLE: dict[str, tuple[LoggedRun, int, list[tuple[int, int, list[bytes] | None]], list[int], int]] = {
    # what waits, the budget; the rows, what waits then, up to where the log is then
    "nothing but its end": (logged([], 4), 9, [], [], 4),
    "all of it in one row": (logged([(1, b"a"), (2, b"b")]), 9, [(1, 2, [b"a", b"b"])], [], 2),
    "to the budget exactly": (logged([(1, b"a"), (2, b"b")]), 2, [(1, 2, [b"a", b"b"])], [], 2),
    "one more than that": (logged([(1, b"a"), (2, b"b")]), 1, [(1, 1, [b"a"])], [2], 1),
    "its first event is larger": (logged([(1, b"aaa"), (2, b"b")]), 1, [(1, 1, [b"aaa"])], [2], 1),
    "a budget that others used": (logged([(5, b"a"), (6, b"b")], 4), -1, [(5, 5, [b"a"])], [6], 5),
    "a hole before it": (logged([(4, b"a")], 1), 9, [(2, 3, None), (4, 4, [b"a"])], [], 4),
    "a hole within it": (logged([(1, b"a"), (3, b"b")]), 9, [(1, 1, [b"a"]), (2, 2, None), (3, 3, [b"b"])], [], 3),
    "a hole behind it": (logged([(1, b"a")], dropped=3), 9, [(1, 1, [b"a"]), (2, 3, None)], [], 3),
    "only a hole": (logged([], 2, dropped=3), 9, [(3, 3, None)], [], 3),
    "a hole behind what does not fit": (logged([(1, b"a"), (2, b"b")], dropped=4), 1, [(1, 1, [b"a"])], [2], 1),
    "a hole that is known already": (logged([(4, b"a")], 3, dropped=3), 9, [(4, 4, [b"a"])], [], 4),
    "a row that is just full": (
        logged([(1, LARGE), (2, b"y")]),
        2 * ROW_BYTES,
        [(1, 2, [LARGE, b"y"])],
        [],
        2,
    ),
    "a row that would be too large": (
        logged([(1, LARGE), (2, b"yy"), (3, b"z")]),
        2 * ROW_BYTES,
        [(1, 1, [LARGE]), (2, 3, [b"yy", b"z"])],
        [],
        3,
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_table(case: str) -> None:
    run, budget, rows, waits, log_end = TABLE[case]
    before, bytes_before = run.stored, run.waiting_bytes
    (write,) = plan([run], budget)
    assert shown(write.events) == rows
    assert all(row.run_id == "r" for row in write.events)
    assert write.row.logged == log_end
    assert write.row.size == 100 + sum(len(data) for _, _, events in rows for data in events or ())
    # A log that lacks events does not say that the run is over.
    assert isinstance(write.row, StoredProgress if waits else StoredRun)
    if isinstance(write.row, StoredRun):
        assert (write.row.state, write.row.finished_at) == (NOW, 5.0)
    assert run.stored is before, "nothing is noted before the store has it"
    assert run.waiting_bytes == bytes_before

    freed = write.apply()
    if isinstance(write.row, StoredRun) and not waits:
        before = replace(write.row, state=router_pb2.GetRunResponse())
    assert run.stored == before, "its state is large, and with the store from now on"
    assert (run.logged, run.size) == (log_end, write.row.size)
    assert [event.sequence for event in run.waiting] == waits
    assert run.waiting_bytes == sum(len(event.data) for event in run.waiting) == bytes_before - freed
    assert run.is_changed == bool(waits)
    assert plan([run])[0].row.logged == run.last if waits else plan([run]) == []


def test_events_that_come_while_a_write_is_executed_wait_for_the_next() -> None:
    run = logged([(1, b"a")])
    (write,) = plan([run])
    run.waiting.append(WaitingEvent(2, b"bb"))
    run.waiting_bytes, run.last, run.changes, run.dropped = 3, 2, run.changes + 1, 3
    assert write.apply() == 1
    assert (run.waiting, run.waiting_bytes, run.is_changed, run.dropped) == ([WaitingEvent(2, b"bb")], 2, True, 3)
    (write,) = plan([run])
    assert shown(write.events) == [(2, 2, [b"bb"]), (3, 3, None)]


def test_what_waits_brings_no_search_for_garbage_nearer() -> None:
    assert not gc.is_tracked(WaitingEvent(1, b"e"))


def test_small_runs_come_first_and_each_gets_something() -> None:
    large = logged([(1, b"x" * 6), (2, b"y" * 6)], run_id="large")
    small, ended = logged([(1, b"a"), (2, b"b")], run_id="small"), logged([], run_id="ended")
    writes = plan([large, small, ended], 9)
    assert [write.run.stored.run_id for write in writes] == ["ended", "small", "large"]
    assert [len(row.events or ()) for write in writes for row in write.events] == [2, 1]


@pytest.mark.parametrize("state", [state for state in RowState if state not in {RowState.NEW, RowState.STORED}])
def test_a_run_of_another_router_or_that_never_was_is_not_written(state: RowState) -> None:
    run = logged([(1, b"a")])
    run.state = state
    assert plan([run]) == []


def test_a_run_that_has_not_changed_is_not_written() -> None:
    run = logged([])
    run.written = run.changes
    assert plan([run]) == []


def test_only_events_that_were_added_leave_the_rest_of_the_row_alone() -> None:
    run = logged([(1, b"a")])
    run.row_change = run.written = 1
    (write,) = plan([run])
    assert write.row == StoredProgress("r", "o", 1, 101, may_lag=True)
    write.apply()
    assert not run.is_changed


def test_the_row_says_how_far_the_log_is_once_in_a_while() -> None:
    run = logged([])
    run.row_change = run.written = run.changes
    lags = []
    for end in (NOTED, 2 * NOTED, 2 * NOTED + 1, 2 * NOTED + 2):
        run.waiting = [WaitingEvent(sequence, b"") for sequence in range(run.logged + 1, end + 1)]
        run.last, run.changes = end, run.changes + 1
        (write,) = plan([run])
        assert isinstance(write.row, StoredProgress)
        write.apply()
        assert run.logged == end
        lags.append((write.row.may_lag, run.noted))
    assert lags == [(True, 0), (False, 2 * NOTED), (True, 2 * NOTED), (True, 2 * NOTED)]


@pytest.mark.parametrize(("budget", "is_over"), [(9, True), (1, False)])
def test_a_run_is_inserted_as_it_is_but_not_over_before_its_events_are_there(budget: int, is_over: bool) -> None:
    run = logged([(1, b"a"), (2, b"b")])
    run.state = RowState.NEW
    (write,) = plan([run], budget)
    assert isinstance(write.row, StoredRun)
    assert (write.row.logged, write.row.size) == ((2, 102) if is_over else (1, 101))
    assert (write.row.state, write.row.finished_at) == ((NOW, 5.0) if is_over else (BEFORE, None))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.binary(min_size=1, max_size=8)), max_size=12),
    st.integers(0, 4),
    st.integers(0, 40),
)
def test_any_backlog_is_written_in_the_end_without_a_hole(
    steps: list[tuple[int, bytes]], behind: int, budget: int
) -> None:
    sequences = [sum(step for step, _ in steps[: number + 1]) for number in range(len(steps))]
    waiting = [(sequence, data) for sequence, (_, data) in zip(sequences, steps, strict=True)]
    end = sequences[-1] if sequences else 0
    run = logged(waiting, dropped=end + behind if behind else 0)
    log: list[bytes | None] = []
    while writes := plan([run], budget):
        for row in writes[0].events:
            assert row.first == len(log) + 1
            log += [None] * (row.last - row.first + 1) if row.events is None else row.events
            assert row.last == len(log)
        writes[0].apply()
        assert run.logged == len(log)
    known = dict(waiting)
    assert log == [known.get(sequence) for sequence in range(1, end + behind + 1)]
    assert (run.waiting_bytes, run.dropped, run.stored.finished_at) == (0, 0, 5.0)
