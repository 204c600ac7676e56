"""What the adapter finds out about a Codex, with programs that pretend to be one."""

from pathlib import Path

import pytest
from dragoman.adapters.codex import adapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

PROGRAM = """#!/bin/sh
case "$1" in
    --version) echo codex-cli 0.169.0 ;;
    sandbox) {sandbox} ;;
    login) echo Logged in using ChatGPT >&2 ;;
    debug) echo '{models}' ;;
esac
"""
MODELS = '{"models":[{"slug":"m-1","display_name":"One","visibility":"list"},{"slug":"m-2","visibility":"hide"}]}'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".codex").mkdir()
    return tmp_path


def install(home: Path, *, sandbox: str = "exit 0", models: str = MODELS) -> dict[str, str]:
    """Put a Codex on PATH; return the environment to find it with."""
    program = home / "codex"
    program.write_text(PROGRAM.format(sandbox=sandbox, models=models))
    program.chmod(0o755)
    return {"PATH": f"{home}:/usr/bin:/bin", "HOME": str(home), "CODEX_HOME": str(home / ".codex")}


async def checks(home: Path, env: dict[str, str], **config: bool) -> dict[str, int]:
    asked = api.TestEnvironmentRequest(workspace=api.Workspace(cwd=str(home)), env=env)
    asked.config.update(config)
    return {check.code: check.level for check in await adapter().test_environment(asked)}


async def test_a_sandbox_that_works(home: Path) -> None:
    found = await checks(home, install(home))
    assert found["sandbox_ok"] == pb.SEVERITY_INFO
    assert "sandbox_unavailable" not in found


async def test_a_sandbox_that_does_not(home: Path) -> None:
    found = await checks(home, install(home, sandbox="echo no namespaces >&2; exit 1"))
    assert found["sandbox_unavailable"] == pb.SEVERITY_WARNING


async def test_the_bypass_needs_no_sandbox(home: Path) -> None:
    found = await checks(home, install(home, sandbox="exit 1"), dangerouslyBypassApprovalsAndSandbox=True)
    assert found["approvals_bypassed"] == pb.SEVERITY_WARNING
    assert "sandbox_unavailable" not in found


async def test_the_models_it_lists(home: Path) -> None:
    listed = await adapter().list_models(api.ListModelsRequest(env=install(home)))
    assert listed.source == api.MODEL_SOURCE_AGENT
    assert [(model.id, model.label) for model in listed.models] == [("m-1", "One")]


@pytest.mark.parametrize("models", ["nonsense", "[]", '{"models":[7]}', '{"models":[]}'])
async def test_a_list_that_is_none_leaves_the_known_ones(home: Path, models: str) -> None:
    listed = await adapter().list_models(api.ListModelsRequest(env=install(home, models=models)))
    assert listed.source == api.MODEL_SOURCE_STATIC
    assert listed.models


@pytest.mark.parametrize(
    ("config", "state"),
    [
        ('model_provider = "own"\n[model_providers.own]\nenv_key = "OWN_KEY"\n', api.AUTH_STATE_MISSING),
        ('model_provider = "own"\n[model_providers.own]\nname = "own"\n', api.AUTH_STATE_UNKNOWN),
        ('model_provider = "openai"\n', api.AUTH_STATE_OK),
        ("this is no toml", api.AUTH_STATE_OK),
    ],
)
async def test_a_login_as_the_settings_need_it(home: Path, config: str, state: api.AuthState.ValueType) -> None:
    env = install(home)
    (home / ".codex" / "config.toml").write_text(config)
    found = await adapter().auth(str(home / "codex"), env)
    assert found.state == state


async def test_without_its_directory_it_was_never_logged_in(home: Path) -> None:
    found = await adapter().auth(str(home / "codex"), {**install(home), "CODEX_HOME": str(home / "none")})
    assert found.state == api.AUTH_STATE_MISSING
