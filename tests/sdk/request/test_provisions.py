"""What a run is given besides its prompt: skills by the agent's best way, and its keys."""

import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dragoman.client import DragomanError, Reason
from dragoman.sdk import AgentSpec, CommandLineAdapter, Job, Parser, Plan, capabilities
from dragoman.sdk._detection.auth import inherited_keys
from dragoman.sdk._encoding.config import common_properties
from dragoman.sdk._skills.source import SkillSource
from dragoman.sdk._skills.strategy import prompt_section, strategy_in_force
from dragoman.sdk.detection import AuthFinding
from dragoman.sdk.skills import SkillStrategy
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.adapters.process.arena import Arena, arena_in
from tests.sdk.agents.test_command_line import WordsParser, codes
from tests.sdk.schemas import config_schema

AGENT = r"""
import json, os, re, sys
prompt = sys.stdin.read()
def text(path):
    return open(path).read() if os.path.isfile(path) else None
facts = {"prompt": prompt, "key": os.environ.get("WORDS_KEY"),
         "beside": {line: text(line) for line in re.findall(r"/\S+/reading/[\w/.]+\w", prompt)},
         "listed": sorted(os.listdir(re.findall(r"(/\S+/reading/\w+)", prompt)[0])) if "/reading/" in prompt else [],
         "own": sorted(os.listdir(os.environ["WORDS_HOME"] + "/skills")) if os.path.isdir(
             os.environ.get("WORDS_HOME", "") + "/skills") else []}
print(json.dumps({"is": "environment", **facts}))
print(json.dumps({"is": "done", "ok": True}))
"""
DOCUMENT = b"---\nname: demo\ndescription: d\n---\nFollow references/a.md.\n"
SUBSCRIBED = AuthFinding(api.AUTH_STATE_OK, "subscription", subscription=True)


class Provided(CommandLineAdapter):
    """Runs an agent that reports what it got."""

    spec = AgentSpec(
        type="words",
        label="Words",
        version="1.0",
        configuration_doc="",
        config_schema=config_schema(common_properties()),
        capabilities=capabilities(*(feature for feature in pb.Feature.values() if feature)),
        config_dir_variable="WORDS_HOME",
        config_dir_name=".words",
        skills_dir_name="skills",
        skill_layout=".agents/skills/{name}",
        skill_strategy=SkillStrategy.PROMPT,
        asks_version=False,
        inherit=("WORDS_KEY",),
        api_key_variables=("WORDS_KEY",),
    )
    login: AuthFinding = AuthFinding(api.AUTH_STATE_MISSING)

    def plan(self, job: Job) -> Plan:
        argv = (sys.executable, "-I", "-S", "-c", AGENT)
        stdin = f"{job.instructions.with_directive()}\n\n{job.prompt}" if job.instructions is not None else job.prompt
        return Plan(argv, stdin=stdin.encode())

    def parser(self, job: Job) -> Parser:
        del job
        return WordsParser()

    async def auth(self, executable: str, env: Any) -> AuthFinding:
        assert "WORDS_KEY" not in env or self.login.state != api.AUTH_STATE_OK, "it is asked without the key"
        return self.login


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Provided:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Provided()


@pytest_asyncio.fixture
async def arena(tmp_path: Path, words: Provided) -> AsyncIterator[Arena]:
    async with arena_in(tmp_path, words) as running:
        yield running


def request(arena: Arena, prompt: str = "work", *, skills: bool = True, **config: Any) -> api.ExecuteRequest:
    run_request = arena.request(sys.executable, prompt=prompt, **config)
    del run_request.config["args"]
    run_request.env["WORDS_HOME"] = str(arena.workspace.parent / "words")
    if skills:
        run_request.skills.add(name="demo").files.content.update({"SKILL.md": DOCUMENT, "run.sh": b"#!/bin/sh\n"})
        run_request.skills[0].files.content.update({"references/a.md": b"About a.", "references/b.md": b"About b."})
    return run_request


def facts(events: list[pb.AgentEvent]) -> dict[str, Any]:
    (message,) = [event.message.text for event in events if event.HasField("message")]
    found: dict[str, Any] = json.loads(message)
    return found


def notes(events: list[pb.AgentEvent]) -> str:
    return "\n".join(events[0].started.notes)


# Skills.


async def test_the_files_of_a_skill_in_the_prompt_are_where_it_says_and_gone_after_the_run(arena: Arena) -> None:
    events = await arena.run(request(arena))
    prompt = facts(events)["prompt"]
    found = re.search(r"The files of this skill are in (\S+): (.*)\. Its relative paths", prompt)
    assert found is not None
    assert found[2] == "references/a.md, references/b.md, run.sh"
    assert facts(events)["listed"] == ["demo"]
    assert found[1].endswith("/reading/skills/demo")
    assert not Path(found[1]).exists()


async def test_a_skill_that_is_text_alone_names_no_files(arena: Arena) -> None:
    asked = request(arena, skills=False)
    asked.skills.add(name="demo").files.content.update({"SKILL.md": DOCUMENT})
    assert "/reading/" not in facts(await arena.run(asked))["prompt"]


# Instructions.


@pytest.mark.parametrize("where", ["elsewhere", "in a further directory", "alone", "too many", "too large"])
async def test_files_beside_the_instructions_are_copied_where_the_agent_cannot_read_them(
    arena: Arena, where: str
) -> None:
    bundle = arena.workspace.parent / "bundle"
    (bundle / "sub").mkdir(parents=True)
    (bundle / "AGENTS.md").write_text("Be brief.", encoding="utf-8")
    (bundle / ".hidden").write_text("secret", encoding="utf-8")
    (bundle / "link.md").symlink_to("/etc/passwd")
    if where != "alone":
        (bundle / "sub" / "NOTES.md").write_text("Notes.", encoding="utf-8")
    for number in range(300 if where == "too many" else 0):
        (bundle / f"{number}.md").touch()
    if where == "too large":
        (bundle / "large.md").write_bytes(b"x" * (4 * 1024 * 1024))
    asked = request(arena, skills=False)
    asked.instructions.file = str(bundle / "AGENTS.md")
    if where == "in a further directory":
        asked.workspace.additional_directories.append(str(bundle))
    events = await arena.run(asked)
    prompt, listed = facts(events)["prompt"], facts(events)["listed"]
    if where == "elsewhere":
        assert listed == ["AGENTS.md", "sub"]
        assert "2 files of" in notes(events)
    else:
        assert f"from {bundle}." in prompt
        assert listed == []
    assert ("reading_left_out" in codes(events)) == where.startswith("too")


async def test_skills_in_the_prompt_with_the_references_they_name(arena: Arena) -> None:
    events = await arena.run(request(arena))
    prompt = facts(events)["prompt"]
    assert prompt.endswith("\n\nwork")
    assert "Follow references/a.md." in prompt
    assert "About a." in prompt
    assert "About b." not in prompt
    assert "skills as text in the prompt: demo" in notes(events)
    sizes = events[0].started.prompt_bytes
    assert sizes["skills"] + sizes["prompt"] + 2 == len(prompt.encode())


async def test_skills_in_the_agents_own_directory_are_synchronised(arena: Arena, words: Provided) -> None:
    root = arena.workspace.parent / "words" / "skills"
    (root / "mine").mkdir(parents=True)
    (root / "mine" / "SKILL.md").write_text("Mine.")
    env = {"WORDS_HOME": str(arena.workspace.parent / "words")}
    skill = api.Skill(name="other")
    skill.files.content["SKILL.md"] = DOCUMENT
    synced = await words.sync_skills(api.SyncSkillsRequest(env=env, skills=[skill]))
    states = {"mine": api.SKILL_STATE_EXTERNAL, "other": api.SKILL_STATE_INSTALLED}
    assert {skill.name: skill.state for skill in synced.skills} == states
    listed = await words.list_skills(api.ListSkillsRequest(env=env))
    assert {skill.name: skill.state for skill in listed.skills} == states
    synced = await words.sync_skills(api.SyncSkillsRequest(env=env))
    assert [skill.name for skill in synced.skills] == ["mine"]
    assert [path.name for path in root.iterdir()] == ["mine"]


async def test_what_cannot_be_synchronised_is_refused(words: Provided) -> None:
    with pytest.raises(DragomanError) as refused:
        await words.sync_skills(api.SyncSkillsRequest(skills=[api.Skill(name="../x")]))
    assert refused.value.reason == Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("declared", "layout", "strategy"),
    [
        (None, "", SkillStrategy.PLAN),
        (None, "x/{name}", SkillStrategy.PRIVATE_DIRECTORY),
        (SkillStrategy.PROMPT, "x/{name}", SkillStrategy.PROMPT),
    ],
)
def test_which_way(declared: SkillStrategy | None, layout: str, strategy: SkillStrategy) -> None:
    assert strategy_in_force(declared, layout) is strategy


def test_no_section_without_skills() -> None:
    assert prompt_section(SkillStrategy.PROMPT, ()) == ""
    assert prompt_section(SkillStrategy.PLAN, [SkillSource("demo", files={"SKILL.md": DOCUMENT})]) == ""


# Keys.

OWN_KEY, REQUEST_KEY = "own-key-0000-1111-2222", "request-key-0000-1111-2222"


@pytest.mark.parametrize(
    ("login", "gets_key"),
    [
        (SUBSCRIBED, False),
        (AuthFinding(api.AUTH_STATE_OK, "api_key"), True),
        (AuthFinding(api.AUTH_STATE_EXPIRED, "subscription", subscription=True), True),
        (AuthFinding(api.AUTH_STATE_MISSING), True),
    ],
)
async def test_an_own_key_is_not_passed_on_where_a_subscription_pays(
    arena: Arena, words: Provided, monkeypatch: pytest.MonkeyPatch, login: AuthFinding, gets_key: bool
) -> None:
    monkeypatch.setenv("WORDS_KEY", OWN_KEY)
    words.login = login
    events = await arena.run(request(arena, skills=False))
    assert (facts(events)["key"] is not None) == gets_key
    assert ("WORDS_KEY of the adapter's own environment is not passed on" in notes(events)) == (not gets_key)


@pytest.mark.parametrize("key", [REQUEST_KEY, OWN_KEY])
async def test_a_key_of_the_request_is_always_passed_on(
    arena: Arena, words: Provided, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("WORDS_KEY", OWN_KEY)
    words.login = SUBSCRIBED
    run_request = request(arena, skills=False)
    run_request.env["WORDS_KEY"] = key
    assert facts(await arena.run(run_request))["key"] == "[redacted]"


async def test_the_login_is_asked_for_again_when_its_file_has_changed(
    arena: Arena, words: Provided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDS_KEY", OWN_KEY)
    monkeypatch.setattr(words, "spec", replace(words.spec, login_files=("login.json",)))
    asked: list[str] = []
    monkeypatch.setattr(words, "auth", auth_that_counts(words, asked))
    words.login = SUBSCRIBED
    keys = [facts(await arena.run(request(arena, skills=False)))["key"] for _ in range(2)]
    assert (keys, len(asked)) == ([None, None], 1)
    home = arena.workspace.parent / "words"
    home.mkdir()
    (home / "login.json").write_text("{}")
    words.login = AuthFinding(api.AUTH_STATE_MISSING)
    assert facts(await arena.run(request(arena, skills=False)))["key"] == "[redacted]"
    assert len(asked) == 2


async def test_a_login_that_could_not_be_found_out_is_asked_for_again(
    arena: Arena, words: Provided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDS_KEY", OWN_KEY)
    monkeypatch.setattr(words, "spec", replace(words.spec, login_files=("login.json",)))
    asked: list[str] = []
    monkeypatch.setattr(words, "auth", auth_that_counts(words, asked))
    words.login = AuthFinding(api.AUTH_STATE_UNKNOWN)
    for _ in range(2):
        await arena.run(request(arena, skills=False))
    assert len(asked) == 2


def auth_that_counts(words: Provided, asked: list[str]) -> Callable[[str, Any], Awaitable[AuthFinding]]:
    auth = words.auth

    async def counted(executable: str, env: Any) -> AuthFinding:
        asked.append(executable)
        return await auth(executable, env)

    return counted


async def test_detect_reports_which_login_runs_use(words: Provided, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORDS_KEY", OWN_KEY)
    words.login = SUBSCRIBED
    run_request = api.DetectRequest()
    run_request.config["command"] = sys.executable
    found = await words.detect(run_request)
    assert (found.auth, found.auth_method) == (api.AUTH_STATE_OK, "subscription")
    assert [problem.code for problem in found.problems] == ["api_key_withheld"]
    checks = await words.test_environment(api.TestEnvironmentRequest(config=run_request.config))
    assert [check.code for check in checks if "key" in check.code] == ["api_key_withheld"]


@pytest.mark.parametrize(("where", "seen"), [("adapter", None), ("request", "key")])
async def test_a_login_by_what_runs_do_not_inherit_is_none(
    words: Provided, monkeypatch: pytest.MonkeyPatch, where: str, seen: str | None
) -> None:
    asked = []

    async def auth(_executable: str, env: Any) -> AuthFinding:
        asked.append(env.get("OTHER_KEY"))
        return AuthFinding(api.AUTH_STATE_UNKNOWN)

    monkeypatch.setattr(words, "auth", auth)
    requested = {"OTHER_KEY": "key"} if where == "request" else {}
    if where == "adapter":
        monkeypatch.setenv("OTHER_KEY", "key")
    looked, tested = api.DetectRequest(env=requested), api.TestEnvironmentRequest(env=requested)
    looked.config["command"] = tested.config["command"] = sys.executable
    await words.detect(looked)
    await words.test_environment(tested)
    assert asked == [seen, seen]


def test_which_keys_are_inherited() -> None:
    own = {"A": "1", "B": "2", "C": "3", "D": "4"}
    env = {"A": "1", "B": "2", "C": "other", "E": "5"}
    assert inherited_keys(("A", "B", "C", "D", "E"), env, own, {"B"}) == ("A",)
