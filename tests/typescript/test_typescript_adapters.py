"""The client and adapters in TypeScript through a router, and against the kit: `make test-typescript`."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.client import Client
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.router.harness import Caller, config, manifest, routing
from tests.sdks import (
    DEAF,
    SDKS,
    SECRET,
    UNSERVED,
    assert_agent_dies_with_its_adapter,
    assert_drains_and_shows_health,
    assert_is_cancelled_and_replayed,
    assert_notes_in_a_hundred_lines,
    assert_redacts_and_succeeds,
    assert_takes_part_in_traces,
    declared_by_adapter,
    examine,
    gone,
    logged,
    refused_rpc,
    running,
    shell,
    started,
)

pytestmark = [pytest.mark.typescript, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node") or "node"
SDK = ROOT / "adapters/typescript/dist"
CLIENT = ROOT / "clients/typescript/dist"
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


async def test_a_run_through_the_router(client: Client, tmp_path: Path) -> None:
    await assert_redacts_and_succeeds(client, "lines", tmp_path)


async def test_cancel_and_attach_through_the_router(client: Client, tmp_path: Path) -> None:
    await assert_is_cancelled_and_replayed(client, shell("lines", DEAF, tmp_path))


async def test_a_killed_adapter_takes_its_agent_with_it(router: Caller, client: Client, tmp_path: Path) -> None:
    await assert_agent_dies_with_its_adapter(router, client, "lines", tmp_path)


async def test_a_killed_adapter_takes_its_agent_with_it_without_a_router(tmp_path: Path) -> None:
    async with (
        running([NODE, PROGRAMS["lines"]], tmp_path) as (adapter, address),
        Client(address) as client,
        client.execute(shell("lines", 'setsid sleep 60 & echo "$!"; wait', tmp_path)) as run,
    ):
        agent = 0
        while not agent:
            event = await anext(run)
            agent = int(event.log.text) if event.HasField("log") else 0
        adapter.kill()
        await gone(agent)


async def test_an_adapter_for_json_lines_is_written_in_a_hundred_lines(client: Client, tmp_path: Path) -> None:
    source = ROOT / "adapters/typescript/examples/scribe.ts"
    await assert_notes_in_a_hundred_lines(client, "scribe_ts", source, tmp_path)


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
    request = shell("lines", "cat", tmp_path)
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
    await examine("--config", '{"command": "{script}"}', "--", NODE, str(PROGRAMS["lines"]))


async def test_a_program_passes_the_conformance_kit_behind_the_router(router: Caller, tmp_path: Path) -> None:
    del router  # it serves
    await examine("--config", '{"command": "{script}"}', "--adapter", "lines", f"unix:{tmp_path}/r.sock")


async def test_an_agent_in_the_process_that_asks_passes_the_conformance_kit() -> None:
    rules = ("respond.", "permissions.", "attach.", "events.", "batching.", "unsupported.", "secrets.")
    only = [argument for rule in rules for argument in ("--only", rule)]
    await examine("--agent", "script", *only, "--", NODE, str(PROGRAMS["scripted"]))


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
