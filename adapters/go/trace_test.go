package adapter_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
	parent  = "00-" + traceID + "-" + spanID + "-01"
)

func showTrace(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
	return shell(`echo "trace=$TRACEPARENT state=$TRACESTATE"`)(ctx, run)
}

// traced runs a request that belongs to a trace.
func traced(t *testing.T, client *dragoman.Client, metadataPairs ...string) []*pb.AgentEvent {
	t.Helper()
	run, err := client.Execute(metadata.AppendToOutgoingContext(background(t), metadataPairs...), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	return events(t, run)
}

func TestATraceReachesTheAgentAndTheLog(t *testing.T) {
	t.Setenv("TRACEPARENT", "00-11111111111111111111111111111111-2222222222222222-01") // of the adapter, not of the run
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	client, _ := serveLogging(t, described(showTrace), log)
	tests := map[string]struct {
		sent []string
		want string
	}{
		"none":                 {nil, "trace= state="},
		"a trace":              {[]string{"traceparent", parent, "tracestate", "vendor=1"}, "trace=" + parent + " state=vendor=1"},
		"a later version":      {[]string{"traceparent", "01" + parent[2:]}, "trace=01" + parent[2:] + " state="},
		"a long state":         {[]string{"traceparent", parent, "tracestate", strings.Repeat("a", 513)}, "trace=" + parent + " state="},
		"a state alone":        {[]string{"tracestate", "vendor=1"}, "trace= state="},
		"nonsense":             {[]string{"traceparent", "nonsense", "tracestate", "vendor=1"}, "trace= state="},
		"a forbidden version":  {[]string{"traceparent", "ff" + parent[2:]}, "trace= state="},
		"no trace ID":          {[]string{"traceparent", "00-" + strings.Repeat("0", 32) + "-" + spanID + "-01"}, "trace= state="},
		"no span ID":           {[]string{"traceparent", "00-" + traceID + "-" + strings.Repeat("0", 16) + "-01"}, "trace= state="},
		"upper case":           {[]string{"traceparent", strings.ToUpper(parent)}, "trace= state="},
		"more than its length": {[]string{"traceparent", parent + "-more"}, "trace= state="},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			all := traced(t, client, test.sent...)
			if got := logged(all); got != test.want {
				t.Errorf("the agent has %q, want %q", got, test.want)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				isTraced := strings.Contains(line, "trace_id="+traceID) && strings.Contains(line, "span_id="+spanID)
				if strings.Contains(line, all[0].GetRunId()) && isTraced != !strings.HasPrefix(test.want, "trace= ") {
					t.Errorf("the log has %q", line)
				}
			}
		})
	}
}

// recorder is a provider that hands over spans when they end.
type recorder struct {
	noop.TracerProvider
	ended chan *recorded
}

type recordingTracer struct {
	noop.Tracer
	recorder *recorder
}

type recorded struct {
	noop.Span
	recorder   *recorder
	name       string
	parent     trace.SpanContext
	context    trace.SpanContext
	attributes map[attribute.Key]any
	status     codes.Code
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return recordingTracer{recorder: r}
}

func (t recordingTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	outer := trace.SpanContextFromContext(ctx)
	id := trace.SpanID{byte(len(name)), 1}
	config := trace.SpanContextConfig{TraceID: outer.TraceID(), SpanID: id, TraceFlags: outer.TraceFlags(), TraceState: outer.TraceState()}
	own := &recorded{recorder: t.recorder, name: name, parent: outer, context: trace.NewSpanContext(config), attributes: map[attribute.Key]any{}}
	started := trace.NewSpanStartConfig(options...)
	own.SetAttributes(started.Attributes()...)
	return trace.ContextWithSpan(ctx, own), own
}

func (s *recorded) SpanContext() trace.SpanContext { return s.context }

func (s *recorded) SetAttributes(attributes ...attribute.KeyValue) {
	for _, one := range attributes {
		s.attributes[one.Key] = one.Value.AsInterface()
	}
}

func (s *recorded) SetStatus(code codes.Code, _ string) { s.status = code }

func (s *recorded) End(...trace.SpanEndOption) { s.recorder.ended <- s }

func TestSpansOfARunAndItsToolCalls(t *testing.T) {
	recorder := &recorder{ended: make(chan *recorded, 10)}
	served := described(func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
		if _, err := showTrace(ctx, run); err != nil {
			return nil, err
		}
		call := &pb.ToolCall{Id: "1", Name: "Bash", InputJson: secret, Title: secret}
		for _, event := range []*pb.AgentEvent{
			{Body: &pb.AgentEvent_ToolCall{ToolCall: call}},
			{Body: &pb.AgentEvent_ToolCall{ToolCall: proto.CloneOf(call)}}, // again, as when its input grows
			{Body: &pb.AgentEvent_ToolResult{ToolResult: &pb.ToolResult{ToolCallId: "1", Status: pb.ToolStatus_TOOL_STATUS_FAILED}}},
			{Body: &pb.AgentEvent_ToolCall{ToolCall: &pb.ToolCall{Id: "2", Name: "Read"}}},
		} {
			if err := run.Emit(event); err != nil {
				return nil, err
			}
		}
		if trace.SpanContextFromContext(ctx).SpanID() != (trace.SpanID{17, 1}) {
			t.Errorf("the context of Run has %v", trace.SpanContextFromContext(ctx))
		}
		tokens := &pb.TokenCounts{Input: proto.Uint64(7), Output: proto.Uint64(0)}
		return &pb.Result{
			Outcome: pb.Outcome_OUTCOME_FAILED, Model: "m", Summary: secret, Usage: &pb.Usage{Tokens: tokens},
			Failure: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_MODEL_REFUSED, Message: secret},
		}, nil
	})
	served.TracerProvider = recorder
	client, _ := serveAdapter(t, served)
	all := traced(t, client, "traceparent", parent, "tracestate", "vendor=1")
	own := "00-" + traceID + "-1101000000000000-01"
	if got := logged(all); got != "trace="+own+" state=vendor=1" {
		t.Errorf("the agent has %q", got)
	}
	want := []struct {
		name       string
		parent     string
		status     codes.Code
		attributes map[attribute.Key]any
	}{
		{"execute_tool Bash", "1101000000000000", codes.Error, map[attribute.Key]any{
			"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "Bash", "gen_ai.tool.call.id": "1", "error.type": "failed",
		}},
		{"execute_tool Read", "1101000000000000", codes.Unset, map[attribute.Key]any{
			"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "Read", "gen_ai.tool.call.id": "2",
		}},
		{"invoke_agent test", spanID, codes.Error, map[attribute.Key]any{
			"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "test", "dragoman.run.id": all[0].GetRunId(),
			"gen_ai.response.model": "m", "gen_ai.usage.input_tokens": int64(7), "gen_ai.usage.output_tokens": int64(0),
			"dragoman.run.outcome": "failed", "error.type": "model_refused",
		}},
	}
	for _, due := range want {
		var span *recorded
		select {
		case span = <-recorder.ended:
		case <-background(t).Done():
			t.Fatal("no span ends")
		}
		if span.name != due.name || span.parent.SpanID().String() != due.parent || span.status != due.status ||
			!maps.Equal(span.attributes, due.attributes) {
			t.Errorf("got %s of %s, %v %v, want %v", span.name, span.parent.SpanID(), span.status, span.attributes, due)
		}
	}
}

// flushed is a provider that prints how long a flush may take.
type flushed struct{ noop.TracerProvider }

func (flushed) ForceFlush(ctx context.Context) error {
	until, isBounded := ctx.Deadline()
	fmt.Println("flushed, within five seconds:", isBounded && time.Until(until) <= 5*time.Second)
	return errors.New("no collector")
}

func TestTheLastSpansAreExportedBeforeTheEnd(t *testing.T) {
	served := described(showTrace)
	served.TracerProvider = flushed{}
	const isProgram = "TESTS_OF_TRACES_SERVE"
	if os.Getenv(isProgram) != "" {
		adapter.Main(served) // does not return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	program := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	program.Env = append(os.Environ(), isProgram+"=1", "DRAGOMAN_LISTEN=unix:"+filepath.Join(t.TempDir(), "s"))
	var printed strings.Builder
	program.Stdout = &printed
	log, err := program.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	hasWarned := false
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if strings.Contains(lines.Text(), "adapter ready") {
			_ = program.Process.Signal(syscall.SIGTERM)
		}
		hasWarned = hasWarned || strings.Contains(lines.Text(), "no collector")
	}
	if err := program.Wait(); err != nil || printed.String() != "flushed, within five seconds: true\n" || !hasWarned {
		t.Errorf("it ended with %v, printed %q, warned: %v", err, printed.String(), hasWarned)
	}
}
