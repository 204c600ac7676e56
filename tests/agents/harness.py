"""Real agents under test: isolated, against the scripted model, through an adapter's own server.

`Recipe` says what is particular about an agent; `Bench` runs it and checks, after every run, what holds for all:
the event stream, no process left, nothing written into the home outside the agent's own directory, the workspace
as expected, and no file of the run left behind.
"""

import asyncio
import hashlib
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from dragoman.client import Client, RunStream, execute_request
from dragoman.sdk import Adapter
from dragoman.testkit.conversation import Conversation
from dragoman.testkit.family import AgentFamily
from dragoman.testkit.isolation import Isolation, isolate
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

BIN = Path(__file__).parents[2] / ".agents" / "bin"
MARK = "AGENT_TEST_MARK"
SECRET = "s3cr3t-Pl0ver-7731-heliotrope"

React = Callable[[pb.AgentEvent, RunStream], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Failing:
    """How a scripted failure is to be told."""

    kind: pb.FailureKind.ValueType
    code: str = ""
    http_status: int | None = None
    retries: bool = False
    """Whether the agent tries again, and says so."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is particular about an agent."""

    make: Callable[[], Adapter]
    family: AgentFamily
    """How it is isolated, and what it calls its tools."""
    executable: str
    unknown_session: str
    """An id of the right shape that no session has."""
    failures: Mapping[str, Failing]
    """Scenarios of the scripted model that end a run."""
    max_turns: Mapping[str, Any]
    """The ``config`` that allows two turns."""
    own_files: Collection[str] = ()
    """What the agent keeps in the home besides its configuration, relative to it."""
    unset: Collection[str] = ()
    """Variables of the tester's own environment that would reach the agent."""


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
        items: dict[str, str] = {}
        for event in self.events:
            if event.WhichOneof("body") == "text" and not event.HasField("lineage"):
                text = event.text
                before = "" if text.WhichOneof("content") == "whole" else items.get(text.item_id, "")
                items[text.item_id] = before + text.whole + text.delta
        return "".join(items.values())

    @property
    def notices(self) -> list[str]:
        """The codes of all notices."""
        return [notice.code for notice in self.of("notice")]

    @property
    def phases(self) -> list[int]:
        """The phases, in order."""
        return [state.phase for state in self.of("state")]

    def statuses(self, call_id: str) -> list[int]:
        """What was told about a tool call, in order, its result last."""
        calls = [call.status for call in self.of("tool_call") if call.id == call_id]
        return calls + [result.status for result in self.of("tool_result") if result.tool_call_id == call_id]


class Bench:
    """One agent with a home, a workspace and a scripted model of its own."""

    def __init__(self, recipe: Recipe, client: Client, model: ModelServer, root: Path) -> None:
        if not (BIN / recipe.executable).exists():
            pytest.fail(f"{recipe.executable} is not installed; run scripts/install-agents")
        self.recipe = recipe
        self.client = client
        self.model = model
        self.root = root
        self.adapter = recipe.make().describe().type
        self.isolation: Isolation = isolate(recipe.family, root, model_url=model.url, bin_dir=BIN)
        self.workspace = self.make_workspace("workspace")
        self.mark = uuid.uuid4().hex
        env = {**self.isolation.environment, MARK: self.mark}
        del env["TMPDIR"]  # the run's own is what is to be tested
        self.env: dict[str, str] = env

    def told(self, number: int = 0) -> Conversation:
        """Return what a request told the model; the first, or the one at ``number``."""
        conversation = self.model.model_requests[number].conversation
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
        config, env = fields.pop("config", None), {**self.env, **fields.pop("env", {})}
        cwd = str(fields.pop("cwd", self.workspace))
        made = execute_request(self.adapter, prompt, cwd=cwd, config=config, env=env)
        made.MergeFrom(api.ExecuteRequest(**fields))
        return made

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
            prompt: what it is told.
            react: called with every event.
            leaves: paths that the run adds to or changes in the workspace.
            secrets: values that no event may hold.
            **fields: of the request.
        """
        request = self.request(prompt, **fields)
        before = self.snapshot()
        seen = await self.follow(request, react)
        check_stream(seen.events, secrets=list(secrets))
        if seen.of("started"):
            await self.expect_nothing_left(seen)
        assert self.snapshot() == before, "the home changed outside the agent's own directory"
        assert self.changed(Path(request.workspace.cwd)) == sorted(leaves)
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
            assert not Path(started.env["TMPDIR"]).parent.exists()

    def processes(self) -> list[str]:
        """Return the command lines of all processes that carry this bench's mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def snapshot(self) -> dict[str, str]:
        """Return the digests of all files of the home, but for the agent's own."""
        home = self.isolation.home
        own = {self.isolation.config, *(home / name for name in self.recipe.own_files)}
        return {
            str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(home.rglob("*"))
            if path.is_file() and own.isdisjoint(path.parents)
        }

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
    """Return what answers the first question with the first of its options of each kind, and further fields."""

    async def react(event: pb.AgentEvent, stream: RunStream) -> None:
        if event.WhichOneof("body") == "input_request" and event.sequence:
            ids = [option.id for option in event.input_request.options if option.id in options or not options]
            await stream.respond(event.input_request.id, pb.InputAnswer(option_ids=ids[:1], **answer))

    return react


async def processes_until(bench: Bench, reached: Callable[[Iterable[str]], bool]) -> None:
    """Wait until the processes of a bench are as wanted: the agent's tools tell nobody when they start."""
    async with asyncio.timeout(20):
        while not reached(bench.processes()):  # noqa: ASYNC110 - as said above
            await asyncio.sleep(0.05)
