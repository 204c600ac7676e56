"""The concurrency limiter: how many runs of an adapter are live, and which one is next."""

from typing import Any

from dragoman.router.policy.concurrency import ConcurrencyLimiter
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule


class LimiterMachine(RuleBasedStateMachine):
    """Runs come, wait and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.limiter = ConcurrencyLimiter({"a": 2, "alias": 1})
        self.slots: list[Any] = []
        self.granted: list[int] = []
        self.number = 0

    @rule()
    def acquire(self) -> None:
        self.number += 1
        number = self.number
        limit = self.limiter.limit("a")
        self.slots.append((number, self.limiter.acquire("a", limit, lambda: self.granted.append(number))))

    @rule(index=st.integers(0, 20))
    def release(self, index: int) -> None:
        if self.slots:
            _number, slot = self.slots.pop(index % len(self.slots))
            self.limiter.release(slot)
            self.limiter.release(slot)  # twice is once

    @invariant()
    def the_limit_holds_and_no_slot_stays_free(self) -> None:
        have = [number for number, slot in self.slots if slot.is_granted]
        assert self.limiter.in_use("a") == len(have) == min(2, len(self.slots))
        assert self.limiter.queued("a") == len(self.slots) - len(have)

    @invariant()
    def slots_are_granted_in_order(self) -> None:
        assert self.granted == sorted(self.granted)


TestLimiter = LimiterMachine.TestCase
TestLimiter.settings = settings(max_examples=50, deadline=None)


def test_limits_are_found_by_alias_too() -> None:
    limiter = ConcurrencyLimiter({"a": 2, "alias": 1})
    assert limiter.limit("x") is None
    assert limiter.limit("a", frozenset({"a", "alias"})) == 1


def test_what_an_adapter_says_it_can_have_is_a_limit_too() -> None:
    limiter = ConcurrencyLimiter({"a": 2})
    assert [limiter.limit("a", most=most) for most in (0, 1, 2, 3)] == [2, 1, 2, 2]
    assert [limiter.limit("x", most=most) for most in (0, 3)] == [None, 3]
