"""The run's own home: links to what is the user's, settings over theirs, and nothing of theirs changed."""

import json
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.adapters.gemini_cli import adapter
from dragoman.adapters.gemini_cli.home_overlay import make_home, merged, protect_session, read_settings
from dragoman.adapters.gemini_cli.login import find_login
from dragoman.adapters.gemini_cli.plan import INSTRUCTIONS_FILE, SETTINGS_FILE
from dragoman.sdk import FailureError
from dragoman.v1 import adapter_pb2 as api

SESSION = "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    config = tmp_path / "user" / ".gemini"
    config.mkdir(parents=True)
    (config / "settings.json").write_text('{"general": {"maxAttempts": 9, "vimMode": true}}')
    (config / "oauth_creds.json").write_text("{}")
    skill = tmp_path / "user" / ".agents" / "skills" / "theirs"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("Theirs.")
    return tmp_path / "user"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / SETTINGS_FILE).write_text('{"general": {"maxAttempts": 2}}')
    return folder


def settings_in(variables: dict[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (Path(variables["GEMINI_CLI_HOME"]) / ".gemini" / SETTINGS_FILE).read_text()
    )
    return document


def test_settings_of_the_run_win_and_the_users_stay(user: Path, run_dir: Path) -> None:
    before = (user / ".gemini" / "settings.json").read_bytes()
    settings = settings_in(make_home(run_dir, {"HOME": str(user)}))
    assert settings["general"] == {"maxAttempts": 2, "vimMode": True}
    assert (user / ".gemini" / "settings.json").read_bytes() == before


@pytest.mark.parametrize(
    ("resumes", "way", "protects"), [(True, "acp", True), (True, "stream-json", False), (False, "acp", False)]
)
async def test_a_run_gets_its_home_and_its_session_is_protected(
    user: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, resumes: bool, way: str, protects: bool
) -> None:
    module = import_module("dragoman.adapters.gemini_cli.adapter")
    protected: list[Any] = []
    monkeypatch.setattr(module, "transport", lambda _: way)
    monkeypatch.setattr(module, "protect_session", lambda env, session: protected.append((env, session)))
    job: Any = SimpleNamespace(session=SimpleNamespace(resumes=resumes, native_id=SESSION), run_dir=run_dir)
    env = {"HOME": str(user)}
    assert settings_in(dict(await adapter().prepare(job, env)))["general"] == {"maxAttempts": 2, "vimMode": True}
    assert protected == ([(env, SESSION)] if protects else [])


def test_what_is_the_users_is_linked_to_and_sessions_stay(user: Path, run_dir: Path) -> None:
    home = Path(make_home(run_dir, {"HOME": str(user)})["GEMINI_CLI_HOME"])
    (home / ".gemini" / "tmp" / "new-session").write_text("x")
    (home / ".gemini" / "oauth_creds.json").write_text("renewed")
    assert (user / ".gemini" / "tmp" / "new-session").exists()
    assert (user / ".gemini" / "oauth_creds.json").read_text() == "renewed"


def test_skills_of_the_run_are_beside_the_users_own_and_hide_them(user: Path, run_dir: Path) -> None:
    ours = run_dir / "skills" / ".agents" / "skills"
    for name in ("ours", "theirs"):
        (ours / name).mkdir(parents=True)
        (ours / name / "SKILL.md").write_text("Ours.")
    (user / ".agents" / "skills" / "more").mkdir()
    make_home(run_dir, {"HOME": str(user)})
    assert sorted(path.name for path in ours.iterdir()) == ["more", "ours", "theirs"]
    assert (ours / "theirs" / "SKILL.md").read_text() == "Ours."
    assert (user / ".agents" / "skills" / "theirs" / "SKILL.md").read_text() == "Theirs."


@pytest.mark.parametrize(
    ("theirs", "names"),
    [(None, ["GEMINI.md"]), ("AGENTS.md", ["AGENTS.md"]), (["A.md", "B.md"], ["A.md", "B.md"])],
)
def test_instructions_are_read_beside_the_users_context_files(
    user: Path, run_dir: Path, theirs: object, names: list[str]
) -> None:
    if theirs is not None:
        (user / ".gemini" / "settings.json").write_text(json.dumps({"context": {"fileName": theirs}}))
    (run_dir / INSTRUCTIONS_FILE).write_text("Be brief.")
    variables = make_home(run_dir, {"HOME": str(user)})
    assert settings_in(variables)["context"]["fileName"] == [*names, INSTRUCTIONS_FILE]
    assert (Path(variables["GEMINI_CLI_HOME"]) / ".gemini" / INSTRUCTIONS_FILE).read_text() == "Be brief."


def test_with_a_key_alone_its_settings_say_how_to_log_in(user: Path, run_dir: Path) -> None:
    env = {"HOME": str(user), "GEMINI_API_KEY": "k"}
    assert settings_in(make_home(run_dir, env))["security"]["auth"]["selectedType"] == "gemini-api-key"


def test_a_home_that_was_never_used(tmp_path: Path, run_dir: Path) -> None:
    make_home(run_dir, {"HOME": "/nonexistent", "GEMINI_CLI_HOME": str(tmp_path / "fresh")})
    assert sorted(path.name for path in (tmp_path / "fresh" / ".gemini").iterdir()) == ["history", "tmp"]


def test_comments_in_settings_are_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{ // mine\n "url": "https://x.example//y", /* more\n lines */ "n": 1}')
    assert read_settings(path) == {"url": "https://x.example//y", "n": 1}
    path.write_text("")
    assert read_settings(path) == {}


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff"])
def test_unreadable_settings_end_the_run(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(FailureError, match="not readable") as caught:
        read_settings(path)
    assert caught.value.info.code == "gemini_settings"


def test_merging_goes_object_by_object() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2]}) == {"a": {"b": 3, "c": 2}, "d": [2]}


def test_a_session_of_this_minute_gets_another_name_and_older_ones_keep_theirs(user: Path) -> None:
    chats = user / ".gemini" / "tmp" / "ws" / "chats"
    chats.mkdir(parents=True)
    for name in ("session-2026-01-02T03-04-22222222.jsonl", "session-2026-01-02T03-03-22222222.jsonl"):
        (chats / name).write_text(name)
    protect_session({"HOME": str(user)}, SESSION, datetime(2026, 1, 2, 3, 4, 59, tzinfo=UTC))
    names = sorted(path.name for path in chats.iterdir())
    assert len(names) == 2
    assert "session-2026-01-02T03-03-22222222.jsonl" in names
    assert "session-2026-01-02T03-04-22222222.jsonl" not in names
    assert all(name.startswith("session-") and "22222222" in name and name.endswith(".jsonl") for name in names)


LOGIN: dict[str, Any] = {"access_token": "a", "refresh_token": "r"}


@pytest.mark.parametrize(
    ("settings", "stored", "env", "state", "method"),
    [
        ("", None, {}, api.AUTH_STATE_MISSING, ""),
        ("", None, {"GEMINI_API_KEY": "k"}, api.AUTH_STATE_OK, "gemini-api-key"),
        ("gemini-api-key", None, {}, api.AUTH_STATE_MISSING, "gemini-api-key"),
        ("oauth-personal", LOGIN, {"GEMINI_API_KEY": "k"}, api.AUTH_STATE_OK, "oauth-personal"),
        ("oauth-personal", None, {}, api.AUTH_STATE_MISSING, "oauth-personal"),
        ("oauth-personal", {"access_token": "a", "expiry_date": 1}, {}, api.AUTH_STATE_EXPIRED, "oauth-personal"),
        ("vertex-ai", None, {"GOOGLE_API_KEY": "k"}, api.AUTH_STATE_OK, "vertex-ai"),
        ("vertex-ai", None, {"GOOGLE_CLOUD_PROJECT": "p"}, api.AUTH_STATE_MISSING, "vertex-ai"),
        ("compute-default-credentials", None, {}, api.AUTH_STATE_UNKNOWN, "compute-default-credentials"),
    ],
)
def test_logins(tmp_path: Path, settings: str, stored: Any, env: dict[str, str], state: int, method: str) -> None:
    config = tmp_path / ".gemini"
    config.mkdir()
    if settings:
        (config / "settings.json").write_text(json.dumps({"security": {"auth": {"selectedType": settings}}}))
    if stored is not None:
        (config / "oauth_creds.json").write_text(json.dumps(stored))
    found = find_login({"HOME": str(tmp_path), **env})
    assert (found.state, found.method) == (state, method)
    assert found.subscription == (method == "oauth-personal")


async def test_to_look_for_it_leaves_nothing_in_the_users_home(tmp_path: Path) -> None:
    """Gemini CLI begins a register of projects whenever it finds none, even if it only prints its version."""
    program = tmp_path / "bin" / "gemini"
    program.parent.mkdir()
    register = '"${GEMINI_CLI_HOME:-$HOME}/.gemini"'
    program.write_text(f"#!/bin/sh\nmkdir -p {register} && : > {register}/projects.json.tmp && echo 0.61.0\n")
    program.chmod(0o755)
    user = tmp_path / "user"
    (user / ".gemini").mkdir(parents=True)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(user), "GEMINI_CLI_HOME": str(user)}
    found = await adapter().detect(api.DetectRequest(env=env))
    assert found.version == "0.61.0"
    assert list((user / ".gemini").iterdir()) == []
