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

from tests.chaos import faults
from tests.chaos.cases import AT_ONCE, HELD, Case, Cell, kills_of
from tests.chaos.cluster import Cluster
from tests.chaos.oracle import Evidence, Problem, fate, judge
from tests.chaos.scenario import Scenario

MOST_RUNS: Final = 14
"""How many runs at once; each has an agent, its guard and a client."""

_MAX_REPORTED: Final = 3
"""How many of the runs that have the same problem are named."""

_BORN: Final = 0.4
"""How often the kill waits until the agents of runs without events have started."""

LOST_WITHIN_S: Final = 2.0
"""A second, and another one for a machine that is busy with chaos."""


@dataclass
class Tally:
    """What was done and how it went."""

    kills: Counter[str] = field(default_factory=Counter)
    cells: Counter[Cell] = field(default_factory=Counter)
    extras: Counter[str] = field(default_factory=Counter)
    """How many runs had an input on its way, and how many a budget near its cap."""
    inputs: Counter[str] = field(default_factory=Counter)
    """What became of inputs."""
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds_to_lost: list[float] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)
    """How long what was killed took to be killed, and its runs to end."""


class Campaign:
    """Sweeps in one cluster.

    Args:
        cluster: the cluster, started.
        tally: where everything is counted.
    """

    def __init__(self, cluster: Cluster, tally: Tally) -> None:
        self._cluster, self._tally = cluster, tally
        self._scenarios: list[Scenario] = []

    async def sweep(self, rounds: Sequence[tuple[str, list[Case]]]) -> None:
        """Do these rounds, then judge all runs of them with a fresh router."""
        for victim, cases in rounds:
            for first in range(0, len(cases), MOST_RUNS):
                some = cases[first : first + MOST_RUNS]
                with _named(f"a round of {victim}", some):
                    await self._round(victim, some)
        with _named("the judgement of all runs", [scenario.case for scenario in self._scenarios]):
            await self._settle()

    async def _round(self, victim: str, cases: list[Case]) -> None:
        began = time.monotonic()
        scenarios = [Scenario(case, self._cluster) for case in cases]
        self._scenarios += scenarios
        if victim == "each":
            await self._each(scenarios, _alone)
        else:
            await self._each([scenario for scenario in scenarios if scenario.case.state != "before"], _into_state)
            await self._kill_shared(victim, scenarios)
            await self._each(scenarios, Scenario.finish)
        self._tally.kills[victim] += kills_of(victim, cases)
        self._tally.cells.update(case.cell for case in cases)
        self._tally.extras.update(f"{case.sends or 'no input'}{', budget' * case.has_budget}" for case in cases)
        if (postgres := self._cluster.postgres) is not None:
            for (
                scenario
            ) in scenarios:  # before the next kill, which may move once more what is not yet known to be over
                scenario.moves = await asyncio.to_thread(postgres.moves, scenario.run_id)
        if left := await self._cluster.until_no_run_is_left():
            self._report(scenarios, f"left after all runs: {left}")
        self._tally.seconds[victim] += round(time.monotonic() - began)

    async def _each(self, scenarios: Sequence[Scenario], do: Callable[[Scenario], Awaitable[None]]) -> None:
        """Do this with all at once; what goes wrong is a problem of that one."""
        done = await asyncio.gather(*(do(scenario) for scenario in scenarios), return_exceptions=True)
        for scenario, problem in zip(scenarios, done, strict=True):
            if isinstance(problem, BaseException):
                self._report([scenario], _description(problem))

    async def _kill_shared(self, victim: str, scenarios: list[Scenario]) -> None:
        groups: dict[str, list[Scenario]] = {}
        for scenario in scenarios:
            groups.setdefault("" if victim in AT_ONCE else scenario.case.adapter, []).append(scenario)
        for group in groups.values():
            await self._kill_one(victim, group)

    async def _kill_one(self, victim: str, scenarios: list[Scenario]) -> None:
        rng = scenarios[0].case.shared_rng("kill")
        fault = faults.FAULTS[victim](self._cluster, scenarios, rng)
        await fault.prepare()
        for scenario in scenarios:
            if scenario.case.state in HELD and scenario.is_over:
                self._report([scenario], "it was over before its victim was killed")
            if scenario.case.state == "before":
                await scenario.start()
            elif scenario.case.state == "finishing":
                scenario.open_gate()
        await asyncio.sleep(rng.uniform(0.0, 0.15))
        if rng.random() < _BORN:
            await self._each([scenario for scenario in scenarios if scenario.case.state == "before"], _born)
        for scenario, problem in await fault.do():
            self._report([scenario], problem)
        if "sidecar" in victim:
            await self._time_to_lost(victim, scenarios)

    async def _time_to_lost(self, victim: str, scenarios: list[Scenario]) -> None:
        """Measure how long it takes until killed runs are reported as LOST."""
        began, delayed_s = time.monotonic(), self._cluster.delayed_s
        held = [scenario for scenario in scenarios if scenario.case.state in HELD]
        await self._each(held, Scenario.until_over)
        # Where others keep the machine busy, it is not the product that takes so long.
        took = max(0.0, time.monotonic() - began - (self._cluster.delayed_s - delayed_s))
        if victim != "router_sidecar":  # there it takes another router first
            self._tally.seconds_to_lost.append(took)
            if took > LOST_WITHIN_S:
                self._report(scenarios, f"LOST was reported after {took:.1f} s")
        await self._each(held, Scenario.until_gone)

    async def _settle(self) -> None:
        """End the router, in one of two ways, and ask the next one for everything."""
        scenarios, self._scenarios = self._scenarios, []
        rng = scenarios[0].case.shared_rng("settle")
        await self._cluster.end(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        await self._cluster.start()
        for scenario in scenarios:
            try:
                await scenario.send_again()
                evidence = await self._evidence(scenario)
                outcome = judge(evidence)
            except Problem as problem:
                self._report([scenario], str(problem))
            except (DragomanError, TimeoutError) as problem:
                self._report([scenario], f"the log does not have it to its end: {_description(problem)}")
            else:
                name = pb.Outcome.Name(outcome).removeprefix("OUTCOME_") if outcome is not None else "refused"
                self._tally.outcomes[f"{scenario.case.victim} {name}"] += 1
                if evidence.sent is not None:
                    self._tally.inputs[f"{scenario.case.sends} {fate(evidence)}"] += 1
        if found := await asyncio.to_thread(self._cluster.traces):
            self._report(scenarios, f"a secret is in {found}")

    async def _evidence(self, scenario: Scenario) -> Evidence:
        return Evidence(
            case=scenario.case,
            journal=scenario.notes(),
            log=await scenario.attach_all(),
            readers=[reader.events for reader in scenario.readers] if not scenario.refusal else [],
            refused=scenario.refusal,
            secret=scenario.secret,
            rows=await asyncio.to_thread(self._cluster.database.rows, scenario.run_id),
            moves=scenario.moves,
            ended_first=scenario.ended_first,
            is_asked_for=scenario.is_asked_for,
            sent=scenario.sender.sent if scenario.sender is not None else None,
        )

    def _report(self, scenarios: Sequence[Scenario], problem: str) -> None:
        for scenario in scenarios[:_MAX_REPORTED]:
            story = "".join(f"\n      {line}" for line in scenario.story())
            case = scenario.case
            self._tally.problems.append(f"{case.name} {scenario.run_id}: {problem}\n    {case.how_to_repeat}{story}")


@contextlib.contextmanager
def _named(what: str, cases: Sequence[Case]) -> Iterator[None]:
    """Have what goes wrong while the block runs, other than with one run, say what was done and to which cases."""
    try:
        yield
    except Exception as error:
        some = "".join(f"\n  {case.how_to_repeat}" for case in cases[:_MAX_REPORTED])
        error.add_note(f"in {what}; to repeat one of it:{some}")
        raise


def _description(problem: BaseException) -> str:
    """Return what it was and where: a time that ran out says nothing by itself."""
    causes = []
    cause: BaseException | None = problem
    while cause is not None:
        frames = [one for one in traceback.extract_tb(cause.__traceback__) if "chaos" in one.filename]
        where = " < ".join(f"{one.name}:{one.lineno}" for one in frames[::-1])
        causes.append(f"{type(cause).__name__} {cause} ({where})")
        cause = cause.__context__
    return ", after ".join(causes)


async def _born(scenario: Scenario) -> None:
    await scenario.born()


async def _into_state(scenario: Scenario) -> None:
    await scenario.start()
    await scenario.reach()


async def _alone(scenario: Scenario) -> None:
    """Do a case whose victim is its own."""
    try:
        await _into_state(scenario)
        await scenario.kill()
        if scenario.case.victim != "client":
            # What lost its keeper must be ended though it could go on.
            await scenario.until_over()
            await scenario.until_gone()
    finally:
        await scenario.finish()
