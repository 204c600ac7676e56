"""What went wrong: Codex's codes first, its words second."""

from datetime import UTC, datetime
from typing import Any

import pytest
from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.classify import failure_of, failure_of_text, retry_cause
from dragoman.adapters.codex.login import judge_provider, judge_status
from dragoman.adapters.codex.tools import script_of
from dragoman.adapters.codex.usage import RunTotals, dump, load, rate_limits, used_up_until
from dragoman.sdk import Evidence, Report, Terminal
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb


@pytest.mark.parametrize(
    ("info", "message", "kind", "code", "status"),
    [
        ("contextWindowExceeded", "", "CONTEXT_OVERFLOW", "codex_context_window_exceeded", None),
        ("usageLimitExceeded", "", "QUOTA_EXCEEDED", "codex_usage_limit_exceeded", None),
        ("rateLimitExceeded", "", "RATE_LIMITED", "codex_rate_limit_exceeded", None),
        ("serverOverloaded", "", "UPSTREAM_UNAVAILABLE", "codex_server_overloaded", None),
        ("internalServerError", "", "UPSTREAM_UNAVAILABLE", "codex_internal_server_error", None),
        ("modelNotFound", "", "MODEL_NOT_FOUND", "codex_model_not_found", None),
        ("unauthorized", "", "AUTH_REQUIRED", "codex_unauthorized", None),
        ("cyberPolicy", "", "MODEL_REFUSED", "codex_cyber_policy", None),
        ("tooManyDenials", "", "PERMISSION_DENIED", "codex_too_many_denials", None),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, "", "AUTH_REQUIRED", "codex_http_connection_failed", 401),
        ({"httpConnectionFailed": {"httpStatusCode": None}}, "", "NETWORK", "codex_http_connection_failed", None),
        (
            {"responseTooManyFailedAttempts": {"httpStatusCode": 429}},
            "exceeded retry limit",
            "RATE_LIMITED",
            "codex_response_too_many_failed_attempts",
            429,
        ),
        ({"responseStreamDisconnected": {}}, "", "NETWORK", "codex_response_stream_disconnected", None),
        ("other", "Missing environment variable: `MY_API_KEY`.", "AUTH_REQUIRED", "codex_other", None),
        ("other", "stream disconnected before completion", "NETWORK", "codex_other", None),
        ("other", "something else", "PROCESS_CRASHED", "codex_other", None),
        (
            "other",
            '{"error": {"message": "We could not parse the JSON body.", "type": "invalid_request_error"}}',
            "INVALID_CONFIG",
            "codex_other",
            None,
        ),
        (
            "other",
            "Incomplete response returned, reason: max_output_tokens",
            "OUTPUT_LIMIT",
            "codex_other",
            None,
        ),
        # A status that only the words name.
        ("other", "unexpected status 404 Not Found: no such path", "INVALID_CONFIG", "codex_other", 404),
        (
            "serverOverloaded",
            "status 503 Service Unavailable",
            "UPSTREAM_UNAVAILABLE",
            "codex_server_overloaded",
            503,
        ),
        (None, "", "PROCESS_CRASHED", "codex_error", None),
        ({"newInLaterVersions": 7}, "", "PROCESS_CRASHED", "codex_new_in_later_versions", None),
    ],
)
def test_codes(info: Any, message: str, kind: str, code: str, status: int | None) -> None:
    failure = failure_of({"codexErrorInfo": info, "message": message})
    assert pb.FailureKind.Name(failure.kind) == f"FAILURE_KIND_{kind}"
    assert (failure.code, failure.http_status) == (code, status)
    assert failure.message


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sessionBudgetExceeded", "QUOTA_EXCEEDED"),
        *((name, "UPSTREAM_UNAVAILABLE") for name in ("flexUnavailable", "policyCapacityUnavailable")),
        ("misalignmentPolicyViolation", "MODEL_REFUSED"),
        ("inferenceHookDenied", "PERMISSION_DENIED"),
        *((name, "NETWORK") for name in ("httpConnectionFailed", "responseStreamConnectionFailed")),
        *((name, "NETWORK") for name in ("responseStreamDisconnected", "responseTooManyFailedAttempts")),
    ],
)
def test_each_code_alone(name: str, kind: str) -> None:
    failure = failure_of({"codexErrorInfo": name})
    assert pb.FailureKind.Name(failure.kind) == f"FAILURE_KIND_{kind}"
    assert (failure.message, failure.errors) == ("Codex reports a failure without a reason.", ())
    detailed = failure_of({"codexErrorInfo": name, "message": "It failed", "additionalDetails": "so"})
    assert (detailed.message, detailed.errors) == ("It failed", ("It failed\nso",))


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        ("Error: bad config", "codex_config", "Codex refuses its configuration: Error: bad config"),
        ("Error: unknown variant x", "codex_config", "Codex refuses its configuration: Error: unknown variant x"),
        ("Error: an invalid value", "codex_config", "Codex refuses its configuration: Error: an invalid value"),
        ("expected a list\nin `a.b_c`\n", "codex_config", "Codex refuses its configuration: expected a list"),
        ("CODEX_HOME points to x", "codex_config", "Codex refuses its configuration: CODEX_HOME points to x"),
        (
            "noise\nerror: unexpected argument\n",
            "codex_config",
            "Codex refuses its configuration: error: unexpected argument",
        ),
        ("error: invalid value", "codex_config", "Codex refuses its configuration: error: invalid value"),
        (
            "Not inside a trusted directory",
            "codex_no_repository",
            "Codex wants to run in a git repository, or in a directory that its user trusts.",
        ),
    ],
)
def test_what_it_prints_before_a_turn(output: str, code: str, message: str) -> None:
    failure = failure_of_text(output, resumed=False)
    assert failure is not None
    assert (failure.kind, failure.code) == (pb.FAILURE_KIND_INVALID_CONFIG, code)
    assert (failure.message, failure.errors) == (message, (output,))


def test_a_limit_in_words_is_no_time_to_retry_at() -> None:
    """The time itself is in account/rateLimits/updated."""
    words = "You've hit your usage limit or try again at Nov 26th, 2026 9:15 AM."
    failure = failure_of({"codexErrorInfo": "usageLimitExceeded", "message": words})
    assert failure.retry_not_before is None
    assert failure.errors == (words,)


def test_a_retry_has_a_cause() -> None:
    error: dict[str, Any] = {
        "message": "Reconnecting... 1/5",
        "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": 429}},
    }
    assert retry_cause(error) == pb.FAILURE_KIND_RATE_LIMITED


@pytest.mark.parametrize(
    ("output", "resumed", "kind", "code"),
    [
        (
            "Error: thread/resume failed: no rollout found for thread id 1-2 (code -32600)",
            True,
            "SESSION_LOST",
            "codex_thread_not_found",
        ),
        (
            "Not inside a trusted directory and --skip-git-repo-check was not specified.",
            False,
            "INVALID_CONFIG",
            "codex_no_repository",
        ),
        (
            "Error: unknown variant `bogus`, expected one of `read-only`\nin `sandbox_mode`",
            False,
            "INVALID_CONFIG",
            "codex_config",
        ),
        ("error: unexpected argument '--nope' found", False, "INVALID_CONFIG", "codex_config"),
        ('Error: CODEX_HOME points to "/x", but that path does not exist', False, "INVALID_CONFIG", "codex_config"),
        ("Not logged in", False, "AUTH_REQUIRED", "codex_stderr"),
    ],
)
def test_final_messages(output: str, resumed: bool, kind: str, code: str) -> None:
    failure = failure_of_text(output, resumed=resumed)
    assert failure is not None
    assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", code)


def test_words_that_say_nothing() -> None:
    assert failure_of_text("", resumed=True) is None
    assert failure_of_text("Reading additional input from stdin...", resumed=False) is None


def test_its_own_word_stands() -> None:
    report = Report(terminal=Terminal(succeeded=False, subtype="failed"))
    assert adapter().classify(Evidence(report, stderr_tail="Not logged in")) is None
    assert adapter().classify(Evidence(Report(), stderr_tail="Not logged in")) is not None


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/bin/bash -lc 'git status; ls'", "git status; ls"),
        ("/usr/bin/zsh -c ls", "ls"),
        ("bash -lc \"cat '/a b'\"", "cat '/a b'"),
        ("git status", "git status"),
        ("/bin/bash -x -lc ls", "/bin/bash -x -lc ls"),
        ("/bin/bash -lc 'unclosed", "/bin/bash -lc 'unclosed"),
        ("", ""),
    ],
)
def test_what_a_shell_may_inherit(command: str, script: str) -> None:
    assert script_of(command) == script


class TestUsage:
    def take(self, totals: RunTotals, thread: str, total: int, last: int) -> None:
        usage: dict[str, Any] = {
            "total": {"inputTokens": total},
            "last": {"inputTokens": last},
            "modelContextWindow": 1000,
        }
        totals.take(thread, usage, is_main=thread == "main")

    def test_the_runs_is_what_came_since_its_first_call(self) -> None:
        totals = RunTotals()
        self.take(totals, "main", 150, 50)
        self.take(totals, "main", 180, 30)
        self.take(totals, "nested", 7, 7)
        usage = totals.usage("m-1")
        assert usage is not None
        assert usage.tokens.input == 50 + 30 + 7
        assert not usage.models, "no field says which model took what"
        assert usage.context_size == 1000

    def test_numbers_that_come_again_are_no_call(self) -> None:
        totals = RunTotals()
        usage: dict[str, Any] = {"total": {"inputTokens": 150}, "last": {"inputTokens": 50}}
        totals.begin("main", usage)
        assert totals.take("main", usage, is_main=True) is None
        assert totals.usage("m-1") is None
        self.take(totals, "main", 180, 30)
        assert totals.take("main", {"total": {"inputTokens": 180}, "last": {}}, is_main=True) is None
        run_usage = totals.usage("m-1")
        assert run_usage is not None
        assert run_usage.tokens.input == 30
        assert totals.total("main") == {"inputTokens": 180}

    @pytest.mark.parametrize(("kept", "expected"), [(150, 30), (100, 80), (None, 80)])
    def test_a_copy_begins_with_what_its_thread_took(self, kept: int | None, expected: int) -> None:
        totals = RunTotals({"inputTokens": kept} if kept is not None else None)
        self.take(totals, "main", 150, 50)
        self.take(totals, "main", 180, 30)
        usage = totals.usage("m-1")
        assert usage is not None
        assert usage.tokens.input == expected

    def test_what_is_absent_is_not_zero(self) -> None:
        totals = RunTotals()
        assert totals.usage("m-1") is None
        self.take(totals, "main", 150, 50)
        usage = totals.usage("m-1")
        assert usage is not None
        assert [model.model for model in usage.models] == ["m-1"]
        assert not usage.tokens.HasField("output")
        assert not usage.tokens.HasField("cache_read")

    def test_totals_are_kept_as_text(self) -> None:
        assert load(dump({"inputTokens": 3})) == {"inputTokens": 3}
        assert load("") is None
        assert load("[]") is None

    def test_windows(self) -> None:
        primary: dict[str, Any] = {"usedPercent": 100, "windowDurationMins": 300, "resetsAt": 4_102_444_800}
        (limit,) = rate_limits({"primary": primary, "secondary": None, "rateLimitReachedType": "primary"})
        assert (limit.window, limit.used_percent, limit.status) == ("primary (300 min)", 100, "primary")
        assert limit.resets_at.seconds == 4_102_444_800
        assert rate_limits({}) == []
        assert used_up_until([limit]) == datetime(2100, 1, 1, tzinfo=UTC)
        assert used_up_until([pb.RateLimit(used_percent=100), pb.RateLimit(used_percent=99)]) is None


class TestLogin:
    @pytest.mark.parametrize(
        ("exit_code", "output", "state", "method"),
        [
            (0, "Logged in using ChatGPT", api.AUTH_STATE_OK, "chatgpt"),
            (0, "API key configured - sk-fake-***00000", api.AUTH_STATE_OK, "api_key"),
            (1, "Not logged in", api.AUTH_STATE_MISSING, ""),
            (1, "Error checking login status: broken", api.AUTH_STATE_UNKNOWN, ""),
            (None, "", api.AUTH_STATE_UNKNOWN, ""),
        ],
    )
    def test_what_codex_says(
        self, exit_code: int | None, output: str, state: api.AuthState.ValueType, method: str
    ) -> None:
        found = judge_status(exit_code, output)
        assert (found.state, found.method, found.subscription) == (state, method, method == "chatgpt")

    def test_a_provider_of_ones_own(self) -> None:
        assert judge_provider({"env_key": "K"}, {"K": "v"}).state == api.AUTH_STATE_OK
        missing = judge_provider({"env_key": "K"}, {})
        assert (missing.state, "K" in missing.message) == (api.AUTH_STATE_MISSING, True)
        assert judge_provider({}, {}).state == api.AUTH_STATE_UNKNOWN
