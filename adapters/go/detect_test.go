package adapter

import (
	"context"
	"io"
	"log/slog"
	"testing"

	pb "dragoman/clients/go/dragomanv1"
)

// TestAMissingAgentFailsTheTestOfTheEnvironment asks an adapter that only detects.
func TestAMissingAgentFailsTheTestOfTheEnvironment(t *testing.T) {
	for _, isThere := range []bool{true, false} {
		server, err := NewServer(&Adapter{
			Describe: &pb.DescribeResponse{Adapter: "looking", Label: "Looking", Version: "1"},
			Run:      func(context.Context, *Run) (*pb.Result, error) { return nil, nil },
			Detect: func(context.Context, *pb.DetectRequest) (*pb.Detection, error) {
				return &pb.Detection{Available: isThere, Message: "found or not", Hint: "install it"}, nil
			},
		}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			t.Fatal(err)
		}
		tested, err := server.TestEnvironment(t.Context(), &pb.TestEnvironmentRequest{})
		if err != nil {
			t.Fatal(err)
		}
		want := pb.TestStatus_TEST_STATUS_FAIL
		if isThere {
			want = pb.TestStatus_TEST_STATUS_PASS
		}
		if tested.GetStatus() != want {
			t.Errorf("available %v: %v", isThere, tested)
		}
	}
}
