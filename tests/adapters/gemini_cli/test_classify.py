"""What Gemini CLI's words and exit codes mean."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from dragoman.adapters.gemini_cli import adapter
from dragoman.adapters.gemini_cli.classify import (
    failure_of_error,
    failure_of_exit,
    failure_of_stream,
    retry_cause,
    with_status,
)
from dragoman.sdk.detection import Checks
from dragoman.sdk.failures import SHORTER_PROMPT
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
    checks = Checks()
    adapter().extra_checks({}, {}, checks)
    adapter().extra_checks({}, {"GEMINI_CLI_TRUST_WORKSPACE": "true"}, checks)
    assert checks.items == []
    adapter().extra_checks({}, {"GEMINI_CLI_TRUST_WORKSPACE": "false"}, checks)
    (check,) = checks.items
    assert (check.code, check.level) == ("gemini_untrusted", pb.SEVERITY_WARNING)
    assert check.hint


@pytest.mark.parametrize(
    ("status", "kind", "code", "advice"),
    [
        (400, "INVALID_CONFIG", "gemini_bad_request", "The service refused the request."),
        (401, "AUTH_REQUIRED", "gemini_auth_required", ""),
        (403, "AUTH_REQUIRED", "gemini_auth_required", ""),
        (418, "PROCESS_CRASHED", "gemini_error", ""),
        (429, "RATE_LIMITED", "gemini_rate_limited", "Wait a while."),
        (499, "PROCESS_CRASHED", "gemini_error", ""),
        (500, "UPSTREAM_UNAVAILABLE", "gemini_unavailable", "Wait a while."),
        (599, "UPSTREAM_UNAVAILABLE", "gemini_unavailable", "Wait a while."),
    ],
)
def test_a_status_alone(status: int, kind: str, code: str, advice: str) -> None:
    failure = failure_of_error(google(status, "It failed", ""))
    assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", code)
    assert failure.http_status == status
    assert failure.message.startswith("Gemini CLI: It failed.")
    assert failure.message.endswith(advice)
    cause = "UNSPECIFIED" if kind == "PROCESS_CRASHED" else kind
    assert pb.FailureKind.Name(retry_cause(f"Attempt 1 failed with status {status}.")) == f"FAILURE_KIND_{cause}"


@pytest.mark.parametrize(
    ("words", "kind", "advice"),
    [
        *(
            (text, "MODEL_NOT_FOUND", "Choose another model.")
            for text in ("Models/x is not found", "model not found")
        ),
        ("x is not supported for generateContent", "MODEL_NOT_FOUND", "Choose another model."),
        ("The input token count (9) exceeds 8", "CONTEXT_OVERFLOW", SHORTER_PROMPT),
        (
            "it exceeds the maximum number of tokens",
            "CONTEXT_OVERFLOW",
            SHORTER_PROMPT,
        ),
        ("the context window is full", "CONTEXT_OVERFLOW", SHORTER_PROMPT),
        *((text, "QUOTA_EXCEEDED", "Wait for the reset, or pay.") for text in ("daily quota", "RequestsPerDay")),
        *((text, "QUOTA_EXCEEDED", "Wait for the reset, or pay.") for text in ("limit: 0", "credits are depleted")),
        ("you have exhausted your capacity", "QUOTA_EXCEEDED", "Wait for the reset, or pay."),
        *((text, "RATE_LIMITED", "Wait a while.") for text in ("exceeded your current quota", "RESOURCE_EXHAUSTED")),
        *((text, "RATE_LIMITED", "Wait a while.") for text in ("Rate limit exceeded", "Resource has been exhausted")),
        *((text, "AUTH_REQUIRED", "") for text in ("API key not valid", "API key is missing", "API_KEY_INVALID")),
        *((text, "AUTH_REQUIRED", "") for text in ("Authentication required", "UNAUTHENTICATED", "GEMINI_API_KEY")),
        *((text, "AUTH_REQUIRED", "") for text in ("Invalid auth method", "must specify the", "must specify either")),
        *((text, "AUTH_REQUIRED", "") for text in ("Please set an Auth method", "authentication type")),
        *((text, "UPSTREAM_UNAVAILABLE", "Wait a while.") for text in ("overloaded", "UNAVAILABLE", "high demand")),
        ("an internal error", "UPSTREAM_UNAVAILABLE", "Wait a while."),
        *((text, "NETWORK", "See what cuts streams on the way.") for text in ("terminated", "fetch failed")),
        *((text, "NETWORK", "See what cuts streams on the way.") for text in ("ECONNRESET", "socket hang up")),
        *((text, "NETWORK", "See what cuts streams on the way.") for text in ("it: terminated", "other side closed")),
        ("ended without a finish reason", "NETWORK", "See what cuts streams on the way."),
    ],
)
def test_words_alone(words: str, kind: str, advice: str) -> None:
    failure = failure_of_error(words)
    assert pb.FailureKind.Name(failure.kind) == f"FAILURE_KIND_{kind}"
    assert failure.message.startswith(f"Gemini CLI: {words}.")
    assert failure.message.endswith(advice)
    assert failure.errors == (words,)


def test_errors_that_say_nothing() -> None:
    assert failure_of_error("", code="own").code == "own"
    assert failure_of_error("").errors == ()
    assert len(failure_of_error("x" * 3000).errors[0]) == 2000


@pytest.mark.parametrize(
    ("output", "message", "errors"),
    [
        (
            "It was blocked",
            "Gemini CLI: It was blocked. Rephrase the task, or choose another model.",
            ("It was blocked",),
        ),
        ("MAX_TOKENS", "Gemini CLI: MAX_TOKENS. Ask for a shorter answer.", ("MAX_TOKENS",)),
        ("Nothing", "Gemini CLI: Nothing. The model gave no usable answer.", ("Nothing",)),
        ("", "Gemini CLI failed. The model gave no usable answer.", ()),
    ],
)
def test_the_message_for_answers_that_never_came(output: str, message: str, errors: tuple[str, ...]) -> None:
    failure = failure_of_stream(output)
    assert (failure.message, failure.errors) == (message, errors)


@pytest.mark.parametrize(
    ("exit_code", "kind", "code", "advice"),
    [
        (41, "AUTH_REQUIRED", "gemini_auth_required", ""),
        (42, "INVALID_CONFIG", "gemini_bad_input", "See its message about its input or session."),
        (44, "INVALID_CONFIG", "gemini_sandbox", "See its sandbox settings."),
        (52, "INVALID_CONFIG", "gemini_bad_configuration", "Correct the settings it names."),
        (53, "MAX_TURNS", "gemini_max_turns", "Raise config.maxTurnsPerRun, or continue in this session."),
        (55, "INVALID_CONFIG", "gemini_untrusted", "Do not set GEMINI_CLI_TRUST_WORKSPACE to anything else."),
    ],
)
def test_an_exit_code_alone(exit_code: int, kind: str, code: str, advice: str) -> None:
    noise = "[STARTUP] x\nWarning: 256-color\nLoaded cached credentials\n\n"
    failure = failure_of_exit(exit_code, f"{noise}It failed\nand more", resumed=False)
    assert failure is not None
    assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", code)
    assert failure.message.startswith("Gemini CLI: It failed.")
    assert failure.message.endswith(advice)
    assert failure.errors == ("It failed\nand more",)


@pytest.mark.parametrize("first", ["Unknown argument: x", "Not enough arguments", "Invalid values:", "Usage: gemini"])
def test_an_option_that_it_does_not_know(first: str) -> None:
    failure = failure_of_exit(1, f"noise\n{first}\nand more", resumed=False)
    assert failure is not None
    assert failure.code == "gemini_bad_option"
    shown = "noise" if first.startswith("Usage") else first
    assert failure.message.startswith(f"Gemini CLI: {shown}. See config.extraArgs")


@pytest.mark.parametrize(("exit_code", "lost"), [(1, True), (42, True), (2, False), (None, False)])
def test_a_lost_session_has_its_exit_codes(exit_code: int | None, lost: bool) -> None:
    failure = failure_of_exit(exit_code, "there are no previous sessions", resumed=True)
    assert (failure is not None and failure.kind == pb.FAILURE_KIND_SESSION_LOST) is lost


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 502, 503, 504])
def test_the_exit_code_is_the_status_modulo_256(status: int) -> None:
    assert with_status(failure_of_error("UNAUTHENTICATED"), status % 256).http_status == status


@pytest.mark.parametrize("words", ["(SAFETY)", "(RECITATION)", "(OTHER)", "Blocked", "for safety"])
def test_words_of_a_refusal(words: str) -> None:
    assert failure_of_stream(words).kind == pb.FAILURE_KIND_MODEL_REFUSED
    assert failure_of_stream(words.strip("()")).kind == (
        pb.FAILURE_KIND_NO_RESULT if words in {"(RECITATION)", "(OTHER)"} else pb.FAILURE_KIND_MODEL_REFUSED
    )
