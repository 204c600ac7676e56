"""Routers, manifests and callers for these tests."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import channel_options
from dragoman.protocol.statuses import from_rpc_error
from dragoman.router.app import Router, RouterConfig
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc, event_pb2, router_pb2, router_pb2_grpc

PROGRAM = Path(__file__).with_name("sidecar.py")
PATIENCE_S = 20.0
"""How long a test waits for what must come."""


def manifest(folder: Path, type_: str, *, file: str = "", env: dict[str, str] | None = None, **more: Any) -> Path:
    """Write a manifest that launches the sidecar program."""
    content = {
        "type": type_,
        "command": [sys.executable, str(PROGRAM)],
        "env": {"SIDECAR_TYPE": type_, **(env or {})},
        **more,
    }
    path = folder / f"{file or type_}.json"
    path.write_text(json.dumps(content))
    return path


def config(folder: Path, **fields: Any) -> RouterConfig:
    """Return a configuration that touches nothing of this machine's user."""
    state = folder / "s"
    defaults: dict[str, Any] = {
        "listen": (f"unix:{folder}/r.sock",),
        "state_dir": state,
        "entry_points": False,
        "user_manifests": False,
    }
    return RouterConfig(**{**defaults, **fields})


class Caller:
    """A client without any comfort: what it gets is what was sent."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=channel_options(address))
        self.adapter: adapter_pb2_grpc.AdapterServiceAsyncStub = adapter_pb2_grpc.AdapterServiceStub(self._channel)
        self.router: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(self._channel)
        self.channel = self._channel

    async def close(self) -> None:
        await self._channel.close()

    def execute(self, adapter: str, *steps: Any, run_id: str = "", **fields: Any) -> "Stream":
        """Start a run that does these steps."""
        request = pb.ExecuteRequest(adapter=adapter, run_id=run_id, prompt=json.dumps(steps), **fields)
        return Stream(self.adapter.Execute(request))

    def attach(self, run_id: str, after: int = 0, **fields: Any) -> "Stream":
        """Follow a run."""
        return Stream(self.adapter.Attach(pb.AttachRequest(run_id=run_id, after_sequence=after, **fields)))

    async def entry(self, type_: str) -> router_pb2.AdapterEntry:
        """Return what ``ListAdapters`` reports of one adapter."""
        listed = await self.router.ListAdapters(router_pb2.ListAdaptersRequest(), timeout=PATIENCE_S)
        return next(entry for entry in listed.adapters if entry.adapter == type_)

    async def until(self, type_: str, state: router_pb2.AdapterState.ValueType) -> router_pb2.AdapterEntry:
        """Wait until an adapter is in this state."""
        watch = self.router.WatchAdapters(router_pb2.WatchAdaptersRequest(), timeout=PATIENCE_S)
        async for response in watch:
            for entry in response.adapters:
                if entry.adapter == type_ and entry.state == state:
                    watch.cancel()
                    return entry
        raise AssertionError(f"{type_} never came into state {state}")

    async def until_listed(
        self, holds: Callable[[Sequence[router_pb2.AdapterEntry]], object]
    ) -> Sequence[router_pb2.AdapterEntry]:
        """Wait until the list of adapters is like this, and return it."""
        watch = self.router.WatchAdapters(router_pb2.WatchAdaptersRequest(), timeout=PATIENCE_S)
        async for response in watch:
            if holds(response.adapters):
                watch.cancel()
                return response.adapters
        raise AssertionError("the list never was like that")

    async def until_gone(self, type_: str) -> None:
        """Wait until an adapter is no longer listed."""
        await self.until_listed(lambda entries: all(entry.adapter != type_ for entry in entries))

    async def until_known(self, run_id: str) -> None:
        """Wait until the router has heard of a run, whether or not it is accepted."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.run(run_id)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)  # there is no event for it
                else:
                    return

    async def run(self, run_id: str) -> router_pb2.GetRunResponse:
        """Return what the router knows of a run."""
        return await self.router.GetRun(router_pb2.GetRunRequest(run_id=run_id), timeout=PATIENCE_S)


class Stream:
    """One stream of events."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def run_id(self) -> str:
        """Return the run's id from the initial metadata."""
        async with asyncio.timeout(PATIENCE_S):
            metadata = await self.call.initial_metadata()
        return str(next(value for key, value in metadata if key == "dragoman-run-id"))

    async def next(self) -> event_pb2.AgentEvent:
        """Return the next event.

        Raises:
            DragomanError: the stream's status.
            EOFError: the stream ended well.
        """
        async with asyncio.timeout(PATIENCE_S):
            try:
                event = await self.call.read()
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from None
        if event is grpc.aio.EOF:
            raise EOFError
        assert isinstance(event, event_pb2.AgentEvent)
        return event

    async def until(self, kind: str) -> list[event_pb2.AgentEvent]:
        """Return the events up to the first of this kind."""
        events = [await self.next()]
        while events[-1].WhichOneof("body") != kind:
            events.append(await self.next())
        return events

    async def rest(self) -> list[event_pb2.AgentEvent]:
        """Return all events to the end, which is a good one."""
        events = []
        with contextlib.suppress(EOFError):
            while True:
                events.append(await self.next())
        return events

    async def error(self) -> DragomanError:
        """Return the status that the stream ends with, passing over its events."""
        try:
            while True:
                await self.next()
        except DragomanError as error:
            return error

    async def rest_or_error(self) -> Reason | None:
        """Read to the end, whatever it is; return the reason if it is a status."""
        try:
            await self.rest()
        except DragomanError as error:
            return error.reason
        return None

    def cancel(self) -> None:
        self.call.cancel()


@contextlib.asynccontextmanager
async def routing(configured: RouterConfig) -> AsyncIterator[tuple[Router, Caller]]:
    """Run a router, and a caller of it."""
    async with Router(configured) as router:
        caller = Caller(router.addresses[0])
        try:
            yield router, caller
        finally:
            await caller.close()


async def failure(call: Any) -> DragomanError:
    """Return the status that a call fails with."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError(f"the call succeeded: {answer}")


async def gone(pid: int) -> None:
    """Wait until a process is gone."""
    if not hasattr(os, "pidfd_open"):  # an interpreter built for an old C library
        with contextlib.suppress(psutil.NoSuchProcess):
            await asyncio.to_thread(psutil.Process(pid).wait, PATIENCE_S)
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kinds(events: Sequence[event_pb2.AgentEvent]) -> list[str]:
    """Return what the events are, short: ``text:hello`` or the kind."""
    return [
        f"text:{event.text.delta}" if event.WhichOneof("body") == "text" else str(event.WhichOneof("body"))
        for event in events
    ]


def sequences(events: Sequence[event_pb2.AgentEvent]) -> list[int]:
    """Return the sequences of durable events."""
    return [event.sequence for event in events if event.sequence]


class Proxy:
    """Passes bytes between two sockets, until the link is cut."""

    def __init__(self, listen: Path, target: Path) -> None:
        self._listen = listen
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def restore(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_unix_server(self._serve, str(self._listen))

    async def cut(self) -> None:
        """Break all connections and take no more."""
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        self._listen.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        self._writers -= {writer, far_writer}


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one of the two ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
