"""Whether Claude Code is logged in, without changing anything by looking."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.claude_code.login import find_login, judge
from dragoman.v1 import adapter_pb2 as pb

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
OK, MISSING, EXPIRED = pb.AUTH_STATE_OK, pb.AUTH_STATE_MISSING, pb.AUTH_STATE_EXPIRED
UNKNOWN = pb.AUTH_STATE_UNKNOWN

LOGIN = {"accessToken": "a", "refreshToken": "r", "expiresAt": NOW_MS + HOUR_MS}
LAPSED = {**LOGIN, "expiresAt": NOW_MS - HOUR_MS}


@pytest.mark.parametrize(
    ("status", "stored", "env", "state", "method"),
    [
        # What it says itself.
        ({"loggedIn": False, "authMethod": "none"}, {}, {}, MISSING, ""),
        ({"loggedIn": True, "authMethod": "api_key"}, {}, {}, OK, "api_key"),
        ({"loggedIn": True, "authMethod": "claude.ai"}, LOGIN, {}, OK, "claude.ai"),
        ({"loggedIn": True, "authMethod": "claude.ai"}, {}, {}, OK, "claude.ai"),
        ({"loggedIn": True, "authMethod": "oauth_token"}, LAPSED, {}, OK, "oauth_token"),
        ({"loggedIn": "yes", "authMethod": "api_key"}, {}, {}, MISSING, ""),
        ({}, {}, {}, MISSING, ""),
        # What it does not say: that the login has expired.
        ({"loggedIn": True, "authMethod": "claude.ai"}, LAPSED, {}, OK, "claude.ai"),
        (
            {"loggedIn": True, "authMethod": "claude.ai"},
            {**LAPSED, "refreshTokenExpiresAt": NOW_MS - HOUR_MS},
            {},
            EXPIRED,
            "claude.ai",
        ),
        ({"loggedIn": True, "authMethod": "claude.ai"}, {**LAPSED, "refreshToken": ""}, {}, EXPIRED, "claude.ai"),
        (
            {"loggedIn": True, "authMethod": "claude.ai"},
            {**LAPSED, "refreshTokenExpiresAt": NOW_MS + HOUR_MS},
            {},
            OK,
            "claude.ai",
        ),
        # Where it was never used, and is not asked.
        (None, {}, {}, MISSING, ""),
        (None, {}, {"ANTHROPIC_API_KEY": "k"}, OK, "api_key"),
        (None, {}, {"CLAUDE_CODE_OAUTH_TOKEN": "t"}, OK, "oauth_token"),
        (None, {}, {"CLAUDE_CODE_USE_BEDROCK": "1"}, OK, "third_party"),
        (None, LOGIN, {}, OK, "claude.ai"),
        (None, {**LAPSED, "refreshToken": ""}, {}, EXPIRED, "claude.ai"),
        (None, {"accessToken": ""}, {}, MISSING, ""),
    ],
)
def test_the_login_is_judged(status: Any, stored: Any, env: dict[str, str], state: int, method: str) -> None:
    found = judge(status, stored, env, now_ms=NOW_MS)
    assert (found.state, found.method) == (state, method)


FakeClaude = Callable[[str], str]


@pytest.fixture
def fake_claude(tmp_path: Path) -> FakeClaude:
    """Return a maker of programs that say something and leave a mark that they ran."""

    def make(answer: str) -> str:
        program = tmp_path / "claude"
        program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\ncat <<'END'\n{answer}\nEND\n")
        program.chmod(0o755)
        return str(program)

    return make


def home(tmp_path: Path, files: Mapping[str, object]) -> dict[str, str]:
    folder = tmp_path / "home"
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    folder.mkdir(exist_ok=True)
    return {"HOME": str(folder), "PATH": "/usr/bin:/bin"}


LOGGED_IN = json.dumps({"loggedIn": True, "authMethod": "claude.ai"})
FAR = {"claudeAiOauth": {**LOGIN, "expiresAt": 4_102_444_800_000}}
GONE = {"claudeAiOauth": {**LOGIN, "expiresAt": 1000, "refreshToken": ""}}


@pytest.mark.parametrize(
    ("files", "answer", "state", "asks"),
    [
        ({}, LOGGED_IN, MISSING, False),
        ({".claude/skills/x": "only a directory"}, LOGGED_IN, MISSING, False),
        ({".claude/.credentials.json": FAR}, LOGGED_IN, OK, False),
        ({".claude.json": {}, ".claude/.credentials.json": FAR}, LOGGED_IN, OK, True),
        ({".claude.json": {}, ".claude/.credentials.json": GONE}, LOGGED_IN, EXPIRED, True),
        ({".claude.json": {}, ".claude/.credentials.json": "not JSON"}, LOGGED_IN, OK, True),
        ({".claude.json": {}}, '{"loggedIn": false, "authMethod": "none"}', MISSING, True),
        ({".claude.json": {}}, "Segmentation fault", UNKNOWN, True),
    ],
)
async def test_it_is_asked_only_where_asking_leaves_no_trace(
    tmp_path: Path, fake_claude: FakeClaude, files: dict[str, object], answer: str, state: int, asks: bool
) -> None:
    env = home(tmp_path, files)
    before = sorted(str(path) for path in (tmp_path / "home").rglob("*"))
    found = await find_login(fake_claude(answer), env)
    assert found.state == state
    assert (tmp_path / "ran").exists() == asks
    assert sorted(str(path) for path in (tmp_path / "home").rglob("*")) == before


async def test_another_config_directory_is_looked_into(tmp_path: Path, fake_claude: FakeClaude) -> None:
    env = home(tmp_path, {"elsewhere/.credentials.json": FAR})
    env["CLAUDE_CONFIG_DIR"] = f"{env['HOME']}/elsewhere"
    assert (await find_login(fake_claude(LOGGED_IN), env)).state == OK
    assert not (tmp_path / "ran").exists()
