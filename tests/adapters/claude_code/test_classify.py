"""What went wrong: every way that was seen, and the precedence among what is said at once."""

from datetime import UTC, datetime
from typing import Any

import pytest
from dragoman.adapters.claude_code.adapter import ClaudeCodeAdapter
from dragoman.adapters.claude_code.classify import Wrong, failure_of_result, failure_of_text, read_error, retry_cause
from dragoman.sdk import Evidence, Report, Terminal
from dragoman.v1 import event_pb2 as pb

from tests.adapters.claude_code.replay import replay

RECORDED = {
    "error_401": ("AUTH_REQUIRED", "claude_auth_required", 401),
    "error_logged_out": ("AUTH_REQUIRED", "claude_auth_required", None),
    "error_429": ("RATE_LIMITED", "claude_rate_limited", 429),
    "error_quota": ("QUOTA_EXCEEDED", "claude_usage_limit_reached", 429),
    "error_no_credit": ("QUOTA_EXCEEDED", "claude_billing_error", 400),
    "error_500": ("UPSTREAM_UNAVAILABLE", "claude_server_error", 500),
    "error_529": ("UPSTREAM_UNAVAILABLE", "claude_overloaded", 529),
    "error_in_stream": ("UPSTREAM_UNAVAILABLE", "claude_server_error", None),
    "error_cut": ("NETWORK", "claude_connection_failed", None),
    "error_overflow": ("CONTEXT_OVERFLOW", "claude_prompt_too_long", 400),
    "error_max_tokens": ("OUTPUT_LIMIT", "claude_max_output_tokens", None),
    "error_no_model": ("MODEL_NOT_FOUND", "claude_model_not_found", 404),
    "error_refusal": ("MODEL_REFUSED", "claude_refusal", None),
    "max_turns": ("MAX_TURNS", "claude_max_turns", None),
    "resume_unknown": ("SESSION_LOST", "claude_session_lost", None),
    "resume_not_uuid": ("SESSION_LOST", "claude_session_lost", None),
    "interrupt_streaming": ("PROCESS_CRASHED", "claude_interrupted", None),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_failure_is_recognised(name: str) -> None:
    _, report = replay(name)
    assert report.terminal is not None
    assert not report.terminal.succeeded
    failure = report.terminal.failure
    assert failure is not None
    kind, code, status = RECORDED[name]
    assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", code)
    assert failure.http_status == status
    assert failure.message
    assert not any("[ede_diagnostic]" in error for error in failure.errors)


def test_a_quota_says_when_it_ends() -> None:
    terminal = replay("error_quota")[1].terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.retry_not_before == datetime(2100, 1, 1, tzinfo=UTC)


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": True, **fields}


@pytest.mark.parametrize(
    ("frame", "wrong", "kind", "code"),
    [
        # A bound that was reached outranks what the service said before.
        (
            result(subtype="error_max_turns", terminal_reason="max_turns", api_error_status=529),
            Wrong(error="server_error"),
            "MAX_TURNS",
            "claude_max_turns",
        ),
        (result(subtype="error_max_budget_usd"), Wrong(), "MAX_TURNS", "claude_max_budget_usd"),
        (
            result(subtype="error_max_structured_output_retries"),
            Wrong(),
            "UNPARSEABLE_OUTPUT",
            "claude_max_structured_output_retries",
        ),
        # The error's own name outranks the word for it, and that the status.
        (result(api_error="usage_limit_reached", api_error_status=429), Wrong("rate_limit"), "QUOTA_EXCEEDED", None),
        (result(api_error_status=400), Wrong(error="billing_error"), "QUOTA_EXCEEDED", "claude_billing_error"),
        (result(api_error_status=529), Wrong(error="server_error"), "UPSTREAM_UNAVAILABLE", "claude_overloaded"),
        (
            result(api_error_status=413),
            Wrong(error="invalid_request"),
            "CONTEXT_OVERFLOW",
            "claude_request_too_large",
        ),
        (result(api_error_status=403), Wrong(error="authentication_failed"), "AUTH_REQUIRED", None),
        (result(api_error_status=401), Wrong(), "AUTH_REQUIRED", None),
        (result(api_error_status=502, terminal_reason="api_error"), Wrong("unknown"), "UPSTREAM_UNAVAILABLE", None),
        (
            result(api_error_status=400, terminal_reason="api_error"),
            Wrong("unknown"),
            "INVALID_CONFIG",
            "claude_api_error",
        ),
        (result(terminal_reason="api_error"), Wrong(error="unknown"), "NETWORK", "claude_stream_broken"),
        (
            result(api_error="max_output_tokens"),
            Wrong(cut="context_window"),
            "CONTEXT_OVERFLOW",
            "claude_context_window_exceeded",
        ),
        # Older versions say a refusal is no error; and say errors in words only.
        (result(is_error=False, stop_reason="refusal"), Wrong(), "MODEL_REFUSED", "claude_refusal"),
        (
            result(subtype="error_during_execution", errors=["OAuth token has expired"]),
            Wrong(),
            "AUTH_REQUIRED",
            "claude_during_execution",
        ),
        (result(result="Something new"), Wrong(), "NO_RESULT", "claude_error"),
        (result(subtype="error_of_the_future"), Wrong(), "NO_RESULT", "claude_of_the_future"),
    ],
)
def test_the_most_precise_word_decides(frame: Any, wrong: Wrong, kind: str, code: str | None) -> None:
    failure = failure_of_result(frame, wrong, resumed=False)
    assert pb.FailureKind.Name(failure.kind) == f"FAILURE_KIND_{kind}"
    assert code is None or failure.code == code


LOST = (
    "No conversation found with session ID: 00000000-0000-4000-8000-000000000000",
    'Error: --resume requires a valid session ID. Value "x" is not a UUID and does not match any session title.',
)


@pytest.mark.parametrize("output", LOST)
def test_a_lost_session_is_recognised_in_frames_and_in_plain_words(output: str) -> None:
    frame = result(subtype="error_during_execution", errors=[output])
    for failure in (failure_of_result(frame, Wrong(), resumed=True), failure_of_text(output, resumed=True)):
        assert failure is not None
        assert (failure.kind, failure.code) == (pb.FAILURE_KIND_SESSION_LOST, "claude_session_lost")


@pytest.mark.parametrize("output", LOST)
def test_a_session_that_was_not_requested_cannot_be_lost(output: str) -> None:
    frame = result(subtype="error_during_execution", errors=[output])
    assert failure_of_result(frame, Wrong(), resumed=False).code != "claude_session_lost"
    assert failure_of_text(output, resumed=False) is None


def test_an_answer_about_sessions_is_no_lost_session() -> None:
    """A resumed run that fails for another reason, and whose text happens to speak of sessions."""
    frame = result(terminal_reason="api_error", api_error_status=500, result="session abc-1 not found")
    assert failure_of_result(frame, Wrong(error="server_error"), resumed=True).code == "claude_server_error"


@pytest.mark.parametrize(
    ("stderr", "kind", "code"),
    [
        ("error: unknown option '--no-such-flag'\n", "INVALID_CONFIG", "claude_bad_option"),
        (
            "error: option '--effort <level>' argument 'huge' is invalid. Allowed\n",
            "INVALID_CONFIG",
            "claude_bad_option",
        ),
        ("Error: Invalid session ID. Must be a valid UUID.\n", "INVALID_CONFIG", "claude_bad_option"),
        (
            "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons\n",
            "INVALID_CONFIG",
            "claude_bypass_as_root",
        ),
        ("Error: Session ID 1-2 is already in use.\n", "INVALID_CONFIG", "claude_session_in_use"),
        (
            "noise\nError: Invalid MCP configuration:\nMCP config file not found",
            "INVALID_CONFIG",
            "claude_bad_configuration",
        ),
    ],
)
def test_words_on_standard_error_before_a_session(stderr: str, kind: str, code: str) -> None:
    failure = failure_of_text(stderr, resumed=False)
    assert failure is not None
    assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", code)
    assert "\n" not in failure.message


@pytest.mark.parametrize("stderr", ["", "  \n", "Ignoring 1 permissions.allow entry", "a trace of nothing known"])
def test_noise_on_standard_error_says_nothing(stderr: str) -> None:
    assert failure_of_text(stderr, resumed=True) is None


def test_the_agents_own_word_stands_whatever_is_on_standard_error() -> None:
    failed = Report(terminal=Terminal(succeeded=False))
    evidence = Evidence(report=failed, stderr_tail="error: unknown option '--x'")
    assert ClaudeCodeAdapter().classify(evidence) is None
    silent = Evidence(report=Report(), exit_code=1, stderr_tail="error: unknown option '--x'")
    found = ClaudeCodeAdapter().classify(silent)
    assert found is not None
    assert found.kind == pb.FAILURE_KIND_INVALID_CONFIG


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        ("rate_limit", 429, "RATE_LIMITED"),
        ("overloaded", 529, "UPSTREAM_UNAVAILABLE"),
        ("server_error", 500, "UPSTREAM_UNAVAILABLE"),
        ("unknown", 502, "UPSTREAM_UNAVAILABLE"),
        ("authentication_failed", 401, "AUTH_REQUIRED"),
        ("unknown", None, "NETWORK"),
        ("unknown", 418, "UNSPECIFIED"),
    ],
)
def test_why_it_tries_again(error: str, status: int | None, kind: str) -> None:
    assert pb.FailureKind.Name(retry_cause(error, status)) == f"FAILURE_KIND_{kind}"


@pytest.mark.parametrize(
    ("words", "statuses", "kind", "code", "advice"),
    [
        (["authentication_failed", "oauth_org_not_allowed"], [401, 403], "AUTH_REQUIRED", "auth_required", ""),
        (["billing_error"], [402], "QUOTA_EXCEEDED", "billing_error", "Pay, or use another account."),
        (
            ["model_not_found"],
            [404],
            "MODEL_NOT_FOUND",
            "model_not_found",
            "Choose another model, or another account.",
        ),
        (["server_error"], [408], "UPSTREAM_UNAVAILABLE", "server_error", "Wait a while."),
        ([], [413], "CONTEXT_OVERFLOW", "request_too_large", "Start a new session, or send a shorter prompt."),
        (["rate_limit"], [429], "RATE_LIMITED", "rate_limited", "Wait a while."),
        (["overloaded"], [529], "UPSTREAM_UNAVAILABLE", "overloaded", "Wait a while."),
        (
            ["usage_limit_reached"],
            [],
            "QUOTA_EXCEEDED",
            "usage_limit_reached",
            "Wait for the reset, or use an API key.",
        ),
        (
            ["connection_failed"],
            [],
            "NETWORK",
            "connection_failed",
            "See whether the model's service can be reached.",
        ),
        (
            ["max_output_tokens"],
            [],
            "OUTPUT_LIMIT",
            "max_output_tokens",
            "Ask for a shorter answer, or set CLAUDE_CODE_MAX_OUTPUT_TOKENS in env.",
        ),
    ],
)
def test_each_word_and_each_status_alone(
    words: list[str], statuses: list[int], kind: str, code: str, advice: str
) -> None:
    frames = [(result(api_error=word), Wrong()) for word in words]
    frames += [(result(), Wrong(error=word)) for word in words]
    frames += [(result(api_error_status=status), Wrong()) for status in statuses]
    frames += [(result(), Wrong(status=status)) for status in statuses]
    for frame, wrong in frames:
        failure = failure_of_result({**frame, "result": "It failed"}, wrong, resumed=False)
        assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", f"claude_{code}")
        assert failure.message.startswith("Claude Code: It failed. ")
        assert failure.message.endswith(advice)
    causes = {retry_cause(word, None) for word in words} | {retry_cause("", status) for status in statuses}
    assert {pb.FailureKind.Name(cause) for cause in causes} == {f"FAILURE_KIND_{kind}"}


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (result(subtype="error_max_turns"), "claude_max_turns"),
        (result(terminal_reason="max_turns"), "claude_max_turns"),
        (result(terminal_reason="budget_exhausted"), "claude_max_budget_usd"),
        (result(terminal_reason="prompt_too_long"), "claude_prompt_too_long"),
        (result(terminal_reason="api_error", api_error_status=500), "claude_server_error"),
        (result(terminal_reason="api_error", api_error_status=499), "claude_api_error"),
        (result(subtype=""), "claude_failed"),
    ],
)
def test_codes(frame: Any, code: str) -> None:
    assert failure_of_result(frame, Wrong(), resumed=False).code == code


@pytest.mark.parametrize(("status", "shown"), [(99, None), (100, 100), (599, 599), (600, None)])
def test_a_number_that_is_no_status_is_not_shown(status: int, shown: int | None) -> None:
    assert failure_of_result(result(api_error_status=status), Wrong(), resumed=False).http_status == shown


def test_what_the_agent_says_comes_before_what_it_lists() -> None:
    listed = {"errors": ["[ede_diagnostic] x", "first", "second"]}
    both = failure_of_result(result(result="Said", **listed), Wrong(text="before"), resumed=False)
    assert (both.message, both.errors) == ("Claude Code: Said.", ("first", "second"))
    only_listed = failure_of_result(result(subtype="error_x", **listed), Wrong(text="before"), resumed=False)
    assert (only_listed.message, only_listed.errors) == ("Claude Code: first.", ("first", "second"))
    neither = failure_of_result(result(), Wrong(text="before"), resumed=False)
    assert (neither.message, neither.errors) == ("Claude Code: before.", ("before",))
    nothing = failure_of_result(result(), Wrong(), resumed=False)
    assert (nothing.message, nothing.errors) == ("Claude Code failed.", ())


def test_what_an_error_of_the_service_says() -> None:
    reset = {"rate_limit_info": {"resetsAt": 4102444800}}
    frame: dict[str, Any] = {
        "error": "rate_limit",
        "api_error": "usage_limit_reached",
        "api_error_status": 429,
        "api_error_params": {"cut": "context_window", **reset},
        "message": {"stop_reason": "refusal"},
    }
    end = datetime(2100, 1, 1, tzinfo=UTC)
    found = Wrong("rate_limit", "usage_limit_reached", 429, "context_window", "said", end, refused=True)
    assert read_error(frame, Wrong(text="said")) == found
    after = read_error({}, found)
    assert (after.error, after.api_error, after.status, after.cut) == ("", "", None, "")
    assert (after.resets_at, after.refused, after.text) == (end, True, "said")
    for error, waits in (("rate_limit", True), ("billing_error", True), ("overloaded", False)):
        failure = failure_of_result(result(), Wrong(error=error, resets_at=end), resumed=False)
        assert (failure.retry_not_before == end) is waits


@pytest.mark.parametrize(("status", "kind"), [(500, "UPSTREAM_UNAVAILABLE"), (499, "UNSPECIFIED")])
def test_a_status_alone_says_why_it_tries_again(status: int, kind: str) -> None:
    assert pb.FailureKind.Name(retry_cause("", status)) == f"FAILURE_KIND_{kind}"


def test_the_line_that_says_it_is_shown() -> None:
    failure = failure_of_text("first\nerror: unknown option '--x'\nlast", resumed=False)
    assert failure is not None
    assert failure.message.startswith("Claude Code: error: unknown option '--x'. See config.extraArgs, or whether")
    assert failure.errors == ("error: unknown option '--x'",)
