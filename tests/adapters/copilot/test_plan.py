"""From a request to Copilot's command line and the options of its session."""

from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.copilot.plan import BASE, begin, plan_run, session_options
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk.run import INTERRUPT
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.copilot.replay import FORKED, RESUMED, job, message_in
from tests.adapters.jobs import OLD_ID

OWN_MODEL = {
    "COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:1/v1",
    "COPILOT_PROVIDER_TYPE": "azure",
    "COPILOT_PROVIDER_API_KEY": "sk-fake",
    "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "1000",
    "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "many",
    "COPILOT_PROVIDER_AZURE_API_VERSION": "2024-10-21",
    "COPILOT_PROVIDER_HEADERS": "X-Tenant: a:b\\nX-Other:c\nnonsense",
    "COPILOT_MODEL": "theirs",
}


def test_the_command_line() -> None:
    plan = plan_run(job(config={"extraArgs": ["--log-level", "debug"]}))
    assert plan.argv == ("/opt/copilot", *BASE, "--log-level", "debug")
    assert plan.framing == "content-length"
    assert plan.keep_stdin_open
    assert plan.env == {"COPILOT_AUTO_UPDATE": "false"}
    assert plan.cancel == INTERRUPT
    assert message_in(plan.stdin) == {"jsonrpc": "2.0", "id": 1, "method": "connect", "params": {}}
    assert plan.stdin == begin()[1]


def test_the_prompt_is_never_on_the_command_line() -> None:
    assert not any("Do it." in word for word in plan_run(job()).argv)


def test_what_is_done_with_a_session_is_noted() -> None:
    assert plan_run(job()).notes == ()
    assert plan_run(job(session=RESUMED)).notes == (f"resumes session {OLD_ID}",)
    assert plan_run(job(session=FORKED)).notes == (f"copies session {OLD_ID}",)


def test_the_least_options() -> None:
    assert session_options(job(), {}) == {
        "clientName": "dragoman",
        "workingDirectory": "/",
        "streaming": True,
        "includeSubAgentStreamingEvents": True,
        "requestPermission": True,
        "requestUserInput": False,
        "enableConfigDiscovery": True,
        "envValueMode": "direct",
        "mcpServers": {},
        "additionalDirectories": [],
        "skillDirectories": [],
        "excludedTools": [],
    }


def test_words_go_behind_copilots_own() -> None:
    run_job = job(system_prompt="You are Ada.", instructions=api.Instructions(text="Be brief."))
    message = session_options(run_job, {})["systemMessage"]
    assert isinstance(message, dict)
    assert message["mode"] == "append"
    assert str(message["content"]).startswith("You are Ada.\n\nBe brief.")


@pytest.mark.parametrize(
    ("fields", "config", "key", "value"),
    [
        ({"model": "gpt-5"}, {}, "model", "gpt-5"),
        ({}, {"model": "gpt-5"}, "model", "gpt-5"),
        ({}, {"effort": "high"}, "reasoningEffort", "high"),
        ({}, {"agent": "reviewer"}, "agent", "reviewer"),
        ({}, {"addDirs": ["/srv"]}, "additionalDirectories", ["/srv"]),
        ({}, {"excludedTools": ["bash"]}, "excludedTools", ["bash"]),
        ({"permissions": pb.Permissions(interactive=True)}, {}, "requestUserInput", True),
    ],
)
def test_a_field_becomes_an_option(fields: Any, config: Any, key: str, value: Any) -> None:
    assert session_options(job(config=config, **fields), {})[key] == value


def test_a_model_of_ones_own() -> None:
    options = session_options(job(), OWN_MODEL)
    assert options["model"] == "theirs"
    assert options["provider"] == {
        "type": "azure",
        "baseUrl": "http://127.0.0.1:1/v1",
        "apiKey": "sk-fake",
        "maxPromptTokens": 1000,
        "azure": {"apiVersion": "2024-10-21"},
        "headers": {"X-Tenant": "a:b", "X-Other": "c"},
    }
    assert session_options(job(model="ours"), OWN_MODEL)["model"] == "ours"
    assert "provider" not in session_options(job(), {"COPILOT_PROVIDER_API_KEY": "sk-fake"})


def test_tool_servers() -> None:
    program = api.McpServer(name="files", stdio=api.McpStdio(command="/bin/x", args=["-y"], env={"A": "b"}))
    remote = api.McpServer(name="web", http=api.McpHttp(url="https://x.example", headers={"K": "v"}))
    assert session_options(job(mcp_servers=[program, remote]), {})["mcpServers"] == {
        "files": {"type": "local", "command": "/bin/x", "args": ["-y"], "env": {"A": "b"}, "tools": ["*"]},
        "web": {"type": "http", "url": "https://x.example", "headers": {"K": "v"}, "tools": ["*"]},
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "  "},
        {"permissions": pb.Permissions(native_mode="autopilot")},
        {"mcp_servers": [api.McpServer(name="x")]},
        {"mcp_servers": [api.McpServer(stdio=api.McpStdio(command="/bin/x"))]},
    ],
)
def test_what_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DragomanError) as caught:
        job(**fields)
    assert caught.value.reason == Reason.INVALID_REQUEST


def test_no_agent_is_needed_to_plan(tmp_path: Path) -> None:
    assert session_options(job(str(tmp_path)), {})["workingDirectory"] == str(tmp_path)
