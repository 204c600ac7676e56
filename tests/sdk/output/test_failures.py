"""Errors as real agents and services word them, and texts that only resemble one."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from dragoman.sdk._output.failures import (
    classify_http,
    classify_text,
    failure_of_evidence,
    failure_of_text,
    unknown_session,
)
from dragoman.sdk._output.outcome import Evidence
from dragoman.sdk._output.parser import FailureInfo, Report, Terminal
from dragoman.v1 import event_pb2
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
ID = "99999999-9999-4999-8999-999999999999"


def _name(failure: FailureInfo) -> str:
    return event_pb2.FailureKind.Name(failure.kind).removeprefix("FAILURE_KIND_")


LOST = [
    # Claude
    f"No conversation found with session ID: {ID}",
    "['No conversation found with session ID: abc']",
    "Error: --resume requires a valid session ID or session title when used with --print.",
    'Provided value "not-a-uuid" is not a UUID and does not match any session title.',
    "Session abc-123 is not a valid UUID",
    'API Error: 400 {"error":{"message":"previous_message_id: message not found"}}',
    # Codex
    f"Error: thread/resume: thread/resume failed: no rollout found for thread id {ID} (code -32600)",
    "state db missing rollout path",
    f"missing rollout path for thread {ID}",
    "unknown thread: 123",
    "conversation 0199-abc not found",
    # Gemini
    f'Error resuming session: Invalid session identifier "{ID}". Searched for sessions in ...',
    "Error resuming session: No previous sessions found for this project.",
    "failed to resume session",
    "Cannot resume: checkpoint cp-1 was not found",
    "checkpoint not found",
    # opencode, with its colours
    "\x1b[91m\x1b[1mError: \x1b[0mSession not found",
    '{"name":"NotFoundError","data":{"message":"Resource not found: /x/storage/session/p/ses_1.json"}}',
    "Resource not found: /home/u/storage/session/info/ses_1.json",
    # Cursor, pi, grok, qwen, copilot, ACP, Hermes
    "unknown chat id",
    "could not resume chat",
    f"No session found matching '{ID}'",
    "No session",
    "Error: no session.",
    "invalid session",
    f"No saved session found with ID {ID}. Run `qwen --resume` without an ID.",
    f"Error: No session, task, or name matched '{ID}'.",
    f"data: 'Unknown sessionId: {ID}'",
    f"Invalid params: session not found: {ID}",
    f"Session not found: {ID}",
    f"session with id {ID} was not found",
    'Session "my talk" not found',
    f"session: {ID} could not be found",
    "session file not found",
]

NOT_LOST = [
    "",
    "session started",
    "Session hook: command not found",
    "bash: session: command not found in this session",
    "The session ended because a file was not found",
    f"Error: Session ID {ID} is already in use.",
    f'Error starting session: Session ID "{ID}" already exists. Use --resume to resume it',
    "Your session has expired. Please log in again.",
    "Unknown session state",
    "invalid session token",
    "ModuleNotFoundError: No module named 'x'",
    "FileNotFoundError: [Errno 2] No such file or directory",
    "ProviderModelNotFoundError: model foo",
    'NotFoundError: model "gpt-9" does not exist',
    "File not found: /nonexistent/nope.txt",
    'Error executing tool no_such_tool: Tool "no_such_tool" not found.',
    "404 Not Found",
    "There is no session-specific setting",
    "Model provider `nope` not found",
    "resume the download; mirror not found",
]


@pytest.mark.parametrize("text", LOST)
def test_lost_sessions_are_known_in_every_agents_words(text: str) -> None:
    assert unknown_session(text)
    assert unknown_session(f"some noise\n{text.upper()}\nmore noise")
    hint = classify_text(text, NOW)
    assert hint is not None
    assert hint.kind == event_pb2.FAILURE_KIND_SESSION_LOST


@pytest.mark.parametrize("text", NOT_LOST)
def test_other_texts_with_the_same_words_are_not_lost_sessions(text: str) -> None:
    assert not unknown_session(text)


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        # Claude
        ("Not logged in · Please run /login", "AUTH_REQUIRED", None),
        ("Invalid API key · Fix external API key", "AUTH_REQUIRED", None),
        (
            'API Error: 401 {"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}',
            "AUTH_REQUIRED",
            401,
        ),
        ("OAuth token has expired. Please obtain a new token.", "AUTH_REQUIRED", None),
        (
            "API Error: Request rejected (429) · This request would exceed your account's rate limit.",
            "RATE_LIMITED",
            429,
        ),
        ('API Error: 529 {"type":"error","error":{"type":"overloaded_error"}}', "UPSTREAM_UNAVAILABLE", 529),
        ("API Error: 500 Internal server error (mock). Try again in a moment.", "UPSTREAM_UNAVAILABLE", 500),
        ("API Error: Connection lost mid-response. The response above may be incomplete.", "NETWORK", None),
        ("API Error: Connection refused — a firewall or proxy may be blocking it", "NETWORK", None),
        ("Reached maximum number of turns (2)", "MAX_TURNS", None),
        ("error_max_turns", "MAX_TURNS", None),
        ("Prompt is too long", "CONTEXT_OVERFLOW", None),
        ("Session too large to compact\nContextOverflowError", "CONTEXT_OVERFLOW", None),
        ("API Error: 400 input length and `max_tokens` exceed context limit: 199 + 8 > 200", "CONTEXT_OVERFLOW", 400),
        ("Credit balance is too low", "QUOTA_EXCEEDED", None),
        ("You've hit your limit · resets 3pm (Europe/Berlin)", "QUOTA_EXCEEDED", None),
        ("Claude AI usage limit reached|1795338000", "QUOTA_EXCEEDED", None),
        ("5-hour limit reached ∙ resets 3pm", "QUOTA_EXCEEDED", None),
        ("There's an issue with the selected model (nope).", "MODEL_NOT_FOUND", None),
        ('API Error: 404 {"error":{"type":"not_found_error","message":"model: nope"}}', "MODEL_NOT_FOUND", 404),
        (
            "API Error: Claude Code is unable to respond: this appears to violate our Usage Policy",
            "MODEL_REFUSED",
            None,
        ),
        # Codex
        (
            "unexpected status 401 Unauthorized: invalid x-api-key (mock), url: http://127.0.0.1/v1",
            "AUTH_REQUIRED",
            401,
        ),
        ("exceeded retry limit, last status: 429 Too Many Requests", "RATE_LIMITED", 429),
        (
            "We\u2019re currently experiencing high demand, which may cause temporary errors.",
            "UPSTREAM_UNAVAILABLE",
            None,
        ),
        ("stream disconnected before completion: stream closed before response.completed", "NETWORK", None),
        ("stream disconnected before completion: Overloaded (mid-stream)", "UPSTREAM_UNAVAILABLE", None),
        ("Missing environment variable: `MOCK_API_KEY`.", "AUTH_REQUIRED", None),
        ("Your access token could not be refreshed: refresh_token_reused", "AUTH_REQUIRED", None),
        ("You've hit your usage limit. Upgrade to Pro or try again in 3 hours.", "QUOTA_EXCEEDED", None),
        # Gemini
        (
            '[API Error: {"error":{"code":401,"message":"invalid x-api-key","status":"UNAUTHENTICATED"}}]',
            "AUTH_REQUIRED",
            401,
        ),
        ("When using Gemini API, you must specify the GEMINI_API_KEY environment variable.", "AUTH_REQUIRED", None),
        ("Invalid auth method selected.", "AUTH_REQUIRED", None),
        (
            "[API Error: This request would exceed your account's rate limit.]\nrequest a quota increase",
            "RATE_LIMITED",
            None,
        ),
        (
            "You have exhausted your capacity on this model. Your quota will reset after 20h51m44s.",
            "QUOTA_EXCEEDED",
            None,
        ),
        ("Quota exceeded for quota metric 'Generate Content requests per minute'", "RATE_LIMITED", None),
        ("Resource has been exhausted (e.g. check quota).", "RATE_LIMITED", None),
        ("Reached max session turns for this session.", "MAX_TURNS", None),
        ("[API Error: exception TypeError: fetch failed sending request]", "NETWORK", None),
        ("Internal error\nterminated", "NETWORK", None),
        ("500 The server had an error while processing your request.", "UPSTREAM_UNAVAILABLE", 500),
        ("The input token count (9) exceeds the maximum number of tokens allowed (8).", "CONTEXT_OVERFLOW", None),
        # opencode, copilot, OpenClaw, pi, qwen, aider
        ('{"message":"Rate limit reached (mock)","statusCode":429,"isRetryable":true}', "RATE_LIMITED", 429),
        ('{"message":"Connection reset by server","code":"ECONNRESET"}', "NETWORK", None),
        ("Error: No authentication information found.", "AUTH_REQUIRED", None),
        ("Authentication failed with provider at http://127.0.0.1/v1 (HTTP 401).", "AUTH_REQUIRED", 401),
        ("Could not connect to local model provider at http://127.0.0.1:1/v1.", "NETWORK", None),
        ("Failed native model HTTP request: error decoding response body", "NETWORK", None),
        ("Unknown model: nope/none. Run `openclaw models list`", "MODEL_NOT_FOUND", None),
        ('Model "none" not found for provider "mock".', "MODEL_NOT_FOUND", None),
        ("No API key found for the selected model.", "AUTH_REQUIRED", None),
        ("401 Incorrect API key provided (mock)", "AUTH_REQUIRED", 401),
        ("429 Rate limit reached (mock)", "RATE_LIMITED", 429),
        ("[API Error: terminated (cause: UND_ERR_SOCKET: other side closed)]", "NETWORK", None),
        ("No auth type is selected. Please configure an auth type", "AUTH_REQUIRED", None),
        ("litellm.RateLimitError: RateLimitError: OpenAIException", "RATE_LIMITED", None),
        ("The API provider is not able to authenticate you. Check your API key.", "AUTH_REQUIRED", None),
        # OpenAI
        (
            '{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}',
            "QUOTA_EXCEEDED",
            None,
        ),
        ("The model `gpt-9` does not exist or you do not have access to it.", "MODEL_NOT_FOUND", None),
        ("This model's maximum context length is 8192 tokens.", "CONTEXT_OVERFLOW", None),
        ("Context is too large to send safely after automatic compression.", "CONTEXT_OVERFLOW", None),
        ('"finish_reason": "content_filter"', "MODEL_REFUSED", None),
        # A status alone, with the words that make it one.
        ("HTTP/1.1 503", "UPSTREAM_UNAVAILABLE", 503),
        ("request failed with status code 402", "QUOTA_EXCEEDED", 402),
        ("error 403 Forbidden", "AUTH_REQUIRED", 403),
        ('{"status": 429}', "RATE_LIMITED", 429),
        ('{\\"code\\": 503}', "UPSTREAM_UNAVAILABLE", 503),
        # A request that the service rejects, with or without a status.
        ("API Error: 400 messages: mock invalid request", "INVALID_CONFIG", 400),
        ("unexpected status 404 Not Found: no such path", "INVALID_CONFIG", 404),
        ("HTTP 422: tools.0.name: string does not match pattern", "INVALID_CONFIG", 422),
        ("error sending request: 400 Bad Request", "INVALID_CONFIG", 400),
        (
            '{"error": {"message": "We could not parse the JSON body.", "type": "invalid_request_error"}}',
            "INVALID_CONFIG",
            None,
        ),
        ('{"error":{"type":"invalid_request_error","message":"slow down"}} (status 429)', "RATE_LIMITED", 429),
        ('{"error":{"code":400,"message":"Invalid field","status":"INVALID_ARGUMENT"}}', "INVALID_CONFIG", 400),
        # An answer that the output limit cut.
        ("Incomplete response returned, reason: max_output_tokens", "OUTPUT_LIMIT", None),
        ('{"stop_reason":"max_tokens"}', "OUTPUT_LIMIT", None),
        ("API Error: Claude's response exceeded the 32000 output token maximum.", "OUTPUT_LIMIT", None),
        # What stays stands before what may pass, and a status knows more than transient words.
        ("invalid API key, retrying after rate limit", "AUTH_REQUIRED", None),
        ("rate limit: you exceeded your current quota", "QUOTA_EXCEEDED", None),
        ("error sending request: 401 Unauthorized", "AUTH_REQUIRED", 401),
        ("fetch failed: status 503", "UPSTREAM_UNAVAILABLE", 503),
        ("rate limited (status 500)", "RATE_LIMITED", 500),
    ],
)
def test_errors_are_classified(text: str, kind: str, status: int | None) -> None:
    hint = classify_text(text, NOW)
    assert hint is not None
    assert (_name(hint), hint.http_status) == (kind, status)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "All good.",
        "429 errors found in 500 files",
        "error: 500 tests failed",
        "exit status 429",
        "exit code: 401",
        "line 404: unexpected token",
        "Build finished in 503 ms",
        "port 4290 is taken",
        "Ripgrep is not available. Falling back to GrepTool.",
        "Warning: 256-color support not detected.",
        "error: unknown option '--no-such-flag'",
        "YOLO mode is enabled. All tool calls will be automatically approved.",
        "404 of the tests failed",
        "wrote rate.py and limit.py; the quota module is not finished",
        "Reading additional input from stdin...",
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert classify_text(text, NOW) is None


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("400 We could not parse the JSON body of your request.", "INVALID_CONFIG", 400),
        ("Internal error\n400 We could not parse the JSON body of your request.", "INVALID_CONFIG", 400),
        ("404 The model `x` does not exist or you do not have access to it.", "MODEL_NOT_FOUND", 404),
        ("503 Slow down", "UPSTREAM_UNAVAILABLE", 503),
    ],
)
def test_a_leading_status_counts_only_where_the_agents_library_writes_it(text: str, kind: str, status: int) -> None:
    hint = classify_text(text, NOW, status_leads=True)
    assert hint is not None
    assert (_name(hint), hint.http_status) == (kind, status)
    without = classify_text(text, NOW)
    assert without is None or without.http_status is None


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, "rate limit", None),
        (302, "", None),
        (400, "", "INVALID_CONFIG"),
        (400, "connection reset", "INVALID_CONFIG"),
        (400, "prompt is too long", "CONTEXT_OVERFLOW"),
        (400, "overloaded", "UPSTREAM_UNAVAILABLE"),
        (401, "", "AUTH_REQUIRED"),
        (401, "rate limit", "AUTH_REQUIRED"),
        (402, "", "QUOTA_EXCEEDED"),
        (403, "", "AUTH_REQUIRED"),
        (403, "you do not have access to model x", "MODEL_NOT_FOUND"),
        (404, "", "INVALID_CONFIG"),
        (404, '{"error":{"message":"model `x` not found"}}', "MODEL_NOT_FOUND"),
        (407, "", "NETWORK"),
        (408, "", "UPSTREAM_UNAVAILABLE"),
        (413, "", "CONTEXT_OVERFLOW"),
        (422, "nonsense", "INVALID_CONFIG"),
        (451, "", None),
        (401, "invalid_request_error", "AUTH_REQUIRED"),
        (500, "invalid_request_error", "UPSTREAM_UNAVAILABLE"),
        (429, "", "RATE_LIMITED"),
        (429, "overloaded", "RATE_LIMITED"),
        (429, '{"error":{"code":"insufficient_quota"}}', "QUOTA_EXCEEDED"),
        (500, "", "UPSTREAM_UNAVAILABLE"),
        (503, "rate limit", "UPSTREAM_UNAVAILABLE"),
        (529, '{"error":{"type":"overloaded_error"}}', "UPSTREAM_UNAVAILABLE"),
    ],
)
def test_responses_are_classified(status: int, body: str, kind: str | None) -> None:
    hint = classify_http(status, body, {}, NOW)
    assert (hint and _name(hint)) == kind
    if hint:
        assert hint.http_status == status


def test_the_moment_to_try_again_comes_with_what_waiting_can_cure() -> None:
    limited = classify_text("429 Rate limit reached; try again in 20s", NOW)
    assert limited is not None
    assert limited.retry_not_before == NOW + timedelta(seconds=20)
    refused = classify_text("invalid api key; try again in 20s", NOW)
    assert refused is not None
    assert refused.retry_not_before is None


def test_headers_outrank_the_body_about_time() -> None:
    body = "rate limit; try again in 20s"
    by_header = classify_http(429, body, {"Retry-After": "5"}, NOW)
    by_body = classify_http(429, body, {}, NOW)
    assert by_header is not None
    assert by_body is not None
    assert by_header.retry_not_before == NOW + timedelta(seconds=5)
    assert by_body.retry_not_before == NOW + timedelta(seconds=20)
    assert by_header.message == body


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (
            "Not logged in. Visit https://claude.ai/oauth/authorize?code=true&x=1.",
            "https://claude.ai/oauth/authorize?code=true&x=1",
        ),
        ("not logged in (https://github.com/login/device)", "https://github.com/login/device"),
        ("not logged in: <https://auth.openai.com/log-in>,", "https://auth.openai.com/log-in"),
        ("not logged in. Open https://example.com/abc!", "https://example.com/abc"),
        ("not logged in; https://x.com/login_(new)", "https://x.com/login_(new)"),
        (
            "not logged in; see https://docs.example.com/ then https://example.com/signin",
            "https://example.com/signin",
        ),
        ("not logged in\n\x1b[4mhttps://example.com/login\x1b[0m", "https://example.com/login"),
        ("not logged in; see https://docs.example.com/start", None),
        ("not logged in; visit http://example.com/login", None),
        ("not logged in; visit https://claude.ai@evil.example/login", None),
        ("not logged in; visit https:///login", None),
        ("not logged in; visit javascript:alert(1)//https:/login", None),
        ("not logged in; visit https://example.com/login/" + "x" * 3000, None),
        ("rate limit; visit https://example.com/login", None),
    ],
)
def test_login_urls_are_found_and_only_safe_ones(text: str, url: str | None) -> None:
    hint = classify_text(text, NOW)
    assert hint is not None
    assert hint.login_url == (url or "")


def test_the_message_is_the_line_that_says_it_shortened() -> None:
    noise = "é" * 5000
    hint = classify_text(f"first\n  rate limit {noise}  \nlast", NOW)
    assert hint is not None
    assert hint.message.startswith("rate limit é")
    assert len(hint.message.encode()) <= 500


def test_both_ends_of_a_long_text_are_read() -> None:
    for text in ("Not logged in" + "\nx" * 100_000, "x\n" * 100_000 + "Not logged in"):
        hint = classify_text(text, NOW)
        assert hint is not None
        assert hint.kind == event_pb2.FAILURE_KIND_AUTH_REQUIRED


@given(st.text(), st.integers(100, 599), st.dictionaries(st.sampled_from(["Retry-After", "x"]), st.text()))
def test_nothing_makes_it_raise(text: str, status: int, headers: dict[str, str]) -> None:
    classify_text(text, NOW)
    classify_http(status, text, headers, NOW)


@pytest.mark.parametrize(
    "piece",
    [
        *("session ", "session a1", "session 1 not ", "model ", "status ", "api key ", "https://login/", "resets "),
        *("no previous session", "try again in 1s ", "quota exceeded ", "'", "\x1b]", "[" * 3, "401 ", "error: 4"),
    ],
)
def test_no_text_makes_it_slow(piece: str) -> None:
    text = (piece * (40_000 // len(piece) + 1))[:40_000]
    start = time.process_time()
    classify_text(text, NOW)
    classify_text(text.replace(" ", "\n"), NOW)
    assert time.process_time() - start < 5


def test_importing_costs_no_patterns() -> None:
    code = "import sys; from dragoman.sdk._output.failure_rules import RULES; import dragoman.sdk.acp;"
    code += "sys.exit(any('search' in vars(pattern) for _, pattern in RULES))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def test_a_status_leads_a_text_only_of_who_writes_it_there() -> None:
    evidence = Evidence(Report(), stderr_tail="402 Nope")
    failure = failure_of_evidence(evidence, "acme", status_leads=True)
    assert failure is not None
    assert (failure.kind, failure.http_status) == (event_pb2.FAILURE_KIND_QUOTA_EXCEEDED, 402)
    assert failure_of_evidence(evidence, "acme") is None


def test_a_text_becomes_a_failure_that_quotes_it() -> None:
    failure = failure_of_text("429 Too Many Requests", "acme_error", status_leads=True)
    assert failure is not None
    assert (failure.kind, failure.code, failure.http_status) == (
        event_pb2.FAILURE_KIND_RATE_LIMITED,
        "acme_error",
        429,
    )
    assert failure.errors == ("429 Too Many Requests",)
    assert failure_of_text("It rains.", "acme_error") is None


def test_the_agents_own_error_outranks_what_it_wrote_to_standard_error() -> None:
    overloaded = "API Error: 529 overloaded"
    report = Report()
    noise = failure_of_evidence(Evidence(report, stderr_tail=overloaded), "x")
    report.terminal = Terminal(
        succeeded=False, failure=FailureInfo(event_pb2.FAILURE_KIND_UNSPECIFIED, "401 invalid api key")
    )
    own = failure_of_evidence(Evidence(report, stderr_tail=overloaded), "x")
    assert noise is not None
    assert noise.errors == (overloaded,)
    assert own is not None
    assert own.errors == ("401 invalid api key",)
