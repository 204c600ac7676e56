"""The README's example of a client."""

import asyncio

from dragoman.client import Client, execute_request


async def main() -> None:
    async with Client() as client:
        request = execute_request("process", "hello", cwd="/tmp", config={"command": "cat"})
        async with client.execute(request) as run:
            async for event in run:
                print(event.WhichOneof("body"), event.log.text)
        print(run.result)


asyncio.run(main())
