"""One trace from a client to its agent's environment, with and without OpenTelemetry, and what spans hold."""

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.otel import OtelTracing
from dragoman.protocol.telemetry import load_tracing
from dragoman.protocol.tracing import NO_TRACE, Trace, Tracing, received_trace
from dragoman.sdk import Run
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.router.harness import PATIENCE_S, config, routing
from tests.router.test_draining import adapter
from tests.router.test_processes import program as router_program
from tests.sdk import serving as sdk_serving

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
CONTENT = "q4Lm-content-Tz93"


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._spans: dict[str, Any] = {}
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                collector.take(request)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_of: object) -> None:
                """Print nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans, by the name of their service."""
        with self._arrived:
            for of in request.resource_spans:
                names = [one.value.string_value for one in of.resource.attributes if one.key == "service.name"]
                for span in (span for scope in of.scope_spans for span in scope.spans):
                    self._spans[names[0]] = span
            self._arrived.notify_all()

    def spans(self, number: int) -> dict[str, Any]:
        """Wait for the spans of so many services."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self._spans) >= number, PATIENCE_S), self._spans
            return dict(self._spans)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


async def printed(address: str, **environment: str) -> tuple[str, pb.Result]:
    """Run an agent that prints the trace in its environment, by the client; return that, and the result."""
    command = {"command": "sh", "args": ["-c", 'echo "trace=$TRACEPARENT state=$TRACESTATE"']}
    request = execute_request("process", CONTENT, cwd="/", config=command, env=environment)
    async with Client(address) as client, client.execute(request) as run:
        lines = [event.log.text async for event in run if event.HasField("log")]
    assert run.result is not None
    return "".join(lines), run.result


async def test_a_trace_reaches_the_agent_without_opentelemetry(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    address = f"unix:{folder}/a.sock"
    async with adapter(address), routing(config(folder, addresses=(address,))) as (router, caller):
        await caller.until("process", router_pb2.ADAPTER_STATE_READY)
        text, _ = await printed(router.addresses[0])
        assert text.strip() == f"trace={PARENT} state=vendor=1"
    assert f"trace_id={TRACE_ID}" in capsys.readouterr().out


async def test_the_adapter_says_whose_trace_a_log_line_belongs_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT)
    async with adapter(f"unix:{folder}/a.sock") as served:
        await printed(served.address)
        served.process.terminate()
        assert served.process.stderr is not None
        lines = [json.loads(line) async for line in served.process.stderr]
    ended = next(line for line in lines if line["event"] == "run ended")
    assert (ended["trace_id"], ended["span_id"]) == (TRACE_ID, SPAN_ID)


@pytest.mark.parametrize("protocol", ["http/protobuf"])
async def test_one_trace_goes_from_the_client_to_the_agent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, collector: Collector, protocol: str
) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    address = f"unix:{folder}/a.sock"
    async with adapter(address) as served, router_program(folder, addresses=[address]) as (_router, caller):
        await caller.until("process", router_pb2.ADAPTER_STATE_READY)
        text, _ = await printed(f"unix:{folder}/r.sock")
        spans = await asyncio.to_thread(collector.spans, 2)
        served.process.terminate()
        assert await served.ended() == 0
    router, agent = spans["dragoman-router"], spans["dragoman-adapter-process"]
    assert {router.trace_id.hex(), agent.trace_id.hex()} == {TRACE_ID}
    assert router.parent_span_id.hex() == SPAN_ID
    assert agent.parent_span_id == router.span_id
    assert text.strip() == f"trace=00-{TRACE_ID}-{agent.span_id.hex()}-01 state="
    assert router.name == agent.name == "invoke_agent process"
    assert CONTENT not in str(spans)


async def test_tool_calls_are_spans_without_content() -> None:
    exporter = InMemorySpanExporter()
    tracing = OtelTracing("test", exporter)
    tracing._provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def script(run: Run) -> pb.Result:
        run.started(pb.Started())
        call = pb.ToolCall(id="1", name="Bash", input_json=json.dumps({"command": CONTENT}), title=CONTENT)
        run.emit(pb.AgentEvent(tool_call=call))
        run.emit(pb.AgentEvent(tool_call=call))  # again, as when its input grows
        result = pb.ToolResult(tool_call_id="1", status=pb.TOOL_STATUS_FAILED)
        run.emit(pb.AgentEvent(tool_result=result))
        run.emit(pb.AgentEvent(tool_call=pb.ToolCall(id="2", name="Read")))
        failure = pb.Failure(kind=pb.FAILURE_KIND_MODEL_REFUSED, message=CONTENT)
        usage = pb.Usage(tokens=pb.TokenCounts(input=7, output=0))
        return pb.Result(outcome=pb.OUTCOME_FAILED, failure=failure, usage=usage, model="m", summary=CONTENT)

    async with sdk_serving.serving(sdk_serving.Scripted(script)) as sidecar:
        sidecar.server.servicer.tracing = tracing
        await sidecar.execute(api.ExecuteRequest(run_id="r", prompt=CONTENT))
    failed, unfinished, run = exporter.get_finished_spans()[:3]
    assert [one.name for one in (failed, unfinished, run)] == [
        "execute_tool Bash",
        "execute_tool Read",
        "invoke_agent scripted",
    ]
    assert failed.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "Bash",
        "gen_ai.tool.call.id": "1",
        "error.type": "failed",
    }
    assert run.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "scripted",
        "dragoman.run.id": "r",
        "gen_ai.response.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 0,
        "dragoman.run.outcome": "failed",
        "error.type": "model_refused",
    }
    assert failed.parent is not None
    assert run.context is not None
    assert unfinished.parent is not None
    assert {failed.parent.span_id, unfinished.parent.span_id} == {run.context.span_id}
    assert not any(CONTENT in span.to_json() for span in (failed, unfinished, run))


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"{PARENT}-more",
        f"{PARENT}\nX=1",
    ],
)
def test_what_is_no_trace_is_not_passed_on(wrong: str) -> None:
    assert received_trace([("traceparent", wrong), ("tracestate", "a=1")]) == NO_TRACE


@given(st.lists(st.tuples(st.sampled_from(["traceparent", "tracestate", "x"]), st.text() | st.just(PARENT))))
def test_a_trace_is_whole_or_none(metadata: list[tuple[str, str]]) -> None:
    trace = received_trace(metadata)
    assert trace in (NO_TRACE, Trace(PARENT, trace.state))
    assert trace.state.isprintable()


def test_nothing_is_recorded_unless_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(load_tracing("test")) is Tracing
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert type(load_tracing("test")) is Tracing
    monkeypatch.delenv("OTEL_TRACES_EXPORTER")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert type(load_tracing("test")) is Tracing
    monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
    with contextlib.closing(load_tracing("test")) as tracing:
        assert isinstance(tracing, OtelTracing)
