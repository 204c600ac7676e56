"""The project's own adapters and its router conform, as far as a deterministic agent can be offered here."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from dragoman.conformance import Options, Report, Verdict
from dragoman.testkit import ModelServer

from tests.agents.http_agent import serving as http_agent
from tests.conformance.patience import WRONG, examined

pytestmark = pytest.mark.timeout(300)

DRAGOMAN = (sys.executable, "-m", "dragoman.cli.main")
PLAIN = '{"command": "{script}", "args": ["--format", "text"]}'
MODEL_API = {
    "ANTHROPIC_BASE_URL": "{model_url}",
    "ANTHROPIC_API_KEY": "not-a-real-key",
    "XDG_STATE_HOME": "{folder}",
}
RUN_BY_OTHERS = {"process", "http", "model_api"}
AGENTS = sorted({point.name for point in entry_points(group="dragoman.adapters")} - RUN_BY_OTHERS)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))


def adapter(name: str) -> tuple[str, ...]:
    return (*DRAGOMAN, "adapter", "serve", name)


def check(report: Report, at_least: int) -> set[str]:
    """Require that nothing failed and that enough was examined; return the reasons of the skips."""
    assert [f"{item.rule.id}: {item.message}" for item in report.outcomes if item.verdict in WRONG] == []
    assert report.count(Verdict.PASSED) >= at_least
    return {item.message for item in report.outcomes if item.verdict is Verdict.SKIPPED}


async def test_process_with_plain_text() -> None:
    check(await examined(Options(command=adapter("process"), config=PLAIN)), 107)


async def test_a_router_in_front_of_process() -> None:
    serve = (*DRAGOMAN, "serve", "--no-detect", "--listen", "{listen}")
    report = await examined(Options(command=serve, adapter="process", config=PLAIN))
    assert report.is_router
    reasons = check(report, 113)
    declared = {
        *(
            f"FEATURE_{name}"
            for name in ("PERMISSION_REQUESTS", "INPUT_REQUESTS", "RESUME", "RESUME_REJECTION", "FORK")
        ),
        *(f"FEATURE_{name}" for name in ("MODEL_CHOICE", "SYSTEM_PROMPT", "INSTRUCTIONS", "SKILLS", "MCP_SERVERS")),
        *(f"FEATURE_{name}" for name in ("MAX_TURNS", "TOOL_START", "TOOL_OUTPUT_DELTAS", "TEXT_DELTAS", "THINKING")),
        *(f"FEATURE_{name}" for name in ("PLAN", "FILE_CHANGES", "SUBAGENTS", "COST", "PER_CALL_USAGE")),
        *(
            "FEATURE_PER_MODEL_USAGE",
            "FEATURE_LOGIN",
            "FEATURE_QUEUE",
            "FEATURE_QUOTA",
            "FEATURE_STEER",
            "PERMISSION_MODE_STRICT",
        ),
        "FEATURE_PERMISSION_REQUESTS or PERMISSION_MODE_STRICT or PERMISSION_MODE_PERMISSIVE",
    }
    assert reasons == {
        *(f"{name} is not declared" for name in declared),
        "FEATURE_UPDATE_MODEL or FEATURE_UPDATE_PERMISSION_MODE is not declared",
        "FEATURE_TOOL_START is not declared, and no tool call is reported",
        "the adapter reports no tokens, and declares no feature that needs them",
        "no tool_call was seen",
        "no tool_call or tool_result was seen",
        "no input_request was seen",
        "no input_accepted was seen",
        "a router begins attempts itself",
        "a router hands live runs to its successor",
        "a router honours these fields",
        "the adapter has no alias",
        "FEATURE_ATTACHMENTS is declared",
        "FEATURE_CHANGES is declared",
        "the instance behind a router may change",
    }


async def test_model_api() -> None:
    report = await examined(
        Options(command=adapter("model_api"), config='{"provider": "anthropic"}', env=MODEL_API, check_s=60)
    )
    assert "neither {script} nor a setting 'command' names the agent's program" in check(report, 86)


async def test_http() -> None:
    async with ModelServer() as model, http_agent(model.url) as (_agent, url):
        config = f'{{"url": "{url}/run", "mode": "stream", "allowedNetworks": ["127.0.0.0/8"]}}'
        check(await examined(Options(command=adapter("http"), config=config, model=model, check_s=60)), 60)


@pytest.mark.parametrize("name", AGENTS)
async def test_an_adapter_without_its_agent(name: str) -> None:
    reasons = check(await examined(Options(command=adapter(name))), 33)
    assert any("no scripted agent is configured" in reason for reason in reasons)
