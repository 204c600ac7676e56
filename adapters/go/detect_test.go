package adapter

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	pb "dragoman/clients/go/dragomanv1"
)

// TestAProgramIsLookedFor asks an adapter that only names its program, which settings may change.
func TestAProgramIsLookedFor(t *testing.T) {
	for _, test := range []struct {
		program, command, path, executable string
		isThere                            bool
	}{
		{"sh", "", "/bin", "/bin/sh", true},
		{"no-such-program", "sh", "/bin", "/bin/sh", true},
		{"sh", "", "/no/such/directory", "", false},
		{"", "/bin/sh", "", "/bin/sh", true},
		{"/bin/sh", "/no/such/program", "", "", false},
		{"", "", "", "", true}, // there is nothing to look for
	} {
		server, err := NewServer(&Adapter{
			Describe: &pb.DescribeResponse{Adapter: "naming", Label: "Naming", Version: "1"},
			Run:      func(context.Context, *Run) (*pb.Result, error) { return nil, nil },
			Program:  test.program,
		}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			t.Fatal(err)
		}
		config, err := structpb.NewStruct(map[string]any{"command": test.command})
		if err != nil {
			t.Fatal(err)
		}
		env := map[string]string{"PATH": test.path}
		answer, err := server.Detect(t.Context(), &pb.DetectRequest{Config: config, Env: env})
		if err != nil {
			t.Fatal(err)
		}
		found := answer.GetDetections()[0]
		if found.GetAvailable() != test.isThere || found.GetExecutable() != test.executable {
			t.Errorf("%+v: %v", test, found)
		}
		if !test.isThere && found.GetHint() == "" {
			t.Errorf("%+v: no hint", test)
		}
		tested, err := server.TestEnvironment(t.Context(), &pb.TestEnvironmentRequest{Config: config, Env: env})
		if err != nil {
			t.Fatal(err)
		}
		if (tested.GetStatus() == pb.TestStatus_TEST_STATUS_PASS) != test.isThere {
			t.Errorf("%+v: %v", test, tested)
		}
	}
}

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
