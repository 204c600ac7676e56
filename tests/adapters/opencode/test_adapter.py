"""What the adapter says of itself, its checks, logins, tools, and its word on failures."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.opencode import adapter
from dragoman.adapters.opencode.login import find_login, judge, parse_jsonc
from dragoman.adapters.opencode.tools import KINDS, file_changes, tool_name
from dragoman.sdk import Evidence, Report, Terminal
from dragoman.sdk.acp import RpcError, ToolState
from dragoman.sdk.detection import Checks
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from .planning import job_of, request

KEYS = adapter().spec.api_key_variables


def test_its_alias() -> None:
    assert "opencode_local" in adapter().describe().aliases


@pytest.mark.parametrize(
    ("stored", "providers", "keys", "state", "method"),
    [
        ({}, [], [], api.AUTH_STATE_MISSING, ""),
        ({"anthropic": {"type": "api", "key": "k"}}, [], [], api.AUTH_STATE_OK, "api"),
        ({"a": {"type": "oauth", "expires": 5, "refresh": "r"}}, [], [], api.AUTH_STATE_OK, "oauth"),
        ({"a": {"type": "oauth", "expires": 5}}, [], [], api.AUTH_STATE_EXPIRED, "oauth"),
        ({"a": {"type": "oauth", "expires": 5}}, [], ["OPENAI_API_KEY"], api.AUTH_STATE_OK, "api_key"),
        ({}, ["mine"], [], api.AUTH_STATE_OK, "config"),
        ({"a": "odd"}, [], [], api.AUTH_STATE_OK, "stored"),
    ],
)
def test_logins(
    stored: dict[str, Any], providers: list[str], keys: list[str], state: api.AuthState.ValueType, method: str
) -> None:
    found = judge(stored, providers, keys, now_ms=1000)
    assert (found.state, found.method) == (state, method)


def test_where_logins_are_looked_for(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert find_login(env, KEYS).state == api.AUTH_STATE_MISSING
    (tmp_path / ".config" / "opencode").mkdir(parents=True)
    (tmp_path / ".config" / "opencode" / "opencode.jsonc").write_text('{"provider": {"mine": {}}, // mine\n}')
    assert find_login(env, KEYS).method == "config"
    (tmp_path / ".local" / "share" / "opencode").mkdir(parents=True)
    (tmp_path / ".local" / "share" / "opencode" / "auth.json").write_text('{"openai": {"type": "api"}}')
    assert find_login(env, KEYS).method == "api"
    assert find_login({"HOME": str(tmp_path / "none"), "OPENAI_API_KEY": "k"}, KEYS).method == "api_key"
    assert find_login({"HOME": "/none", "OPENCODE_AUTH_CONTENT": '{"x": {"type": "api"}}'}, KEYS).method == "api"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "http://x/*y*/" /* c */, // d\n "b": [1, 2,],}', {"a": "http://x/*y*/", "b": [1, 2]}),
        ('{"a": "\\"//"}', {"a": '"//'}),
        ('{"a": ",}"}', {"a": ",}"}),
        ("[1]", {}),
        ("", {}),
        ("{" * 50_000, {}),
    ],
)
def test_json_with_comments(text: str, value: dict[str, Any]) -> None:
    assert parse_jsonc(text) == value


@pytest.mark.parametrize(
    ("update", "name"),
    [
        ({"sessionUpdate": "tool_call", "title": "write"}, "write"),
        ({"sessionUpdate": "tool_call", "title": "words_say"}, "words_say"),
        ({"sessionUpdate": "tool_call", "title": "src/a.txt"}, ""),
        ({"sessionUpdate": "tool_call_update", "title": "write"}, ""),
        ({"title": 3}, ""),
    ],
)
def test_tool_names(update: dict[str, Any], name: str) -> None:
    assert tool_name(update) == name


def test_changes_of_files() -> None:
    output: dict[str, Any] = {"metadata": {"filepath": "/w/a.txt", "exists": False}}
    call = ToolState("c", kind=pb.TOOL_KIND_EDIT, raw_input={"content": "x\n"}, raw_output=output)
    (change,) = file_changes(call) or []
    assert (change.path, change.operation) == ("/w/a.txt", pb.FILE_OPERATION_CREATE)
    assert "+x" in change.diff
    diff = "Index: /w/a.txt\n=====\n--- /w/a.txt\n+++ /w/a.txt\n@@ -1 +1 @@\n-a\n+b\n"
    changed: dict[str, Any] = {"metadata": {"diff": diff}}
    call = ToolState("c", kind=pb.TOOL_KIND_EDIT, raw_input={"filePath": "/w/a.txt"}, raw_output=changed)
    (change,) = file_changes(call) or []
    assert (change.operation, change.diff) == (pb.FILE_OPERATION_MODIFY, diff[diff.index("---") :])
    assert file_changes(ToolState("c", kind=pb.TOOL_KIND_EXECUTE)) == []
    assert file_changes(ToolState("c", kind=pb.TOOL_KIND_EDIT)) is None, "its diffs may show it"


def test_its_tools_by_what_they_do() -> None:
    by_kind: dict[str, set[str]] = {}
    for name, kind in KINDS.items():
        by_kind.setdefault(pb.ToolKind.Name(kind).removeprefix("TOOL_KIND_"), set()).add(name)
    assert by_kind == {
        "READ": {"read", "list"},
        "SEARCH": {"glob", "grep", "lsp", "codesearch", "websearch"},
        "EDIT": {"edit", "write", "patch", "apply_patch", "multiedit"},
        "EXECUTE": {"bash"},
        "FETCH": {"webfetch"},
        "SUBAGENT": {"task"},
        "SKILL": {"skill"},
        "TODO": {"todowrite", "todoread"},
        "ASK_USER": {"question"},
        "SWITCH_MODE": {"plan_enter", "plan_exit"},
    }


def test_a_session_that_is_gone(tmp_path: Path) -> None:
    lost = adapter().acp_options(job_of(request(tmp_path))).lost_session
    assert lost(RpcError(-32603, "Internal error: OpenCode service failure", {"service": "session"}))
    assert not lost(RpcError(-32603, "Internal error: OpenCode service failure", {"service": "directory"}))
    assert not lost(RpcError(-32603, "Internal error: Incorrect API key", {"service": "session"}))
    assert not lost(RpcError(-32603, "Internal error: OpenCode service failure", "session"))


def test_a_session_without_any_model() -> None:
    failed = Report(model="unknown/unknown", terminal=Terminal(succeeded=False))
    failure = adapter().classify(Evidence(failed))
    assert failure is not None
    assert (failure.kind, failure.code) == (pb.FAILURE_KIND_MODEL_NOT_FOUND, "opencode_no_model")


def test_its_own_last_word_stands() -> None:
    spoken = Report(terminal=Terminal(succeeded=True))
    assert adapter().classify(Evidence(spoken, stderr_tail="429 Too Many Requests")) is None
    failure = adapter().classify(Evidence(Report(), stderr_tail="429 Too Many Requests"))
    assert failure is not None
    assert failure.kind == pb.FAILURE_KIND_RATE_LIMITED


@pytest.mark.parametrize(
    ("config", "codes"),
    [
        ({"model": "a/b"}, []),
        ({}, ["model_not_set"]),
        ({"model": "a/b", "ownPermissions": True}, ["permissions_skipped"]),
        ({"model": "a/b", "dangerouslySkipPermissions": True}, ["permissions_skipped"]),
    ],
)
def test_checks(config: dict[str, Any], codes: list[str]) -> None:
    checks = Checks()
    adapter().extra_checks(config, {"PATH": "/none"}, checks)
    assert [check.code for check in checks.items] == ["ripgrep_missing", *codes]


async def test_the_first_runs_have_the_database_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program, database = tmp_path / "opencode", tmp_path / "data" / "opencode" / "opencode.db"
    database.parent.mkdir(parents=True)
    # Long enough for the other run to find no database.
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\nsleep 0.3\ntouch {database}\n')
    program.chmod(0o755)
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "PATH": "/usr/bin:/bin"}
    opencode, first = adapter(), job_of(request(tmp_path), executable=str(program))
    await asyncio.gather(opencode.prepare(first, env), opencode.prepare(first, env))
    await opencode.prepare(first, env)
    assert (tmp_path / "calls").read_text() == "db path\n"


async def test_a_run_goes_on_without_a_lock_or_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "PATH": "/usr/bin:/bin"}
    assert await adapter().prepare(job_of(request(tmp_path), executable="opencode"), env) == {}


def test_ripgrep_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "rg").write_text("#!/bin/sh\n")
    (tmp_path / "rg").chmod(0o755)
    checks = Checks()
    adapter().extra_checks({"model": "a/b"}, {"PATH": str(tmp_path)}, checks)
    assert checks.items == []
