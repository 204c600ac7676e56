"""What runs have spent, in SQLite and in PostgreSQL; and the periods that it counts in."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

from dragoman.protocol.budgets import Used
from dragoman.router.model.spending import Account, LabelBudget, Period, Spent
from dragoman.router.policy.spending import as_spent, left_of, reached, span
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.router.store.test_store import a_run, ended

MINE, OTHER = Account("b USD", "acme", 0, 0), Account("b USD", "other", 0, 0)


async def of_run(store: Store, run_id: str) -> dict[Account, Spent]:
    """Return what the log has of a run, by account."""
    rows = await store.spending._database.fetch(
        "SELECT value, cost, tool_calls, runs FROM spending WHERE run_id = :run_id", {"run_id": run_id}
    )
    by_value = {"acme": MINE, "other": OTHER}
    return {by_value[value]: Spent(cost=cost, tool_calls=calls, runs=runs) for value, cost, calls, runs in rows}  # type: ignore[index, arg-type]  # as they are


async def test_what_is_written_again_counts_once(store: Store) -> None:
    for cost in (5, 7, 7, 6):  # the last by a router that has not read all of what was before it
        run = a_run(spent={MINE: Spent(cost=cost, runs=1)})
        await store.write([], [run], {"r"} if cost == 5 else ())
    await store.write([], [a_run("s", spent={MINE: Spent(tool_calls=2, runs=1), OTHER: Spent(cost=9)})], {"s"})
    assert await store.spending.spent(MINE) == Spent(cost=7, tool_calls=2, runs=2)
    assert await of_run(store, "s") == {MINE: Spent(tool_calls=2, runs=1), OTHER: Spent(cost=9)}
    assert await store.spending.values("b USD", 0, None, 1) == [("acme", Spent(cost=7, tool_calls=2, runs=2))]
    assert await store.spending.values("b USD", 0, "acme", 9) == [("other", Spent(cost=9))]


async def test_a_router_that_has_lost_a_run_writes_nothing_of_it(store: Store) -> None:
    await store.write([], [a_run(spent={MINE: Spent(cost=1)})], {"r"})
    await store.write([], [a_run(owner="two", spent={MINE: Spent(cost=5)})])
    assert await store.spending.spent(MINE) == Spent(cost=1)


async def test_what_is_spent_outlives_its_run_but_not_one_that_never_was(store: Store) -> None:
    for number in (1, 2, 3):
        run = ended(str(number), at=number)
        await store.write([], [a_run(str(number))], {str(number)})
        await store.write(
            [], [a_run(str(number), state=run.state, finished_at=number, spent={MINE: Spent(cost=number)})]
        )
    assert await store.delete_old(before=2.5, most_bytes=10) == 2
    assert await store.spending.spent(MINE) == Spent(cost=6)
    assert await store.spending.fold(before=0.0) == 2
    assert await of_run(store, "1") == {}
    assert await store.spending.spent(MINE) == Spent(cost=6)
    assert await store.delete_old(before=9, most_bytes=10) == 1
    assert await store.spending.spent(MINE) == Spent(cost=6)
    await store.write([], [a_run("refused", spent={MINE: Spent(cost=10)})], {"refused"})
    await store.remove("refused", "one")
    assert await store.spending.spent(MINE) == Spent(cost=6)


async def test_what_a_run_has_spent_is_added_up_once_after_its_end(store: Store) -> None:
    end = a_run(finished_at=5.0, spent={MINE: Spent(cost=7, runs=1), OTHER: Spent(cost=1)})
    await store.write([], [a_run(spent={MINE: Spent(cost=5, runs=1)})], {"r"})
    await store.write([], [a_run("live", spent={MINE: Spent(cost=2, runs=1)})], {"live"})
    await store.write([], [end])
    assert await store.spending.fold(before=5.0) == 0
    await asyncio.gather(*(store.spending.fold(before=6.0) for _ in range(4)))
    for _ in range(2):
        assert (await store.spending.spent(MINE), await store.spending.spent(OTHER)) == (
            Spent(cost=9, runs=2),
            Spent(cost=1),
        )
        assert await of_run(store, "r") == {}
        assert await of_run(store, "live") == {MINE: Spent(cost=2, runs=1)}
        assert await store.write([], [end]) == []  # its answer was lost
        assert await store.spending.fold(before=6.0) == 0
    assert await store.delete_old(before=9.0, most_bytes=10) == 1
    assert await store.spending.spent(MINE) == Spent(cost=9, runs=2)


async def test_what_many_runs_have_spent_is_added_up_in_parts(store: Store) -> None:
    runs = [str(number) for number in range(250)]
    await store.write([], [a_run(one, spent={MINE: Spent(cost=1)}) for one in runs], set(runs))
    await store.write([], [a_run(one, finished_at=1.0, spent={MINE: Spent(cost=2)}) for one in runs])
    assert [await store.spending.fold(before=2.0) for _ in range(3)] == [200, 50, 0]
    assert await store.spending.spent(MINE) == Spent(cost=500)


async def test_what_was_spent_in_a_period_goes_some_time_after_its_end(store: Store) -> None:
    past = Account("b USD", "acme", 10, 20)
    await store.write([], [a_run(spent={MINE: Spent(cost=1), past: Spent(cost=2)})], {"r"})
    assert await store.spending.delete_ended(before=20) == 0
    assert await store.spending.delete_ended(before=21) == 1
    assert (await store.spending.spent(past), await store.spending.spent(MINE)) == (Spent(), Spent(cost=1))


@given(st.sampled_from(("hour", "day", "month")), st.integers(0, 2**33))
def test_each_moment_is_in_one_period_and_the_next_begins_at_its_end(period: Period, now: int) -> None:
    since, until = span(period, now)
    assert since <= now < until
    assert span(period, since) == span(period, until - 1) == (since, until)
    assert span(period, until)[0] == until


def test_periods_begin_in_utc() -> None:
    now = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    begins = [datetime.fromtimestamp(span(period, now)[0], UTC) for period in ("hour", "day", "month")]
    assert [(one.month, one.day, one.hour) for one in begins] == [(12, 31, 23), (12, 31, 0), (12, 1, 0)]
    assert span("total", now) == (0, 0)


def test_what_is_left_and_what_is_reached() -> None:
    budget = LabelBudget("b", pb.Budget(cost="2", currency="EUR", tool_calls=4), "total", runs=9)
    spent = as_spent(Used(cost=Decimal("1.5"), tool_calls=4), runs=1)
    assert left_of(budget, spent) == pb.Budget(cost="0.5", currency="EUR", tool_calls=0)
    near, full = reached(budget, spent, 75), reached(budget, spent, 100)
    assert near is not None
    assert (near.cap, near.spent, near.limit) == ("cost", "1.5 EUR", "2 EUR")
    assert full is not None
    assert (full.cap, full.spent) == ("tool_calls", "4")
    assert reached(budget, spent, 100, beyond=True) is None
    huge = as_spent(Used(cost=Decimal(10) ** 25, input_tokens=2**70), runs=1)
    assert huge.cost == huge.input_tokens == 10**15
