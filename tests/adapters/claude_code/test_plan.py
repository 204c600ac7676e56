"""From a request to Claude Code's command line: every field and every key of ``config``."""

import json
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import pytest
from dragoman.adapters.claude_code import adapter
from dragoman.adapters.claude_code.plan import BASE, plan_run
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import Plan
from dragoman.sdk._request.sessions import NEW, SessionPlan, plan_session
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import NEW_ID, OLD_ID, job_of
from tests.adapters.jobs import request_of as request

TESTED = "2.1.330"


def planned(run_request: api.ExecuteRequest, session: SessionPlan = NEW, version: str = TESTED, **job: Any) -> Plan:
    facts = {"executable": "/opt/claude", "version": version, **job}
    return plan_run(job_of(adapter(), run_request, session, **facts))


def options(plan: Plan) -> list[str]:
    """Return what comes after the fixed part of the command line, without the session."""
    argv = list(plan.argv)
    assert argv[: 1 + len(BASE)] == ["/opt/claude", *BASE]
    rest = argv[1 + len(BASE) :]
    for fixed in (["--session-id", NEW_ID], ["--system-prompt-snapshot", "off"]):
        start = rest.index(fixed[0])
        assert rest[start : start + 2] == fixed
        del rest[start : start + 2]
    return rest


def test_a_plain_run(tmp_path: Path) -> None:
    plan = planned(request(tmp_path))
    assert options(plan) == ["--permission-mode", "default"]
    assert json.loads(plan.stdin) == {"type": "user", "message": {"role": "user", "content": "Do it."}}
    assert plan.keep_stdin_open
    assert plan.env == {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1", "DISABLE_AUTOUPDATER": "1"}
    assert (plan.files, plan.notices, plan.notes) == ({}, (), ())
    assert "Do it." not in " ".join(plan.argv)


STRICT = ["--permission-mode", "default"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model": "opus"}, [*STRICT, "--model", "opus"]),
        ({"model": ""}, STRICT),
        ({"fallbackModel": "sonnet,haiku"}, [*STRICT, "--fallback-model", "sonnet,haiku"]),
        ({"effort": "high"}, [*STRICT, "--effort", "high"]),
        ({"effort": ""}, STRICT),
        ({"maxTurnsPerRun": 3}, [*STRICT, "--max-turns", "3"]),
        ({"maxTurns": 4}, [*STRICT, "--max-turns", "4"]),
        ({"maxTurnsPerRun": 3, "maxTurns": 4}, [*STRICT, "--max-turns", "3"]),
        ({"maxTurnsPerRun": 0, "maxTurns": 0}, STRICT),
        ({"maxBudgetUsd": 0.25}, [*STRICT, "--max-budget-usd", "0.25"]),
        ({"maxBudgetUsd": 2}, [*STRICT, "--max-budget-usd", "2"]),
        ({"maxBudgetUsd": 0}, STRICT),
        ({"chrome": True}, [*STRICT, "--chrome"]),
        ({"chrome": False}, [*STRICT, "--no-chrome"]),
        ({"settingSources": ["user", "local"]}, [*STRICT, "--setting-sources", "user,local"]),
        ({"settingSources": []}, [*STRICT, "--setting-sources", ""]),
        (
            {"allowedTools": ["Bash(git status *)", "WebSearch"]},
            [*STRICT, "--allowedTools", "Bash(git status *),WebSearch"],
        ),
        ({"disallowedTools": ["Bash"]}, [*STRICT, "--disallowedTools", "Bash"]),
        ({"allowedTools": []}, STRICT),
        ({"addDirs": ["/srv/a", "/srv/b"]}, [*STRICT, "--add-dir", "/srv/a", "--add-dir", "/srv/b"]),
        ({"dangerouslySkipPermissions": True}, ["--dangerously-skip-permissions"]),
        ({"dangerouslySkipPermissions": False}, STRICT),
        ({"extraArgs": ["--betas", "x"]}, [*STRICT, "--betas", "x"]),
        ({"args": ["--betas", "x"]}, [*STRICT, "--betas", "x"]),
        ({"extraArgs": ["--a"], "args": ["--b"]}, [*STRICT, "--a"]),
        # These have no option: the run loop, the environment or the prompt honours them.
        ({"timeoutSec": 60, "graceSec": 5, "env": {"A": "1"}, "command": "claude"}, STRICT),
        ({"promptTemplate": "x", "bootstrapPromptTemplate": "y", "allowSlashCommands": True}, STRICT),
    ],
)
def test_each_key_of_config(tmp_path: Path, config: dict[str, Any], expected: list[str]) -> None:
    assert options(planned(request(tmp_path, config))) == expected


def test_every_key_of_the_schema_is_in_the_table_above() -> None:
    mark = next(mark for mark in test_each_key_of_config.pytestmark if mark.name == "parametrize")
    covered = {key for config, _ in mark.args[1] for key in config}
    # cwd is where it runs, not on the command line; instructions have a test of their own.
    assert covered | {"cwd", "instructionsFilePath"} == set(adapter().describe().config_schema["properties"])


def test_the_requests_model_wins(tmp_path: Path) -> None:
    plan = planned(request(tmp_path, {"model": "opus"}, model="sonnet"))
    assert options(plan) == [*STRICT, "--model", "sonnet"]


def test_a_mode_wins_over_the_setting_that_asks_no_questions(tmp_path: Path) -> None:
    asked = request(tmp_path, {"dangerouslySkipPermissions": True}, permissions=pb.Permissions(native_mode="plan"))
    plan = planned(asked)
    assert options(plan) == ["--permission-mode", "plan"]
    assert plan.notices == ()


@pytest.mark.parametrize("mode", ["acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions"])
def test_the_agents_own_mode_is_passed_on(tmp_path: Path, mode: str) -> None:
    plan = planned(request(tmp_path, permissions=pb.Permissions(native_mode=mode)))
    assert options(plan) == ["--permission-mode", mode]
    assert bool(plan.notices) == (mode == "bypassPermissions")


def test_allowing_everything_is_no_bypass(tmp_path: Path) -> None:
    """Each question is still asked and reported; and it works as root."""
    plan = planned(request(tmp_path, permissions=pb.Permissions(auto_approve=True)))
    assert options(plan) == STRICT
    assert plan.notices == ()


def test_the_real_bypass_is_warned_about(tmp_path: Path) -> None:
    plan = planned(request(tmp_path, {"dangerouslySkipPermissions": True}))
    assert [code for code, _ in plan.notices] == ["permissions_skipped"]


def test_directories_of_request_config_and_skills(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    run_request = request(tmp_path, {"addDirs": ["/srv/a", str(tmp_path / "more")]})
    run_request.workspace.additional_directories.append(str(tmp_path / "more"))
    plan = planned(run_request, skills_dir=Path("/run/dir/skills"))
    assert options(plan) == [
        *STRICT,
        *("--add-dir", str(tmp_path / "more")),
        *("--add-dir", "/srv/a"),
        *("--add-dir", "/run/dir/skills"),
    ]


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (NEW, ["--session-id", NEW_ID]),
        (SessionPlan(pb.SESSION_DISPOSITION_RESUME, OLD_ID), ["--resume", OLD_ID]),
        (
            SessionPlan(pb.SESSION_DISPOSITION_FORK, OLD_ID),
            ["--resume", OLD_ID, "--fork-session", "--session-id", NEW_ID],
        ),
        (SessionPlan(pb.SESSION_DISPOSITION_RESUME_REFUSED, reason="gone"), ["--session-id", NEW_ID]),
    ],
    ids=["new", "resume", "fork", "refused"],
)
def test_sessions(tmp_path: Path, session: SessionPlan, expected: list[str]) -> None:
    argv = list(planned(request(tmp_path), session).argv)[1 + len(BASE) :]
    assert argv == [*expected, "--system-prompt-snapshot", "off", *STRICT]


@pytest.mark.parametrize(
    ("version", "is_there"), [("", True), (TESTED, True), ("2.2.0", True), ("2.1.9", False), ("1.0.100", False)]
)
def test_an_older_version_does_not_get_an_option_it_does_not_know(
    tmp_path: Path, version: str, is_there: bool
) -> None:
    plan = planned(request(tmp_path), version=version)
    assert ("--system-prompt-snapshot" in plan.argv) == is_there
    assert bool(plan.notices) == (not is_there)


def test_system_prompt_and_instructions_go_by_file_behind_claudes_own(tmp_path: Path) -> None:
    run_request = request(tmp_path, system_prompt="You are Ada.", instructions=api.Instructions(text="Be brief."))
    plan = planned(run_request)
    assert options(plan) == [*STRICT, "--append-system-prompt-file", "/run/dir/instructions.md"]
    assert plan.files == {"instructions.md": b"You are Ada.\n\nBe brief."}


def test_instructions_from_a_file_say_where_their_paths_begin(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("See ./more.md.")
    plan = planned(request(tmp_path, {"instructionsFilePath": str(tmp_path / "AGENTS.md")}))
    text = plan.files["instructions.md"].decode()
    assert text.startswith("See ./more.md.")
    assert text.endswith(f"from {tmp_path}.")


def test_mcp_servers_go_by_file(tmp_path: Path) -> None:
    servers = [
        api.McpServer(name="db", stdio=api.McpStdio(command="db-mcp", args=["-v"], env={"DB_TOKEN": "secret-token"})),
        api.McpServer(
            name="web", http=api.McpHttp(url="https://x.example/mcp", headers={"Authorization": "Bearer t"})
        ),
    ]
    plan = planned(request(tmp_path, mcp_servers=servers))
    assert options(plan) == [*STRICT, "--mcp-config", "/run/dir/mcp.json", "--strict-mcp-config"]
    assert json.loads(plan.files["mcp.json"]) == {
        "mcpServers": {
            "db": {"type": "stdio", "command": "db-mcp", "args": ["-v"], "env": {"DB_TOKEN": "secret-token"}},
            "web": {"type": "http", "url": "https://x.example/mcp", "headers": {"Authorization": "Bearer t"}},
        }
    }
    assert "secret-token" not in " ".join(plan.argv)


@pytest.mark.parametrize(
    ("prompt", "allowed", "sent"),
    [
        ("/compact", False, " /compact"),
        ("/compact", True, "/compact"),
        ("/etc/hosts: what is it?", False, " /etc/hosts: what is it?"),
        ("say /compact", False, "say /compact"),
        ("-p", False, "-p"),
        ("#note", False, "#note"),
        ("!ls", False, "!ls"),
    ],
)
def test_a_prompt_is_no_command_unless_it_may(tmp_path: Path, prompt: str, allowed: bool, sent: str) -> None:
    plan = planned(request(tmp_path, {"allowSlashCommands": allowed}, prompt=prompt))
    assert json.loads(plan.stdin)["message"]["content"] == sent
    assert bool(plan.notes) == (sent != prompt)


def test_it_is_stopped_gently_first() -> None:
    steps = planned(request(Path("/"))).cancel
    assert [step.signal for step in steps] == [None, SIGINT, SIGTERM]
    assert json.loads(steps[0].write)["request"] == {"subtype": "interrupt"}
    assert sum(step.share for step in steps[:-1]) < 0.5


def refused(run_request: api.ExecuteRequest) -> list[str]:
    with pytest.raises(DragomanError) as caught:
        adapter().accept(run_request)
    assert caught.value.reason == Reason.INVALID_REQUEST
    return [violation.path for violation in caught.value.violations]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": " \n"}, "prompt"),
        ({"model": "--dangerously-skip-permissions"}, "model"),
        ({"permissions": pb.Permissions(native_mode="--x")}, "permissions.native_mode"),
        ({"mcp_servers": [api.McpServer(stdio=api.McpStdio(command="x"))]}, "mcp_servers[0].name"),
        ({"mcp_servers": [api.McpServer(name="x")]}, "mcp_servers[0]"),
    ],
)
def test_fields_that_would_be_taken_for_something_else_are_refused(tmp_path: Path, fields: Any, path: str) -> None:
    assert refused(request(tmp_path, **fields)) == [path]


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"fallbackModel": "-x"}, "config.fallbackModel"),
        ({"allowedTools": ["--dangerously-skip-permissions"]}, "config.allowedTools[0]"),
        ({"allowedTools": ["Bash", "Read,Bash"]}, "config.allowedTools[1]"),
        ({"disallowedTools": [""]}, "config.disallowedTools[0]"),
        ({"addDirs": ["relative"]}, "config.addDirs[0]"),
        ({"effort": "huge"}, "config.effort"),
        ({"maxTurnsPerRun": -1}, "config.maxTurnsPerRun"),
        ({"maxTurnsPerRun": 1.5}, "config.maxTurnsPerRun"),
        ({"settingSources": ["cloud"]}, "config.settingSources[0]"),
        ({"dangerouslySkipPermissions": "yes"}, "config.dangerouslySkipPermissions"),
        ({"dangerouslyBypassApprovalsAndSandbox": True}, "config.dangerouslyBypassApprovalsAndSandbox"),
        ({"modle": "opus"}, "config.modle"),
    ],
)
def test_config_that_is_wrong_is_refused_with_its_path(tmp_path: Path, config: dict[str, Any], path: str) -> None:
    assert refused(request(tmp_path, config)) == [path]


def resumed(handle: pb.SessionHandle, cwd: str = "/srv/w", *, fork: bool = False) -> SessionPlan:
    run_request = api.ExecuteRequest(session=api.SessionSelector(handle=handle, fork=fork))
    info = adapter().describe()
    return plan_session(
        run_request,
        adapter=info.type,
        aliases=tuple(info.aliases),
        cwd=cwd,
        is_session_id=adapter().is_session_id,
    )


@pytest.mark.parametrize("name", ["claude_code", "claude_local", "claude-code", "claude", ""])
def test_a_handle_of_any_of_its_names_is_resumed(name: str) -> None:
    handle = pb.SessionHandle(adapter=name, native_id=OLD_ID, cwd="/srv/w")
    plan = resumed(pb.SessionHandle.FromString(handle.SerializeToString()))
    assert (plan.disposition, plan.native_id) == (pb.SESSION_DISPOSITION_RESUME, OLD_ID)
    assert resumed(handle, fork=True).disposition == pb.SESSION_DISPOSITION_FORK


@pytest.mark.parametrize(
    ("handle", "reason"),
    [
        (pb.SessionHandle(native_id="my notes"), "does not have the shape"),
        (pb.SessionHandle(native_id="--continue"), "does not have the shape"),
        (pb.SessionHandle(native_id=OLD_ID + "\n"), "does not have the shape"),
        (pb.SessionHandle(), "names no session"),
        (pb.SessionHandle(native_id=OLD_ID, cwd="/elsewhere"), "belongs to /elsewhere"),
        (pb.SessionHandle(native_id=OLD_ID, adapter="codex"), "belongs to codex"),
    ],
)
def test_any_other_handle_begins_a_new_session_and_says_why(handle: pb.SessionHandle, reason: str) -> None:
    plan = resumed(handle)
    assert plan.disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
    assert reason in plan.reason
