"""What Gemini CLI's words and exit codes mean."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from dragoman.adapters.gemini_cli import adapter
from dragoman.adapters.gemini_cli.classify import failure_of_error, failure_of_exit, failure_of_stream, with_status
from dragoman.v1 import event_pb2 as pb


def google(code: int, message: str, status: str) -> str:
    return f"[API Error: {json.dumps({'error': {'code': code, 'message': message, 'status': status}})}]"


@pytest.mark.parametrize(
    ("output", "kind", "code", "status"),
    [
        (google(401, "Invalid credentials.", "UNAUTHENTICATED"), "AUTH_REQUIRED", "gemini_auth_required", 401),
        (google(400, "API key not valid. Please pass one.", "INVALID_ARGUMENT"), "AUTH_REQUIRED", None, 400),
        (google(403, "The caller has no permission", "PERMISSION_DENIED"), "AUTH_REQUIRED", None, 403),
        (google(400, "The input token count (9) exceeds the maximum", "X"), "CONTEXT_OVERFLOW", None, 400),
        (google(404, "models/x is not found for API version v1beta", "NOT_FOUND"), "MODEL_NOT_FOUND", None, 404),
        (google(400, "Request contains an invalid argument.", "X"), "INVALID_CONFIG", "gemini_bad_request", 400),
        (google(503, "The model is overloaded.", "UNAVAILABLE"), "UPSTREAM_UNAVAILABLE", "gemini_unavailable", 503),
        (google(429, "Resource has been exhausted", "RESOURCE_EXHAUSTED"), "RATE_LIMITED", None, 429),
        (
            "[API Error: You have exhausted your daily quota on this model.]\nPlease wait",
            "QUOTA_EXCEEDED",
            None,
            None,
        ),
        ("[API Error: Your prepayment credits are depleted.]", "QUOTA_EXCEEDED", "gemini_quota_exceeded", None),
        ("[API Error: You exceeded your current quota.\nPlease retry in 1s.]", "RATE_LIMITED", None, None),
        ("[API Error: exception TypeError: fetch failed sending request]", "NETWORK", "gemini_stream_broken", None),
        ("[API Error: The model is overloaded. Please try again later.]", "UPSTREAM_UNAVAILABLE", None, None),
        ("Gemini API key is missing or not configured.", "AUTH_REQUIRED", "gemini_auth_required", None),
        ("[API Error: terminated]", "NETWORK", "gemini_stream_broken", None),
        ("[API Error: models/x is not found for API version v1beta, or]", "MODEL_NOT_FOUND", None, 404),
        ("[API Error: model not found]", "MODEL_NOT_FOUND", None, None),
        ("something else", "PROCESS_CRASHED", "gemini_error", None),
    ],
)
def test_errors_of_the_service(output: str, kind: str, code: str | None, status: int | None) -> None:
    failure = failure_of_error(output)
    assert pb.FailureKind.Name(failure.kind) == f"FAILURE_KIND_{kind}"
    assert code is None or failure.code == code
    assert failure.http_status == status
    assert failure.message.startswith("Gemini CLI: ")
    assert "[API Error" not in failure.message
    assert "]" not in failure.message
    assert "{" not in failure.message


@pytest.mark.parametrize(("words", "seconds"), [("90000ms", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200)])
def test_a_limit_says_until_when(words: str, seconds: float) -> None:
    before = datetime.now(UTC)
    failure = failure_of_error(f"You exceeded your current quota.\nPlease retry in {words}.")
    after = datetime.now(UTC)
    assert failure.retry_not_before is not None
    assert before <= failure.retry_not_before - timedelta(seconds=seconds) <= after


def test_what_is_no_limit_does_not_say_until_when() -> None:
    assert failure_of_error("terminated").retry_not_before is None


@pytest.mark.parametrize(
    ("output", "kind", "code"),
    [
        ("Model stream ended without a finish reason.", pb.FAILURE_KIND_NETWORK, "gemini_stream_broken"),
        (
            "The response was blocked due to safety settings (SAFETY).",
            pb.FAILURE_KIND_MODEL_REFUSED,
            "gemini_blocked",
        ),
        ("The answer reached the token limit.", pb.FAILURE_KIND_OUTPUT_LIMIT, "gemini_max_tokens"),
        ("The model returned an empty response.", pb.FAILURE_KIND_NO_RESULT, "gemini_empty_answer"),
        ("", pb.FAILURE_KIND_NO_RESULT, "gemini_empty_answer"),
    ],
)
def test_answers_that_never_came(output: str, kind: int, code: str) -> None:
    failure = failure_of_stream(output)
    assert (failure.kind, failure.code) == (kind, code)


NOISE = "YOLO mode is enabled. All tool calls will be automatically approved.\nRipgrep is not available.\n"


@pytest.mark.parametrize(
    ("exit_code", "words", "kind", "code"),
    [
        (
            41,
            "When using Gemini API, you must specify the GEMINI_API_KEY environment variable.",
            "AUTH_REQUIRED",
            "gemini_auth_required",
        ),
        (42, 'Error resuming session: Invalid session identifier "x".', "SESSION_LOST", "gemini_session_lost"),
        (
            42,
            "Error resuming session: No previous sessions found.",
            "SESSION_LOST",
            "gemini_session_lost",
        ),
        (42, "Error: Session x already exists.", "INVALID_CONFIG", "gemini_bad_input"),
        (52, "Invalid configuration in settings.json", "INVALID_CONFIG", "gemini_bad_configuration"),
        (53, "Reached max session turns", "MAX_TURNS", "gemini_max_turns"),
        (55, "Gemini CLI is not running in a trusted directory.", "INVALID_CONFIG", "gemini_untrusted"),
        (1, "Unknown arguments: no-such-option, noSuchOption", "INVALID_CONFIG", "gemini_bad_option"),
    ],
)
def test_exits_without_a_last_word(exit_code: int, words: str, kind: str, code: str) -> None:
    failure = failure_of_exit(exit_code, NOISE + words, resumed=True)
    assert failure is not None
    assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", code)
    assert words.removeprefix("Error: ").split(".", maxsplit=1)[0] in failure.message


def test_a_session_is_only_lost_if_one_was_to_go_on() -> None:
    failure = failure_of_exit(42, "Invalid session identifier", resumed=False)
    assert failure is not None
    assert failure.kind == pb.FAILURE_KIND_INVALID_CONFIG


def test_nothing_better_is_known_of_other_exits() -> None:
    assert failure_of_exit(0, "", resumed=False) is None
    assert failure_of_exit(137, "whatever", resumed=True) is None


def test_the_exit_code_holds_the_status_where_nothing_else_does() -> None:
    assert with_status(failure_of_error("The model is overloaded.", status=503), 247).http_status == 503
    assert with_status(failure_of_error("[API Error: The model is overloaded.]"), 247).http_status == 503
    assert with_status(failure_of_error("terminated"), 244).http_status is None
    assert with_status(failure_of_error("daily quota"), 1).http_status is None


def test_a_separate_status_is_not_trusted_where_the_service_never_answered() -> None:
    assert failure_of_error("models/x is not found for API", status=500).http_status is None
    assert failure_of_error("An internal error has occurred.", status=500).http_status == 500


def test_a_workspace_that_it_would_not_trust_is_warned_of() -> None:
    assert list(adapter().extra_checks({}, {})) == []
    assert list(adapter().extra_checks({}, {"GEMINI_CLI_TRUST_WORKSPACE": "true"})) == []
    (check,) = adapter().extra_checks({}, {"GEMINI_CLI_TRUST_WORKSPACE": "false"})
    assert (check.code, check.level) == ("gemini_untrusted", pb.SEVERITY_WARNING)
    assert check.hint
