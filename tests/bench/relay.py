"""A relay in plain grpc.aio that copies bytes: what a router in Python cannot be cheaper than.

Run as ``python -m tests.bench.relay LISTEN ADAPTER``.
"""

import asyncio
import sys
from typing import Any

import grpc
from dragoman.protocol.limits import channel_options, server_options


class Relay(grpc.GenericRpcHandler):
    """Passes on every call as a stream of bytes."""

    def __init__(self, upstream: str) -> None:
        self._channel = grpc.aio.insecure_channel(upstream, options=channel_options(upstream, local=True))

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method."""
        call: Any = self._channel.unary_stream(details.method)

        async def relay(request: bytes, context: Any) -> None:
            stream = call(request)
            await context.send_initial_metadata(await stream.initial_metadata())
            while (message := await stream.read()) is not grpc.aio.EOF:
                await context.write(message)

        return grpc.unary_stream_rpc_method_handler(relay)


async def main(listen: str, upstream: str) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((Relay(upstream),))
    server.add_insecure_port(listen)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
