"""What every Dragoman server is made of: handlers with one error boundary, health, reflection, streams, drain.

A service is an object with one coroutine method per RPC, named as in the descriptor. A unary method returns the
response; a streaming method writes to the context itself (mostly by ``stream_events``) and returns nothing. They
raise ``DragomanError`` for a status; anything else becomes INTERNAL with an incident id, and its text stays
here. A method that is missing is answered UNIMPLEMENTED, with a reason.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import grpc
from dragoman.protocol import audit
from dragoman.protocol.access import Gate
from dragoman.protocol.addresses import (
    Address,
    AddressError,
    check_listen,
    parse_address,
    private_files,
    why_not_bound,
)
from dragoman.protocol.bounds import check_request
from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.event_buffer import EventReader, SlowReaderError
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.limits import server_options
from dragoman.protocol.logs import Logger, begin_context, failure_fields
from dragoman.protocol.observer import Observer
from dragoman.protocol.private import hold_socket_path
from dragoman.protocol.signals import Signal, interruptible
from dragoman.protocol.tls import server_credentials
from dragoman.protocol.tracing import bind_trace
from dragoman.protocol.wire import join
from dragoman.v1 import event_pb2
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from msgspec import Struct

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""The context of one RPC; responses may be messages or serialized bytes."""

_HEALTH = "grpc.health.v1.Health"

_log = Logger("dragoman.rpc")


class PeerGoneError(Exception):
    """The caller went away; no one gets a status."""


def _serialize(response: Message | bytes) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


def service_handler(
    descriptor: ServiceDescriptor, *servicers: object, raw_requests: bool = False, observer: Observer | None = None
) -> grpc.GenericRpcHandler:
    """Return the handler that serves what ``descriptor`` says.

    Args:
        descriptor: the service's descriptor.
        servicers: have a coroutine method ``Name(request, context)`` for each RPC, the first that has it serves it.
        raw_requests: hand over requests as bytes, for those who pass them on.
        observer: takes note of calls that have ended.
    """
    boundary = _Boundary(observer or Observer())
    handlers = {
        method.name: _method_handler(method, _implementation(servicers, method.name), raw_requests, boundary)
        for method in descriptor.methods
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


Method = Callable[[Any, Context], Awaitable[Message | bytes | None]]
"""One RPC's implementation."""


def _implementation(servicers: Sequence[object], name: str) -> Method | None:
    return next((method for one in servicers if (method := getattr(one, name, None)) is not None), None)


def _method_handler(
    method: MethodDescriptor, implementation: Method | None, raw: bool, boundary: "_Boundary"
) -> "grpc.RpcMethodHandler[Any, Any]":
    call = implementation or _not_implemented(method)
    if not raw:
        call = _parsing(method, call)

    run = functools.partial(boundary.run, method.name, call)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(run, None, _serialize)
    return grpc.unary_unary_rpc_method_handler(run, None, _serialize)


def _parsing(method: MethodDescriptor, call: Method) -> Method:
    """Parse requests within the boundary: grpc would send the parser's message to the caller."""
    request_class = GetMessageClass(method.input_type)

    async def parsed(data: bytes, context: Context) -> Message | bytes | None:
        check_request(method.input_type, data)
        try:
            request = request_class.FromString(data)
        except DecodeError:
            name = method.input_type.full_name
            raise DragomanError(Reason.INVALID_REQUEST, f"the request's bytes are no {name}") from None
        return await call(request, context)

    return parsed


def _not_implemented(method: MethodDescriptor) -> Method:
    async def refuse(_request: Any, _context: Context) -> None:
        raise DragomanError(Reason.NOT_IMPLEMENTED, f"{method.full_name} is not served here")

    return refuse


class _Boundary:
    """The one boundary of all calls: it logs them, reports them, and turns failures into statuses."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def run(self, name: str, call: Method, request: Any, context: Context) -> Any:
        """Run one RPC's implementation; log its start and end; turn failures into statuses, here and only here."""
        begin_context(rpc=name, rpc_id=os.urandom(4).hex())
        bind_trace(context.invocation_metadata())
        loop = asyncio.get_running_loop()
        began = loop.time()
        _log.info("rpc started", peer=context.peer(), caller=current_caller().name)
        error: DragomanError | None = None
        code = "OK"
        try:
            return await call(request, context)
        except DragomanError as failure:
            error = failure
        except PeerGoneError:
            code = "CANCELLED"
        except asyncio.CancelledError as failure:
            code = "CANCELLED"
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Another task's cancellation leaked in here. Without a status the caller would wait for ever.
            error = _incident(failure)
        except Exception as failure:  # noqa: BLE001 - the one boundary; nothing of it may reach the caller
            error = _incident(failure)
        finally:
            if error is not None:
                code = error.code.name
            fields: dict[str, str] = {"reason": error.reason.value} if error and error.reason else {}
            audit.end(error)
            self._observer.call_ended(name, code, fields.get("reason", ""))
            _log.info("rpc ended", code=code, duration_s=round(loop.time() - began, 4), **fields)
        if error is not None:
            await _abort(context, error)
        return None


async def _abort(context: Context, error: DragomanError) -> None:
    from dragoman.protocol.statuses import to_status  # noqa: PLC0415 - most calls do not fail

    try:
        await context.abort_with_status(to_status(error))
    except grpc.aio.AbortError:
        raise  # how grpc ends the handler
    except Exception:  # noqa: BLE001 - types of grpc's extension module, as in write_event
        # The status waits behind events that are not read; the caller went away meanwhile.
        _log.debug("caller gone before its status", code=error.code.name)


def _incident(failure: BaseException) -> DragomanError:
    incident = os.urandom(6).hex()
    _log.error("internal error", incident=incident, **failure_fields(failure))
    return DragomanError(
        Reason.INTERNAL,
        f"internal error; the server's log has more under incident {incident}",
        {"incident": incident},
    )


async def write_event(context: Context, data: bytes) -> None:
    """Write one event.

    Raises:
        PeerGoneError: the caller went away.
    """
    try:
        await context.write(data)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        # grpc raises types of its own extension module here, and none of them means anything but this.
        raise PeerGoneError from error


async def stream_events(
    context: Context, reader: EventReader, *, batching: bool = False, ended_early: Signal | None = None
) -> None:
    """Write what ``reader`` hands out, until the run is over.

    Args:
        context: the RPC.
        reader: the cursor in the run. Closed when this returns or raises.
        batching: whether the caller takes several events in one message: those that are ready at the same time.
        ended_early: set by the server when it drains.

    Raises:
        DragomanError: SLOW_CONSUMER or DRAINING, with the last sequence written.
        PeerGoneError: the caller went away.
    """
    written = _Written(reader.last_sequence)
    stop = ended_early or Signal()
    try:
        await send_head(context)
        async with interruptible() as interrupt:
            reader.on_dropped = interrupt
            with stop.calling(interrupt):
                await _pump(context, reader, written, batching=batching)
    except (TimeoutError, SlowReaderError) as error:
        early = draining if isinstance(error, TimeoutError) and stop.is_set() else slow_consumer
        raise early(written.last_sequence()) from error
    finally:
        reader.close()


async def send_head(context: Context, run_id: str = "") -> None:
    """Send the initial metadata, unless it was sent: with a run's ID, if there is one.

    Else the first write sends them, and cancelled while it does, it leaves a call that grpc can never end.

    Raises:
        PeerGoneError: the caller went away.
    """
    try:
        await context.send_initial_metadata(((RUN_ID_METADATA_KEY, run_id),) if run_id else ())
    except grpc.aio.UsageError:
        return  # they were sent
    except asyncio.CancelledError:
        raise
    except Exception as error:
        raise PeerGoneError from error  # as in write_event


class _Written(Struct):
    """How far a stream got: less far than its reader, which hands out many events at once."""

    before: int
    """The last sequence before ``messages``."""
    messages: Sequence[bytes] = ()
    count: int = 0
    """How many of ``messages`` were written."""

    def last_sequence(self) -> int:
        """Return the last sequence that was written. Messages are looked into only here, when a stream ends early."""
        for data in reversed(self.messages[: self.count]):
            event = event_pb2.AgentEvent.FromString(data)
            if event.sequence or event.HasField("gap"):
                return event.sequence or event.gap.to_sequence
        return self.before


async def _pump(context: Context, reader: EventReader, written: _Written, *, batching: bool) -> None:
    while True:
        written.before, written.count = reader.last_sequence, 0
        events = await reader.read()
        if not events:
            return
        written.messages = join(events) if batching and len(events) > 1 else events
        try:
            for data in written.messages:
                await context.write(data)
                written.count += 1
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise PeerGoneError from error  # as in write_event


def slow_consumer(last_sequence: int) -> DragomanError:
    """Return the error for a reader that was too slow."""
    return DragomanError(
        Reason.SLOW_CONSUMER,
        f"this stream's reader was too slow; attach again after sequence {last_sequence}",
        {"last_sequence": str(last_sequence)},
    )


def draining(last_sequence: int | None = None) -> DragomanError:
    """Return the error for a call, or a stream, that a shutdown ends."""
    metadata = {} if last_sequence is None else {"last_sequence": str(last_sequence)}
    return DragomanError(Reason.DRAINING, "this server is shutting down", metadata, retry_after_s=1.0)


class _Gated(grpc.aio.ServerInterceptor):
    """Brings each call to its handler through a gate, whatever service it is for."""

    def __init__(self, gate: Gate, limit: "Limit") -> None:
        self._gate = gate
        self._limit = limit
        self._handlers: dict[str, tuple[Any, Any]] = {}
        """By method: the handler, and the same behind the gate."""

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, behind the gate; ``None`` if there is none."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        known = self._handlers.get(method)
        if known is None or known[0] is not handler:
            known = self._handlers[method] = (handler, self._behind_gate(method, handler))
        return known[1]

    def _behind_gate(self, method: str, handler: Any) -> Any:
        async def admit(context: Context, request: Any) -> contextlib.AbstractContextManager[Context]:
            audit.begin(method, context.peer())
            try:
                await self._gate.admit(method, context)
                if request is None:
                    return contextlib.nullcontext(context)
                is_stream = bool(handler.response_streaming)
                limited = self._limit(method, request, context, is_stream=is_stream)
                if self._gate.decides(method):
                    audit.allow()
            except DragomanError as error:
                caller = current_caller().name
                _log.info("rpc refused", rpc=method, code=error.code.name, reason=error.reason, caller=caller)
                audit.deny(error)
                await _abort(context, error)
                # The caller was gone before its status: the call must not be answered nevertheless.
                raise asyncio.CancelledError from None
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception:  # noqa: BLE001 - types of grpc's extension module, as in write_event
                _log.info("rpc refused", rpc=method, code="CANCELLED")
                raise asyncio.CancelledError from None
            return limited

        async def call(request: Any, context: Context) -> Any:
            with await admit(context, request) as limited:
                return await (handler.unary_stream or handler.unary_unary)(request, limited)

        async def converse(requests: Any, context: Context) -> AsyncIterator[Any]:
            await admit(context, None)
            async for response in handler.stream_stream(requests, context):
                yield response

        makes = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
        rest = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(converse, *rest)
        return makes[0](call, *rest) if handler.response_streaming else makes[1](call, *rest)


class Limit(Protocol):
    """What keeps callers to their quotas."""

    def __call__(
        self, method: str, request: Any, context: Context, *, is_stream: bool
    ) -> contextlib.AbstractContextManager[Context]:
        """Count a call from now on, and return the context to answer it with, as a block that it counts until.

        Raises:
            DragomanError: QUOTA_EXCEEDED.
        """


def _unlimited(
    method: str,  # noqa: ARG001 - as Limit has it
    request: Any,  # noqa: ARG001
    context: Context,
    *,
    is_stream: bool,  # noqa: ARG001
) -> contextlib.AbstractContextManager[Context]:
    return contextlib.nullcontext(context)


class Drainable(Protocol):
    """What a server asks of its services when it stops."""

    async def drain(self, grace_s: float) -> None:
        """Refuse new work, end what runs within ``grace_s`` seconds, and return."""


class _Health(health_aio.HealthServicer):
    """Health whose one error says what every other error says too."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = frozenset({"", *names})

    async def Check(  # noqa: N802 - the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Return whether a service serves."""
        if request.service not in self._names:
            message = f"there is no service {request.service[:200]!r} here; '' is all of them"
            await _abort(context, DragomanError(Reason.SERVICE_UNKNOWN, message))
        answer: health_pb2.HealthCheckResponse = await super().Check(request, context)
        return answer


class _Reflection(grpc.GenericRpcHandler):
    """Server reflection, loaded when a client asks for it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._handlers: Sequence[grpc.GenericRpcHandler] = ()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method; ``None`` if it is not one of reflection."""
        if not handler_call_details.method.startswith("/grpc.reflection."):
            return None
        if not self._handlers:
            from dragoman.protocol.reflection import reflection_handlers  # noqa: PLC0415 - few clients ask

            self._handlers = reflection_handlers(self._names)
        found = (handler.service(handler_call_details) for handler in self._handlers)
        return next((handler for handler in found if handler is not None), None)


class DragomanServer:
    """A gRPC server with health and reflection, on checked addresses.

    Args:
        services: descriptor and handler of each service.
        listen: addresses, as ``parse_address`` reads them.
        if_free: a Unix socket to listen on too, unless another server has it or it cannot be there.
        insecure_tcp_without_token: whether calls over TCP are answered without the token; for tests alone.
        has_scopes: whether tokens with scopes are accepted over TCP; the services then check ``current_caller``.
        limit: keeps callers to their quotas.

    Raises:
        AddressError: an address may not be listened on, or no token can be made.
    """

    def __init__(
        self,
        services: Mapping[ServiceDescriptor, grpc.GenericRpcHandler],
        listen: Sequence[str],
        *,
        if_free: str = "",
        insecure_tcp_without_token: bool = False,
        has_scopes: bool = False,
        limit: Limit = _unlimited,
    ) -> None:
        self._addresses = [parse_address(text) for text in listen]
        self._if_free = parse_address(if_free) if if_free else None
        for address in self._addresses:
            check_listen(address)
            if insecure_tcp_without_token and not address.is_local:
                raise AddressError(f"refusing to listen on {address} without a token: other machines could call")
        self._credentials = None if all(address.path for address in self._addresses) else server_credentials()
        self._names = [descriptor.full_name for descriptor in services]
        asks_token = not insecure_tcp_without_token and not all(address.path for address in self._addresses)
        paths = [address.path for address in (*self._addresses, self._if_free) if address and address.path]
        self._gate = Gate(paths, asks_token=asks_token, has_scopes=has_scopes)
        self._server = grpc.aio.server(options=server_options(), interceptors=[_Gated(self._gate, limit)])
        self._health = _Health(self._names)
        self._held = contextlib.ExitStack()
        self._server.add_generic_rpc_handlers(tuple(services.values()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers((_Reflection([*self._names, _HEALTH]),))
        self.addresses: list[str] = []
        """Where it listens, once started."""

    async def start(self) -> None:
        """Listen, and say NOT_SERVING until ``set_serving``.

        Raises:
            AddressError: an address is taken or cannot be bound.
        """
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        for address in self._addresses:
            if address.path:
                self._held.enter_context(hold_socket_path(address.path))
        if self._if_free is not None:
            with contextlib.suppress(AddressError):
                self._held.enter_context(hold_socket_path(self._if_free.path))
                self._addresses.append(self._if_free)
        with private_files():
            self.addresses = [self._bind(address) for address in self._addresses]
        await self._server.start()

    def _bind(self, address: Address) -> str:
        try:
            if self._credentials is None or address.path:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._credentials)
        except RuntimeError as error:
            raise AddressError(f"cannot listen on {address}: {why_not_bound(address)}") from error
        return str(address) if address.path else str(Address(host=address.host, port=port))

    async def set_serving(self) -> None:
        """Report SERVING."""
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def check_health(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Answer for another port whether a service serves: NOT_SERVING before it is started."""
        if not self.addresses:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
        return await self._health.Check(request, context)

    async def _set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, services: Sequence[Drainable], grace_s: float) -> None:
        """Report NOT_SERVING, let the services end their work, then close.

        ``grpc``'s own graceful stop would wait for health watchers until the grace is over.
        """
        await self._health.enter_graceful_shutdown()
        await asyncio.gather(*(service.drain(grace_s) for service in services))
        await self._server.stop(0.2)
        self._gate.close()
        self._held.close()

    async def wait(self) -> None:
        """Wait until the server has stopped."""
        await self._server.wait_for_termination()
