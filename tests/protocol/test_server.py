"""A real server with a small service: the error boundary, streams that end early, health, reflection, drain."""

import asyncio
import stat
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import structlog
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.event_buffer import EventBuffer
from dragoman.protocol.limits import channel_options
from dragoman.protocol.server import (
    Context,
    DragomanServer,
    PeerGoneError,
    draining,
    service_handler,
    stream_events,
    write_event,
)
from dragoman.protocol.signals import Signal
from dragoman.protocol.statuses import from_rpc_error
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc, event_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from .streams import RUN_ID, durable

SERVICE = pb.DESCRIPTOR.services_by_name["AdapterService"]


class Service:
    """Some methods of the contract, each with one behaviour."""

    def __init__(self) -> None:
        self.fanout = EventBuffer(RUN_ID, reader_lag_bytes=4 * 2**20)
        self.drained_with: float | None = None
        self.end_streams = Signal()
        self.stream_ended = asyncio.Event()

    async def Describe(self, request: pb.DescribeRequest, _context: Context) -> pb.DescribeResponse:  # noqa: N802 - an RPC
        return pb.DescribeResponse(adapter=request.adapter or "served")

    async def Detect(self, _request: pb.DetectRequest, _context: Context) -> bytes:  # noqa: N802 - as above
        return pb.DetectResponse(detections=[pb.Detection(adapter="raw")]).SerializeToString()

    async def Cancel(self, _request: pb.CancelRequest, _context: Context) -> None:  # noqa: N802 - as above
        raise invalid("run_id", "is empty")

    async def Respond(self, _request: pb.RespondRequest, _context: Context) -> None:  # noqa: N802 - as above
        raise ValueError("the secret is sk-12345")

    async def ListModels(self, _request: pb.ListModelsRequest, _context: Context) -> None:  # noqa: N802 - as above
        raise asyncio.CancelledError("leaked in from elsewhere: sk-12345")

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:  # noqa: N802 - as above
        reader = self.fanout.reader(request.after_sequence)
        try:
            batching = request.HasField("batching")
            await stream_events(context, reader, batching=batching, ended_early=self.end_streams)
        finally:
            self.stream_ended.set()

    async def drain(self, grace_s: float) -> None:
        self.drained_with = grace_s
        self.end_streams.set()

    def emit(self, kind: str, *, size: int = 0) -> None:
        sequence = self.fanout.last_sequence + 1
        event = durable(kind, sequence)
        event.native.text = "x" * size
        self.fanout.append(event.SerializeToString(), sequence)


class Served:
    def __init__(self, service: Service, server: DragomanServer, channel: grpc.aio.Channel) -> None:
        self.service = service
        self.server = server
        self.channel = channel
        self.stub = adapter_pb2_grpc.AdapterServiceStub(channel)


class Attached:
    """A client's stream."""

    def __init__(self, served: Served, *, after: int = 0, batching: bool = False) -> None:
        request = pb.AttachRequest(run_id=RUN_ID, after_sequence=after, batching=pb.Batching() if batching else None)
        self.call = served.stub.Attach(request)

    async def sequence(self) -> int:
        """Return the next event's sequence; 0 at the end."""
        event = await self.call.read()
        return event.sequence if isinstance(event, event_pb2.AgentEvent) else 0

    async def rest(self, into: list[int]) -> DragomanError | None:
        """Read to the end; return the error, if it is one."""
        try:
            while sequence := await self.sequence():
                into.append(sequence)
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        return None


@asynccontextmanager
async def serving(listen: str = "127.0.0.1:0") -> AsyncIterator[Served]:
    service = Service()
    server = DragomanServer({SERVICE: service_handler(SERVICE, service)}, [listen], insecure_tcp_without_token=True)
    await server.start()
    await server.set_serving()
    try:
        (address,) = server.addresses
        async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
            yield Served(service, server, channel)
    finally:
        await server.stop([service], 1)


READERS = ((0, False), (0, True), (2, True))


async def failure(call: Awaitable[object]) -> DragomanError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_responses_are_messages_or_bytes() -> None:
    async with serving() as served:
        assert (await served.stub.Describe(pb.DescribeRequest(adapter="a"))).adapter == "a"
        assert (await served.stub.Detect(pb.DetectRequest())).detections[0].adapter == "raw"


async def test_errors_raised_on_purpose_become_their_status() -> None:
    async with serving() as served:
        error = await failure(served.stub.Cancel(pb.CancelRequest()))
    assert (error.reason, error.violations[0].path) == (Reason.INVALID_REQUEST, "run_id")


@pytest.mark.parametrize("method", ["Respond", "ListModels"])
async def test_any_other_exception_is_an_incident_without_its_text(method: str) -> None:
    with structlog.testing.capture_logs() as logged:
        async with serving() as served:
            request = pb.RespondRequest() if method == "Respond" else pb.ListModelsRequest()
            error = await failure(getattr(served.stub, method)(request, timeout=20))
    assert error.reason is Reason.INTERNAL
    incident = error.metadata["incident"]
    assert incident in error.message
    assert any(line.get("incident") == incident for line in logged)
    assert "sk-12345" not in f"{error!r}{logged}"


async def test_methods_that_are_missing_say_so() -> None:
    async with serving() as served:
        error = await failure(served.stub.SyncSkills(pb.SyncSkillsRequest()))
        assert (error.reason, error.code) == (Reason.NOT_IMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Execute(pb.ExecuteRequest()).read()
        assert from_rpc_error(caught.value).reason is Reason.NOT_IMPLEMENTED


async def test_each_rpc_is_one_line_of_audit_and_one_at_its_start_and_end() -> None:
    with structlog.testing.capture_logs() as logged:
        async with serving() as served:
            await served.stub.Describe(pb.DescribeRequest(adapter="not to be logged"))
            await failure(served.stub.Cancel(pb.CancelRequest()))
    assert [(line["event"], line.get("code"), line.get("reason")) for line in logged] == [
        ("call allowed", None, None),
        ("rpc started", None, None),
        ("rpc ended", "OK", None),
        ("call allowed", None, None),
        ("rpc started", None, None),
        ("rpc ended", "INVALID_ARGUMENT", "INVALID_REQUEST"),
    ]
    assert "not to be logged" not in str(logged)


# --- streams


async def test_a_stream_ends_well_with_the_run() -> None:
    async with serving() as served:
        served.service.emit("started")
        stream = Attached(served)
        assert await stream.sequence() == 1
        served.service.emit("text")
        served.service.emit("result")
        served.service.fanout.close()
        received: list[int] = []
        assert await stream.rest(received) is None
        assert received == [2, 3]
        assert served.service.fanout.readers == 0


async def overrun(served: Served) -> Attached:
    """Attach, read one event, and let the rest be too much, until the server has ended the stream."""
    served.service.emit("started")
    for _ in range(60):
        served.service.emit("text", size=200_000)  # far more than the connection takes unread
    stream = Attached(served)
    assert await stream.sequence() == 1
    while not served.service.stream_ended.is_set():
        served.service.emit("text", size=900_000)
        await served.stub.Describe(pb.DescribeRequest())  # lets the stream's own tasks run
    return stream


async def test_what_is_ready_at_once_is_one_message_for_who_asked() -> None:
    async with serving() as served:
        for kind in ("started", "text", "log", "text", "session", "text", "text"):
            served.service.emit(kind)
        plain, whole, later = (Attached(served, after=after, batching=batching) for after, batching in READERS)
        assert [await plain.sequence() for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
        assert [await whole.sequence() for _ in range(4)] == [1, 4, 5, 7]  # a batch has its last event's
        assert [await later.sequence() for _ in range(3)] == [4, 5, 7]
        for sequence in (8, 9):  # one at a time: there is nothing to wait for
            served.service.emit("text")
            assert [await stream.sequence() for stream in (plain, whole, later)] == [sequence] * 3
        served.service.emit("result")
        served.service.fanout.close()
        assert [await stream.rest([]) for stream in (plain, whole, later)] == [None] * 3


async def test_a_stream_of_batches_that_a_drain_ends_has_its_cursor() -> None:
    async with serving() as served:
        for kind in ("started", "text", "log", "text"):
            served.service.emit(kind)
        stream = Attached(served, batching=True)
        assert [await stream.sequence() for _ in range(2)] == [1, 4]
        served.service.end_streams.set()
        error = await stream.rest([])
    assert error is not None
    assert error.metadata["last_sequence"] in {"1", "4"}  # as a reader may have a message before its write returned


async def test_a_dropped_reader_learns_the_last_sequence_that_was_written_to_it() -> None:
    """Not the last that was taken for it: from there on it would miss what never was written."""
    async with serving() as served:
        stream = await overrun(served)
        received = [1]
        error = await stream.rest(received)
    assert error is not None
    assert error.reason is Reason.SLOW_CONSUMER
    last = int(error.metadata["last_sequence"])
    assert received == list(range(1, len(received) + 1))
    assert received[-1] in {last, last + 1}  # the one being written may or may not have arrived
    assert last < served.service.fanout.last_sequence  # how much the connection took depends on the machine


async def test_a_slow_reader_that_is_gone_before_its_status_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        stream = await overrun(served)
        stream.call.cancel()
        await served.stub.Describe(pb.DescribeRequest())
    assert caplog.records == []


async def test_a_drain_ends_streams_with_their_cursor_and_a_delay() -> None:
    async with serving() as served:
        served.service.emit("started")
        served.service.emit("text")
        stream = Attached(served)
        assert [await stream.sequence() for _ in range(2)] == [1, 2]
        stopping = asyncio.create_task(served.server.stop([served.service], 7))
        error = await stream.rest([])
        await stopping
    assert error is not None
    assert error.reason is Reason.DRAINING
    # A reader may have an event before the server sees its write of it returned; it gets that one again then.
    assert error.metadata["last_sequence"] in {"1", "2"}
    assert error.retry_after_s == draining().retry_after_s
    assert served.service.drained_with is not None


class Unreadable:
    """A place in a run whose events cannot be read."""

    def __init__(self) -> None:
        self.last_sequence = 0
        self.on_dropped = lambda: None

    async def read(self) -> list[bytes]:
        raise DragomanError(Reason.RUN_LOG_UNAVAILABLE, "it does not answer")

    def close(self) -> None:
        """It holds nothing."""


async def test_events_that_cannot_be_read_are_no_end_of_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventBuffer, "reader", lambda *_args: Unreadable())
    async with serving() as served:
        error = await Attached(served).rest([])
    assert error is not None
    assert error.reason is Reason.RUN_LOG_UNAVAILABLE


async def test_a_reader_that_goes_away_leaves() -> None:
    async with serving() as served:
        served.service.emit("started")
        stream = Attached(served)
        assert await stream.sequence() == 1
        stream.call.cancel()
        await served.service.stream_ended.wait()
        assert served.service.fanout.readers == 0


async def test_a_write_to_a_client_that_is_gone_says_so() -> None:
    class Gone:
        async def write(self, _data: bytes) -> None:
            raise RuntimeError("RPC already finished.")

    with pytest.raises(PeerGoneError):
        await write_event(Gone(), b"")  # type: ignore[arg-type]  # the one method that is used


# --- health, reflection, addresses


async def test_health_is_reported_for_each_service_and_for_all() -> None:
    service = Service()
    server = DragomanServer(
        {SERVICE: service_handler(SERVICE, service)}, ["127.0.0.1:0"], insecure_tcp_without_token=True
    )
    await server.start()
    async with grpc.aio.insecure_channel(server.addresses[0], options=channel_options("")) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # set when it is made

        async def health(name: str) -> int:
            status: int = (await check(health_pb2.HealthCheckRequest(service=name))).status
            return status

        names = ["", "dragoman.v1.AdapterService"]
        assert [await health(name) for name in names] == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2
        await server.set_serving()
        assert [await health(name) for name in names] == [health_pb2.HealthCheckResponse.SERVING] * 2
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health("dragoman.v1.Nothing")
        error = from_rpc_error(unknown.value)
        assert (error.reason, error.code) == (Reason.SERVICE_UNKNOWN, grpc.StatusCode.NOT_FOUND)
        assert "dragoman.v1.Nothing" in error.message
    await server.stop([service], 0)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_both_reflections_list_what_is_served(version: str) -> None:
    async with serving() as served:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = served.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        )
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString(),
            reflection_pb2.ServerReflectionRequest(
                file_containing_symbol="dragoman.v1.AdapterService"
            ).SerializeToString(),
        ]
        replies = [
            reflection_pb2.ServerReflectionResponse.FromString(data) async for data in method(iter(asked), timeout=20)
        ]
    names = {service.name for service in replies[0].list_services_response.service}
    assert names >= {
        "dragoman.v1.AdapterService",
        "grpc.health.v1.Health",
        f"grpc.reflection.{version}.ServerReflection",
    }
    assert replies[1].file_descriptor_response.file_descriptor_proto


async def test_a_socket_is_for_this_user_alone_and_has_one_server(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/a.sock"
    async with serving(listen) as served:
        assert served.server.addresses == [listen]
        assert stat.S_IMODE((tmp_path / "a.sock").stat().st_mode) == 0o600
        second = DragomanServer({}, [listen])
        with pytest.raises(AddressError, match="another server"):
            await second.start()
        assert (await served.stub.Describe(pb.DescribeRequest())).adapter == "served"
        await second.stop([], 0)


async def test_a_socket_that_is_optional_is_left_to_the_server_that_has_it(tmp_path: Path) -> None:
    tcp, own = "127.0.0.1:0", f"unix:{tmp_path}/a.sock"
    first = DragomanServer({}, [tcp], if_free=own, insecure_tcp_without_token=True)
    second = DragomanServer({}, [tcp], if_free=own, insecure_tcp_without_token=True)
    await asyncio.gather(first.start(), second.start())
    assert sorted(len(server.addresses) for server in (first, second)) == [1, 2]
    assert own in first.addresses + second.addresses
    for server in (first, second):
        await server.stop([], 0)


async def test_a_port_that_is_taken_is_reported() -> None:
    async with serving() as served:
        second = DragomanServer({}, served.server.addresses, insecure_tcp_without_token=True)
        with pytest.raises(AddressError, match="listens there already; choose another port, or 0 for any free one"):
            await second.start()
        await second.stop([], 0)


async def test_a_path_that_something_else_has_is_reported_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    server = DragomanServer({}, [f"unix:{path}"])
    with pytest.raises(
        AddressError, match="something is there that is no socket of this server; choose another path"
    ):
        await server.start()
    await server.stop([], 0)
    assert path.read_text() == "mine"


def test_what_others_could_reach_is_refused_before_anything_listens() -> None:
    with pytest.raises(AddressError, match="without TLS"):
        DragomanServer({}, ["0.0.0.0:0"])


def test_events_are_looked_into_only_when_a_stream_ends_early() -> None:
    """The cursor of a gap is its end; ephemeral events have none."""
    from dragoman.protocol.server import _Written

    gap = event_pb2.AgentEvent(gap=event_pb2.Gap(from_sequence=5, to_sequence=9)).SerializeToString()
    text, heartbeat = durable("text", 10).SerializeToString(), durable("heartbeat", 0).SerializeToString()
    events = [gap, heartbeat, text, heartbeat]
    assert [_Written(4, events, count).last_sequence() for count in range(5)] == [4, 9, 9, 10, 10]
