"""From a request to how Codex is started and what it is asked."""

import json
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.plan import access, digest, plan_run, thread_params, turn_params
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.codex.replay import job, request
from tests.adapters.jobs import OLD_ID

ALLOW, DENY = pb.PERMISSION_DECISION_ALLOW, pb.PERMISSION_DECISION_DENY
SKILL = api.Skill(name="demo", files=api.SkillFiles(content={"SKILL.md": b"---\nname: demo\n---\nDo so.\n"}))


def overrides(config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    params = thread_params(job(request(config, **fields)))["config"]
    assert isinstance(params, dict)
    assert params.pop("features.unbounded_connection_retries") is False
    assert params.pop("features.step_model_switching") is True
    assert params.pop("suppress_unstable_features_warning") is True
    return dict(params)


def test_the_app_server_gets_nothing_by_its_arguments() -> None:
    run_request = request({"effort": "high"}, model="m-1", system_prompt="You are Ada.", skills=[SKILL])
    plan = plan_run(job(run_request), adapter().spec.version)
    assert plan.argv == ("/opt/codex", "app-server")
    assert plan.keep_stdin_open
    assert (plan.files, plan.env) == ({}, {})
    first = json.loads(plan.stdin)
    assert (first["method"], first["params"]["clientInfo"]["name"]) == ("initialize", "dragoman")


def test_it_is_stopped_by_its_own_word_first() -> None:
    first, last = plan_run(job(), adapter().spec.version).cancel
    assert (first.interrupts, first.signal, last.signal) == (True, None, SIGTERM)


@pytest.mark.parametrize(
    ("permissions", "config", "expected"),
    [
        (pb.Permissions(), {}, ("on-request", "read-only")),
        (pb.Permissions(interactive=True), {}, ("on-request", "read-only")),
        (pb.Permissions(auto_approve=True), {}, ("on-request", "danger-full-access")),
        (pb.Permissions(auto_approve=True), {"sandbox": "workspace-write"}, ("on-request", "workspace-write")),
        (pb.Permissions(default_decision=ALLOW), {}, ("on-request", "read-only")),
        (pb.Permissions(default_decision=DENY), {}, ("untrusted", "read-only")),
        (pb.Permissions(rules=[pb.PermissionRule(decision=DENY)]), {}, ("untrusted", "read-only")),
        (pb.Permissions(rules=[pb.PermissionRule(decision=ALLOW)]), {}, ("on-request", "read-only")),
        (pb.Permissions(native_mode="never"), {}, ("never", "read-only")),
        (pb.Permissions(), {"sandbox": "workspace-write"}, ("on-request", "workspace-write")),
        (pb.Permissions(), {"dangerouslyBypassApprovalsAndSandbox": True}, ("never", "danger-full-access")),
        (pb.Permissions(), {"dangerouslyBypassApprovalsAndSandbox": False}, ("on-request", "read-only")),
    ],
)
def test_who_decides(permissions: pb.Permissions, config: dict[str, Any], expected: tuple[str, str]) -> None:
    run_job = job(request(config, permissions=permissions))
    assert access(run_job) == expected
    params = thread_params(run_job)
    assert (params["approvalPolicy"], params["sandbox"]) == (expected[0], "read-only")
    assert params["approvalsReviewer"] == "user", "or a model of Codex's would answer in place of the policy"
    turn = turn_params(run_job, OLD_ID).get("sandboxPolicy")
    types = {"danger-full-access": "dangerFullAccess", "workspace-write": "workspaceWrite"}
    assert (turn["type"] if isinstance(turn, dict) else None) == types.get(expected[1])
    assert ("approvals_bypassed" in dict(plan_run(run_job, adapter().spec.version).notices)) == bool(
        config.get("dangerouslyBypassApprovalsAndSandbox")
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"search": True}, {"web_search": "live"}),
        ({"search": False}, {"web_search": "disabled"}),
    ],
)
def test_settings_for_the_run(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert overrides(config) == expected


@pytest.mark.parametrize("network", [True, False])
def test_the_sandbox_round_the_workspace(tmp_path: Path, network: bool) -> None:
    workspace = api.Workspace(cwd="/", additional_directories=[str(tmp_path)])
    config = {"sandbox": "workspace-write", "networkAccess": network}
    params = turn_params(job(request(config, workspace=workspace)), OLD_ID)["sandboxPolicy"]
    assert isinstance(params, dict)
    assert (params["writableRoots"], params["networkAccess"]) == ([str(tmp_path)], network)


def test_questions_only_in_interactive_runs() -> None:
    assert overrides(permissions=pb.Permissions(interactive=True))["features.default_mode_request_user_input"] is True


def test_tool_servers() -> None:
    stdio = api.McpServer(name="a", stdio=api.McpStdio(command="/bin/a", args=["-x"], env={"TOKEN": "t"}))
    http = api.McpServer(name="b", http=api.McpHttp(url="https://b.example", headers={"X-Key": "k"}))
    assert overrides(mcp_servers=[stdio, http]) == {
        "mcp_optional_startup_grace_ms": 0,
        "mcp_servers.a": {"command": "/bin/a", "args": ["-x"], "env": {"TOKEN": "t"}},
        "mcp_servers.b": {"url": "https://b.example", "http_headers": {"X-Key": "k"}},
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"effort": "high"}, {"effort": "high"}),
        ({"effort": "high", "modelReasoningEffort": "low"}, {"effort": "low"}),
        ({"effort": ""}, {}),
        ({"reasoningSummary": "auto"}, {"summary": "auto"}),
        ({"outputSchema": {"type": "object"}}, {"outputSchema": {"type": "object"}}),
    ],
)
def test_the_turn(config: dict[str, Any], expected: dict[str, Any]) -> None:
    params = turn_params(job(request(config)), OLD_ID)
    assert params == {"threadId": OLD_ID, "input": [{"type": "text", "text": "Do it."}], **expected}


def test_instructions_come_after_the_system_prompt() -> None:
    run_job = job(request(system_prompt="You are Ada.", instructions=api.Instructions(text="Be brief.")))
    assert thread_params(run_job)["developerInstructions"] == "You are Ada.\n\nBe brief."
    assert digest("a") != digest("b")
    assert digest("") == ""


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("prompt", {"prompt": "  "}),
        ("model", {"model": "--help"}),
        ("permissions.native_mode", {"permissions": pb.Permissions(native_mode="yolo")}),
        ("mcp_servers[0].name", {"mcp_servers": [api.McpServer(name="a.b", stdio=api.McpStdio(command="x"))]}),
        ("mcp_servers[0].name", {"mcp_servers": [api.McpServer(name="a" * 65, stdio=api.McpStdio(command="x"))]}),
        ("mcp_servers[0]", {"mcp_servers": [api.McpServer(name="a")]}),
        ("config.maxTurns", {"config": {"maxTurns": 3}}),
        ("config.transport", {"config": {"transport": "exec"}}),
    ],
)
def test_what_is_refused(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(DragomanError) as caught:
        adapter().accept(request(fields.pop("config", None), **fields))
    assert caught.value.reason == Reason.INVALID_REQUEST
    assert field in str(caught.value)


@pytest.mark.parametrize(("text", "expected"), [(OLD_ID, True), ("yesterday", False), ("", False), ("--last", False)])
def test_the_shape_of_an_id(text: str, expected: bool) -> None:
    assert adapter().is_session_id(text) is expected
