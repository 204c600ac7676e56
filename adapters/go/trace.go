package adapter

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	pb "dragoman/clients/go/dragomanv1"
)

const (
	mostState    = 512  // bytes of a tracestate
	mostOpen     = 1000 // tool calls of one run that may be under way; spans of further ones are not recorded
	mostToolName = 128  // bytes

	flushBound = 5 * time.Second // of the export of the last spans
)

// As https://www.w3.org/TR/trace-context/#traceparent-header says; a later version may be longer, and is read as the first.
var traceparentShape = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)

// traceContext is a span of a trace, as its children get it (W3C Trace Context). The zero value is none.
type traceContext struct{ parent, state string }

// receivedTrace returns the trace in the metadata of a call; none if what is there is no trace.
func receivedTrace(ctx context.Context) traceContext {
	received, _ := metadata.FromIncomingContext(ctx)
	last := func(key string) string {
		values := received.Get(key)
		if len(values) == 0 {
			return ""
		}
		return values[len(values)-1]
	}
	return parseTrace(last("traceparent"), last("tracestate"))
}

func parseTrace(parent, state string) traceContext {
	parts := traceparentShape.FindStringSubmatch(parent)
	if parts == nil || parts[1] == "ff" || strings.Trim(parts[2], "0") == "" || strings.Trim(parts[3], "0") == "" {
		return traceContext{}
	}
	isControl := func(c rune) bool { return c < ' ' || c > '~' }
	if len(state) > mostState || strings.ContainsFunc(state, isControl) {
		state = ""
	}
	return traceContext{parent, state}
}

// variables returns what an agent finds in its environment.
func (t traceContext) variables() map[string]string {
	variables := map[string]string{}
	for name, value := range map[string]string{"TRACEPARENT": t.parent, "TRACESTATE": t.state} {
		if value != "" {
			variables[name] = value
		}
	}
	return variables
}

// logged returns a logger whose lines say which trace they belong to.
func (t traceContext) logged(logger *slog.Logger) *slog.Logger {
	if t.parent == "" {
		return logger
	}
	return logger.With("trace_id", t.parent[3:35], "span_id", t.parent[36:52])
}

// spanContext returns it as OpenTelemetry has it.
func (t traceContext) spanContext() trace.SpanContext {
	if t.parent == "" {
		return trace.SpanContext{}
	}
	var config trace.SpanContextConfig
	config.TraceID, _ = trace.TraceIDFromHex(t.parent[3:35]) // parseTrace has checked them
	config.SpanID, _ = trace.SpanIDFromHex(t.parent[36:52])
	config.TraceState, _ = trace.ParseTraceState(t.state) // or none
	if strings.ContainsRune("13579bdf", rune(t.parent[54])) {
		config.TraceFlags = trace.FlagsSampled
	}
	config.Remote = true
	return trace.NewSpanContext(config)
}

func traceOf(span trace.SpanContext) traceContext {
	if !span.IsValid() {
		return traceContext{}
	}
	parent := fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags()&trace.FlagsSampled)
	return traceContext{parent, span.TraceState().String()}
}

// runSpan is the span of a run, and those of its tool calls. Without a tracer there are none, and the trace that the run
// came with is passed on. Names and attributes are those of OpenTelemetry's conventions for generative AI; no content is
// recorded.
type runSpan struct {
	traceContext // what those get that work for the run
	ctx          context.Context
	tracer       trace.Tracer // nil: nothing is recorded
	span         trace.Span
	calls        map[string]trace.Span
}

// beginSpan begins the span of a run that a call with this trace starts.
func beginSpan(provider trace.TracerProvider, adapter string, request *pb.ExecuteRequest, received traceContext) *runSpan {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), received.spanContext())
	if provider == nil {
		return &runSpan{traceContext: received, ctx: ctx}
	}
	tracer := provider.Tracer("dragoman")
	attributes := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "invoke_agent"), attribute.String("gen_ai.agent.name", adapter),
		attribute.String("gen_ai.agent.id", request.GetAgent().GetId()),
		attribute.String("gen_ai.request.model", request.GetModel()), attribute.String("dragoman.run.id", request.GetRunId()),
	}
	isEmpty := func(known attribute.KeyValue) bool { return known.Value.AsString() == "" }
	attributes = slices.DeleteFunc(attributes, isEmpty)
	ctx, span := tracer.Start(ctx, "invoke_agent "+adapter, trace.WithAttributes(attributes...))
	own := traceOf(span.SpanContext())
	if own.parent == "" {
		own = received
	}
	return &runSpan{traceContext: own, ctx: ctx, tracer: tracer, span: span, calls: map[string]trace.Span{}}
}

// note takes note of an event as it is written: a tool call that begins or ends, or the end of the run. The caller holds
// the run.
func (s *runSpan) note(event *pb.AgentEvent) {
	if s.tracer == nil {
		return
	}
	switch body := event.GetBody().(type) {
	case *pb.AgentEvent_ToolCall:
		call := body.ToolCall
		if _, isKnown := s.calls[call.GetId()]; isKnown || len(s.calls) >= mostOpen { // emitted again whenever it changes
			return
		}
		name := cutText(call.GetName(), mostToolName)
		attributes := []attribute.KeyValue{
			attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", name),
		}
		if call.GetId() != "" {
			attributes = append(attributes, attribute.String("gen_ai.tool.call.id", call.GetId()))
		}
		_, s.calls[call.GetId()] = s.tracer.Start(s.ctx, "execute_tool "+name, trace.WithAttributes(attributes...))
	case *pb.AgentEvent_ToolResult:
		result := body.ToolResult
		span, isOpen := s.calls[result.GetToolCallId()]
		if !isOpen {
			return
		}
		delete(s.calls, result.GetToolCallId())
		switch result.GetStatus() {
		case pb.ToolStatus_TOOL_STATUS_FAILED, pb.ToolStatus_TOOL_STATUS_DENIED:
			fail(span, result.GetStatus().String(), "TOOL_STATUS_")
		}
		span.End()
	case *pb.AgentEvent_Result:
		s.finish(body.Result)
	}
}

// finish ends the span, with usage and the kind of a failure.
func (s *runSpan) finish(result *pb.Result) {
	for _, span := range s.calls {
		span.End()
	}
	for name, value := range map[string]string{
		"gen_ai.response.model": result.GetModel(), "gen_ai.provider.name": result.GetProvider(),
		"dragoman.run.outcome": shortName(result.GetOutcome().String(), "OUTCOME_"),
	} {
		if value != "" {
			s.span.SetAttributes(attribute.String(name, value))
		}
	}
	tokens := result.GetUsage().GetTokens()
	if tokens != nil && tokens.Input != nil {
		s.span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", int64(tokens.GetInput())))
	}
	if tokens != nil && tokens.Output != nil {
		s.span.SetAttributes(attribute.Int64("gen_ai.usage.output_tokens", int64(tokens.GetOutput())))
	}
	if failure := result.GetFailure(); failure != nil {
		fail(s.span, failure.GetKind().String(), "FAILURE_KIND_")
	}
	s.span.End()
}

// flushSpans exports the spans that a provider still keeps, if it can: one of the SDK of OpenTelemetry exports every few
// seconds.
func flushSpans(provider trace.TracerProvider, logger *slog.Logger) {
	flushing, canFlush := provider.(interface{ ForceFlush(context.Context) error })
	if !canFlush {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushBound)
	defer cancel()
	if err := flushing.ForceFlush(ctx); err != nil {
		logger.Warn("spans were not exported", "error", err.Error())
	}
}

func fail(span trace.Span, kind, prefix string) {
	span.SetAttributes(attribute.String("error.type", shortName(kind, prefix)))
	span.SetStatus(codes.Error, "")
}

func shortName(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
