"""The gRPC channel to one address: calls, streams, health, and what their failures mean."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from dragoman.protocol.addresses import is_served
from dragoman.protocol.bounds import first_violation
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import MAX_REQUEST_BYTES, MIB, ChannelOption, channel_options
from dragoman.v1 import adapter_pb2
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

SERVICE = adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"]

StreamCall: TypeAlias = "grpc.aio.UnaryStreamCall[bytes, bytes]"
"""An upstream stream; its messages are bytes."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]

_HEALTH = "/grpc.health.v1.Health/Watch"
RETRY_S = 1.0
"""After which a call that found no adapter is worth another try, where nothing better is known."""
_CUT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
_LOOK_S = 0.01
"""How often to look whether a process that starts listens."""


class NotServedError(Exception):
    """The address does not serve health."""


class AdapterChannel:
    """A channel to an adapter's address. One per address, so that calls do not spread over processes.

    Args:
        address: ``unix:/path`` or ``host:port``.
        server_name: the name that the certificate there has to be for; empty for the host.

    Raises:
        DragomanError: ADDRESS_UNTRUSTED: requests, with their secrets, may not be sent there.
    """

    def __init__(self, address: str, server_name: str = "") -> None:
        self.address = address
        self._channel = open_channel(address, _options(address, server_name), only_local=True)
        self._unary: dict[str, Any] = {}

    async def listening(self) -> None:
        """Wait until a process that was just started listens on its Unix socket.

        gRPC tries to connect no more often than ten times a second, which is half of a process's start.
        """
        while not is_served(self.address):  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(_LOOK_S)

    async def connected(self) -> None:
        """Wait until there is a connection, trying as long as it takes."""
        await self._channel.channel_ready()

    async def disconnected(self) -> None:
        """Wait until there is no connection any more."""
        await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)

    async def answer(
        self,
        method: str,
        request: bytes,
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
        service: str = SERVICE.full_name,
    ) -> bytes:
        """Make one unary call.

        Raises:
            DragomanError: the adapter's status, or ADAPTER_UNAVAILABLE.
        """
        path = f"/{service}/{method}"
        call = self._unary.get(path)
        if call is None:
            call = self._unary[path] = self._channel.unary_unary(path)
        try:
            data: bytes = await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise explained(error) from error
        return data

    def stream(self, method: str, request: bytes, *, metadata: Metadata = ()) -> StreamCall:
        """Open a stream of events. It has no deadline: a run does not end because a caller stops waiting."""
        call: Any = self._channel.unary_stream(f"/{SERVICE.full_name}/{method}")
        stream: StreamCall = call(request, metadata=metadata)
        return stream

    async def describe(self, timeout_s: float | None, adapter: str = "") -> adapter_pb2.DescribeResponse:
        """Call Describe, for one adapter if there are several.

        Raises:
            DragomanError: its status; ADAPTER_REFUSED if the description exceeds a bound of the contract.
        """
        try:
            request = adapter_pb2.DescribeRequest(adapter=adapter).SerializeToString()
            data = await self.answer("Describe", request, timeout_s=timeout_s)
        except DragomanError as error:
            if isinstance(error.__cause__, grpc.aio.AioRpcError) and is_too_large(error.__cause__):
                raise _unfit(f"the response exceeds {MAX_REQUEST_BYTES // MIB + 1} MiB") from error
            raise
        violation = first_violation(adapter_pb2.DescribeResponse.DESCRIPTOR, data)
        if violation is not None:
            raise _unfit(f"`{violation.path}` {violation.description}")
        try:
            return adapter_pb2.DescribeResponse.FromString(data)
        except ValueError as error:  # protobuf's DecodeError
            raise DragomanError(Reason.ADAPTER_UNAVAILABLE, "it sent an invalid DescribeResponse") from error

    async def health(self) -> AsyncIterator[bool]:
        """Follow whether the adapter serves. Ends when the connection does.

        Raises:
            NotServedError: the adapter does not serve health.
        """
        call: Any = self._channel.unary_stream(
            _HEALTH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        try:
            async for response in call:
                yield response.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise NotServedError from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """End all calls and the connection."""
        await self._channel.close()


def addressed(kind: type[Message], data: bytes, name: str, adapter: str) -> bytes:
    """Return a request with the adapter's type in place of a name that it may not know itself.

    Not written anew: of a field that comes twice the last counts, so the type is put behind.
    """
    if name in {"", adapter}:
        return data
    return data + kind(adapter=adapter).SerializeToString()


def _options(address: str, server_name: str) -> list[ChannelOption]:
    options = dict(channel_options(address, local=True))
    if server_name:
        options["grpc.ssl_target_name_override"] = server_name
    if address.startswith("unix:"):
        # A process that starts takes a fraction of a second; waiting longer between tries costs more than they do.
        options["grpc.max_reconnect_backoff_ms"] = 150
    return list(options.items())


def explained(error: grpc.aio.AioRpcError) -> DragomanError:
    """Return what a failed call means: the adapter's own status, or that there is no adapter.

    Only a status in the contract's words is the adapter's. Of others only the code is reported, not the text, which
    may be an exception's.
    """
    from dragoman.protocol.statuses import from_rpc_error, is_explained  # noqa: PLC0415 - most calls do not fail

    status = from_rpc_error(error)
    if is_explained(status):
        return status
    code = error.code()
    if code in _CUT:
        return unavailable("The connection to the adapter was lost; try again.")
    metadata = {"adapter_code": code.name}
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return DragomanError(Reason.NOT_IMPLEMENTED, "The adapter does not implement this RPC.", metadata)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DragomanError(None, "The adapter did not answer within the call's deadline.", metadata, status=code)
    message = f"The adapter failed with {code.name} and gave no reason; check its log."
    return DragomanError(Reason.INTERNAL, message, metadata)


async def received(call: StreamCall) -> AsyncIterator[bytes]:
    """Yield the messages of a stream.

    Raises:
        DragomanError: its status; see ``explained``.
    """
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        raise explained(error) from error


def _unfit(why: str) -> DragomanError:
    return DragomanError(Reason.ADAPTER_REFUSED, f"its DescribeResponse is too large: {why}")


def is_too_large(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call failed because its answer was too large to be received."""
    # The text is grpc's own on this side; a peer that refuses what it got says SERVER, or something else.
    is_ours = "CLIENT: Received message larger than max" in (error.details() or "")
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and is_ours


def unavailable(message: str, retry_after_s: float = RETRY_S) -> DragomanError:
    """Return the error for an adapter that cannot be reached or started."""
    return DragomanError(Reason.ADAPTER_UNAVAILABLE, message, retry_after_s=retry_after_s)


def is_cut(error: DragomanError) -> bool:
    """Return whether the connection, not the adapter, ended a call."""
    return error.reason is Reason.ADAPTER_UNAVAILABLE and error.status is None


def is_overdue(error: DragomanError) -> bool:
    """Return whether a call got no answer in time."""
    return error.status is grpc.StatusCode.DEADLINE_EXCEEDED


def never_connected(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call failed before it was sent."""
    return error.code() == grpc.StatusCode.UNAVAILABLE and "failed to connect" in (error.details() or "")
