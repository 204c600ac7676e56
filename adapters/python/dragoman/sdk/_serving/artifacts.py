"""ReadArtifact: a file that an agent left, piece by piece."""

import asyncio
from typing import Final

from dragoman.protocol.errors import invalid
from dragoman.protocol.server import Context, draining, send_head, write_event
from dragoman.protocol.signals import Signal
from dragoman.sdk._run.files import gone, unknown_artifact
from dragoman.sdk._run.run import Run
from dragoman.v1 import adapter_pb2 as pb

_PIECE: Final = 256 * 1024
"""Bytes in one message."""


async def stream_artifact(context: Context, run: Run, request: pb.ReadArtifactRequest, ended_early: Signal) -> None:
    """Write the part of a file that is asked for.

    Args:
        context: the RPC.
        run: the run that left it.
        request: what is asked for.
        ended_early: set by the server when it drains.

    Raises:
        DragomanError: ARTIFACT_NOT_FOUND, ARTIFACTS_GONE, INVALID_REQUEST, or DRAINING.
        PeerGoneError: the caller went away.
    """
    if run.files is None:
        raise unknown_artifact(run.run_id, request.name)
    kept = run.files.find(run.run_id, request.name)
    artifact = kept.artifact
    if request.offset > artifact.size:
        raise invalid("offset", f"must not be greater than the artifact's {artifact.size} bytes")
    end = min(artifact.size, request.offset + (request.length or artifact.size))
    try:
        file = await asyncio.to_thread(kept.path.open, "rb")
    except OSError as error:
        raise gone(run.run_id) from error
    with file:
        await send_head(context)
        file.seek(request.offset)
        response = pb.ReadArtifactResponse(size=artifact.size, sha256=artifact.sha256)
        left = end - request.offset
        while True:
            response.data = await asyncio.to_thread(file.read, min(_PIECE, left))
            if left and not response.data:
                raise gone(run.run_id)
            left -= len(response.data)
            await write_event(context, response.SerializeToString())
            if not left:
                return
            if ended_early.is_set():
                raise draining()
            response = pb.ReadArtifactResponse()
