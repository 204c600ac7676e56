"""What a run is given besides its prompt: skills by the agent's best way, files in its workspace, its keys."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from dragoman.client import DragomanError, Reason
from dragoman.sdk import (
    AdapterInfo,
    AdapterServer,
    AuthFinding,
    CommandLineAdapter,
    Job,
    Parser,
    Plan,
    SkillStrategy,
    capabilities,
)
from dragoman.sdk._config import common_properties, config_schema
from dragoman.sdk._login import inherited_keys
from dragoman.sdk._skill_strategy import prompt_section, strategy_in_force
from dragoman.sdk._skills import SkillSource
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.process.arena import Arena, arena_in
from tests.sdk.test_command_line import WordsParser, codes

AGENT = r"""
import json, os, sys
prompt = sys.stdin.read()
def text(path):
    return open(path).read() if os.path.isfile(path) else None
facts = {"prompt": prompt, "key": os.environ.get("WORDS_KEY"), "rules": text("RULES.md"),
         "skill": text(".agents/skills/demo/SKILL.md"), "script": text(".agents/skills/demo/run.sh"),
         "own": sorted(os.listdir(os.environ["WORDS_HOME"] + "/skills")) if os.path.isdir(
             os.environ.get("WORDS_HOME", "") + "/skills") else []}
if "change" in prompt:
    open("RULES.md", "w").write("changed")
print(json.dumps({"is": "environment", **facts}))
print(json.dumps({"is": "done", "ok": True}))
"""
DOCUMENT = b"---\nname: demo\ndescription: d\n---\nFollow references/a.md.\n"
SUBSCRIBED = AuthFinding(api.AUTH_STATE_OK, "subscription", subscription=True)


class Provided(CommandLineAdapter):
    """Runs an agent that tells what it was given."""

    config_dir_variable: ClassVar[str] = "WORDS_HOME"
    config_dir_name: ClassVar[str] = ".words"
    skills_dir_name: ClassVar[str] = "skills"
    skill_layout: ClassVar[str] = ".agents/skills/{name}"
    asks_version: ClassVar[bool] = False
    inherit: ClassVar[tuple[str, ...]] = ("WORDS_KEY",)
    api_key_variables: ClassVar[tuple[str, ...]] = ("WORDS_KEY",)
    strategy: SkillStrategy = SkillStrategy.PROMPT
    files: ClassVar[dict[str, bytes]] = {}
    login: AuthFinding = AuthFinding(api.AUTH_STATE_MISSING)

    @property
    def skill_strategy(self) -> SkillStrategy:  # type: ignore[override]  # a test sets it per instance
        return self.strategy

    def info(self) -> AdapterInfo:
        features = [feature for feature in pb.Feature.values() if feature]
        schema = config_schema(common_properties(also=("placeInWorkspace",)))
        return AdapterInfo("words", "Words", "1.0", "", schema, capabilities(*features))

    def plan(self, job: Job) -> Plan:
        argv = (sys.executable, "-I", "-S", "-c", AGENT)
        return Plan(argv, stdin=job.prompt.encode(), workspace_files=self.files)

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
    async with arena_in(tmp_path, words) as made:
        yield made


def request(arena: Arena, prompt: str = "work", *, skills: bool = True, **config: Any) -> api.ExecuteRequest:
    made = arena.request(sys.executable, prompt=prompt, **config)
    del made.config["args"]
    made.env["WORDS_HOME"] = str(arena.workspace.parent / "words")
    if skills:
        made.skills.add(name="demo").files.content.update({"SKILL.md": DOCUMENT, "run.sh": b"#!/bin/sh\n"})
        made.skills[0].files.content.update({"references/a.md": b"About a.", "references/b.md": b"About b."})
    return made


def facts(events: list[pb.AgentEvent]) -> dict[str, Any]:
    (message,) = [event.message.text for event in events if event.HasField("message")]
    found: dict[str, Any] = json.loads(message)
    return found


def notes(events: list[pb.AgentEvent]) -> str:
    return "\n".join(events[0].started.notes)


# Skills.


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


async def test_skills_in_the_agents_own_directory_stay_until_they_are_synchronised(
    arena: Arena, words: Provided
) -> None:
    words.strategy = SkillStrategy.CONFIG_DIRECTORY
    root = arena.workspace.parent / "words" / "skills"
    (root / "mine").mkdir(parents=True)
    (root / "mine" / "SKILL.md").write_text("Mine.")
    events = await arena.run(request(arena))
    assert facts(events)["own"] == [".dragoman", "demo", "mine"]
    assert "in the agent's own directory, where they stay: demo" in notes(events)
    env = {"WORDS_HOME": str(arena.workspace.parent / "words")}
    listed = await words.list_skills(api.ListSkillsRequest(env=env))
    states = {skill.name: skill.state for skill in listed.skills}
    assert states == {"demo": api.SKILL_STATE_INSTALLED, "mine": api.SKILL_STATE_EXTERNAL}
    synced = await words.sync_skills(api.SyncSkillsRequest(env=env))
    assert [skill.name for skill in synced.skills] == ["mine"]
    assert [path.name for path in root.iterdir()] == ["mine"]


async def test_a_skill_whose_name_is_taken_is_told(arena: Arena, words: Provided) -> None:
    words.strategy = SkillStrategy.CONFIG_DIRECTORY
    (arena.workspace.parent / "words" / "skills" / "demo").mkdir(parents=True)
    events = await arena.run(request(arena))
    assert codes(events) == ["skill_not_installed"]


async def test_skills_in_the_workspace_only_if_allowed(arena: Arena, words: Provided) -> None:
    words.strategy = SkillStrategy.WORKSPACE
    events = await arena.run(request(arena))
    assert facts(events)["skill"] is None
    assert "Follow references/a.md." in facts(events)["prompt"]
    events = await arena.run(request(arena, placeInWorkspace=True))
    assert facts(events)["skill"].endswith("Follow references/a.md.\n")
    assert facts(events)["script"] == "#!/bin/sh\n"
    assert facts(events)["prompt"] == "work"
    assert "skills in the workspace, for the time of the run: demo" in notes(events)
    assert not (arena.workspace / ".agents").exists()


async def test_what_cannot_be_synchronised_is_refused(words: Provided) -> None:
    with pytest.raises(DragomanError) as refused:
        await words.sync_skills(api.SyncSkillsRequest(skills=[api.Skill(name="../x")]))
    assert refused.value.reason == Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("declared", "layout", "config", "strategy"),
    [
        (None, "", {}, SkillStrategy.PLAN),
        (None, "x/{name}", {}, SkillStrategy.PRIVATE_DIRECTORY),
        (SkillStrategy.WORKSPACE, "x/{name}", {}, SkillStrategy.PROMPT),
        (SkillStrategy.WORKSPACE, "x/{name}", {"placeInWorkspace": True}, SkillStrategy.WORKSPACE),
        (SkillStrategy.PROMPT, "", {"placeInWorkspace": True}, SkillStrategy.PROMPT),
    ],
)
def test_which_way(declared: SkillStrategy | None, layout: str, config: Any, strategy: SkillStrategy) -> None:
    assert strategy_in_force(declared, layout, config) is strategy


def test_no_section_without_skills() -> None:
    assert prompt_section(SkillStrategy.PROMPT, ()) == ""
    assert prompt_section(SkillStrategy.PLAN, [SkillSource("demo", files={"SKILL.md": DOCUMENT})]) == ""


# Files in the workspace.


async def test_files_are_placed_only_if_allowed(
    arena: Arena, words: Provided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Provided, "files", {"RULES.md": b"Be brief."})
    (arena.workspace / "RULES.md").write_text("Mine.")
    events = await arena.run(request(arena, skills=False))
    assert facts(events)["rules"] == "Mine."
    assert "not placed in the workspace, as config.placeInWorkspace is not set: RULES.md" in notes(events)
    events = await arena.run(request(arena, skills=False, placeInWorkspace=True))
    assert facts(events)["rules"] == "Be brief."
    assert (arena.workspace / "RULES.md").read_text() == "Mine."
    (arena.workspace / "RULES.md").unlink()


async def test_a_placed_file_that_was_changed_is_told(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Provided, "files", {"RULES.md": b"Be brief."})
    events = await arena.run(request(arena, "change", skills=False, placeInWorkspace=True))
    assert codes(events) == ["workspace_file_changed"]
    assert (arena.workspace / "RULES.md").read_text() == "changed"
    (arena.workspace / "RULES.md").unlink()


async def test_what_is_in_the_way_fails_the_run(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Provided, "files", {"RULES.md": b"Be brief."})
    (arena.workspace / "RULES.md").symlink_to(arena.workspace.parent / "elsewhere")
    result = await arena.result(request(arena, skills=False, placeInWorkspace=True))
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_WORKSPACE_FAILED)
    assert result.failure.code == "placement_refused"
    assert not (arena.workspace.parent / "elsewhere").exists()
    (arena.workspace / "RULES.md").unlink()


KILLED = """
import os, signal, sys
from pathlib import Path
from dragoman.sdk import _placement
with _placement.placed(Path(sys.argv[1]), {"RULES.md": b"ours"}, "r1", store=_placement.default_store()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def place_and_be_killed(workspace: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, workspace], check=False)


async def test_the_next_start_takes_back_what_a_killed_adapter_has_placed(tmp_path: Path, words: Provided) -> None:
    (tmp_path / "RULES.md").write_text("Mine.")
    place_and_be_killed(tmp_path)
    assert (tmp_path / "RULES.md").read_text() == "ours"
    server = AdapterServer(words, ["127.0.0.1:0"])
    await server.start()
    await server.stop(0)
    assert (tmp_path / "RULES.md").read_text() == "Mine."


# Keys.

OWN_KEY, GIVEN_KEY = "own-key-0000-1111-2222", "given-key-0000-1111-2222"


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


async def test_a_key_of_the_request_is_always_passed_on(
    arena: Arena, words: Provided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDS_KEY", OWN_KEY)
    words.login = SUBSCRIBED
    made = request(arena, skills=False)
    made.env["WORDS_KEY"] = GIVEN_KEY
    assert facts(await arena.run(made))["key"] == "[redacted]"


async def test_detect_tells_which_login_runs_use(words: Provided, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORDS_KEY", OWN_KEY)
    words.login = SUBSCRIBED
    made = api.DetectRequest()
    made.config["command"] = sys.executable
    found = await words.detect(made)
    assert (found.auth, found.auth_method) == (api.AUTH_STATE_OK, "subscription")
    assert [problem.code for problem in found.problems] == ["api_key_withheld"]
    checks = await words.test_environment(api.TestEnvironmentRequest(config=made.config))
    assert [check.code for check in checks if "key" in check.code] == ["api_key_withheld"]


def test_which_keys_are_inherited() -> None:
    own = {"A": "1", "B": "2", "C": "3", "D": "4"}
    env = {"A": "1", "B": "2", "C": "other", "E": "5"}
    assert inherited_keys(("A", "B", "C", "D", "E"), env, own, {"B"}) == ("A",)
