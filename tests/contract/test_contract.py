"""The one contract, asked synchronously of a sidecar and of a router."""

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.protocol import REVISION
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.statuses import DOMAIN, from_rpc_error
from dragoman.protocol.wire import unroll
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import adapter_pb2_grpc
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

DEADLINE_S = 20.0
SECRET = "contract-4711-secret"
Stub = adapter_pb2_grpc.AdapterServiceStub


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., api.ExecuteRequest]:
    """Return a function that makes a request for a few lines of Python."""

    def make(code: str, **config: Any) -> api.ExecuteRequest:
        request = api.ExecuteRequest(adapter="process", prompt="hello", auth_token=SECRET)
        request.workspace.cwd = str(tmp_path)
        request.config.update({"command": sys.executable, "args": ["-c", code], **config})
        request.orphan_after.CopyFrom(duration_pb2.Duration(seconds=int(DEADLINE_S)))
        request.limits.grace.CopyFrom(duration_pb2.Duration(seconds=1))
        return request

    return make


def read(call: Iterable[pb.AgentEvent], after: int = 0) -> list[pb.AgentEvent]:
    """Read a stream to its end and check it."""
    events = list(call)
    check_stream(events, after_sequence=after, secrets=[SECRET])
    return events


def refusal(call: Callable[[], object]) -> DragomanError:
    """Return the status that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return from_rpc_error(caught.value)


def kinds(events: Iterable[pb.AgentEvent]) -> list[str]:
    return [event.WhichOneof("body") or "" for event in events]


def test_describe(grpc_stub: Stub) -> None:
    described = grpc_stub.Describe(api.DescribeRequest(adapter="process"), timeout=DEADLINE_S)
    assert (described.adapter, described.label, described.revision) == ("process", "Process", REVISION)
    assert "command" in json.loads(described.config_schema_json)["properties"]
    assert described.configuration_doc.startswith("# process")
    assert len(described.instance_id) >= 16
    assert {item.feature for item in described.capabilities.items} >= {pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE}


def test_detect(grpc_stub: Stub) -> None:
    request = api.DetectRequest(adapter="process", refresh=True)
    request.config.update({"command": "sh"})
    (found,) = grpc_stub.Detect(request, timeout=DEADLINE_S).detections
    assert (found.adapter, found.available) == ("process", True)
    assert found.executable.endswith("/sh")
    assert found.auth == api.AUTH_STATE_NOT_NEEDED
    assert found.HasField("detected_at")
    assert not found.cached


def test_detect_of_nothing_is_data(grpc_stub: Stub) -> None:
    request = api.DetectRequest(adapter="process", refresh=True, env={"PATH": "/nowhere"})
    request.config.update({"command": "no-such-program"})
    (found,) = grpc_stub.Detect(request, timeout=DEADLINE_S).detections
    assert not found.available
    assert found.message


def test_environment(grpc_stub: Stub, tmp_path: Path) -> None:
    request = api.TestEnvironmentRequest(adapter="process", mode=api.TEST_MODE_QUICK)
    request.config.update({"command": "sh"})
    request.workspace.cwd = str(tmp_path)
    good = grpc_stub.TestEnvironment(request, timeout=DEADLINE_S)
    assert good.status == api.TEST_STATUS_PASS
    assert {check.code for check in good.checks} >= {"config_valid", "cwd_usable", "command_found"}
    request.workspace.cwd = "relative"
    request.config.update({"command": "no-such-program", "nonsense": 1})
    bad = grpc_stub.TestEnvironment(request, timeout=DEADLINE_S)
    assert bad.status == api.TEST_STATUS_FAIL
    errors = {check.code for check in bad.checks if check.level == pb.SEVERITY_ERROR}
    assert errors == {"config_invalid", "cwd_relative", "command_not_found"}


def test_a_live_turn_of_a_program_that_repeats_its_prompt(grpc_stub: Stub, tmp_path: Path) -> None:
    request = api.TestEnvironmentRequest(adapter="process", mode=api.TEST_MODE_LIVE)
    request.config.update({"command": "cat"})
    request.workspace.cwd = str(tmp_path)
    answer = grpc_stub.TestEnvironment(request, timeout=DEADLINE_S)
    assert [check.code for check in answer.checks][-1] == "live_ok"
    request.config.update({"command": "true"})
    assert [check.code for check in grpc_stub.TestEnvironment(request, timeout=DEADLINE_S).checks][
        -1
    ] == "live_no_echo"


def test_execute(grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest]) -> None:
    request = request_of("import os; print(input(), os.environ['DRAGOMAN_API_KEY'])")
    call = grpc_stub.Execute(request, timeout=DEADLINE_S)
    assert isinstance(call, grpc.Call)
    run_id = dict(call.initial_metadata())[RUN_ID_METADATA_KEY]
    events = read(call)
    assert kinds(events) == ["started", "state", "state", "log", "result"]
    assert {event.run_id for event in events} == {run_id}
    assert events[3].log.text == "hello [redacted]"
    assert events[3].redacted
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


def test_execute_again_is_the_same_run(grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest]) -> None:
    request = request_of("print('once')")
    request.run_id = f"again-{id(request)}"
    first = read(grpc_stub.Execute(request, timeout=DEADLINE_S))
    assert [event for event in read(grpc_stub.Execute(request, timeout=DEADLINE_S)) if event.sequence] == first
    request.prompt = "another"
    error = refusal(lambda: read(grpc_stub.Execute(request, timeout=DEADLINE_S)))
    assert error.reason is Reason.RUN_ID_REUSED


def test_attach(grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest]) -> None:
    events = read(grpc_stub.Execute(request_of("[print(n) for n in range(5)]"), timeout=DEADLINE_S))
    run_id, last = events[0].run_id, events[-1].sequence
    for after in range(last):
        attach = api.AttachRequest(run_id=run_id, adapter="process", after_sequence=after)
        replayed = read(grpc_stub.Attach(attach, timeout=DEADLINE_S), after)
        assert [event for event in replayed if event.sequence] == events[after:]
    at_end = api.AttachRequest(run_id=run_id, adapter="process", after_sequence=last)
    assert read(grpc_stub.Attach(at_end, timeout=DEADLINE_S), last) == events[-1:]
    ahead = api.AttachRequest(run_id=run_id, adapter="process", after_sequence=last + 1)
    error = refusal(lambda: list(grpc_stub.Attach(ahead, timeout=DEADLINE_S)))
    assert error.reason is Reason.SEQUENCE_AHEAD
    assert error.metadata["last_sequence"] == str(last)
    unknown = api.AttachRequest(run_id="unknown", adapter="process")
    assert refusal(lambda: list(grpc_stub.Attach(unknown, timeout=DEADLINE_S))).reason is Reason.RUN_NOT_FOUND


def test_cancel(grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest]) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    call = grpc_stub.Execute(request_of(code), timeout=DEADLINE_S)
    events: list[pb.AgentEvent] = []
    ready = threading.Event()

    def follow() -> None:
        for event in call:
            events.append(event)
            if event.HasField("log"):
                ready.set()

    reader = threading.Thread(target=follow)
    reader.start()
    assert ready.wait(DEADLINE_S)
    run_id = events[0].run_id
    zero = duration_pb2.Duration()
    answer = grpc_stub.Cancel(api.CancelRequest(run_id=run_id, adapter="process", grace=zero), timeout=DEADLINE_S)
    reader.join(DEADLINE_S)
    check_stream(events, secrets=[SECRET])
    assert answer.outcome == events[-1].result.outcome == pb.OUTCOME_CANCELLED
    assert answer.result_sequence == events[-1].sequence
    assert answer.tree_confirmed_dead
    again = grpc_stub.Cancel(api.CancelRequest(run_id=run_id, adapter="process"), timeout=DEADLINE_S)
    assert again == answer
    unknown = api.CancelRequest(run_id="unknown", adapter="process")
    assert refusal(lambda: grpc_stub.Cancel(unknown, timeout=DEADLINE_S)).reason is Reason.RUN_NOT_FOUND


def test_models(grpc_stub: Stub) -> None:
    answer = grpc_stub.ListModels(api.ListModelsRequest(adapter="process"), timeout=DEADLINE_S)
    assert answer.source == api.MODEL_SOURCE_STATIC
    assert list(answer.models) == []


def test_respond_to_nothing(grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest]) -> None:
    unknown = api.RespondRequest(run_id="unknown", request_id="q", adapter="process")
    assert refusal(lambda: grpc_stub.Respond(unknown, timeout=DEADLINE_S)).reason is Reason.RUN_NOT_FOUND
    events = read(grpc_stub.Execute(request_of("pass"), timeout=DEADLINE_S))
    known = api.RespondRequest(run_id=events[0].run_id, request_id="q", adapter="process")
    assert refusal(lambda: grpc_stub.Respond(known, timeout=DEADLINE_S)).reason is Reason.REQUEST_NOT_FOUND


def test_a_run_is_the_same_in_batches(grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest]) -> None:
    request = request_of(
        "import sys; [print(n, file=(sys.stdout, sys.stderr)[n % 2], flush=True) for n in range(300)]"
    )
    request.run_id = "batches"
    single = read(grpc_stub.Execute(request, timeout=DEADLINE_S))
    for after in range(0, len(single), 7):
        attach = api.AttachRequest(run_id="batches", adapter="process", after_sequence=after, batching=api.Batching())
        messages = read(grpc_stub.Attach(attach, timeout=DEADLINE_S), after)
        events = [event for message in messages for event in unroll(message) if event.sequence]
        assert events == [event for event in single if event.sequence > after]
    request.batching.SetInParent()
    again = read(grpc_stub.Execute(request, timeout=DEADLINE_S))
    assert len(again) < len(single), "the same request, so the same run"


WRONG: dict[str, tuple[Callable[[api.ExecuteRequest], object], Reason, str]] = {
    "no cwd": (lambda r: r.ClearField("workspace"), Reason.INVALID_REQUEST, "workspace.cwd"),
    "relative cwd": (lambda r: setattr(r.workspace, "cwd", "a"), Reason.INVALID_REQUEST, "workspace.cwd"),
    "unknown key": (lambda r: r.config.update({"arg": []}), Reason.INVALID_REQUEST, "config.arg"),
    "wrong type": (lambda r: r.config.update({"args": 5}), Reason.INVALID_REQUEST, "config.args"),
    "run id": (lambda r: setattr(r, "run_id", "a b"), Reason.INVALID_REQUEST, "run_id"),
    "prefix": (lambda r: setattr(r.brand, "env_prefix", "PATH"), Reason.INVALID_REQUEST, "brand.env_prefix"),
    "model": (lambda r: setattr(r, "model", "x"), Reason.NOT_SUPPORTED, "model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_a_status_with_its_field(
    grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest], case: str
) -> None:
    change, reason, path = WRONG[case]
    request = request_of("pass")
    change(request)
    error = refusal(lambda: read(grpc_stub.Execute(request, timeout=DEADLINE_S)))
    assert error.reason is reason
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [item.path for item in error.violations] == [path]


def test_an_unknown_adapter_has_near_names(grpc_stub: Stub) -> None:
    error = refusal(lambda: grpc_stub.Describe(api.DescribeRequest(adapter="proces"), timeout=DEADLINE_S))
    assert error.reason is Reason.ADAPTER_NOT_FOUND
    assert "process" in error.metadata["did_you_mean"]


def test_an_empty_name_is_the_one_adapter_of_a_sidecar_and_none_of_a_router(
    grpc_stub: Stub, server_kind: str
) -> None:
    if server_kind == "sidecar":
        assert grpc_stub.Describe(api.DescribeRequest(), timeout=DEADLINE_S).adapter == "process"
    else:
        error = refusal(lambda: grpc_stub.Describe(api.DescribeRequest(), timeout=DEADLINE_S))
        assert error.reason is Reason.ADAPTER_REQUIRED


def test_what_is_not_served_is_unimplemented_with_a_reason(grpc_stub: Stub) -> None:
    error = refusal(lambda: grpc_stub.SyncSkills(api.SyncSkillsRequest(adapter="process"), timeout=DEADLINE_S))
    assert error.code is grpc.StatusCode.UNIMPLEMENTED
    assert error.reason is Reason.NOT_IMPLEMENTED
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in error.details)
    assert info.domain == DOMAIN


def test_an_unknown_method_and_an_unknown_service(grpc_channel: grpc.Channel) -> None:
    for method in ("/dragoman.v1.AdapterService/Nonsense", "/dragoman.v9.AdapterService/Describe"):
        call: Any = grpc_channel.unary_unary(method, bytes, bytes)
        assert refusal(partial(call, b"", timeout=DEADLINE_S)).code is grpc.StatusCode.UNIMPLEMENTED


def test_bytes_that_are_no_request(grpc_channel: grpc.Channel) -> None:
    for make, name in ((grpc_channel.unary_unary, "Describe"), (grpc_channel.unary_stream, "Execute")):
        call: Any = make(f"/dragoman.v1.AdapterService/{name}", bytes, bytes)
        error = refusal(partial(_read_all, call, b"\xff\xff\xff"))
        assert error.reason is Reason.INVALID_REQUEST
        assert "DecodeError" not in error.message


def _read_all(call: Any, data: bytes) -> object:
    return list(call(data, timeout=DEADLINE_S))


def test_health(grpc_channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(grpc_channel)  # its types lack its methods
    for service in ("", "dragoman.v1.AdapterService"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    error = refusal(lambda: health.Check(health_pb2.HealthCheckRequest(service="unknown"), timeout=DEADLINE_S))
    assert error.code is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(grpc_channel: grpc.Channel, version: str) -> None:
    ask: Any = grpc_channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )

    def requests() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol="dragoman.v1.AdapterService.Execute")

    listed, found = ask(requests(), timeout=DEADLINE_S)
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {
        "dragoman.v1.AdapterService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert found.file_descriptor_response.file_descriptor_proto


def test_the_log_has_one_line_for_each_start_and_end_and_no_secret(
    grpc_stub: Stub, request_of: Callable[..., api.ExecuteRequest], server_log: Path
) -> None:
    request = request_of("print('the words of the agent')")
    request.prompt = "the words of the caller"
    events = read(grpc_stub.Execute(request, timeout=DEADLINE_S))
    text = server_log.read_text()
    assert SECRET not in text
    assert "the words" not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    mine = [line for line in lines if line.get("run_id") == events[0].run_id]
    assert mine, "the run is bound to its lines"
    started = [line["rpc_id"] for line in lines if line["event"] == "rpc started"]
    assert len(started) == len(set(started))
