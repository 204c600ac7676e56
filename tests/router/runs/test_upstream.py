"""How often a run's stream from its adapter is opened again."""

import asyncio
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.registry import AdapterRecord
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.tasks import Held, Tasks
from dragoman.router.runs.actor import Run, RunHost
from dragoman.router.runs.inputs import Accepted, CancelRequested
from dragoman.router.runs.state import is_over
from dragoman.router.runs.upstream import ReconnectPolicy, UpstreamStream
from dragoman.router.storage.ledger import RunLedger
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

from tests.router.runs.unlogged import Unlogged
from tests.router.test_run import CLOCK
from tests.sdk.running import travel


class Connected:
    """A channel that is always connected."""

    async def connected(self) -> None:
        """There is nothing to wait for."""


def test_a_stream_that_breaks_as_soon_as_it_is_opened_is_opened_again_after_a_pause() -> None:
    async def pauses() -> list[float]:
        instance = AdapterInstance(cast("AdapterChannel", Connected()), pb.DescribeResponse())
        policy, loop = ReconnectPolicy(30.0), asyncio.get_running_loop()
        waited = []
        for steady_s in (0.0, 0.0, 0.0, 60.0):
            await asyncio.sleep(steady_s)
            began = loop.time()
            assert await policy.outlast(instance)
            policy.deadline = None
            waited.append(loop.time() - began)
        return waited

    first, second, third, after_a_minute = travel(pauses)
    assert (first, after_a_minute) == (0.0, 0.0)
    assert min(second, third) > 0.0


class Unreachable:
    """A channel on which no call is ever sent."""

    address = "unix:/a"

    def __init__(self) -> None:
        self.called: list[str] = []
        self.was_cancelled = asyncio.Event()

    async def connected(self) -> None:
        """Its connections break again before a call is sent."""

    def stream(self, method: str, _request: bytes, *, metadata: object = ()) -> "Unreachable":
        assert metadata == ()
        self.called.append(method)
        return self

    async def answer(self, method: str, _request: bytes) -> bytes:
        self.called.append(method)
        self.was_cancelled.set()
        return b""

    async def initial_metadata(self) -> None:
        await self.read()

    async def read(self) -> None:
        details = "failed to connect to all addresses"
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details)

    def cancel(self) -> None:
        """There is nothing to cancel."""


def started_at(channel: Unreachable) -> Run:
    record = AdapterRecord(AdapterSpec("fake", Source.ADDRESS), 0)
    backend = cast("AdapterBackend", SimpleNamespace(record=record))
    run = Run(RunRecord(run_id="r", adapter="fake", accepted_at=0.0), backend, RunHost(CLOCK, Tasks()))
    run.ledger = cast("RunLedger", Unlogged())
    run.assign(AdapterInstance(cast("AdapterChannel", channel), pb.DescribeResponse(instance_id="i")))
    return run


def test_a_run_whose_attach_never_reaches_the_adapter_again_is_lost_and_called_off() -> None:
    async def follow() -> tuple[Run, list[str], float]:
        channel, began = Unreachable(), asyncio.get_running_loop().time()
        run = started_at(channel)
        run.send(Accepted())
        await UpstreamStream(run, CLOCK, 30.0).follow_on()
        waited = asyncio.get_running_loop().time() - began
        assert await run.until(is_over, 9)
        await channel.was_cancelled.wait()
        return run, channel.called, waited

    run, called, waited = travel(follow)
    assert run.record.result is not None
    assert run.record.result.outcome == event_pb2.OUTCOME_LOST
    assert "was unreachable for 30 s" in run.record.result.failure.message
    assert waited == pytest.approx(30.0)
    assert set(called[:-1]) == {"Attach"}
    assert called[-1] == "Cancel"
    assert run.backend.record.live_runs == 0


async def test_a_run_that_is_cancelled_while_its_assignment_is_stored_never_goes_to_its_adapter() -> None:
    channel, tasks = Unreachable(), Tasks()
    instance = AdapterInstance(cast("AdapterChannel", channel), pb.DescribeResponse(instance_id="i"))
    record = AdapterRecord(AdapterSpec("fake", Source.ADDRESS), 0)

    async def use() -> Held[AdapterInstance]:
        return instance.used()

    backend = SimpleNamespace(record=record, use=use)
    run = Run(RunRecord("r", "fake", 0.0), cast("AdapterBackend", backend), RunHost(CLOCK, tasks))

    class Storing(Unlogged):
        async def assigned(self) -> None:
            run.send(CancelRequested())

    run.ledger = cast("RunLedger", Storing())
    await UpstreamStream(run, CLOCK, 30.0).execute(None)
    assert await run.until(is_over, 9)
    assert run.record.result is not None
    assert (run.record.result.outcome, channel.called) == (event_pb2.OUTCOME_CANCELLED, [])
