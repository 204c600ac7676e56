"""Breakers, logins and places: the rules alone."""

import json
from typing import Any

import pytest
from dragoman.router.adapters.logins import NO_TRAITS, login_of, read_schema_traits
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
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

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
    other, with_settings = BreakerKey("one", b"x"), BreakerKey("one", settings=b"y")
    for key in (KEY, other, with_settings):
        breakers.record_result(key, "r", failed(AUTH), 0, did_work=False)
    assert not breakers.reset("one", -1), "it was looked at before"
    assert breakers.reset("one", 1)
    assert not breakers.reset("one", 1)
    assert breakers.admit(KEY, "s", 1) is None
    assert breakers.admit(with_settings, "s", 1) is None
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


def test_a_login_is_what_chooses_the_account() -> None:
    request = api.ExecuteRequest(env={"PATH": "/bin", "DRAGOMAN_API_KEY": "callers"}, auth_token="t", model="m")
    request.config.update({"url": "https://a"})
    assert login_of(request, NO_TRAITS) == ([], [])
    request.env["X_API_KEY"] = "k"
    request.config.update({"env": {"HOME": "/h"}, "command": "/c"})
    assert login_of(request, NO_TRAITS) == (["HOME=/h", "X_API_KEY=k", "command /c"], [])
    stored = api.ExecuteRequest(env=request.env)
    stored.agent.adapter_config.CopyFrom(request.config)
    assert login_of(stored, NO_TRAITS) == login_of(request, NO_TRAITS), "as an adapter reads it"


def test_settings_of_which_the_adapter_says_so_choose_the_account() -> None:
    schema = {
        "properties": {
            "url": {"x-login": True},
            "headers": {"x-login": True},
            "model": {"x-login": True},
            "command": {"x-login": True},
            "effort": {"x-login": False},
        },
        "x-login-token": True,
    }
    traits = read_schema_traits(json.dumps(schema))

    def parts(token: str = "", model: str = "", **config: Any) -> tuple[list[str], list[str]]:
        request = api.ExecuteRequest(auth_token=token, model=model, env={"PLAIN": "k", "DRAGOMAN_RUN": "r", "X": "y"})
        request.config.update({"url": "https://a", **config})
        return login_of(request, traits)

    same = parts()
    assert same[0] == []
    assert parts(effort="high") == parts(headers={}) == parts(model="") == same
    others = [
        parts(url="https://b"),
        parts(headers={"a": "b"}),
        parts(token="t"),
        parts(token="u"),
        parts(model="x/m"),
        parts(headers={"a": "{{env.PLAIN}}"}),
        parts(command="/c"),
    ]
    assert len({str(one) for one in [same, *others]}) == len(others) + 1
    assert parts(model="x/m") == login_of(api.ExecuteRequest(model="x/m", config=_config(url="https://a")), traits)
    assert parts(headers={"a": "Bearer {{env.PLAIN}} of {{env.DRAGOMAN_RUN}}"})[0] == ["DRAGOMAN_RUN=r", "PLAIN=k"]
    mixed = parts(headers={"b": ["1", {"z": True, "a": None}], "a": 2})
    assert mixed == parts(headers={"a": 2, "b": ["1", {"a": None, "z": True}]}), "whatever their order"


def counted(env: dict[str, str], declared: Any = None) -> set[str]:
    """Return the names of variables that choose a login."""
    schema = {} if declared is None else {"x-login-variables": declared}
    login = login_of(api.ExecuteRequest(env=env), read_schema_traits(json.dumps(schema)))
    return {part.partition("=")[0] for part in login.credentials}


VARIABLES = dict.fromkeys(
    (
        *("PATH", "HOME", "XDG_CONFIG_HOME", "ACME_API_KEY", "ACME_MODE", "ACME_REGION", "OTHER_API_KEY", "PLAIN"),
        *("BRAND_RUN_TOKEN", "TASK_KEY", "PROJECT_ID", "GOOGLE_CLOUD_PROJECT", "RUNNER_TOKEN"),
    ),
    "x",
)


def test_variables_of_which_the_adapter_says_so_choose_the_account_and_homes_do() -> None:
    homes = {"HOME", "XDG_CONFIG_HOME"}
    assert counted(VARIABLES, ["PLAIN", "ACME_*", 1, "TASK_KEY"]) == {
        *homes,
        *("PLAIN", "ACME_API_KEY", "ACME_REGION", "TASK_KEY"),
    }
    assert counted(VARIABLES, []) == homes


@pytest.mark.parametrize("declared", [None, "ACME_*", {"a": 1}])
def test_without_a_declaration_all_that_look_like_a_login_count_but_those_of_one_run(declared: Any) -> None:
    more = {"ACME_API_KEY", "ACME_REGION", "OTHER_API_KEY", "GOOGLE_CLOUD_PROJECT", "RUNNER_TOKEN"}
    assert counted(VARIABLES, declared) == {"HOME", "XDG_CONFIG_HOME", *more}


def _config(**settings: Any) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(settings)
    return struct


NAMES = st.sampled_from(["properties", "x-login", "x-login-token", "x-login-variables", "required", "a"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(st.text(max_size=20) | JSON.map(json.dumps))
@settings(max_examples=100, deadline=None)
def test_whatever_a_schema_is_it_is_read_or_ignored(counts: str) -> None:
    read_schema_traits(counts)
    read_schema_traits("[" * 100_000)


def test_who_needs_settings_says_so() -> None:
    schemas: list[dict[str, Any]] = [{}, {"required": []}, {"required": ["a"]}]
    assert [read_schema_traits(json.dumps(schema)).requires_settings for schema in schemas] == [False, False, True]
