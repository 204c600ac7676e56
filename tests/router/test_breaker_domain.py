"""Breakers, logins and places: the rules alone."""

from typing import Any

import pytest
from dragoman.router.policy.circuit_breaker import (
    FIRST_S,
    MAX_BREAKERS,
    MAX_MESSAGE_CHARS,
    PROBE_RETRY_S,
    PROBE_S,
    BreakerKey,
    CircuitBreakers,
    Rejection,
)
from dragoman.router.policy.login import breaker_key
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

AUTH, UPSTREAM = pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
CRASHED, QUOTA = pb.FAILURE_KIND_PROCESS_CRASHED, pb.FAILURE_KIND_QUOTA_EXCEEDED
KEY = BreakerKey("one")
WORKED = pb.Result(outcome=pb.OUTCOME_SUCCEEDED)


def failed(kind: pb.FailureKind.ValueType, **fields: Any) -> pb.Result:
    return pb.Result(outcome=pb.OUTCOME_FAILED, failure=pb.Failure(kind=kind, message="x"), **fields)


def used_up(until: int) -> pb.Result:
    result = failed(QUOTA)
    result.failure.retry_not_before.FromSeconds(until)
    return result


def wait_s(breakers: CircuitBreakers, now: float, key: BreakerKey = KEY) -> float:
    """Return for how long runs are refused; 0 if one is let through."""
    opened = breakers.rejection(key, "asks", now)
    return opened.wait_s if opened is not None else 0.0


def test_a_breaker_lets_one_through_when_its_time_is_over_and_doubles_if_that_fails() -> None:
    breakers = CircuitBreakers()
    assert breakers.record_result(KEY, "r", failed(AUTH), 0, did_work=False)
    opened = breakers.admit(KEY, "s", 1)
    assert opened is not None
    assert opened.wait_s == FIRST_S - 1
    assert breakers.admit(BreakerKey("two"), "s", 1) is None
    assert breakers.admit(BreakerKey("one", b"other"), "s", 1) is None
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.admit(KEY, "other", FIRST_S) is not None, "one at a time"
    breakers.release(KEY, "probe")
    assert breakers.admit(KEY, "next", FIRST_S) is None
    assert breakers.record_result(KEY, "next", failed(AUTH), FIRST_S, did_work=False)
    opened = breakers.admit(KEY, "s", FIRST_S)
    assert opened is not None
    assert opened.wait_s == 2 * FIRST_S
    assert breakers.admit(KEY, "s", 3 * FIRST_S) is None
    assert breakers.record_result(KEY, "s", WORKED, 3 * FIRST_S, did_work=True)
    assert breakers.admit(KEY, "t", 3 * FIRST_S) is None
    assert not breakers.opened("one", 0)


def test_a_quota_keeps_runs_away_until_the_reported_time() -> None:
    breakers = CircuitBreakers()
    breakers.record_result(KEY, "r", used_up(5000), 1000, did_work=False)
    opened = breakers.admit(KEY, "s", 1000)
    assert opened is not None
    assert opened.wait_s == 4000


def test_a_quota_keeps_runs_away_for_a_week_at_most() -> None:
    breakers = CircuitBreakers()
    breakers.record_result(KEY, "r", used_up(10**9), 0, did_work=False)
    assert wait_s(breakers, 0) == 7 * 24 * 3600


def test_the_reported_message_is_that_of_the_failure_that_counts_and_no_address_is_cut() -> None:
    breakers = CircuitBreakers()
    first, longer = failed(AUTH), used_up(5000)
    first.failure.message, first.failure.login_url = (
        "a" * (MAX_MESSAGE_CHARS + 1),
        "https://" + "a" * MAX_MESSAGE_CHARS,
    )
    longer.failure.message, longer.failure.login_url = "used up", "https://a"
    breakers.record_result(KEY, "r", first, 0, did_work=False)
    assert breakers.rejection(KEY, "s", 0) == Rejection(AUTH, FIRST_S, message="a" * MAX_MESSAGE_CHARS)
    assert not breakers.record_result(KEY, "s", failed(AUTH), 0, did_work=False)
    assert breakers.rejection(KEY, "s", 0) == Rejection(AUTH, FIRST_S, message="a" * MAX_MESSAGE_CHARS)
    assert breakers.record_result(KEY, "t", longer, 0, did_work=False)
    assert breakers.rejection(KEY, "s", 0) == Rejection(QUOTA, 5000, message="used up", login_url="https://a")


def test_crashes_count_in_a_row_before_any_work_and_not_when_the_agent_was_killed() -> None:
    breakers = CircuitBreakers(crashes=2)
    killed = failed(CRASHED, signal="SIGKILL")
    for result, did_work, opens in [
        (failed(CRASHED), False, False),
        (failed(CRASHED), True, False),
        (failed(CRASHED), False, False),
        (killed, False, False),
        (failed(CRASHED), False, True),
    ]:
        assert breakers.record_result(KEY, "r", result, 0, did_work=did_work) is opens
    never = CircuitBreakers(crashes=0)
    assert not any(never.record_result(KEY, "r", failed(CRASHED), 0, did_work=False) for _ in range(20))


def test_agents_that_cannot_be_started_count_as_those_that_crash() -> None:
    breakers = CircuitBreakers(crashes=2)
    unstartable = failed(pb.FAILURE_KIND_SPAWN_FAILED)
    assert not breakers.record_result(KEY, "r", unstartable, 0, did_work=False)
    assert breakers.record_result(KEY, "s", unstartable, 0, did_work=False)
    assert wait_s(breakers, 0) > 0


@pytest.mark.parametrize(("kind", "status"), [(CRASHED, 400), (CRASHED, 422), (pb.FAILURE_KIND_INVALID_CONFIG, 400)])
def test_a_request_that_the_service_rejects_opens_no_breaker_for_others(
    kind: pb.FailureKind.ValueType, status: int
) -> None:
    breakers = CircuitBreakers(crashes=1)
    rejected = failed(kind)
    rejected.failure.http_status = status
    assert not breakers.record_result(KEY, "r", rejected, 0, did_work=False)
    assert breakers.admit(KEY, "s", 0) is None
    unavailable = failed(CRASHED)
    unavailable.failure.http_status = 500
    assert breakers.record_result(KEY, "t", unavailable, 0, did_work=False)


def test_a_login_seen_to_be_good_closes_only_the_machines_own() -> None:
    breakers = CircuitBreakers()
    other, with_model = BreakerKey("one", b"x"), BreakerKey("one", model="y")
    for key in (KEY, other, with_model):
        breakers.record_result(key, "r", failed(AUTH), 0, did_work=False)
    assert not breakers.reset("one", -1), "it was looked at before"
    assert breakers.reset("one", 1)
    assert not breakers.reset("one", 1)
    assert breakers.admit(KEY, "s", 1) is None
    assert breakers.admit(with_model, "s", 1) is None
    assert breakers.admit(other, "s", 1) is not None


@pytest.mark.parametrize("failure", [used_up(5000), failed(QUOTA), failed(CRASHED)])
def test_a_login_seen_to_be_good_says_nothing_of_quotas_and_crashes(failure: pb.Result) -> None:
    breakers = CircuitBreakers(crashes=1)
    breakers.record_result(KEY, "r", failure, 0, did_work=False)
    assert not breakers.reset("one", 1)
    assert wait_s(breakers, 1) > 0


def test_runs_that_fail_together_fail_once() -> None:
    breakers = CircuitBreakers()
    for run in "abcdef":
        assert breakers.admit(KEY, run, 0) is None
    counts = [
        breakers.record_result(KEY, run, failed(AUTH), 0.1 * place, did_work=False)
        for place, run in enumerate("abcdef")
    ]
    assert counts == [True, False, False, False, False, False]
    assert wait_s(breakers, 0) == FIRST_S
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert not breakers.record_result(KEY, "late", failed(AUTH), FIRST_S, did_work=False)
    assert breakers.record_result(KEY, "probe", failed(AUTH), FIRST_S, did_work=False), (
        "the late one was not the probe"
    )
    assert wait_s(breakers, FIRST_S) == 2 * FIRST_S


@pytest.mark.parametrize(
    "late", [failed(QUOTA), failed(AUTH), failed(CRASHED), used_up(50), WORKED, failed(UPSTREAM)]
)
def test_who_was_let_through_before_it_opened_neither_closes_nor_shortens_it(late: pb.Result) -> None:
    breakers = CircuitBreakers(crashes=1)
    breakers.record_result(KEY, "a", used_up(5000), 1000, did_work=False)
    assert not breakers.record_result(KEY, "before", late, 1000, did_work=False)
    assert wait_s(breakers, 1000) == 4000


def test_any_run_may_report_the_end_of_a_quota() -> None:
    breakers = CircuitBreakers()
    breakers.record_result(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.record_result(KEY, "before", used_up(5000), FIRST_S, did_work=False)
    assert breakers.rejection(KEY, "asks", FIRST_S) == Rejection(QUOTA, 5000 - FIRST_S, message="x")
    assert breakers.record_result(KEY, "probe", failed(AUTH), FIRST_S, did_work=False)
    assert wait_s(breakers, FIRST_S) == 5000 - FIRST_S, "nor does the probe shorten it"
    assert breakers.admit(KEY, "next", 5000) is None
    assert breakers.record_result(KEY, "next", WORKED, 5001, did_work=True)
    assert wait_s(breakers, 5001) == 0


def test_who_is_let_through_all_the_same_closes_it_and_does_not_make_it_last() -> None:
    breakers = CircuitBreakers()
    breakers.record_result(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.admit(KEY, "refused", 1) is not None
    assert breakers.admit(KEY, "b", 1, is_forced=True) is None
    assert breakers.admit(KEY, "c", 1, is_forced=True) is None
    assert not breakers.record_result(KEY, "b", failed(AUTH), 1, did_work=False)
    assert wait_s(breakers, 1) == FIRST_S - 1
    assert not breakers.record_result(KEY, "b", WORKED, 1, did_work=True), "what it says once is said"
    assert breakers.record_result(KEY, "c", WORKED, 1, did_work=True)
    assert wait_s(breakers, 1) == 0


def test_whose_time_is_over_is_open_no_more_but_while_its_probe_is_under_way() -> None:
    breakers = CircuitBreakers()
    breakers.record_result(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.opened("one", 1) == [(KEY, Rejection(AUTH, FIRST_S - 1, message="x"))]
    assert breakers.opened("one", FIRST_S) == []
    assert wait_s(breakers, FIRST_S) == 0, "who only asks is not the probe"
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.opened("one", FIRST_S) == [(KEY, Rejection(AUTH, PROBE_RETRY_S, is_probed=True, message="x"))]
    assert breakers.next_end_s(FIRST_S) == PROBE_S
    breakers.release(KEY, "probe")
    assert breakers.opened("one", FIRST_S) == []
    assert breakers.next_end_s(FIRST_S) is None


def test_it_closes_as_soon_as_its_probe_works_and_what_failed_is_remembered_until_a_run_succeeds() -> None:
    breakers = CircuitBreakers()
    assert not breakers.record_progress(KEY, "a")
    breakers.record_result(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.next_end_s(0) == FIRST_S
    assert breakers.admit(KEY, "forced", 1, is_forced=True) is None
    assert not breakers.record_progress(KEY, "forced"), "no probe"
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert wait_s(breakers, FIRST_S) == PROBE_RETRY_S
    assert breakers.record_progress(KEY, "probe")
    assert wait_s(breakers, FIRST_S) == 0
    assert not breakers.record_progress(KEY, "probe")
    assert not breakers.opened("one", FIRST_S)
    assert breakers.record_result(KEY, "probe", failed(AUTH), FIRST_S, did_work=True), (
        "it only said why it is not let in"
    )
    assert wait_s(breakers, FIRST_S) == 2 * FIRST_S
    assert breakers.admit(KEY, "next", 3 * FIRST_S) is None
    assert breakers.record_progress(KEY, "next")
    assert not breakers.record_result(KEY, "next", WORKED, 3 * FIRST_S, did_work=True), "it was closed"
    breakers.record_result(KEY, "a", failed(AUTH), 3 * FIRST_S, did_work=False)
    assert wait_s(breakers, 3 * FIRST_S) == FIRST_S


def test_logins_of_single_runs_do_not_evict_a_long_wait() -> None:
    breakers = CircuitBreakers()
    breakers.record_result(KEY, "a", used_up(5000), 0, did_work=False)
    for number in range(MAX_BREAKERS + 1):
        breakers.record_result(BreakerKey("one", str(number).encode()), "r", failed(AUTH), 0, did_work=False)
    assert wait_s(breakers, 0) == 5000
    assert len(breakers.opened("one", 0)) == MAX_BREAKERS


def key(request: api.ExecuteRequest | None = None, **config: Any) -> BreakerKey:
    """Return the key of a request, with its parts in clear instead of their digest."""
    asked = api.ExecuteRequest()
    asked.CopyFrom(request or api.ExecuteRequest())
    asked.config.update(config)
    return breaker_key("one", asked, lambda parts: "|".join(parts).encode())


def test_a_login_is_what_chooses_the_account() -> None:
    plain = api.ExecuteRequest(env={"PATH": "/bin", "DRAGOMAN_API_KEY": "callers", "PROJECT_ID": "p"})
    assert key(plain, effort="high") == BreakerKey("one"), "the machine's own login"
    own = api.ExecuteRequest(env={"X_API_KEY": "k", "CODEX_HOME": "/c"}, auth_token="t", model="m")
    settings: dict[str, Any] = {
        "env": {"HOME": "/h", "X_API_KEY": "less"},
        "command": "/agent",
        "url": "https://a",
        "model": "n",
    }
    parts = b"CODEX_HOME=/c|HOME=/h|X_API_KEY=k|command /agent|url https://a|token t"
    assert key(own, **settings) == BreakerKey("one", parts, "m")
    stored = api.ExecuteRequest(env={"X_API_KEY": "k"})
    stored.agent.adapter_config.update(settings)
    assert breaker_key("one", stored, lambda parts: "|".join(parts).encode()).model == "n", "as an adapter reads it"


def test_other_models_and_providers_have_breakers_of_their_own() -> None:
    assert key(provider="acme", model="m") == BreakerKey("one", b"", "acme/m")
    assert key(provider="acme") == BreakerKey("one", b"", "acme")


def test_what_a_caller_gives_for_its_own_api_is_no_login() -> None:
    env = {"PAPERCLIP_API_KEY": "new each time", "DRAGOMAN_API_KEY": "k"}
    asked = api.ExecuteRequest(env=env, auth_token="new each time", api_url="https://callers")
    asked.brand.env_prefix = "PAPERCLIP"
    assert key(asked) == BreakerKey("one", b"DRAGOMAN_API_KEY=k")


PROVING = {
    pb.FAILURE_KIND_MODEL_REFUSED,
    pb.FAILURE_KIND_MAX_TURNS,
    pb.FAILURE_KIND_CONTEXT_OVERFLOW,
    pb.FAILURE_KIND_PERMISSION_DENIED,
    pb.FAILURE_KIND_MODEL_NOT_FOUND,
}


@pytest.mark.parametrize("kind", sorted(set(pb.FailureKind.values()) - {AUTH, QUOTA}))
def test_a_probe_that_fails_for_a_reason_behind_the_login_closes_it(kind: pb.FailureKind.ValueType) -> None:
    breakers = CircuitBreakers()
    breakers.record_result(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    breakers.record_result(KEY, "probe", failed(kind), FIRST_S, did_work=False)
    breakers.record_result(KEY, "b", failed(AUTH), FIRST_S, did_work=False)
    doubled = kind in {CRASHED, pb.FAILURE_KIND_SPAWN_FAILED}
    if kind in PROVING:
        assert wait_s(breakers, FIRST_S) == FIRST_S, "the first time again"
    else:
        assert wait_s(breakers, FIRST_S) == (2 * FIRST_S if doubled else 0)


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGSEGV", ""])
def test_a_signal_from_outside_is_no_crash(signal: str) -> None:
    breakers = CircuitBreakers(crashes=1)
    opens = breakers.record_result(KEY, "a", failed(CRASHED, signal=signal), 0, did_work=False)
    assert opens == (signal in {"SIGSEGV", ""})


def test_it_opens_at_the_fifth_crash_and_for_a_quarter_of_an_hour_at_most() -> None:
    breakers = CircuitBreakers()
    counts = [breakers.record_result(KEY, "a", failed(CRASHED), 0, did_work=False) for _ in range(5)]
    assert counts == [False, False, False, False, True]
    now, waits = 0.0, []
    for probe in range(7):
        waits.append(wait_s(breakers, now))
        now += waits[-1]
        assert breakers.admit(KEY, f"probe {probe}", now) is None
        breakers.record_result(KEY, f"probe {probe}", failed(CRASHED), now, did_work=False)
    assert waits == [30, 60, 120, 240, 480, 900, 900]


def test_a_rejection_says_why_and_whether_another_run_is_trying() -> None:
    assert [Rejection(kind, 1.0).description for kind in (AUTH, QUOTA, CRASHED)] == [
        "the login was rejected",
        "the quota is exhausted",
        "the agent crashed repeatedly",
    ]
    assert Rejection(QUOTA, 1.0, is_probed=True).description == "the quota is exhausted; a probe run is in progress"
    assert Rejection(QUOTA, 1.0).message == Rejection(QUOTA, 1.0).login_url == ""


def test_who_comes_at_the_end_of_a_probes_time_waits_for_the_rest_of_it() -> None:
    breakers, bare = CircuitBreakers(), failed(AUTH)
    bare.failure.login_url = "https://" + "a" * (MAX_MESSAGE_CHARS - 8)
    breakers.record_result(KEY, "a", bare, 0, did_work=False)
    opened = breakers.rejection(KEY, "b", 0)
    assert opened is not None
    assert opened.login_url == bare.failure.login_url, "as long as one may be"
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.is_probe(KEY, "probe")
    assert not breakers.is_probe(KEY, "b")
    assert wait_s(breakers, FIRST_S + PROBE_S - 2) == 2
    assert wait_s(breakers, FIRST_S + PROBE_S) == 0


def test_what_succeeds_at_first_changes_no_breaker() -> None:
    breakers = CircuitBreakers(crashes=2)
    assert not breakers.record_result(KEY, "a", WORKED, 0, did_work=True)
    assert not breakers.record_progress(KEY, "a")
    breakers.release(KEY, "a")
    assert breakers.next_end_s(0) is None
    other = pb.Result(outcome=pb.OUTCOME_CANCELLED)
    other.failure.kind = AUTH
    assert not breakers.record_result(KEY, "a", other, 0, did_work=False), "a cancelled run proves nothing"
    assert not breakers.record_result(KEY, "a", failed(CRASHED), 0, did_work=False)
    assert breakers.record_result(KEY, "b", failed(CRASHED), 0, did_work=False)
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.record_result(KEY, "probe", failed(CRASHED), FIRST_S, did_work=True) is False
    assert not breakers.is_probe(KEY, "probe"), "another run may be the probe"
    assert breakers.admit(KEY, "next", FIRST_S) is None


def test_only_a_quota_that_is_exhausted_names_the_time_that_counts() -> None:
    for result, now, waits_s in [(failed(AUTH), 0, FIRST_S), (used_up(5), 10, 0), (used_up(11), 10, 1)]:
        breakers = CircuitBreakers()
        result.failure.retry_not_before.FromSeconds(result.failure.retry_not_before.seconds or 5000)
        breakers.record_result(KEY, "a", result, now, did_work=False)
        assert wait_s(breakers, now) == waits_s
