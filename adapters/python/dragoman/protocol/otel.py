"""Spans of runs and of their tool calls, by OpenTelemetry. Needs the extra ``telemetry``.

Names and attributes are those of the semantic conventions for generative AI (``invoke_agent``, ``execute_tool``).
No content is recorded: no prompt, no text, no arguments or results of tools, no message of a failure.
"""

import importlib.metadata
import os
from collections.abc import Callable
from typing import Final

from dragoman.protocol.texts import enum_name
from dragoman.protocol.tracing import RunSpan, Trace, Tracing, current_trace, received_trace
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MOST_OPEN: Final = 1000
"""How many tool calls of one run may be under way; spans of further ones are not recorded."""
_MOST_NAME_CHARS: Final = 128
_CLOSING_MS: Final = 5000
_FAILED: Final = frozenset({pb.TOOL_STATUS_FAILED, pb.TOOL_STATUS_DENIED})

_propagator = TraceContextTextMapPropagator()


class OtelTracing(Tracing):
    """Records spans, and sends them where the variables of OpenTelemetry say.

    Args:
        service: the name of this process, unless ``OTEL_SERVICE_NAME`` gives another.
        exporter: takes the spans; absent, the one that ``OTEL_TRACES_EXPORTER`` names.
    """

    def __init__(self, service: str, exporter: SpanExporter | None = None) -> None:
        named = "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or "OTEL_SERVICE_NAME" in os.environ
        self._provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _exporter()))
        self._tracer = self._provider.get_tracer("dragoman", importlib.metadata.version("dragoman"))

    def begin(self, adapter: str, request: adapter_pb2.ExecuteRequest) -> RunSpan:
        """Begin the span of a run, as a child of that of the present call."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": adapter,
            "gen_ai.agent.id": request.agent.id,
            "gen_ai.request.model": request.model,
            "dragoman.run.id": request.run_id,
        }
        parent = _propagator.extract(dict(current_trace().metadata))
        known = {key: value for key, value in attributes.items() if value}
        span = self._tracer.start_span(f"invoke_agent {adapter}", parent, SpanKind.INTERNAL, known)
        return _OtelRunSpan(self._tracer, span)

    def close(self) -> None:
        """Send what was recorded."""
        self._provider.force_flush(_CLOSING_MS)
        self._provider.shutdown()


class _OtelRunSpan(RunSpan):
    """The span of a run, and those of its tool calls."""

    is_recorded = True

    def __init__(self, tracer: Tracer, span: Span) -> None:
        super().__init__(_trace_of(span))
        self._tracer = tracer
        self._span = span
        self._calls: dict[str, Span] = {}

    def note(self, event: pb.AgentEvent) -> None:
        """Begin or end the span of a tool call."""
        kind = event.WhichOneof("body")
        if kind == "tool_call" and event.tool_call.id not in self._calls and len(self._calls) < _MOST_OPEN:
            call = event.tool_call
            name = call.name[:_MOST_NAME_CHARS]
            attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
            attributes |= {"gen_ai.tool.call.id": call.id} if call.id else {}
            context = set_span_in_context(self._span)
            span = self._tracer.start_span(f"execute_tool {name}", context, SpanKind.INTERNAL, attributes)
            self._calls[call.id] = span
        elif kind == "tool_result" and (open_ := self._calls.pop(event.tool_result.tool_call_id, None)) is not None:
            if event.tool_result.status in _FAILED:
                _fail(open_, pb.ToolStatus.Name(event.tool_result.status).removeprefix("TOOL_STATUS_").lower())
            open_.end()

    def end(self, result: pb.Result | None) -> None:
        """End the span, with usage and the kind of a failure."""
        for call in self._calls.values():
            call.end()
        self._calls.clear()
        if result is None:
            _fail(self._span, "rejected")
        else:
            self._describe(result)
        self._span.end()

    def _describe(self, result: pb.Result) -> None:
        span, tokens = self._span, result.usage.tokens
        if result.model:
            span.set_attribute("gen_ai.response.model", result.model)
        if result.provider:
            span.set_attribute("gen_ai.provider.name", result.provider)
        for name, present in (("input", tokens.HasField("input")), ("output", tokens.HasField("output"))):
            if present:
                span.set_attribute(f"gen_ai.usage.{name}_tokens", getattr(tokens, name))
        outcome = enum_name(pb.Outcome.DESCRIPTOR, result.outcome, "OUTCOME_").lower()
        span.set_attribute("dragoman.run.outcome", outcome)
        if result.HasField("failure"):
            _fail(span, enum_name(pb.FailureKind.DESCRIPTOR, result.failure.kind, "FAILURE_KIND_").lower())


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def _trace_of(span: Span) -> Trace:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span))
    return received_trace(carrier.items())


def _exporter() -> SpanExporter:
    if os.environ.get("OTEL_TRACES_EXPORTER") == "console":
        return ConsoleSpanExporter()
    protocol = next((value for name in _PROTOCOLS if (value := os.environ.get(name))), "http/protobuf")
    make: Callable[[], SpanExporter]
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc  # noqa: PLC0415

        make = Grpc
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http  # noqa: PLC0415

        make = Http
    return make()
