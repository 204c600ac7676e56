"""An agent's own retries, as states of the run."""

from dragoman.sdk.parsing import Retries
from dragoman.v1 import event_pb2 as pb


def test_a_retry_begins_and_ends_once() -> None:
    retries = Retries()
    assert retries.end() == []
    (begun,) = retries.begin("busy", attempt=2, most=5, delay_ms=1500, cause=pb.FAILURE_KIND_RATE_LIMITED)
    state = begun.state
    assert (state.phase, state.reason, state.retry_cause) == (
        *(pb.RUN_PHASE_RETRYING, "busy", pb.FAILURE_KIND_RATE_LIMITED),
    )
    assert (state.retry_attempt, state.max_retries, state.retry_delay.ToMilliseconds()) == (2, 5, 1500)
    assert retries.is_retrying
    (ended,) = retries.end()
    assert ended.state.phase == pb.RUN_PHASE_RUNNING
    assert retries.end() == []


def test_what_is_not_known_is_absent_and_what_no_field_holds_too() -> None:
    (begun,) = Retries().begin()
    (odd,) = Retries().begin(attempt=2**40, most=2**63, delay_ms=2**63)
    for event in (begun, odd):
        assert not event.state.HasField("retry_attempt")
        assert not event.state.HasField("max_retries")
    assert not begun.state.HasField("retry_delay")
    assert odd.state.retry_delay.ToMilliseconds() == 10**12
