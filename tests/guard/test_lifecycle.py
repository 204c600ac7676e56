from __future__ import annotations

import pytest
from dragoman.guard.lifecycle import Lifecycle, Phase


def is_in(life: Lifecycle, phase: int) -> bool:
    return life.phase is phase


@pytest.fixture
def life() -> Lifecycle:
    return Lifecycle(linger=2, grace=10)


def test_nothing_is_pending_while_it_runs(life: Lifecycle) -> None:
    assert life.timeout(0) is None
    assert not life.tick(1e9)
    assert is_in(life, Phase.RUNNING)


def test_stopping_is_asked_once_and_ends_in_a_kill(life: Lifecycle) -> None:
    assert life.stop(100)
    assert not life.stop(101)
    assert life.timeout(103) == 7
    life.tick(109.9)
    assert is_in(life, Phase.STOPPING)
    life.tick(110)
    assert is_in(life, Phase.KILLING)
    assert life.timeout(110) is None


def test_without_a_grace_stopping_has_no_end() -> None:
    life = Lifecycle(linger=2, grace=None)
    assert life.stop(0)
    assert life.timeout(0) is None


@pytest.mark.parametrize("stopped", [False, True])
def test_what_the_leader_leaves_gets_the_linger(life: Lifecycle, stopped: bool) -> None:
    if stopped:
        life.stop(95)
    assert life.leader_exited(100)
    assert not life.leader_exited(101)
    assert life.timeout(100) == 2
    life.tick(102)
    assert is_in(life, Phase.KILLING)


def test_a_leader_killed_is_no_reason_to_linger(life: Lifecycle) -> None:
    life.kill()
    assert not life.leader_exited(0)
    assert is_in(life, Phase.KILLING)


def test_an_abandoned_adapter_is_asked_to_stop(life: Lifecycle) -> None:
    life.start_orphan_timer(100, 60)
    assert life.timeout(100) == 60
    assert not life.tick(159)
    assert life.tick(160)
    assert is_in(life, Phase.STOPPING)
    assert life.timeout(160) == 10


def test_a_claimed_adapter_is_not(life: Lifecycle) -> None:
    life.start_orphan_timer(100, 60)
    life.stop_orphan_timer()
    assert life.timeout(100) is None
    assert not life.tick(1e9)
    life.start_orphan_timer(2e9, 60)
    assert life.timeout(2e9) == 60


def test_a_claim_does_not_call_back_what_was_asked(life: Lifecycle) -> None:
    life.start_orphan_timer(100, 0)
    assert life.tick(100)
    life.stop_orphan_timer()
    life.tick(110)
    assert is_in(life, Phase.KILLING)


def test_abandoned_while_stopping_the_nearer_deadline_counts(life: Lifecycle) -> None:
    life.stop(100)
    life.start_orphan_timer(100, 3)
    assert life.timeout(100) == 3
    assert not life.tick(103)
    assert life.timeout(103) == 7
