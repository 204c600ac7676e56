"""Kills everything there is in every state there is; see the package.

``SEED`` makes the cases, ``KILLS`` is how many there are at least, ``CASE`` repeats one alone.
"""

import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign, Tally
from tests.chaos.cases import (
    ADAPTERS,
    ALONE,
    EACH,
    PAIRS,
    STATES,
    STORAGES,
    cells,
    makes_sense,
    parse_case,
    sweep,
    victims,
)
from tests.chaos.cluster import Cluster
from tests.router.store.databases import new_postgres, postgres_server

__all__ = ["postgres_server"]

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("SEED") or random.randrange(10**6))
KILLS = int(os.environ.get("KILLS") or 100)
CASE = os.environ.get("CASE", "")
_MAX_PROBLEMS = 12
KILLS_OF_A_PAIR = 1
"""How many of a hundred; most of its time goes into waiting for a router to see that another one is gone."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="dr-"))
    yield path
    if not os.environ.get("KEEP"):
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("storage", STORAGES)
async def test_no_event_is_lost_and_nothing_is_left(
    storage: str, folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if CASE and CASE.partition("/")[0] != storage:
        pytest.skip("CASE is of another storage")
    cluster = Cluster(storage, folder, "" if storage == "sqlite" else new_postgres(request))
    if storage in PAIRS and random.Random(f"{SEED} {storage}").random() < 0.5:
        cluster.routers.reverse()
    tally = Tally()
    try:
        await cluster.open()
        campaign = Campaign(cluster, tally)
        if CASE:
            case = parse_case(SEED, CASE)
            await campaign.sweep([("each" if case.victim in EACH else case.victim, [case])])
        else:
            number = 0
            while tally.kills.total() < _share(storage):
                await campaign.sweep(sweep(SEED, storage, number))
                number += 1
        if left := await cluster.close():
            tally.problems.append(f"left after the router's end: {left}")
    except Exception as error:  # noqa: BLE001 - reported below, with what was found before it
        tally.problems.append("the suite could not go on:\n" + "".join(traceback.format_exception(error)))
    finally:
        await cluster.end_all()
        with capsys.disabled():
            _report(storage, tally)
    if tally.problems:
        problems = (
            tally.problems[:_MAX_PROBLEMS] + tally.problems[_MAX_PROBLEMS:][-1:]
        )  # the last may be why there are no more
        pytest.fail(f"{len(tally.problems)} problems, SEED={SEED}:\n" + "\n".join(problems), pytrace=False)
    assert CASE or set(tally.cells) == set(cells(storage)), "a cell was not covered"


def _share(storage: str) -> float:
    """Return how many of all kills a storage gets at least."""
    of_a_pair = max(1.0, KILLS * KILLS_OF_A_PAIR / 100 / len(PAIRS))
    return of_a_pair if storage in PAIRS else max(1.0, (KILLS - of_a_pair) / len(ALONE))


def _report(storage: str, tally: Tally) -> None:
    counts = tally.cells.values()
    print(f"\n{storage}: SEED={SEED}, {tally.kills.total()} kills of {dict(tally.kills)},")
    print(f"  {sum(counts)} runs hit, at least {min(counts, default=0)} in each of {len(tally.cells)} cells")
    if tally.seconds_to_lost:
        print(f"  LOST was reported {max(tally.seconds_to_lost):.2f} s after a sidecar's end at the latest")
    print(f"  inputs and budgets: {dict(sorted(tally.extras.items()))}")
    print(f"  what became of inputs: {dict(sorted(tally.inputs.items()))}")
    print(f"  outcomes: {dict(sorted(tally.outcomes.items()))}")
    print(f"  seconds: {dict(tally.seconds)}")
    hit = {(victim, adapter) for _, victim, adapter, _ in tally.cells}
    for victim in victims(storage):
        for adapter in [one for one in ADAPTERS if (victim, one) in hit]:
            row = [
                f"{state} {tally.cells[storage, victim, adapter, state]}"
                if makes_sense(adapter, state)
                else f"{state} (it cannot ask)"
                for state in STATES
            ]
            print(f"  {victim:14} {adapter:12} {', '.join(row)}")
