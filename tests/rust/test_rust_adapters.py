"""Adapters in Rust through a router, and against the conformance kit: `make test-rust` builds and names them."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from dragoman.client import Client, execute_request
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.hostile import is_alive
from tests.router.harness import Caller, config, manifest, routing
from tests.sdks import (
    DEAF,
    SDKS,
    SECRET,
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
    shell,
)

pytestmark = [pytest.mark.rust, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "build/rust/debug/examples"
PROCESS = EXAMPLES / "process"
PROGRAM = ("--config", '{"command": "{script}"}')
"""What has the adapter ``process`` run the kit's program."""


@pytest_asyncio.fixture
async def router(tmp_path: Path) -> AsyncIterator[Caller]:
    """A router with the Rust adapters of this project."""
    programs = {"process_rust": PROCESS, "scribe_rust": EXAMPLES / "scribe", "streamtext": EXAMPLES / "streamtext"}
    manifests = tuple(manifest(tmp_path, name, command=[str(path)]) for name, path in programs.items())
    async with routing(config(tmp_path, manifests=manifests)) as (_router, caller):
        yield caller


@pytest_asyncio.fixture
async def client(router: Caller, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of that router."""
    del router  # it serves
    async with Client(f"unix:{tmp_path}/r.sock") as opened:
        yield opened


async def test_a_run_through_the_router(client: Client, tmp_path: Path) -> None:
    await assert_redacts_and_succeeds(client, "process_rust", tmp_path)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("setsid sh -c 'exec >/dev/null 2>&1 </dev/null; sleep 60' & echo $!", id="a daemon"),
        pytest.param("setsid env -i sleep 60 & echo $!", id="without variables"),
        pytest.param("sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo $!", id="deaf"),
    ],
)
async def test_what_a_program_leaves_behind_is_ended(client: Client, tmp_path: Path, script: str) -> None:
    async with client.execute(shell("process_rust", script, tmp_path)) as run:
        events = [event async for event in run]
    assert (events[-1].result.outcome, events[-1].result.tree_confirmed_dead) == (pb.OUTCOME_SUCCEEDED, True)
    assert not is_alive(int(logged(events)[0]))


@pytest.mark.parametrize(
    ("script", "grace_s", "ended_by"),
    [
        pytest.param("echo ready; exec sleep 60", 20.0, "SIGTERM", id="that obeys"),
        pytest.param(DEAF, 0.1, "SIGKILL", id="that is deaf"),
        pytest.param("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done", 20.0, "", id="that ends well"),
        pytest.param("echo ready; kill -STOP $$", 20.0, "SIGTERM", id="that stopped itself"),
    ],
)
async def test_cancel_of_a_program(
    client: Client, tmp_path: Path, script: str, grace_s: float, ended_by: str
) -> None:
    request = shell("process_rust", script, tmp_path)
    await assert_is_cancelled_and_replayed(client, request, grace_s=grace_s, ended_by=ended_by)


async def test_a_killed_adapter_takes_its_agent_with_it(router: Caller, client: Client, tmp_path: Path) -> None:
    await assert_agent_dies_with_its_adapter(router, client, "process_rust", tmp_path)


async def test_an_agent_that_kills_its_guard_is_ended(client: Client, tmp_path: Path) -> None:
    script = "setsid sleep 60 & echo $!; kill -KILL $PPID; sleep 60"
    async with client.execute(shell("process_rust", script, tmp_path)) as run:
        events = [event async for event in run]
    result = events[-1].result
    assert (result.outcome, result.failure.code) == (pb.OUTCOME_FAILED, "vanished")
    assert not result.tree_confirmed_dead
    await gone(int(logged(events)[0]))


async def test_much_output_is_joined_and_none_is_lost(client: Client, tmp_path: Path) -> None:
    async with client.execute(shell("process_rust", "seq 1 20000", tmp_path)) as run:
        events = [event async for event in run]
    check_stream(events)
    assert logged(events) == [str(number) for number in range(1, 20001)]
    assert len(events) < 10000


async def test_programs_that_cannot_be_started(client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for command, kind, code in [
        ("no-such-program", pb.FAILURE_KIND_NOT_INSTALLED, "command_not_found"),
        (str(folder), pb.FAILURE_KIND_SPAWN_FAILED, "spawn_eacces"),
    ]:
        request = execute_request("process_rust", "hello", cwd=str(tmp_path), config={"command": command})
        async with client.execute(request) as run:
            events = [event async for event in run]
        check_stream(events)
        assert (events[-1].result.failure.kind, events[-1].result.failure.code) == (kind, code)


async def test_wrong_settings_are_refused_with_their_path(client: Client, tmp_path: Path) -> None:
    request = execute_request("process_rust", "hello", cwd=str(tmp_path), config={"comand": "x"})
    with pytest.raises(DragomanError) as refused:
        async with client.execute(request) as run:
            await anext(aiter(run))
    assert refused.value.reason == Reason.INVALID_REQUEST
    assert "did you mean command?" in str(refused.value)


async def test_an_adapter_for_json_lines_is_written_in_a_hundred_lines(client: Client, tmp_path: Path) -> None:
    source = ROOT / "adapters/rust/examples/scribe.rs"
    await assert_notes_in_a_hundred_lines(client, "scribe_rust", source, tmp_path)


async def test_an_adapter_on_the_stubs_alone_runs_behind_the_router(client: Client) -> None:
    request = api.ExecuteRequest(adapter="streamtext", prompt_template=f"for {{{{runId}}}} {SECRET}", run_id="r-1")
    request.env["TOKEN"] = SECRET
    async with client.execute(request) as run:
        events = [event async for event in run]
    check_stream(events, secrets=[SECRET])
    assert "".join(event.text.delta for event in events) == "for r-1 [redacted]"


async def test_reflection_has_the_comments_of_the_contract(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    environment = {**os.environ, "DRAGOMAN_LISTEN": address}
    process = await asyncio.create_subprocess_exec(PROCESS, env=environment, stderr=asyncio.subprocess.DEVNULL)
    try:
        # The HTTP/2 of Rust takes no path for a host, which is what this library sends by default.
        async with grpc.aio.insecure_channel(address, options=[("grpc.default_authority", "localhost")]) as channel:
            call = channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )
            asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="dragoman.v1.AdapterService")
            answers = [answer async for answer in call(iter([asked]), wait_for_ready=True, timeout=20)]
    finally:
        process.terminate()
        assert await process.wait() == 0
    data = answers[0].file_descriptor_response.file_descriptor_proto
    files = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in data]
    comments = [location.leading_comments for file in files for location in file.source_code_info.location]
    assert any(comment.startswith(" AdapterService runs one agent.") for comment in comments)


async def test_it_passes_the_conformance_kit() -> None:
    await examine(*PROGRAM, "--", str(PROCESS))


async def test_it_passes_the_conformance_kit_behind_the_router(router: Caller, tmp_path: Path) -> None:
    del router  # it serves
    await examine(*PROGRAM, "--adapter", "process_rust", f"unix:{tmp_path}/r.sock")


async def test_it_declares_what_the_documentation_says(tmp_path: Path) -> None:
    assert await declared_by_adapter([PROCESS], tmp_path) == SDKS["Rust"]["declares"]


async def test_it_takes_part_in_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await assert_takes_part_in_traces([PROCESS], tmp_path, monkeypatch)


async def test_live_runs_continue_after_sigterm_and_health_has_a_port(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nuntil [ -e gate ]; do sleep 0.05; done\n")
    program.chmod(0o755)
    await assert_drains_and_shows_health([PROCESS], tmp_path, {"command": str(program)})
