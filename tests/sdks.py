"""What adapters on the SDKs of other languages do through a router, each by the same tests.

And what the documentation says that each SDK does, to be compared with what its adapters declare.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.health_port import LIVENESS
from dragoman.protocol.limits import channel_options
from dragoman.protocol.statuses import from_rpc_error
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.hostile import is_alive
from tests.router.harness import Caller, Stream
from tests.router.test_health_port import SERVING, kubelet, other_methods
from tests.router.test_metrics import free_port

__all__ = [
    "DEAF",
    "SDKS",
    "SECRET",
    "UNSERVED",
    "assert_agent_dies_with_its_adapter",
    "assert_drains_and_shows_health",
    "assert_is_cancelled_and_replayed",
    "assert_notes_in_a_hundred_lines",
    "assert_redacts_and_succeeds",
    "assert_takes_part_in_traces",
    "declared_by_adapter",
    "examine",
    "gone",
    "logged",
    "refused_rpc",
    "running",
    "shell",
    "started",
]

UNSERVED = ("Send", "UpdateRun", "GetChanges", "ReadArtifact", "Login", "SyncSkills", "OfALaterRevision")
"""RPCs that the SDKs of Go, TypeScript and Rust do not serve."""

_ROOT = Path(__file__).parents[1]
_SCRIBE = _ROOT / "adapters/examples/scribe/scribe"
SDKS: dict[str, dict[str, list[str]]] = json.loads((_ROOT / "docs/sdks.json").read_text(encoding="utf-8"))["sdks"]

SECRET = "env-0815-very-secret"
DEAF = "trap '' TERM; echo ready; while :; do sleep 1; done"
"""A script of the shell that only SIGKILL ends."""


def shell(adapter: str, script: str, cwd: Path) -> api.ExecuteRequest:
    """Return a request that has an adapter run a script of the shell as its program."""
    program = cwd / "program"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return execute_request(adapter, "hello", cwd=str(cwd), config={"command": str(program)})


def logged(events: Sequence[pb.AgentEvent]) -> list[str]:
    """Return the lines of the ``log`` events."""
    return [line for event in events if event.HasField("log") for line in event.log.text.split("\n")]


async def gone(process: int) -> None:
    """Wait until a process has ended."""
    async with asyncio.timeout(20):
        while is_alive(process):  # noqa: ASYNC110 - no process here is its parent
            await asyncio.sleep(0.01)


async def examine(*target: str) -> set[str]:
    """Examine an adapter with the conformance kit; return the rules that it passes, as it violates none."""
    command = [sys.executable, "-m", "dragoman.cli.main", "conformance", "--json", "--check-timeout", "60", *target]
    kit = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await kit.communicate()
    checks = json.loads(output.splitlines()[-1])["checks"]
    assert kit.returncode == 0, [item for item in checks if item["verdict"] in {"failed", "error"}]
    passed = {item["id"] for item in checks if item["verdict"] == "passed"}
    assert passed
    return passed


async def assert_redacts_and_succeeds(client: Client, adapter: str, folder: Path) -> None:
    """Check a run that prints a secret, and leaves a process behind."""
    script = 'cat; echo; echo "$TOKEN"; echo "with $TOKEN" >&2; sleep 60 & exit 0'
    request = shell(adapter, script, folder)
    request.env["TOKEN"] = SECRET
    async with client.execute(request) as run:
        events = [event async for event in run]
    check_stream(events, secrets=[SECRET])
    assert sorted(logged(events)) == ["[redacted]", "hello", "with [redacted]"]
    assert (events[-1].result.outcome, events[-1].result.tree_confirmed_dead) == (pb.OUTCOME_SUCCEEDED, True)


async def assert_is_cancelled_and_replayed(
    client: Client, request: api.ExecuteRequest, *, grace_s: float = 0.1, ended_by: str = "SIGKILL"
) -> None:
    """Check a run that is cancelled once it has printed "ready", and that a second reader sees it from its begin.

    Args:
        client: of a router.
        request: what runs until it is cancelled.
        grace_s: of the cancellation.
        ended_by: the signal that the result names.
    """
    async with client.execute(request) as run:
        async for event in run:
            if event.HasField("log"):
                break
        async with client.attach(run.run_id) as second:
            answer = await run.cancel(grace_s=grace_s)
            replayed = [event async for event in second]
    assert (answer.outcome, answer.tree_confirmed_dead) == (pb.OUTCOME_CANCELLED, True)
    # A shell may report the signal that ended its own child.
    assert [line for line in logged(replayed) if line != "Terminated"] == ["ready"]
    assert replayed[-1].result.signal == ended_by


async def assert_agent_dies_with_its_adapter(router: Caller, client: Client, adapter: str, folder: Path) -> None:
    """Check that a killed adapter takes its agent with it, and that a router starts it again."""
    async with client.execute(shell(adapter, 'setsid sleep 60 & echo "$!"; wait', folder)) as run:
        agent = 0
        async for event in run:
            if event.HasField("log"):
                agent = int(event.log.text)
                os.kill((await router.entry(adapter)).pid, signal.SIGKILL)
    assert run.result is not None
    assert run.result.outcome == pb.OUTCOME_LOST
    await gone(agent)
    async with client.execute(shell(adapter, "echo again", folder)) as run:
        assert logged([event async for event in run]) == ["again"]


async def assert_notes_in_a_hundred_lines(client: Client, adapter: str, source: Path, folder: Path) -> None:
    """Check the example of an adapter for JSON lines: its source's length, and a run."""
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 100
    request = execute_request(adapter, "Buy milk.", cwd=str(folder), config={"command": str(_SCRIBE)})
    async with client.execute(request) as run:
        events = [event async for event in run]
    check_stream(events)
    result = events[-1].result
    assert (result.outcome, result.summary, result.usage.tokens.input) == (pb.OUTCOME_SUCCEEDED, "Noted.", 2)
    assert (folder / "NOTES.md").read_text(encoding="utf-8") == "Buy milk.\n"


async def refused_rpc(address: str, rpc: str) -> DragomanError:
    """Return the status that refuses a unary RPC of adapters."""
    async with open_channel(address, channel_options(address)) as channel:
        call: Any = channel.unary_unary(f"/dragoman.v1.AdapterService/{rpc}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"")
    return from_rpc_error(refused.value)


@asynccontextmanager
async def started(command: Sequence[str | Path], folder: Path) -> AsyncIterator[str]:
    """Start an adapter; yield its address."""
    async with running(command, folder) as (process, address):
        yield address
        process.terminate()


@asynccontextmanager
async def running(
    command: Sequence[str | Path], folder: Path, **variables: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start an adapter with further variables; yield its process and its address."""
    address = f"unix:{folder}/a.sock"
    environment = {**os.environ, "DRAGOMAN_LISTEN": address, **variables}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"adapter ready" not in (line := await process.stderr.readline()):
            assert line, "the adapter ended before it was ready"
        yield process, address
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def assert_drains_and_shows_health(command: Sequence[str | Path], folder: Path, config: dict[str, Any]) -> None:
    """Check the port of health of an adapter, and that its live runs continue after SIGTERM, and no new ones begin.

    Args:
        command: how to start the adapter.
        folder: an empty one.
        config: settings of a run that ends once there is a file ``gate`` in the folder.
    """
    port = free_port()
    request, another = [execute_request("", "", cwd=str(folder), config=config) for _ in range(2)]
    request.orphan_after.FromSeconds(60)
    another.run_id = "another"
    variables = {"DRAGOMAN_HEALTH": str(port), "DRAGOMAN_DRAIN_GRACE": "120"}
    async with running(command, folder, **variables) as (process, address), Client(address) as client:
        caller = Caller(address)
        async with kubelet(port) as probe, caller.channel:
            assert await probe.ask() == SERVING
            for method in other_methods():
                assert await probe.refusal(method) is grpc.StatusCode.UNIMPLEMENTED, method
            async with client.execute(request) as run:
                await anext(aiter(run))
                process.terminate()
                while await probe.ask() == SERVING:
                    pass
                assert await probe.ask(LIVENESS) == SERVING, "what drains must not be killed"
                assert (await Stream(caller.adapter.Execute(another)).error()).reason is Reason.DRAINING
                (folder / "gate").touch()
                async for _event in run:
                    pass
        assert run.result is not None
        assert run.result.outcome == pb.OUTCOME_SUCCEEDED, run.result
        assert await process.wait() == 0


async def assert_takes_part_in_traces(
    command: Sequence[str | Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the trace of a call reaches the environment of a program, and the adapter's log.

    Args:
        command: how to start an adapter that runs the program of the setting ``command``, and logs what it prints.
        folder: an empty one.
        monkeypatch: of the test.
    """
    program = folder / "program"
    program.write_text('#!/bin/sh\necho "trace=$TRACEPARENT state=$TRACESTATE"\n', encoding="utf-8")
    program.chmod(0o755)
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with running(command, folder) as (process, address):
        monkeypatch.setenv("TRACEPARENT", f"00-{trace}-{span}-01")
        monkeypatch.setenv("TRACESTATE", "vendor=1")
        request = execute_request("", "", cwd=str(folder), config={"command": str(program)})
        async with Client(address) as client, client.execute(request) as run:
            printed = [event.log.text async for event in run if event.HasField("log")]
        process.terminate()
        assert process.stderr is not None
        lines = [json.loads(line) async for line in process.stderr]
    assert printed == [f"trace=00-{trace}-{span}-01 state=vendor=1"]
    own = [line for line in lines if line.get("run_id") == run.run_id]
    assert own
    for line in own:
        assert (line["trace_id"], line["span_id"]) == (trace, span)


async def declared_by_adapter(command: Sequence[str | Path], folder: Path) -> list[str]:
    """Start an adapter, and return the duties that it declares."""
    async with started(command, folder) as address, Client(address) as client:
        described = await client.describe("")
    return [api.Duty.Name(duty) for duty in described.duties]
