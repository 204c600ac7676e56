"""One answer on its way to the client: rendering, pace, holds, cuts."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

from dragoman.testkit.conversation import Conversation, fill_failure, fill_reply
from dragoman.testkit.dialect import Dialect
from dragoman.testkit.director import Director, RecordedRequest
from dragoman.testkit.http1 import Responder
from dragoman.testkit.scenarios import Answer, Delivery, Failure, Reply
from dragoman.testkit.vocabulary import in_own_words


class CutError(Exception):
    """The script breaks the connection here."""


@dataclass(frozen=True, slots=True)
class Performance:
    """Everything needed to answer one model request.

    Attributes:
        director: Keeper of the gates.
        dialect: Wire format of the request.
        conversation: What it says.
        record: Its record, kept up to date.
        out: Where the answer goes.
        reader: The same connection, to see the client leave during a hold.
    """

    director: Director
    dialect: Dialect
    conversation: Conversation
    record: RecordedRequest
    out: Responder
    reader: asyncio.StreamReader

    async def give(self, answer: Answer) -> None:
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
            error = self.dialect.failure(fill_failure(answer, self.conversation), self.conversation)
            self.record.status = error.status
            await self.out.send_json(error.status, error.body, {**error.headers, **answer.headers})

    async def _reply(self, reply: Reply, ending: Failure | None) -> None:
        number = self.record.number
        reply = in_own_words(reply, self.conversation.tools, self.director.tools)
        reply = fill_reply(reply, self.conversation)
        ending = ending and fill_failure(ending, self.conversation)
        if self.conversation.stream:
            events = list(self.dialect.events(reply, self.conversation, number, ending))
            await self._stream(reply, events)
            return
        if reply.delivery.hold is not None:
            await self._hold(reply.delivery.hold.gate)
        self.record.status = 200
        whole = self.dialect.whole(reply, self.conversation, number)
        if reply.delivery.cut_after is None:
            await self.out.send_json(200, whole, reply.headers)
            return
        body = json.dumps(whole, ensure_ascii=False).encode()
        await self.out.begin(200, {"content-type": "application/json", **reply.headers})
        await self._cut(reply.delivery, body[: len(body) // 2])

    async def _cut(self, delivery: Delivery, last: bytes) -> None:
        """Send the last bytes, then break off in the script's way."""
        await self.out.write(last)
        if delivery.cut == "break":
            raise CutError
        await self.out.end()

    async def _stream(self, reply: Reply, events: list[bytes]) -> None:
        delivery = reply.delivery
        await self._pause(delivery, 0)
        self.record.status = 200
        await self.out.begin(200, {"content-type": "text/event-stream", **reply.headers})
        for count, event in enumerate(events, 1):
            for piece in _pieces(event, delivery.packet_bytes):
                await self.out.write(piece)
            self.record.events = count
            await self.director.changed()
            if delivery.cut_after == count:
                await self._cut(delivery, b"")
                return
            await self._pause(delivery, count)
            if delivery.pace_ms:
                await asyncio.sleep(delivery.pace_ms / 1000)  # the script's pace; nothing waits
        await self.out.end()

    async def _pause(self, delivery: Delivery, count: int) -> None:
        if delivery.hold is not None and delivery.hold.after_events == count:
            await self._hold(delivery.hold.gate)

    async def _hold(self, gate: str) -> None:
        left = asyncio.ensure_future(self.reader.read(1))
        try:
            await self.director.hold(gate, left)
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)


def _pieces(event: bytes, size: int | None) -> Iterator[bytes]:
    step = size or len(event)
    for at in range(0, len(event), step):
        yield event[at : at + step]
