"""Delivery of one answer: rendering, pace, pauses at gates, cuts."""

import asyncio
import json
from collections.abc import Iterator

from dragoman.testkit.model_server.api import ModelApi
from dragoman.testkit.model_server.conversation import Conversation, fill_failure, fill_reply
from dragoman.testkit.model_server.http1 import HttpConnection
from dragoman.testkit.model_server.scheduler import RecordedRequest, Scheduler
from dragoman.testkit.model_server.script import Answer, Delivery, Failure, Reply
from dragoman.testkit.model_server.tool_names import with_native_tools
from msgspec import Struct


class CutError(Exception):
    """The script breaks the connection here."""


class Response(Struct, frozen=True):
    """Everything needed to answer one model request.

    Attributes:
        scheduler: Owner of the gates.
        api: Wire format of the request.
        conversation: The request as scripts see it.
        record: Its record, which is updated.
        connection: The client's connection.
    """

    scheduler: Scheduler
    api: ModelApi
    conversation: Conversation
    record: RecordedRequest
    connection: HttpConnection

    async def send(self, answer: Answer) -> None:
        """Deliver an answer.

        Raises:
            CutError: The script wants the connection broken now.
            ConnectionError: The client left.
        """
        if isinstance(answer, Reply):
            await self._reply(answer, None)
        elif answer.after is not None:
            await self._reply(answer.after, answer)
        else:
            error = self.api.failure(fill_failure(answer, self.conversation), self.conversation)
            self.record.status = error.status
            await self.connection.send_json(error.status, error.body, {**error.headers, **answer.headers})

    async def _reply(self, reply: Reply, ending: Failure | None) -> None:
        number = self.record.number
        reply = with_native_tools(reply, self.conversation.tools, self.scheduler.tools)
        reply = fill_reply(reply, self.conversation)
        ending = ending and fill_failure(ending, self.conversation)
        if self.conversation.stream:
            events = list(self.api.events(reply, self.conversation, number, ending))
            await self._stream(reply, events)
            return
        if reply.delivery.hold is not None:
            await self._hold(reply.delivery.hold.gate)
        self.record.status = 200
        whole = self.api.whole(reply, self.conversation, number)
        if reply.delivery.cut_after is None:
            await self.connection.send_json(200, whole, reply.headers)
            return
        body = json.dumps(whole, ensure_ascii=False).encode()
        await self.connection.begin(200, {"content-type": "application/json", **reply.headers})
        await self._cut(reply.delivery, body[: len(body) // 2])

    async def _cut(self, delivery: Delivery, last: bytes) -> None:
        """Send the last bytes, then break off in the script's way."""
        await self.connection.write(last)
        if delivery.cut == "break":
            raise CutError
        await self.connection.end()

    async def _stream(self, reply: Reply, events: list[bytes]) -> None:
        delivery = reply.delivery
        await self._pause(delivery, 0)
        self.record.status = 200
        await self.connection.begin(200, {"content-type": "text/event-stream", **reply.headers})
        for count, event in enumerate(events, 1):
            for piece in _pieces(event, delivery.packet_bytes):
                await self.connection.write(piece)
            self.record.events = count
            await self.scheduler.changed()
            if delivery.cut_after == count:
                await self._cut(delivery, b"")
                return
            await self._pause(delivery, count)
            if delivery.pace_ms:
                await asyncio.sleep(delivery.pace_ms / 1000)  # the script's pace; nothing waits
        await self.connection.end()

    async def _pause(self, delivery: Delivery, count: int) -> None:
        if delivery.hold is not None and delivery.hold.after_events == count:
            await self._hold(delivery.hold.gate)

    async def _hold(self, gate: str) -> None:
        left = asyncio.create_task(self.connection.client_left())
        try:
            await self.scheduler.hold(gate, left)
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)


def _pieces(event: bytes, size: int | None) -> Iterator[bytes]:
    step = size or len(event)
    for at in range(0, len(event), step):
        yield event[at : at + step]
