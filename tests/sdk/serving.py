"""A tiny adapter that does what a test says, behind a real in-process server, and readers that check the order."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.limits import channel_options
from dragoman.protocol.order import OrderChecker
from dragoman.protocol.statuses import from_rpc_error
from dragoman.sdk import Adapter, AdapterInfo, AdapterServer, Run, capabilities
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import adapter_pb2_grpc
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2

DEADLINE_S = 20.0
"""Seconds after which anything awaited here is a failure; nothing takes that long."""

SUCCEEDED = pb.Result(outcome=pb.OUTCOME_SUCCEEDED)
CANCELLED = pb.Result(outcome=pb.OUTCOME_CANCELLED, tree_confirmed_dead=True)

Script = Callable[[Run], Awaitable[pb.Result]]


async def nothing(run: Run) -> pb.Result:
    """Do nothing, with success."""
    run.started(pb.Started())
    return SUCCEEDED


async def until_cancelled(run: Run) -> pb.Result:
    """Run until it is cancelled."""
    run.started(pb.Started())
    await run.cancellation.changed.wait()
    return CANCELLED


async def until_the_last(run: Run) -> pb.Result:
    """Go on until a cancel's time is up, whichever of several cancels has the shortest."""
    run.started(pb.Started())
    loop = asyncio.get_running_loop()
    while run.cancellation.deadline is None or run.cancellation.deadline > loop.time():
        await run.cancellation.changed.wait()
        run.cancellation.changed.clear()
    return CANCELLED


@dataclass
class Scripted(Adapter):
    """Does in each run what its script says."""

    script: Script = nothing
    refuse: DragomanError | None = None
    runs: list[Run] = field(default_factory=list)
    info: AdapterInfo = field(
        default_factory=lambda: AdapterInfo(
            type="scripted",
            label="Scripted",
            version="1.2.3",
            configuration_doc="# scripted",
            config_schema={"type": "object"},
            capabilities=capabilities(pb.FEATURE_PROMPT),
            aliases=("scripted_local",),
        )
    )

    def describe(self) -> AdapterInfo:
        return self.info

    def accept(self, request: api.ExecuteRequest) -> str:
        if self.refuse is not None:
            raise self.refuse
        return f"accepted session={request.session.handle.native_id}"

    def session_in_use(self, accepted: str) -> str:
        return accepted.partition("session=")[2]

    async def execute(self, run: Run) -> pb.Result:
        self.runs.append(run)
        return await self.script(run)

    async def detect(self, request: api.DetectRequest) -> api.Detection:
        return api.Detection(available=True, executable=request.env.get("PATH", ""))

    async def test_environment(self, request: api.TestEnvironmentRequest) -> Sequence[api.EnvironmentCheck]:
        return [api.EnvironmentCheck(code=name, level=_LEVELS[name]) for name in request.env]


_LEVELS: dict[str, pb.Severity.ValueType] = {
    "info": pb.SEVERITY_INFO,
    "warning": pb.SEVERITY_WARNING,
    "error": pb.SEVERITY_ERROR,
}


class Stream:
    """One stream of a run's events; whatever is read, its order is checked."""

    def __init__(self, call: Any, after: int = 0) -> None:
        self.call = call
        self._checker = OrderChecker(after)

    async def read(self) -> pb.AgentEvent | None:
        """Return the next event; None at the end.

        Raises:
            DragomanError: the stream's status.
        """
        try:
            event = await asyncio.wait_for(self.call.read(), DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        if event is grpc.aio.EOF:
            return None
        assert isinstance(event, pb.AgentEvent)
        self._checker.observe(event)
        return event

    async def until(self, kind: str) -> pb.AgentEvent:
        """Read up to the first event of a kind, and return it."""
        while True:
            event = await self.read()
            assert event is not None, f"the stream ended before {kind}"
            if event.WhichOneof("body") == kind:
                return event

    async def rest(self) -> list[pb.AgentEvent]:
        """Read to the end, which is the result."""
        events = []
        while (event := await self.read()) is not None:
            events.append(event)
        self._checker.finish()
        return events

    def cancel(self) -> None:
        """Leave."""
        self.call.cancel()


class Sidecar:
    """A served adapter and a stub for it."""

    def __init__(self, address: str, channel: grpc.aio.Channel, server: AdapterServer | None = None) -> None:
        self.address = address
        self._server = server
        self.channel = channel
        self.stub: adapter_pb2_grpc.AdapterServiceAsyncStub = adapter_pb2_grpc.AdapterServiceStub(channel)

    @property
    def server(self) -> AdapterServer:
        """The server, which runs in this process."""
        assert self._server is not None, "the adapter is another program"
        return self._server

    def begin(self, request: api.ExecuteRequest) -> Stream:
        """Execute a run."""
        return Stream(self.stub.Execute(request))

    def follow(self, run_id: str, after: int = 0, *, hold: bool = False) -> Stream:
        """Attach to a run."""
        request = api.AttachRequest(run_id=run_id, after_sequence=after, hold=hold)
        return Stream(self.stub.Attach(request), after)

    async def execute(self, request: api.ExecuteRequest | None = None) -> list[pb.AgentEvent]:
        """Run to the end and return the events."""
        return await self.begin(request or api.ExecuteRequest()).rest()

    async def attach(self, run_id: str, after: int = 0) -> list[pb.AgentEvent]:
        """Follow a run to its end and return the events."""
        return await self.follow(run_id, after).rest()


@contextlib.asynccontextmanager
async def serving(adapter: Adapter, **options: int) -> AsyncIterator[Sidecar]:
    """Serve an adapter on a Unix socket; stop it with a short grace."""
    with tempfile.TemporaryDirectory(prefix="sidecar-") as directory:
        address = f"unix:{Path(directory) / 's'}"
        server = AdapterServer(adapter, [address])
        await server.start()
        try:
            async with connected(address, server, **options) as sidecar:
                yield sidecar
        finally:
            await asyncio.wait_for(server.stop(0.2), DEADLINE_S)


@contextlib.asynccontextmanager
async def connected(address: str, server: AdapterServer | None = None, **options: int) -> AsyncIterator[Sidecar]:
    """Connect to an adapter that is served."""
    more = [*channel_options(address, local=True), *options.items()]
    async with grpc.aio.insecure_channel(address, options=more) as channel:
        yield Sidecar(address, channel, server)


async def refusal(call: Awaitable[Any]) -> DragomanError:
    """Return the error that a call ends with."""
    try:
        answer = await asyncio.wait_for(call, DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    except DragomanError as error:
        return error
    raise AssertionError(f"it was answered: {answer}")


def seconds(value: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(int(value * 1e9))
    return duration


def held(run_id: str = "", orphan_after: float = DEADLINE_S) -> api.ExecuteRequest:
    return api.ExecuteRequest(run_id=run_id, orphan_after=seconds(orphan_after))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so. It is a matter of a few turns of the loop."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what changes it knows of no event
            await asyncio.sleep(0)


async def fifty(run: Run) -> pb.Result:
    run.started(pb.Started())
    for number in range(50):
        run.emit(pb.AgentEvent(notice=pb.Notice(code=str(number))))
    return SUCCEEDED
