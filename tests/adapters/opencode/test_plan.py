"""From a request to opencode's command line, configuration and permissions."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.opencode import adapter
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk._request.sessions import SessionPlan
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from .planning import NEW_ID, job_of, request

OLD = "ses_0123456789abcdef"
RESUMED = SessionPlan(pb.SESSION_DISPOSITION_RESUME, native_id=OLD)
COPIED = SessionPlan(pb.SESSION_DISPOSITION_FORK, native_id=OLD)

ASKED = {
    "*": "ask",
    "read": {"*": "allow", "*.env": "ask", "*.env.*": "ask", "*.env.example": "allow"},
    "glob": "allow",
    "grep": "allow",
    "list": "allow",
    "lsp": "allow",
    "skill": "allow",
    "todowrite": "allow",
    "bash": "ask",
    "webfetch": "ask",
    "websearch": "ask",
    "doom_loop": "ask",
    "edit": "ask",
    "question": "deny",
    "external_directory": {"*": "ask"},
    "task": {"*": "deny", "general": "ask", "explore": "ask"},
}


def configured(cwd: Path, config: dict[str, Any] | None = None, **fields: Any) -> Any:
    plan = adapter().plan(job_of(request(cwd, config, **fields)))
    return json.loads(plan.env["OPENCODE_CONFIG_CONTENT"])


def test_a_plain_run(tmp_path: Path) -> None:
    plan = adapter().plan(job_of(request(tmp_path, model="anthropic/claude-sonnet-4-5")))
    assert plan.argv == ("/opt/opencode", "acp")
    assert json.loads(plan.stdin)["method"] == "initialize"
    assert plan.keep_stdin_open
    assert plan.files == {}
    assert plan.notices == ()
    assert sorted(plan.env) == [
        "OPENCODE_CONFIG_CONTENT",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_PERMISSION",
        "OPENCODE_SERVER_PASSWORD",
    ]
    assert plan.env["OPENCODE_SERVER_PASSWORD"] == NEW_ID
    assert json.loads(plan.env["OPENCODE_PERMISSION"]) == ASKED


def test_the_configuration_of_a_plain_run(tmp_path: Path) -> None:
    configuration = configured(tmp_path, model="anthropic/claude-sonnet-4-5")
    agents, modes = configuration.pop("agent"), configuration.pop("mode")
    assert configuration == {
        "autoupdate": False,
        "share": "disabled",
        "model": "anthropic/claude-sonnet-4-5",
        "enabled_providers": ["anthropic"],
        "experimental": {"continue_loop_on_deny": True},
    }
    assert agents["title"] == {"disable": True}
    assert agents["build"] == {"permission": ASKED}
    assert agents["plan"] == {"permission": {**ASKED, "edit": "deny"}}
    assert modes == {name: agents[name] for name in ("build", "plan")}


def test_patterns_of_others_come_before_ours_and_the_last_one_wins(tmp_path: Path) -> None:
    """Words replace patterns of the user's files; a pattern of ours would only stand beside them."""
    asked = json.loads(adapter().plan(job_of(request(tmp_path))).env["OPENCODE_PERMISSION"])
    assert {asked[name] for name in ("bash", "edit", "webfetch", "websearch")} == {"ask"}
    assert next(iter(asked)) == "*", "what comes later wins, so that what is for everything comes first"


def test_nested_agents_never_ask(tmp_path: Path) -> None:
    nested = configured(tmp_path)["agent"]["general"]["permission"]
    assert (nested["*"], nested["edit"], nested["bash"], nested["grep"]) == ("deny", "deny", "deny", "allow")
    nested = configured(tmp_path, permissions=pb.Permissions(auto_approve=True))["agent"]["explore"]["permission"]
    assert (nested["*"], nested["edit"], nested["bash"], nested["task"]) == ("allow", "allow", "allow", "deny")


@pytest.mark.parametrize("about", [{"tool_kind": pb.TOOL_KIND_SKILL}, {"tool_name": "skill"}])
def test_a_rule_about_skills_is_asked_about(tmp_path: Path, about: dict[str, Any]) -> None:
    rule = pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY, **about)
    asked = request(tmp_path, permissions=pb.Permissions(rules=[rule]))
    assert json.loads(adapter().plan(job_of(asked)).env["OPENCODE_PERMISSION"])["skill"] == "ask"
    nested = configured(tmp_path, permissions=pb.Permissions(rules=[rule]))["agent"]["general"]["permission"]
    assert nested["skill"] == "deny"


def test_without_a_model_the_makers_own_has_none(tmp_path: Path) -> None:
    configuration = configured(
        tmp_path, {"opencodeConfig": {"provider": {"mine": {"name": "Mine"}, "opencode": {"name": "x"}}}}
    )
    assert "model" not in configuration
    assert "enabled_providers" not in configuration
    assert configuration["provider"] == {"mine": {"name": "Mine"}, "opencode": {"name": "x", "whitelist": []}}


def test_providers_beside_that_of_the_model(tmp_path: Path) -> None:
    configuration = configured(tmp_path, {"model": "openai/gpt-5", "enabledProviders": ["anthropic", "openai"]})
    assert configuration["enabled_providers"] == ["openai", "anthropic"]


def test_the_agent_its_steps_and_more_configuration(tmp_path: Path) -> None:
    more = {"agent": {"review": {"model": "a/b"}}, "experimental": {"mcp_timeout": 5}, "share": "auto"}
    configuration = configured(tmp_path, {"agent": "review", "steps": 7, "opencodeConfig": more})
    assert configuration["agent"]["review"] == {"model": "a/b", "permission": ASKED, "steps": 7}
    assert configuration["experimental"] == {"mcp_timeout": 5, "continue_loop_on_deny": True}
    assert configuration["share"] == "disabled"


def test_own_permissions_and_none(tmp_path: Path) -> None:
    plan = adapter().plan(job_of(request(tmp_path, {"ownPermissions": True})))
    assert "OPENCODE_PERMISSION" not in plan.env
    assert list(json.loads(plan.env["OPENCODE_CONFIG_CONTENT"])["agent"]) == ["title"]
    assert [code for code, _ in plan.notices] == ["permissions_skipped"]
    plan = adapter().plan(job_of(request(tmp_path, {"dangerouslySkipPermissions": True})))
    assert json.loads(plan.env["OPENCODE_PERMISSION"]) == {"*": "allow"}
    assert [code for code, _ in plan.notices] == ["permissions_skipped"]


def test_a_project_that_is_not_trusted(tmp_path: Path) -> None:
    env = adapter().plan(job_of(request(tmp_path, {"projectConfig": False}))).env
    assert env["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"


def test_instructions_skills_and_directories(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    run_request = request(tmp_path, system_prompt="You are Ada.", instructions=api.Instructions(text="Be brief."))
    run_request.workspace.additional_directories.append(str(tmp_path / "more"))
    job = job_of(run_request, skills_dir=Path("/run/dir/skills"))
    plan = adapter().plan(job)
    content = json.loads(plan.env["OPENCODE_CONFIG_CONTENT"])
    assert content["instructions"] == ["/run/dir/instructions.md"]
    assert plan.files["instructions.md"].startswith(b"You are Ada.\n\nBe brief.")
    assert content["skills"] == {"paths": ["/run/dir/skills/.opencode/skills"]}
    outside = json.loads(plan.env["OPENCODE_PERMISSION"])["external_directory"]
    assert outside == {"*": "ask", f"{tmp_path}/more/*": "allow", "/run/dir/skills/*": "allow"}
    conversation = adapter().acp_conversation(job)
    assert conversation.prompt == "Do it.", "instructions are in the configuration"
    assert conversation.additional_directories == ()


@pytest.mark.parametrize("prompt", ["/compact", "  /x y", "\n/x"])
def test_a_slash_is_kept_from_being_a_command(tmp_path: Path, prompt: str) -> None:
    job = job_of(request(tmp_path, prompt=prompt))
    assert adapter().acp_conversation(job).prompt == f"\u200b{prompt}"
    job = job_of(request(tmp_path, {"allowSlashCommands": True}, prompt=prompt))
    assert adapter().acp_conversation(job).prompt == prompt


def test_the_ways_of_a_run(tmp_path: Path) -> None:
    options = adapter().acp_options(job_of(request(tmp_path, {"variant": "high"}, model="openai/gpt-5")))
    assert (options.config_values, options.provider, options.mode) == ({"effort": "high"}, "openai", "")
    plan = pb.Permissions(native_mode="plan")
    assert adapter().acp_options(job_of(request(tmp_path, {"agent": "x"}, permissions=plan))).mode == "plan"


@pytest.mark.parametrize(
    ("config", "fields", "wrong"),
    [
        ({}, {"prompt": "  "}, "prompt"),
        ({}, {"model": "gpt-5"}, "model"),
        ({}, {"model": "-a/b"}, "model"),
        ({}, {"permissions": pb.Permissions(native_mode="--x")}, "permissions.native_mode"),
        ({"variant": "--x"}, {}, "config.variant"),
        ({}, {"env": {"OPENCODE_PERMISSION": "{}"}}, "env.OPENCODE_PERMISSION"),
        ({"env": {"OPENCODE_CONFIG_CONTENT": "{}"}}, {}, "config.env.OPENCODE_CONFIG_CONTENT"),
        ({"opencodeConfig": {"permission": "allow"}}, {}, "config.opencodeConfig.permission"),
        ({}, {"mcp_servers": [api.McpServer(name="a")]}, "mcp_servers[0]"),
        ({"agent": "--x"}, {}, "config.agent"),
        ({"transport": "run"}, {}, "config.transport"),
    ],
)
def test_what_is_refused(tmp_path: Path, config: dict[str, Any], fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(DragomanError) as caught:
        adapter().accept(request(tmp_path, config, **fields))
    assert caught.value.reason == Reason.INVALID_REQUEST
    assert wrong in [violation.path for violation in caught.value.violations]


@pytest.mark.parametrize(
    ("session_id", "is_one"),
    [(OLD, True), ("ses_dfe3c081bffezvj32zIHhUcdUU", True), ("x", False), ("ses_1; rm -rf", False), ("", False)],
)
def test_session_ids(session_id: str, is_one: bool) -> None:
    assert adapter().is_session_id(session_id) == is_one


@pytest.mark.parametrize("mode", ["Plan", "plann", "PLAN", "Build"])
def test_a_mistyped_agent_is_no_agent_with_all_tools(tmp_path: Path, mode: str) -> None:
    run_request = request(tmp_path, permissions=pb.Permissions(native_mode=mode))
    with pytest.raises(DragomanError) as caught:
        adapter().accept(run_request)
    assert caught.value.violations[0].path == "permissions.native_mode"
