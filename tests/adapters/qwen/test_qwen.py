"""Qwen Code's adapter without Qwen Code: how it is run, and what is made of a recording."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.qwen import adapter
from dragoman.adapters.qwen.login import find_login
from dragoman.adapters.qwen.plan import DEFAULTS, call_tokens, model_name
from dragoman.sdk import Job, Line
from dragoman.sdk.skills import SkillStrategy
from dragoman.testkit.isolation import isolate
from dragoman.testkit.profiles.qwen import QWEN
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.jobs import job_of, request_of

RECORDING = Path(__file__).parent / "recordings" / "acp_write.jsonl"
SESSION = "3c140deb-b207-443e-88fa-ea65b6c83720"


def job(tmp_path: Path, **changed: Any) -> Job:
    run_request = request_of(
        tmp_path,
        changed.pop("config", {}),
        model=changed.pop("model", ""),
        permissions=changed.pop("permissions", pb.Permissions()),
    )
    run_request.workspace.additional_directories.extend(changed.pop("directories", ()))
    facts = {"executable": "/bin/qwen", "version": "0.24.4", "new_session_id": SESSION, **changed}
    return job_of(adapter(), run_request, **facts)


def test_the_plainest_run_asks_before_it_does_anything(tmp_path: Path) -> None:
    plan = adapter().plan(job(tmp_path))
    assert plan.argv == ("/bin/qwen", "--acp", "--approval-mode", "default")
    assert plan.keep_stdin_open
    assert plan.env["QWEN_CODE_SYSTEM_DEFAULTS_PATH"] == "/run/dir/defaults.json"
    assert plan.env["QWEN_CODE_NO_RELAUNCH"] == "true"
    assert plan.env["QWEN_CODE_LEGACY_MCP_BLOCKING"] == "1"
    assert json.loads(plan.files["defaults.json"]) == DEFAULTS


def test_every_option_is_passed_on(tmp_path: Path) -> None:
    plan = adapter().plan(
        job(
            tmp_path,
            model="qwen3-coder",
            directories=[str(tmp_path)],
            config={"extraArgs": ["--debug"]},
            permissions=pb.Permissions(native_mode="auto-edit"),
        )
    )
    assert plan.argv == (
        *("/bin/qwen", "--acp", "--approval-mode", "auto-edit", "--model", "qwen3-coder"),
        *("--add-dir", str(tmp_path), "--debug"),
    )


@pytest.mark.parametrize(("native", "mode"), [("", "yolo"), ("plan", "plan")])
def test_skipping_permissions_unless_the_request_has_a_mode(tmp_path: Path, native: str, mode: str) -> None:
    permissions = pb.Permissions(native_mode=native)
    asked = job(tmp_path, config={"dangerouslySkipPermissions": True}, permissions=permissions)
    assert adapter().plan(asked).argv[3] == mode
    assert adapter().acp_options(asked).mode == mode


def test_skills_go_into_the_prompt() -> None:
    assert adapter().spec.skill_strategy is SkillStrategy.PROMPT


def test_a_recorded_turn(tmp_path: Path) -> None:
    parser = adapter().parser(job(tmp_path, permissions=pb.Permissions(native_mode="auto")))
    outputs = [
        out for line in RECORDING.read_bytes().splitlines() for out in parser.line("stdout", Line(line, 0, True))
    ]
    events = [output for output in outputs if isinstance(output, pb.AgentEvent)]
    assert [event for event in events if event.HasField("log")] == []
    report = parser.report
    assert (report.session_id, report.model) == (SESSION, "mock-model")
    assert report.terminal is not None
    assert report.terminal.succeeded
    assert report.usage is not None
    assert (report.usage.tokens.input, report.usage.tokens.output, report.usage.tokens.cache_read) == (180, 40, 20)
    calls = [event.usage for event in events if event.HasField("usage")]
    assert [call.tokens.input for call in calls] == [90, 90]
    tool = next(event.tool_call for event in events if event.HasField("tool_call"))
    assert (tool.name, tool.kind) == ("write_file", pb.TOOL_KIND_EDIT)
    (change,) = [event.file_change for event in events if event.HasField("file_change")]
    assert change.path == "/workspace/acp_qwen.txt"


@pytest.mark.parametrize("update", [{}, {"_meta": None}, {"_meta": {"usage": []}}, {"_meta": {"usage": {"x": 1}}}])
def test_an_update_without_tokens(update: dict[str, Any]) -> None:
    assert call_tokens(update) is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("$runtime|openai|qwen3-coder(openai)", "qwen3-coder"),
        ("qwen3-coder(openai)", "qwen3-coder"),
        ("qwen3-coder", "qwen3-coder"),
        ("org/model:free(openai-responses)", "org/model:free"),
    ],
)
def test_a_model_goes_by_its_name(model: str, name: str) -> None:
    assert model_name(model) == name


@pytest.mark.parametrize("text", ["", "latest", "3c140deb", f"{SESSION}x", "../x"])
def test_no_session_id(text: str) -> None:
    assert adapter().is_session_id(SESSION)
    assert not adapter().is_session_id(text)


# Its login.

OK, MISSING, UNKNOWN = api.AUTH_STATE_OK, api.AUTH_STATE_MISSING, api.AUTH_STATE_UNKNOWN


@pytest.mark.parametrize(
    ("settings", "env", "state", "method"),
    [
        (None, {}, MISSING, ""),
        (None, {"OPENAI_API_KEY": "k"}, OK, "openai"),
        ({"env": {"DASHSCOPE_API_KEY": "k"}}, {}, OK, "openai"),
        ({"security": {"auth": {"selectedType": "anthropic", "apiKey": "k"}}}, {}, OK, "anthropic"),
        ({"security": {"auth": {"selectedType": "openai"}}}, {}, MISSING, ""),
        ({"modelProviders": {"openai": []}, "security": {"auth": {"selectedType": "openai"}}}, {}, UNKNOWN, "openai"),
        ("{", {}, MISSING, ""),
    ],
)
def test_what_its_files_and_variables_say(
    tmp_path: Path, settings: Any, env: dict[str, str], state: int, method: str
) -> None:
    home = isolate(QWEN, tmp_path)
    content = settings if isinstance(settings, str) else json.dumps(settings or {})
    (home.config / "settings.json").write_text(content)
    found = find_login({"HOME": str(home.home), **env})
    assert (found.state, found.method, found.subscription) == (state, method, False)


@pytest.mark.parametrize("is_in", [True, False])
def test_a_login_by_oauth_is_a_subscription(tmp_path: Path, is_in: bool) -> None:
    home = isolate(QWEN, tmp_path)
    (home.config / "settings.json").write_text('{"security": {"auth": {"selectedType": "qwen-oauth"}}}')
    if is_in:
        (home.config / "oauth_creds.json").write_text('{"access_token": "fake"}')
    found = find_login({"QWEN_HOME": str(home.config), "OPENAI_API_KEY": "k"})
    assert (found.state, found.subscription) == (OK if is_in else MISSING, is_in)
