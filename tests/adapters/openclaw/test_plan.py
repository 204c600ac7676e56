"""From a request to what the gateway is asked, and to what a gateway is started with."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.openclaw import plan
from dragoman.adapters.openclaw.environment import (
    Setting,
    own_config,
    read_setting,
    run_file,
    selected_model,
    tool_environment,
)
from dragoman.adapters.openclaw.status import judge, models_of, was_used
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import Model
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from .planning import ADAPTER, COPIED, NEW_ID, OLD_ID, RESUMED, job_of, request

KEY = f"agent:main:dragoman-{NEW_ID}"
OLD_KEY = f"agent:main:dragoman-{OLD_ID}"


def sent(line: bytes) -> tuple[str, Any]:
    assert line.endswith(b"\n")
    frame = json.loads(line)
    assert frame["type"] == "req"
    return frame["method"], frame["params"]


def test_a_new_session() -> None:
    planned = ADAPTER.plan(job_of(request()))
    assert planned.argv[1] == "-I"
    assert planned.argv[2].endswith("ws_bridge.py")
    assert planned.argv[3:] == ("dragoman-run-1-1", KEY)
    assert planned.env == {}, "neither the address nor the token is known to a plan"
    assert planned.keep_stdin_open
    assert sent(planned.stdin) == ("sessions.create", {"key": KEY, "cwd": "/"})
    assert sent(planned.cancel[0].write) == ("sessions.abort", {"key": KEY, "runId": "dragoman-run-1-1"})
    assert planned.cancel[0].signal is None


def test_a_session_that_goes_on_is_looked_for_first() -> None:
    job = job_of(request(), RESUMED)
    assert sent(plan.opening(job)) == ("sessions.describe", {"key": OLD_KEY})
    assert sent(plan.adjusting(job)) == ("sessions.patch", {"key": OLD_KEY, "permissionMode": None})
    chosen = request(model="a/b", permissions=pb.Permissions(native_mode="full"))
    assert sent(plan.adjusting(job_of(chosen, RESUMED))) == (
        "sessions.patch",
        {"key": OLD_KEY, "model": "a/b", "permissionMode": "full"},
    )


def test_a_copy_is_a_session_of_its_own() -> None:
    assert sent(plan.opening(job_of(request(), COPIED))) == (
        "sessions.create",
        {"key": KEY, "parentSessionKey": OLD_KEY, "fork": True, "forkFrom": "last-completed", "cwd": "/"},
    )


def test_the_turn() -> None:
    method, params = sent(plan.turn(job_of(request({"thinking": "low", "agent": "ops"}, system_prompt="Be Ada."))))
    assert method == "agent"
    assert params == {
        "sessionKey": f"agent:ops:dragoman-{NEW_ID}",
        "message": "Do it.",
        "idempotencyKey": "dragoman-run-1-1",
        "deliver": False,
        "extraSystemPrompt": "Be Ada.",
        "thinking": "low",
    }


def test_each_turn_of_a_run_has_a_name_of_its_own() -> None:
    following = replace(job_of(request(), RESUMED), turn=2)
    assert sent(plan.turn(following))[1]["idempotencyKey"] == "dragoman-run-1-1.2"
    assert ADAPTER.plan(following).argv[3] == "dragoman-run-1-1.2"


def test_a_slash_is_no_order() -> None:
    assert sent(plan.turn(job_of(request(prompt="/reset all"))))[1]["message"] == " /reset all"


def test_a_skill_is_announced() -> None:
    text = b"---\nname: demo\ndescription: Knows a word.\n---\nThe word is heliotrope.\n"
    skill = api.Skill(name="demo", files=api.SkillFiles(content={"SKILL.md": text}))
    system = sent(plan.turn(job_of(request(skills=[skill]))))[1]["extraSystemPrompt"]
    assert "The word is heliotrope." in system


@pytest.mark.parametrize(
    "wrong", ["../evil", "main", "x", "ABCDEF00-0000-4000-8000-000000000000", f" {OLD_ID}", f"{OLD_ID}\n", ""]
)
def test_only_uuids_are_session_ids(wrong: str) -> None:
    assert not ADAPTER.is_session_id(wrong)


def test_a_uuid_is_a_session_id() -> None:
    assert ADAPTER.is_session_id(OLD_ID)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": " "}, "prompt"),
        ({"permissions": pb.Permissions(native_mode="wild")}, "permissions.native_mode"),
        ({"config": {"dangerouslySkipPermissions": True}}, "config.dangerouslySkipPermissions"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(DragomanError) as caught:
        ADAPTER.accept(request(fields.pop("config", None), **fields))
    assert caught.value.reason == Reason.INVALID_REQUEST
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("config", "level"), [({}, None), ({"effort": "high"}, "high"), ({"effort": "high", "thinking": "low"}, "low")]
)
def test_how_much_the_model_thinks(config: dict[str, Any], level: str | None) -> None:
    assert sent(plan.turn(job_of(request(config))))[1].get("thinking") == level


# What a gateway is started with.


def test_a_gateway_gets_what_all_runs_share_and_the_tools_the_rest(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text('{ providers: { x: { apiKey: "${MY_KEY}" } } }')
    env = {
        "PATH": "/bin",
        "OPENCLAW_STATE_DIR": str(tmp_path),
        "MY_KEY": "k",
        "OPENAI_API_KEY": "o",
        "ACME_API_KEY": "of this run",
        "TMPDIR": "/run/tmp",
    }
    setting = read_setting("/opt/openclaw", env)
    assert setting.config == tmp_path / "openclaw.json"
    assert setting.environment["MY_KEY"] == "k"
    assert setting.environment["OPENAI_API_KEY"] == "o"
    assert "ACME_API_KEY" not in setting.environment
    assert tool_environment(setting, env) == {"ACME_API_KEY": "of this run", "TMPDIR": "/run/tmp"}
    assert read_setting("/opt/openclaw", {**env, "ACME_API_KEY": "another"}) == setting
    assert read_setting("/opt/openclaw", {**env, "MY_KEY": "another"}) != setting
    assert "another" not in repr(read_setting("/opt/openclaw", {**env, "MY_KEY": "another"}))


def test_the_users_configuration_is_included_and_bounded(tmp_path: Path) -> None:
    user = tmp_path / "openclaw.json"
    setting = Setting("/opt/openclaw", tmp_path, user, {})
    assert "$include" not in own_config(setting, 4000, Path("/own"))
    user.write_text("{}")
    configuration: Any = own_config(setting, 4000, Path("/own"))
    assert configuration["$include"] == str(user)
    assert (configuration["gateway"]["bind"], configuration["gateway"]["port"]) == ("loopback", 4000)
    assert configuration["gateway"]["auth"] == {"mode": "token", "token": "${OPENCLAW_GATEWAY_TOKEN}"}
    assert configuration["plugins"]["load"]["paths"] == ["/own/plugin"]
    assert configuration["plugins"]["entries"]["dragoman"]["config"] == {"runs": "/own/runs"}


def test_a_session_key_cannot_lead_elsewhere() -> None:
    assert "/" not in run_file("agent:main:../../x")
    assert run_file("a") != run_file("b")


# What the program reports of logins and models.


@pytest.mark.parametrize(
    ("auth", "state"),
    [
        ({"providers": [{"provider": "x", "effective": {"kind": "env"}}]}, api.AUTH_STATE_OK),
        ({"providers": [{"provider": "y", "effective": {"kind": "env"}}]}, api.AUTH_STATE_MISSING),
        ({"providers": [{"provider": "x", "effective": {"kind": "missing"}}]}, api.AUTH_STATE_MISSING),
        ({"missingProvidersInUse": ["x"], "providers": []}, api.AUTH_STATE_MISSING),
    ],
)
def test_the_login(auth: Any, state: api.AuthState.ValueType) -> None:
    assert judge({"resolvedDefault": "x/model", "auth": auth}).state == state


def test_models() -> None:
    listed: Any = {"models": [{"key": "a/b", "name": "B", "tags": ["default"]}, {"key": "a/c"}, {"name": "none"}]}
    assert models_of(listed) == [Model("a/b", "B", is_default=True), Model("a/c", "", is_default=False)]


def test_a_start_says_what_it_waits_for() -> None:
    assert "gateway" in ADAPTER.startup_reason(job_of(request()))


def test_one_that_was_never_used_is_not_asked_for_its_login(tmp_path: Path) -> None:
    fresh = {"OPENCLAW_STATE_DIR": str(tmp_path / "openclaw")}
    assert not was_used(fresh, ["OPENAI_API_KEY"])
    assert was_used({**fresh, "OPENAI_API_KEY": "sk-fake"}, ["OPENAI_API_KEY"])
    (tmp_path / "openclaw").mkdir()
    assert was_used(fresh, ["OPENAI_API_KEY"])


SHARED = """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ DO_NOT_TRACK SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy LC_ALL XDG_CONFIG_HOME
    OPENCLAW_ANY
"""
FIXED = {
    **dict.fromkeys(("DISABLE_BONJOUR", "SKIP_CHANNELS", "SKIP_CRON", "NO_RESPAWN", "NO_AUTO_UPDATE"), "1"),
    **dict.fromkeys(("HIDE_BANNER", "SUPPRESS_NOTES"), "1"),
    "EXEC_SHELL_SNAPSHOT": "0",
}


def test_a_gateway_has_these_variables_and_no_others(tmp_path: Path) -> None:
    shared = {**dict.fromkeys(SHARED.split(), "v"), "OPENCLAW_STATE_DIR": str(tmp_path)}
    setting = read_setting("/opt/openclaw", {**shared, "TMPDIR": "v", "EDITOR": "v", "NO_COLOR": ""})
    fixed = {f"OPENCLAW_{name}": value for name, value in FIXED.items()}
    assert setting.environment == {**shared, **fixed, "NO_COLOR": "1"}
    assert (setting.executable, setting.state_dir) == ("/opt/openclaw", tmp_path)


def test_the_configuration_of_the_adapters_gateway(tmp_path: Path) -> None:
    setting = Setting("/opt/openclaw", tmp_path, tmp_path / "openclaw.json", {})
    assert own_config(setting, 4711, tmp_path / "own") == {
        "gateway": {
            "mode": "local",
            "port": 4711,
            "bind": "loopback",
            "auth": {"mode": "token", "token": "${OPENCLAW_GATEWAY_TOKEN}"},
            "tls": {"enabled": False},
            "controlUi": {"enabled": False},
        },
        "plugins": {
            "enabled": True,
            "load": {"paths": [f"{tmp_path}/own/plugin"]},
            "entries": {"dragoman": {"enabled": True, "config": {"runs": f"{tmp_path}/own/runs"}}},
        },
        "logging": {"file": f"{tmp_path}/own/openclaw.log"},
        "update": {"checkOnStart": False},
    }


@pytest.mark.parametrize(
    ("model", "expected"),
    [("a/b", ("b", "a")), ({"primary": "a/b/c"}, ("b/c", "a")), ("b", ("b", "")), ({}, ("", ""))],
)
def test_the_model_of_the_users_configuration(model: Any, expected: tuple[str, str]) -> None:
    selected = selected_model({"agents": {"defaults": {"model": model}}})
    assert (selected.model, selected.provider) == expected
