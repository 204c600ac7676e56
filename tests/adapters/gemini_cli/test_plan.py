"""From a request to Gemini CLI's command line, its settings, and the way that it is talked to."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.gemini_cli import adapter
from dragoman.adapters.gemini_cli.plan import INSTRUCTIONS_FILE, MODES, SETTINGS_FILE, transport
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import Plan
from dragoman.sdk._request.sessions import NEW, SessionPlan
from dragoman.sdk.run import AttachedFile
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import NEW_ID, OLD_ID, job_of
from tests.adapters.jobs import request_of as request

RESUMED = SessionPlan(pb.SESSION_DISPOSITION_RESUME, OLD_ID)
ALLOWED = pb.Permissions(auto_approve=True)


def planned(run_request: api.ExecuteRequest, session: SessionPlan = NEW) -> Plan:
    this = adapter()
    return this.plan(job_of(this, run_request, session, executable="/opt/gemini", version="0.61.0"))


def run_settings(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(plan.files[SETTINGS_FILE])
    return document


def test_the_protocol_by_default(tmp_path: Path) -> None:
    plan = planned(request(tmp_path))
    assert plan.argv == ("/opt/gemini", "--acp")
    assert plan.keep_stdin_open
    assert json.loads(plan.stdin)["method"] == "initialize"
    assert plan.env["GEMINI_CLI_NO_RELAUNCH"] == "true"


def test_json_lines_where_everything_is_allowed(tmp_path: Path) -> None:
    plan = planned(request(tmp_path, permissions=ALLOWED, model="gemini-x"))
    assert plan.argv == (
        *("/opt/gemini", "--output-format", "stream-json", "--model", "gemini-x"),
        *("--approval-mode", "yolo", "--session-id", NEW_ID),
    )
    assert (plan.stdin, plan.keep_stdin_open, plan.notices) == (b"Do it.", False, ())


@pytest.mark.parametrize(
    ("permissions", "prompt", "config", "way"),
    [
        ({}, "Go.", {}, "acp"),
        ({"interactive": True}, "Go.", {}, "acp"),
        ({"native_mode": "auto_edit"}, "Go.", {}, "acp"),
        ({"native_mode": "yolo"}, "Go.", {}, "stream-json"),
        ({"auto_approve": True}, "Go.", {}, "stream-json"),
        ({"auto_approve": True}, "See @README.md", {}, "acp"),
        ({"auto_approve": True, "rules": [pb.PermissionRule()]}, "Go.", {}, "acp"),
        ({"auto_approve": True}, "Go.", {"transport": "acp"}, "acp"),
        ({}, "Go.", {"transport": "stream-json"}, "stream-json"),
    ],
)
def test_which_way(tmp_path: Path, permissions: Any, prompt: str, config: dict[str, Any], way: str) -> None:
    run_request = request(tmp_path, config, permissions=pb.Permissions(**permissions), prompt=prompt)
    assert transport(job_of(adapter(), run_request)) == way


def test_images_go_over_the_protocol(tmp_path: Path) -> None:
    this = adapter()
    shot = AttachedFile("shot.png", "image/png", tmp_path / "shot.png", 3, b"png")
    assert transport(job_of(this, request(tmp_path, permissions=ALLOWED), attachments=(shot,))) == "acp"
    png = api.Attachment(name="shot.png", media_type="image/png", content=b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DragomanError) as caught:
        this.accept(request(tmp_path, {"transport": "stream-json"}, attachments=[png]))
    assert [violation.path for violation in caught.value.violations] == ["attachments[0].media_type"]


def test_what_json_lines_withhold_is_reported(tmp_path: Path) -> None:
    plan = planned(request(tmp_path, {"transport": "stream-json"}))
    assert [code for code, _ in plan.notices] == ["tools_withheld"]
    assert "--approval-mode" not in plan.argv


@pytest.mark.parametrize("asks", [{"interactive": True}, {"rules": [pb.PermissionRule()]}])
def test_json_lines_cannot_keep_what_is_to_be_asked(tmp_path: Path, asks: Any) -> None:
    with pytest.raises(DragomanError, match="JSON lines"):
        adapter().accept(request(tmp_path, {"transport": "stream-json"}, permissions=pb.Permissions(**asks)))


def test_a_session_goes_on(tmp_path: Path) -> None:
    plan = planned(request(tmp_path, permissions=ALLOWED), RESUMED)
    assert plan.argv[-2:] == ("--resume", OLD_ID)
    assert "resumes session" in plan.notes[0]
    assert "--resume" not in planned(request(tmp_path), RESUMED).argv


@pytest.mark.parametrize("text", ["latest", "5", "", "../../../x", "*", f"{OLD_ID}\n", f"-{OLD_ID}"])
def test_only_a_uuid_is_a_session(text: str) -> None:
    assert adapter().is_session_id(OLD_ID)
    assert not adapter().is_session_id(text)


@pytest.mark.parametrize("mode", MODES)
def test_its_own_modes_in_both_spellings(tmp_path: Path, mode: str) -> None:
    plan = planned(request(tmp_path, permissions=pb.Permissions(native_mode=mode)))
    assert plan.argv[plan.argv.index("--approval-mode") + 1] == MODES[mode]


@pytest.mark.parametrize("permissions", [pb.Permissions(), ALLOWED], ids=["acp", "lines"])
def test_directories_and_further_arguments(tmp_path: Path, permissions: pb.Permissions) -> None:
    run_request = request(tmp_path, {"extraArgs": ["--debug"]}, permissions=permissions)
    run_request.workspace.additional_directories.append(str(tmp_path))
    argv = planned(run_request).argv
    assert argv[argv.index("--include-directories") + 1] == str(tmp_path)
    assert argv[-1] == "--debug"


@pytest.mark.parametrize("prompt", ["/help", " /help", "$help", "\t$ help"])
def test_a_command_is_text_unless_commands_are_enabled(tmp_path: Path, prompt: str) -> None:
    sent = planned(request(tmp_path, prompt=prompt, permissions=ALLOWED)).stdin.decode()
    assert sent.strip()[0] not in "/$"
    assert sent.endswith(prompt)
    enabled = request(tmp_path, {"allowSlashCommands": True}, prompt=prompt, permissions=ALLOWED)
    assert planned(enabled).stdin.decode() == prompt


def test_an_at_sign_pulls_nothing_in(tmp_path: Path) -> None:
    run_request = request(tmp_path, {"transport": "stream-json"}, prompt="Mail a@b.example and @README.md")
    assert planned(run_request).stdin == b"Mail a\\@b.example and \\@README.md"


def test_settings_of_the_run(tmp_path: Path) -> None:
    run_request = request(tmp_path, {"maxAttempts": 3, "maxTurnsPerRun": 7, "authType": "vertex-ai"})
    assert run_settings(planned(run_request)) == {
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "maxAttempts": 3},
        "model": {"maxSessionTurns": 7},
        "security": {"auth": {"selectedType": "vertex-ai"}},
    }
    assert "security" not in run_settings(planned(request(tmp_path)))


@pytest.mark.parametrize("config", [{"maxTurnsPerRun": 7}, {"maxTurns": 7}, {"maxTurnsPerRun": 7, "maxTurns": 5}])
def test_the_limit_of_turns_has_two_names_of_which_its_own_wins(tmp_path: Path, config: dict[str, Any]) -> None:
    assert run_settings(planned(request(tmp_path, config)))["model"] == {"maxSessionTurns": 7}


@pytest.mark.parametrize(
    ("env", "method"),
    [
        ({"GEMINI_API_KEY": "k"}, "gemini-api-key"),
        ({"GEMINI_API_KEY": "k", "GOOGLE_GENAI_USE_VERTEXAI": "true"}, "vertex-ai"),
        ({"GOOGLE_GENAI_USE_GCA": "true"}, "oauth-personal"),
    ],
)
def test_the_key_of_the_request_says_who_pays(tmp_path: Path, env: dict[str, str], method: str) -> None:
    settings = run_settings(planned(request(tmp_path, env=env)))
    assert settings["security"]["auth"]["selectedType"] == method


def test_tool_servers(tmp_path: Path) -> None:
    servers = [
        api.McpServer(name="local", stdio=api.McpStdio(command="/bin/x", args=["-v"], env={"A": "b"})),
        api.McpServer(name="far", http=api.McpHttp(url="https://x.example", headers={"H": "v"})),
    ]
    assert run_settings(planned(request(tmp_path, permissions=ALLOWED, mcp_servers=servers)))["mcpServers"] == {
        "local": {"command": "/bin/x", "args": ["-v"], "env": {"A": "b"}},
        "far": {"httpUrl": "https://x.example", "headers": {"H": "v"}},
    }
    # Over the protocol, they are named when the session begins.
    assert "mcpServers" not in run_settings(planned(request(tmp_path, mcp_servers=servers)))


def test_instructions_are_a_file(tmp_path: Path) -> None:
    run_request = request(tmp_path, system_prompt="You are Ada.", instructions=api.Instructions(text="Be brief."))
    words = planned(run_request).files[INSTRUCTIONS_FILE].decode()
    assert words.index("You are Ada.") < words.index("Be brief.")
    assert INSTRUCTIONS_FILE not in planned(request(tmp_path)).files


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": " \n"},
        {"model": "-y"},
        {"permissions": pb.Permissions(native_mode="bypassPermissions")},
        {"mcp_servers": [api.McpServer(name="x")]},
    ],
)
def test_what_would_reach_it_as_something_else_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(DragomanError):
        adapter().accept(request(tmp_path, **fields))


def test_its_aliases() -> None:
    assert {"gemini_local", "gemini-cli", "gemini"} == set(adapter().describe().aliases)
