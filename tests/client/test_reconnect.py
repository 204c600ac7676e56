"""Whether a broken stream is followed, and how patiently: a table and a clock."""

import grpc
import pytest
from dragoman.client._reconnect import ReconnectPolicy, may_reconnect
from dragoman.protocol.errors import DragomanError, Reason


def bare(code: grpc.StatusCode) -> DragomanError:
    return DragomanError(None, "broke", status=code)


def reasoned(reason: Reason) -> DragomanError:
    return DragomanError(reason, "said so")


FOLLOWED_REASONS = {
    *(Reason.SLOW_CONSUMER, Reason.DRAINING, Reason.INTERNAL),
    *(Reason.ADAPTER_UNAVAILABLE, Reason.RUN_LOG_UNAVAILABLE),
}
FOLLOWED_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


@pytest.mark.parametrize("reason", list(Reason))
def test_reasons(reason: Reason) -> None:
    followed = reason in FOLLOWED_REASONS
    assert may_reconnect(reasoned(reason), accepted=True, connected=True) is followed
    assert not may_reconnect(reasoned(reason), accepted=False, connected=True), "before acceptance it is a refusal"


def test_a_run_that_exists_out_of_reach_is_waited_for() -> None:
    error = DragomanError(Reason.ADAPTER_UNAVAILABLE, "owned by another router", {"run_id": "r"})
    assert may_reconnect(error, accepted=False, connected=True)
    assert not may_reconnect(reasoned(Reason.ADAPTER_UNAVAILABLE), accepted=False, connected=True, in_doubt=True)


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_statuses_without_reason(code: grpc.StatusCode) -> None:
    followed = code in FOLLOWED_CODES
    assert may_reconnect(bare(code), accepted=True, connected=True) is followed
    assert may_reconnect(bare(code), accepted=False, connected=True) is followed
    assert not may_reconnect(bare(code), accepted=False, connected=False), "no server was ever there"


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_the_first_try_is_immediate_and_the_others_wait_longer_and_longer() -> None:
    clock = Clock()
    policy = ReconnectPolicy(30, clock)
    delays = [policy.next_delay_s(bare(grpc.StatusCode.UNAVAILABLE)) for _ in range(12)]
    assert delays[0] == 0
    for delay, expected in zip(delays[1:], [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 6], strict=True):
        assert delay is not None
        assert 0.5 * expected <= delay <= expected


def test_gives_up_after_the_limit_and_never_waits_past_it() -> None:
    clock = Clock()
    policy = ReconnectPolicy(30, clock)
    error = bare(grpc.StatusCode.UNAVAILABLE)
    policy.next_delay_s(error)
    clock.time += 29.9
    delay = policy.next_delay_s(DragomanError(Reason.DRAINING, "later", retry_after_s=60))
    assert delay == pytest.approx(0.1)
    clock.time += 0.2
    assert policy.next_delay_s(error) is None


def test_the_pause_that_the_server_asks_for_is_kept() -> None:
    policy = ReconnectPolicy(30, Clock())
    assert policy.next_delay_s(DragomanError(Reason.DRAINING, "later", retry_after_s=2.5)) == 2.5


def test_progress_begins_anew() -> None:
    clock = Clock()
    policy = ReconnectPolicy(30, clock)
    error = bare(grpc.StatusCode.UNAVAILABLE)
    policy.next_delay_s(error)
    clock.time += 31
    policy.progressed()
    assert policy.next_delay_s(error) == 0
