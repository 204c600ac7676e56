"""What follows a failure, breakers and places: the rules alone."""

import json
from typing import Any

import pytest
from dragoman.protocol.order import OrderChecker
from dragoman.router._domain.admission import Places
from dragoman.router._domain.breaker import (
    FIRST_S,
    LONGEST_WORDS,
    MOST_BREAKERS,
    PROBE_RETRY_S,
    PROBE_S,
    Breakers,
    Key,
    Open,
)
from dragoman.router._domain.fallback import Course, candidates, ended, onward, shortened
from dragoman.router._domain.fallback_settings import unknown_settings
from dragoman.router._domain.logins import NO_TRAITS, login_of, read_traits
from dragoman.router._domain.requests import execute_objection
from dragoman.router._domain.runs import RunRecord
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

AUTH, UPSTREAM = pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
CRASHED, QUOTA = pb.FAILURE_KIND_PROCESS_CRASHED, pb.FAILURE_KIND_QUOTA_EXCEEDED
EFFECTS = {"tool_call", "file_change", "input_request"}
KEY = Key("one")
WORKED = pb.Result(outcome=pb.OUTCOME_SUCCEEDED)


def failed(kind: pb.FailureKind.ValueType, **fields: Any) -> pb.Result:
    return pb.Result(outcome=pb.OUTCOME_FAILED, failure=pb.Failure(kind=kind, message="x"), **fields)


def used_up(until: int) -> pb.Result:
    result = failed(QUOTA)
    result.failure.retry_not_before.FromSeconds(until)
    return result


def wait_s(breakers: Breakers, now: float, key: Key = KEY) -> float:
    """Return for how long runs are refused; 0 if one is let through."""
    opened = breakers.refusal(key, "asks", now)
    return opened.wait_s if opened is not None else 0.0


def event(kind: str, sequence: int, attempt: int) -> pb.AgentEvent:
    made = pb.AgentEvent(sequence=sequence, attempt=attempt, run_id="r")
    getattr(made, kind).SetInParent()
    if kind == "input_request":
        made.input_request.id = str(sequence)
    return made


# A question is answered or dropped before its attempt ends; that is another test's.
ATTEMPT = st.tuples(
    st.lists(st.sampled_from(["file_change", "tool_call", "text", "notice", "log", "usage"]), max_size=4),
    st.sampled_from([AUTH, UPSTREAM, CRASHED]),
)
ATTEMPTS = st.lists(ATTEMPT, min_size=1, max_size=6)


@given(attempts=ATTEMPTS, chain=st.integers(0, 3), retries=st.integers(0, 2), after=st.booleans())
@settings(max_examples=100, deadline=None)
def test_whatever_attempts_do_their_stream_is_in_order_and_nothing_follows_effects(
    attempts: list[tuple[list[str], pb.FailureKind.ValueType]], chain: int, retries: int, after: bool
) -> None:
    names = [f"a{number}" for number in range(chain)]
    course = Course(api.Fallback(adapters=names, on=[AUTH, UPSTREAM], after_side_effects=after), retries)
    record, checker, now = RunRecord("r", "one", 1, 0.0), OrderChecker(), 0.0
    is_over = False
    for kinds, failure in attempts:
        assert not is_over
        course.begin(tells_tools=True)
        for kind in ("started", *kinds):
            made = event(kind, record.last_sequence + 1, record.attempt + (kind == "started"))
            assert record.take(made, made.ByteSize(), now)
            course.note(made, kind)
            checker.observe(made)
        result = failed(failure)
        made = pb.AgentEvent(sequence=record.last_sequence + 1, attempt=record.attempt, run_id="r", result=result)
        assert record.conduct.would_take(made, "result", 10)
        follower = None
        if course.may_go_on(result):
            if course.may_retry(result):
                assert not set(kinds) & {*EFFECTS, "text"}
                course.retry(0.5)
                follower = ""
            else:
                assert after or not set(kinds) & EFFECTS
                follower = course.next_adapter()
                assert follower is not None
        if follower is None:
            record.take(made, 10, now)
            checker.observe(made)
            is_over = True
            break
        _sequence, data = record.turn(ended(result, follower, "why"), now)
        checker.observe(pb.AgentEvent.FromString(data))
    if not is_over:
        _sequence, data = record.end(failed(AUTH), now)
        checker.observe(pb.AgentEvent.FromString(data))
    checker.finish()


@pytest.mark.parametrize("kind", sorted(EFFECTS))
def test_nothing_follows_effects(kind: str) -> None:
    course = Course(api.Fallback(adapters=["b"], on=[AUTH]))
    assert course.may_go_on(failed(AUTH))
    course.note(event(kind, 1, 1), kind)
    assert not course.may_go_on(failed(AUTH))
    course.begin(tells_tools=True)
    assert course.may_go_on(failed(AUTH))


def test_what_nobody_saw_may_have_been_effects() -> None:
    course = Course(api.Fallback(adapters=["b"], on=[AUTH]))
    course.miss()
    assert not course.may_go_on(failed(AUTH))
    course.begin(tells_tools=True)
    course.note(pb.AgentEvent(sequence=1), None)
    assert not course.may_go_on(failed(AUTH)), "a kind of a later revision may be anything"


def test_what_is_not_to_be_tried_again_soon_is_not() -> None:
    result = failed(UPSTREAM)
    course = Course(api.Fallback(), 1)
    assert course.may_go_on(result)
    result.failure.retry_not_before.FromSeconds(10**9)
    assert not course.may_go_on(result)


@given(chance=st.floats(0, 1, exclude_max=True))
def test_waits_grow_and_are_spread(chance: float) -> None:
    course = Course(api.Fallback(), 9)
    waits = [course.retry(chance) for _ in range(6)]
    assert waits == sorted(waits)
    assert 0.5 <= waits[0] <= 1
    assert waits[-1] <= 20


def test_the_next_request_is_the_same_task_in_the_same_place() -> None:
    request = api.ExecuteRequest(run_id="r", adapter="one", prompt="p", model="m", env={"K": "v"})
    request.agent.adapter_config.update({"command": "/x", "timeoutSec": 5})
    request.session.fresh = True
    chain = api.Fallback(adapters=["b", "c"])
    chain.configs["c"].update({"model": "own"})
    following = onward(request, "b", "bee", "/work", chain)
    assert (following.adapter, following.prompt, following.model, following.run_id) == ("bee", "p", "", "r")
    assert dict(following.config) == {"timeoutSec": 5}
    assert (following.workspace.cwd, dict(following.env)) == ("/work", {"K": "v"})
    assert not following.HasField("session")
    assert dict(onward(request, "c", "c", "", chain).config) == {"model": "own"}


@pytest.mark.parametrize(
    ("task", "session", "is_said"),
    [
        ("", {}, False),
        ("t", {}, True),
        ("", {"handle": {"native_id": "s"}}, True),
        ("", {"resume_run_id": "r0"}, True),
        ("t", {"fresh": True}, False),
        ("t", {"fresh": True, "reason": "the session is 80 hours old"}, True),
    ],
)
def test_why_the_next_session_is_fresh_is_said_where_another_may_have_been_meant(
    task: str, session: dict[str, Any], is_said: bool
) -> None:
    request = api.ExecuteRequest(adapter="one", task_key=task, session=api.SessionSelector(**session))
    following = onward(request, "b", "b", "", api.Fallback(adapters=["b"]))
    assert following.HasField("session") == is_said
    assert (following.session.fresh, "fell back from 'one'" in following.session.reason) == (is_said, is_said)


@pytest.mark.parametrize("name", ["b", "c"])
def test_the_next_adapter_works_where_the_request_says_though_none_did_yet(name: str) -> None:
    request = api.ExecuteRequest()
    request.config.update({"cwd": "/said"})
    chain = api.Fallback(adapters=["b", "c"])
    chain.configs["c"].update({"timeoutSec": 1})
    assert onward(request, name, name, "", chain).workspace.cwd == "/said"
    assert onward(request, name, name, "/seen", chain).workspace.cwd == "/seen"
    request.workspace.cwd = "/wanted"
    assert onward(request, name, name, "", chain).workspace.cwd == "/wanted"


def test_what_a_router_keeps_to_itself_reaches_no_adapter() -> None:
    chain = api.Fallback(adapters=["b"])
    chain.configs["b"].update({"timeoutSec": 1, "sessionCompaction": {"maxSessionRuns": 5}})
    assert dict(onward(api.ExecuteRequest(), "b", "b", "", chain).config) == {"timeoutSec": 1}


def test_settings_that_say_nothing_are_none() -> None:
    request = api.ExecuteRequest(fallback=api.Fallback(adapters=["b"]))
    request.agent.adapter_config.update({"timeoutSec": 1})
    request.fallback.configs["b"].SetInParent()
    following = api.ExecuteRequest.FromString(onward(request, "b", "b", "", request.fallback).SerializeToString())
    assert following.HasField("config"), "else the agent's stored settings would be in force"
    assert not following.config.fields


CLOSED = '{"properties": {"timeoutSec": {}, "maxTurns": {}}, "additionalProperties": false}'


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        (CLOSED, True),
        ('{"additionalProperties": false}', True),
        ('{"properties": {"timeoutSec": {}}}', False),
        ('{"properties": {}, "additionalProperties": {}}', False),
        ('{"patternProperties": {"^s": {}}, "additionalProperties": false}', False),
        ('{"properties": 1, "additionalProperties": false}', False),
        ("[]", False),
        ("", False),
        ("[" * 100_000, False),
    ],
)
def test_settings_that_an_adapter_says_it_does_not_know_are_seen_before(schema: str, wrong: bool) -> None:
    request = api.ExecuteRequest(fallback=api.Fallback(adapters=["b"]))
    request.agent.adapter_config.update({"timeoutSec": 1, "sandbox": "SECRET", "command": "/x"})
    found = unknown_settings(request, {"b": api.DescribeResponse(adapter="bee", config_schema_json=schema)})
    assert [problem.path for problem in found] == (["fallback.configs.b"] if wrong else [])
    assert all("'bee'" in problem.description and "sandbox" in problem.description for problem in found)
    assert "SECRET" not in str(found)


def test_settings_of_an_adapters_own_are_seen_too_and_none_are_right() -> None:
    request = api.ExecuteRequest(fallback=api.Fallback(adapters=["b"]))
    request.config.update({"sandbox": "on", "sessionCompaction": {}})
    described = {"b": api.DescribeResponse(adapter="b", config_schema_json=CLOSED)}
    request.fallback.configs["b"].SetInParent()
    assert not unknown_settings(request, described)
    request.fallback.configs["b"].update({"maxTurns": 1, "sessionCompaction": {}})
    assert not unknown_settings(request, described)
    request.fallback.configs["b"].update({f"strange{number}" * 50: 1 for number in range(12)})
    (problem,) = unknown_settings(request, described)
    assert problem.description.endswith(" and 2 more")
    assert len(problem.description) < 1000
    assert "sandbox" not in problem.description


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        (3, "fallback.configs.b.sessionCompaction"),
        ({"runs": 1}, "fallback.configs.b.sessionCompaction.runs"),
        ({"maxSessionRuns": 5}, None),
    ],
)
def test_a_policy_for_another_adapter_is_looked_at_too(policy: Any, path: str | None) -> None:
    request = api.ExecuteRequest(fallback=api.Fallback(adapters=["a", "b"]))
    request.fallback.configs["a"].update({"timeoutSec": 1})
    request.fallback.configs["b"].update({"sessionCompaction": policy})
    objection = execute_objection(request)
    assert (objection.path if objection is not None else None) == path


def test_candidates_are_agents_that_are_logged_in_and_then_models() -> None:
    def found(adapter: str, auth: api.AuthState.ValueType, *, agent: bool = True, **fields: Any) -> api.Detection:
        features = [pb.FEATURE_PROMPT, *([] if agent else [pb.FEATURE_WORKSPACE, pb.FEATURE_MODEL_CHOICE])]
        items = [pb.Capability(feature=feature) for feature in fields.pop("features", features)]
        return api.Detection(
            adapter=adapter,
            available=fields.pop("available", True),
            auth=auth,
            executable="/x" if agent else "",
            capabilities=pb.Capabilities(items=items),
        )

    known = [
        found("model", api.AUTH_STATE_OK, agent=False),
        found("unsure", api.AUTH_STATE_UNKNOWN),
        found("good", api.AUTH_STATE_OK),
        found("failed", api.AUTH_STATE_OK),
        found("out", api.AUTH_STATE_MISSING),
        found("gone", api.AUTH_STATE_OK, available=False),
        found("command", api.AUTH_STATE_NOT_NEEDED, agent=False, features=[pb.FEATURE_PROMPT]),
    ]
    assert candidates(known, "failed") == ["good", "unsure", "model"]


def test_a_breaker_lets_one_through_when_its_time_is_over_and_doubles_if_that_fails() -> None:
    breakers = Breakers()
    assert breakers.note(KEY, "r", failed(AUTH), 0, did_work=False)
    opened = breakers.admit(KEY, "s", 1)
    assert opened is not None
    assert opened.wait_s == FIRST_S - 1
    assert breakers.admit(Key("two"), "s", 1) is None
    assert breakers.admit(Key("one", b"other"), "s", 1) is None
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.admit(KEY, "other", FIRST_S) is not None, "one at a time"
    breakers.release(KEY, "probe")
    assert breakers.admit(KEY, "next", FIRST_S) is None
    assert breakers.note(KEY, "next", failed(AUTH), FIRST_S, did_work=False)
    opened = breakers.admit(KEY, "s", FIRST_S)
    assert opened is not None
    assert opened.wait_s == 2 * FIRST_S
    assert breakers.admit(KEY, "s", 3 * FIRST_S) is None
    assert breakers.note(KEY, "s", WORKED, 3 * FIRST_S, did_work=True)
    assert breakers.admit(KEY, "t", 3 * FIRST_S) is None
    assert not breakers.opened("one", 0)


def test_a_quota_keeps_runs_away_until_the_time_that_was_told() -> None:
    breakers = Breakers()
    breakers.note(KEY, "r", used_up(5000), 1000, did_work=False)
    opened = breakers.admit(KEY, "s", 1000)
    assert opened is not None
    assert opened.wait_s == 4000


def test_the_words_that_are_told_are_those_of_the_failure_that_counts_and_no_address_is_cut() -> None:
    breakers = Breakers()
    first, longer = failed(AUTH), used_up(5000)
    first.failure.message, first.failure.login_url = "a" * (LONGEST_WORDS + 1), "https://" + "a" * LONGEST_WORDS
    longer.failure.message, longer.failure.login_url = "used up", "https://a"
    breakers.note(KEY, "r", first, 0, did_work=False)
    assert breakers.refusal(KEY, "s", 0) == Open(AUTH, FIRST_S, message="a" * LONGEST_WORDS)
    assert not breakers.note(KEY, "s", failed(AUTH), 0, did_work=False)
    assert breakers.refusal(KEY, "s", 0) == Open(AUTH, FIRST_S, message="a" * LONGEST_WORDS)
    assert breakers.note(KEY, "t", longer, 0, did_work=False)
    assert breakers.refusal(KEY, "s", 0) == Open(QUOTA, 5000, message="used up", login_url="https://a")


def test_crashes_count_in_a_row_before_any_work_and_not_when_somebody_killed_it() -> None:
    breakers = Breakers(crashes=2)
    killed = failed(CRASHED, signal="SIGKILL")
    for result, did_work, opens in [
        (failed(CRASHED), False, False),
        (failed(CRASHED), True, False),
        (failed(CRASHED), False, False),
        (killed, False, False),
        (failed(CRASHED), False, True),
    ]:
        assert breakers.note(KEY, "r", result, 0, did_work=did_work) is opens
    never = Breakers(crashes=0)
    assert not any(never.note(KEY, "r", failed(CRASHED), 0, did_work=False) for _ in range(20))


def test_a_login_seen_to_be_good_closes_only_the_machines_own() -> None:
    breakers = Breakers()
    other, with_settings = Key("one", b"x"), Key("one", settings=b"y")
    for key in (KEY, other, with_settings):
        breakers.note(key, "r", failed(AUTH), 0, did_work=False)
    assert not breakers.reset("one", -1), "it was looked at before"
    assert breakers.reset("one", 1)
    assert not breakers.reset("one", 1)
    assert breakers.admit(KEY, "s", 1) is None
    assert breakers.admit(with_settings, "s", 1) is None
    assert breakers.admit(other, "s", 1) is not None


@pytest.mark.parametrize("failure", [used_up(5000), failed(QUOTA), failed(CRASHED)])
def test_a_login_seen_to_be_good_says_nothing_of_quotas_and_crashes(failure: pb.Result) -> None:
    breakers = Breakers(crashes=1)
    breakers.note(KEY, "r", failure, 0, did_work=False)
    assert not breakers.reset("one", 1)
    assert wait_s(breakers, 1) > 0


def test_runs_that_fail_together_fail_once() -> None:
    breakers = Breakers()
    for run in "abcdef":
        assert breakers.admit(KEY, run, 0) is None
    told = [breakers.note(KEY, run, failed(AUTH), 0.1 * place, did_work=False) for place, run in enumerate("abcdef")]
    assert told == [True, False, False, False, False, False]
    assert wait_s(breakers, 0) == FIRST_S
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert not breakers.note(KEY, "late", failed(AUTH), FIRST_S, did_work=False)
    assert breakers.note(KEY, "probe", failed(AUTH), FIRST_S, did_work=False), "the late one was not the probe"
    assert wait_s(breakers, FIRST_S) == 2 * FIRST_S


@pytest.mark.parametrize(
    "late", [failed(QUOTA), failed(AUTH), failed(CRASHED), used_up(50), WORKED, failed(UPSTREAM)]
)
def test_who_was_let_through_before_it_opened_neither_closes_nor_shortens_it(late: pb.Result) -> None:
    breakers = Breakers(crashes=1)
    breakers.note(KEY, "a", used_up(5000), 1000, did_work=False)
    assert not breakers.note(KEY, "before", late, 1000, did_work=False)
    assert wait_s(breakers, 1000) == 4000


def test_a_quotas_end_may_be_told_by_any_run() -> None:
    breakers = Breakers()
    breakers.note(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.note(KEY, "before", used_up(5000), FIRST_S, did_work=False)
    assert breakers.refusal(KEY, "asks", FIRST_S) == Open(QUOTA, 5000 - FIRST_S, message="x")
    assert breakers.note(KEY, "probe", failed(AUTH), FIRST_S, did_work=False)
    assert wait_s(breakers, FIRST_S) == 5000 - FIRST_S, "nor does the probe shorten it"
    assert breakers.admit(KEY, "next", 5000) is None
    assert breakers.note(KEY, "next", WORKED, 5001, did_work=True)
    assert wait_s(breakers, 5001) == 0


def test_who_is_let_through_all_the_same_closes_it_and_does_not_make_it_last() -> None:
    breakers = Breakers()
    breakers.note(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.admit(KEY, "refused", 1) is not None
    assert breakers.admit(KEY, "b", 1, is_forced=True) is None
    assert breakers.admit(KEY, "c", 1, is_forced=True) is None
    assert not breakers.note(KEY, "b", failed(AUTH), 1, did_work=False)
    assert wait_s(breakers, 1) == FIRST_S - 1
    assert not breakers.note(KEY, "b", WORKED, 1, did_work=True), "what it says once is said"
    assert breakers.note(KEY, "c", WORKED, 1, did_work=True)
    assert wait_s(breakers, 1) == 0


def test_whose_time_is_over_is_open_no_more_but_while_its_probe_is_under_way() -> None:
    breakers = Breakers()
    breakers.note(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.opened("one", 1) == [(KEY, Open(AUTH, FIRST_S - 1, message="x"))]
    assert breakers.opened("one", FIRST_S) == []
    assert wait_s(breakers, FIRST_S) == 0, "who only asks is not the probe"
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert breakers.opened("one", FIRST_S) == [(KEY, Open(AUTH, PROBE_RETRY_S, is_probed=True, message="x"))]
    assert breakers.next_end_s(FIRST_S) == PROBE_S
    breakers.release(KEY, "probe")
    assert breakers.opened("one", FIRST_S) == []
    assert breakers.next_end_s(FIRST_S) is None


def test_it_closes_as_soon_as_its_probe_works_and_what_failed_is_remembered_until_a_run_succeeds() -> None:
    breakers = Breakers()
    assert not breakers.works(KEY, "a")
    breakers.note(KEY, "a", failed(AUTH), 0, did_work=False)
    assert breakers.next_end_s(0) == FIRST_S
    assert breakers.admit(KEY, "forced", 1, is_forced=True) is None
    assert not breakers.works(KEY, "forced"), "no probe"
    assert breakers.admit(KEY, "probe", FIRST_S) is None
    assert wait_s(breakers, FIRST_S) == PROBE_RETRY_S
    assert breakers.works(KEY, "probe")
    assert wait_s(breakers, FIRST_S) == 0
    assert not breakers.works(KEY, "probe")
    assert not breakers.opened("one", FIRST_S)
    assert breakers.note(KEY, "probe", failed(AUTH), FIRST_S, did_work=True), "it only said why it is not let in"
    assert wait_s(breakers, FIRST_S) == 2 * FIRST_S
    assert breakers.admit(KEY, "next", 3 * FIRST_S) is None
    assert breakers.works(KEY, "next")
    assert not breakers.note(KEY, "next", WORKED, 3 * FIRST_S, did_work=True), "it was closed"
    breakers.note(KEY, "a", failed(AUTH), 3 * FIRST_S, did_work=False)
    assert wait_s(breakers, 3 * FIRST_S) == FIRST_S


def test_logins_that_nobody_else_has_do_not_make_a_long_wait_be_forgotten() -> None:
    breakers = Breakers()
    breakers.note(KEY, "a", used_up(5000), 0, did_work=False)
    for number in range(MOST_BREAKERS + 1):
        breakers.note(Key("one", str(number).encode()), "r", failed(AUTH), 0, did_work=False)
    assert wait_s(breakers, 0) == 5000
    assert len(breakers.opened("one", 0)) == MOST_BREAKERS


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
    traits = read_traits(json.dumps(schema))

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


def counted(env: dict[str, str], said: Any = None) -> set[str]:
    """Return the names of variables that choose a login."""
    schema = {} if said is None else {"x-login-variables": said}
    login = login_of(api.ExecuteRequest(env=env), read_traits(json.dumps(schema)))
    return {part.partition("=")[0] for part in login.given}


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


@pytest.mark.parametrize("said", [None, "ACME_*", {"a": 1}])
def test_where_it_does_not_say_all_do_that_look_so_but_those_of_one_run(said: Any) -> None:
    more = {"ACME_API_KEY", "ACME_REGION", "OTHER_API_KEY", "GOOGLE_CLOUD_PROJECT", "RUNNER_TOKEN"}
    assert counted(VARIABLES, said) == {"HOME", "XDG_CONFIG_HOME", *more}


def _config(**settings: Any) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(settings)
    return made


NAMES = st.sampled_from(["properties", "x-login", "x-login-token", "x-login-variables", "required", "a"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(st.text(max_size=20) | JSON.map(json.dumps))
@settings(max_examples=100, deadline=None)
def test_whatever_a_schema_is_it_is_read_or_ignored(told: str) -> None:
    read_traits(told)
    read_traits("[" * 100_000)


def test_who_needs_settings_says_so() -> None:
    schemas: list[dict[str, Any]] = [{}, {"required": []}, {"required": ["a"]}]
    assert [read_traits(json.dumps(schema)).is_needy for schema in schemas] == [False, False, True]


class PlacesMachine(RuleBasedStateMachine):
    """Runs come, wait and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places({"a": 2, "alias": 1})
        self.tickets: list[Any] = []
        self.granted: list[int] = []
        self.number = 0

    @rule()
    def come(self) -> None:
        self.number += 1
        number = self.number
        limit = self.places.limit("a")
        self.tickets.append((number, self.places.take("a", limit, lambda: self.granted.append(number))))

    @rule(place=st.integers(0, 20))
    def go(self, place: int) -> None:
        if self.tickets:
            _number, ticket = self.tickets.pop(place % len(self.tickets))
            self.places.leave(ticket)
            self.places.leave(ticket)  # twice is once

    @invariant()
    def never_more_than_there_are_and_none_waits_in_vain(self) -> None:
        have = [number for number, ticket in self.tickets if ticket.has_place]
        assert self.places.taken("a") == len(have) == min(2, len(self.tickets))
        assert self.places.waiting("a") == len(self.tickets) - len(have)

    @invariant()
    def first_come_first_served(self) -> None:
        assert self.granted == sorted(self.granted)


TestPlaces = PlacesMachine.TestCase
TestPlaces.settings = settings(max_examples=50, deadline=None)


def test_limits_are_found_by_alias_too() -> None:
    places = Places({"a": 2, "alias": 1})
    assert places.limit("x") is None
    assert places.limit("a", frozenset({"a", "alias"})) == 1


def test_what_an_adapter_says_it_can_have_is_a_limit_too() -> None:
    places = Places({"a": 2})
    assert [places.limit("a", most=most) for most in (0, 1, 2, 3)] == [2, 1, 2, 2]
    assert [places.limit("x", most=most) for most in (0, 3)] == [None, 3]


@pytest.mark.parametrize(
    ("wall_s", "passed_s", "left_s"), [(60, 20.5, 39.5), (60, 60, 1), (60, 99, 1), (0.5, 9, 0.5), (0, 9, 0)]
)
def test_a_later_attempt_has_what_is_left_of_the_time(wall_s: float, passed_s: float, left_s: float) -> None:
    request = api.ExecuteRequest()
    request.limits.wall.FromNanoseconds(int(wall_s * 1e9))
    request.limits.idle.FromSeconds(7)
    request.config.update({"timeoutSec": 5})
    following = shortened(request, passed_s)
    assert following.limits.wall.ToNanoseconds() == left_s * 1e9
    assert following.limits.idle.ToSeconds() == 7
    assert following.config["timeoutSec"] == 5, "it does not count"
    assert request.limits.wall.ToNanoseconds() == wall_s * 1e9


@pytest.mark.parametrize(
    ("told", "left"), [(60, 40), (20.5, 1), (0, 0), (-1, -1), ("60", "60"), (float("inf"), float("inf"))]
)
@pytest.mark.parametrize("where", ["config", "adapter_config"])
def test_so_it_is_where_a_setting_bounds_it(where: str, told: Any, left: Any) -> None:
    request = api.ExecuteRequest()
    settings = request.config if where == "config" else request.agent.adapter_config
    settings.update({"timeoutSec": told, "graceSec": 3})
    following = shortened(request, 20.0)
    after = following.config if where == "config" else following.agent.adapter_config
    assert dict(after) == {"timeoutSec": left, "graceSec": 3}
    assert following.HasField("config") is (where == "config")
    assert not following.HasField("limits")
    assert shortened(api.ExecuteRequest(), 20.0) == api.ExecuteRequest()


@pytest.mark.parametrize(
    ("counters", "follows"), [({"turns": 1}, True), ({"tool_calls": 1}, False), ({"file_changes": 1}, False)]
)
def test_what_a_result_counts_has_happened_though_no_event_told_it(counters: dict[str, int], follows: bool) -> None:
    course = Course(api.Fallback(adapters=["two"], on=[AUTH]), 2)
    again, another = (failed(kind, counters=pb.RunCounters(**counters)) for kind in (UPSTREAM, AUTH))
    assert course.may_retry(again) is follows
    assert course.may_fall_back(another) is follows
    assert bool(course.withheld(another)) is not follows
    course.fallback.after_side_effects = True
    assert course.may_fall_back(another)
