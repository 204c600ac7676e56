"""The Claude Agent SDK through its adapter in TypeScript, a router and the scripted model server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.client import Client, RunStream, execute_request
from dragoman.conformance import Options
from dragoman.testkit.isolation import FAKE_KEY, isolate
from dragoman.testkit.model_server import ModelServer
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.conforming import examine
from tests.router.harness import config, manifest, routing
from tests.typescript.test_typescript_adapters import NODE, ROOT

pytestmark = [pytest.mark.typescript, pytest.mark.timeout(180)]

PROGRAM = ROOT / "adapters/typescript/claude-agent/dist/src/main.js"


@pytest_asyncio.fixture
async def model() -> AsyncIterator[ModelServer]:
    """A scripted model server."""
    async with ModelServer() as server:
        yield server


@pytest_asyncio.fixture
async def client(model: ModelServer, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a router with the adapter, whose agent has a home of its own and a key that opens nothing."""
    isolation = isolate("claude", tmp_path, model_url=model.url)
    adapter = manifest(tmp_path, "claude_agent", command=[NODE, str(PROGRAM)], env=dict(isolation.environment))
    async with routing(config(tmp_path, manifests=(adapter,))), Client(f"unix:{tmp_path}/r.sock") as opened:
        yield opened


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """An empty working directory."""
    path = tmp_path / "work"
    path.mkdir()
    return path


def asking(prompt: str, cwd: Path) -> api.ExecuteRequest:
    """Return a request whose caller answers permission requests."""
    request = execute_request("claude_agent", prompt, cwd=str(cwd))
    request.permissions.interactive = True
    return request


async def answered(run: RunStream, option: str) -> list[pb.AgentEvent]:
    """Read a run, and answer its permission requests."""
    events = []
    async for event in run:
        events.append(event)
        if event.HasField("input_request"):
            await run.respond(event.input_request.id, pb.InputAnswer(option_ids=[option]))
    check_stream(events, secrets=[FAKE_KEY])
    return events


def bodies(events: list[pb.AgentEvent], name: str) -> list[pb.AgentEvent]:
    return [event for event in events if event.WhichOneof("body") == name]


async def test_text_comes_in_pieces(client: Client, cwd: Path) -> None:
    async with client.execute(execute_request("claude_agent", "MOCK_TEXT", cwd=str(cwd))) as run:
        events = await answered(run, "")
    pieces = [event.text.delta for event in bodies(events, "text")]
    assert "".join(pieces) == "Hello from the scripted model."
    assert len(pieces) > 1
    result = events[-1].result
    assert (result.outcome, result.tree_confirmed_dead) == (pb.OUTCOME_SUCCEEDED, True)
    assert result.summary == "Hello from the scripted model."
    assert result.usage.tokens.output > 0
    assert bodies(events, "session")[0].session.native_id == result.session.handle.native_id


@pytest.mark.parametrize("option", ["allow", "reject"])
async def test_a_permission_is_asked_and_answered(option: str, client: Client, cwd: Path) -> None:
    async with client.execute(asking("MOCK_WRITE", cwd)) as run:
        events = await answered(run, option)
    asked = bodies(events, "input_request")[0].input_request
    assert (asked.subject.tool_name, asked.subject.tool_kind) == ("Write", pb.TOOL_KIND_EDIT)
    assert asked.subject.paths == [str(cwd / "hello.txt")]
    assert [event.tool_call.name for event in bodies(events, "tool_call")] == ["Write"]
    status = bodies(events, "tool_result")[0].tool_result.status
    assert status == (pb.TOOL_STATUS_COMPLETED if option == "allow" else pb.TOOL_STATUS_DENIED)
    assert (cwd / "hello.txt").exists() == (option == "allow")
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


async def test_an_unattended_run_is_not_asked(client: Client, cwd: Path) -> None:
    async with client.execute(execute_request("claude_agent", "MOCK_WRITE", cwd=str(cwd))) as run:
        events = await answered(run, "")
    assert bodies(events, "input_request") == []
    assert "permission_denied" in [event.notice.code for event in bodies(events, "notice")]
    assert not (cwd / "hello.txt").exists()


async def test_a_rule_allows_a_tool_without_a_question(client: Client, cwd: Path) -> None:
    request = execute_request("claude_agent", "MOCK_WRITE", cwd=str(cwd))
    rule = request.permissions.rules.add(decision=pb.PERMISSION_DECISION_ALLOW, tool_kind=pb.TOOL_KIND_EDIT)
    rule.path_glob = f"{cwd}/*"
    async with client.execute(request) as run:
        events = await answered(run, "")
    assert bodies(events, "input_request") == []
    assert (cwd / "hello.txt").read_text() == "hello from the scripted model\n"


async def test_a_run_is_cancelled(client: Client, model: ModelServer, cwd: Path) -> None:
    async with client.execute(execute_request("claude_agent", "MOCK_STALL", cwd=str(cwd))) as run:
        await anext(run)
        await model.wait_held()
        answer = await run.cancel(grace_s=5)
    assert (answer.outcome, answer.tree_confirmed_dead) == (pb.OUTCOME_CANCELLED, True)


async def test_a_session_is_resumed(client: Client, cwd: Path) -> None:
    async with client.execute(execute_request("claude_agent", "MOCK_TEXT word=tangerine", cwd=str(cwd))) as run:
        first = await answered(run, "")
    request = execute_request("claude_agent", "MOCK_RECALL", cwd=str(cwd))
    request.session.handle.CopyFrom(first[-1].result.session.handle)
    async with client.execute(request) as run:
        second = await answered(run, "")
    assert bodies(second, "started")[0].started.session_disposition == pb.SESSION_DISPOSITION_RESUME
    assert "first=[MOCK_TEXT word=tangerine]" in second[-1].result.summary


async def test_a_session_that_is_gone_is_replaced_by_a_new_one(client: Client, cwd: Path) -> None:
    request = execute_request("claude_agent", "MOCK_TEXT", cwd=str(cwd))
    request.session.handle.native_id = "00000000-0000-4000-8000-000000000000"
    async with client.execute(request) as run:
        events = await answered(run, "")
    dispositions = [event.started.session_disposition for event in bodies(events, "started")]
    assert dispositions == [pb.SESSION_DISPOSITION_RESUME, pb.SESSION_DISPOSITION_RESUME_REFUSED]
    assert bodies(events, "attempt_ended")[0].attempt_ended.failure.kind == pb.FAILURE_KIND_SESSION_LOST
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


async def test_a_failing_model_is_a_failure_with_a_kind(client: Client, cwd: Path) -> None:
    async with client.execute(execute_request("claude_agent", "MOCK_401", cwd=str(cwd))) as run:
        events = await answered(run, "")
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED


@pytest.mark.timeout(1500)
async def test_the_kit_examines_it(model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolation = isolate("claude", tmp_path / "agent", model_url=model.url)
    options = Options(command=(NODE, str(PROGRAM)), env=dict(isolation.environment), model=model)
    await examine(options, tmp_path, monkeypatch)
