"""A contract that has grown: what a later revision adds passes through the router and the client of today.

The later contract is made here from today's: each message has one more field, each enum one more value, and there is
one more kind of event. A client and an adapter that are built with it have the router of today between them.
"""

# ruff: noqa: N802 - methods are named as in the contract

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.client import Client
from dragoman.protocol.duties import ALL_DUTIES
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.router.harness import PATIENCE_S, Caller, config, routing

LATER_NUMBER = 9001
LATER_BODY = 61
LATER_TEXT = "from a later revision"
READY = router_pb2.ADAPTER_STATE_READY


def later_pool() -> descriptor_pool.DescriptorPool:
    """Return the contract as a later revision may have it."""
    pool = descriptor_pool.DescriptorPool()
    modules = (duration_pb2, struct_pb2, timestamp_pb2, event_pb2, adapter_pb2, router_pb2)
    for module in modules:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        if file.package == "dragoman.v1":
            _grow(file)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _grow(file: descriptor_pb2.FileDescriptorProto) -> None:
    for message in file.message_type:
        _grow_message(message)
    for enum in file.enum_type:
        prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
        enum.value.add(name=f"{prefix}LATER", number=LATER_NUMBER)


def _grow_message(message: descriptor_pb2.DescriptorProto) -> None:
    field = descriptor_pb2.FieldDescriptorProto
    text = {"type": field.TYPE_STRING, "label": field.LABEL_OPTIONAL}
    for nested in message.nested_type:
        if not nested.options.map_entry:
            _grow_message(nested)
    message.field.add(name="later_text", number=LATER_NUMBER, **text)
    if message.name == "AgentEvent":
        nested = message.nested_type.add(name="Later")
        nested.field.add(name="text", number=1, **text)
        message.field.add(
            name="later",
            number=LATER_BODY,
            type=field.TYPE_MESSAGE,
            label=field.LABEL_OPTIONAL,
            type_name=".dragoman.v1.AgentEvent.Later",
            oneof_index=[oneof.name for oneof in message.oneof_decl].index("body"),
        )


POOL = later_pool()


def later(name: str) -> Any:
    """Return the class of a message in the later contract."""
    return GetMessageClass(POOL.FindMessageTypeByName(f"dragoman.v1.{name}"))


def grown(message: Any) -> Any:
    """Set the additional field of a message and of all that are in it."""
    if message.DESCRIPTOR.file.package == "dragoman.v1" and "later_text" in message.DESCRIPTOR.fields_by_name:
        message.later_text = LATER_TEXT
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE or field.message_type.GetOptions().map_entry:
            continue
        for one in [value] if isinstance(value, Message) else value:
            grown(one)
    return message


def events(run_id: str) -> list[Any]:
    """Return what the later adapter sends before it asks, then the rest."""
    later_is = LATER_NUMBER
    bodies: list[dict[str, Any]] = [
        {"started": {"adapter": "later", "instance_id": "i1"}},
        {"state": {"phase": later_is}},
        {"text": {"item_id": "t", "delta": "hello"}},
        {"later": {"text": "a new kind of event"}},
        {"tool_call": {"id": "c", "name": "x", "kind": later_is, "status": later_is}},
        {"tool_result": {"tool_call_id": "c", "status": later_is}},
        {"notice": {"severity": later_is, "code": "n", "message": "m"}},
        {"usage": {"scope": later_is, "tokens": {"input": 1}, "models": [{"model": "m", "tokens": {"input": 1}}]}},
        {"input_request": {"id": "q", "kind": later_is, "title": "?"}},
        {"input_resolved": {"id": "q", "resolution": later_is}},
        {"result": {"outcome": event_pb2.OUTCOME_FAILED, "failure": {"kind": later_is, "message": "m"}}},
    ]
    return [
        grown(later("AgentEvent")(sequence=number, run_id=run_id, attempt=1, origin=later_is, **body))
        for number, body in enumerate(bodies, 1)
    ]


class LaterAdapter:
    """An adapter that is built with the later contract, and with nothing of ours."""

    def __init__(self, *, batching: bool) -> None:
        self.batching = batching
        self.received: dict[str, Any] = {}
        self.answered = asyncio.Event()

    async def Describe(self, request: Any, _context: Any) -> Any:
        self.received["Describe"] = request
        capabilities = {"items": [{"feature": LATER_NUMBER}, {"feature": event_pb2.FEATURE_PROMPT}]}
        described = later("DescribeResponse")(
            adapter="later",
            revision=2,
            instance_id="i1",
            capabilities=capabilities,
            duties=[*ALL_DUTIES, LATER_NUMBER],
        )
        described.batching = self.batching
        return grown(described)

    async def TestEnvironment(self, request: Any, _context: Any) -> Any:
        self.received["TestEnvironment"] = request
        check = {"code": "c", "level": LATER_NUMBER}
        return grown(later("TestEnvironmentResponse")(adapter="later", status=LATER_NUMBER, checks=[check]))

    async def Respond(self, request: Any, _context: Any) -> Any:
        self.received["Respond"] = request
        self.answered.set()
        return grown(later("RespondResponse")(sequence=10))

    async def Execute(self, request: Any, context: Any) -> None:
        self.received["Execute"] = request
        await context.send_initial_metadata((("dragoman-run-id", request.run_id),))
        sent = events(request.run_id)
        if self.batching:
            sent[2:8] = [later("AgentEvent")(sequence=8, batch={"events": sent[2:8]})]
        for event in sent:
            if event.HasField("input_resolved"):
                await self.answered.wait()
            await context.write(event)


@contextlib.asynccontextmanager
async def later_adapter(address: str, *, batching: bool = False) -> AsyncIterator[LaterAdapter]:
    """Serve a later adapter."""
    adapter, server = LaterAdapter(batching=batching), grpc.aio.server()
    handlers: dict[str, Any] = {}
    for method in POOL.FindServiceByName("dragoman.v1.AdapterService").methods:
        if (call := getattr(adapter, method.name, None)) is not None:
            make = (
                grpc.unary_stream_rpc_method_handler
                if method.server_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            handlers[method.name] = make(
                call, GetMessageClass(method.input_type).FromString, lambda message: message.SerializeToString()
            )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("dragoman.v1.AdapterService", handlers),))
    server.add_insecure_port(address)
    await server.start()
    try:
        yield adapter
    finally:
        await server.stop(0)


class LaterClient:
    """A client that is built with the later contract."""

    def __init__(self, caller: Caller) -> None:
        self._channel = caller.channel

    def _method(self, service: str, name: str, make: Callable[..., Any]) -> Any:
        method = POOL.FindServiceByName(f"dragoman.v1.{service}").FindMethodByName(name)
        return make(
            f"/dragoman.v1.{service}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

    async def call(self, name: str, request: Any, service: str = "AdapterService") -> Any:
        return await self._method(service, name, self._channel.unary_unary)(request, timeout=PATIENCE_S)

    def stream(self, name: str, request: Any) -> Any:
        return self._method("AdapterService", name, self._channel.unary_stream)(request, timeout=PATIENCE_S)


def durable(messages: Iterable[Any]) -> list[Any]:
    """Return the stored events of a stream, those of batches one by one."""
    single = [event for message in messages for event in (message.batch.events or [message])]
    return [event for event in single if event.sequence]


def execute_request(run_id: str, *, batching: bool) -> Any:
    """Return a request with what the later contract adds."""
    request = later("ExecuteRequest")(
        adapter="later",
        run_id=run_id,
        prompt="hello",
        labels={"a": "b"},
        agent={"id": "agent"},
        workspace={"cwd": "/"},
        orphan_after={"seconds": 60},
        mcp_servers=[{"name": "m"}],
        limits={"wall": {"seconds": 60}},
        permissions={"rules": [{"decision": LATER_NUMBER, "tool_kind": LATER_NUMBER}]},
    )
    if batching:
        request.batching.SetInParent()
    return grown(request)


@pytest.mark.parametrize("batching", [False, True])
async def test_what_a_later_contract_adds_passes_both_ways_and_through_the_run_log(
    folder: Path, *, batching: bool
) -> None:
    address = f"unix:{folder}/a.sock"
    expected = events("r")
    async with later_adapter(address, batching=batching) as adapter:
        async with routing(config(folder, addresses=(address,))) as (_, caller):
            client = LaterClient(caller)
            await caller.until("later", READY)
            sent = execute_request("r", batching=batching)
            stream = client.stream("Execute", sent)
            got: list[Any] = []
            answer = grown(later("RespondRequest")(run_id="r", request_id="q", answer={"text": "yes"}))
            async for event in stream:
                got.append(event)
                if event.HasField("input_request") or any(
                    one.HasField("input_request") for one in event.batch.events
                ):
                    response = await client.call("Respond", answer)
                    assert (response.sequence, response.later_text) == (10, LATER_TEXT)
            assert durable(got) == expected

            received = adapter.received["Execute"]
            for name in ("adapter", "batching", "orphan_after"):  # the router's own
                received.ClearField(name)
                sent.ClearField(name)
            assert received == sent
            answer.responder = adapter.received["Respond"].responder
            assert adapter.received["Respond"] == answer

            assert durable([one async for one in client.stream("Attach", attach("r", batching=batching))]) == expected
            assert (await get_run(client)).run.result == expected[-1].result

            again = execute_request("r", batching=batching)
            assert durable([one async for one in client.stream("Execute", again)]) == expected, "it is the same"
        async with routing(config(folder, addresses=(address,))) as (_, caller):
            client = LaterClient(caller)
            attached = [one async for one in client.stream("Attach", attach("r", batching=batching))]
            assert durable(attached) == expected, "from the run log"
            assert (
                durable([one async for one in client.stream("Attach", attach("r", 5, batching=batching))])
                == expected[5:]
            )
            assert (await get_run(client)).run.result == expected[-1].result


def attach(run_id: str, after: int = 0, *, batching: bool) -> Any:
    request = grown(later("AttachRequest")(run_id=run_id, after_sequence=after))
    if batching:
        request.batching.SetInParent()
    return request


async def get_run(client: LaterClient) -> Any:
    return await client.call("GetRun", grown(later("GetRunRequest")(run_id="r")), "RouterService")


async def test_unary_calls_pass_what_a_later_contract_adds(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    async with later_adapter(address) as adapter, routing(config(folder, addresses=(address,))) as (_, caller):
        client = LaterClient(caller)
        await caller.until("later", READY)
        request = grown(later("DescribeRequest")(adapter="later"))
        described = await client.call("Describe", request)
        assert adapter.received["Describe"] == request
        assert described == await adapter.Describe(request, None)
        test = grown(later("TestEnvironmentRequest")(adapter="later", mode=LATER_NUMBER, workspace={"cwd": "/"}))
        assert await client.call("TestEnvironment", test) == await adapter.TestEnvironment(test, None)
        assert adapter.received["TestEnvironment"] == test
        listed = await client.call("ListAdapters", later("ListAdaptersRequest")(later_text="x"), "RouterService")
        assert [entry.description for entry in listed.adapters] == [described]


async def test_the_client_of_today_keeps_what_it_does_not_know(folder: Path) -> None:
    address, expected = f"unix:{folder}/a.sock", events("r")
    async with (
        later_adapter(address) as adapter,
        routing(config(folder, addresses=(address,))) as (router, caller),
        Client(router.addresses[0]) as client,
    ):
        await caller.until("later", READY)
        adapter.answered.set()
        request = adapter_pb2.ExecuteRequest.FromString(execute_request("r", batching=False).SerializeToString())
        async with client.execute(request) as run:
            got = [later("AgentEvent").FromString(event.SerializeToString()) async for event in run]
        assert durable(got) == expected
        assert adapter.received["Execute"].later_text == LATER_TEXT
