"""Delays double from one failure to the next, up to their limit."""

import pytest
from dragoman.protocol.backoff import Backoff, backoff_s
from hypothesis import given
from hypothesis import strategies as st


def test_delays_double_up_to_the_limit_and_begin_anew() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.next_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert (backoff.failures, backoff.next_s()) == (0, 0.1)


def test_the_first_try_has_no_delay() -> None:
    assert backoff_s(0, 5.0, 10.0) == 0.0


@pytest.mark.parametrize(("failures", "expected"), [(1, 1.0), (2, 3.0), (3, 9.0), (4, 20.0)])
def test_another_factor(failures: int, expected: float) -> None:
    assert backoff_s(failures, 1.0, 20.0, factor=3.0) == expected


@given(st.integers(1, 10**9), st.floats(0, 1))
def test_chance_spreads_the_upper_half(failures: int, chance: float) -> None:
    whole = backoff_s(failures, 0.25, 60.0)
    assert whole / 2 <= backoff_s(failures, 0.25, 60.0, chance=chance) <= whole <= 60.0
