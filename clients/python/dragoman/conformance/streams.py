"""A stream of events as the kit reads it: what came, in order, and how it ended."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from dragoman.conformance.check import Skip, Violation
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.statuses import from_rpc_error
from dragoman.protocol.texts import enum_name
from dragoman.protocol.wire import unroll
from dragoman.v1 import event_pb2 as pb
from google.protobuf.json_format import MessageToDict

Predicate = Callable[[pb.AgentEvent], bool]

_UNPERFORMED = re.compile(r"dragoman-script: step '([^']*)' not supported")
"""What a scripted agent says of a step that it does not know."""

_IDENTITIES = {"id", "handle"}


class Stream:
    """One reader's stream.

    Args:
        rpc: ``Execute`` or ``Attach``.
        call: the call.
        after: the sequence that it starts after.
        on_error: is called with the status if it is not OK.
    """

    def __init__(self, rpc: str, call: Any, after: int, on_error: Callable[[DragomanError], object]) -> None:
        self.rpc = rpc
        self.after = after
        self.is_of_router = False
        """Whether a router sends it."""
        self.messages: list[pb.AgentEvent] = []
        """What came, batches as they came."""
        self.events: list[pb.AgentEvent] = []
        """The same with batches taken apart."""
        self.is_over = False
        """Whether the stream ended with status OK."""
        self.error: DragomanError | None = None
        """The status that ended it, if that is not OK."""
        self._call = call
        self._on_error = on_error

    @property
    def durable(self) -> list[pb.AgentEvent]:
        """The events with a sequence."""
        return [event for event in self.events if event.sequence]

    @property
    def kinds(self) -> set[str]:
        """The kinds of all events, and of batches; empty for a body of a later revision."""
        return {event.WhichOneof("body") or "" for event in (*self.events, *self.messages)}

    @property
    def text(self) -> str:
        """All that the agent said: texts, thinking and lines, and the results of tools."""
        parts = []
        for event in self.events:
            for piece in (event.text, event.thinking):
                parts.append(piece.delta or piece.whole)
            parts += [event.log.text, event.tool_output.text, event.tool_result.content]
        return "".join(parts)

    @property
    def result(self) -> pb.Result:
        """The result.

        Raises:
            Violation: there is none.
        """
        for event in self.events:
            if event.HasField("result"):
                return event.result
        raise Violation(f"{self.rpc}: the stream has no result")

    def of(self, kind: str) -> list[Any]:
        """Return the bodies of one kind."""
        return [getattr(event, kind) for event in self.events if event.WhichOneof("body") == kind]

    async def header(self) -> str:
        """Return the run ID of the initial metadata; empty if it has none."""
        for name, value in await self._call.initial_metadata() or ():
            if name == RUN_ID_METADATA_KEY:
                return str(value)
        return ""

    async def read(self) -> pb.AgentEvent | None:
        """Return the next message; None at the end.

        Raises:
            DragomanError: the stream ended with another status than OK.
        """
        try:
            message = await self._call.read()
            if message is grpc.aio.EOF:
                if await self._call.code() is not grpc.StatusCode.OK:
                    raise _broken(await self._call.code(), await self._call.details())
                self.is_over = True
                return None
        except grpc.aio.AioRpcError as error:
            self.error = from_rpc_error(error)
            self._on_error(self.error)
            raise self.error from error
        event: pb.AgentEvent = message
        self.messages.append(event)
        self.events += unroll(event)
        return event

    async def until(self, predicate: Predicate) -> pb.AgentEvent:
        """Read until an event that the predicate accepts, and return it.

        Raises:
            Violation: the stream ended before.
            Skip: the agent cannot perform a step.
        """
        while True:
            seen = len(self.events)
            message = await self._accepted()
            for event in self.events[seen:]:
                if predicate(event):
                    return event
            if message is None:
                self._require_performed()
                raise Violation(f"{self.rpc}: {_ending(self)} without the event that was due")

    async def ending(self) -> DragomanError | None:
        """Read to the end, and return the status that ended it; None if that is OK.

        Raises:
            Skip: the agent cannot perform a step.
        """
        try:
            while await self.read() is not None:
                pass
        except DragomanError as error:
            return error
        self._require_performed()
        return None

    async def until_text(self, text: str) -> None:
        """Read until the agent has said a text."""
        while text not in self.text:
            await self.until(lambda _: text in self.text)

    async def rest(self) -> "Stream":
        """Read to the end.

        Raises:
            Violation: it ended with another status than OK.
            Skip: the agent cannot perform a step.
        """
        while await self._accepted() is not None:
            pass
        self._require_performed()
        return self

    def _require_performed(self) -> None:
        messages = [result.failure.message for result in self.of("result")]
        for text in (self.text, *messages):
            if found := _UNPERFORMED.search(text):
                raise Skip(f"the scripted agent cannot perform the step {found[1]!r}")

    async def _accepted(self) -> pb.AgentEvent | None:
        try:
            return await self.read()
        except DragomanError as error:
            raise Violation(f"{self.rpc} failed: {shown(error)}") from error

    def cancel(self) -> None:
        """End the call, as a client that goes away does."""
        self._call.cancel()


def _ending(stream: Stream) -> str:
    for result in stream.of("result"):
        why = f" ({result.failure.message[:300]})" if result.failure.message else ""
        return f"the run ended as {enum_name(pb.Outcome.DESCRIPTOR, result.outcome)}{why}"
    return "the stream ended"


def first(stream: Stream) -> pb.AgentEvent:
    """Return the first durable event.

    Raises:
        Violation: there is none.
    """
    return _durable(stream)[0]


def last(stream: Stream) -> pb.AgentEvent:
    """Return the last durable event so far.

    Raises:
        Violation: there is none.
    """
    return _durable(stream)[-1]


def _durable(stream: Stream) -> list[pb.AgentEvent]:
    durable = stream.durable
    if not durable:
        raise Violation(f"{stream.rpc}: no event has a sequence")
    return durable


def texts(event: pb.AgentEvent) -> Iterator[str]:
    """Yield every text in an event but IDs and session handles, which callers need unchanged."""
    yield from _texts(MessageToDict(event, preserving_proto_field_name=True))
    yield (event.log.raw + event.tool_output.raw).decode(errors="replace")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _IDENTITIES and not name.endswith(("_id", "_ids")):
                yield name
                yield from _texts(item)


def _broken(code: grpc.StatusCode, details: str | None) -> DragomanError:
    return DragomanError(None, details or code.name, status=code)


def shown(error: DragomanError) -> str:
    """Return a status in one line."""
    return f"{error.code.name} {error.reason or 'without ErrorInfo'}: {error.message[:300]}"


def is_kind(kind: str) -> Predicate:
    """Return a predicate for events of a kind."""
    return lambda event: event.WhichOneof("body") == kind
