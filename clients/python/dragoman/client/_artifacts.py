"""Reading an artifact: its pieces as they come, checked against its digest."""

import contextlib
from collections.abc import AsyncIterator

import grpc
from dragoman.client._channel import Channel
from dragoman.protocol.errors import DragomanError
from dragoman.v1 import adapter_pb2 as pb


async def pieces(channel: Channel, request: pb.ReadArtifactRequest) -> AsyncIterator[bytes]:
    """Yield the pieces that are asked for.

    Raises:
        DragomanError: the call failed, or a whole file is not what its digest says.
    """
    import hashlib  # noqa: PLC0415 - few clients read artifacts

    digest, due, size = hashlib.sha256(), "", 0
    async with contextlib.aclosing(channel.messages(channel.adapter.ReadArtifact, request)) as messages:
        async for message in messages:
            due, size = due or message.sha256, size or message.size
            digest.update(message.data)
            if message.data:
                yield message.data
    is_whole = not request.offset and (not request.length or request.length >= size)
    if is_whole and digest.hexdigest() != due:
        wrong = f"artifact {request.name!r} did not come as it was left; its digest differs"
        raise DragomanError(None, wrong, status=grpc.StatusCode.DATA_LOSS)
