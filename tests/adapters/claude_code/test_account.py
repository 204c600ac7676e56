"""Claude Code's login and its rate limits, with programs that pretend to be Claude Code."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.claude_code import adapter
from dragoman.adapters.claude_code.browser_login import BrowserLogin
from dragoman.adapters.claude_code.quota import answered
from dragoman.protocol.errors import DragomanError
from dragoman.sdk._detection import account
from dragoman.sdk.detection import LoginLocks, RenewingLogin
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.accounts import install, printing, steps

URL = "https://claude.example/oauth/authorize?redirect_uri=http%3A%2F%2Flocalhost%3A1%2Fcallback"
PROMPT = api.LoginResponse(prompt=api.LoginPrompt(url=URL))
DONE = api.LoginResponse(outcome=api.LoginOutcome())
RESETS = "2030-01-01T00:00:00+00:00"


def answer(request_id: str, subtype: str = "success", **content: object) -> dict[str, Any]:
    return {"type": "control_response", "response": {"subtype": subtype, "request_id": request_id, **content}}


BEGUN = answer("login", response={"automaticUrl": URL, "manualUrl": "https://claude.example/manual"})


async def test_a_page_then_the_outcome(tmp_path: Path) -> None:
    other = {"type": "system", "subtype": "commands_changed"}
    env = install(tmp_path, "claude", printing(other, BEGUN, other, answer("logged-in", response={"account": {}})))
    assert await steps(adapter(), env, "browser") == [PROMPT, DONE]


@pytest.mark.parametrize(
    ("frames", "kind", "text"),
    [
        ([answer("login", "error", error="Login blocked")], pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "Login blocked"),
        ([answer("login", response={"manualUrl": "m"})], pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "no page"),
        (
            [BEGUN, answer("logged-in", "error", error="status code 400")],
            pb.FAILURE_KIND_AUTH_REQUIRED,
            "status code 400",
        ),
    ],
)
async def test_a_login_that_fails(frames: list[object], kind: int, text: str, tmp_path: Path) -> None:
    *prompts, ended = await steps(adapter(), install(tmp_path, "claude", printing(*frames)))
    assert prompts == [PROMPT] * (len(frames) - 1)
    assert (ended.outcome.failure.kind, text in ended.outcome.failure.message) == (kind, True)


async def test_a_program_that_ends(tmp_path: Path) -> None:
    (ended,) = await steps(adapter(), install(tmp_path, "claude", "exit 0"))
    assert ended.outcome.failure.code == "claude_code_login_ended"


async def test_a_program_that_ends_without_its_limits(tmp_path: Path) -> None:
    response = await adapter().get_quota(api.GetQuotaRequest(env=install(tmp_path, "claude", "exit 1")))
    assert response.failure.code == "claude_code_no_answer"
    assert response.failure.message.startswith("Claude Code ended or did not")


async def test_no_program(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    (ended,) = await steps(adapter(), env)
    quota = await adapter().get_quota(api.GetQuotaRequest(env=env))
    assert ended.outcome.failure.code == quota.failure.code == "claude_code_not_installed"


async def test_an_unknown_method(tmp_path: Path) -> None:
    with pytest.raises(DragomanError) as caught:
        await steps(adapter(), install(tmp_path, "claude", ""), "device_code")
    assert [violation.path for violation in caught.value.violations] == ["method"]


async def test_a_login_that_runs_renew_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(account, "TURN_LIMIT_S", 0.01)
    env = install(tmp_path, "claude", f"touch {tmp_path}/started")
    stored = tmp_path / ".claude" / ".credentials.json"
    stored.parent.mkdir()
    stored.write_text(json.dumps({"claudeAiOauth": {"accessToken": "a", "refreshToken": "r", "expiresAt": 1}}))
    held = await LoginLocks().take(RenewingLogin(stored), lambda: None)
    (ended,) = await steps(adapter(), env)
    quota = await adapter().get_quota(api.GetQuotaRequest(env=env))
    held.release()
    assert ended.outcome.failure.code == quota.failure.code == "claude_code_login_busy"
    assert not (tmp_path / "started").exists()


async def test_the_windows(tmp_path: Path) -> None:
    limits = {
        "five_hour": {"utilization": 42, "resets_at": RESETS},
        "seven_day": {"utilization": 103.5, "resets_at": "soon"},
        "seven_day_opus": None,
        "extra_usage": {"is_enabled": True, "utilization": None},
        "model_scoped": [{"display_name": "Fable", "utilization": 1, "resets_at": None}],
    }
    usage = answer("quota", response={"rate_limits_available": True, "rate_limits": limits})
    env = install(tmp_path, "claude", printing(usage))
    response = await adapter().get_quota(api.GetQuotaRequest(env=env))
    shown = [(window.window, window.used_percent, window.resets_at.seconds) for window in response.windows]
    assert shown == [("five_hour", 42, 1_893_456_000), ("seven_day", 100, 0), ("weekly Fable", 1, 0)]


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (answer("quota", response={"rate_limits_available": False}), pb.FAILURE_KIND_AUTH_REQUIRED),
        (
            answer("quota", response={"rate_limits_available": True, "rate_limits": None}),
            pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
        ),
        (answer("quota", "error", error="401 Unauthorized"), pb.FAILURE_KIND_AUTH_REQUIRED),
        (answer("quota", "error", error="something new"), pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
        ({}, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
    ],
)
def test_why_there_is_no_answer(frame: object, kind: int) -> None:
    failure = answered(json.dumps(frame)).failure
    assert (failure.kind, bool(failure.message), bool(failure.code)) == (kind, True, True)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(("login", "logged-in", RESETS)),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ("response", "request_id", "subtype", "rate_limits", "utilization", "resets_at", "five_hour")
            ),
            inner,
        )
    ),
)


@given(st.lists(st.sampled_from([BEGUN, answer("logged-in")]) | ANYTHING, max_size=5))
def test_any_lines_are_steps(frames: list[object]) -> None:
    login, prompted = BrowserLogin(), False
    for event in map(login.step, map(json.dumps, frames)):
        prompted |= event is not None and bool(event.prompt.url)
        assert event is None or prompted or event.outcome.failure.message


@given(st.dictionaries(st.sampled_from(("five_hour", "model_scoped")), ANYTHING))
def test_any_limits_are_windows(limits: dict[str, object]) -> None:
    usage = answer("quota", response={"rate_limits_available": True, "rate_limits": limits})
    for window in answered(json.dumps(usage)).windows:
        assert 0 <= window.used_percent <= 100
