"""What is killed, in which state, of which adapter, with which storage: the cells, and a case for each kill."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STORAGES: Final = ("sqlite", "postgres")
ADAPTERS: Final = ("process", "claude_code", "acp")
STATES: Final = ("before", "streaming", "tool", "input", "finishing")
EACH: Final = ("client", "agent", "guard")
"""Victims that one run has for itself."""
SHARED: Final = ("router", "sidecar", "sidecar_guard", "database")
"""Victims that many runs share: each is killed once for each adapter, which hits all its runs."""
VICTIMS: Final = (*EACH, *SHARED)

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
    def how_to_repeat(self) -> str:
        return f"make test-chaos SEED={self.seed} CASE={self.name}"

    def dice(self, what: str) -> random.Random:
        """Return the dice for one decision; the same for the same case, whatever else runs."""
        return random.Random(f"{self.seed} {self.name} {what}")

    def shared_dice(self, what: str) -> random.Random:
        """Return the dice for a decision that is made for all cases which one kill hits."""
        return random.Random(f"{self.seed} {self.storage} {self.victim} {self.adapter} {self.number} {what}")


def parse_case(seed: int, name: str) -> Case:
    """Return the case with this name."""
    storage, victim, adapter, state, number = name.split("/")
    return Case(seed, storage, victim, adapter, state, int(number))


def makes_sense(adapter: str, state: str) -> bool:
    """Tell whether an adapter's run can be in a state: ``process`` cannot ask."""
    return not (adapter == "process" and state == "input")


def cells(storage: str) -> list[Cell]:
    """Return all cells of a storage."""
    return [
        (storage, victim, adapter, state)
        for victim in VICTIMS
        for adapter in ADAPTERS
        for state in STATES
        if makes_sense(adapter, state)
    ]


def sweep(seed: int, storage: str, number: int) -> list[tuple[str, list[Case]]]:
    """Return one case of each cell, by what is killed together; the order is the seed's."""
    made = [Case(seed, *cell, number) for cell in cells(storage)]
    rounds: list[tuple[str, list[Case]]] = [("each", [case for case in made if case.victim in EACH])]
    rounds += [(victim, [case for case in made if case.victim == victim]) for victim in SHARED]
    dice = random.Random(f"{seed} {storage} {number}")
    dice.shuffle(rounds)
    for _, cases in rounds:
        dice.shuffle(cases)
    return rounds


def kills_of(victim: str, cases: Sequence[Case]) -> int:
    """Return how many kills a round is: one for each run, or for each adapter."""
    return len(cases) if victim == "each" else len({case.adapter for case in cases})
