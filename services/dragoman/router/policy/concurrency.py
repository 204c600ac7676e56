"""Concurrency limits: how many runs of an adapter may be live, and which waits for the next slot."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import LONGEST_WAIT_S
from dragoman.v1 import adapter_pb2
from msgspec import Struct

MAX_QUEUED: Final = 1000
"""How many runs may wait for one adapter."""
_RETRY_S: Final = 1.0


class Slot(Struct, eq=False):
    """One run's slot, or its position in the queue."""

    adapter: str
    limit: int | None
    on_granted: Callable[[], None]
    """Called when the slot is granted."""
    is_granted: bool = False


class ConcurrencyLimiter:
    """The concurrency limits of all adapters, with a first-come, first-served queue for each.

    Args:
        limits: maximum number of live runs by adapter type or alias; other adapters have no limit.
    """

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self._limits = dict(limits or {})
        self._in_use: dict[str, int] = {}
        self._queues: dict[str, deque[Slot]] = {}

    def limit(self, adapter: str, names: "frozenset[str]" = frozenset(), most: int = 0) -> int | None:
        """Return the concurrency limit of an adapter; ``None`` for none.

        Args:
            adapter: its type.
            names: its aliases.
            most: the limit that the adapter declares; 0 if it declares none.
        """
        found = [self._limits[name] for name in {adapter, *names} if name in self._limits]
        return min([*found, *([most] if most else [])], default=None)

    def in_use(self, adapter: str) -> int:
        """Return how many slots are in use."""
        return self._in_use.get(adapter, 0)

    def queued(self, adapter: str) -> int:
        """Return how many runs wait for a slot."""
        return len(self._queues.get(adapter, ()))

    def acquire(self, adapter: str, limit: int | None, granted: Callable[[], None]) -> Slot:
        """Acquire a slot, or queue for one.

        Args:
            adapter: the adapter's type.
            limit: the number of slots; ``None`` for no limit.
            granted: called when the slot is granted, now or later.
        """
        slot = Slot(adapter, limit, granted)
        if limit is None or (self.in_use(adapter) < limit and not self.queued(adapter)):
            self._grant(slot)
        else:
            self._queues.setdefault(adapter, deque()).append(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Release a slot, or leave the queue."""
        waiting = self._queues.get(slot.adapter, deque())
        if not slot.is_granted:
            if slot in waiting:
                waiting.remove(slot)
            return
        slot.is_granted = False
        self._in_use[slot.adapter] -= 1
        # Recovered runs may exceed the limit; then a released slot is not granted again.
        if waiting and (waiting[0].limit is None or self.in_use(slot.adapter) < waiting[0].limit):
            self._grant(waiting.popleft())

    def _grant(self, slot: Slot) -> None:
        self._in_use[slot.adapter] = self.in_use(slot.adapter) + 1
        slot.is_granted = True
        slot.on_granted()


def full(adapter: str, limit: int | None, *, waited: bool) -> DragomanError:
    """Return the error for a run that gets no slot, at once or after it has waited."""
    why = "timed out waiting for a slot" if waited else "set admission.longest_wait to queue for a slot"
    return DragomanError(
        Reason.TOO_MANY_RUNS,
        f"Adapter {adapter!r} is at its limit of {limit} concurrent run{'' if limit == 1 else 's'}; {why}.",
        {"adapter": adapter, "limit": str(limit)},
        retry_after_s=_RETRY_S,
    )


def longest_wait_s(admission: adapter_pb2.Admission) -> float:
    """Return how many seconds a run may wait for a slot."""
    return admission.longest_wait.ToNanoseconds() / 1e9


def admission_problem(request: adapter_pb2.ExecuteRequest) -> tuple[str, str] | None:
    """Return the invalid field of the admission and why it is invalid; ``None`` if it is valid."""
    wait_s = longest_wait_s(request.admission)
    return ("admission.longest_wait", f"must be at most {LONGEST_WAIT_S:.0f} s") if wait_s > LONGEST_WAIT_S else None
