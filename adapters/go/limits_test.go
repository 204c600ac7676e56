package adapter_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

func TestLimits(t *testing.T) {
	short := durationpb.New(100 * time.Millisecond)
	tests := map[string]struct {
		limits *pb.Limits
		run    runFunc
		kind   pb.FailureKind
	}{
		"wall":               {&pb.Limits{Wall: short}, hang, pb.FailureKind_FAILURE_KIND_WALL_TIMEOUT},
		"idle":               {&pb.Limits{Idle: short}, hang, pb.FailureKind_FAILURE_KIND_IDLE_TIMEOUT},
		"wall of a program":  {&pb.Limits{Wall: short}, shell("trap '' TERM; sleep 60"), pb.FailureKind_FAILURE_KIND_WALL_TIMEOUT},
		"idle of a program":  {&pb.Limits{Idle: short}, shell("echo ready; sleep 60"), pb.FailureKind_FAILURE_KIND_IDLE_TIMEOUT},
		"start of a program": {&pb.Limits{StartUp: short}, shell("sleep 60"), pb.FailureKind_FAILURE_KIND_START_TIMEOUT},
		"after a program": {&pb.Limits{Wall: durationpb.New(time.Second)}, func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
			if _, err := run.Exec(adapter.Command{Path: "true"}, nil); err != nil {
				return nil, err
			}
			return hang(ctx, run)
		}, pb.FailureKind_FAILURE_KIND_WALL_TIMEOUT},
		"of a second program": {&pb.Limits{Idle: short}, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			if _, err := run.Exec(adapter.Command{Path: "echo"}, func(adapter.Line) { run.Done() }); err != nil {
				return nil, err
			}
			exit, err := run.Exec(adapter.Command{Path: "sleep", Args: []string{"60"}}, nil)
			if err != nil {
				return nil, err
			}
			return exit.Result(), nil
		}, pb.FailureKind_FAILURE_KIND_IDLE_TIMEOUT},
		"an adapter is deaf": {&pb.Limits{Wall: short}, func(context.Context, *adapter.Run) (*pb.Result, error) { select {} }, pb.FailureKind_FAILURE_KIND_WALL_TIMEOUT},
		"a call of a tool": {&pb.Limits{ToolCall: short, Idle: short}, func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
			call := &pb.ToolCall{Id: "1", Status: pb.ToolStatus_TOOL_STATUS_RUNNING}
			if err := run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolCall{ToolCall: call}}); err != nil {
				return nil, err
			}
			<-ctx.Done()
			return nil, nil
		}, pb.FailureKind_FAILURE_KIND_TOOL_TIMEOUT},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, _ := serve(t, test.run)
			test.limits.Grace = durationpb.New(50 * time.Millisecond)
			all := execute(t, client, request(func(r *pb.ExecuteRequest) { r.Limits = test.limits }))
			result := resultOf(all)
			if result.GetOutcome() != pb.Outcome_OUTCOME_TIMED_OUT || result.GetFailure().GetKind() != test.kind {
				t.Errorf("got %v", result)
			}
			if all[0].GetStarted().GetLimits().GetGrace().AsDuration() != 50*time.Millisecond {
				t.Errorf("started has %v", all[0].GetStarted().GetLimits())
			}
		})
	}
}

func TestTheLimitOfOutput(t *testing.T) {
	tests := map[string]runFunc{
		"of events": func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			for range 100 {
				if err := run.Text("answer", "0123456789"); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
		"of a program": shell("i=0; while [ $i -lt 100 ]; do echo 012345678; i=$((i+1)); done"),
		"with a secret at the cut": func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			if err := run.Text("answer", strings.Repeat("x", 45)); err != nil {
				return nil, err
			}
			return nil, run.Text("answer", secret)
		},
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, run)
			all := execute(t, client, request(func(r *pb.ExecuteRequest) { r.Limits.OutputBytes = 50 }))
			size, notices := 0, 0
			for _, event := range all {
				size += len(event.GetText().GetDelta()) + len(event.GetLog().GetText())
				if event.GetNotice().GetCode() == "output_cut" {
					notices++
				}
				if strings.Contains(event.String(), "env-0") {
					t.Errorf("a part of a secret is in %v", event)
				}
			}
			if size > 50 || notices != 1 || resultOf(all).GetCounters().GetDroppedBytes() == 0 {
				t.Errorf("%d bytes, %d notices, %v", size, notices, resultOf(all).GetCounters())
			}
		})
	}
}
