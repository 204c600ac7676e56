"""A client's gRPC channel, and the conversion of gRPC's errors."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import TypeVar
from weakref import WeakSet

import grpc
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2_grpc, router_pb2_grpc

_T = TypeVar("_T")
_R = TypeVar("_R")
_PENDING = frozenset({grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING})


class Channel:
    """A channel with its stubs.

    Args:
        address: ``unix:/path`` or ``host:port``.
        token: the credential of calls over TCP; ``None`` for this user's token.

    Raises:
        DragomanError: ADDRESS_UNTRUSTED.
    """

    def __init__(self, address: str, *, token: str | None = None) -> None:
        self.address = address
        # A Unix socket may be a busy adapter's own, for which bandwidth probing costs memory.
        local = address.startswith("unix:")
        self._channel = open_channel(address, channel_options(address, local=local), token=token)
        self.adapter: adapter_pb2_grpc.AdapterServiceAsyncStub = adapter_pb2_grpc.AdapterServiceStub(self._channel)
        self.router: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(self._channel)
        self.connected = False
        """Whether a connection was ever established."""
        self.closed = False
        self.grants_batching = True
        """Whether batches are requested: until the server has rejected that, as one of an earlier revision does."""
        self.streams: WeakSet[grpc.aio.Call] = WeakSet()
        """The calls of streams, which gRPC 1.76 does not end with their channel."""

    async def close(self) -> None:
        """Close the channel and end its calls."""
        self.closed = True
        for stream in list(self.streams):
            stream.cancel()
        await self._channel.close()

    async def wait_until_connected(self) -> None:
        """Wait for the first connection, or for the failure of the attempt.

        A failed call alone does not show whether the request was sent: if the connection was refused it was not, if
        the connection broke it may have been.
        """
        while not self.connected and not self.closed:
            state = self._channel.get_state(try_to_connect=True)
            self.connected = state is grpc.ChannelConnectivity.READY
            if state not in _PENDING:
                return
            await self._channel.wait_for_state_change(state)

    async def answer(self, call: Awaitable[_T]) -> _T:
        """Return a unary call's response.

        Raises:
            DragomanError: the call failed.
        """
        with self._errors():
            response = await call
        self.connected = True
        return response

    async def messages(
        self, method: "Callable[[_R], grpc.aio.UnaryStreamCall[_R, _T]]", request: _R
    ) -> AsyncGenerator[_T, None]:
        """Yield the messages of a stream that is not resumed; closed, it ends the call.

        Raises:
            DragomanError: the call failed, or the client was closed.
        """
        call = method(request)
        self.streams.add(call)
        try:
            with self._errors():
                async for message in call:
                    yield message
        finally:
            call.cancel()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self.error(error) from error
        except asyncio.CancelledError:
            if self.closed and not is_cancelling():
                raise closed_error() from None
            raise

    def error(self, error: grpc.aio.AioRpcError) -> DragomanError:
        """Convert an error of gRPC; a reason of the contract in it shows that the server was reached."""
        from dragoman.protocol.statuses import from_rpc_error  # noqa: PLC0415 - most calls do not fail

        converted = from_rpc_error(error)
        if converted.reason is not None:
            self.connected = True
        return converted


def is_cancelling() -> bool:
    """Return whether the current task is being cancelled.

    gRPC also raises ``CancelledError`` if only the call was cancelled, e.g. because the channel was closed.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def closed_error() -> DragomanError:
    """Return the error of a call whose client was closed meanwhile."""
    return DragomanError(None, "the client was closed", status=grpc.StatusCode.CANCELLED)
