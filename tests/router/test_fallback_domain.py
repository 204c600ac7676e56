"""What follows a failure: the rules alone."""

from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.order import OrderChecker
from dragoman.router.api.validation import execute_objection
from dragoman.router.model.run_record import RunRecord
from dragoman.router.policy.fallback import (
    attempt_ended,
    candidates,
    fallback_request,
    needs_candidates,
    settings_problem,
    unknown_settings,
    with_remaining_time,
)
from dragoman.router.policy.next_step import (
    End,
    Failed,
    Fallback,
    History,
    Outcome,
    Rejected,
    Retry,
    Rules,
    next_step,
)
from dragoman.router.runs.course import Course
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
    message = pb.AgentEvent(sequence=sequence, attempt=attempt, run_id="r")
    getattr(message, kind).SetInParent()
    if kind == "input_request":
        message.input_request.id = str(sequence)
    return message


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
    course = Course(Rules(api.Fallback(adapters=names, on=[AUTH, UPSTREAM], after_side_effects=after), retries))
    record, checker, now = RunRecord("r", "one", 0.0), OrderChecker(), 0.0
    is_over = False
    for kinds, failure in attempts:
        assert not is_over
        course.begin()
        for kind in ("started", *kinds):
            message = event(kind, record.last_sequence + 1, record.attempt + (kind == "started"))
            assert record.accept(message, message.ByteSize(), now)
            course.observe(message, kind)
            checker.observe(message)
        result = failed(failure)
        message = pb.AgentEvent(sequence=record.last_sequence + 1, attempt=record.attempt, run_id="r", result=result)
        assert record.validator.would_accept(message, "result", 10)
        follower = None
        step = course.after(course.failed(result), 0.5)
        assert course.may_continue(result) is not isinstance(step, End)
        if isinstance(step, Retry):
            assert not set(kinds) & {*EFFECTS, "text"}
            course.history, follower = step.history, ""
        elif isinstance(step, Fallback):
            assert after or not set(kinds) & EFFECTS
            course.history, follower = step.history.moved(), step.adapter
        if follower is None:
            record.accept(message, 10, now)
            checker.observe(message)
            is_over = True
            break
        _sequence, data = record.end_attempt(attempt_ended(result, follower, "why"), now)
        checker.observe(pb.AgentEvent.FromString(data))
    if not is_over:
        ((_sequence, data),) = record.end(failed(AUTH), now)
        checker.observe(pb.AgentEvent.FromString(data))
    checker.finish()


@pytest.mark.parametrize("kind", sorted(EFFECTS))
def test_nothing_follows_effects(kind: str) -> None:
    course = Course(Rules(api.Fallback(adapters=["b"], on=[AUTH])))
    assert course.may_continue(failed(AUTH))
    course.observe(event(kind, 1, 1), kind)
    assert not course.may_continue(failed(AUTH))
    course.begin()
    assert course.may_continue(failed(AUTH))


def test_no_other_adapter_follows_once_an_input_was_taken() -> None:
    course = Course(Rules(api.Fallback(adapters=["b"], on=[AUTH])))
    message = pb.AgentEvent(sequence=1, message=pb.Message(role=pb.MESSAGE_ROLE_USER))
    course.observe(message, "message")
    assert course.may_continue(failed(AUTH))
    message.message.input_id = "i"
    course.observe(message, "message")
    assert not course.may_continue(failed(AUTH)), "the other one would not get it"


def test_a_result_of_the_routers_own_says_of_work_only_what_was_seen() -> None:
    course = Course(Rules(api.Fallback()), reports_tools=False)
    course.assume_effects()
    course.observe(pb.AgentEvent(sequence=1), None)
    unseen, done, cancelled = failed(AUTH), failed(AUTH), pb.Result(outcome=pb.OUTCOME_CANCELLED)
    course.note_work(unseen)
    assert not unseen.failure.HasField("work_begun"), "perhaps is not yes, and never no"
    course.observe(event("tool_call", 1, 1), "tool_call")
    course.note_work(done)
    course.note_work(cancelled)
    assert done.failure.work_begun
    assert not cancelled.HasField("failure")
    course.begin()
    course.note_work(unseen)
    assert not unseen.failure.HasField("work_begun"), "each attempt for itself"


def test_an_attempt_without_observed_events_may_have_had_effects() -> None:
    course = Course(Rules(api.Fallback(adapters=["b"], on=[AUTH])))
    course.assume_effects()
    assert not course.may_continue(failed(AUTH))
    course.begin()
    course.observe(pb.AgentEvent(sequence=1), None)
    assert not course.may_continue(failed(AUTH)), "a kind of a later revision may be anything"


def test_what_is_not_to_be_tried_again_soon_is_not() -> None:
    result = failed(UPSTREAM)
    course = Course(Rules(api.Fallback(), 1))
    assert course.may_continue(result)
    result.failure.retry_not_before.FromSeconds(10**9)
    assert not course.may_continue(result)


@given(chance=st.floats(0, 1, exclude_max=True))
def test_waits_grow_and_are_spread(chance: float) -> None:
    waits, history = list[float](), History()
    for _ in range(6):
        step = next_step(Rules(api.Fallback(), 9), history, Failed(failed(UPSTREAM)), chance)
        assert isinstance(step, Retry)
        waits, history = [*waits, step.delay_s], step.history
    assert waits == sorted(waits)
    assert 0.5 <= waits[0] <= 1
    assert waits[-1] <= 20


def test_the_next_request_is_the_same_task_in_the_same_place() -> None:
    request = api.ExecuteRequest(run_id="r", adapter="one", prompt="p", model="m", env={"K": "v"})
    request.agent.adapter_config.update({"command": "/x", "timeoutSec": 5})
    request.session.fresh = True
    chain = api.Fallback(adapters=["b", "c"])
    chain.configs["c"].update({"model": "own"})
    following = fallback_request(request, "b", "bee", "/work", chain)
    assert (following.adapter, following.prompt, following.model, following.run_id) == ("bee", "p", "", "r")
    assert dict(following.config) == {"timeoutSec": 5}
    assert (following.workspace.cwd, dict(following.env)) == ("/work", {"K": "v"})
    assert not following.HasField("session")
    assert dict(fallback_request(request, "c", "c", "", chain).config) == {"model": "own"}


@pytest.mark.parametrize(
    ("task", "session", "has_reason"),
    [
        ("", {}, False),
        ("t", {}, True),
        ("", {"handle": {"native_id": "s"}}, True),
        ("", {"resume_run_id": "r0"}, True),
        ("t", {"fresh": True}, False),
        ("t", {"fresh": True, "reason": "the session is 80 hours old"}, True),
    ],
)
def test_a_fresh_session_has_its_reason_where_another_may_have_been_meant(
    task: str, session: dict[str, Any], has_reason: bool
) -> None:
    request = api.ExecuteRequest(adapter="one", task_key=task, session=api.SessionSelector(**session))
    following = fallback_request(request, "b", "b", "", api.Fallback(adapters=["b"]))
    assert following.HasField("session") == has_reason
    assert (following.session.fresh, "fell back from 'one'" in following.session.reason) == (has_reason, has_reason)


@pytest.mark.parametrize("name", ["b", "c"])
def test_the_next_adapter_works_where_the_request_says_though_none_did_yet(name: str) -> None:
    request = api.ExecuteRequest()
    request.config.update({"cwd": "/said"})
    chain = api.Fallback(adapters=["b", "c"])
    chain.configs["c"].update({"timeoutSec": 1})
    assert fallback_request(request, name, name, "", chain).workspace.cwd == "/said"
    assert fallback_request(request, name, name, "/seen", chain).workspace.cwd == "/seen"
    request.workspace.cwd = "/wanted"
    assert fallback_request(request, name, name, "", chain).workspace.cwd == "/wanted"


def test_what_a_router_keeps_to_itself_reaches_no_adapter() -> None:
    chain = api.Fallback(adapters=["b"])
    chain.configs["b"].update({"timeoutSec": 1, "sessionCompaction": {"maxSessionRuns": 5}})
    assert dict(fallback_request(api.ExecuteRequest(), "b", "b", "", chain).config) == {"timeoutSec": 1}


def test_settings_that_say_nothing_are_none() -> None:
    request = api.ExecuteRequest(fallback=api.Fallback(adapters=["b"]))
    request.agent.adapter_config.update({"timeoutSec": 1})
    request.fallback.configs["b"].SetInParent()
    following = api.ExecuteRequest.FromString(
        fallback_request(request, "b", "b", "", request.fallback).SerializeToString()
    )
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
        ("", False),
    ],
)
def test_settings_that_an_adapter_says_it_does_not_know_are_seen_before(schema: str, wrong: bool) -> None:
    request = api.ExecuteRequest(fallback=api.Fallback(adapters=["b"]))
    request.agent.adapter_config.update({"timeoutSec": 1, "sandbox": "SECRET", "command": "/x"})
    problem = settings_problem(request, "b", schema)
    assert ("'b'" in problem and "sandbox" in problem) is wrong
    assert bool(problem) is wrong
    assert "SECRET" not in problem


def test_the_setting_of_the_router_is_unknown_to_no_adapter() -> None:
    asked = api.ExecuteRequest()
    asked.config.update({"sandbox": "on", "sessionCompaction": {}})
    assert unknown_settings(asked.config, CLOSED) == ["sandbox"]


def test_settings_of_an_adapters_own_are_seen_too_and_none_are_right() -> None:
    request = api.ExecuteRequest(fallback=api.Fallback(adapters=["b"]))
    request.config.update({"sandbox": "on", "sessionCompaction": {}})
    request.fallback.configs["b"].SetInParent()
    assert not settings_problem(request, "b", CLOSED)
    request.fallback.configs["b"].update({"maxTurns": 1, "sessionCompaction": {}})
    assert not settings_problem(request, "b", CLOSED)
    request.fallback.configs["b"].update({f"strange{number}" * 50: 1 for number in range(12)})
    problem = settings_problem(request, "b", CLOSED)
    assert "strange0" in problem
    assert len(problem) < 1000
    assert "sandbox" not in problem


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
    assert (objection[0] if objection is not None else None) == path


NOT_THE_ADAPTERS = {
    *("UNSPECIFIED", "MODEL_REFUSED", "MAX_TURNS", "CONTEXT_OVERFLOW", "SESSION_LOST", "INVALID_CONFIG"),
    *("PERMISSION_DENIED", "ADAPTER_LOST", "WORKSPACE_FAILED", "INTERNAL", "TOOL_TIMEOUT", "OUTPUT_LIMIT"),
    "BUDGET_EXCEEDED",
}
"""Failures of the task, the request or ourselves: another agent would meet them too, or the cause is unknown."""


@pytest.mark.parametrize("kind", [name.removeprefix("FAILURE_KIND_") for name in pb.FailureKind.keys()])  # noqa: SIM118
def test_another_agent_is_offered_for_what_it_may_not_have(kind: str) -> None:
    outcome = pb.OUTCOME_TIMED_OUT if kind.endswith("TIMEOUT") else pb.OUTCOME_FAILED
    result = pb.Result(outcome=outcome, failure=pb.Failure(kind=pb.FailureKind.Value(f"FAILURE_KIND_{kind}")))
    assert needs_candidates(result) is (kind not in NOT_THE_ADAPTERS)
    result.outcome = pb.OUTCOME_CANCELLED
    assert not needs_candidates(result)


def test_candidates_are_agents_that_are_logged_in_and_then_models() -> None:
    def found(adapter: str, auth: api.AuthState.ValueType, *, agent: bool = True, **fields: Any) -> api.Detection:
        features = [pb.FEATURE_PROMPT, *([] if agent else [pb.FEATURE_WORKSPACE, pb.FEATURE_MODEL_CHOICE])]
        items = [pb.Capability(feature=feature) for feature in fields.pop("features", features)]
        return api.Detection(
            adapter=adapter,
            available=fields.pop("available", True),
            auth=auth,
            executable="/x" if agent else "",
            confidence=fields.pop("confidence", api.DETECTION_CONFIDENCE_CONFIDENT),
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
        found("of-settings", api.AUTH_STATE_OK, agent=False, confidence=api.DETECTION_CONFIDENCE_NOT_APPLICABLE),
    ]
    for kind in (pb.FAILURE_KIND_QUOTA_EXCEEDED, pb.FAILURE_KIND_NOT_INSTALLED):
        assert candidates(known, "failed", kind) == ["good", "unsure", "model"]
    # What a request's settings name fails as a program by those settings; its model may fail as any.
    assert candidates(known, "of-settings", pb.FAILURE_KIND_QUOTA_EXCEEDED) == ["failed", "good", "unsure", "model"]
    for kind in (pb.FAILURE_KIND_NOT_INSTALLED, pb.FAILURE_KIND_PROCESS_CRASHED, pb.FAILURE_KIND_WALL_TIMEOUT):
        assert candidates(known, "of-settings", kind) == []


@pytest.mark.parametrize(
    ("wall_s", "passed_s", "left_s"), [(60, 20.5, 39.5), (60, 60, 1), (60, 99, 1), (0.5, 9, 0.5), (0, 9, 0)]
)
def test_a_later_attempt_has_what_is_left_of_the_time(wall_s: float, passed_s: float, left_s: float) -> None:
    request = api.ExecuteRequest()
    request.limits.wall.FromNanoseconds(int(wall_s * 1e9))
    request.limits.idle.FromSeconds(7)
    request.config.update({"timeoutSec": 5})
    following = with_remaining_time(request, passed_s)
    assert following.limits.wall.ToNanoseconds() == left_s * 1e9
    assert following.limits.idle.ToSeconds() == 7
    assert following.config["timeoutSec"] == 5, "it does not count"
    assert request.limits.wall.ToNanoseconds() == wall_s * 1e9


@pytest.mark.parametrize(
    ("limit", "left"), [(60, 40), (20.5, 1), (0, 0), (-1, -1), ("60", "60"), (float("inf"), float("inf"))]
)
@pytest.mark.parametrize("where", ["config", "adapter_config"])
def test_so_it_is_where_a_setting_bounds_it(where: str, limit: Any, left: Any) -> None:
    request = api.ExecuteRequest()
    settings = request.config if where == "config" else request.agent.adapter_config
    settings.update({"timeoutSec": limit, "graceSec": 3})
    following = with_remaining_time(request, 20.0)
    after = following.config if where == "config" else following.agent.adapter_config
    assert dict(after) == {"timeoutSec": left, "graceSec": 3}
    assert following.HasField("config") is (where == "config")
    assert not following.HasField("limits")
    assert with_remaining_time(api.ExecuteRequest(), 20.0) == api.ExecuteRequest()


def test_what_an_agent_tried_again_itself_is_not_tried_again_here() -> None:
    rules = Rules(api.Fallback(adapters=["two"], on=[UPSTREAM]), 2)
    plain, flagged, counted = failed(UPSTREAM), failed(UPSTREAM), failed(UPSTREAM, counters=pb.RunCounters(retries=3))
    flagged.failure.agent_retried = True
    steps = [next_step(rules, History(), Failed(result)) for result in (plain, flagged, counted)]
    assert [type(step) for step in steps] == [Retry, Fallback, Fallback], "another agent may do better"


@pytest.mark.parametrize(
    ("counters", "follows"), [({"turns": 1}, True), ({"tool_calls": 1}, False), ({"file_changes": 1}, False)]
)
def test_a_counter_of_the_result_counts_without_an_event_for_it(counters: dict[str, int], follows: bool) -> None:
    course = Course(Rules(api.Fallback(adapters=["two"], on=[AUTH]), 2))
    again, another = (failed(kind, counters=pb.RunCounters(**counters)) for kind in (UPSTREAM, AUTH))
    assert isinstance(course.after(Failed(again)), Retry) is follows
    assert isinstance(course.after(Failed(another)), Fallback) is follows
    assert bool(course.withheld_reason(another)) is not follows
    course.rules.fallback.after_side_effects = True
    assert isinstance(course.after(Failed(another)), Fallback)


DOWN = DragomanError(Reason.ADAPTER_UNAVAILABLE, "is gone")
WRONG = DragomanError(Reason.INVALID_REQUEST, "is wrong")
ON_SPAWN = [pb.FAILURE_KIND_SPAWN_FAILED, AUTH]


@pytest.mark.parametrize(
    ("rules", "history", "error", "follows"),
    [
        ({"adapters": "bc", "on": ON_SPAWN}, History(), DOWN, "b"),
        ({"adapters": "bc", "on": ON_SPAWN}, History(), WRONG, None),
        ({"adapters": "bc", "on": [AUTH]}, History(), DOWN, None),
        ({"adapters": "", "on": ON_SPAWN}, History(), DOWN, None),
        ({"adapters": "bc", "on": ON_SPAWN}, History(chosen=1, skipped=DOWN), WRONG, "c"),
        ({"adapters": "bc", "on": ON_SPAWN}, History(chosen=2, skipped=DOWN), WRONG, None),
        ({"adapters": "bc", "on": ON_SPAWN}, History(chosen=1, failed=failed(AUTH)), WRONG, "c"),
        ({"adapters": "bc", "on": ON_SPAWN}, History(retries=1, failed=failed(UPSTREAM)), WRONG, None),
        ({"adapters": "bc", "on": [UPSTREAM]}, History(retries=1, failed=failed(UPSTREAM)), WRONG, "b"),
    ],
)
def test_what_follows_a_rejection(
    rules: dict[str, Any], history: History, error: DragomanError, follows: str | None
) -> None:
    step = next_step(Rules(api.Fallback(**rules), 1), history, Rejected(error))
    if follows is None:
        assert step == End()
    else:
        assert isinstance(step, Fallback)
        assert (step.adapter, step.history.chosen) == (follows, history.chosen + 1)
        assert step.history.skipped == (error if history == History() else history.skipped)


RESULTS = st.sampled_from([failed(AUTH), failed(UPSTREAM), failed(CRASHED)])
OUTCOMES = st.one_of(
    st.builds(
        Failed, st.sampled_from([failed(AUTH), failed(UPSTREAM), failed(CRASHED)]), st.booleans(), st.booleans()
    ),
    st.sampled_from([Rejected(DOWN), Rejected(WRONG)]),
)


@given(
    outcomes=st.lists(OUTCOMES, max_size=20), retries=st.integers(0, 3), chain=st.integers(0, 3), after=st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_attempts_come_to_an_end_and_each_adapter_is_chosen_once(
    outcomes: list[Outcome], retries: int, chain: int, after: bool
) -> None:
    names = [f"a{number}" for number in range(chain)]
    rules = Rules(api.Fallback(adapters=names, on=[AUTH, UPSTREAM], after_side_effects=after), retries)
    history, chosen, tried = History(), list[str](), 0
    for outcome in outcomes:
        step = next_step(rules, history, outcome)
        assert next_step(rules, history, outcome) == step, "it depends on nothing else"
        if isinstance(step, End):
            break
        history, tried = step.history, tried + 1
        if isinstance(step, Fallback):
            chosen, history = [*chosen, step.adapter], history.moved()
        else:
            assert isinstance(outcome, Failed)
            assert not outcome.did_work
    assert chosen == names[: len(chosen)]
    assert tried <= (retries + 1) * (chain + 1)
