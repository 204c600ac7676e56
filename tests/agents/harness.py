"""Real agents under test: isolated, against the scripted model, through an adapter's own server.

`Recipe` says what is particular about an agent; `Bench` runs it and checks, after every run, what holds for all:
the event stream, no process left, nothing written into the home outside the agent's own directory, the workspace
as expected, and no file of the run left behind.
"""

import asyncio
import hashlib
import itertools
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from dragoman.client import Client, RunStream, execute_request
from dragoman.protocol.failures import is_passing
from dragoman.sdk import Adapter, AdapterInfo, AdapterServer, AgentAdapter, CommandLineAdapter
from dragoman.testkit.isolation import Isolation, isolate
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.model_server.conversation import Conversation
from dragoman.testkit.model_server.scheduler import RecordedRequest
from dragoman.testkit.model_server.script import Scenario
from dragoman.testkit.profiles.agent_profile import AgentProfile
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

BIN = Path(__file__).parents[2] / ".agents" / "bin"
MARK = "AGENT_TEST_MARK"
SECRET = "s3cr3t-Pl0ver-7731-heliotrope"
PATIENCE_S = 100
"""How long an agent may take on a busy machine to come so far as it surely does, or to stop by itself."""
TEST_S = 400
"""How long a test may take: its agent may start slowly, try again with patience, and need all of ``PATIENCE_S``."""

Visit = Callable[[str], Awaitable[None]]
"""Plays the person who opens the page of a login."""

React = Callable[[pb.AgentEvent, RunStream], Awaitable[None]]


Ability = Literal["program", "tools", "shell", "usage", "usage_when_cancelled", "denial", "refusal_message"]
"""What an agent may lack: a process of its own; tools; a shell among them; token numbers; these also of a
cancelled run; a way to withhold what is not allowed; a way to give its model the reason of a refusal."""


@dataclass(frozen=True, slots=True)
class Failing:
    """How a scripted failure is to be reported."""

    kind: pb.FailureKind.ValueType
    code: str = ""
    http_status: int | None = None
    retries: bool = False
    """Whether the agent tries again, and says so."""
    first_unseen: bool = False
    """Whether it says so only after a few tries; its library makes the first ones without a word."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is particular about an agent."""

    make: Callable[[], Adapter]
    family: AgentProfile
    """How it is isolated, and what it calls its tools."""
    executable: str
    """Its name in ``.agents/bin``; empty if it is no installed program."""
    unknown_session: str
    """An id of the right shape that no session has."""
    failures: Mapping[str, Failing]
    """Scenarios of the scripted model that end a run."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The ``config`` of every run, if there is no running without."""
    max_turns: Mapping[str, Any] = field(default_factory=dict)
    """The ``config`` that allows two turns. Needed if turns can be limited."""
    lacks: Collection[Ability] = ()
    """What the agent lacks, and no capability is about."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Name of a shared test -> why this agent, not its adapter, cannot stand it. Shown in the table of proofs."""
    untestable: Mapping[str, str] = field(default_factory=dict)
    """Name of a shared test -> why it cannot be tried offline. Shown in the table of proofs."""
    built_from_documentation: bool = False
    """The program is a fake, made from its vendor's documentation: nothing here proves the real one."""
    mcp_tool: str = ""
    """What the agent calls the tool ``count`` of the MCP server ``words``. Empty where it takes no MCP servers."""
    seeing_model: str = ""
    """A model that sees images, by its name. Empty: the usual one does."""
    updating: Mapping[str, Any] = field(default_factory=dict)
    """The ``config`` with which the agent takes changes while it works, if it takes none without."""
    first_model: str = ""
    """A model that the agent changes for ``other_model`` while it works. Empty: its default."""
    other_model: str = ""
    """A model that is not its default. Needed if the model can be changed while it works."""
    other_mode: str = ""
    """A permission mode that is not its default. Needed if the mode can be changed while it works."""
    account: "Callable[[Harness], AbstractAsyncContextManager[list[pb.RateLimit]]] | None" = None
    """Serves an account of the agent, and yields its rate limits. Needed if they can be asked for."""
    issuer: "Callable[[Harness], AbstractAsyncContextManager[tuple[dict[str, str], Visit]]] | None" = None
    """Serves what logs the agent in; yields the environment for that, and what plays a person. Needed with Login."""
    skill_tool: bool = False
    """Whether the agent has a tool by which its model loads a skill."""
    auth: api.AuthState.ValueType = api.AUTH_STATE_OK
    """What Detect finds with the family's variables."""
    billing: pb.BillingType.ValueType = pb.BILLING_TYPE_API
    """Who pays how with the family's variables; by default there is an API key in the environment."""
    tested: api.TestStatus.ValueType = api.TEST_STATUS_WARN
    """What a quick test finds with them; by default there is an API key in the environment."""
    idle_s: float = 10
    """An idle limit that the agent does not reach while it starts; the test raises it where a machine is too slow."""
    silent_tool_s: float = 0
    """An idle limit that the agent's start does not reach and a silent tool call outlasts; 0: three times ``idle_s``.
    Some agents put a command into the background after half a minute: then its call is over."""
    wall_s: float = 2.5
    """A wall limit that the agent reaches in the slow scenario."""
    grace_s: float = 10
    """Time that the agent needs to stop by itself."""
    lasting: Callable[[str], bool] = lambda _: False
    """Whether a process, by its command line, outlives runs on purpose and ends with the adapter."""
    own_files: Collection[str] = ()
    """What the agent keeps in the home besides its configuration, relative to it."""
    unset: Collection[str] = ()
    """Variables of the tester's own environment that would reach the agent."""

    @property
    def tested_version(self) -> str:
        """The version of the real program that the adapter names as tested; empty if it names none."""
        adapter = self.make()
        return adapter.spec.tested_version if isinstance(adapter, CommandLineAdapter) else ""

    def retries_silently(self, kind: pb.FailureKind.ValueType) -> bool:
        """Return whether the agent repeats a request that fails in this way, and reports nothing of it."""
        adapter = self.make()
        return isinstance(adapter, AgentAdapter) and adapter.spec.retries_silently and is_passing(kind)


@dataclass(slots=True)
class Seen:
    """What a reader got of one run."""

    events: list[pb.AgentEvent] = field(default_factory=list)

    @property
    def result(self) -> pb.Result:
        """The last event's body."""
        return self.events[-1].result

    def of(self, kind: str) -> list[Any]:
        """The bodies of a kind, in order."""
        return [getattr(event, kind) for event in self.events if event.WhichOneof("body") == kind]

    @property
    def text(self) -> str:
        """The main agent's answer, as a client shows it."""
        return self._shown("text")

    @property
    def thinking(self) -> str:
        """The main agent's reasoning, as a client shows it."""
        return self._shown("thinking")

    def _shown(self, kind: str) -> str:
        items: dict[str, str] = {}
        for event in self.events:
            if event.WhichOneof("body") == kind and not event.HasField("lineage"):
                piece = getattr(event, kind)
                before = "" if piece.WhichOneof("content") == "whole" else items.get(piece.item_id, "")
                items[piece.item_id] = before + piece.whole + piece.delta
        return "".join(items.values())

    @property
    def notices(self) -> list[str]:
        """The codes of all notices."""
        return [notice.code for notice in self.of("notice")]

    @property
    def phases(self) -> list[int]:
        """The phases, in order; a slow start is reported in between, by states that are not kept."""
        return [event.state.phase for event in self.events if event.HasField("state") and event.sequence]

    def statuses(self, call_id: str) -> list[int]:
        """The statuses of a tool call as they changed, its result last."""
        changes = [call.status for call in self.of("tool_call") if call.id == call_id]
        changes += [result.status for result in self.of("tool_result") if result.tool_call_id == call_id]
        return [status for status, _ in itertools.groupby(changes)]


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An agent's adapter, served, with a home and a scripted model."""

    recipe: Recipe
    client: Client
    model: ModelServer
    isolation: Isolation
    info: AdapterInfo

    @classmethod
    @asynccontextmanager
    async def serve(cls, recipe: Recipe, scenarios: Iterable[Scenario], root: Path) -> AsyncIterator["ServedAdapter"]:
        """Serve an adapter and its model, with a home below ``root``."""
        if recipe.executable and not (BIN / recipe.executable).exists():
            pytest.fail(f"{recipe.executable} is not installed; run scripts/install-agents")
        adapter = recipe.make()
        server = AdapterServer(adapter, ["127.0.0.1:0"], insecure_tcp_without_token=True)
        await server.start()
        try:
            async with (
                ModelServer(scenarios, tools=recipe.family.tools) as model,
                Client(server.addresses[0]) as client,
            ):
                isolation = isolate(recipe.family, root, model_url=model.url, bin_dir=BIN)
                yield cls(recipe, client, model, isolation, adapter.describe())
        finally:
            await server.stop(0)


class Harness:
    """One agent with a workspace of its own, at a served adapter that may be shared."""

    def __init__(self, served: ServedAdapter, root: Path) -> None:
        self.recipe = served.recipe
        self.client = served.client
        self.model = served.model
        self.isolation = served.isolation
        self.info = served.info
        self.adapter = served.info.type
        self.root = root
        self._requests_before = len(self.model.requests)
        self._model_requests_before = len(self.model.model_requests)
        self.workspace = self.make_workspace("workspace")
        self.mark = uuid.uuid4().hex
        env = {**self.isolation.environment, MARK: self.mark}
        del env["TMPDIR"]  # the run's own is what is to be tested
        self.env: dict[str, str] = env
        self.config: dict[str, Any] = dict(self.recipe.config)
        """The ``config`` that every run has, under its own."""
        self.fields: dict[str, Any] = {}
        """Further fields of every request, under its own."""

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests to the model server since this harness was created."""
        return self.model.requests[self._requests_before :]

    @property
    def model_requests(self) -> list[RecordedRequest]:
        """Those of them that a script answered."""
        return self.model.model_requests[self._model_requests_before :]

    def has(self, feature: pb.Feature.ValueType) -> bool:
        """Return whether the adapter declares a capability."""
        return self.info.has(feature)

    def lacks(self, what: Ability) -> bool:
        """Return whether the agent lacks what no capability is about."""
        return what in self.recipe.lacks

    async def model_waits(self, gate: str = "stall") -> None:
        """Wait until the scripted model was asked, and stalls at a gate."""
        await self.model.wait_held(gate, timeout_s=PATIENCE_S)

    def conversation_text(self) -> str:
        """Return everything that the model got so far: system texts, the user's, and those after."""
        conversations = [request.conversation for request in self.model_requests]
        return "\n".join(
            "\n".join((item.system, *item.user_texts, *item.later_texts))
            for item in conversations
            if item is not None
        )

    def conversation(self, number: int = 0) -> Conversation:
        """Return what a request sent to the model; the first, or the one at ``number``."""
        conversation = self.model_requests[number].conversation
        assert conversation is not None
        return conversation

    def make_workspace(self, name: str) -> Path:
        """Return a new git repository with one commit."""
        folder = self.root / name
        folder.mkdir()
        (folder / "README.md").write_text("A workspace.\n")
        _git(folder, "init", "--quiet")
        _git(folder, "add", "--all")
        _git(folder, "-c", "user.name=t", "-c", "user.email=t@t.example", "commit", "--quiet", "-m", "Begin")
        return folder

    def request(self, prompt: str, **fields: Any) -> api.ExecuteRequest:
        """Return a request for a run; ``config`` and ``env`` as mappings, other fields of the message as they are."""
        config = {**self.config, **(fields.pop("config", None) or {})} or None
        env = {**self.env, **fields.pop("env", {})}
        cwd = str(fields.pop("cwd", self.workspace))
        run_request = execute_request(self.adapter, prompt, cwd=cwd, config=config, env=env)
        run_request.MergeFrom(api.ExecuteRequest(**{**self.fields, **fields}))
        return run_request

    async def run(
        self,
        prompt: str,
        *,
        react: React | None = None,
        leaves: Collection[str] = (),
        secrets: Collection[str] = (SECRET,),
        **fields: Any,
    ) -> Seen:
        """Run the agent to its end, and check what holds for every run.

        Args:
            prompt: its prompt.
            react: called with every event.
            leaves: paths that the run adds to or changes in the workspace; GetChanges must list them, too.
            secrets: values that no event may hold.
            **fields: of the request.
        """
        request = self.request(prompt, **fields)
        request.track_changes = self.has(pb.FEATURE_CHANGES)
        before = self.snapshot()
        left_before = set(self.changed(Path(request.workspace.cwd)))
        seen = await self.follow(request, react)
        check_stream(seen.events, secrets=list(secrets))
        if seen.of("started"):
            await self.expect_nothing_left(seen)
        changed = sorted({name for name, _ in self.snapshot().items() ^ before.items()})
        assert changed == [], "the home changed outside the agent's own directory"
        assert self.changed(Path(request.workspace.cwd)) == sorted(leaves)
        if request.track_changes:
            changes = await self.client.get_changes(seen.events[0].run_id)
            assert {*leaves} - left_before <= {file.path for file in changes.files} <= {*leaves}
            assert changes.is_final
        return seen

    async def follow(self, request: api.ExecuteRequest, react: React | None = None) -> Seen:
        """Execute a request and read all of its events."""
        seen = Seen()
        async with self.client.execute(request) as stream:
            async for event in stream:
                seen.events.append(event)
                if react is not None:
                    await react(event, stream)
        return seen

    async def expect_nothing_left(self, seen: Seen) -> None:
        """Check that no process and no directory of the run is left."""
        assert seen.result.tree_confirmed_dead or seen.result.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED
        assert self.processes() == []
        for started in seen.of("started"):
            assert "TMPDIR" not in started.env or not Path(started.env["TMPDIR"]).parent.exists()

    def processes(self) -> list[str]:
        """Return the command lines of all processes that carry this bench's mark."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                if process.environ().get(MARK) == self.mark and not self.recipe.lasting(line):
                    found.append(line)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def snapshot(self) -> dict[str, str]:
        """Return the digests of all files of the home, but for the agent's own."""
        home = self.isolation.home
        own = {str(self.isolation.config), *(str(home / name) for name in self.recipe.own_files)}
        found = {}
        for folder, below, names in os.walk(home):
            # Not looked into: what is its own may come and go while a server of the agent's lives.
            below[:] = [name for name in below if str(Path(folder, name)) not in own]
            for path in (Path(folder, name) for name in names):
                if path.is_file():
                    found[str(path.relative_to(home))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def changed(self, workspace: Path) -> list[str]:
        """Return what git sees as changed or new."""
        return sorted(line[3:] for line in _git(workspace, "status", "--porcelain").splitlines())


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def when(reached: Callable[[pb.AgentEvent], bool], act: Callable[[RunStream], Awaitable[Any]]) -> React:
    """Return what acts once, when an event is reached."""
    done: list[bool] = []

    async def react(event: pb.AgentEvent, stream: RunStream) -> None:
        if not done and reached(event):
            done.append(True)
            await act(stream)

    return react


def answering(*options: str, **answer: Any) -> React:
    """Return what answers each question with the first of its options that has one of these ids or kinds.

    Args:
        *options: ids, or kinds as ``allow_once``; none takes the first option there is.
        **answer: further fields of the answer.
    """

    def names(option: pb.InputOption) -> set[str]:
        kind = pb.InputOptionKind.Name(option.kind).removeprefix("INPUT_OPTION_KIND_")
        return {option.id, kind.lower()}

    async def react(event: pb.AgentEvent, stream: RunStream) -> None:
        if event.WhichOneof("body") == "input_request" and event.sequence:
            ids = [item.id for item in event.input_request.options if not options or names(item) & set(options)]
            await stream.respond(event.input_request.id, pb.InputAnswer(option_ids=ids[:1], **answer))

    return react


async def processes_until(harness: Harness, reached: Callable[[Iterable[str]], bool]) -> None:
    """Wait for processes of a harness: the agent's tools have no event for their start."""
    async with asyncio.timeout(PATIENCE_S):
        while not reached(harness.processes()):  # noqa: ASYNC110 - as said above
            await asyncio.sleep(0.05)


def words_server(*, after_s: float = 0) -> api.McpServer:
    """Return an MCP server that counts the letters of a secret that it alone has.

    Args:
        after_s: seconds that it takes to start, at least; an agent that does not wait asks its model without it.
    """
    script = f'sleep {after_s}; exec "$0" "$1"'
    command = [sys.executable, str(Path(__file__).parent / "words_server.py")]
    program = api.McpStdio(command="/bin/sh", args=["-c", script, *command], env={"WORDS_TOKEN": SECRET})
    return api.McpServer(name="words", stdio=program)


def broken_server(*, after_s: float = 0, **env: str) -> api.McpServer:
    """Return an MCP server that never serves.

    Args:
        after_s: seconds after which it ends.
        **env: its variables.
    """
    program = api.McpStdio(command="/bin/sh", args=["-c", f"sleep {after_s}; exit 1"], env=env)
    return api.McpServer(name="broken", stdio=program)
