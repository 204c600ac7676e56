"""The client and adapters in TypeScript through a router, and against the kit: `make test-typescript`."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.client import Client, execute_request
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.hostile import is_alive
from tests.router.harness import Caller, config, manifest, routing
from tests.sdks import (
    SDKS,
    UNSERVED,
    assert_drains_and_shows_health,
    assert_takes_part_in_traces,
    declared_by_adapter,
    refused_rpc,
    started,
)

pytestmark = [pytest.mark.typescript, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node") or "node"
SDK = ROOT / "adapters/typescript/dist"
CLIENT = ROOT / "clients/typescript/dist"
SCRIBE = ROOT / "adapters/examples/scribe/scribe"
SECRET = "env-0815-very-secret"
PROGRAMS = {
    "scribe_ts": SDK / "examples/scribe.js",
    "bare_ts": SDK / "examples/bare.js",
    "lines": SDK / "test/lines.js",
    "scripted": SDK / "test/scripted.js",
}


@pytest_asyncio.fixture
async def router(tmp_path: Path) -> AsyncIterator[Caller]:
    """A router with the TypeScript adapters of this project."""
    manifests = tuple(manifest(tmp_path, name, command=[NODE, str(path)]) for name, path in PROGRAMS.items())
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
    program = cwd / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return execute_request("lines", "hello", cwd=str(cwd), config={"command": str(program)})


def logged(events: list[pb.AgentEvent]) -> list[str]:
    return [event.log.text for event in events if event.HasField("log")]


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
                os.kill((await router.entry("lines")).pid, signal.SIGKILL)
    assert run.result is not None
    assert run.result.outcome == pb.OUTCOME_LOST
    await _gone(agent)
    async with client.execute(shell("echo again", tmp_path)) as run:
        assert logged([event async for event in run]) == ["again"]


async def test_a_killed_adapter_takes_its_agent_with_it_without_a_router(tmp_path: Path) -> None:
    socket = f"unix:{tmp_path}/a.sock"
    adapter = await asyncio.create_subprocess_exec(
        NODE, str(PROGRAMS["lines"]), env={**os.environ, "DRAGOMAN_LISTEN": socket}, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert adapter.stderr is not None
        assert b"adapter ready" in await adapter.stderr.readline()
        async with (
            Client(socket) as client,
            client.execute(shell('setsid sleep 60 & echo "$!"; wait', tmp_path)) as run,
        ):
            agent = 0
            while not agent:
                event = await anext(run)
                agent = int(event.log.text) if event.HasField("log") else 0
            adapter.kill()
            await _gone(agent)
    finally:
        if adapter.returncode is None:
            adapter.kill()
        await adapter.wait()


async def _gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while is_alive(pid):  # noqa: ASYNC110 - no process here is its parent
            await asyncio.sleep(0.01)


async def test_an_adapter_for_json_lines_is_written_in_a_hundred_lines(client: Client, tmp_path: Path) -> None:
    source = ROOT / "adapters/typescript/examples/scribe.ts"
    assert len(source.read_text().splitlines()) <= 100
    request = execute_request("scribe_ts", "Buy milk.", cwd=str(tmp_path), config={"command": str(SCRIBE)})
    async with client.execute(request) as run:
        events = [event async for event in run]
    check_stream(events)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert events[-1].result.summary == "Noted."
    assert events[-1].result.usage.tokens.input == 2
    assert (tmp_path / "NOTES.md").read_text() == "Buy milk.\n"


async def test_a_router_keeps_its_promises_for_a_bare_adapter(client: Client) -> None:
    async def answer(request: api.ExecuteRequest) -> tuple[str, pb.Result]:
        request.adapter = "bare_ts"
        async with client.execute(request) as run:
            events = [event async for event in run]
        check_stream(events)
        return "".join(event.text.delta for event in events), events[-1].result

    template = api.ExecuteRequest(
        prompt_template="I am {{agent.name}}{{context.absent}}.", agent=api.Agent(name="Ada")
    )
    assert (await answer(template))[0] == "I am Ada."
    assert (await answer(api.ExecuteRequest(prompt="It is $TOKEN indeed", env={"TOKEN": SECRET})))[
        0
    ] == "It is [redacted] indeed"
    waits = api.ExecuteRequest(prompt="Wait forever")
    waits.limits.wall.FromMilliseconds(200)
    assert (await answer(waits))[1].failure.kind == pb.FAILURE_KIND_WALL_TIMEOUT
    assert (await answer(api.ExecuteRequest(prompt="Much too long", limits=pb.Limits(output_bytes=4))))[0] == "Much"
    with pytest.raises(DragomanError, match="model"):
        await answer(api.ExecuteRequest(prompt="Hello", model="large"))


async def test_templates_of_an_adapter_on_the_sdk_are_rendered_by_the_router(client: Client, tmp_path: Path) -> None:
    request = shell("cat", tmp_path)
    request.prompt_template = "I am {{agent.name}}."
    request.agent.name = "Ada"
    async with client.execute(request) as run:
        assert logged([event async for event in run]) == ["I am Ada."]


async def test_a_permission_is_asked_and_answered_through_the_router(client: Client) -> None:
    request = api.ExecuteRequest(adapter="scripted", prompt="dragoman-script:\nask=Bash\n---\nHello.")
    request.permissions.interactive = True
    async with client.execute(request) as run:
        texts = []
        async for event in run:
            if event.HasField("input_request"):
                await run.respond(event.input_request.id, pb.InputAnswer(option_ids=["allow"]))
            if event.HasField("text"):
                texts.append(event.text.whole)
    assert texts == ["allowed"]


@pytest.mark.parametrize("runtime", ["node", "bun"])
async def test_the_client_runs_on(runtime: str, tmp_path: Path) -> None:
    program = ROOT / "node_modules/.bin/bun" if runtime == "bun" else NODE
    process_adapter = manifest(
        tmp_path, "process", command=[sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process"]
    )
    async with routing(config(tmp_path, manifests=(process_adapter,))):
        process = await asyncio.create_subprocess_exec(
            str(program),
            str(CLIENT / "examples/hello.js"),
            env={**os.environ, "DRAGOMAN_ROUTER": f"unix:{tmp_path}/r.sock"},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    assert output.decode().splitlines() == ["hello", "SUCCEEDED"]


async def test_a_program_passes_the_conformance_kit() -> None:
    await _examine("--config", '{"command": "{script}"}', "--", NODE, str(PROGRAMS["lines"]))


async def test_a_program_passes_the_conformance_kit_behind_the_router(router: Caller, tmp_path: Path) -> None:
    del router  # it serves
    await _examine("--config", '{"command": "{script}"}', "--adapter", "lines", f"unix:{tmp_path}/r.sock")


async def test_an_agent_in_the_process_that_asks_passes_the_conformance_kit() -> None:
    rules = ("respond.", "permissions.", "attach.", "events.", "batching.", "unsupported.", "secrets.")
    only = [argument for rule in rules for argument in ("--only", rule)]
    await _examine("--agent", "script", *only, "--", NODE, str(PROGRAMS["scripted"]))


async def _examine(*target: str) -> None:
    command = [sys.executable, "-m", "dragoman.cli.main", "conformance", "--json", "--check-timeout", "60", *target]
    kit = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await kit.communicate()
    assert kit.returncode == 0, output.decode()
    assert json.loads(output.splitlines()[-1])["passed"] > 0


async def test_it_declares_what_the_documentation_says(tmp_path: Path) -> None:
    assert await declared_by_adapter([NODE, PROGRAMS["lines"]], tmp_path) == SDKS["TypeScript"]["declares"]


@pytest.mark.parametrize("rpc", UNSERVED)
async def test_an_rpc_that_is_not_served_is_refused_with_a_reason(rpc: str, tmp_path: Path) -> None:
    async with started([NODE, PROGRAMS["lines"]], tmp_path) as address:
        error = await refused_rpc(address, rpc)
    assert (error.reason, error.code.name) == (Reason.NOT_IMPLEMENTED, "UNIMPLEMENTED")


async def test_it_takes_part_in_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await assert_takes_part_in_traces([NODE, PROGRAMS["scribe_ts"]], tmp_path, monkeypatch)


async def test_live_runs_continue_after_sigterm_and_health_has_a_port(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nuntil [ -e gate ]; do sleep 0.05; done\n")
    program.chmod(0o755)
    await assert_drains_and_shows_health([NODE, PROGRAMS["lines"]], tmp_path, {"command": str(program)})
