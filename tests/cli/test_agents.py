"""``dragoman agents``, its files, and ``dragoman run @NAME``, with a router of the command's own."""

import contextlib
import json
import tempfile
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.cli.agent_file import AgentFileError, agent_text, parse_agent
from dragoman.v1 import adapter_pb2, router_pb2
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.program import Done, dragoman
from tests.router.harness import config, routing

WHOLE = """
name = "reviewer"
description = "Reviews a commit."
adapter = "claude_code"
model = "opus"
system_prompt = "Be brief."
instructions = "Read \\"CONTRIBUTING\\".\\nThen review."
skills = ["/srv/skills/review"]
version = 3

[config]
maxTurns = 7
extraArgs = ["--a", "b"]

[config.env]
GH_TOKEN = "${github}"

[env]
LANG = "C"

[labels]
team = "core"
"odd key" = "x"

[permissions]
default = "ask"
interactive = true
auto_approve = true
native_mode = "plan"
request_timeout_s = 90
rules = [{ decision = "deny", tool_kind = "execute", host = "h" }, { decision = "allow", tool_name = "Read" }]

[limits]
wall_s = 600
idle_s = 1.5
output_bytes = 1000

[limits.budget]
cost = "2.50"
turns = 5
ask = true

[fallback]
adapters = ["codex"]
on = ["rate_limited", "quota_exceeded"]
after_side_effects = true

[fallback.configs.codex]

[mcp_servers.tickets]
url = "https://tickets.example/mcp"

[mcp_servers.tickets.headers]
Authorization = "${tickets}"

[mcp_servers.files]
command = "mcp-files"
args = ["--root", "/srv"]

[mcp_servers.files.env]
MODE = "ro"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('nam = "a"', "nam: no such key; did you mean name?"),
        ("x = 1", "x: no such key; the keys are name, description, adapter, "),
        ("name = 1", "name: must be a text in quotes"),
        ("name = ", "is not valid TOML: Invalid value (at end of document)"),
        ('name = "a"\nx = = 1', "is not valid TOML: Invalid value (at line 2, column 5)"),
        ("[config]\na = 9007199254740993", "config.a: must be between"),
        ("[config]\na = nan", "config.a: must be a number"),
        ("env = 1", "env: must be a table"),
        ("[env]\nA = 1", "env.A: must be a text in quotes"),
        ("skills = 'a'", "skills: must be a list"),
        ("skills = ['a']", "skills[0]: must be an absolute path on the adapter's machine"),
        ("[limits]\nwal_s = 1", "limits.wal_s: no such key; did you mean wall_s"),
        ("[limits]\nwall_s = -1", "limits.wall_s: must be a number of seconds"),
        ("[limits]\nwall_s = true", "limits.wall_s: must be a number of seconds"),
        ("[limits]\nwall_s = nan", "limits.wall_s: must be a number of seconds"),
        ("[limits]\noutput_bytes = 1.5", "limits.output_bytes: must be a whole number from 0 to"),
        ("[limits.budget]\nturns = 5000000000", "limits.budget.turns: must be a whole number"),
        ("[limits.budget]\ninput_tokens = 1000000000000001", "limits.budget.input_tokens: must be from 1 to 1,000,"),
        ("[limits.budget]\noutput_tokens = 0", "limits.budget.output_tokens: must be from 1 to"),
        ("[limits.budget]\nask = true", "limits.budget: sets no cap"),
        ("[limits.budget]\ncost = '2e3'", "limits.budget.cost: must be a plain decimal number"),
        ("[permissions]\ndefault = 'never'", "permissions.default: must be one of allow, ask, deny"),
        ("[permissions]\ninteractive = 1", "permissions.interactive: must be true or false"),
        ("[permissions]\nrules = [{}]", "permissions.rules[0]: needs decision: deny, ask or allow"),
        ("[permissions]\nrules = [{decision = 1}]", "permissions.rules[0].decision: must be one of"),
        ("[fallback]\non = ['x']", "fallback.on[0]: must be one of"),
        ("[mcp_servers.a]\nargs = []", "mcp_servers.a: needs command or url"),
        ("[mcp_servers.a]\nurl = 'u'\ncommand = 'c'", "mcp_servers.a.command: no such key"),
        ("[config]\na = [1979-05-27]", "config.a[0]: must be a text, a number"),
        ("instructions = {fil = '/a'}", "instructions.fil: no such key; did you mean file?"),
        ("instructions = {file = 'a'}", "instructions.file: must be an absolute path"),
        ("instructions = {text = 'a'}", "instructions.text: no such key; write the text itself, or the key file"),
        ("version = -1", "version: must be a whole number"),
    ],
)
def test_an_error_names_the_key(text: str, message: str) -> None:
    with pytest.raises(AgentFileError) as caught:
        parse_agent(text.encode())
    assert str(caught.value).startswith(message)


def test_an_agent_is_written_as_it_is_read() -> None:
    agent = parse_agent(WHOLE.encode())
    assert parse_agent(agent_text(agent).encode()) == agent
    assert tomllib.loads(agent_text(agent)) == tomllib.loads(WHOLE)
    unset = {field.name for field in agent.DESCRIPTOR.fields} - {field.name for field, _ in agent.ListFields()}
    assert unset == {"created_at", "updated_at"}


@pytest.mark.parametrize(
    "skill",
    [
        adapter_pb2.Skill(name="x", directory="/srv/skills/x-1.2"),
        adapter_pb2.Skill(name="x", files=adapter_pb2.SkillFiles(content={"SKILL.md": b"x"})),
    ],
    ids=["another name", "files"],
)
def test_a_skill_that_a_file_cannot_name_is_not_left_out(skill: adapter_pb2.Skill) -> None:
    with pytest.raises(AgentFileError, match="skill 'x' is not named by its directory"):
        agent_text(router_pb2.StoredAgent(name="a", skills=[skill]))


def test_a_budget_of_many_tokens_survives_the_file() -> None:
    agent = router_pb2.StoredAgent(name="a")
    agent.limits.budget.input_tokens = 10**15
    assert parse_agent(agent_text(agent).encode()) == agent


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.booleans() | st.integers(-(2**52), 2**52) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(texts, st.dictionaries(texts, texts, max_size=3), st.dictionaries(texts, values, max_size=3))
def test_any_text_survives_the_file(text: str, pairs: dict[str, str], settings: dict[str, Any]) -> None:
    agent = router_pb2.StoredAgent(name="a", description=text, env=pairs, labels=pairs)
    agent.config.SetInParent()
    agent.config.update(settings)
    assert parse_agent(agent_text(agent).encode()) == agent


@pytest.mark.parametrize("text", ["[instructions]", "instructions = {}", "[limits.budget]", "[limits]"])
def test_an_empty_table_is_none(text: str) -> None:
    agent = parse_agent(text.encode())
    assert not agent.HasField("instructions")
    assert not agent.limits.budget.ByteSize()


def test_what_names_nothing_is_written_all_the_same() -> None:
    agent = router_pb2.StoredAgent(name="a")
    agent.instructions.SetInParent()
    assert parse_agent(agent_text(agent).encode()) == router_pb2.StoredAgent(name="a")
    agent.mcp_servers.add(name="tools")
    assert "[mcp_servers.tools]" in agent_text(agent)


@given(st.binary(max_size=60))
def test_any_file_is_an_agent_or_an_error(data: bytes) -> None:
    with contextlib.suppress(AgentFileError):
        parse_agent(data)


class Home:
    """A router that has the installed adapters, and commands that use it."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address, self._folder = address, folder

    async def run(self, *arguments: str, stdin: str = "") -> Done:
        return await dragoman(*arguments, "--router", self._address, stdin=stdin.encode(), cwd=self._folder)


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    with tempfile.TemporaryDirectory(prefix="dr-") as folder:  # short enough for sockets
        async with routing(config(Path(folder), entry_points=True)) as (router, _caller):
            yield Home(router.addresses[0], Path(folder))


ECHO = 'name = "echo"\nadapter = "process"\ndescription = "Says it."\n[config]\ncommand = "cat"\n'


async def test_an_agent_is_stored_run_changed_and_deleted(home: Home) -> None:
    done = await home.run("agents", "create", "-", stdin=ECHO)
    assert (done.code, done.out, done.err) == (0, "stored: echo, version 1\n", "")
    listed = await home.run("agents")
    assert [line.split() for line in listed.out.splitlines()] == [["echo", "process", "-", "1", "Says", "it."]]
    ran = await home.run("run", "@echo", "hello")
    assert (ran.code, "hello" in ran.out) == (0, True), ran
    runs = await home.run("runs", "--agent", "@echo", "--json")
    assert [run["agentName"] for run in json.loads(runs.out)["runs"]] == ["echo"]
    shown = await home.run("agents", "show", "@echo")
    changed = await home.run("agents", "update", "-", stdin=shown.out.replace("Says it.", "Repeats it."))
    assert changed.out == "updated: echo, version 2\n"
    stale = await home.run("agents", "update", "-", stdin=shown.out)
    assert (stale.code, "has version 2 by now" in stale.err) == (1, True), stale.err
    unversioned = await home.run("agents", "update", "-", stdin=ECHO)
    assert unversioned.out == "updated: echo, version 3\n"
    as_json = await home.run("agents", "show", "echo", "--json")
    agent = json_format.Parse(as_json.out, router_pb2.StoredAgent())
    assert (agent.version, agent.description) == (3, "Says it.")
    assert (await home.run("agents", "delete", "echo")).out == "deleted: echo\n"
    missing = await home.run("run", "@echo", "hello")
    assert (missing.code, "Agent 'echo' not found" in missing.err) == (2, True), missing.err


async def test_a_task_is_run_by_its_active_agent(home: Home) -> None:
    await home.run("agents", "create", "-", stdin=ECHO)
    await home.run("agents", "create", "-", stdin=ECHO.replace("echo", "other"))
    done = await home.run("agents", "use", "@echo", "--task", "t")
    assert (done.code, done.out) == (0, "active at t: echo, was none\n"), done
    listed = await home.run("agents", "--task", "t")
    assert [line.split()[:2] for line in listed.out.splitlines()] == [["*", "echo"], ["-", "other"]]
    ran = await home.run("run", "@", "hello", "--task", "t")
    assert (ran.code, "hello" in ran.out) == (0, True), ran
    assert (await home.run("agents", "use", "--none", "--task", "t")).out == "active at t: none, was echo\n"
    missing = await home.run("run", "@", "hello", "--task", "t")
    assert (missing.code, "Task 't' has no active agent" in missing.err) == (2, True), missing.err
    assert "'dragoman agents use'" in missing.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("agents", "use", "--task", "t"), "give NAME, or --none"),
        (("agents", "use", "@", "--task", "t"), "give NAME, or --none"),
        (("agents", "use", "echo", "--none", "--task", "t"), "give NAME, or --none"),
        (("agents", "show"), "give NAME, or --task KEY"),
        (("agents", "show", "echo", "--task", "t"), "give NAME, or --task KEY"),
        (("agents", "--task", "t", "--json"), "--json has no marks"),
        (("run", "@", "hello"), "give --task, or @NAME"),
    ],
)
async def test_wrong_usage_says_what_to_give(arguments: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = await dragoman(*arguments, cwd=tmp_path)
    assert (done.code, why in " ".join(done.err.split())) == (2, True), done.err


async def test_what_is_wrong_is_named_as_in_the_file(home: Home) -> None:
    bad = ECHO + "[env]\nAPI_KEY = 'sk-not-printed-1'\n[mcp_servers.m.headers]\nAuthorization = 'Bearer x1y2z3w4'\n"
    done = await home.run("agents", "create", "-", stdin=bad)
    assert (done.code, "mcp_servers.m.headers: no such key" in done.err) == (2, True), done.err
    done = await home.run("agents", "create", "-", stdin=bad + "[mcp_servers.m]\nurl = 'https://h/'\n")
    assert done.code == 2
    assert "env.API_KEY: looks like a secret" in done.err
    assert "mcp_servers.m.headers.Authorization: looks like a secret" in done.err
    assert "agent." not in done.err
    assert "not-printed" not in done.err


async def test_a_command_needs_no_router_that_runs(tmp_path: Path) -> None:
    env = {name: str(tmp_path / name) for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    done = await dragoman("agents", "delete", "echo", env=env)
    assert (done.code, "no stored agent echo" in done.err) == (1, True), done.err


async def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = await dragoman("agents", "create", "nothing.toml", cwd=tmp_path)
    assert (done.code, done.err.splitlines()[0]) == (2, "error: nothing.toml: No such file or directory")
