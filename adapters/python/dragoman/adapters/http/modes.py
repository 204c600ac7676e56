"""The modes in which a service answers: at once, as a stream, to polls, or by callbacks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import urljoin

from dragoman.adapters.http.exchange import Answer, Exchange, ExchangeError
from dragoman.adapters.http.failures import failure_of_answer, reported_failure, unreadable
from dragoman.adapters.http.frames import DONE, Frames
from dragoman.adapters.http.mapping import Paths
from dragoman.protocol.egress import Call
from dragoman.sdk import FailureError, Line, Terminal, Turn, log_event
from dragoman.sdk.fields import Fields, as_number, as_object, compact, parse_json_object
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

POLL_S: Final = 2.0
"""Seconds between two polls, unless the config or the service has another interval."""
MOST_POLL_S: Final = 300.0
_MOST_FAILED_POLLS: Final = 5
_ITEM: Final = "answer"
_THOUGHT: Final = "thinking"


class Conversation:
    """One run at the service."""

    def __init__(self, turn: Turn, exchange: Exchange, paths: Paths, headers: Mapping[str, str]) -> None:
        self.cancel_url = ""
        """The URL for requests to stop, if the service has named one."""
        self._turn = turn
        self._exchange = exchange
        self._paths = paths
        self._headers = headers
        self._base = ""
        """The URL of the last answer; URLs in it may be relative."""
        self._streamed = ""
        self._session = ""

    async def at_once(self, call: Call) -> None:
        """Read the answer as the result."""
        answer = await self._begun(call)
        fields = self._fields(answer)
        if answer.status == 202 or self._paths.state(fields) == "running":
            raise FailureError(unreadable("The service has not finished; use config.mode poll, or callback."))
        self._end(fields)

    async def stream(self, call: Call) -> None:
        """Read the answer piece by piece."""
        async with self._exchange.begun(call) as (head, chunks):
            if head.status >= 300:
                whole = replace(head, body=b"".join([chunk async for chunk in chunks]))
                raise FailureError(failure_of_answer(whole, self._turn.job))
            self._base = head.url
            last: Fields | None = None
            async with aclosing(_frames(self._turn, Frames(head.media_type), chunks)) as frames:
                async for data in frames:
                    last, is_done = self._frame(data, last)
                    if is_done:
                        self._end_of_stream(last)
                        return
        raise ExchangeError("The stream ended before the service said that it was done.", "stream_cut")

    async def poll(self, call: Call) -> None:
        """Start a task, and poll its state until it is done."""
        answer = await self._begun(call)
        fields = self._fields(answer)
        url = self._paths.text("statusUrl", fields) or answer.headers.get("location", "")
        while self._paths.state(fields) == "running" or (answer.status == 202 and url):
            if not url:
                raise FailureError(unreadable("The service has not finished, and names no URL to poll."))
            await asyncio.sleep(self._pause(answer))
            url = urljoin(answer.url, url)
            before = answer.body
            answer = await self._poll_once(Call(url, "GET", self._headers))
            fields = self._fields(answer)
            if answer.body != before:  # an unchanged answer is no sign of activity
                self._turn.activity()
                self._note(fields)
        self._end(fields)

    async def wait(self, call: Call, reports: "asyncio.Queue[Fields]") -> None:
        """Start a task, and wait until the service reports that it is done."""
        accepted = self._fields(await self._begun(call), may_be_empty=True)
        self._note(accepted)
        if self._paths.failure(accepted):
            self._end(accepted)
        while True:
            fields = await reports.get()
            self._turn.activity()
            self._note(fields)
            if self._paths.state(fields) != "running":
                self._end(fields)
                return

    # Answers.

    async def _begun(self, call: Call) -> Answer:
        answer = await self._exchange.whole(call)
        self._turn.activity()
        if answer.status >= 300:
            raise FailureError(failure_of_answer(answer, self._turn.job))
        return answer

    async def _poll_once(self, call: Call) -> Answer:
        """Poll a task; a poll that fails temporarily is repeated."""
        tries = 0
        while True:
            tries += 1
            try:
                answer = await self._exchange.whole(call)
            except ExchangeError:
                if tries >= _MOST_FAILED_POLLS:
                    raise
            else:
                if answer.status < 300:
                    return answer
                if (answer.status not in {408, 429} and answer.status < 500) or tries >= _MOST_FAILED_POLLS:
                    raise FailureError(failure_of_answer(answer, self._turn.job))
            await asyncio.sleep(self._pause(None))

    def _pause(self, answer: Answer | None) -> float:
        seconds = answer.headers.get("retry-after", "") if answer is not None else ""
        if seconds.isascii() and seconds.isdigit():
            return min(float(seconds), MOST_POLL_S)
        config = as_object(self._turn.job.config.get("poll"), {})
        return as_number(config.get("intervalSec"), POLL_S)

    def _fields(self, answer: Answer, *, may_be_empty: bool = False) -> Fields:
        self._base = answer.url
        fields = parse_json_object(answer.body)
        if fields is not None:
            return fields
        if may_be_empty or (answer.status in {202, 204} and not answer.body.strip()):
            return {}
        if answer.media_type.startswith("text/plain"):
            self._turn.report.summary = answer.body.decode("utf-8", "replace")
            return {}
        raise FailureError(unreadable(answer.body[:200].decode("utf-8", "replace")))

    def _note(self, fields: Fields) -> None:
        """Note the values of an answer, and emit the session once it is known."""
        report = self._turn.report
        self._paths.report(fields, report)
        named = self._paths.text("cancelUrl", fields)
        self.cancel_url = urljoin(self._base, named) if named else self.cancel_url
        if report.session_id and report.session_id != self._session:
            self._session = report.session_id
            session = pb.Session(native_id=report.session_id, model=report.model)
            self._turn.run.emit(pb.AgentEvent(session=session))

    def _end(self, fields: Fields) -> None:
        """Read an answer as the last."""
        self._note(fields)
        report, run = self._turn.report, self._turn.run
        report.raw_json = compact(dict(fields)) if fields else ""
        if report.summary and not self._streamed:
            run.emit(pb.AgentEvent(text=pb.Text(item_id=_ITEM, whole=report.summary)))
        if report.usage is not None:
            run.emit(pb.AgentEvent(usage=report.usage))
        error = self._paths.failure(fields)
        if error or self._paths.state(fields) == "failed":
            raise FailureError(reported_failure(error or self._paths.text("status", fields), self._turn.job))
        report.terminal = Terminal(succeeded=True)

    # Streams.

    def _frame(self, data: bytes, last: Fields | None) -> tuple[Fields | None, bool]:
        """Read a frame; return the last one with values, and whether the stream is done."""
        if data.strip() == DONE:
            return last, True
        fields = parse_json_object(data)
        if fields is None:
            self._turn.run.emit(log_event("stdout", Line(data, 0, complete=True)))
            return last, False
        events = list(self._events(fields))
        before = (self._session, self._turn.report.usage)
        self._note(fields)
        is_done = self._paths.is_done(fields)
        if not events and not is_done and before == (self._session, self._turn.report.usage):
            events = [log_event("stdout", Line(data, 0, complete=True))]  # nothing is lost
        self._turn.run.emit_all(events)
        return fields, is_done

    def _events(self, fields: Fields) -> Iterator[pb.AgentEvent]:
        thought, words = self._paths.text("thinking", fields), self._paths.text("delta", fields)
        if thought:
            yield pb.AgentEvent(thinking=pb.Thinking(item_id=_THOUGHT, delta=thought))
        if words:
            self._streamed += words
            yield pb.AgentEvent(text=pb.Text(item_id=_ITEM, delta=words))

    def _end_of_stream(self, last: Fields | None) -> None:
        self._turn.run.emit(pb.AgentEvent(text=pb.Text(item_id=_ITEM)))
        self._turn.report.summary = self._turn.report.summary or self._streamed
        self._end(last or {})


async def _frames(turn: Turn, frames: Frames, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        turn.activity()
        for data in frames.feed(chunk):
            yield data
    for data in frames.finish():
        yield data
