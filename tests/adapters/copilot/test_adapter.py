"""What the adapter says of itself, whether it is logged in, and what its failures mean."""

from pathlib import Path

import pytest
from dragoman.adapters.copilot import adapter
from dragoman.adapters.copilot.adapter import find_login
from dragoman.adapters.copilot.classify import failure_of_error, failure_of_text, retry_cause
from dragoman.sdk import Evidence, Report
from dragoman.sdk._request.environment import inherited_variables
from dragoman.sdk.detection import Checks
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb


def test_the_aliases() -> None:
    assert set(adapter().describe().aliases) >= {"copilot_local", "github-copilot"}


def test_what_is_inherited() -> None:
    own = dict.fromkeys(adapter().spec.inherit, "x") | {"COPILOT_ALLOW_ALL": "true", "OPENAI_API_KEY": "sk"}
    passed = inherited_variables(own, strip=adapter().spec.strip, allow=adapter().spec.inherit)
    assert set(passed) == set(adapter().spec.inherit)


def test_a_login(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert find_login(env).state == api.AUTH_STATE_MISSING
    for name in ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"):
        assert find_login({**env, name: "t"}).method == "token"
    assert find_login({**env, "COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:1"}).method == "own_model"
    hosts = tmp_path / ".config" / "gh" / "hosts.yml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text("github.com:\n")
    assert find_login(env).state == api.AUTH_STATE_UNKNOWN
    config = tmp_path / ".copilot" / "config.json"
    config.parent.mkdir()
    config.write_text("{")
    assert find_login(env).state == api.AUTH_STATE_UNKNOWN
    config.write_text('{"loggedInUsers": [{"login": "ada"}]}')
    assert (find_login(env).state, find_login(env).method) == (api.AUTH_STATE_OK, "github")
    config.write_text('{"logged_in_users": [{"login": "ada"}]}')
    assert find_login(env).method == "github"


def test_the_checks_of_a_model_that_is_not_githubs() -> None:
    own = {"COPILOT_PROVIDER_BASE_URL": "http://user:password@127.0.0.1:1"}
    checks, with_model = Checks(), Checks()
    adapter().extra_checks({}, {}, checks)
    assert checks.items == []
    adapter().extra_checks({}, own, checks)
    adapter().extra_checks({}, {**own, "COPILOT_MODEL": "m"}, with_model)
    found = [(check.code, check.detail) for check in checks.items]
    assert found == [("own_model", "127.0.0.1:1"), ("model_needed", "")]
    assert [check.code for check in with_model.items] == ["own_model"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Error: No authentication information found.\n\nCopilot can be ...", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("Execution failed: InvalidArg, No GitHub OAuth token or Copilot HMAC key", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("BYOK providers require an explicit model. Run `copilot help", pb.FAILURE_KIND_INVALID_CONFIG),
        ("Offline mode requires a local model provider.", pb.FAILURE_KIND_INVALID_CONFIG),
        ("error: Invalid command format.\n", pb.FAILURE_KIND_INVALID_CONFIG),
        ("Request session.resume failed with message: Session not found: 1-2", pb.FAILURE_KIND_SESSION_LOST),
        ("Error: No session, task, or name matched 'x'.", pb.FAILURE_KIND_SESSION_LOST),
    ],
)
def test_plain_words(words: str, kind: int) -> None:
    failure = failure_of_text(words, resumed=True)
    assert failure is not None
    assert failure.kind == kind
    assert failure.message.startswith("GitHub Copilot CLI: ")


def test_words_that_say_nothing() -> None:
    assert failure_of_text("", resumed=True) is None
    assert failure_of_text("Hello.", resumed=True) is None
    assert failure_of_text("Session not found: 1-2", resumed=False) is None


def test_only_a_run_without_a_word_of_its_own_is_judged_by_standard_error() -> None:
    evidence = Evidence(Report(), exit_code=1, stderr_tail="error: Invalid command format.")
    failure = adapter().classify(evidence)
    assert failure is not None
    assert failure.kind == pb.FAILURE_KIND_INVALID_CONFIG


@pytest.mark.parametrize(
    ("error_type", "status", "message", "cause", "kind"),
    [
        ("authentication", 401, "Authentication failed", "", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("rate_limit", 429, "Last error: 429 Too many requests", "", pb.FAILURE_KIND_RATE_LIMITED),
        ("rate_limit", 429, "You exceeded your current quota", "", pb.FAILURE_KIND_QUOTA_EXCEEDED),
        ("quota", 402, "No premium requests left", "", pb.FAILURE_KIND_QUOTA_EXCEEDED),
        ("context_limit", None, "Too much", "", pb.FAILURE_KIND_CONTEXT_OVERFLOW),
        ("query", None, "The provider rejected the prompt as too long", "", pb.FAILURE_KIND_CONTEXT_OVERFLOW),
        ("query", None, "Request exceeds the model's prompt budget", "", pb.FAILURE_KIND_CONTEXT_OVERFLOW),
        ("query", 400, "400 Your credit balance is too low", "", pb.FAILURE_KIND_QUOTA_EXCEEDED),
        ("query", 404, "Resource not found on provider", "", pb.FAILURE_KIND_MODEL_NOT_FOUND),
        ("query", 529, "Last error: 529 Overloaded", "", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
        ("query", 500, "500 Oh", "", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
        ("query", None, "Failed native model HTTP request: unexpected EOF", "", pb.FAILURE_KIND_NETWORK),
        ("query", None, "Could not connect to local model provider", "", pb.FAILURE_KIND_NETWORK),
        ("query", 400, "400 Bad request", "", pb.FAILURE_KIND_INVALID_CONFIG),
        ("brand_new", None, "It broke", "", pb.FAILURE_KIND_NO_RESULT),
        ("query", 400, "400", '{"message":"prompt is too long: 2 tokens"}', pb.FAILURE_KIND_CONTEXT_OVERFLOW),
    ],
)
def test_an_error_of_the_session(error_type: str, status: int | None, message: str, cause: str, kind: int) -> None:
    failure = failure_of_error(
        {"errorType": error_type, "statusCode": status, "message": message}, {"errorMessage": cause}
    )
    assert failure.kind == kind
    assert failure.http_status == status
    assert failure.code == f"copilot_{pb.FailureKind.Name(failure.kind)[13:].lower()}"
    assert message in failure.errors


def test_why_it_tries_again() -> None:
    assert retry_cause("rate_limit", 429) == pb.FAILURE_KIND_RATE_LIMITED
    assert retry_cause("streaming_error", None) == pb.FAILURE_KIND_NETWORK
    assert retry_cause("forced_compaction", None) == pb.FAILURE_KIND_UNSPECIFIED
