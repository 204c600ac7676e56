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
from tests.chaos.commits import Commits
from tests.chaos.trial import ASK_AGAIN, Trial
from tests.chaos.world import LEASE_S, PATIENCE_S, World

_TAKEN_WITHIN_S: Final = 20.0
"""How long a run may be without a router while there is one."""
_LOOK_S: Final = 0.05
_AT_ONCE: Final = 0.4
"""How often a router is back at once, rather than after its runs were taken."""
_JUST_BEFORE_S: Final = 0.03
"""In which time a router sees that its adapter died, and tells it."""
_GOING: Final = 0.5
"""How many of the readers go to the other router."""
_CLAIM: Final = b"RETURNING"
"""What the statement has by which a router takes runs over, and no other one."""
_ROW: Final = b'"router"'
"""What a statement has that writes a run: the name of a field in one of its values."""
_LONGEST_SILENCE_S: Final = 5.0
"""For how long a log that cannot be written need not be told to who reads."""

Blame = list[tuple[Trial, str]]


class Strike(abc.ABC):
    """One kill.

    Args:
        world: where.
        trials: the runs that it hits.
        dice: for what the seed decides.
    """

    def __init__(self, world: World, trials: Sequence[Trial], dice: random.Random) -> None:
        self._world, self._trials, self._dice = world, trials, dice

    @property
    def _held(self) -> list[Trial]:
        return [trial for trial in self._trials if trial.case.state in HELD]

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Note what is needed for it, while all is well."""

    async def _come_back(self) -> None:
        """Have callers that saw nothing of their runs ask for them again."""
        asking = [trial.reader for trial in self._trials if trial.case.state == "before" and trial.reader.repeats]
        await asyncio.gather(*(reader.leave() for reader in asking if not reader.has_seen))

    @abc.abstractmethod
    async def do(self) -> Blame:
        """Kill, and bring back what has to be there for the runs to come to an end; return what was wrong."""


class Router(Strike):
    """Killed, and started again."""

    async def do(self) -> Blame:
        await self._world.end(signal.SIGKILL)
        await self._world.start()
        await self._come_back()
        return []


class Sidecar(Strike):
    """The adapter's process, which runs share."""

    async def prepare(self) -> None:
        adapter = self._trials[0].case.adapter
        if all(trial.case.state == "before" for trial in self._trials):
            # A case that is repeated alone: nobody has needed it so far.
            async with Client(self._world.address) as client:
                await client.describe(adapter)
        self._entry = await self._world.entry(adapter)

    async def do(self) -> Blame:
        self._world.kill(self._entry.pid)
        return []


class SidecarGuard(Sidecar):
    """The guard of the adapter's process."""

    async def do(self) -> Blame:
        self._world.kill(self._entry.guard_pid)
        return []


class RouterSidecar(Sidecar):
    """Router and adapter, at the same moment or one just before the other."""

    async def do(self) -> Blame:
        router = self._world.routers[0]
        ends = [partial(router.send, signal.SIGKILL), partial(self._world.kill, self._entry.pid)]
        self._dice.shuffle(ends)
        first, second = ends
        first()
        # A router that is second may see that its adapter died, and tell it, or be about to.
        await asyncio.sleep(self._dice.choice([0.0, 0.0, self._dice.uniform(0.0, _JUST_BEFORE_S)]))
        second()
        await router.ended()
        for trial in self._trials:
            trial.ended_first = await asyncio.to_thread(self._world.database.has_end, trial.run_id)
        await self._world.start()
        await self._come_back()
        return []


class Database(Strike):
    """Connections cut, or a short lock."""

    async def do(self) -> Blame:
        await asyncio.to_thread(self._world.database.hurt, self._dice.choice([0.2, 0.5, 1.0, 7.0]))
        return []


class DatabaseHeld(Strike):
    """A lock for longer than the lease: who cannot write is late, not dead."""

    async def do(self) -> Blame:
        # Longer than the lease; or so long that every call which waits for the lock gives up, and another one waits.
        case = self._trials[0].case
        seconds = LEASE_S + (7.5 if case.storage in ALONE and not case.number else 2.5)
        holding = asyncio.ensure_future(asyncio.to_thread(self._world.database.hold, seconds))
        await asyncio.sleep(seconds * 0.2)
        before = {trial: len(trial.reader.events) for trial in self._trials}
        await asyncio.sleep(seconds * 0.6)
        after = {trial: len(trial.reader.events) for trial in self._trials}
        await holding
        streaming = [trial for trial in self._trials if trial.case.state == "streaming"]
        stuck: Blame = [(one, "the agent was kept waiting") for one in streaming if after[one] <= before[one]]
        stuck += [(one, "it was taken over") for one in self._trials if self._was_taken(one)]
        return stuck + [(one, problem) for one in streaming if (problem := await _silence(one))]

    def _was_taken(self, trial: Trial) -> bool:
        lines = [line for router in self._world.routers for line in router.said_of(trial.run_id)]
        return any(line["event"] == "run taken over" for line in lines)


async def _silence(trial: Trial) -> str:
    """Return what a reader of a run was not told of a log that fell behind."""
    told = ""
    try:
        async with asyncio.timeout(_LONGEST_SILENCE_S):
            for told in ("log_unavailable", "log_recovered"):
                await trial.reader.until(partial(_is_notice, told))
    except (TimeoutError, AssertionError):
        return f"nobody was told {told}"
    return ""


def _is_notice(code: str, event: event_pb2.AgentEvent) -> bool:
    return event.notice.code == code


class _Answers(Strike):
    """Answers to COMMIT."""

    @property
    def _commits(self) -> Commits:
        assert self._world.commits is not None
        return self._world.commits

    async def _dropped(self) -> Blame:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._commits.until_dropped()
        except TimeoutError:
            return [(self._trials[0], "no COMMIT was answered by a cut")]
        return []


class Commit(_Answers):
    """First of the transaction by which a run is begun, then of any."""

    async def prepare(self) -> None:
        for trial in self._trials:
            if trial.case.state == "before":
                self._commits.drop(1, trial.run_id.encode(), _ROW)

    async def do(self) -> Blame:
        begun = await self._dropped() if any(trial.case.state == "before" for trial in self._trials) else []
        self._commits.drop(self._dice.randint(1, 4))
        return begun + await self._dropped()


class Claim(_Answers):
    """The router, and the answer to the COMMIT by which the next one takes its runs over."""

    async def do(self) -> Blame:
        self._commits.drop(1, _CLAIM)
        await self._world.end(signal.SIGKILL)
        await self._world.start()
        await self._come_back()
        return await self._dropped()


class _OneOfTwo(Strike):
    """One of two routers; readers of both go on, some at the other one, some where they were."""

    place = 0
    signum = signal.SIGKILL

    @property
    def _moves(self) -> bool:
        """Whether another one has the runs afterwards."""
        return True

    async def prepare(self) -> None:
        self._stood = {trial: await self._stand(trial) for trial in self._held}
        await self._until_recorded()
        self._owners = await self._owned()

    async def do(self) -> Blame:
        one, other = self._world.routers[self.place], self._world.routers[1 - self.place]
        for trial in self._trials:
            # Where the run is not: it goes one hop, or to the one that took it.
            trial.answers_at = self._world.routers[1].address
        await self._end()
        if self._dice.random() < _AT_ONCE:
            await one.start()  # then it is one of two that can take its old runs
        going = [reader for trial in self._trials for reader in trial.readers if self._dice.random() < _GOING]
        await asyncio.gather(*(reader.move(other.address) for reader in going))
        blame = await self._until_moved() if self._moves else []
        await self._world.start()
        return blame + [problem for trial in self._held for problem in await self._compare(trial)]

    async def _end(self) -> None:
        one = self._world.routers[self.place]
        one.send(self.signum)
        await one.ended()

    async def _stand(self, trial: Trial) -> router_pb2.RunSummary:
        until = asyncio.get_running_loop().time() + PATIENCE_S
        async with Client(self._world.address) as client:
            while True:
                try:
                    return (await client.get_run(trial.run_id)).run
                except DragomanError as error:
                    # The log, or a connection to it, may not be back yet.
                    if error.reason not in ASK_AGAIN or asyncio.get_running_loop().time() > until:
                        raise
                await asyncio.sleep(_LOOK_S)

    async def _until_recorded(self) -> None:
        """Wait until the database knows all that wait for the kill."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while unknown := {trial.run_id for trial in self._held} - set(await self._owned()):
            assert asyncio.get_running_loop().time() < until, f"the log does not know of {unknown}"
            await asyncio.sleep(_LOOK_S)

    async def _owned(self) -> dict[str, str]:
        assert self._world.postgres is not None
        return await asyncio.to_thread(self._world.postgres.owners)

    async def _until_moved(self) -> Blame:
        loop = asyncio.get_running_loop()
        until = loop.time() + _TAKEN_WITHIN_S
        left = self._held
        while left and loop.time() < until:
            now = await self._owned()
            left = [trial for trial in left if now.get(trial.run_id) == self._owners[trial.run_id]]
            await asyncio.sleep(_LOOK_S)
        return [(trial, f"nobody took it within {_TAKEN_WITHIN_S:.0f} s") for trial in left]

    async def _compare(self, trial: Trial) -> Blame:
        """Whoever has it now has the same attempt at the same process of the adapter."""
        before, now = self._stood[trial], await self._stand(trial)
        same = (before.instance_id, before.attempt) == (now.instance_id, now.attempt)
        problems = (
            [] if same else [f"it moved: from {before.instance_id} to {now.instance_id}, attempt {now.attempt}"]
        )
        owner = (await self._owned()).get(trial.run_id)
        if self.place == 1 and owner != self._owners[trial.run_id]:
            problems.append(f"it was {self._owners[trial.run_id]}'s, and is {owner}'s")
        return [(trial, problem) for problem in problems]


class Owner(_OneOfTwo):
    """The one that has the runs."""


class Neighbour(_OneOfTwo):
    """The one that has none of them."""

    place = 1

    @property
    def _moves(self) -> bool:
        return False


class OwnerDrained(_OneOfTwo):
    """The one that has the runs, told to end."""

    signum = signal.SIGTERM

    @property
    def _moves(self) -> bool:
        # Its own adapters' runs come to their end with it; others' go on.
        return bool(self._world.sidecars)

    async def _end(self) -> None:
        one = self._world.routers[self.place]
        one.send(self.signum)
        if not self._moves:
            # They are to end while it drains. What both were asked for at once may be the other's: who follows it
            # here is sent away, and this one is not there again before all have ended.
            other = self._world.routers[1 - self.place].address
            both = [trial for trial in self._trials if trial.case.state == "before"]
            await asyncio.gather(*(reader.move(other) for trial in both for reader in trial.readers))
            await asyncio.gather(*(trial.finish() for trial in self._trials))
        await one.ended()


STRIKES: Final[dict[str, type[Strike]]] = {
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
