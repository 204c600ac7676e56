"""What a stored agent makes of a request, without a router: nothing that it restricts is loosened."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.router.api.agents import read_secret
from dragoman.router.policy.agent_secrets import references, resolve, secret_violations
from dragoman.router.policy.stored_agents import filled
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

DENY, ASK, ALLOW = (
    pb.PERMISSION_DECISION_DENY,
    pb.PERMISSION_DECISION_ASK,
    pb.PERMISSION_DECISION_ALLOW,
)
RANK = {DENY: 0, ASK: 1, pb.PERMISSION_DECISION_UNSPECIFIED: 1, ALLOW: 2}
TOOLS = ["a", "b", "c"]
DURATIONS = ["start_up", "idle", "wall", "tool_call", "grace"]


def agent(**fields: Any) -> router_pb2.StoredAgent:
    return router_pb2.StoredAgent(**{"name": "n", "adapter": "fake", **fields})


def run(request: api.ExecuteRequest, one: router_pb2.StoredAgent) -> api.ExecuteRequest:
    return filled(request, one, lambda name: name == "fake")


def struct(**values: Any) -> struct_pb2.Struct:
    settings = struct_pb2.Struct()
    settings.update(values)
    return settings


def rules(*decisions: "pb.PermissionDecision.ValueType") -> st.SearchStrategy[pb.PermissionRule]:
    return st.builds(pb.PermissionRule, decision=st.sampled_from(decisions), tool_name=st.sampled_from([*TOOLS, ""]))


def permissions(*decisions: "pb.PermissionDecision.ValueType", approving: bool = True) -> Any:
    return st.builds(
        pb.Permissions,
        rules=st.lists(rules(*decisions), max_size=3),
        default_decision=st.sampled_from([pb.PERMISSION_DECISION_UNSPECIFIED, DENY, ASK, ALLOW]),
        interactive=st.booleans(),
        auto_approve=st.booleans() if approving else st.just(False),
        request_timeout=st.none() | st.builds(dict, seconds=st.integers(1, 9)),
    )


def decision(of: pb.Permissions, tool: str) -> int:
    """Return how permissions decide about a tool, as a rank."""
    if of.auto_approve:
        return 2
    found = next((rule.decision for rule in of.rules if rule.tool_name in {"", tool}), of.default_decision)
    rank = RANK[found]
    return 0 if rank == 1 and not of.interactive else rank


@given(permissions(DENY, ASK, ALLOW), permissions(DENY, approving=False))
def test_no_request_loosens_permissions(most: pb.Permissions, asked: pb.Permissions) -> None:
    result = run(api.ExecuteRequest(permissions=asked), agent(permissions=most)).permissions
    for tool in TOOLS:
        assert decision(result, tool) <= decision(most, tool)
        if any(rule.tool_name in {"", tool} for rule in asked.rules):
            assert decision(result, tool) == 0
        if asked.default_decision == DENY and not any(rule.tool_name in {"", tool} for rule in most.rules):
            assert decision(result, tool) == 0
    for other in (most, asked):
        if other.HasField("request_timeout"):
            assert result.request_timeout.seconds <= other.request_timeout.seconds


@given(permissions(DENY, ASK, ALLOW))
def test_permissions_of_an_agent_alone_are_those_of_the_run(most: pb.Permissions) -> None:
    assert run(api.ExecuteRequest(), agent(permissions=most)).permissions == most


def test_a_caller_who_answers_does_not_end_auto_approval() -> None:
    most = pb.Permissions(auto_approve=True, interactive=True)
    asked = pb.Permissions(interactive=True)
    assert run(api.ExecuteRequest(permissions=asked), agent(permissions=most)).permissions == most


@pytest.mark.parametrize("decided", [ASK, ALLOW, pb.PERMISSION_DECISION_UNSPECIFIED])
def test_a_rule_that_could_loosen_is_refused(decided: "pb.PermissionDecision.ValueType") -> None:
    asked = pb.Permissions(rules=[pb.PermissionRule(decision=DENY), pb.PermissionRule(decision=decided)])
    with pytest.raises(DragomanError) as caught:
        run(api.ExecuteRequest(permissions=asked), agent(permissions=pb.Permissions()))
    assert [one.path for one in caught.value.violations] == ["permissions.rules[1].decision"]


@pytest.mark.parametrize(("own", "asked", "is_refused"), [("", "x", True), ("x", "", False), ("x", "x", False)])
def test_the_native_mode_is_the_agents(own: str, asked: str, is_refused: bool) -> None:
    request = api.ExecuteRequest(permissions=pb.Permissions(native_mode=asked))
    one = agent(permissions=pb.Permissions(native_mode=own))
    if is_refused:
        with pytest.raises(DragomanError, match=r"permissions\.native_mode"):
            run(request, one)
    else:
        assert run(request, one).permissions.native_mode == own


@pytest.mark.parametrize(
    "asked",
    [pb.Permissions(rules=[pb.PermissionRule(decision=DENY)]), pb.Permissions(default_decision=DENY)],
)
def test_what_the_native_mode_could_overrule_is_refused(asked: pb.Permissions) -> None:
    with pytest.raises(DragomanError) as caught:
        run(api.ExecuteRequest(permissions=asked), agent(permissions=pb.Permissions(native_mode="bypass")))
    (wrong,) = caught.value.violations
    assert wrong.path == f"permissions.{asked.ListFields()[0][0].name}"
    assert "'bypass'" in wrong.description


@pytest.mark.parametrize("restricts", [False, True])
def test_a_restricted_agent_keeps_its_servers_and_variables(restricts: bool) -> None:
    one = agent(mcp_servers=[api.McpServer(name="s")], env={"A": "agent"})
    if restricts:
        one.permissions.SetInParent()
    servers = [api.McpServer(name="own"), api.McpServer(name="s")]
    request = api.ExecuteRequest(mcp_servers=servers, env={"A": "request", "B": "request"})
    if not restricts:
        assert dict(run(request, one).env) == {"A": "request", "B": "request"}
        return
    with pytest.raises(DragomanError) as caught:
        run(request, one)
    assert [wrong.path for wrong in caught.value.violations] == ["mcp_servers[1].name", "env.A"]
    further = run(api.ExecuteRequest(mcp_servers=servers[:1], env={"B": "request"}), one)
    assert [server.name for server in further.mcp_servers] == ["s", "own"]
    assert dict(further.env) == {"A": "agent", "B": "request"}


seconds = st.none() | st.integers(0, 5)


@given(st.sampled_from(DURATIONS), seconds, seconds, seconds, seconds)
def test_the_lower_limit_applies(
    name: str, own: int | None, most: int | None, own_setting: int | None, most_setting: int | None
) -> None:
    setting = {"wall": "timeoutSec", "grace": "graceSec"}.get(name)

    def effective(limits: pb.Limits, config: struct_pb2.Struct) -> float | None:
        if limits.HasField(name):  # type: ignore[arg-type]  # names of fields
            value = getattr(limits, name).ToNanoseconds() / 1e9
            return value if value or name == "grace" else None
        return (config.fields[setting].number_value or None) if setting and setting in config.fields else None

    request, one = api.ExecuteRequest(), agent()
    for message, limit, from_setting in ((request, own, own_setting), (one, most, most_setting)):
        if limit is not None:
            getattr(message.limits, name).FromSeconds(limit)
        if from_setting is not None and setting and not (message is one and request.HasField("config")):
            message.config.update({setting: from_setting})
    bounds = [effective(request.limits, request.config), effective(one.limits, one.config)]
    result = run(request, one)
    expected = min((bound for bound in bounds if bound is not None), default=None)
    assert effective(result.limits, result.config) == expected


@pytest.mark.parametrize(("own", "most", "expected"), [(0, 0, 0), (5, 0, 5), (0, 5, 5), (3, 5, 3), (5, 3, 3)])
def test_the_lower_output_applies(own: int, most: int, expected: int) -> None:
    request = api.ExecuteRequest(limits=pb.Limits(output_bytes=own))
    assert run(request, agent(limits=pb.Limits(output_bytes=most))).limits.output_bytes == expected


def test_the_lower_caps_of_two_budgets_apply() -> None:
    asked = pb.Budget(cost="5", output_tokens=10, turns=3, ask=True, warn_percent=10)
    most = pb.Budget(cost="2.5", output_tokens=20, tool_calls=4)
    request = api.ExecuteRequest(limits=pb.Limits(budget=asked))
    result = run(request, agent(limits=pb.Limits(budget=most))).limits.budget
    assert (result.cost, result.output_tokens, result.tool_calls, result.turns) == ("2.5", 10, 4, 3)
    assert not result.ask
    assert run(api.ExecuteRequest(), agent(limits=pb.Limits(budget=most))).limits.budget.tool_calls == 4
    euros = api.ExecuteRequest(limits=pb.Limits(budget=pb.Budget(cost="1", currency="EUR")))
    with pytest.raises(DragomanError, match="currency"):
        run(euros, agent(limits=pb.Limits(budget=most)))


def test_each_limit_is_narrowed() -> None:
    """Red? Narrow the new limit, too."""
    assert set(pb.Limits.DESCRIPTOR.fields_by_name) == {*DURATIONS, "output_bytes", "budget"}


def test_each_field_of_an_agent_reaches_requests_or_is_for_people() -> None:
    """Red? Give the new field to requests, too."""
    kept = {"name", "description", "created_at", "updated_at", "version"}
    fields = router_pb2.StoredAgent.DESCRIPTOR.fields_by_name
    full = agent(
        config=struct(a=1.0),
        model="m",
        permissions=pb.Permissions(interactive=True),
        instructions=api.Instructions(text="t"),
        system_prompt="s",
        skills=[api.Skill(name="s")],
        mcp_servers=[api.McpServer(name="m")],
        limits=pb.Limits(output_bytes=1),
        fallback=api.Fallback(adapters=["x"]),
        env={"A": "a"},
        labels={"l": "l"},
    )
    result = run(api.ExecuteRequest(), full)
    assert {field.name for field, _ in full.ListFields()} | kept == set(fields)
    for name in set(fields) - kept:
        assert getattr(result, name) == getattr(full, name), name


@given(st.lists(st.sampled_from("abc"), unique=True), st.lists(st.sampled_from("abc"), unique=True))
def test_servers_and_skills_are_put_together(own: list[str], theirs: list[str]) -> None:
    request = api.ExecuteRequest(
        skills=[api.Skill(name=name, directory="own") for name in own],
        mcp_servers=[api.McpServer(name=name, http=api.McpHttp(url="own")) for name in own],
    )
    one = agent(
        skills=[api.Skill(name=name, directory="theirs") for name in theirs],
        mcp_servers=[api.McpServer(name=name, http=api.McpHttp(url="theirs")) for name in theirs],
    )
    result = run(request, one)
    expected = [*((name, "theirs") for name in theirs if name not in own), *((name, "own") for name in own)]
    assert [(skill.name, skill.directory) for skill in result.skills] == expected
    assert [(server.name, server.http.url) for server in result.mcp_servers] == expected


def test_a_request_is_left_as_it_is() -> None:
    request = api.ExecuteRequest(agent_name="n", env={"A": "a"}, prompt="p")
    before = request.SerializeToString(deterministic=True)
    result = run(request, agent(env={"B": "b"}, model="m"))
    assert request.SerializeToString(deterministic=True) == before
    assert (result.agent_name, result.prompt) == ("", "p")


SECRET = "s3cr3t-value"
WHERE: dict[str, Any] = {
    "env.API_KEY": lambda value: agent(env={"API_KEY": value}),
    "mcp_servers[0].stdio.env.DB_PASSWORD": lambda value: agent(
        mcp_servers=[api.McpServer(stdio=api.McpStdio(env={"DB_PASSWORD": value}))]
    ),
    "mcp_servers[0].http.headers.Authorization": lambda value: agent(
        mcp_servers=[api.McpServer(http=api.McpHttp(headers={"Authorization": value}))]
    ),
    "config.apiKey": lambda value: agent(config=struct(apiKey=value)),
    "config.env.GH_TOKEN": lambda value: agent(config=struct(env={"GH_TOKEN": value})),
    "config.args[1]": lambda value: agent(config=struct(args=["--token", value])),
    "config.servers[0].token": lambda value: agent(config=struct(servers=[{"token": value}])),
}


@pytest.mark.parametrize("path", WHERE)
def test_a_secret_is_refused_where_a_reference_to_one_is_not(path: str) -> None:
    for value in (SECRET, "x ${key}", f"${{key}}{SECRET}", "${a b}", "${../key}", "${}"):
        assert [one.path for one in secret_violations(WHERE[path](value))] == [path], value
    one = WHERE[path]("${key}")
    assert secret_violations(one) == []
    assert references(one) == ["key"]
    assert resolve(one, {"key": SECRET}) == []
    request = run(api.ExecuteRequest(), one)
    assert SECRET in request_secrets(request)
    assert "${" not in str(request)


@pytest.mark.parametrize(
    ("one", "path"),
    [
        (agent(env={"PLAIN": "${key}"}), "env.PLAIN"),
        (agent(config=struct(model="${key}")), "config.model"),
        (agent(config=struct(args=["${key}"])), "config.args[0]"),
        (agent(env={"URL": f"https://u:{SECRET}@h/"}), "env.URL"),
        (agent(env={"PLAIN": "aB3" * 10}), "env.PLAIN"),
        (agent(system_prompt="use ghp_0123456789abcdefghij"), "system_prompt"),
        (agent(instructions=api.Instructions(text="ghp_0123456789abcdefghij")), "instructions.text"),
        (agent(description="ghp_0123456789abcdefghij"), "description"),
        (agent(model="ghp_0123456789abcdefghij"), "model"),
        (agent(config=struct(note="ghp_0123456789abcdefghij")), "config.note"),
        (agent(config=struct(header="Bearer 0123456789abcdefghij")), "config.header"),
        (agent(config=struct(args=["run", "sk-ant-api03-0123456789abcdefghij"])), "config.args[1]"),
        (agent(config=struct(note="aB3" * 10)), "config.note"),
        (agent(env={"PLAIN": "ghp_0123456789abcdefghij"}), "env.PLAIN"),
        (agent(fallback=api.Fallback(configs={"x": struct(a="ghp_0123456789abcdefghij")})), "fallback.configs.x.a"),
        (
            agent(mcp_servers=[api.McpServer(stdio=api.McpStdio(args=["ghp_0123456789abcdefghij"]))]),
            "mcp_servers[0].stdio.args",
        ),
        (agent(labels={"a": "ghp_0123456789abcdefghij"}), "labels.a"),
        (
            agent(mcp_servers=[api.McpServer(stdio=api.McpStdio(args=["--api-key", SECRET]))]),
            "mcp_servers[0].stdio.args",
        ),
        (
            agent(mcp_servers=[api.McpServer(http=api.McpHttp(url=f"https://h/?token={SECRET}"))]),
            "mcp_servers[0].http.url",
        ),
        (
            agent(fallback=api.Fallback(configs={"x": struct(apiKey="${key}")})),
            "fallback.configs.x.apiKey",
        ),
        (
            agent(skills=[api.Skill(files=api.SkillFiles(content={"a": b"ghp_0123456789abcdefghij"}))]),
            "skills[0].files.content.a",
        ),
    ],
)
def test_a_secret_stands_nowhere_else(one: router_pb2.StoredAgent, path: str) -> None:
    found = secret_violations(one)
    assert [wrong.path for wrong in found] == [path]
    assert all(SECRET not in wrong.description for wrong in found)


@pytest.mark.parametrize("value", ["word", "abc", "WORD", "a1!b"])
def test_a_secret_that_would_be_shown_is_named(value: str) -> None:
    one = agent(env={"API_KEY": "${key}", "OTHER_KEY": "${other}"})
    assert resolve(one, {"key": value, "other": SECRET}) == ["key"]


@given(st.text(max_size=40), st.sampled_from(["API_KEY", "PLAIN", "Authorization"]))
def test_what_is_stored_holds_no_secret(value: str, name: str) -> None:
    one = agent(env={name: value}, config=struct(env={name: value}))
    if not secret_violations(one):
        found = request_secrets(api.ExecuteRequest(env=one.env, config=one.config))
        names = {f"${{{known}}}" for known in references(one)}
        assert set(found) <= names


def test_plain_settings_are_no_secrets() -> None:
    settings = struct(command="make", maxTokens=5.0, args=["test", "--key-file", "a"], cwd="/w", url="http://h/x")
    assert secret_violations(agent(config=settings, env={"PATH": "/bin", "LANG": "C"})) == []
    for model in ("Qwen2.5-Coder-32B-Instruct-Q4_K_M.gguf", "claude-sonnet-4-5-20250929", "openai/gpt-5.2-codex"):
        args = ["-m", model, f"--model={model}"]
        server = api.McpServer(stdio=api.McpStdio(args=args))
        assert (
            secret_violations(agent(model=model, config=struct(model=model, args=args), mcp_servers=[server])) == []
        )
    assert list(itertools.chain(references(agent(config=settings)))) == []


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"x" * 32 * 1024, "x" * 32 * 1024),
        (b"x" * (32 * 1024 + 1), None),
        (b"key\r\n", "key"),
        (b"two\nlines\n", "two\nlines"),
        (b"", None),
        (b"\n", None),
        (b"a\0b", None),
        (b"\xff", None),
    ],
    ids=["largest", "too-large", "line-end", "lines", "empty", "blank", "zero", "not-utf8"],
)
def test_which_file_holds_a_secret(content: bytes, secret: str | None, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    assert read_secret(tmp_path, "key") == secret
    assert read_secret(tmp_path, "missing") is None
    assert read_secret(None, "key") is None
