"""What a request comes down to, and every way in which one can be wrong."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.clocks import ClockLimits
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import AdapterInfo, Settings, capabilities
from dragoman.sdk._encoding.schema import ConfigSchema
from dragoman.sdk._request.settings import limits_in_force, read_config, read_settings
from dragoman.sdk.spec import common_properties
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, struct_pb2

from tests.sdk.schemas import config_schema

FEATURES = sorted(set(pb.Feature.values()) - {pb.FEATURE_UNSPECIFIED})
SCHEMA = ConfigSchema(config_schema(common_properties()))


def info(*missing: pb.Feature.ValueType) -> AdapterInfo:
    return AdapterInfo(
        type="agent",
        label="Agent",
        version="1",
        configuration_doc="",
        config_schema=SCHEMA.schema,
        capabilities=capabilities(*(feature for feature in FEATURES if feature not in missing)),
    )


def request(cwd: Path | str = "/", **config: Any) -> api.ExecuteRequest:
    run_request = api.ExecuteRequest(workspace=api.Workspace(cwd=str(cwd)))
    run_request.config.update(config)
    return run_request


def read(asked: api.ExecuteRequest, *missing: pb.Feature.ValueType) -> Settings:
    return read_settings(asked, info(*missing), SCHEMA)


def seconds(value: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(int(value * 1e9))
    return duration


# Paperclip's adapterConfig.


def test_paperclips_adapter_config_fits_unchanged(tmp_path: Path) -> None:
    instructions = tmp_path / "AGENTS.md"
    instructions.write_text("be brief")
    config: dict[str, Any] = {
        "cwd": str(tmp_path),
        "promptTemplate": "You are {{agent.name}}",
        "bootstrapPromptTemplate": "Welcome",
        "model": "opus",
        "effort": "high",
        "env": {"A": "1"},
        "extraArgs": ["--flag", "value"],
        "timeoutSec": 30,
        "graceSec": 2.5,
        "instructionsFilePath": str(instructions),
        "maxTurns": 7,
        "command": "/usr/bin/agent",
        "dangerouslySkipPermissions": True,
        "dangerouslyBypassApprovalsAndSandbox": False,
    }
    assert set(config) == set(common_properties()) - {"args"}
    asked = api.ExecuteRequest()
    asked.config.update(config)
    settings = read(asked)
    assert settings.config == config
    assert type(settings.config["maxTurns"]) is type(settings.config["timeoutSec"]) is int, "5, not 5.0"
    assert settings.cwd == str(tmp_path)
    assert (settings.model, settings.command) == ("opus", "/usr/bin/agent")
    assert settings.extra_args == ("--flag", "value")
    assert settings.config_env == {"A": "1"}
    assert (settings.clocks.wall_s, settings.grace_s, settings.max_turns) == (30.0, 2.5, 7)
    assert settings.instructions is not None
    assert settings.instructions.with_directive() == (
        f"be brief\n\nResolve relative paths in these instructions from {tmp_path}."
    )


def test_the_agents_stored_config_is_used_where_the_request_has_none() -> None:
    asked = api.ExecuteRequest(workspace=api.Workspace(cwd="/"))
    asked.agent.adapter_config.update({"model": "stored"})
    assert read(asked).model == "stored"
    asked.config.SetInParent()
    assert read_config(asked) == {}
    assert read(asked).model == "", "an empty config is a config"


def test_a_problem_and_its_hint_are_two_sentences_or_two_clauses() -> None:
    with pytest.raises(DragomanError) as missing:
        read(request("/nowhere/at/all"))
    assert "does not exist on the adapter's machine. Create it" in missing.value.violations[0].description
    with pytest.raises(DragomanError) as unknown:
        read(request("/", modell="x"))
    assert "is not known; did you mean model?" in unknown.value.violations[0].description


def test_args_are_extra_args_by_another_name() -> None:
    assert read(request(args=["a"])).extra_args == ("a",)
    assert read(request(args=["a"], extraArgs=["b"])).extra_args == ("b",)


def test_a_field_of_the_request_wins_over_its_key(tmp_path: Path) -> None:
    asked = request(tmp_path, model="config", timeoutSec=30, graceSec=20, instructionsFilePath="/nowhere")
    asked.config.update({"cwd": "/"})
    asked.model = "request"
    asked.limits.wall.CopyFrom(seconds(5))
    asked.limits.grace.CopyFrom(seconds(0))
    asked.instructions.text = "from the request"
    settings = read(asked)
    assert settings.cwd == str(tmp_path)
    assert settings.model == "request"
    assert settings.clocks.wall_s == 5
    assert settings.grace_s == 0, "zero is a grace: killed at once"
    assert settings.instructions is not None
    assert settings.instructions.text == settings.instructions.with_directive() == "from the request"


def test_defaults_of_what_is_absent() -> None:
    settings = read(request())
    assert settings.clocks == ClockLimits()
    assert settings.grace_s == 15
    assert (settings.model, settings.command, settings.extra_args, settings.max_turns) == ("", "", (), None)
    assert (settings.brand_name, settings.env_prefix) == ("Dragoman", "DRAGOMAN")
    assert settings.output_bytes is None
    assert settings.instructions is None
    assert limits_in_force(settings) == pb.Limits(grace=seconds(15))


def test_zero_is_no_limit() -> None:
    asked = request(timeoutSec=30, maxTurns=0)
    for name in ("start_up", "idle", "tool_call", "wall"):
        getattr(asked.limits, name).SetInParent()
    settings = read(asked)
    assert settings.clocks == ClockLimits()
    assert settings.max_turns is None


def test_the_limits_in_force_are_those_of_request_and_config_together() -> None:
    asked = request(timeoutSec=1.5, graceSec=3)
    asked.limits.idle.CopyFrom(seconds(2.25))
    asked.limits.tool_call.CopyFrom(seconds(600))
    asked.limits.output_bytes = 1000
    assert limits_in_force(read(asked)) == pb.Limits(
        idle=seconds(2.25), tool_call=seconds(600), wall=seconds(1.5), grace=seconds(3), output_bytes=1000
    )


# What is wrong.


def skill(**fields: Any) -> api.Skill:
    return api.Skill(name=fields.pop("name", "s"), **fields)


FILES = api.SkillFiles(content={"SKILL.md": b"# s"})


def nan() -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.fields["n"].number_value = float("nan")
    return struct


WRONG: dict[str, tuple[Callable[[api.ExecuteRequest], object], str]] = {
    "no cwd": (lambda r: r.ClearField("workspace"), "workspace.cwd"),
    "empty cwd": (lambda r: r.workspace.Clear(), "workspace.cwd"),
    "relative cwd": (lambda r: setattr(r.workspace, "cwd", "a/b"), "workspace.cwd"),
    "cwd that is not there": (lambda r: setattr(r.workspace, "cwd", "/nowhere/at/all"), "workspace.cwd"),
    "cwd that is a file": (lambda r: setattr(r.workspace, "cwd", "/etc/passwd"), "workspace.cwd"),
    "cwd with a zero byte": (lambda r: setattr(r.workspace, "cwd", "/a\0b"), "workspace.cwd"),
    "unknown key": (lambda r: r.config.update({"promptTemplat": "x"}), "config.promptTemplat"),
    "wrong type": (lambda r: r.config.update({"maxTurns": "many"}), "config.maxTurns"),
    "no whole number": (lambda r: r.config.update({"maxTurns": 1.5}), "config.maxTurns"),
    "negative": (lambda r: r.config.update({"timeoutSec": -1}), "config.timeoutSec"),
    "variable of another type": (lambda r: r.config.update({"env": {"A": 1}}), "config.env.A"),
    "variable with =": (lambda r: r.config.update({"env": {"A=B": "x"}}), "config.env"),
    "zero byte in a variable": (lambda r: r.config.update({"env": {"A": "x\0y"}}), "config.env.A"),
    "zero byte in an argument": (lambda r: r.config.update({"extraArgs": ["a", "b\0"]}), "config.extraArgs[1]"),
    "zero byte in the command": (lambda r: r.config.update({"command": "\0"}), "config.command"),
    "not a number": (lambda r: r.config.CopyFrom(nan()), "config"),
    "not a number elsewhere": (lambda r: r.context.extra.CopyFrom(nan()), "context.extra"),
    "not a number of the company": (lambda r: r.company.CopyFrom(nan()), "company"),
    "not a number of the run": (lambda r: r.run.CopyFrom(nan()), "run"),
    "not a number stored": (lambda r: r.agent.adapter_config.CopyFrom(nan()), "agent.adapter_config"),
    "request variable with =": (lambda r: r.env.update({"A=B": "x"}), 'env["A=B"]'),
    "request variable without name": (lambda r: r.env.update({"": "x"}), 'env[""]'),
    "request variable with a zero byte": (lambda r: r.env.update({"A": "\0"}), "env.A"),
    "token with a zero byte": (lambda r: setattr(r, "auth_token", "a\0"), "auth_token"),
    "task with a zero byte": (lambda r: setattr(r.context, "task_id", "a\0"), "context.task_id"),
    "issues with a zero byte": (lambda r: r.context.linked_issue_ids.extend(["a", "\0"]), "context.linked_issue_ids"),
    "prefix": (lambda r: setattr(r.brand, "env_prefix", "lower"), "brand.env_prefix"),
    "a vendor's prefix": (lambda r: setattr(r.brand, "env_prefix", "ANTHROPIC"), "brand.env_prefix"),
    "fresh that is false": (lambda r: setattr(r.session, "fresh", False), "session.fresh"),
    "a fork of nothing": (lambda r: setattr(r.session, "fork", True), "session.fork"),
    "a fork of a fresh one": (
        lambda r: r.session.MergeFrom(api.SessionSelector(fresh=True, fork=True)),
        "session.fork",
    ),
    "directory that is not there": (
        lambda r: r.workspace.additional_directories.extend(["/", "/nowhere"]),
        "workspace.additional_directories[1]",
    ),
    "instructions by a relative path": (lambda r: setattr(r.instructions, "file", "a.md"), "instructions.file"),
    "instructions that are not there": (
        lambda r: setattr(r.instructions, "file", "/nowhere.md"),
        "instructions.file",
    ),
    "instructions that are a directory": (lambda r: setattr(r.instructions, "file", "/etc"), "instructions.file"),
    "instructions without end": (lambda r: setattr(r.instructions, "file", "/dev/zero"), "instructions.file"),
    "instructions of the config": (
        lambda r: r.config.update({"instructionsFilePath": "/nowhere.md"}),
        "config.instructionsFilePath",
    ),
    "relative instructions of the config": (
        lambda r: r.config.update({"instructionsFilePath": "a.md"}),
        "config.instructionsFilePath",
    ),
    "skill without source": (lambda r: r.skills.append(skill()), "skills[0]"),
    "skill with a path for a name": (lambda r: r.skills.append(skill(name="../x", files=FILES)), "skills[0]"),
    "skill without its document": (lambda r: r.skills.append(skill(files=api.SkillFiles())), "skills[0]"),
    "skill that is not there": (lambda r: r.skills.append(skill(directory="/nowhere")), "skills[0]"),
    "two skills of one name": (lambda r: r.skills.extend([skill(files=FILES)] * 2), "skills[1].name"),
}
for name in ("start_up", "idle", "tool_call", "wall", "grace"):
    WRONG[f"negative {name}"] = (
        lambda r, name=name: getattr(r.limits, name).FromSeconds(-1),  # type: ignore[misc]  # bound now
        f"limits.{name}",
    )
WRONG["endless timeoutSec"] = (lambda r: r.config.update({"timeoutSec": 1e300}), "config.timeoutSec")
WRONG["endless orphan_after"] = (lambda r: r.orphan_after.FromSeconds(10**11), "orphan_after")
WRONG["negative orphan_after"] = (lambda r: r.orphan_after.FromSeconds(-1), "orphan_after")
WRONG["negative request_timeout"] = (
    lambda r: r.permissions.request_timeout.FromSeconds(-1),
    "permissions.request_timeout",
)


INTO_VARIABLES = """
    agent.id agent.company_id api_url auth_token context.task_id context.issue_id context.wake_reason
    context.wake_comment_id context.comment_id context.approval_id context.approval_status
"""


@pytest.mark.parametrize("path", INTO_VARIABLES.split())
def test_no_variable_of_the_run_has_a_zero_byte(path: str) -> None:
    asked = request()
    folder, _, name = path.rpartition(".")
    setattr(getattr(asked, folder) if folder else asked, name, "a\0")
    with pytest.raises(DragomanError) as caught:
        read(asked)
    assert [(item.path, item.description) for item in caught.value.violations] == [
        (path, "must not contain a zero byte")
    ]


@pytest.mark.parametrize("name", ["reason", "handover"])
def test_what_goes_with_a_fresh_session_alone(name: str) -> None:
    asked = request()
    setattr(asked.session, name, "why")
    with pytest.raises(DragomanError) as caught:
        read(asked)
    assert [(item.path, item.description) for item in caught.value.violations] == [
        (f"session.{name}", "goes with session.fresh")
    ]
    asked.session.fresh = True
    read(asked)


@pytest.mark.parametrize("case", WRONG)
def test_each_wrong_field_is_named(case: str) -> None:
    spoil, path = WRONG[case]
    asked = request()
    spoil(asked)
    with pytest.raises(DragomanError) as caught:
        read(asked)
    error = caught.value
    assert error.reason is Reason.INVALID_REQUEST
    assert [item.path for item in error.violations] == [path]
    assert error.violations[0].description


def test_every_wrong_field_is_reported_at_once() -> None:
    asked = request("relative", maxTurns="x", nonsense=1)
    asked.limits.idle.FromSeconds(-1)
    asked.limits.tool_call.FromSeconds(-1)
    asked.env["A"] = "\0"
    with pytest.raises(DragomanError) as caught:
        read(asked)
    assert {item.path for item in caught.value.violations} == {
        "workspace.cwd",
        "config.maxTurns",
        "config.nonsense",
        "limits.idle",
        "limits.tool_call",
        "env.A",
    }


def test_an_unknown_key_is_reported_with_its_near_name_and_never_with_its_value() -> None:
    with pytest.raises(DragomanError) as caught:
        read(request(promptTemplte="a secret text", modle=5, env={"KEY": 12345678}))
    text = str(caught.value)
    assert "did you mean promptTemplate?" in text
    assert "did you mean model?" in text
    assert "secret" not in text
    assert "12345678" not in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_instructions_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.touch(mode=0o000)
    with pytest.raises(DragomanError):
        read(request(instructionsFilePath=str(file)))


# What an adapter lacks.

HANDLE = api.SessionSelector(handle=pb.SessionHandle(native_id="x"))
FORK = api.SessionSelector(handle=pb.SessionHandle(native_id="x"), fork=True)
APPROVED = pb.Permissions(auto_approve=True)
LACKING: dict[str, tuple[Callable[[api.ExecuteRequest], object], pb.Feature.ValueType, str]] = {
    "skills": (lambda r: r.skills.append(skill(files=FILES)), pb.FEATURE_SKILLS, "skills"),
    "mcp_servers": (lambda r: r.mcp_servers.add(name="m"), pb.FEATURE_MCP_SERVERS, "mcp_servers"),
    "system_prompt": (lambda r: setattr(r, "system_prompt", "x"), pb.FEATURE_SYSTEM_PROMPT, "system_prompt"),
    "instructions": (lambda r: setattr(r.instructions, "text", "x"), pb.FEATURE_INSTRUCTIONS, "instructions"),
    "model": (lambda r: setattr(r, "model", "x"), pb.FEATURE_MODEL_CHOICE, "model"),
    "rules": (lambda r: r.permissions.rules.add(), pb.FEATURE_PERMISSION_REQUESTS, "permissions"),
    "mode": (lambda r: setattr(r.permissions, "native_mode", "x"), pb.FEATURE_PERMISSION_REQUESTS, "permissions"),
    "approval": (
        lambda r: setattr(r.permissions, "auto_approve", True),
        pb.FEATURE_PERMISSION_REQUESTS,
        "permissions",
    ),
    "resume": (lambda r: r.session.CopyFrom(HANDLE), pb.FEATURE_RESUME, "session.handle"),
    "fork": (lambda r: r.session.CopyFrom(FORK), pb.FEATURE_FORK, "session.fork"),
}


@pytest.mark.parametrize("case", LACKING)
def test_a_set_field_without_its_capability_is_refused(case: str) -> None:
    put, feature, path = LACKING[case]
    asked = request()
    put(asked)
    read(asked)
    with pytest.raises(DragomanError) as caught:
        read(asked, feature)
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert [item.path for item in caught.value.violations] == [path]


def test_any_adapter_accepts_interactive_runs() -> None:
    asked = request()
    asked.permissions.interactive = True
    assert read(asked, pb.FEATURE_PERMISSION_REQUESTS).permissions.interactive


def test_without_a_workspace_no_cwd_is_needed() -> None:
    assert read(api.ExecuteRequest(), pb.FEATURE_WORKSPACE).cwd == ""


def test_skills_are_read_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("---\nname: s\n---\n# do it")
    asked = request()
    asked.skills.append(skill(directory=str(tmp_path)))
    asked.skills.append(skill(name="t", files=FILES))
    one, two = read(asked).skills
    assert (one.name, one.directory) == ("s", tmp_path)
    assert (two.name, dict(two.files)) == ("t", {"SKILL.md": b"# s"})


def test_an_adapter_without_questions_can_enforce_permissions_by_leaving_tools_out() -> None:
    asked = request()
    asked.permissions.auto_approve = True
    withholding = info(pb.FEATURE_PERMISSION_REQUESTS)
    withholding.capabilities.permission_mode = pb.PERMISSION_MODE_STRICT
    assert read_settings(asked, withholding, SCHEMA).permissions.auto_approve
