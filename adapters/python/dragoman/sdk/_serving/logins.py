"""Login: the agent logs its user in, step by step."""

import contextlib

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.protocol.server import Context, draining, send_head, write_event
from dragoman.protocol.signals import Signal, interruptible
from dragoman.sdk.adapter import Adapter
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2


async def stream_login(context: Context, adapter: Adapter, request: pb.LoginRequest, ended_early: Signal) -> None:
    """Write the steps of a login; cancelled, it ends the agent's program.

    Args:
        context: the RPC.
        adapter: the agent's.
        request: what is asked for.
        ended_early: set by the server when it drains.

    Raises:
        DragomanError: NOT_IMPLEMENTED, INVALID_REQUEST, or DRAINING.
        PeerGoneError: the caller went away.
    """
    info = adapter.describe()
    if not info.has(event_pb2.FEATURE_LOGIN):
        message = f"{info.type} cannot log its agent in; do it with the agent's own command"
        raise DragomanError(Reason.NOT_IMPLEMENTED, message)
    secrets = Redactor(request_secrets(pb.ExecuteRequest(env=request.env, config=request.config)))
    try:
        async with interruptible() as interrupt, contextlib.aclosing(adapter.log_in(request)) as events:
            with ended_early.calling(interrupt):
                is_first = True
                async for event in events:
                    if event.outcome.HasField("failure"):
                        event.outcome.failure.message = secrets.text(event.outcome.failure.message)
                    if is_first:
                        await send_head(context)
                        is_first = False
                    await write_event(context, event.SerializeToString())
                    if event.HasField("outcome"):
                        return
    except TimeoutError:
        if not ended_early.is_set():
            raise
        raise draining() from None
