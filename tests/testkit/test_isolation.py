"""The isolated environment of real agents."""

import json
import os
from pathlib import Path

import pytest
from dragoman.testkit.isolation import FAKE_KEY, FAR_FUTURE_MS, isolate, log_in
from dragoman.testkit.profiles import PROFILES

URL = "http://127.0.0.1:4242"


def test_nothing_but_path_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-real-key")
    monkeypatch.setenv("CLAUDECODE", "1")
    isolation = isolate("claude", tmp_path, model_url=URL)
    assert isolation.environment["PATH"] == os.environ["PATH"]
    assert "CLAUDECODE" not in isolation.environment
    assert isolation.environment["ANTHROPIC_API_KEY"] == FAKE_KEY
    assert isolation.environment["ANTHROPIC_BASE_URL"] == URL


def test_home_config_and_temporary_folder_are_below_the_root(tmp_path: Path) -> None:
    isolation = isolate("claude", tmp_path, model_url=URL)
    for name in ("HOME", "CLAUDE_CONFIG_DIR", "TMPDIR"):
        folder = Path(isolation.environment[name])
        assert folder.is_dir()
        assert folder.is_relative_to(tmp_path)


def test_without_a_model_server_the_agent_is_logged_out(tmp_path: Path) -> None:
    assert not set(isolate("claude", tmp_path).environment) & set(PROFILES["claude"].model)


@pytest.mark.parametrize("url", ["https://api.example.com", "http://localhost:1", "http://127.0.0.1.example.com:1"])
def test_only_loopback_is_talked_to(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
        isolate("claude", tmp_path, model_url=url)


def test_the_folder_of_the_agent_comes_first(tmp_path: Path) -> None:
    environment = isolate("claude", tmp_path, bin_dir=tmp_path / "bin").environment
    assert environment["PATH"].split(os.pathsep)[0] == str(tmp_path / "bin")


def test_a_fake_login_with_its_expiry(tmp_path: Path) -> None:
    isolation = isolate("claude", tmp_path)
    path = log_in(isolation)
    assert path.parent == isolation.config
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["claudeAiOauth"]["expiresAt"] == FAR_FUTURE_MS
    log_in(isolation, expires_at_ms=1)
    assert json.loads(path.read_text())["claudeAiOauth"]["expiresAt"] == 1
    assert "expiresAt" not in json.dumps(PROFILES["claude"].login)


def test_settings_are_written_into_the_home(tmp_path: Path) -> None:
    isolation = isolate("pi", tmp_path, model_url=URL)
    models = json.loads((isolation.home / ".pi" / "agent" / "models.json").read_text())
    assert models["providers"]["scripted"]["baseUrl"] == f"{URL}/v1"
    assert not (isolate("pi", tmp_path / "without").home / ".pi" / "agent" / "models.json").exists()
