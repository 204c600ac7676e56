"""How each of the victims that runs share is killed, and what must hold between that and the end of the runs."""

import abc
import asyncio
import random
import signal
from collections.abc import Sequence
from functools import partial
from typing import Final

from dragoman.client import Client, DragomanError
from dragoman.v1 import event_pb2, router_pb2

from tests.chaos.cases import ALONE, HELD
from tests.chaos.cluster import LEASE_S, PATIENCE_S, Cluster
from tests.chaos.commits import Commits
from tests.chaos.scenario import ASK_AGAIN, Scenario

_TAKEN_WITHIN_S: Final = 20.0
"""How long a run may be without a router while there is one."""
_LOOK_S: Final = 0.05
_AT_ONCE: Final = 0.4
"""How often a router is back at once, rather than after its runs were taken."""
_JUST_BEFORE_S: Final = 0.03
"""The time within which a router sees and reports that its adapter died."""
_GOING: Final = 0.5
"""How many of the readers go to the other router."""
_CLAIM: Final = b"RETURNING"
"""What the statement has by which a router takes runs over, and no other one."""
_ROW: Final = b'"router"'
"""What a statement has that writes a run: the name of a field in one of its values."""
_LONGEST_SILENCE_S: Final = 5.0
"""How long readers may wait for the notice that the log is not writable."""

Violations = list[tuple[Scenario, str]]


class Fault(abc.ABC):
    """One kill.

    Args:
        cluster: where.
        scenarios: the runs that it hits.
        rng: random numbers that depend on the seed.
    """

    def __init__(self, cluster: Cluster, scenarios: Sequence[Scenario], rng: random.Random) -> None:
        self._cluster, self._scenarios, self._rng = cluster, scenarios, rng

    @property
    def _held(self) -> list[Scenario]:
        return [scenario for scenario in self._scenarios if scenario.case.state in HELD]

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Note what is needed for it, while all is well."""

    async def _come_back(self) -> None:
        """Have callers that saw nothing of their runs ask for them again."""
        asking = [
            scenario.reader
            for scenario in self._scenarios
            if scenario.case.state == "before" and scenario.reader.repeats
        ]
        await asyncio.gather(*(reader.leave() for reader in asking if not reader.has_seen))

    @abc.abstractmethod
    async def do(self) -> Violations:
        """Kill, and bring back what has to be there for the runs to come to an end; return what was wrong."""


class Router(Fault):
    """Killed, and started again."""

    async def do(self) -> Violations:
        await self._cluster.end(signal.SIGKILL)
        await self._cluster.start()
        await self._come_back()
        return []


class Sidecar(Fault):
    """The adapter's process, which runs share."""

    async def prepare(self) -> None:
        adapter = self._scenarios[0].case.adapter
        if all(scenario.case.state == "before" for scenario in self._scenarios):
            # A case that is repeated alone: no run has needed it so far.
            async with Client(self._cluster.address) as client:
                await client.describe(adapter)
        self._entry = await self._cluster.entry(adapter)

    async def do(self) -> Violations:
        self._cluster.kill(self._entry.pid)
        return []


class SidecarGuard(Sidecar):
    """The guard of the adapter's process."""

    async def do(self) -> Violations:
        self._cluster.kill(self._entry.guard_pid)
        return []


class RouterSidecar(Sidecar):
    """Router and adapter, at the same moment or one just before the other."""

    async def do(self) -> Violations:
        router = self._cluster.routers[0]
        ends = [partial(router.send, signal.SIGKILL), partial(self._cluster.kill, self._entry.pid)]
        self._rng.shuffle(ends)
        first, second = ends
        first()
        # A router that is second may see that its adapter died, and report it, or be about to.
        await asyncio.sleep(self._rng.choice([0.0, 0.0, self._rng.uniform(0.0, _JUST_BEFORE_S)]))
        second()
        await router.ended()
        for scenario in self._scenarios:
            scenario.ended_first = await asyncio.to_thread(self._cluster.database.has_end, scenario.run_id)
        await self._cluster.start()
        await self._come_back()
        return []


class Database(Fault):
    """Connections cut, or a short lock."""

    async def do(self) -> Violations:
        await asyncio.to_thread(self._cluster.database.hurt, self._rng.choice([0.2, 0.5, 1.0, 7.0]))
        return []


class DatabaseHeld(Fault):
    """A lock for longer than the lease: who cannot write is late, not dead."""

    async def do(self) -> Violations:
        # Longer than the lease; or so long that every call which waits for the lock gives up, and another one waits.
        case = self._scenarios[0].case
        seconds = LEASE_S + (7.5 if case.storage in ALONE and not case.number else 2.5)
        holding = asyncio.ensure_future(asyncio.to_thread(self._cluster.database.hold, seconds))
        await asyncio.sleep(seconds * 0.2)
        before = {scenario: len(scenario.reader.events) for scenario in self._scenarios}
        await asyncio.sleep(seconds * 0.6)
        after = {scenario: len(scenario.reader.events) for scenario in self._scenarios}
        await holding
        streaming = [scenario for scenario in self._scenarios if scenario.case.state == "streaming"]
        stuck: Violations = [(one, "the agent was kept waiting") for one in streaming if after[one] <= before[one]]
        stuck += [(one, "it was taken over") for one in self._scenarios if self._was_taken(one)]
        return stuck + [(one, problem) for one in streaming if (problem := await _silence(one))]

    def _was_taken(self, scenario: Scenario) -> bool:
        lines = [line for router in self._cluster.routers for line in router.log_lines(scenario.run_id)]
        return any(line["event"] == "run recovered" for line in lines)


async def _silence(scenario: Scenario) -> str:
    """Return which notice about a log that fell behind a reader did not get."""
    code = ""
    try:
        async with asyncio.timeout(_LONGEST_SILENCE_S):
            for code in ("log_unavailable", "log_recovered"):
                await scenario.reader.until(partial(_is_notice, code))
    except (TimeoutError, AssertionError):
        return f"no reader got the notice {code}"
    return ""


def _is_notice(code: str, event: event_pb2.AgentEvent) -> bool:
    return event.notice.code == code


class _Answers(Fault):
    """Answers to COMMIT."""

    @property
    def _commits(self) -> Commits:
        assert self._cluster.commits is not None
        return self._cluster.commits

    async def _dropped(self) -> Violations:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._commits.until_dropped()
        except TimeoutError:
            return [(self._scenarios[0], "no COMMIT was answered by a cut")]
        return []


class Commit(_Answers):
    """First of the transaction by which a run is begun, then of any."""

    async def prepare(self) -> None:
        for scenario in self._scenarios:
            if scenario.case.state == "before":
                self._commits.drop(1, scenario.run_id.encode(), _ROW)

    async def do(self) -> Violations:
        begun = await self._dropped() if any(scenario.case.state == "before" for scenario in self._scenarios) else []
        self._commits.drop(self._rng.randint(1, 4))
        return begun + await self._dropped()


class Claim(_Answers):
    """The router, and the answer to the COMMIT by which the next one takes its runs over."""

    async def do(self) -> Violations:
        self._commits.drop(1, _CLAIM)
        await self._cluster.end(signal.SIGKILL)
        await self._cluster.start()
        await self._come_back()
        return await self._dropped()


class _OneOfTwo(Fault):
    """One of two routers; readers of both go on, some at the other one, some where they were."""

    place = 0
    signum = signal.SIGKILL

    @property
    def _moves(self) -> bool:
        """Whether another one has the runs afterwards."""
        return True

    async def prepare(self) -> None:
        self._stood = {scenario: await self._stand(scenario) for scenario in self._held}
        await self._until_recorded()
        self._owners = await self._owned()

    async def do(self) -> Violations:
        one, other = self._cluster.routers[self.place], self._cluster.routers[1 - self.place]
        for scenario in self._scenarios:
            # Where the run is not: it goes one hop, or to the one that took it.
            scenario.answers_at = self._cluster.routers[1].address
        await self._end()
        if self._rng.random() < _AT_ONCE:
            await one.start()  # then it is one of two that can take its old runs
        going = [reader for scenario in self._scenarios for reader in scenario.readers if self._rng.random() < _GOING]
        await asyncio.gather(*(reader.move(other.address) for reader in going))
        violations = await self._until_moved() if self._moves else []
        await self._cluster.start()
        return violations + [problem for scenario in self._held for problem in await self._compare(scenario)]

    async def _end(self) -> None:
        one = self._cluster.routers[self.place]
        one.send(self.signum)
        await one.ended()

    async def _stand(self, scenario: Scenario) -> router_pb2.RunSummary:
        until = asyncio.get_running_loop().time() + PATIENCE_S
        async with Client(self._cluster.address) as client:
            while True:
                try:
                    return (await client.get_run(scenario.run_id)).run
                except DragomanError as error:
                    # The log, or a connection to it, may not be back yet.
                    if error.reason not in ASK_AGAIN or asyncio.get_running_loop().time() > until:
                        raise
                await asyncio.sleep(_LOOK_S)

    async def _until_recorded(self) -> None:
        """Wait until the database knows all that wait for the kill."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while unknown := {scenario.run_id for scenario in self._held} - set(await self._owned()):
            assert asyncio.get_running_loop().time() < until, f"the log does not know of {unknown}"
            await asyncio.sleep(_LOOK_S)

    async def _owned(self) -> dict[str, str]:
        assert self._cluster.postgres is not None
        return await asyncio.to_thread(self._cluster.postgres.owners)

    async def _until_moved(self) -> Violations:
        loop = asyncio.get_running_loop()
        until = loop.time() + _TAKEN_WITHIN_S
        left = self._held
        while left and loop.time() < until:
            now = await self._owned()
            left = [scenario for scenario in left if now.get(scenario.run_id) == self._owners[scenario.run_id]]
            await asyncio.sleep(_LOOK_S)
        return [(scenario, f"no router took it over within {_TAKEN_WITHIN_S:.0f} s") for scenario in left]

    async def _compare(self, scenario: Scenario) -> Violations:
        """Check that its present router has the same attempt at the same process of the adapter."""
        before, now = self._stood[scenario], await self._stand(scenario)
        same = (before.instance_id, before.attempt) == (now.instance_id, now.attempt)
        problems = (
            [] if same else [f"it moved: from {before.instance_id} to {now.instance_id}, attempt {now.attempt}"]
        )
        owner = (await self._owned()).get(scenario.run_id)
        if self.place == 1 and owner != self._owners[scenario.run_id]:
            problems.append(f"it was {self._owners[scenario.run_id]}'s, and is {owner}'s")
        return [(scenario, problem) for problem in problems]


class Owner(_OneOfTwo):
    """The one that has the runs."""


class Neighbour(_OneOfTwo):
    """The one that has none of them."""

    place = 1

    @property
    def _moves(self) -> bool:
        return False


class OwnerDrained(_OneOfTwo):
    """The one that has the runs, terminated."""

    signum = signal.SIGTERM

    @property
    def _moves(self) -> bool:
        # Its own adapters' runs come to their end with it; others' go on.
        return bool(self._cluster.sidecars)

    async def _end(self) -> None:
        one = self._cluster.routers[self.place]
        one.send(self.signum)
        if not self._moves:
            # They are to end while it drains. What both were asked for at once may be the other's: who follows it
            # here is sent away, and this one is not there again before all have ended.
            other = self._cluster.routers[1 - self.place].address
            both = [scenario for scenario in self._scenarios if scenario.case.state == "before"]
            await asyncio.gather(*(reader.move(other) for scenario in both for reader in scenario.readers))
            await asyncio.gather(*(scenario.finish() for scenario in self._scenarios))
        await one.ended()


FAULTS: Final[dict[str, type[Fault]]] = {
    "router": Router,
    "sidecar": Sidecar,
    "sidecar_guard": SidecarGuard,
    "router_sidecar": RouterSidecar,
    "database": Database,
    "database_held": DatabaseHeld,
    "commit": Commit,
    "claim": Claim,
    "owner": Owner,
    "neighbour": Neighbour,
    "owner_drained": OwnerDrained,
}
"""By what is killed."""
