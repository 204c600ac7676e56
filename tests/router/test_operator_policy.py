"""The policy of a router's operator: what it refuses, what it adds, and that no request widens it."""

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands.policy import policy_command
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.api.policy_file import OperatorPolicyFile
from dragoman.router.policy.operator_policy import (
    OperatorPolicy,
    PolicyError,
    caller_objections,
    objections,
    parse_policy,
    permitted,
)
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2, json_format
from hypothesis import given
from hypothesis import strategies as st

from tests.router.harness import Stream, config, failure, manifest, routing
from tests.router.test_fallback import FAILS, WORKS, among, notices, run_to_end
from tests.router.test_fallback import request as fallback_request

DENY_PUSH = event_pb2.PermissionRule(decision=event_pb2.PERMISSION_DECISION_DENY, command_prefix="git push")


def policy(text: str) -> OperatorPolicy:
    return parse_policy(text.encode())


def request(**fields: Any) -> pb.ExecuteRequest:
    """Return a request from its JSON form."""
    return json_format.ParseDict(fields, pb.ExecuteRequest())


def paths(text: str, adapter: str = "fake", **fields: Any) -> list[str]:
    """Return the fields of a request that a policy objects to."""
    asked = request(**fields)
    found = [
        *objections(policy(text), asked, adapter, os.path.normpath),
        *caller_objections(policy(text), asked),
    ]
    return [one.path for one in found]


@pytest.mark.parametrize(
    ("text", "path", "denied", "allowed"),
    [
        ("[models]\nfake = ['a', 'b-*']", "model", {"model": "c"}, {"model": "b-1"}),
        ("[models]\nfake = ['a']", "config.model", {"config": {"model": ["a"]}}, {"config": {"model": None}}),
        ("[models]\nfake = ['a']", "config.model", {"config": {"model": "c"}}, {"config": {"model": "a"}}),
        ("[models]\n'*' = ['a']", "model", {"model": "c"}, {"model": "a"}),
        ("[models]\nfake = ['a-*']", "model", {}, {"model": "a-1"}),
        ("[models]\nfake = []", "model", {"agent": {"adapterConfig": {}}}, {"config": {}, "model": ""}),
        (
            "[settings]\ndeny = {'*' = ['command']}",
            "config.command",
            {"config": {"command": "x"}},
            {"config": {"a": 1}},
        ),
        ("[settings]\ndeny = {fake = ['extra*']}", "config.extraArgs", {"config": {"extraArgs": []}}, {}),
        (
            "[settings]\ndeny = {fake = ['command']}",
            "config.command",
            {"agent": {"adapterConfig": {"command": "x"}}},
            {"agent": {"adapterConfig": {"command": "x"}}, "config": {}},
        ),
        ("[environment]\ndeny = ['LD_*']", "env.LD_PRELOAD", {"env": {"LD_PRELOAD": "x"}}, {"env": {"PATH": "/bin"}}),
        (
            "[environment]\ndeny = ['LD_*']",
            "config.env.LD_A",
            {"config": {"env": {"LD_A": "x"}}},
            {"config": {"env": 1}},
        ),
        (
            "[directories]\nallow = ['/w']",
            "workspace.cwd",
            {"workspace": {"cwd": "/x"}},
            {"workspace": {"cwd": "/w/a"}},
        ),
        (
            "[directories]\nallow = ['/w']",
            "workspace.cwd",
            {"workspace": {"cwd": "/w2"}},
            {"workspace": {"cwd": "/w"}},
        ),
        (
            "[directories]\nallow = ['/w']",
            "config.cwd",
            {"config": {"cwd": "/w/../x"}},
            {"config": {"cwd": "/w/./a"}},
        ),
        (
            "[directories]\nallow = ['/w']",
            "workspace.additional_directories",
            {"workspace": {"additionalDirectories": ["/w/a", "/"]}},
            {"workspace": {"additionalDirectories": ["/w/a"]}},
        ),
        (
            "[directories]\nallow = ['/w']",
            "instructions.file",
            {"instructions": {"file": "/etc/passwd"}},
            {"instructions": {"text": "/etc/passwd"}},
        ),
        (
            "[directories]\nallow = ['/w']",
            "skills.directory",
            {"skills": [{"name": "s", "directory": "/s"}]},
            {"skills": [{"name": "s", "directory": "/w/s"}]},
        ),
        (
            "[directories]\nallow = ['/w']",
            "attachments[1].path",
            {"attachments": [{"name": "a", "path": "/w/a"}, {"name": "b", "path": "/etc/passwd"}]},
            {"attachments": [{"name": "a", "path": "/w/a"}, {"name": "b", "content": "eA=="}]},
        ),
        ("[network]\nhosts = ['*.a.b']", "api_url", {"apiUrl": "https://a.b.c/x"}, {"apiUrl": "https://x.A.b:1/"}),
        ("[network]\nhosts = ['a']", "config.u.v[0]", {"config": {"u": {"v": ["http://b"]}}}, {"config": {"u": "b"}}),
        (
            "[network]\nhosts = ['a']",
            "env.BASE",
            {"env": {"BASE": " HTTP://b"}},
            {"env": {"BASE": "b", "C": "ssh://b"}},
        ),
        ("[network]\nhosts = ['a']", "env.BASE", {"env": {"BASE": "http://[b"}}, {"env": {"BASE": "http://a"}}),
        ("[network]\nhosts = ['a']", "env.BASE", {"env": {"BASE": "http://a@b"}}, {"env": {"BASE": "http://b@a"}}),
        (
            "[network]\nhosts = ['a']",
            "mcp_servers[0].http.url",
            {"mcpServers": [{"name": "m", "http": {"url": "http://b"}}]},
            {"mcpServers": [{"name": "m", "http": {"url": "http://a"}}]},
        ),
        (
            "[mcp]\nprograms = false",
            "mcp_servers[0].stdio",
            {"mcpServers": [{"name": "m", "stdio": {"command": "x"}}]},
            {"mcpServers": [{"name": "m", "http": {"url": "http://a"}}]},
        ),
        (
            "[permissions]\nauto_approve = false",
            "permissions.auto_approve",
            {"permissions": {"autoApprove": True}},
            {"permissions": {"interactive": True}},
        ),
        (
            "[[permissions.rules]]\ndecision = 'deny'",
            "permissions.auto_approve",
            {"permissions": {"autoApprove": True}},
            {"permissions": {"rules": [{"decision": "PERMISSION_DECISION_ALLOW"}]}},
        ),
        (
            "[[permissions.rules]]\ndecision = 'ask'",
            "permissions.native_mode",
            {"permissions": {"nativeMode": "yolo"}},
            {},
        ),
        (
            "[permissions]\nnative_modes = ['plan']",
            "permissions.native_mode",
            {"permissions": {"nativeMode": "yolo"}},
            {"permissions": {"nativeMode": "plan"}},
        ),
        ("[limits]\nwall_s = 60", "limits.wall", {"limits": {"wall": "61s"}}, {"limits": {"wall": "60s"}}),
        (
            "[limits]\nwall_s = 60",
            "config.timeoutSec",
            {"config": {"timeoutSec": 61}},
            {"config": {"timeoutSec": 60}},
        ),
        (
            "[limits]\nwall_s = 60",
            "limits.wall",
            {"limits": {"wall": "61s"}, "config": {"timeoutSec": 1}},
            {"limits": {"wall": "1s"}, "config": {"timeoutSec": 61}},
        ),
        ("[limits]\ngrace_s = 5", "config.graceSec", {"config": {"graceSec": 6}}, {"config": {"graceSec": 5}}),
        ("[limits]\nidle_s = 0.5", "limits.idle", {"limits": {"idle": "0.6s"}}, {"limits": {"idle": "0.5s"}}),
        ("[limits]\nstart_up_s = 5", "limits.start_up", {"limits": {"startUp": "6s"}}, {}),
        ("[limits]\ntool_call_s = 5", "limits.tool_call", {"limits": {"toolCall": "6s"}}, {}),
        ("[limits]\noutput_bytes = 5", "limits.output_bytes", {"limits": {"outputBytes": 6}}, {}),
        (
            "[limits]\nrequest_timeout_s = 5",
            "permissions.request_timeout",
            {"permissions": {"requestTimeout": "6s"}},
            {},
        ),
        ("[limits]\norphan_after_s = 5", "orphan_after", {"orphanAfter": "6s"}, {"orphanAfter": "5s"}),
        (
            "[fallback]\nadapters = 1",
            "fallback.adapters",
            {"fallback": {"adapters": ["a", "b"]}},
            {"fallback": {"adapters": ["a"], "afterSideEffects": True}},
        ),
        (
            "[fallback]\nafter_side_effects = false",
            "fallback.after_side_effects",
            {"fallback": {"afterSideEffects": True}},
            {"fallback": {"adapters": ["a"]}},
        ),
    ],
)
def test_what_asks_for_more_is_refused_by_field(
    text: str, path: str, denied: dict[str, Any], allowed: dict[str, Any]
) -> None:
    assert paths(text, **denied) == [path]
    if text != "[models]\nfake = []":  # which allows no run at all
        assert paths(text, **allowed) == []


def test_no_policy_objects_to_nothing() -> None:
    asked: dict[str, Any] = {
        "model": "m",
        "config": {"command": "x", "cwd": "/"},
        "apiUrl": "http://x",
        "orphanAfter": "9s",
    }
    assert paths("", **asked) == []


def test_adapters_are_allowed_by_type() -> None:
    assert paths("[adapters]\nallow = ['a*']\ndeny = ['ab']", "b") == ["adapter"]
    assert paths("[adapters]\nallow = ['a*']\ndeny = ['ab']", "ab") == ["adapter"]
    assert paths("[adapters]\nallow = ['a*']\ndeny = ['ab']", "ac") == []
    assert paths("[adapters]\nallow = []", "a") == ["adapter"]
    assert paths("[adapters]\ndeny = ['a']", "b") == []


def test_all_objections_are_in_the_error() -> None:
    with pytest.raises(DragomanError, match=r"does not allow this: model: .*\(and 1 more\)\.") as caught:
        permitted(
            policy("[models]\n'*' = ['a']\n[limits]\nwall_s = 1"),
            request(model="b", limits={"wall": "2s"}),
            "fake",
            os.path.normpath,
        )
    assert caught.value.reason is Reason.POLICY_DENIED
    assert [one.path for one in caught.value.violations] == ["model", "limits.wall"]


WHOLE = """
[models]
fake = ["a", "b"]
[[permissions.rules]]
decision = "deny"
command_prefix = "git push"
[limits]
start_up_s = 10
idle_s = 20
wall_s = 30
tool_call_s = 40
grace_s = 5
output_bytes = 1000
request_timeout_s = 50
"""


def test_a_rule_is_as_the_file_has_it() -> None:
    strings = {"tool_name": "Bash", "path_glob": "/a/*", "command_prefix": "git push", "host": "h"}
    lines = "\n".join(f"{name} = '{value}'" for name, value in strings.items())
    (rule,) = policy(f"[[permissions.rules]]\ndecision = 'ask'\ntool_kind = 'execute'\n{lines}").rules
    assert rule == event_pb2.PermissionRule(
        decision=event_pb2.PERMISSION_DECISION_ASK, tool_kind=event_pb2.TOOL_KIND_EXECUTE, **strings
    )


def test_what_a_request_leaves_out_comes_from_the_policy() -> None:
    asked = request(prompt="p", permissions={"rules": [{"decision": "PERMISSION_DECISION_ALLOW"}]})
    following = permitted(policy(WHOLE), asked, "fake", os.path.normpath)
    assert following == request(
        prompt="p",
        model="a",
        permissions={
            "rules": [json_format.MessageToDict(DENY_PUSH), {"decision": "PERMISSION_DECISION_ALLOW"}],
            "requestTimeout": "50s",
        },
        limits={
            "startUp": "10s",
            "idle": "20s",
            "wall": "30s",
            "toolCall": "40s",
            "grace": "5s",
            "outputBytes": 1000,
        },
    )
    assert permitted(policy(WHOLE), following, "fake", os.path.normpath) == following  # a later attempt's


def test_what_a_request_narrows_stays() -> None:
    narrow = {
        "model": "b",
        "limits": {"wall": "3s", "idle": "2s", "startUp": "1s", "toolCall": "4s", "grace": "0s", "outputBytes": 10},
        "permissions": {"requestTimeout": "5s"},
    }
    following = permitted(policy(WHOLE), request(**narrow), "fake", os.path.normpath)
    assert (following.model, following.limits) == ("b", request(**narrow).limits)
    assert following.permissions.request_timeout.seconds == 5


def test_limits_in_settings_count_where_there_are_no_others() -> None:
    following = permitted(policy(WHOLE), request(config={"timeoutSec": 3, "graceSec": 2}), "fake", os.path.normpath)
    assert following.limits.wall.seconds == 3
    assert not following.limits.HasField("grace")
    unlimited = request(config={"timeoutSec": 3}, limits={"wall": "0s"})
    assert permitted(policy(WHOLE), unlimited, "fake", os.path.normpath).limits.wall.seconds == 30
    assert permitted(policy("[limits]\ngrace_s = 20"), request(), "f", os.path.normpath).limits.grace.seconds == 15


DURATIONS = st.one_of(st.none(), st.integers(0, 100).map(lambda number: f"{number}s"))
REQUESTS = st.builds(
    request,
    model=st.sampled_from(["", "a", "b", "c"]),
    config=st.dictionaries(
        st.sampled_from(["timeoutSec", "graceSec", "model", "x"]), st.sampled_from([0, 1, 99, "a", "c", None])
    ),
    limits=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("wall", "idle", "startUp", "toolCall", "grace"), DURATIONS)
    ),
    permissions=st.fixed_dictionaries({}, optional={"requestTimeout": DURATIONS, "autoApprove": st.booleans()}),
)


@given(REQUESTS)
def test_no_request_is_wider_than_the_policy(asked: pb.ExecuteRequest) -> None:
    whole = policy(WHOLE)
    before = pb.ExecuteRequest.FromString(asked.SerializeToString())
    wrong = list(objections(whole, asked, "fake", os.path.normpath))
    if wrong:
        with pytest.raises(DragomanError, match="policy"):
            permitted(whole, asked, "fake", os.path.normpath)
        return
    following = permitted(whole, asked, "fake", os.path.normpath)
    assert asked == before
    limits = following.limits
    assert 0 < limits.wall.seconds <= 30
    assert 0 < limits.idle.seconds <= 20
    assert 0 < limits.start_up.seconds <= 10
    assert 0 < limits.tool_call.seconds <= 40
    assert following.permissions.rules[0] == DENY_PUSH
    assert not following.permissions.auto_approve
    assert following.model in {"", "a", "b"}
    assert following.model or following.config["model"] in {"a", "b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "is not valid TOML"),
        ("[limit]", "'limit' was unexpected"),
        ("[limits]\nwall = 3", "limits: .*'wall' was unexpected"),
        ("[limits]\nwall_s = 0", "limits.wall_s: 0 is less than or equal to the minimum"),
        ("[limits]\nwall_s = 'x'", "limits.wall_s: 'x' is not of type 'number'"),
        ("[directories]\nallow = ['w']", r"directories.allow.0: 'w' does not match"),
        ("[[permissions.rules]]\ndecision = 'allow'", "permissions.rules.0.decision: 'allow' is not one of"),
        ("[[permissions.rules]]\ntool_kind = 'edit'", "permissions.rules.0: 'decision' is a required property"),
        ("[models]\nA = ['x']", "models: 'A' does not match"),
    ],
)
def test_a_wrong_policy_is_refused_by_key(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(text)


def test_a_policy_that_is_not_text_is_refused() -> None:
    with pytest.raises(PolicyError, match="is not valid TOML"):
        parse_policy(b"\xff")


def test_links_do_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to("/")
    file = tmp_path / "policy.toml"
    file.write_text(f"[directories]\nallow = ['{tmp_path}/in']")
    rules = OperatorPolicyFile(file)
    rules.check(request(workspace={"cwd": f"{tmp_path}/in"}), "fake")
    with pytest.raises(DragomanError, match="outside the allowed directories"):
        rules.check(request(workspace={"cwd": f"{tmp_path}/in/out/etc"}), "fake")


def test_a_changed_file_takes_effect_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        OperatorPolicyFile(file)
    file.write_text("[adapters]\nallow = ['a']")
    rules = OperatorPolicyFile(file)
    _replace(file, "[adapters]\nallow = ['b']")
    assert (rules.allows_adapter("a"), rules.allows_adapter("b")) == (False, True)
    _replace(file, "[adapter]")
    assert (rules.allows_adapter("a"), rules.allows_adapter("b")) == (False, True)
    file.unlink()
    assert (rules.allows_adapter("a"), rules.allows_adapter("b")) == (False, True)
    _replace(file, "[adapters]\nallow = ['c']")
    assert rules.allows_adapter("c")


def _replace(file: Path, text: str) -> None:
    """Replace a file by another one, as ConfigMaps are."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)


async def test_a_router_denies_what_its_policy_does_not_allow(folder: Path) -> None:
    manifest(folder, "fake")
    manifest(folder, "other")
    file = folder / "policy.toml"
    file.write_text(
        f"[adapters]\nallow = ['fake']\n[directories]\nallow = ['{folder}']\n[limits]\norphan_after_s = 9"
    )
    async with routing(config(folder, manifests=(folder,), policy=file)) as (_router, caller):
        for adapter, path, workspace in (("other", "adapter", str(folder)), ("fake", "workspace.cwd", "/")):
            refused = await caller.execute(adapter, workspace=pb.Workspace(cwd=workspace)).error()
            assert (refused.reason, [one.path for one in refused.violations]) == (Reason.POLICY_DENIED, [path])
        refused = await caller.execute("fake", orphan_after=duration_pb2.Duration(seconds=10)).error()
        assert [one.path for one in refused.violations] == ["orphan_after"]  # which no adapter gets
        calls = [
            caller.adapter.TestEnvironment(pb.TestEnvironmentRequest(adapter="other")),
            caller.adapter.TestEnvironment(
                pb.TestEnvironmentRequest(adapter="fake", workspace=pb.Workspace(cwd="/"))
            ),
            caller.adapter.ListModels(pb.ListModelsRequest(adapter="other")),
            caller.adapter.ListSkills(pb.ListSkillsRequest(adapter="fake", workspace=pb.Workspace(cwd="/"))),
            caller.adapter.SyncSkills(
                pb.SyncSkillsRequest(adapter="fake", skills=[pb.Skill(name="s", directory="/")])
            ),
        ]
        assert [(await failure(call)).reason for call in calls] == [Reason.POLICY_DENIED] * len(calls)
        entries = [await caller.entry("fake"), await caller.entry("other")]
        assert [entry.state for entry in entries] == [router_pb2.ADAPTER_STATE_IDLE] * 2  # nothing was started
        assert [list(entry.remarks) for entry in entries] == [
            [],
            ["the router's policy does not allow runs of this adapter"],
        ]
        events = await caller.execute("fake", {"end": "SUCCEEDED"}, workspace=pb.Workspace(cwd=str(folder))).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_each_attempt_gets_what_the_policy_adds_for_its_adapter(folder: Path) -> None:
    file = folder / "policy.toml"
    file.write_text(
        "[models]\none = ['m1']\nthree = ['m3']\n[adapters]\ndeny = ['two']\n[limits]\nidle_s = 9\norphan_after_s = 1"
        "\n[[permissions.rules]]\ndecision = 'deny'\ncommand_prefix = 'git push'"
    )
    async with among(folder, policy=file) as (caller, sidecars):
        asked = fallback_request({"one": [FAILS], "two": [WORKS], "three": [WORKS]}, "two", "three")
        events = await run_to_end(caller, asked)
        again = await Stream(caller.adapter.Execute(asked)).rest()  # it is the same request still
        assert [event for event in again if event.sequence] == [event for event in events if event.sequence]
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert "fallback_refused" in notices(events)
        assert sidecars["two"].requests("Execute") == []
        for name, model in (("one", "m1"), ("three", "m3")):
            (received,) = sidecars[name].requests("Execute")
            assert (received.model, received.limits.idle.seconds) == (model, 9)
            assert list(received.permissions.rules) == [DENY_PUSH]


def test_the_command_checks_a_policy_and_a_request(tmp_path: Path) -> None:
    file, asked = tmp_path / "policy.toml", tmp_path / "request.json"
    file.write_text("[adapters]\nallow = ['fake']")
    runner = CliRunner()

    def check(*more: str) -> tuple[int, str, str]:
        try:
            result = runner.invoke(
                policy_command, ["check", str(file), *more], standalone_mode=False, catch_exceptions=False
            )
        except CommandError as error:
            return error.report.exit_code, error.report.what, error.report.reason
        return result.return_value, result.output, ""

    assert check() == (0, f"{file}: valid\n", "")
    asked.write_text('{"adapter": "fake"}')
    assert check("--request", str(asked)) == (0, f"{file}: valid, and allows this request to fake\n", "")
    asked.write_text('{"adapter": "other"}')
    code, what, reason = check("--request", str(asked))
    assert (code, reason) == (1, "POLICY_DENIED")
    assert "adapter 'other' is not allowed" in what
    asked.write_text("{}")
    assert check("--request", str(asked))[:2] == (2, "the request names no adapter")
    asked.write_text("{")
    assert check("--request", str(asked))[0] == 2
    file.write_text("[limit]")
    code, what, _ = check()
    assert code == 2
    assert what.startswith(f"policy {file}: the file: ")
