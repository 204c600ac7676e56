"""A scripted server of the whole contract, for tests of clients and routers.

Each stream, whether an Execute or an Attach, plays the next script, whatever the request: so a test
determines every message, valid or not, and where the stream breaks::

    emit = EventFactory("run-1")
    fake = FakeAdapter(
        [emit.started(), emit.text("half"), Fail(slow_consumer(2))],  # Execute
        [emit.text(" done"), emit.succeeded()],  # Attach
    )
    async with serving(fake) as address, Client(address) as client:
        ...
    assert fake.names == ["Execute", "Attach"]

Events are sent unchanged; bytes may be any bytes, e.g. of a later revision. ``Until("cancel")`` waits for
a Cancel, ``Until("kill")`` for one with a grace of zero, ``Until("respond")`` for a Respond, any other name for
``fake.open(name)``.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.limits import server_options
from dragoman.protocol.statuses import to_status
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

_SERVICES = (
    adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"],
    router_pb2.DESCRIPTOR.services_by_name["RouterService"],
)
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Until(Struct, frozen=True):
    """Wait for a gate: ``cancel``, ``kill``, ``respond``, or one that the test opens."""

    gate: str


class Fail(Struct, frozen=True):
    """End the stream with a status. An error without reason is what a proxy or a dead server leaves behind."""

    error: DragomanError

    @classmethod
    def bare(cls, code: grpc.StatusCode) -> "Fail":
        """Return a status without a reason."""
        return cls(DragomanError(None, "the connection broke", status=code))


class Silence(Struct, frozen=True):
    """Send no initial metadata; only useful first. The run is then not accepted until an event comes."""


Action: TypeAlias = event_pb2.AgentEvent | bytes | Until | Fail | Silence
"""One thing a script does. Bytes are sent as an event."""

Answer: TypeAlias = Message | DragomanError
"""What a unary RPC gives."""


class FakeAdapter:
    """Serves scripts; see the module.

    Args:
        scripts: one per stream, in the order of the calls; a stream without one is UNIMPLEMENTED.
        answers: what unary RPCs give, by their names, e.g. ``{"Detect": DetectResponse(…)}``. The others are
            UNIMPLEMENTED, but for Cancel, which waits for a script to send a result, and Respond.
    """

    def __init__(self, *scripts: Iterable[Action], answers: Mapping[str, Answer] | None = None) -> None:
        self._scripts = [list(script) for script in scripts]
        self._answers = dict(answers or {})
        self._gates: dict[str, asyncio.Event] = {}
        self._result: event_pb2.AgentEvent | None = None
        self.calls: list[tuple[str, Any]] = []
        """Every call so far: the RPC's name and its request."""
        self.ended: list[str] = []
        """How each stream ended: ``ok``, ``failed``, or ``cancelled`` by its caller."""

    @property
    def names(self) -> list[str]:
        """The RPCs called so far."""
        return [name for name, _request in self.calls]

    def requests(self, name: str) -> list[Any]:
        """Return the requests of one RPC so far."""
        return [request for called, request in self.calls if called == name]

    def gate(self, name: str) -> asyncio.Event:
        """Return the event behind a gate, to wait for it oneself."""
        return self._gates.setdefault(name, asyncio.Event())

    def open(self, name: str) -> None:
        """Open a gate: scripts that wait for it continue."""
        self.gate(name).set()

    async def handle(self, name: str, request: Any, context: _Context) -> Message | None:
        """Serve one RPC; called by `serving`."""
        self.calls.append((name, request))
        self.open(f"called {name}")
        try:
            if name in {"Execute", "Attach"}:
                await self._play(request.run_id, context)
                return None
            return await self._answer(name, request)
        except DragomanError as error:
            await context.abort_with_status(to_status(error))
            raise AssertionError("abort raises") from error

    async def _play(self, run_id: str, context: _Context) -> None:
        ended = "cancelled"
        try:
            if not self._scripts:
                raise _unscripted("stream")
            script = self._scripts.pop(0)
            if not any(isinstance(action, Silence) for action in script[:1]):
                await context.send_initial_metadata(((RUN_ID_METADATA_KEY, run_id),))
            for action in script:
                await self._act(action, run_id, context)
            ended = "ok"
        except DragomanError:
            ended = "failed"
            raise
        finally:
            self.ended.append(ended)
            self.open(f"ended {len(self.ended)}")

    async def _act(self, action: Action, run_id: str, context: _Context) -> None:
        if isinstance(action, Until):
            await self.gate(action.gate).wait()
        elif isinstance(action, Fail):
            raise action.error
        elif isinstance(action, bytes):
            await context.write(action)
        elif isinstance(action, event_pb2.AgentEvent):
            event = event_pb2.AgentEvent()
            event.CopyFrom(action)
            event.run_id = event.run_id or run_id
            await context.write(event.SerializeToString())
            if event.WhichOneof("body") == "result":
                self._result = event
                self.open("result")

    async def _answer(self, name: str, request: Any) -> Message:
        answer = self._answers.get(name)
        if isinstance(answer, DragomanError):
            raise answer
        if answer is not None:
            self._open_for(name, request)
            return answer
        if name == "Cancel":
            return await self._cancel(request)
        if name == "Respond":
            self._open_for(name, request)
            return adapter_pb2.RespondResponse(sequence=1)
        raise _unscripted(name)

    def _open_for(self, name: str, request: Any) -> None:
        if name == "Cancel":
            self.open("cancel")
            if request.HasField("grace") and request.grace.ToTimedelta().total_seconds() == 0:
                self.open("kill")
        elif name == "Respond":
            self.open("respond")

    async def _cancel(self, request: adapter_pb2.CancelRequest) -> adapter_pb2.CancelResponse:
        self._open_for("Cancel", request)
        await self.gate("result").wait()
        assert self._result is not None
        result = self._result.result
        response = adapter_pb2.CancelResponse(outcome=result.outcome, result_sequence=self._result.sequence)
        if result.HasField("tree_confirmed_dead"):
            response.tree_confirmed_dead = result.tree_confirmed_dead
        return response


def _unscripted(what: str) -> DragomanError:
    return DragomanError(None, f"the test has no script for this {what}", status=grpc.StatusCode.UNIMPLEMENTED)


@contextlib.asynccontextmanager
async def serving(fake: FakeAdapter, address: str = "") -> AsyncIterator[str]:
    """Serve ``fake``; yields the address.

    Args:
        fake: what to serve.
        address: ``unix:/path`` or ``host:port``; empty for a Unix socket in a fresh private directory. Leaving
            the block and entering another one with the same address is a restart: connections break.
    """
    with contextlib.ExitStack() as stack:
        if not address:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-fake-"))
            address = f"unix:{Path(folder) / 'fake.sock'}"
        server = grpc.aio.server(options=server_options())
        for service in _SERVICES:
            handlers = {method.name: _handler(fake, method) for method in service.methods}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(0)
            if address.startswith("unix:"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address.removeprefix("unix:"))  # noqa: PTH108 - an address, not a path object


def _handler(fake: FakeAdapter, method: MethodDescriptor) -> "grpc.RpcMethodHandler[Any, Any]":
    parse = GetMessageClass(method.input_type).FromString

    async def unary(request: Any, context: _Context) -> Any:
        return await fake.handle(method.name, request, context)

    async def stream(request: Any, context: _Context) -> None:
        await fake.handle(method.name, request, context)

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, parse, _as_bytes)
    return grpc.unary_unary_rpc_method_handler(unary, parse, _as_bytes)


def _as_bytes(response: Message | bytes) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


class EventFactory:
    """Makes one run's events, numbered.

    Args:
        run_id: the ID in every event; empty for that of the request.
    """

    def __init__(self, run_id: str = "") -> None:
        self.run_id = run_id
        self.sequence = 0
        """The last sequence."""
        self._offsets: dict[str, int] = {}

    def event(self, **body: Any) -> event_pb2.AgentEvent:
        """Return the next event with a sequence, e.g. ``emit.event(notice=Notice(code="x"))``."""
        self.sequence += 1
        origin = event_pb2.EVENT_ORIGIN_AGENT
        return event_pb2.AgentEvent(sequence=self.sequence, run_id=self.run_id, attempt=1, origin=origin, **body)

    def ephemeral(self, **body: Any) -> event_pb2.AgentEvent:
        """Return an event without a sequence."""
        return event_pb2.AgentEvent(run_id=self.run_id, attempt=1, **body)

    def started(self, adapter: str = "fake", **fields: Any) -> event_pb2.AgentEvent:
        """Return ``started``."""
        return self.event(started=event_pb2.Started(adapter=adapter, **fields))

    def text(self, delta: str, item_id: str = "item-1") -> event_pb2.AgentEvent:
        """Return a piece of text, at its offset."""
        offset = self._offsets.get(item_id, 0)
        self._offsets[item_id] = offset + len(delta.encode())
        return self.event(text=event_pb2.Text(item_id=item_id, offset=offset, delta=delta))

    def result(self, outcome: event_pb2.Outcome.ValueType, **fields: Any) -> event_pb2.AgentEvent:
        """Return ``result``."""
        return self.event(result=event_pb2.Result(outcome=outcome, **fields))

    def succeeded(self, **fields: Any) -> event_pb2.AgentEvent:
        """Return a ``result`` with the outcome SUCCEEDED."""
        return self.result(event_pb2.OUTCOME_SUCCEEDED, **fields)

    def batch(self, *events: event_pb2.AgentEvent) -> event_pb2.AgentEvent:
        """Return several events as one message."""
        return event_pb2.AgentEvent(
            sequence=events[-1].sequence, run_id=self.run_id, batch=event_pb2.Batch(events=events)
        )
