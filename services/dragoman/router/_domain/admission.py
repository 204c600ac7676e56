"""Places for runs: how many an adapter may have at once, and who waits for the next."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dragoman.protocol.limits import LONGEST_WAIT_S
from dragoman.v1 import adapter_pb2

MOST_WAITING: Final = 1000
"""How many runs may wait for one adapter."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One run's place, or its wait for one."""

    adapter: str
    limit: int | None
    granted: Callable[[], None]
    """Called when it has its place."""
    has_place: bool = False


class Places:
    """The places of all adapters.

    Args:
        limits: how many runs an adapter may have at once, by its type or an alias; who is not in it may have any.
    """

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self._limits = dict(limits or {})
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[Ticket]] = {}

    def limit(self, adapter: str, names: "frozenset[str]" = frozenset(), most: int = 0) -> int | None:
        """Return how many runs an adapter may have; ``None`` for any.

        Args:
            adapter: its type.
            names: its aliases.
            most: how many it says it can have; 0 if it does not say.
        """
        found = [self._limits[name] for name in {adapter, *names} if name in self._limits]
        return min([*found, *([most] if most else [])], default=None)

    def taken(self, adapter: str) -> int:
        """Return how many runs have a place."""
        return self._taken.get(adapter, 0)

    def waiting(self, adapter: str) -> int:
        """Return how many runs wait for one."""
        return len(self._waiting.get(adapter, ()))

    def take(self, adapter: str, limit: int | None, granted: Callable[[], None]) -> Ticket:
        """Take a place, or queue for one. Whoever waits already goes first.

        Args:
            adapter: whose.
            limit: how many there are; ``None`` for any number.
            granted: called when the place is there, now or later.
        """
        ticket = Ticket(adapter, limit, granted)
        if limit is None or (self.taken(adapter) < limit and not self.waiting(adapter)):
            self._grant(ticket)
        else:
            self._waiting.setdefault(adapter, deque()).append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a place back, or no longer wait for one."""
        waiting = self._waiting.get(ticket.adapter, deque())
        if not ticket.has_place:
            if ticket in waiting:
                waiting.remove(ticket)
            return
        ticket.has_place = False
        self._taken[ticket.adapter] -= 1
        # A run that was taken over has a place although there was none: then nobody takes its.
        if waiting and (waiting[0].limit is None or self.taken(ticket.adapter) < waiting[0].limit):
            self._grant(waiting.popleft())

    def _grant(self, ticket: Ticket) -> None:
        self._taken[ticket.adapter] = self.taken(ticket.adapter) + 1
        ticket.has_place = True
        ticket.granted()


def longest_wait_s(request: adapter_pb2.ExecuteRequest) -> float:
    """Return how many seconds a run may wait for a place."""
    return request.admission.longest_wait.ToNanoseconds() / 1e9


def admission_problem(request: adapter_pb2.ExecuteRequest) -> tuple[str, str] | None:
    """Return what is wrong with the wish, as a field and why; ``None`` if nothing is."""
    wait_s = longest_wait_s(request)
    if wait_s < 0:
        return "admission.longest_wait", "must not be negative"
    return ("admission.longest_wait", f"must not be over {LONGEST_WAIT_S:.0f} s") if wait_s > LONGEST_WAIT_S else None
