"""One channel to one address, and what can be asked there."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from dragoman.protocol.errors import DragomanError, Reason, from_rpc_error, is_explained
from dragoman.protocol.limits import MAX_REQUEST_BYTES, MIB, ChannelOption, channel_options
from dragoman.v1 import adapter_pb2
from grpc_health.v1 import health_pb2

SERVICE = adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"]

StreamCall: TypeAlias = "grpc.aio.UnaryStreamCall[bytes, bytes]"
"""An upstream stream; its messages are bytes."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]

_HEALTH = "/grpc.health.v1.Health/Watch"
_RETRY_S = 1.0
_CUT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


class NotServedError(Exception):
    """The address does not serve health."""


class Link:
    """A channel to an adapter's address. One per address, so that calls do not spread over processes.

    Args:
        address: ``unix:/path`` or ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_options(address))
        self._unary: dict[str, Any] = {}

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
        """Ask for one answer.

        Args:
            method: the RPC's name, e.g. ``Describe``.
            service: whose RPC it is.
            request: the request, serialized.
            timeout_s: how long to wait.
            metadata: to send along.

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
        """Open a stream of events. It has no deadline: a run is not over because somebody's patience is."""
        call: Any = self._channel.unary_stream(f"/{SERVICE.full_name}/{method}")
        stream: StreamCall = call(request, metadata=metadata)
        return stream

    async def describe(self, timeout_s: float) -> adapter_pb2.DescribeResponse:
        """Ask what the adapter is.

        Raises:
            DragomanError: it did not say.
        """
        data = await self.answer("Describe", b"", timeout_s=timeout_s)
        try:
            return adapter_pb2.DescribeResponse.FromString(data)
        except ValueError as error:  # protobuf's DecodeError
            raise DragomanError(Reason.ADAPTER_UNAVAILABLE, "its description cannot be read") from error

    async def health(self) -> AsyncIterator[bool]:
        """Follow whether the adapter serves. Ends when the connection does.

        Raises:
            NotServedError: it does not tell.
        """
        call: Any = self._channel.unary_stream(
            _HEALTH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        try:
            async for said in call:
                yield said.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise NotServedError from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """End all calls and the connection."""
        await self._channel.close()


def _options(address: str) -> list[ChannelOption]:
    options = dict(channel_options(address, local=True))
    if address.startswith("unix:"):
        # A process that starts takes a fraction of a second; waiting longer between tries costs more than they do.
        options["grpc.max_reconnect_backoff_ms"] = 150
    return list(options.items())


def explained(error: grpc.aio.AioRpcError) -> DragomanError:
    """Return what a failed call means: the adapter's own status, or that there is no adapter.

    Only a status in the contract's words is the adapter's. Of any other the code is told and never the text, which
    may be an exception's.
    """
    said = from_rpc_error(error)
    if is_explained(said):
        return said
    code = error.code()
    if code in _CUT:
        return unavailable("the connection to the adapter broke")
    metadata = {"adapter_code": code.name}
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return DragomanError(Reason.NOT_IMPLEMENTED, "the adapter does not serve this", metadata)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DragomanError(None, "the adapter did not answer within the call's deadline", metadata, status=code)
    told = f"the adapter failed with {code.name} and did not say why; its log may have more"
    return DragomanError(Reason.INTERNAL, told, metadata)


def too_large(error: grpc.aio.AioRpcError) -> str:
    """Return what came that was too large to be received; empty if that is not why the call failed."""
    # The text is grpc's own on this side; a peer that refuses what it got says SERVER, or something else.
    is_ours = "CLIENT: Received message larger than max" in (error.details() or "")
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or not is_ours:
        return ""
    return f"an event of over {MAX_REQUEST_BYTES // MIB + 1} MiB"


def unavailable(message: str, retry_after_s: float = _RETRY_S) -> DragomanError:
    """Return the error for an adapter that cannot be reached or started."""
    return DragomanError(Reason.ADAPTER_UNAVAILABLE, message, retry_after_s=retry_after_s)


def is_cut(error: DragomanError) -> bool:
    """Tell whether the connection, not the adapter, ended a call."""
    return error.reason is Reason.ADAPTER_UNAVAILABLE and error.status is None


def never_connected(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether a call failed before there was a connection to send it on."""
    return error.code() == grpc.StatusCode.UNAVAILABLE and "failed to connect" in (error.details() or "")


def elsewhere(run_id: str) -> DragomanError:
    """Return the error for a run that another router follows, or will once the lease of the one that did is over."""
    return unavailable(f"run {run_id!r} is followed by another router that cannot be reached; try again")


async def first_of(*waits: "asyncio.Future[Any]", timeout_s: float | None = None) -> None:
    """Wait until one of these is done, or for ``timeout_s`` seconds; end those that are not."""
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waits:
            future.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
