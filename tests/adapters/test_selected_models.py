"""The model and provider that an agent's own files and variables select, as Detect reports them."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from dragoman.sdk import CommandLineAdapter
from dragoman.sdk.detection import SelectedModel
from dragoman.v1 import adapter_pb2 as api
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Files = dict[str, str]

CASES: list[tuple[str, Files, dict[str, str], tuple[str, str]]] = [
    ("codex", {".codex/config.toml": 'model = "m-1"'}, {}, ("m-1", "openai")),
    ("codex", {".codex/config.toml": 'model = "m-1"\nmodel_provider = "own"'}, {}, ("m-1", "own")),
    (
        "codex",
        {".codex/config.toml": 'model = "m-1"\nprofile = "p"\n[profiles.p]\nmodel = "m-2"\nmodel_provider = "own"'},
        {},
        ("m-2", "own"),
    ),
    ("claude_code", {".claude/settings.json": '{"model": "opus"}'}, {}, ("opus", "anthropic")),
    ("claude_code", {".claude/settings.json": '{"model": "opus"}'}, {"ANTHROPIC_MODEL": "m-1"}, ("m-1", "anthropic")),
    ("claude_code", {".claude/settings.json": '{"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}'}, {}, ("", "bedrock")),
    ("claude_code", {}, {}, ("", "")),
    ("gemini_cli", {".gemini/settings.json": '{"model": {"name": "m-1"}}'}, {}, ("m-1", "google")),
    ("gemini_cli", {".gemini/settings.json": "no JSON"}, {}, ("", "")),
    ("gemini_cli", {}, {"GEMINI_MODEL": "m-2"}, ("m-2", "google")),
    ("qwen", {".qwen/settings.json": '{"model": {"name": "m-1"}}'}, {}, ("m-1", "")),
    (
        "qwen",
        {".qwen/settings.json": '{"model": {"name": "m-1"}, "security": {"auth": {"selectedType": "qwen-oauth"}}}'},
        {},
        ("m-1", "qwen"),
    ),
    ("opencode", {".config/opencode/opencode.json": '{"model": "anthropic/m/1"} // mine'}, {}, ("m/1", "anthropic")),
    ("pi", {".pi/agent/settings.json": '{"defaultModel": "m-1", "defaultProvider": "own"}'}, {}, ("m-1", "own")),
    ("copilot", {".copilot/config.json": '{"model": "m-1"}'}, {}, ("m-1", "github")),
    ("copilot", {}, {"COPILOT_MODEL": "m-2", "COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:9"}, ("m-2", "openai")),
    (
        "openclaw",
        {".openclaw/openclaw.json": '{"agents": {"defaults": {"model": {"primary": "own/m-1"}}}}'},
        {},
        ("m-1", "own"),
    ),
    ("openclaw", {".openclaw/openclaw.json": '{"agents": {"defaults": {"model": "own/m-2"}}}'}, {}, ("m-2", "own")),
    ("cursor", {}, {}, ("", "")),
]
FILES = sorted({(name, path) for name, files, _, _ in CASES for path in files})


def adapter_of(name: str) -> CommandLineAdapter:
    found = import_module(f"dragoman.adapters.{name}").adapter()
    assert isinstance(found, CommandLineAdapter)
    return found


def lay_out(home: Path, files: Files) -> None:
    for name, content in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.parametrize(("name", "files", "env", "expected"), CASES)
def test_what_is_selected(
    name: str, files: Files, env: dict[str, str], expected: tuple[str, str], tmp_path: Path
) -> None:
    lay_out(tmp_path, files)
    found = adapter_of(name).selected_model({"HOME": str(tmp_path), **env})
    assert (found.model, found.provider) == expected


@pytest.mark.parametrize(("name", "path"), FILES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_content_of_a_file_fails_detection(name: str, path: str, data: st.DataObject, tmp_path: Path) -> None:
    names = st.sampled_from(("model", "name", "primary", "agents", "defaults", "env", "profile", "profiles"))
    values = st.recursive(
        st.none() | st.booleans() | st.text(max_size=8) | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )
    content = data.draw(st.binary(max_size=64) | values.map(lambda value: json.dumps(value).encode()))
    target = tmp_path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    detection = api.Detection()
    adapter_of(name).selected_model({"HOME": str(tmp_path)}).add_to(detection)
    assert detection.model.isprintable()
    assert len(detection.model.encode()) <= 256


def test_texts_that_are_no_names_are_left_out() -> None:
    detection = api.Detection()
    SelectedModel("m\x1b[31m", "x" * 257).add_to(detection)
    assert detection == api.Detection()


async def test_detect_reports_it(tmp_path: Path) -> None:
    lay_out(tmp_path, {".codex/config.toml": 'model = "m-1"'})
    found = await adapter_of("codex").detect(api.DetectRequest(env={"HOME": str(tmp_path), "PATH": str(tmp_path)}))
    assert (found.model, found.provider) == ("m-1", "openai")
