"""The README's example of a client."""

import asyncio

from dragoman.client import Client
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2 as pb2


async def main() -> None:
    async with Client("127.0.0.1:7777") as client:
        request = pb.ExecuteRequest(adapter="process", prompt="hello")
        request.workspace.cwd = "/tmp"
        request.config.update({"command": "cat"})
        async with client.execute(request) as run:
            async for event in run:
                print(event.WhichOneof("body"), event.log.text)
            print(pb2.Outcome.Name(run.result.outcome), run.result.summary)


asyncio.run(main())
