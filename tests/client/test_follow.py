"""Whether a broken stream is followed, and how patiently: a table and a clock."""

import grpc
import pytest
from dragoman.client._follow import Patience, is_followed
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
    assert is_followed(reasoned(reason), accepted=True, connected=True) is followed
    assert not is_followed(reasoned(reason), accepted=False, connected=True), "before acceptance it is a refusal"


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_statuses_without_reason(code: grpc.StatusCode) -> None:
    followed = code in FOLLOWED_CODES
    assert is_followed(bare(code), accepted=True, connected=True) is followed
    assert is_followed(bare(code), accepted=False, connected=True) is followed
    assert not is_followed(bare(code), accepted=False, connected=False), "nobody was ever there"


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_the_first_try_is_immediate_and_the_others_wait_longer_and_longer() -> None:
    clock = Clock()
    patience = Patience(30, clock)
    delays = [patience.next_delay_s(bare(grpc.StatusCode.UNAVAILABLE)) for _ in range(12)]
    assert delays[0] == 0
    for delay, expected in zip(delays[1:], [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 6], strict=True):
        assert delay is not None
        assert 0.7 * expected <= delay <= 1.3 * expected


def test_gives_up_after_the_limit_and_never_waits_past_it() -> None:
    clock = Clock()
    patience = Patience(30, clock)
    error = bare(grpc.StatusCode.UNAVAILABLE)
    patience.next_delay_s(error)
    clock.time += 29.9
    delay = patience.next_delay_s(DragomanError(Reason.DRAINING, "later", retry_after_s=60))
    assert delay == pytest.approx(0.1)
    clock.time += 0.2
    assert patience.next_delay_s(error) is None


def test_the_servers_wish_is_kept_to() -> None:
    patience = Patience(30, Clock())
    assert patience.next_delay_s(DragomanError(Reason.DRAINING, "later", retry_after_s=2.5)) == 2.5


def test_progress_begins_anew() -> None:
    clock = Clock()
    patience = Patience(30, clock)
    error = bare(grpc.StatusCode.UNAVAILABLE)
    patience.next_delay_s(error)
    clock.time += 31
    patience.progressed()
    assert patience.next_delay_s(error) == 0
