"""Whether Claude Code is there, logged in, and fit for a run: what is found, and what to do about it."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.claude_code import adapter
from dragoman.sdk._detection import agent as _finding
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.claude_code.pretender import Pretender
from tests.adapters.claude_code.replay import recorded

INHERITED = adapter().spec.inherit
FAR_MS, PAST_MS = 4_102_444_800_000, 1000


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretender:
    for name in INHERITED:
        monkeypatch.delenv(name, raising=False)
    return Pretender(tmp_path)


def status(method: str) -> str:
    answer = json.dumps({"loggedIn": method != "none", "authMethod": method})
    return f"[ \"$1 $2\" = 'auth status' ] && echo '{answer}'"


def used(claude: Pretender, expires_at_ms: int = FAR_MS) -> None:
    """Leave the traces of earlier use and a login."""
    login = {"accessToken": "a", "refreshToken": "r", "expiresAt": expires_at_ms}
    login["refreshTokenExpiresAt"] = expires_at_ms
    (claude.home / ".claude.json").write_text("{}")
    (claude.home / ".claude" / "skills").mkdir(parents=True)
    (claude.home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))


async def detected(claude: Pretender, **env: str) -> api.Detection:
    return await adapter().detect(api.DetectRequest(env={**claude.env, **env}))


async def test_absent(claude: Pretender) -> None:
    claude.program.unlink()
    found = await detected(claude)
    assert (found.available, found.confidence) == (False, api.DETECTION_CONFIDENCE_ABSENT)
    assert found.message == "Claude Code is not installed, or not on the PATH of its adapter."
    assert "npm install" in found.hint
    assert "config.command" in found.hint


async def test_the_command_of_the_settings_is_what_is_not_found(claude: Pretender) -> None:
    request = api.DetectRequest(env=claude.env)
    request.config["command"] = "no-such-claude"
    found = await adapter().detect(request)
    assert found.message == "no-such-claude, which config.command names, was not found."
    assert "correct config.command" in found.hint


async def test_on_the_path_only(claude: Pretender) -> None:
    found = await detected(claude)
    assert (found.available, found.confidence) == (True, api.DETECTION_CONFIDENCE_EXECUTABLE_ONLY)
    assert (found.executable, found.version) == (str(claude.program), "2.1.330")
    assert found.auth == api.AUTH_STATE_MISSING
    assert "claude auth login" in found.hint


async def test_a_config_directory_only(claude: Pretender) -> None:
    used(claude)
    claude.program.unlink()
    found = await detected(claude)
    assert (found.available, found.confidence) == (False, api.DETECTION_CONFIDENCE_CONFIG_ONLY)
    assert found.auth == api.AUTH_STATE_MISSING
    assert "config.command" in found.hint


@pytest.mark.parametrize(
    ("method", "expires_at_ms", "auth"),
    [
        ("claude.ai", FAR_MS, api.AUTH_STATE_OK),
        ("claude.ai", PAST_MS, api.AUTH_STATE_EXPIRED),
        ("api_key", PAST_MS, api.AUTH_STATE_OK),
        ("none", FAR_MS, api.AUTH_STATE_MISSING),
    ],
)
async def test_both(claude: Pretender, method: str, expires_at_ms: int, auth: int) -> None:
    used(claude, expires_at_ms)
    claude.acts(status(method))
    found = await detected(claude)
    assert found.confidence == api.DETECTION_CONFIDENCE_CONFIDENT
    assert found.config_dir == str(claude.home / ".claude")
    assert found.skills_dir == str(claude.home / ".claude" / "skills")
    assert found.auth == auth
    assert bool(found.hint) == (auth != api.AUTH_STATE_OK)


async def test_a_moved_config_directory(claude: Pretender) -> None:
    (claude.root / "elsewhere").mkdir()
    found = await detected(claude, CLAUDE_CONFIG_DIR=str(claude.root / "elsewhere"))
    assert found.config_dir == str(claude.root / "elsewhere")


async def test_a_version_that_does_not_come(claude: Pretender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_finding, "VERSION_LIMIT_S", 0.2)
    claude.acts("exit 0", on_version="sleep 1000")
    found = await detected(claude)
    assert found.available, "it may work nevertheless"
    assert [problem.code for problem in found.problems] == ["version_timeout"]
    assert found.version == ""


async def test_a_file_that_cannot_be_started(claude: Pretender) -> None:
    claude.program.write_bytes(b"\x7fELF of another world")
    found = await detected(claude)
    assert not found.available
    assert [problem.code for problem in found.problems] == ["executable_broken"]


async def checked(claude: Pretender, *, live: bool, **fields: Any) -> dict[str, api.EnvironmentCheck]:
    request = api.TestEnvironmentRequest(mode=api.TEST_MODE_LIVE if live else api.TEST_MODE_QUICK, env=claude.env)
    request.workspace.cwd = str(claude.root / "work")
    for name, value in fields.items():
        if name == "env":
            request.env.update(value)
        elif name == "cwd":
            request.workspace.cwd = value
        else:
            request.config[name] = value
    return {check.code: check for check in await adapter().test_environment(request)}


INFO, WARNING, ERROR = pb.SEVERITY_INFO, pb.SEVERITY_WARNING, pb.SEVERITY_ERROR


@pytest.mark.parametrize(
    ("fields", "code", "level"),
    [
        ({}, "command_found", INFO),
        ({}, "cwd_usable", INFO),
        ({}, "config_valid", INFO),
        ({}, "auth_missing", ERROR),
        ({"env": {"ANTHROPIC_API_KEY": "k"}}, "auth_ok", INFO),
        ({"env": {"ANTHROPIC_API_KEY": "k"}}, "api_key_in_environment", WARNING),
        ({"cwd": ""}, "cwd_missing", ERROR),
        ({"cwd": "relative"}, "cwd_relative", ERROR),
        ({"cwd": "/no/such/directory"}, "cwd_absent", ERROR),
        ({"command": "no-such-claude"}, "command_not_found", ERROR),
        ({"modle": "opus"}, "config_invalid", ERROR),
        ({"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}}, "base_url_set", INFO),
        ({"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}, "cloud_provider", INFO),
    ],
)
async def test_checks_and_their_levels(claude: Pretender, fields: Any, code: str, level: int) -> None:
    checks = await checked(claude, live=False, **fields)
    assert checks[code].level == level
    assert checks[code].message
    assert level == INFO or checks[code].hint


async def test_a_live_turn_that_fails_says_what_is_wrong(claude: Pretender) -> None:
    claude.acts(claude.says("out", recorded("error_401")), "exit 1")
    checks = await checked(claude, live=True, env={"ANTHROPIC_API_KEY": "k"})
    assert (checks["live_failed"].level, checks["live_failed"].detail) == (ERROR, "AUTH_REQUIRED")


async def test_a_live_turn_without_the_nonce_is_no_proof(claude: Pretender) -> None:
    claude.acts(claude.says("out", recorded("text")))
    checks = await checked(claude, live=True, env={"ANTHROPIC_API_KEY": "k"})
    assert checks["live_no_echo"].level == ERROR


async def test_a_live_turn_is_not_tried_where_it_cannot_work(claude: Pretender) -> None:
    claude.acts("touch ran")
    assert "live_skipped" in await checked(claude, live=True)
    assert not (claude.root / "ran").exists()


async def test_an_own_key_is_not_used_where_a_subscription_is_logged_in(
    claude: Pretender, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(claude)
    claude.acts(status("claude.ai"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "an-own-key")
    found = await detected(claude)
    assert (found.auth, found.auth_method) == (api.AUTH_STATE_OK, "claude.ai")
    assert [problem.code for problem in found.problems] == ["api_key_withheld"]
    found = await detected(claude, ANTHROPIC_API_KEY="one-of-the-request")
    assert list(found.problems) == []
