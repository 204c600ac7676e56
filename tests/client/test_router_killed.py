"""A run whose router is killed before it has answered the very first call, and started again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dragoman.client import Client, RunStream, execute_request
from dragoman.protocol.order import OrderChecker
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.cli.program import start
from tests.router.harness import PATIENCE_S, Proxy

# Each starts several programs, which take seconds each on a busy machine.
pytestmark = pytest.mark.timeout(240)

AGENT = "echo began >> journal; read go < gate; echo went"


class DeafProxy(Proxy):
    """Lets nothing through to the client while it is deaf."""

    deaf = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write = writer.write
        # What the far side says goes out through this one writer.
        writer.write = lambda data: None if self.deaf else write(data)  # type: ignore[method-assign]  # one proxy's own
        await super()._serve(reader, writer)


class RouterProgram:
    """``dragoman serve`` with directories of its own, behind a connection that can be made deaf."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.proxy = DeafProxy(folder / "p.sock", folder / "r.sock")
        self.address = f"unix:{folder}/p.sock"

    async def start(self) -> None:
        home = str(self._folder)
        env = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"), home)
        options = ("--listen", f"unix:{home}/r.sock", "--state-dir", f"{home}/s", "--max-runs", "process=1")
        self._process = await start("serve", *options, env=env, stderr=asyncio.subprocess.DEVNULL)
        assert self._process.stdout is not None
        assert b"listening" in await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self.signal(number)
            await asyncio.wait_for(self._process.communicate(), PATIENCE_S)


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[RouterProgram]:
    router = RouterProgram(tmp_path)
    await router.start()
    await router.proxy.restore()
    yield router
    await router.end(signal.SIGTERM)
    await router.proxy.cut()


async def _all(run: RunStream) -> list[pb.AgentEvent]:
    return [event async for event in run]


def _request(command: str, folder: Path) -> api.ExecuteRequest:
    return execute_request("process", cwd=str(folder), config={"command": "/bin/sh", "args": ["-c", command]})


async def _until_it_began(folder: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (folder / "journal").exists():  # noqa: ASYNC110 - a file has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_received", [False, True], ids=["call not received", "run under way"])
async def test_the_run_is_there_once_and_whole(is_received: bool, router: RouterProgram, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    request = _request(AGENT, tmp_path)
    async with Client(router.address) as client:
        await client._channel.wait_until_connected()  # connected, and nothing was asked yet
        router.proxy.deaf = True
        if not is_received:
            router.signal(signal.SIGSTOP)
        reading = asyncio.ensure_future(_all(client.execute(request)))
        if is_received:
            await _until_it_began(tmp_path)
        else:
            await asyncio.wait([reading], timeout=0.2)  # it lies in the socket, unread
        await router.end(signal.SIGKILL)
        router.proxy.deaf = False
        await router.start()
        await _until_it_began(tmp_path)
        with (tmp_path / "gate").open("w") as gate:
            gate.write("go\n")
        events = await asyncio.wait_for(reading, PATIENCE_S)
    assert (tmp_path / "journal").read_text() == "began\n"
    assert [event.log.text for event in events if event.HasField("log")] == ["went"]
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    checker = OrderChecker()
    checker.observe_all(events)
    checker.finish()


async def test_a_run_that_waited_for_a_place_is_begun_by_the_next_router(
    router: RouterProgram, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    second = _request("echo second", tmp_path)
    second.admission.longest_wait.FromSeconds(60)
    async with Client(router.address) as client:
        first = asyncio.ensure_future(_all(client.execute(_request(AGENT, tmp_path))))
        await _until_it_began(tmp_path)
        waiting = client.execute(second)
        assert (await anext(waiting)).state.phase == pb.RUN_PHASE_QUEUED
        reading = asyncio.ensure_future(_all(waiting))
        await router.end(signal.SIGKILL)
        await router.start()
        with (tmp_path / "gate").open("w") as gate:
            gate.write("go\n")
        for events, text in ((await first, "went"), (await asyncio.wait_for(reading, PATIENCE_S), "second")):
            assert [event.log.text for event in events if event.HasField("log")] == [text]
            assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert (tmp_path / "journal").read_text() == "began\n"
