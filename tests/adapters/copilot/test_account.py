"""Copilot's login and its quota, with programs that pretend to be Copilot."""

import json
from pathlib import Path

import pytest
from dragoman.adapters.copilot import adapter
from dragoman.adapters.copilot.device_login import DeviceLogin
from dragoman.adapters.copilot.quota import answered
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.accounts import install, steps

URL = "https://github.example/login/device"
BEGUN = f"To authenticate, visit {URL} and enter code ABCD-1234"
SHOWN = f"echo '{BEGUN}'; echo 'Waiting for authorization...'; "
PROMPT = api.LoginResponse(prompt=api.LoginPrompt(url=URL, user_code="ABCD-1234"))
DONE = api.LoginResponse(outcome=api.LoginOutcome())


@pytest.mark.parametrize(
    ("host", "argv"),
    [({}, ""), ({"GH_HOST": "b"}, " --host b"), ({"GH_HOST": "b", "COPILOT_GH_HOST": "a"}, " --host a")],
)
async def test_a_code_then_the_outcome(host: dict[str, str], argv: str, tmp_path: Path) -> None:
    script = f'{SHOWN} echo "$*" > {tmp_path}/argv; echo "Failed to open browser." >&2; echo "Signed in successfully"'
    assert await steps(adapter(), install(tmp_path, "copilot", script) | host, "device_code") == [PROMPT, DONE]
    assert (tmp_path / "argv").read_text() == f"login --device-code{argv}\n"


@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        ("echo 'Login failed: Error: no network' >&2", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "no network"),
        ("echo 'Login is not available in offline mode.' >&2", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "offline mode"),
        (f"{SHOWN} echo 'Login failed: Error: denied' >&2", pb.FAILURE_KIND_AUTH_REQUIRED, "denied"),
        (SHOWN, pb.FAILURE_KIND_AUTH_REQUIRED, "ended before"),
        (
            f"{SHOWN} echo 'Login succeeded, but the token was not saved. Install a system keychain' >&2",
            pb.FAILURE_KIND_INVALID_CONFIG,
            "storeTokenPlaintext",
        ),
    ],
)
async def test_a_login_that_fails(script: str, kind: int, text: str, tmp_path: Path) -> None:
    *_, ended = await steps(adapter(), install(tmp_path, "copilot", script))
    assert (ended.outcome.failure.kind, text in ended.outcome.failure.message) == (kind, True)


def answering(answer: object) -> str:
    """Return what answers with a message that has its length before it, and no newline behind it."""
    body = json.dumps(answer)
    return f"printf 'Content-Length: {len(body)}\\r\\n\\r\\n%s' '{body}'; cat > /dev/null"


async def test_what_is_limited(tmp_path: Path) -> None:
    snapshots = {
        "chat": {"isUnlimitedEntitlement": True, "remainingPercentage": 100},
        "premium_interactions": {"remainingPercentage": 58, "resetDate": "2029-12-01T00:00:00Z"},
        "completions": {"remainingPercentage": 130},
        "overdrawn": {"remainingPercentage": -12.5},
        "other": {},
        "odd": {"remainingPercentage": True},
    }
    env = install(tmp_path, "copilot", answering({"id": 2, "result": {"quotaSnapshots": snapshots}}))
    response = await adapter().get_quota(api.GetQuotaRequest(env=env))
    assert not response.HasField("failure")
    assert list(response.windows) == [
        pb.RateLimit(window="premium_interactions", used_percent=42),
        pb.RateLimit(window="completions", used_percent=0),
        pb.RateLimit(window="overdrawn", used_percent=100),
    ]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"id": 2, "error": {"message": "Not authenticated. Please."}}, pb.FAILURE_KIND_AUTH_REQUIRED),
        ({"id": 2, "error": {"message": "something new"}}, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
        ({}, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
    ],
)
def test_why_there_is_no_answer(answer: object, kind: int) -> None:
    failure = answered(json.dumps(answer)).failure
    assert (failure.kind, bool(failure.message), bool(failure.code)) == (kind, True, True)


async def test_a_program_that_ends_without_an_answer(tmp_path: Path) -> None:
    response = await adapter().get_quota(api.GetQuotaRequest(env=install(tmp_path, "copilot", "exit 1")))
    assert response.failure.code == "copilot_no_answer"
    assert response.failure.message.startswith("GitHub Copilot CLI ended or did not")


async def test_no_program(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    (ended,) = await steps(adapter(), env)
    quota = await adapter().get_quota(api.GetQuotaRequest(env=env))
    assert ended.outcome.failure.code == quota.failure.code == "copilot_not_installed"


LINES = (BEGUN, "Signed in successfully as a", "Login failed: ", "but the token was not saved.")


@given(st.lists(st.text(max_size=20) | st.sampled_from(LINES), max_size=6))
def test_any_lines_are_steps(lines: list[str]) -> None:
    login, prompted = DeviceLogin(), False
    for event in map(login.step, lines):
        prompted |= event is not None and bool(event.prompt.url)
        assert event is None or prompted or event.outcome.failure.message
    assert login.ended().message
