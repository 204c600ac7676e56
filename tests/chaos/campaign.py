"""Sweeps over all cells of one storage: rounds of runs, a kill for each, and the judgement of all at the end."""

import asyncio
import contextlib
import signal
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from dragoman.client import DragomanError
from dragoman.v1 import event_pb2 as pb

from tests.chaos import strikes
from tests.chaos.cases import AT_ONCE, HELD, Case, Cell, kills_of
from tests.chaos.oracle import Evidence, Problem, judge
from tests.chaos.trial import Trial
from tests.chaos.world import World

MOST_RUNS: Final = 14
"""How many runs at once; each has an agent, its guard and a client."""

_MOST_BLAMED: Final = 3
"""How many of the runs that have the same problem are named."""

_BORN: Final = 0.4
"""How often the agents of runs that have told nothing are there when their victim is killed, and not perhaps."""

LOST_WITHIN_S: Final = 2.0
"""A second, and another one for a machine that is busy with chaos."""


@dataclass
class Tally:
    """What was done and how it went."""

    kills: Counter[str] = field(default_factory=Counter)
    cells: Counter[Cell] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds_to_lost: list[float] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)
    """How long what was killed took to be killed, and its runs to end."""


class Campaign:
    """Sweeps in one world.

    Args:
        world: the world, started.
        tally: where everything is counted.
    """

    def __init__(self, world: World, tally: Tally) -> None:
        self._world, self._tally = world, tally
        self._trials: list[Trial] = []

    async def sweep(self, rounds: Sequence[tuple[str, list[Case]]]) -> None:
        """Do these rounds, then judge all runs of them with a fresh router."""
        for victim, cases in rounds:
            for first in range(0, len(cases), MOST_RUNS):
                some = cases[first : first + MOST_RUNS]
                with _named(f"a round of {victim}", some):
                    await self._round(victim, some)
        with _named("the judgement of all runs", [trial.case for trial in self._trials]):
            await self._settle()

    async def _round(self, victim: str, cases: list[Case]) -> None:
        began = time.monotonic()
        trials = [Trial(case, self._world) for case in cases]
        self._trials += trials
        if victim == "each":
            await self._each(trials, _alone)
        else:
            await self._each([trial for trial in trials if trial.case.state != "before"], _into_state)
            await self._kill_shared(victim, trials)
            await self._each(trials, Trial.finish)
        self._tally.kills[victim] += kills_of(victim, cases)
        self._tally.cells.update(case.cell for case in cases)
        if (postgres := self._world.postgres) is not None:
            for trial in trials:  # before the next kill, which may move once more what is not yet known to be over
                trial.moves = await asyncio.to_thread(postgres.moves, trial.run_id)
        if left := await self._world.until_no_run_is_left():
            self._blame(trials, f"left after all runs: {left}")
        self._tally.seconds[victim] += round(time.monotonic() - began)

    async def _each(self, trials: Sequence[Trial], do: Callable[[Trial], Awaitable[None]]) -> None:
        """Do this with all at once; what goes wrong is a problem of that one."""
        done = await asyncio.gather(*(do(trial) for trial in trials), return_exceptions=True)
        for trial, problem in zip(trials, done, strict=True):
            if isinstance(problem, BaseException):
                self._blame([trial], _told(problem))

    async def _kill_shared(self, victim: str, trials: list[Trial]) -> None:
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault("" if victim in AT_ONCE else trial.case.adapter, []).append(trial)
        for group in groups.values():
            await self._kill_one(victim, group)

    async def _kill_one(self, victim: str, trials: list[Trial]) -> None:
        dice = trials[0].case.shared_dice("kill")
        strike = strikes.STRIKES[victim](self._world, trials, dice)
        await strike.prepare()
        for trial in trials:
            if trial.case.state in HELD and trial.is_over:
                self._blame([trial], "it was over before its victim was killed")
            if trial.case.state == "before":
                await trial.start()
            elif trial.case.state == "finishing":
                trial.open_gate()
        await asyncio.sleep(dice.uniform(0.0, 0.15))
        if dice.random() < _BORN:
            await self._each([trial for trial in trials if trial.case.state == "before"], _born)
        for trial, problem in await strike.do():
            self._blame([trial], problem)
        if "sidecar" in victim:
            await self._time_to_lost(victim, trials)

    async def _time_to_lost(self, victim: str, trials: list[Trial]) -> None:
        """Measure how long it takes until those that were killed in the middle are told so."""
        began, delayed_s = time.monotonic(), self._world.delayed_s
        held = [trial for trial in trials if trial.case.state in HELD]
        await self._each(held, Trial.until_over)
        # Where others keep the machine busy, it is not the product that takes so long.
        took = max(0.0, time.monotonic() - began - (self._world.delayed_s - delayed_s))
        if victim != "router_sidecar":  # there it takes another router first
            self._tally.seconds_to_lost.append(took)
            if took > LOST_WITHIN_S:
                self._blame(trials, f"LOST was told after {took:.1f} s")
        await self._each(held, Trial.until_gone)

    async def _settle(self) -> None:
        """End the router, in one of two ways, and ask the next one for everything."""
        trials, self._trials = self._trials, []
        dice = trials[0].case.shared_dice("settle")
        await self._world.end(dice.choice([signal.SIGKILL, signal.SIGTERM]))
        await self._world.start()
        for trial in trials:
            try:
                outcome = judge(await self._evidence(trial))
            except Problem as problem:
                self._blame([trial], str(problem))
            except (DragomanError, TimeoutError) as problem:
                self._blame([trial], f"the log does not tell it to its end: {_told(problem)}")
            else:
                name = pb.Outcome.Name(outcome).removeprefix("OUTCOME_") if outcome is not None else "refused"
                self._tally.outcomes[f"{trial.case.victim} {name}"] += 1
        if found := await asyncio.to_thread(self._world.traces):
            self._blame(trials, f"a secret is in {found}")

    async def _evidence(self, trial: Trial) -> Evidence:
        return Evidence(
            case=trial.case,
            journal=trial.notes(),
            log=await trial.attach_all(),
            readers=[reader.events for reader in trial.readers] if not trial.refusal else [],
            refused=trial.refusal,
            secret=trial.secret,
            rows=await asyncio.to_thread(self._world.database.rows, trial.run_id),
            moves=trial.moves,
            ended_first=trial.ended_first,
            is_asked_for=trial.is_asked_for,
        )

    def _blame(self, trials: Sequence[Trial], problem: str) -> None:
        for trial in trials[:_MOST_BLAMED]:
            story = "".join(f"\n      {line}" for line in trial.story())
            case = trial.case
            self._tally.problems.append(f"{case.name} {trial.run_id}: {problem}\n    {case.how_to_repeat}{story}")


@contextlib.contextmanager
def _named(what: str, cases: Sequence[Case]) -> Iterator[None]:
    """Have what goes wrong while the block runs, other than with one run, say what was done and to which cases."""
    try:
        yield
    except Exception as error:
        some = "".join(f"\n  {case.how_to_repeat}" for case in cases[:_MOST_BLAMED])
        error.add_note(f"in {what}; to repeat one of it:{some}")
        raise


def _told(problem: BaseException) -> str:
    """Return what it was and where: a time that ran out says nothing by itself."""
    told = []
    cause: BaseException | None = problem
    while cause is not None:
        frames = [one for one in traceback.extract_tb(cause.__traceback__) if "chaos" in one.filename]
        where = " < ".join(f"{one.name}:{one.lineno}" for one in frames[::-1])
        told.append(f"{type(cause).__name__} {cause} ({where})")
        cause = cause.__context__
    return ", after ".join(told)


async def _born(trial: Trial) -> None:
    await trial.born()


async def _into_state(trial: Trial) -> None:
    await trial.start()
    await trial.reach()


async def _alone(trial: Trial) -> None:
    """Do a case whose victim is its own."""
    try:
        await _into_state(trial)
        await trial.kill()
        if trial.case.victim != "client":
            # What lost its keeper must be ended though it could go on.
            await trial.until_over()
            await trial.until_gone()
    finally:
        await trial.finish()
