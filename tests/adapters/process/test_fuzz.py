"""No request, however odd, is a fault of ours: every RPC answers, or refuses with a reason."""

from typing import Any

import grpc
import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.statuses import from_rpc_error
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.process.arena import Arena
from tests.sdk.serving import Stream

SERVICE = api.DESCRIPTOR.services_by_name["AdapterService"]
TEXTS = st.sampled_from(
    [
        *(
            "",
            "process",
            "a",
            "A_B",
            "/",
            "/etc",
            "/nowhere",
            "relative/x",
            "../..",
            "~",
            ".",
            "a\0b",
            "\0",
            "ü" * 300,
        ),
        *(
            "{{agent.id}}",
            "{{",
            "${HOME}",
            "-x",
            "--help",
            "A=B",
            "\n",
            "\ufeff",
            "\U0001f600",
            "x" * 5000,
            "[redacted]",
        ),
        *("PAPERCLIP", "PATH", "PYTHONPATH", "true", "no-such-program", "SKILL.md", "../SKILL.md", "{", '{"a": 1}'),
    ]
)
NUMBERS = st.sampled_from([0, 1, 2, 5, 99, 2**31 - 1])
DURATIONS = st.builds(
    duration_pb2.Duration, seconds=st.sampled_from([-(2**62), -1, 0, 1, 2**62]), nanos=st.sampled_from([0, -5, 10**8])
)
FLOATS = st.sampled_from([0.0, 1.5, -1.0, 1e300, float("nan"), float("inf")])


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> struct_pb2.Value:
    """Draw what a Struct can hold, and JSON cannot."""
    kind = draw(
        st.sampled_from(["none", "text", "number", "bool", "list", "object", "unset"][: None if depth else 4])
    )
    value = struct_pb2.Value()
    if kind == "text":
        value.string_value = draw(TEXTS)
    elif kind == "number":
        value.number_value = draw(FLOATS)
    elif kind == "bool":
        value.bool_value = draw(st.booleans())
    elif kind == "none":
        value.null_value = struct_pb2.NULL_VALUE
    elif kind == "list":
        value.list_value.values.extend(draw(st.lists(values(depth - 1), max_size=2)))
    elif kind == "object":
        value.struct_value.CopyFrom(draw(structs(depth - 1)))
    return value


KEYS = st.sampled_from(
    [
        "command",
        "args",
        "extraArgs",
        "env",
        "cwd",
        "promptVia",
        "output",
        "timeoutSec",
        "graceSec",
        "a",
        "",
        "sessionId",
    ]
)


@st.composite
def structs(draw: st.DrawFn, depth: int = 2) -> struct_pb2.Struct:
    """Draw a Struct."""
    struct = struct_pb2.Struct()
    for key in draw(st.lists(KEYS, max_size=3)):
        struct.fields[key].CopyFrom(draw(values(depth)))
    return struct


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], depth: int = 3) -> Message:
    """Draw any message of a kind."""
    message = kind()
    fields: list[Any] = list(kind.DESCRIPTOR.fields)
    chosen = st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda field: str(field.name))
    for field in draw(chosen) if fields else []:
        _fill(draw, message, field, depth)
    return message


def _fill(draw: st.DrawFn, message: Message, field: Any, depth: int) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        entries = getattr(message, field.name)
        value = kind.fields_by_name["value"]
        for key in draw(st.lists(TEXTS, max_size=2)):
            if value.message_type is not None:
                entries[key].CopyFrom(draw(structs()))
                continue
            is_bytes = value.type == FieldDescriptor.TYPE_BYTES
            entries[key] = draw(TEXTS).encode() if is_bytes else draw(TEXTS)
    elif kind is not None:
        inner = draw(_submessages(kind, depth))
        target = getattr(message, field.name)
        target.append(inner) if field.is_repeated else target.CopyFrom(inner)
    elif field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(_scalars(field), max_size=2)))
    else:
        setattr(message, field.name, draw(_scalars(field)))


def _submessages(kind: Any, depth: int) -> st.SearchStrategy[Any]:
    if kind.full_name == "google.protobuf.Struct":
        return structs()
    if kind.full_name == "google.protobuf.Duration":
        return DURATIONS
    message = GetMessageClass(kind)
    return messages(message, depth - 1) if depth else st.builds(message)


def _scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return TEXTS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return TEXTS.map(str.encode)
    return st.booleans() if field.type == FieldDescriptor.TYPE_BOOL else NUMBERS


REFUSED = {
    *("skills", "mcp_servers", "system_prompt", "instructions", "model", "permissions", "session"),
    *("fallback", "batching", "required_capabilities", "relay"),
}
"""What the process adapter, or any sidecar, refuses when it is set."""


def is_ours(error: DragomanError) -> bool:
    """Return whether a status says that the server is at fault, or does not say who is."""
    return error.reason in {None, Reason.INTERNAL}


@pytest.mark.parametrize("name", [method.name for method in SERVICE.methods if method.name != "Execute"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
async def test_any_request(arena: Arena, name: str, data: st.DataObject) -> None:
    request = data.draw(messages(GetMessageClass(SERVICE.methods_by_name[name].input_type)))
    call = getattr(arena.sidecar.stub, name)(request, timeout=10)
    try:
        if name == "Attach":
            await Stream(call).rest()
        else:
            await (call.read() if name in {"ReadArtifact", "Login"} else call)
    except (DragomanError, grpc.aio.AioRpcError) as refused:
        error = from_rpc_error(refused) if isinstance(refused, grpc.RpcError) else refused
        assert not is_ours(error), error


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), is_sound=st.booleans())
async def test_any_run(arena: Arena, data: st.DataObject, is_sound: bool) -> None:
    drawn: Any = data.draw(messages(api.ExecuteRequest))
    request = api.ExecuteRequest()
    request.CopyFrom(drawn)
    if is_sound:  # as far as the process adapter needs it, so that more of them come to run
        request.workspace.cwd = str(arena.workspace)
        request.config.update({"command": "true"})
        request.adapter = ""
        for field in request.DESCRIPTOR.fields:
            if field.name in REFUSED:
                request.ClearField(field.name)  # type: ignore[arg-type]  # it is one of its fields
    try:
        events = await arena.sidecar.execute(request)
    except DragomanError as error:
        assert not is_ours(error), error  # noqa: PT017 - either is right
        return
    check_stream(events)
    assert events[-1].result.failure.kind != pb.FAILURE_KIND_INTERNAL
