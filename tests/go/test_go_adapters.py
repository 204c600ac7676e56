"""Adapters in Go through a router, and against the conformance kit: `make test-go` builds and names them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.client import Client, execute_request
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.hostile import is_alive
from tests.router.harness import Caller, config, manifest, routing

pytestmark = [pytest.mark.go, pytest.mark.timeout(180)]

BUILD = Path(__file__).parents[2] / "build"
EXEC = BUILD / "dragoman-exec"
SCRIBE = Path(__file__).parents[2] / "adapters/examples/scribe/scribe"
LARGEST = 15_000_000
SECRET = "env-0815-very-secret"


@pytest_asyncio.fixture
async def router(tmp_path: Path) -> AsyncIterator[Caller]:
    """A router with the Go adapters of this project."""
    programs = {"process": EXEC, "scribe_go": BUILD / "scribe-go", "streamtext": BUILD / "streamtext"}
    manifests = tuple(manifest(tmp_path, name, command=[str(path)]) for name, path in programs.items())
    async with routing(config(tmp_path, manifests=manifests)) as (_router, caller):
        yield caller


@pytest_asyncio.fixture
async def client(router: Caller, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of that router."""
    del router  # it serves
    async with Client(f"unix:{tmp_path}/r.sock") as opened:
        yield opened


def shell(script: str, cwd: Path) -> api.ExecuteRequest:
    """Return a request that runs a script of the shell."""
    return execute_request("process", "hello", cwd=str(cwd), config={"command": "/bin/sh", "args": ["-c", script]})


def logged(events: list[pb.AgentEvent]) -> list[str]:
    return [event.log.text for event in events if event.HasField("log")]


def test_it_is_one_small_static_program() -> None:
    data = EXEC.read_bytes()
    assert len(data) < LARGEST
    assert b"/ld-linux" not in data, "it needs no loader of shared libraries"


async def test_a_run_through_the_router(client: Client, tmp_path: Path) -> None:
    request = shell('cat; echo; echo "$TOKEN"; sleep 60 & exit 0', tmp_path)
    request.env["TOKEN"] = SECRET
    async with client.execute(request) as run:
        events = [event async for event in run]
    check_stream(events, secrets=[SECRET])
    assert logged(events) == ["hello", "[redacted]"]
    assert (events[-1].result.outcome, events[-1].result.tree_confirmed_dead) == (pb.OUTCOME_SUCCEEDED, True)


async def test_cancel_and_attach_through_the_router(client: Client, tmp_path: Path) -> None:
    async with client.execute(shell("trap '' TERM; echo ready; while :; do sleep 1; done", tmp_path)) as run:
        async for event in run:
            if event.HasField("log"):
                break
        async with client.attach(run.run_id) as second:
            answer = await run.cancel(grace_s=0.1)
            replayed = [event async for event in second]
    assert (answer.outcome, answer.tree_confirmed_dead) == (pb.OUTCOME_CANCELLED, True)
    # A shell may report the signal that ended its own child.
    assert [line for line in logged(replayed) if line != "Terminated"] == ["ready"]
    assert replayed[-1].result.signal == "SIGKILL"


async def test_a_killed_adapter_takes_its_agent_with_it(router: Caller, client: Client, tmp_path: Path) -> None:
    async with client.execute(shell('setsid sleep 60 & echo "$!"; wait', tmp_path)) as run:
        agent = 0
        async for event in run:
            if event.HasField("log"):
                agent = int(event.log.text)
                os.kill((await router.entry("process")).pid, signal.SIGKILL)
    assert run.result is not None
    assert run.result.outcome == pb.OUTCOME_LOST
    async with asyncio.timeout(20):
        while is_alive(agent):  # noqa: ASYNC110 - no process here is its parent
            await asyncio.sleep(0.01)
    async with client.execute(shell("echo again", tmp_path)) as run:
        assert logged([event async for event in run]) == ["again"]


async def test_an_adapter_for_json_lines_is_written_in_a_hundred_lines(client: Client, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "adapters/go/examples/scribe/main.go"
    assert len(source.read_text().splitlines()) <= 100
    request = execute_request("scribe_go", "Buy milk.", cwd=str(tmp_path), config={"command": str(SCRIBE)})
    async with client.execute(request) as run:
        events = [event async for event in run]
    check_stream(events)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert events[-1].result.summary == "Noted."
    assert events[-1].result.usage.tokens.input == 2
    assert (tmp_path / "NOTES.md").read_text() == "Buy milk.\n"


async def test_an_adapter_on_the_stubs_alone_runs_behind_the_router(client: Client) -> None:
    async with client.execute(api.ExecuteRequest(adapter="streamtext", prompt="some words")) as run:
        events = [event async for event in run]
    check_stream(events)
    assert "".join(event.text.delta for event in events) == "some words"


async def test_it_passes_the_conformance_kit() -> None:
    await _examine("--", str(EXEC))


async def test_it_passes_the_conformance_kit_behind_the_router(router: Caller, tmp_path: Path) -> None:
    del router  # it serves
    await _examine("--adapter", "process", f"unix:{tmp_path}/r.sock")


async def _examine(*target: str) -> None:
    settings = '{"command": "{script}", "output": "jsonl"}'
    command = [sys.executable, "-m", "dragoman.cli.main", "conformance", "--config", settings, *target]
    kit = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await kit.communicate()
    assert kit.returncode == 0, output.decode()
    assert " passed" in output.decode()
