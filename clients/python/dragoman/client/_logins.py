"""Logging an agent in: the steps as they come."""

from collections.abc import AsyncGenerator

import grpc
from dragoman.client._channel import Channel
from dragoman.v1 import adapter_pb2 as pb


async def steps(channel: Channel, request: pb.LoginRequest) -> AsyncGenerator[pb.LoginResponse, None]:
    """Yield the steps of a login; closed, it ends the login.

    Raises:
        DragomanError: the call failed.
    """
    call = channel.adapter.Login(request)
    try:
        async for event in call:
            yield event
    except grpc.aio.AioRpcError as error:
        raise channel.error(error) from error
    finally:
        call.cancel()
