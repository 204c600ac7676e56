"""What a policy's objections and errors say, and what its tables become: each as people read it."""

import os
from typing import Any

import pytest
from dragoman.protocol.errors import FieldViolation
from dragoman.router.model.quotas import Quota, Quotas
from dragoman.router.model.spending import LabelBudget
from dragoman.router.policy.operator_policy import (
    OperatorPolicy,
    PolicyError,
    caller_objections,
    objections,
    parse_policy,
    permitted,
    update_objections,
)
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from google.protobuf import json_format

STRICT = """
[adapters]
allow = ["other"]
[models]
"*" = ["a", "b-*"]
[settings]
deny = {"*" = ["command"], fake = ["extra"]}
[environment]
deny = ["LD_*"]
[directories]
allow = ["/w", "/v"]
[network]
hosts = ["a", "b"]
[mcp]
programs = false
[permissions]
auto_approve = false
native_modes = ["plan", "ask"]
[limits]
wall_s = 60
grace_s = 20
request_timeout_s = 900
orphan_after_s = 5
output_bytes = 1000
[fallback]
adapters = 1
after_side_effects = false
"""
LONG = "x" * 201


def request(**fields: Any) -> pb.ExecuteRequest:
    return json_format.ParseDict(fields, pb.ExecuteRequest())


def objected(asked: pb.ExecuteRequest, text: str = STRICT) -> list[tuple[str, str]]:
    policy = parse_policy(text.encode())
    found = [*objections(policy, asked, "fake", os.path.normpath), *caller_objections(policy, asked)]
    return [(one.path, one.description) for one in found]


def test_each_objection_says_what_is_not_allowed_and_what_is() -> None:
    asked = request(
        model=LONG,
        config={
            "command": "c",
            "extra": 1,
            "env": {"LD_A": "x"},
            "model": "c",
            "graceSec": 21,
            "u": [{"v": "ws://z"}],
        },
        env={"LD_B": "x", "PROXY": "http://[b"},
        workspace={"cwd": "/" + LONG},
        mcpServers=[{"name": "m", "stdio": {"command": "x"}}],
        permissions={"autoApprove": True, "nativeMode": "yolo", "requestTimeout": "901s"},
        limits={"wall": "61.5s", "outputBytes": 1001},
        orphanAfter="6s",
        fallback={"adapters": ["a", "b"], "afterSideEffects": True},
    )
    assert objected(asked) == [
        ("adapter", "adapter 'fake' is not allowed"),
        ("model", f"model '{'x' * 200}' is not allowed; allowed: a, b-*"),
        ("config.model", "model 'c' is not allowed; allowed: a, b-*"),
        ("config.command", "this setting is not allowed"),
        ("config.extra", "this setting is not allowed"),
        ("env.LD_B", "this variable is not allowed"),
        ("config.env.LD_A", "this variable is not allowed"),
        ("workspace.cwd", f"'/{'x' * 199}' is outside the allowed directories: /w, /v"),
        ("mcp_servers[0].stdio", "programs are not allowed as MCP servers"),
        ("env.PROXY", "host '' is not allowed; allowed: a, b"),
        ("config.u[0].v", "host 'z' is not allowed; allowed: a, b"),
        ("permissions.auto_approve", "must be false"),
        ("permissions.native_mode", "mode 'yolo' is not allowed; allowed: plan, ask"),
        ("limits.wall", "61.5 s is more than the allowed 60 s"),
        ("config.graceSec", "21 s is more than the allowed 20 s"),
        ("limits.output_bytes", "1001 bytes is more than the allowed 1000 bytes"),
        ("permissions.request_timeout", "901 s is more than the allowed 900 s"),
        ("orphan_after", "6 s is more than the allowed 5 s"),
        ("fallback.adapters", "at most 1 are allowed"),
        ("fallback.after_side_effects", "must be false"),
    ]


@pytest.mark.parametrize(
    ("text", "fields", "objection"),
    [
        ("[models]\n'*' = ['b-*']", {}, ("model", "must name an allowed model: b-*")),
        ("[models]\n'*' = []", {}, ("model", "must name an allowed model: none")),
        ("[models]\n'*' = []", {"model": "m"}, ("model", "model 'm' is not allowed; allowed: none")),
        (
            "[network]\nhosts = []",
            {"apiUrl": "http://a"},
            ("api_url", "host 'a' is not allowed; allowed: none"),
        ),
        (
            "[directories]\nallow = []",
            {"instructions": {"file": "/a"}},
            ("instructions.file", "'/a' is outside the allowed directories: none"),
        ),
    ],
)
def test_an_empty_list_allows_nothing_and_says_so(
    text: str, fields: dict[str, Any], objection: tuple[str, str]
) -> None:
    assert objected(request(**fields), text)[0] == objection


def test_what_a_policy_allows_beyond_the_defaults_leaves_the_defaults() -> None:
    policy = parse_policy(STRICT.replace('allow = ["other"]', "").encode())
    following = permitted(policy, request(prompt="p"), "fake", os.path.normpath)
    assert following == request(
        prompt="p",
        model="a",
        limits={"wall": "60s", "grace": "15s", "outputBytes": 1000},
        permissions={"requestTimeout": "600s"},
    )
    by_settings = request(config={"timeoutSec": 7.5, "graceSec": 3, "model": "a"})
    limits = permitted(policy, by_settings, "fake", os.path.normpath).limits
    assert (limits.wall.seconds, limits.wall.nanos, limits.HasField("grace")) == (7, 500_000_000, False)
    assert permitted(policy, by_settings, "fake", os.path.normpath).model == ""


def test_a_change_of_a_run_is_held_to_models_and_modes() -> None:
    policy = parse_policy(STRICT.encode())

    def found(of: OperatorPolicy, **fields: str) -> list[FieldViolation]:
        return list(update_objections(of, pb.UpdateRunRequest(**fields), "fake"))

    assert found(policy, model="b-1") == found(policy, permission_mode="ask") == []
    assert found(OperatorPolicy(), model="c") == found(OperatorPolicy(), permission_mode="yolo") == []
    unlisted = FieldViolation("model", "model 'c' is not allowed; allowed: a, b-*")
    assert found(policy, model="c") == [unlisted]
    unlisted = FieldViolation("permission_mode", "mode 'yolo' is not allowed; allowed: plan, ask")
    assert found(policy, permission_mode="yolo") == [unlisted]


def test_no_file_is_the_widest_policy() -> None:
    assert parse_policy(b"") == OperatorPolicy()
    assert OperatorPolicy().mcp_programs
    assert OperatorPolicy().auto_approve
    assert OperatorPolicy().fallback_after_side_effects


def test_budgets_and_quotas_are_as_the_file_has_them() -> None:
    policy = parse_policy(
        b"""
[limits.budget]
cost = 1.5
turns = 9
[quotas.default]
runs = 3
[quotas.callers.ada]
runs = 7
[[budgets]]
name = "all"
period = "day"
runs = 5
[[budgets]]
name = "team"
period = "month"
label = "team"
value = "x"
cost = "2"
currency = "EUR"
warn_percent = 50
[[budgets]]
name = "agent"
period = "total"
field = "agent_id"
tool_calls = 4
"""
    )
    assert policy.budget == event_pb2.Budget(cost="1.5", currency="USD", turns=9)
    assert policy.quotas == Quotas(Quota(runs=3), {"ada": Quota(runs=7)})
    assert policy.budgets == (
        LabelBudget("all", event_pb2.Budget(), "day", runs=5, warn_percent=80),
        LabelBudget(
            "team",
            event_pb2.Budget(cost="2", currency="EUR"),
            "month",
            field="label:team",
            value="x",
            warn_percent=50,
        ),
        LabelBudget("agent", event_pb2.Budget(tool_calls=4), "total", field="agent_id", warn_percent=80),
    )


NAMED = '[[budgets]]\nname = "b"\nperiod = "day"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NAMED, "budgets.b: sets no cap: give cost, input_tokens, output_tokens, model_calls, tool_calls or runs"),
        (f"{NAMED}currency = 'EUR'", "budgets.b.currency: goes with cost"),
        (f"{NAMED}runs = 1\nvalue = 'x'", "budgets.b.value: goes with field or label"),
        (
            f"{NAMED}cost = '1234567890'",
            "budgets.b.cost: must have at most 9 digits before the point and 9 behind it",
        ),
        (f"{NAMED}runs = 1\n{NAMED}runs = 2", "budgets: the name 'b' is given twice"),
        ("[limits.budget]\ncurrency = 'EUR'", "limits.budget.currency: goes with cost"),
        ("limits = 5", "limits: 5 is not of type 'object'"),
        ("a = 1", "the file: Additional properties are not allowed ('a' was unexpected)"),
    ],
)
def test_an_error_names_the_key(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text.encode())
    assert str(caught.value) == message
