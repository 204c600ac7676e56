"""What follows a failure: the rules alone."""

from typing import Any

import pytest
from dragoman.protocol.order import OrderChecker
from dragoman.router._domain.fallback import Course, candidates, ended, onward, shortened
from dragoman.router._domain.fallback_settings import unknown_settings
from dragoman.router._domain.requests import execute_objection
from dragoman.router._domain.runs import RunRecord
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

AUTH, UPSTREAM = pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
CRASHED = pb.FAILURE_KIND_PROCESS_CRASHED
EFFECTS = {"tool_call", "file_change", "input_request"}


def failed(kind: pb.FailureKind.ValueType, **fields: Any) -> pb.Result:
    return pb.Result(outcome=pb.OUTCOME_FAILED, failure=pb.Failure(kind=kind, message="x"), **fields)


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
