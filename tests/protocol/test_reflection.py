"""Reflection answers in both versions, for services, their methods, and itself."""

from collections.abc import AsyncIterator

import grpc
import pytest
from dragoman.protocol.reflection import REFLECTION_SERVICES, reflection_handlers
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(reflection_handlers(["dragoman.v1.AdapterService"]))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(0)


async def _ask(
    channel: grpc.aio.Channel, service: str, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    call = channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(request)
    answer = await call.read()
    await call.done_writing()
    assert isinstance(answer, reflection_pb2.ServerReflectionResponse)
    return answer


@pytest.mark.parametrize("service", REFLECTION_SERVICES)
async def test_it_lists_itself_and_the_services_of_its_server(channel: grpc.aio.Channel, service: str) -> None:
    answer = await _ask(channel, service, reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = [item.name for item in answer.list_services_response.service]
    assert listed == sorted(["dragoman.v1.AdapterService", *REFLECTION_SERVICES])


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("dragoman.v1.AdapterService", "dragoman/v1/adapter.proto"),
        ("dragoman.v1.AdapterService.Detect", "dragoman/v1/adapter.proto"),
        ("dragoman.v1.AgentEvent", "dragoman/v1/event.proto"),
        ("grpc.reflection.v1.ServerReflection", "reflection/v1/reflection.proto"),
        ("grpc.reflection.v1alpha.ServerReflection", "reflection/v1alpha/reflection.proto"),
    ],
)
async def test_every_symbol_it_lists_is_found(channel: grpc.aio.Channel, symbol: str, file: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    answer = await _ask(channel, REFLECTION_SERVICES[0], request)
    files = answer.file_descriptor_response.file_descriptor_proto
    names = [descriptor_pb2.FileDescriptorProto.FromString(data).name for data in files]
    assert [name for name in names if name.endswith(file)]


async def test_an_unknown_symbol_is_not_found(channel: grpc.aio.Channel) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="dragoman.v1.Nothing.Here")
    answer = await _ask(channel, REFLECTION_SERVICES[0], request)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def _commented_files(channel: grpc.aio.Channel, symbol: str) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    answer = await _ask(channel, REFLECTION_SERVICES[0], request)
    files = map(descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    return {file.name: file for file in files}


async def test_the_contracts_files_come_with_their_comments(channel: grpc.aio.Channel) -> None:
    files = await _commented_files(channel, "dragoman.v1.AdapterService")
    for name in ("dragoman/v1/adapter.proto", "dragoman/v1/event.proto"):
        assert any(place.leading_comments for place in files[name].source_code_info.location)


async def test_but_for_the_comments_they_are_what_this_process_uses(channel: grpc.aio.Channel) -> None:
    files = await _commented_files(channel, "dragoman.v1.RouterService")
    for module in (adapter_pb2, event_pb2, router_pb2):
        used = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(used)
        served = files[used.name]
        served.ClearField("source_code_info")
        for message in served.message_type:
            _clear_json_names(message)
        assert served == used


def _clear_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """Generated modules leave out what follows from the fields' names."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _clear_json_names(nested)
