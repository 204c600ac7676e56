"""How an attempt ended: the agent's word, then what was wished, then the exit code, then the error output."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import get_args

import pytest
from dragoman.protocol.clocks import FAILURE_BY_CLOCK, Clock
from dragoman.sdk._output.outcome import (
    Evidence,
    conclude,
    failure_message,
    signal_name,
    spawn_failure,
)
from dragoman.sdk._output.parser import FailureInfo, Report, Terminal
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

SUCCESS = Report(terminal=Terminal(succeeded=True), has_output=True)
SAYS_WHY = FailureInfo(pb.FAILURE_KIND_MAX_TURNS, "too many turns", code="max_turns")
FAILURE = Report(terminal=Terminal(succeeded=False, subtype="error", failure=SAYS_WHY), has_output=True)
UNEXPLAINED = Report(terminal=Terminal(succeeded=False, subtype="error_x"), has_output=True)
SPOKE = Report(has_output=True)
SILENT = Report()

S, F, C, T = pb.OUTCOME_SUCCEEDED, pb.OUTCOME_FAILED, pb.OUTCOME_CANCELLED, pb.OUTCOME_TIMED_OUT


def nothing(_: Evidence) -> FailureInfo | None:
    return None


@dataclass(frozen=True)
class Case:
    name: str
    evidence: Evidence
    outcome: pb.Outcome.ValueType
    kind: pb.FailureKind.ValueType | None = None
    needs_terminal: bool = True
    words: list[str] = field(default_factory=list)


CASES = [
    Case("success and 0", Evidence(SUCCESS, exit_code=0), S),
    Case("success and 1: the word counts", Evidence(SUCCESS, exit_code=1), S),
    Case("success and killed while it lingered", Evidence(SUCCESS, exit_signal=9), S),
    Case("success and noise on stderr", Evidence(SUCCESS, exit_code=0, stderr_tail="panic: all is lost"), S),
    Case("cancelled, but it had finished", Evidence(SUCCESS, exit_code=0, cancelled=True), S),
    Case("out of time, but it had finished", Evidence(SUCCESS, exit_code=0, stopped_by="wall"), S),
    Case("cancelled", Evidence(SPOKE, exit_signal=15, cancelled=True), C),
    Case("cancelled, and it says that it failed", Evidence(FAILURE, exit_code=1, cancelled=True), C),
    Case("cancelled, and it ended with 0", Evidence(SPOKE, exit_code=0, cancelled=True), C, needs_terminal=False),
    Case("cancelled while a clock stopped it", Evidence(SPOKE, exit_signal=9, cancelled=True, stopped_by="idle"), C),
    Case("cancelled before it was started", Evidence(SILENT, cancelled=True), C),
    Case("start-up", Evidence(SILENT, exit_signal=15, stopped_by="start_up"), T, pb.FAILURE_KIND_START_TIMEOUT),
    Case(
        "idle", Evidence(SPOKE, exit_code=0, stopped_by="idle"), T, pb.FAILURE_KIND_IDLE_TIMEOUT, needs_terminal=False
    ),
    Case("wall", Evidence(FAILURE, exit_code=1, stopped_by="wall"), T, pb.FAILURE_KIND_WALL_TIMEOUT),
    Case(
        "not installed",
        Evidence(SILENT, spawn_error="ENOENT", command="claude"),
        F,
        pb.FAILURE_KIND_NOT_INSTALLED,
        words=["claude", "the run's PATH: that of the request's env, else of the adapter", "config.command"],
    ),
    Case(
        "a path that is not there",
        Evidence(SILENT, spawn_error="ENOENT", command="/x/claude"),
        F,
        pb.FAILURE_KIND_NOT_INSTALLED,
        words=["/x/claude does not exist, or the interpreter", "correct config.command"],
    ),
    Case(
        "a line for a shell",
        Evidence(SILENT, spawn_error="ENOENT", command="/usr/bin/make test"),
        F,
        pb.FAILURE_KIND_NOT_INSTALLED,
        words=["no program '/usr/bin/make test'", "config.args has its arguments"],
    ),
    Case(
        "not executable",
        Evidence(SILENT, spawn_error="EACCES", command="/x"),
        F,
        pb.FAILURE_KIND_SPAWN_FAILED,
        words=["/x", "EACCES"],
    ),
    Case(
        "its directory is gone",
        Evidence(SILENT, spawn_error="ENOENT", lost_workspace=True),
        F,
        pb.FAILURE_KIND_WORKSPACE_FAILED,
        words=["working directory"],
    ),
    Case("0 without a word", Evidence(SPOKE, exit_code=0), F, pb.FAILURE_KIND_NO_RESULT, words=["code 0"]),
    Case("0 without a word, where none is due", Evidence(SPOKE, exit_code=0), S, needs_terminal=False),
    Case(
        "failure and 0: the word counts",
        Evidence(FAILURE, exit_code=0),
        F,
        pb.FAILURE_KIND_MAX_TURNS,
        needs_terminal=False,
    ),
    Case(
        "failure without a reason",
        Evidence(UNEXPLAINED, exit_code=0),
        F,
        pb.FAILURE_KIND_PROCESS_CRASHED,
        words=["error_x"],
    ),
    Case("1", Evidence(SPOKE, exit_code=1), F, pb.FAILURE_KIND_PROCESS_CRASHED, words=["code 1"]),
    Case(
        "1 where no word is due",
        Evidence(SPOKE, exit_code=1),
        F,
        pb.FAILURE_KIND_PROCESS_CRASHED,
        needs_terminal=False,
    ),
    Case(
        "stderr only",
        Evidence(SILENT, exit_code=1, stderr_tail="cannot open display\n"),
        F,
        pb.FAILURE_KIND_PROCESS_CRASHED,
        words=["cannot open display"],
    ),
    Case(
        "nothing that could be read",
        Evidence(SILENT, exit_code=1, stdout_tail="<html>"),
        F,
        pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
        words=["<html>"],
    ),
    Case(
        "some of it could be read",
        Evidence(SPOKE, exit_code=1, stdout_tail="<html>"),
        F,
        pb.FAILURE_KIND_PROCESS_CRASHED,
    ),
    Case(
        "nothing that could be read, and 0",
        Evidence(SILENT, exit_code=0, stdout_tail="<html>"),
        F,
        pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
        words=["<html>", "code 0"],
    ),
    Case(
        "nothing that could be read, and 0, where no word is due",
        Evidence(SILENT, exit_code=0, stdout_tail="<html>"),
        F,
        pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
        needs_terminal=False,
    ),
    Case("nothing at all, and 0, where no word is due", Evidence(SILENT, exit_code=0), S, needs_terminal=False),
    Case(
        "a line lost to the parser, and no word",
        Evidence(SPOKE, exit_code=0, parser_fault="KeyError at a.py:1"),
        F,
        pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
        words=["KeyError at a.py:1"],
    ),
    Case(
        "a line lost to the parser, and the exit code counts",
        Evidence(SPOKE, exit_code=0, parser_fault="KeyError at a.py:1"),
        S,
        needs_terminal=False,
    ),
    Case(
        "the last line lost to the parser, though the exit code counts",
        Evidence(SPOKE, exit_code=0, parser_fault="KeyError at a.py:1", unread_end=True),
        F,
        pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
        needs_terminal=False,
    ),
    Case("a line lost to the parser, and success", Evidence(SUCCESS, exit_code=0, parser_fault="KeyError"), S),
    Case(
        "a line lost to the parser, and silence",
        Evidence(SPOKE, exit_signal=15, parser_fault="KeyError at a.py:1", stopped_by="unread"),
        F,
        pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
        words=["KeyError at a.py:1", "wait"],
    ),
    Case(
        "a tool call without an end",
        Evidence(SPOKE, exit_signal=15, stopped_by="tool_call"),
        T,
        pb.FAILURE_KIND_TOOL_TIMEOUT,
        words=["limits.tool_call"],
    ),
    Case("killed", Evidence(SPOKE, exit_signal=9), F, pb.FAILURE_KIND_PROCESS_CRASHED, words=["SIGKILL"]),
    Case("crashed", Evidence(SILENT, exit_signal=11), F, pb.FAILURE_KIND_PROCESS_CRASHED, words=["SIGSEGV"]),
    Case("its exit was not seen", Evidence(SPOKE), F, pb.FAILURE_KIND_PROCESS_CRASHED, words=["not observed"]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_table(case: Case) -> None:
    verdict = conclude(case.evidence, nothing, needs_terminal=case.needs_terminal)
    assert pb.Outcome.Name(verdict.outcome) == pb.Outcome.Name(case.outcome)
    if case.kind is None:
        assert verdict.failure is None
    else:
        assert verdict.failure is not None
        assert pb.FailureKind.Name(verdict.failure.kind) == pb.FailureKind.Name(case.kind)
        assert verdict.failure.message
        assert verdict.failure.code or verdict.failure is SAYS_WHY
        for word in case.words:
            assert word in verdict.failure.message


def test_the_adapter_knows_better_than_the_agents_own_word_and_the_exit_code() -> None:
    known = FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, "log in")
    for report in (FAILURE, SPOKE):
        assert conclude(Evidence(report, exit_code=1), lambda _: known, needs_terminal=True).failure is known


def test_but_is_not_asked_where_there_is_nothing_to_know() -> None:
    def never(_: Evidence) -> FailureInfo | None:
        raise AssertionError("asked")

    for evidence in (
        Evidence(SUCCESS, exit_code=1),
        Evidence(SPOKE, cancelled=True),
        Evidence(SPOKE, stopped_by="wall"),
        Evidence(SILENT, spawn_error="ENOENT"),
    ):
        conclude(evidence, never, needs_terminal=True)


def test_a_lost_session_is_recognised_by_its_kind() -> None:
    lost = FailureInfo(pb.FAILURE_KIND_SESSION_LOST, "gone")
    assert conclude(Evidence(FAILURE), lambda _: lost, needs_terminal=True).lost_session
    assert not conclude(Evidence(FAILURE), nothing, needs_terminal=True).lost_session
    assert not conclude(Evidence(SUCCESS), nothing, needs_terminal=True).lost_session


def test_last_words_are_the_last() -> None:
    evidence = Evidence(SILENT, exit_code=1, stderr_tail="early " * 200 + "the end")
    failure = conclude(evidence, nothing, needs_terminal=True).failure
    assert failure is not None
    assert failure.message.endswith("the end")
    assert len(failure.message) < 500


evidences = st.builds(
    Evidence,
    report=st.sampled_from([SUCCESS, FAILURE, UNEXPLAINED, SPOKE, SILENT]),
    exit_code=st.sampled_from([None, 0, 1, 255]),
    exit_signal=st.sampled_from([None, 9, 64]),
    spawn_error=st.sampled_from(["", "ENOENT", "EACCES"]),
    lost_workspace=st.booleans(),
    stopped_by=st.sampled_from([None, *get_args(Clock)]),
    cancelled=st.booleans(),
    parser_fault=st.sampled_from(["", "KeyError at a.py:1"]),
    unread_end=st.booleans(),
    stdout_tail=st.sampled_from(["", "x"]),
    stderr_tail=st.sampled_from(["", "y"]),
)


@given(evidences, st.booleans())
def test_whatever_was_seen_there_is_one_verdict_and_a_reason_for_each_failure(
    evidence: Evidence, needs_terminal: bool
) -> None:
    verdict = conclude(evidence, nothing, needs_terminal=needs_terminal)
    has_reason = verdict.failure is not None and verdict.failure.kind != pb.FAILURE_KIND_UNSPECIFIED
    assert has_reason == (verdict.outcome in {F, T})
    succeeded = replace(evidence, report=SUCCESS)
    assert conclude(succeeded, nothing, needs_terminal=needs_terminal).outcome == S


def test_every_clock_has_its_failure() -> None:
    assert set(FAILURE_BY_CLOCK) == set(get_args(Clock))


def test_failures_as_messages() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    info = FailureInfo(
        pb.FAILURE_KIND_RATE_LIMITED,
        "slow down",
        code="http_429",
        errors=("a", "b"),
        retry_not_before=when,
        login_url="https://example.com/login",
        http_status=429,
    )
    message = failure_message(info)
    assert message.retryable
    assert message.retry_not_before.ToDatetime(UTC) == when
    assert (message.code, list(message.errors), message.http_status) == ("http_429", ["a", "b"], 429)
    assert message.login_url == "https://example.com/login"
    for url in ("http://example.com", "javascript:alert(1)", "file:///etc/passwd"):
        assert failure_message(replace(info, login_url=url)).login_url == "", "only https is ever shown"
    bare = failure_message(FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, "log in"))
    assert not bare.retryable
    assert not bare.HasField("retry_not_before")
    assert not bare.HasField("http_status")


@pytest.mark.parametrize("command", ["acme", "/opt/acme"])
def test_an_agent_that_is_missing_says_once_how_to_install_it(command: str) -> None:
    message = spawn_failure("ENOENT", command, "Install it with `acme-setup`.").message
    assert message.count("Install it") == 1
    assert "Install it with `acme-setup`. Or " in message


@pytest.mark.parametrize(
    ("clock", "limit"),
    [
        ("wall", "limits.wall (--timeout)"),
        ("idle", "limits.idle (--idle-timeout)"),
        ("tool_call", "limits.tool_call (--tool-timeout)"),
    ],
)
def test_a_run_that_took_too_long_names_only_what_every_adapter_takes(clock: Clock, limit: str) -> None:
    failure = conclude(Evidence(FAILURE, exit_code=1, stopped_by=clock), nothing, needs_terminal=True).failure
    assert failure is not None
    assert limit in failure.message
    assert "config." not in failure.message


def test_names_of_signals() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(63) == "signal 63"
    assert spawn_failure("E2BIG", "").message.startswith("The agent could not be started")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("could not be refreshed because your refresh token was already used.", "refresh_token_reused"),
        ('{"error": {"code": "refresh_token_reused"}}', "refresh_token_reused"),
        ("because your refresh token has expired. Please log out", "refresh_token_expired"),
        ("because your refresh token was revoked. Please log out", "refresh_token_invalidated"),
        ("invalid_grant: refresh token is invalid", "refresh_token_invalidated"),
        ("Your API key is invalid", "agent_auth"),
    ],
)
def test_why_a_login_could_not_be_renewed(words: str, code: str) -> None:
    info = FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, "Log in.", "agent_auth", (words,))
    assert failure_message(info).code == code
    other = FailureInfo(pb.FAILURE_KIND_NETWORK, "Offline.", "agent_net", (words,))
    assert failure_message(other).code == "agent_net"
