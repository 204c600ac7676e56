"""Which stored logins renew themselves, as each adapter knows it. Only these make runs wait for one another."""

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.claude_code.login import renewing_login as of_claude
from dragoman.adapters.codex.login import renewing_login as of_codex
from dragoman.adapters.gemini_cli.login import renewing_login as of_gemini
from dragoman.adapters.opencode.login import renewing_login as of_opencode
from dragoman.adapters.qwen.login import renewing_login as of_qwen
from dragoman.sdk.detection import RenewingLogin

Find = Callable[[Mapping[str, str]], RenewingLogin | None]
EXPIRES_AT = 2_000_000_000


def token(**claims: object) -> str:
    """Return a token as services make them, but for its signature."""
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{payload}.signature"


CLAUDE = {"claudeAiOauth": {"accessToken": "a", "refreshToken": "r", "expiresAt": EXPIRES_AT * 1000}}
CODEX = {"OPENAI_API_KEY": None, "tokens": {"access_token": token(exp=EXPIRES_AT), "refresh_token": "r"}}
GOOGLE = {"access_token": "a", "refresh_token": "r", "expiry_date": EXPIRES_AT * 1000}
OPENCODE = {
    "anthropic": {"type": "oauth", "access": "a", "refresh": "r", "expires": EXPIRES_AT * 1000},
    "openai": {"type": "api", "key": "k"},
}
BY_GOOGLE = {"security": {"auth": {"selectedType": "oauth-personal"}}}
BY_QWEN = {"security": {"auth": {"selectedType": "qwen-oauth"}}}

Files = dict[str, dict[str, Any]]


def laid_out(home: Path, files: Files) -> dict[str, str]:
    """Write files below a home, and return the environment that leads there."""
    for name, content in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return {"HOME": str(home)}


@pytest.mark.parametrize(
    ("find", "login", "files"),
    [
        (of_claude, ".claude/.credentials.json", {".claude/.credentials.json": CLAUDE}),
        (of_codex, ".codex/auth.json", {".codex/auth.json": CODEX}),
        (
            of_gemini,
            ".gemini/oauth_creds.json",
            {".gemini/oauth_creds.json": GOOGLE, ".gemini/settings.json": BY_GOOGLE},
        ),
        (of_qwen, ".qwen/oauth_creds.json", {".qwen/oauth_creds.json": GOOGLE, ".qwen/settings.json": BY_QWEN}),
        (of_opencode, ".local/share/opencode/auth.json", {".local/share/opencode/auth.json": OPENCODE}),
    ],
    ids=["claude_code", "codex", "gemini_cli", "qwen", "opencode"],
)
def test_a_login_that_renews_itself(tmp_path: Path, find: Find, login: str, files: Files) -> None:
    assert find({"HOME": str(tmp_path)}) is None, "there is none"
    env = laid_out(tmp_path, files)
    assert find(env) == RenewingLogin(tmp_path / login, EXPIRES_AT)
    path = tmp_path / login
    path.write_text(path.read_text().replace(f"{EXPIRES_AT}000", "null").replace(token(exp=EXPIRES_AT), "opaque"))
    found = find(env)
    assert found is not None
    assert found.is_due(0.0), "its end is unknown"
    path.write_text(path.read_text().replace('"r"', '""'))
    assert find(env) is None, "it cannot be renewed"
    path.write_text("[]")
    assert find(env) is None


@pytest.mark.parametrize(
    ("find", "files", "env"),
    [
        (of_claude, {".claude/.credentials.json": CLAUDE}, {"ANTHROPIC_API_KEY": "k"}),
        (of_claude, {".claude/.credentials.json": CLAUDE}, {"CLAUDE_CODE_OAUTH_TOKEN": "t"}),
        (of_claude, {".claude/.credentials.json": CLAUDE}, {"CLAUDE_CODE_USE_BEDROCK": "1"}),
        (of_codex, {".codex/auth.json": {**CODEX, "OPENAI_API_KEY": "k"}}, {}),
        (of_codex, {".codex/auth.json": CODEX}, {"CODEX_API_KEY": "k"}),
        (of_gemini, {".gemini/oauth_creds.json": GOOGLE}, {"GEMINI_API_KEY": "k"}),
        (of_qwen, {".qwen/oauth_creds.json": GOOGLE}, {"OPENAI_API_KEY": "k"}),
        (of_opencode, {".local/share/opencode/auth.json": {"openai": OPENCODE["openai"]}}, {}),
    ],
)
def test_a_run_that_uses_a_key_waits_for_no_other(
    tmp_path: Path, find: Find, files: Files, env: Mapping[str, str]
) -> None:
    assert find({**laid_out(tmp_path, files), **env}) is None


def test_codex_with_a_provider_of_its_users_own_uses_no_login(tmp_path: Path) -> None:
    env = laid_out(tmp_path, {".codex/auth.json": CODEX})
    (tmp_path / ".codex/config.toml").write_text('model_provider = "own"\n[model_providers.own]\nname = "Own"\n')
    assert of_codex(env) is None


def test_codex_also_goes_by_the_age_of_a_login(tmp_path: Path) -> None:
    tokens = {"access_token": "opaque", "refresh_token": "r"}
    env = laid_out(
        tmp_path, {".codex/auth.json": {"tokens": tokens, "last_refresh": "2026-01-01T00:00:00.123456789Z"}}
    )
    found = of_codex(env)
    assert found is not None
    assert found.expires_at == pytest.approx(1_767_916_800, abs=1)


def test_opencode_goes_by_the_models_provider(tmp_path: Path) -> None:
    env = laid_out(tmp_path, {".local/share/opencode/auth.json": OPENCODE})
    assert of_opencode(env, provider="anthropic") is not None
    assert of_opencode(env, provider="openai") is None
