"""The parts of hops that run in the bench itself; nothing is measured."""

import asyncio
import http.client
from urllib.parse import urlsplit

from tests.bench.hops import span_sink


async def test_the_sink_takes_spans_on_one_connection() -> None:
    def post(address: str) -> list[int]:
        connection = http.client.HTTPConnection(address, timeout=20)
        statuses = []
        for body in (b"", b"x" * 200_000):
            connection.request("POST", "/v1/traces", body)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()
        return statuses

    async with span_sink() as endpoint:
        assert await asyncio.to_thread(post, urlsplit(endpoint).netloc) == [200, 200]
