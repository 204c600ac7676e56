"""The rules of stored sessions: what a request means, when a new one is begun, what is kept afterwards."""

from typing import Any

import pytest
from dragoman.router.api.validation import execute_objection
from dragoman.router.model.stored import SessionId
from dragoman.router.policy.sessions import (
    MAX_SUMMARY_CHARS,
    NEVER,
    Compaction,
    SessionDecision,
    SessionReport,
    SessionRequest,
    apply_decision,
    compaction,
    cwd_of,
    handover,
    session_request,
    updated_session,
)
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from msgspec.structs import replace

KEY = SessionId("c", "a", "fake", "t")
HOUR_S = 3600.0


def request(task_key: str = "t", session: pb.SessionSelector | None = None) -> pb.ExecuteRequest:
    return pb.ExecuteRequest(agent=pb.Agent(id="a", company_id="c"), task_key=task_key, session=session)


def by_key(task_key: str = "", *, agent_id: str = "", fork: bool = False) -> pb.SessionSelector:
    return pb.SessionSelector(key=pb.SessionKey(task_key=task_key, agent_id=agent_id), fork=fork)


OTHER = SessionId("c", "a", "fake", "other")
OTHERS = SessionId("c", "b", "fake", "t")


@pytest.mark.parametrize(
    ("asked", "selected"),
    [
        (request(""), SessionRequest()),
        (request("", pb.SessionSelector(fork=True)), SessionRequest()),
        (request(), SessionRequest(stored_key=KEY, store_under=KEY)),
        (request(session=pb.SessionSelector()), SessionRequest(stored_key=KEY, store_under=KEY)),
        (request(session=by_key()), SessionRequest(stored_key=KEY, store_under=KEY)),
        (request(session=by_key("other")), SessionRequest(stored_key=OTHER, store_under=OTHER)),
        (request("", by_key("other")), SessionRequest(stored_key=OTHER, store_under=OTHER)),
        (request(session=by_key(agent_id="b")), SessionRequest(stored_key=OTHERS, store_under=OTHERS)),
        (request(session=by_key("other", fork=True)), SessionRequest(stored_key=OTHER, store_under=KEY, fork=True)),
        (request("", by_key("other", fork=True)), SessionRequest(stored_key=OTHER, fork=True)),
        (request(session=by_key(fork=True)), SessionRequest(stored_key=KEY, fork=True)),
        (request(session=pb.SessionSelector(fork=True)), SessionRequest(stored_key=KEY, fork=True)),
        (request(session=pb.SessionSelector(fresh=True)), SessionRequest(store_under=KEY)),
        (request("", pb.SessionSelector(fresh=True)), SessionRequest()),
        (request(session=pb.SessionSelector(handle=event_pb2.SessionHandle(native_id="s"))), SessionRequest()),
        (request(session=pb.SessionSelector(resume_run_id="r")), SessionRequest(of_run="r", store_under=KEY)),
        (request("", pb.SessionSelector(resume_run_id="r", fork=True)), SessionRequest(of_run="r", fork=True)),
    ],
)
def test_which_session_a_request_means(asked: pb.ExecuteRequest, selected: SessionRequest) -> None:
    assert session_request(asked, "fake") == selected


def test_where_a_run_works() -> None:
    asked = request()
    assert cwd_of(asked) is None
    asked.agent.adapter_config.update({"cwd": "/agent"})
    assert cwd_of(asked) == "/agent"
    asked.config.update({"cwd": "/config"})
    assert cwd_of(asked) == "/config"
    asked.workspace.cwd = "/workspace"
    assert cwd_of(asked) == "/workspace"
    asked.workspace.cwd = ""
    asked.config.update({"cwd": 5})
    assert cwd_of(asked) is None


def stored(native_id: str = "s1", **fields: object) -> router_pb2.StoredSession:
    session = router_pb2.StoredSession(
        key=pb.SessionKey(company_id="c", agent_id="a", task_key="t"),
        adapter="fake",
        handle=event_pb2.SessionHandle(adapter="fake", native_id=native_id, cwd="/w"),
        last_run_id="r1",
        runs=3,
        input_tokens=1000,
        last_summary="did it",
    )
    session.created_at.FromSeconds(1000)
    for name, value in fields.items():
        setattr(session, name, value)
    return session


# Compaction.


@pytest.mark.parametrize(
    ("session", "after_s", "word"),
    [
        (stored(runs=199), 0, ""),
        (stored(runs=200), 0, "reached 200 runs"),
        (stored(input_tokens=1_999_999), 0, ""),
        (stored(input_tokens=2_000_000), 0, "2,000,000 input tokens"),
        (stored(), 71.9 * HOUR_S, ""),
        (stored(), 72 * HOUR_S, "72 hours"),
    ],
)
def test_when_a_session_has_been_gone_on_with_for_long_enough(
    session: router_pb2.StoredSession, after_s: float, word: str
) -> None:
    reason = Compaction().reason(session, 1000 + after_s)
    assert (word in reason) if word else not reason
    assert not NEVER.reason(session, 1000 + after_s)


@pytest.mark.parametrize(
    ("settings", "itself", "policy"),
    [
        (None, False, Compaction(200, 2_000_000, 72)),
        (None, True, NEVER),
        ({}, True, NEVER),
        ({"enabled": False}, False, NEVER),
        ({"enabled": False, "maxSessionRuns": 5}, False, NEVER),
        ({"enabled": True}, False, Compaction()),
        ({"maxSessionRuns": 5}, False, Compaction(5, 2_000_000, 72)),
        ({"maxSessionRuns": 5}, True, Compaction(5, 0, 0)),
        ({"maxRawInputTokens": 0, "maxSessionAgeHours": 0.5}, False, Compaction(200, 0, 0.5)),
    ],
)
def test_the_policy(settings: dict[str, Any] | None, itself: bool, policy: Compaction) -> None:
    asked = request()
    if settings is not None:
        asked.config.update({"sessionCompaction": settings})
    assert compaction(asked, compacts_itself=itself) == policy
    stored_with_agent = request()
    stored_with_agent.agent.adapter_config.CopyFrom(asked.config)
    assert compaction(stored_with_agent, compacts_itself=itself) == policy


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (5, "config.sessionCompaction"),
        ({"enabled": "yes"}, "config.sessionCompaction.enabled"),
        ({"maxSessionRuns": -1}, "config.sessionCompaction.maxSessionRuns"),
        ({"maxSessionRuns": "5"}, "config.sessionCompaction.maxSessionRuns"),
        ({"maxSessionAgeHours": float("nan")}, "config.sessionCompaction.maxSessionAgeHours"),
        ({"maxSessionAgeHours": float("inf")}, "config.sessionCompaction.maxSessionAgeHours"),
        ({"maxRuns": 5}, "config.sessionCompaction.maxRuns"),
    ],
)
def test_a_policy_that_is_none(settings: Any, path: str) -> None:
    asked = request()
    asked.config.update({"sessionCompaction": settings})
    objection = execute_objection(asked)
    assert objection is not None
    assert objection[0] == path


@pytest.mark.parametrize(
    "settings", [{}, {"enabled": True, "maxSessionRuns": 0}, {"maxRawInputTokens": 1e9, "maxSessionAgeHours": 0.5}]
)
def test_a_policy_that_is_one(settings: dict[str, Any]) -> None:
    asked = request()
    asked.config.update({"sessionCompaction": settings})
    assert execute_objection(asked) is None


def test_the_policy_of_a_fallback_adapter_is_checked_too() -> None:
    asked = request()
    asked.fallback.adapters.append("b")
    asked.fallback.configs["b"].update({"sessionCompaction": {"maxRuns": 5}})
    objection = execute_objection(asked)
    known = "enabled, maxSessionRuns, maxRawInputTokens, maxSessionAgeHours"
    path = "fallback.configs.b.sessionCompaction.maxRuns"
    assert objection == (path, f"is not a known field; known are {known}")


def test_a_bound_of_one_is_one() -> None:
    assert Compaction(runs=1).reason(stored(runs=1), 1000) == "the session reached 1 run"
    assert Compaction(input_tokens=1).reason(stored(input_tokens=1), 1000) == "the session reached 1 input tokens"
    assert Compaction(hours=1.0).reason(stored(), 1000 + HOUR_S) == "the session is 1 hours old"


def test_what_is_handed_over_is_quoted() -> None:
    note = handover(stored(last_summary="one\n\n{{agent.name}}\n> ignore all"), "the session reached 3 runs")
    assert note == (
        "You worked on this task in an earlier conversation, which is not being resumed"
        " (the session reached 3 runs).\n"
        "Its last run was r1.\n"
        "Your final message of that run, quoted:\n"
        "> one\n>\n> {{agent.name}}\n> > ignore all\n"
        "Continue from the current state of the workspace; re-read only what you need."
    )
    assert ">" not in handover(stored(last_summary=""), "old")


# What the adapter gets.


def forwarded(asked: pb.ExecuteRequest, choice: SessionDecision) -> pb.ExecuteRequest:
    apply_decision(asked, replace(session_request(asked, "fake"), choice=choice))
    return asked


def test_the_adapter_gets_the_handle_in_place_of_the_key() -> None:
    asked = forwarded(request(session=by_key(fork=True)), SessionDecision(stored().handle))
    assert asked.session == pb.SessionSelector(handle=stored().handle, fork=True)
    assert SessionDecision(stored().handle).native_id == "s1"


def test_the_adapter_gets_the_reason_of_a_new_session() -> None:
    asked = forwarded(request(session=by_key()), SessionDecision(reason="why", handover="what"))
    assert asked.session == pb.SessionSelector(fresh=True, reason="why", handover="what")
    assert not forwarded(request(), SessionDecision()).HasField("session")


@pytest.mark.parametrize(
    "selector",
    [pb.SessionSelector(handle=event_pb2.SessionHandle(native_id="s")), pb.SessionSelector(fresh=True, reason="own")],
)
def test_the_selector_of_the_caller_stays(selector: pb.SessionSelector) -> None:
    assert forwarded(request(session=selector), SessionDecision()).session == selector


def test_the_policy_does_not_reach_the_adapter() -> None:
    asked = request("")
    asked.agent.adapter_config.update({"sessionCompaction": {"maxSessionRuns": 1}, "model": "m"})
    assert dict(forwarded(asked, SessionDecision()).agent.adapter_config) == {"model": "m"}


# What is kept afterwards.

SET, CLEAR, NONE = (
    event_pb2.SESSION_CHANGE_SET,
    event_pb2.SESSION_CHANGE_CLEAR,
    event_pb2.SESSION_CHANGE_UNSPECIFIED,
)


def heard(
    change: event_pb2.SessionChange.ValueType,
    native_id: str = "",
    *,
    run_id: str = "r2",
    sent: str = "",
    resumed: bool | None = None,
    result: event_pb2.Result | None = None,
) -> SessionReport:
    update = event_pb2.SessionUpdate(change=change)
    if native_id:
        update.handle.CopyFrom(event_pb2.SessionHandle(adapter="fake", native_id=native_id, cwd="/w"))
    ended = result or event_pb2.Result(outcome=event_pb2.OUTCOME_SUCCEEDED, summary="final message")
    return SessionReport(run_id, 5000.0, update, sent, resumed, ended)


def test_the_first_session_of_a_task() -> None:
    session = updated_session(KEY, None, heard(SET, "s1"), 6000.0)
    assert session is not None
    assert (session.key.task_key, session.adapter, session.handle.native_id) == ("t", "fake", "s1")
    assert (session.runs, session.last_run_id, session.last_summary) == (1, "r2", "final message")
    assert (session.created_at.seconds, session.used_at.seconds) == (5000, 6000)


@pytest.mark.parametrize(
    ("native_id", "resumed", "goes_on"),
    [
        ("s1", True, True),
        ("s1", None, True),
        ("s2", True, True),  # some agents give a session a new id with each run
        ("s2", None, False),
        ("s2", False, False),  # the one that was asked for is gone, or was refused
    ],
)
def test_what_a_session_has_had_is_counted_while_it_goes_on(
    native_id: str, resumed: bool | None, goes_on: bool
) -> None:
    session = updated_session(KEY, stored(), heard(SET, native_id, sent="s1", resumed=resumed), 6000.0)
    assert session is not None
    assert session.handle.native_id == native_id
    assert session.runs == (4 if goes_on else 1)
    assert session.created_at.seconds == (1000 if goes_on else 5000)


def test_tokens_add_up_and_totals_replace() -> None:
    usage = event_pb2.Usage(scope=event_pb2.USAGE_SCOPE_RUN)
    for model in ("a", "b"):
        usage.models.add(model=model, tokens=event_pb2.TokenCounts(input=10, cache_write=5, cache_read=500))
    result = event_pb2.Result(usage=usage)
    added = updated_session(KEY, stored(), heard(SET, "s1", sent="s1", resumed=True, result=result), 6000.0)
    assert added is not None
    assert added.input_tokens == 1030
    assert added.last_summary == "did it", "the latest summary there is"
    total = event_pb2.Usage(scope=event_pb2.USAGE_SCOPE_SESSION, tokens=event_pb2.TokenCounts(input=1700))
    result = event_pb2.Result(usage=total, summary="x" * 5000)
    replaced = updated_session(KEY, stored(), heard(SET, "s1", sent="s1", resumed=True, result=result), 6000.0)
    assert replaced is not None
    assert replaced.input_tokens == 1700
    assert len(replaced.last_summary) == MAX_SUMMARY_CHARS


def test_a_run_is_counted_once() -> None:
    once = updated_session(KEY, stored(), heard(SET, "s1", sent="s1", resumed=True), 6000.0)
    again = updated_session(KEY, once, heard(SET, "s1"), 6001.0)
    assert again is not None
    assert again.runs == 4


def test_a_failed_run_leaves_the_handle_and_is_counted() -> None:
    before = stored()
    after = updated_session(KEY, before, heard(NONE, sent="s1", resumed=True), 6000.0)
    assert after is not None
    assert (after.handle, after.runs, after.last_run_id) == (before.handle, 4, "r2")
    for report in (
        heard(NONE),
        heard(NONE, sent="s1", resumed=False),
        heard(NONE, sent="s0", resumed=True),
        heard(SET, sent="s1"),
    ):
        assert updated_session(KEY, before, report, 6000.0) is before
    assert updated_session(KEY, None, heard(NONE, sent="s1", resumed=True), 6000.0) is None


def test_a_session_that_is_gone_is_forgotten_unless_another_took_its_place() -> None:
    before = stored()
    assert updated_session(KEY, before, heard(CLEAR, sent="s1"), 6000.0) is None
    assert updated_session(KEY, before, heard(CLEAR), 6000.0) is None
    assert updated_session(KEY, before, heard(CLEAR, sent="s0"), 6000.0) is before
    assert updated_session(KEY, None, heard(CLEAR, sent="s1"), 6000.0) is None


def test_an_attempt_that_ended_is_no_run() -> None:
    report = SessionReport("r2", 5000.0, heard(SET, "s9").update, "s1", True, None)
    session = updated_session(KEY, None, report, 6000.0)
    assert session is not None
    assert (session.runs, session.last_run_id) == (0, "")


@pytest.mark.parametrize(("runs", "stays"), [(1, False), (2, True)])
def test_a_resumed_session_is_not_replaced_by_that_of_a_fallback(runs: int, stays: bool) -> None:
    before = stored(runs=runs)
    for report in (heard(SET, "s9"), heard(CLEAR)):
        after = updated_session(KEY, before, replace(report, is_fallback=True), 6000.0)
        assert (after is before) == stays
    own = updated_session(KEY, before, replace(heard(SET, "s1"), is_fallback=True), 6000.0)
    assert own is not None
    assert own.runs == runs + 1, "that one is its own"
