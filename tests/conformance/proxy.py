"""A proxy in front of a conformant adapter or router that breaks one rule: what it changes is data in ``breaks``."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import grpc
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.limits import channel_options, server_options
from dragoman.protocol.statuses import from_rpc_error, to_status
from dragoman.protocol.tracing import TRACEPARENT
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_SERVICES = {
    service.full_name: service.methods_by_name
    for file in (api.DESCRIPTOR, router_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
}


@dataclass
class Call:
    """One call through the proxy."""

    method: str
    request: Any
    proxy: "Proxy"
    time_remaining_s: float | None = None
    trace: str = ""
    """The ``traceparent``; empty for none."""

    @property
    def script(self) -> str:
        """The steps of the run, also of an Attach, a Cancel or a Respond to it."""
        return self.proxy.scripts.get(self.request.run_id, "") if hasattr(self.request, "run_id") else ""


Events = AsyncIterator[pb.AgentEvent]


@dataclass
class Break:
    """What is done to calls; absent: nothing.

    Attributes:
        request: changes the request in place, or raises a status.
        event: changes an event in place; the events of a batch are changed one by one.
        events: changes the stream; it may drop, add and delay events.
        answer: changes a unary response in place, or raises a status.
        status: returns a status in place of another one.
        before: is awaited before the call is passed on.
        header: when the initial metadata is sent: "as it comes", "at once", "late" (with the first event), "never".
        gone: is awaited if the client ends a stream.
        raw: returns the answer of a call to another service, or its status.
    """

    request: Callable[[Call], object] | None = None
    event: Callable[[Call, pb.AgentEvent], object] | None = None
    events: Callable[[Call, Events], Events] | None = None
    answer: Callable[[Call, Any], object] | None = None
    status: Callable[[Call, DragomanError], DragomanError] | None = None
    before: Callable[[Call], Awaitable[object]] | None = None
    header: str = "as it comes"
    gone: Callable[[Call], Awaitable[object]] | None = None
    raw: Callable[[str, bytes], bytes | DragomanError | None] | None = None


@dataclass
class Proxy(grpc.GenericRpcHandler):
    """Passes calls on, broken in one way."""

    channel: grpc.aio.Channel
    broken: Break
    scripts: dict[str, str] = field(default_factory=dict)
    results: dict[str, pb.AgentEvent] = field(default_factory=dict)
    counts: dict[Any, int] = field(default_factory=dict)
    files: list[IO[str]] = field(default_factory=list)

    def count(self, key: object) -> int:
        """Count a thing; return how often it was counted before."""
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key] - 1

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of any method, as a stream of bytes both ways."""
        return grpc.stream_stream_rpc_method_handler(partial(self._handle, handler_call_details.method))

    async def _handle(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        data = await anext(aiter(requests))
        service, _, name = method.removeprefix("/").partition("/")
        try:
            if service in _SERVICES:
                async for message in self._ours(service, name, data, context):
                    yield message.SerializeToString()
            else:
                yield await self._foreign(method, data)
        except DragomanError as error:
            await context.abort_with_status(to_status(error))

    async def _foreign(self, method: str, data: bytes) -> bytes:
        changed = self.broken.raw(method, data) if self.broken.raw else None
        if isinstance(changed, DragomanError):
            raise changed
        if changed is not None:
            return changed
        # As a stream, a call of an RPC that is not served ends with INTERNAL at times (grpc/grpc#36066).
        unary: Any = self.channel.unary_unary(method)
        try:
            if "reflection" not in method:
                return bytes(await unary(data))
            stream: Any = self.channel.stream_stream(method)
            return bytes(await stream(iter([data])).read())
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def _ours(self, service: str, name: str, data: bytes, context: Any) -> AsyncIterator[Message]:
        method = _SERVICES[service][name]
        trace = dict(context.invocation_metadata() or ()).get(TRACEPARENT, "")
        call = Call(name, GetMessageClass(method.input_type).FromString(data), self, context.time_remaining(), trace)
        if name == "Execute":
            self.scripts[call.request.run_id] = call.request.env.get("DRAGOMAN_SCRIPT", "")
        if self.broken.header == "at once" and name == "Execute":
            await context.send_initial_metadata(((RUN_ID_METADATA_KEY, call.request.run_id),))
        if self.broken.request:
            self.broken.request(call)
        if self.broken.before:
            await self.broken.before(call)
        path = f"/{service}/{name}"
        make = GetMessageClass(method.output_type).FromString
        encode = GetMessageClass(method.input_type).SerializeToString
        try:
            if method.server_streaming:
                upstream = self.channel.unary_stream(path, encode, make)(
                    call.request,
                    timeout=call.time_remaining_s,
                    metadata=((TRACEPARENT, call.trace),) if call.trace else (),
                )
                async for event in self._stream(call, upstream, context):
                    yield event
            else:
                answer = await self.channel.unary_unary(path, encode, make)(call.request)
                if self.broken.answer:
                    self.broken.answer(call, answer)
                yield answer
        except grpc.aio.AioRpcError as error:
            status = from_rpc_error(error)
            raise (self.broken.status(call, status) if self.broken.status else status) from error

    async def _stream(self, call: Call, upstream: Any, context: Any) -> AsyncIterator[pb.AgentEvent]:
        is_over = False
        try:
            metadata = tuple((name, value) for name, value in await upstream.initial_metadata() or ())
            is_late = self.broken.header == "late" and bool(metadata)
            if self.broken.header == "as it comes" and metadata:
                await context.send_initial_metadata(metadata)
            events = self._events(call, upstream)
            # An artifact is a stream too, though none of events.
            change = self.broken.events if call.method not in {"ReadArtifact", "Login"} else None
            async for event in change(call, events) if change else events:
                if is_late:
                    await context.send_initial_metadata(metadata)
                    is_late = False
                yield event
            is_over = True
        finally:
            upstream.cancel()
            if not is_over and self.broken.gone:
                await asyncio.shield(asyncio.ensure_future(self.broken.gone(call)))

    async def _events(self, call: Call, upstream: Any) -> Events:
        async for event in upstream:
            if not isinstance(event, pb.AgentEvent):
                yield event  # of WatchAdapters
                continue
            for single in event.batch.events if event.HasField("batch") else [event]:
                if self.broken.event:
                    self.broken.event(call, single)
                if single.HasField("result"):
                    self.results[single.run_id] = single
            yield event


@asynccontextmanager
async def proxied(upstream: str, broken: Break) -> AsyncIterator[str]:
    """Serve a broken proxy; yield its address."""
    options = channel_options(upstream, local=True)
    with tempfile.TemporaryDirectory(prefix="dragoman-broken-") as folder:
        async with grpc.aio.insecure_channel(upstream, options=options) as channel:
            server = grpc.aio.server(options=server_options())
            proxy = Proxy(channel, broken)
            server.add_generic_rpc_handlers((proxy,))
            address = f"unix:{Path(folder) / 'broken.sock'}"
            server.add_insecure_port(address)
            await server.start()
            try:
                yield address
            finally:
                await server.stop(0)
                for file in proxy.files:
                    file.close()
