"""What is killed, in which state, of which adapter, with which storage: the cells, and a case for each kill."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

ALONE: Final = ("sqlite", "postgres")
"""One router, by what keeps its runs."""
PAIRS: Final = ("pair", "pair_dialed")
"""Two routers on one PostgreSQL: the owner of all runs launches their adapters, or both dial adapters of others."""
STORAGES: Final = (*ALONE, *PAIRS)
ADAPTERS: Final = ("process", "claude_code", "acp")
STATES: Final = ("before", "streaming", "tool", "input", "finishing")
HELD: Final = frozenset({"streaming", "tool", "input"})
"""States in which a run stays until it is let go on."""
EACH: Final = ("client", "agent", "guard")
"""Victims that one run has for itself."""
SHARED: Final = ("router", "sidecar", "sidecar_guard", "router_sidecar", "database")
"""Victims that many runs share: each is killed once for each adapter, which hits all its runs."""
COMMITS: Final = ("commit", "claim")
"""The answer to a COMMIT, which is done: of any transaction, or of the one by which a router takes runs over."""
HOLD: Final = "database_held"
"""No connection is cut: another client locks the database for longer than a router's lease."""
REPLICAS: Final = ("owner", "neighbour", "owner_drained")
"""Of two routers: the one that has all runs, the one through which others follow them; the last ends by itself."""
AT_ONCE: Final = frozenset({HOLD, "claim", *REPLICAS})
"""Victims that the runs of all adapters share."""
_SLOW: Final = frozenset({HOLD, "claim"})
"""Victims of every second sweep: it takes seconds until their runs go on."""

MOST_CALLS: Final = 2
"""The tool calls that a budget allows: an agent makes one before its state, and two more behind it."""
_BUDGETED: Final = 0.35
"""How many of the runs that can have a budget have one."""

Cell = tuple[str, str, str, str]
"""Storage, victim, adapter, state."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run, in one state when its victim is killed.

    Attributes:
        seed: of the whole suite.
        number: counts the cases of a cell.
    """

    seed: int
    storage: str
    victim: str
    adapter: str
    state: str
    number: int

    @property
    def name(self) -> str:
        """What ``CASE`` names it by."""
        return f"{self.storage}/{self.victim}/{self.adapter}/{self.state}/{self.number}"

    @property
    def cell(self) -> Cell:
        return self.storage, self.victim, self.adapter, self.state

    @property
    def sends(self) -> str:
        """How the run gets an input: ``queue``, ``steer``, or ``turn``: it is in its state in the turn that begins
        with the input; empty: it gets none.
        """
        if self.adapter == "process":
            return ""  # it keeps no session
        ways = ["", "queue"]
        ways += ["steer"] if self.adapter == "claude_code" else []
        ways += ["turn"] if self.state != "before" else []
        return self.rng("sends").choice(ways)

    @property
    def has_budget(self) -> bool:
        """Whether the run is near the cap of its budget in its state, and exceeds that behind it."""
        return self.adapter != "process" and self.rng("budget").random() < _BUDGETED

    @property
    def how_to_repeat(self) -> str:
        return f"make test-chaos SEED={self.seed} CASE={self.name}"

    def rng(self, what: str) -> random.Random:
        """Return the random numbers for one decision, which depend on the case alone."""
        return random.Random(f"{self.seed} {self.name} {what}")

    def shared_rng(self, what: str) -> random.Random:
        """Return the random numbers for a decision about all cases that one kill hits."""
        adapter = "" if self.victim in AT_ONCE else self.adapter
        return random.Random(f"{self.seed} {self.storage} {self.victim} {adapter} {self.number} {what}")


def parse_case(seed: int, name: str) -> Case:
    """Return the case with this name."""
    storage, victim, adapter, state, number = name.split("/")
    return Case(seed, storage, victim, adapter, state, int(number))


def makes_sense(adapter: str, state: str) -> bool:
    """Return whether an adapter's run can be in a state: ``process`` cannot ask."""
    return not (adapter == "process" and state == "input")


def victims(storage: str) -> tuple[str, ...]:
    """Return what can be killed."""
    if storage in PAIRS:
        return (*REPLICAS, HOLD) if storage == "pair" else REPLICAS
    # SQLite has no connection that could be cut.
    return (*EACH, *SHARED, HOLD, *(COMMITS if storage == "postgres" else ()))


def cells(storage: str) -> list[Cell]:
    """Return all cells of a storage."""
    return [
        (storage, victim, adapter, state)
        for victim in victims(storage)
        for adapter in ADAPTERS
        for state in STATES
        if makes_sense(adapter, state)
    ]


def sweep(seed: int, storage: str, number: int) -> list[tuple[str, list[Case]]]:
    """Return the cases of each cell, by what is killed together; the order is the seed's.

    Victims that a run has for itself are killed three times, as that costs little; what runs share is killed once.
    """
    every_case = [Case(seed, *cell, number) for cell in cells(storage)]
    rounds: list[tuple[str, list[Case]]] = []
    if storage in ALONE:
        more = [replace(case, number=3 * number + plus) for case in every_case for plus in range(3)]
        rounds.append(("each", [case for case in more if case.victim in EACH]))
    shared = [one for one in victims(storage) if one not in EACH and not (one in _SLOW and number % 2)]
    rounds += [(one, [case for case in every_case if case.victim == one]) for one in shared]
    rng = random.Random(f"{seed} {storage} {number}")
    rng.shuffle(rounds)
    for _, cases in rounds:
        rng.shuffle(cases)
    return rounds


def kills_of(victim: str, cases: Sequence[Case]) -> int:
    """Return how many kills a round is: one for each run, for each adapter, or for all."""
    if victim == "each":
        return len(cases)
    return 1 if victim in AT_ONCE else len({case.adapter for case in cases})
