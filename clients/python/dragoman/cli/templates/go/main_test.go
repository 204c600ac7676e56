package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

// TestMain lets this program be the guard of its runs: the server starts it again as such.
func TestMain(m *testing.M) {
	adapter.Init()
	os.Exit(m.Run())
}

// TestAMissingAgentIsReported asks for a program that is not there, and for the stand-in.
func TestAMissingAgentIsReported(t *testing.T) {
	server, err := adapter.NewServer(newAdapter(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for command, isThere := range map[string]bool{"/no/such/program": false, "./newagent": true} {
		config, err := structpb.NewStruct(map[string]any{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		found, err := server.Detect(t.Context(), &pb.DetectRequest{Config: config})
		if err != nil || found.GetDetections()[0].GetAvailable() != isThere {
			t.Errorf("%s: %v, %v", command, found, err)
		}
	}
}

// TestARunSucceedsAndReports runs the real program, through the contract.
func TestARunSucceedsAndReports(t *testing.T) {
	server, err := adapter.NewServer(newAdapter(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	directory, err := os.MkdirTemp("", "newagent") // a short path, as sockets need it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(directory)
	address := "unix:" + filepath.Join(directory, "socket")
	listener, err := adapter.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop(time.Second)
	client, err := dragoman.New(address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	agent, err := filepath.Abs("newagent")
	if err != nil {
		t.Fatal(err)
	}
	config, err := structpb.NewStruct(map[string]any{"command": agent})
	if err != nil {
		t.Fatal(err)
	}
	run, err := client.Execute(t.Context(), &pb.ExecuteRequest{
		Adapter:   "newagent",
		Task:      &pb.ExecuteRequest_Prompt{Prompt: "Hello."},
		Workspace: &pb.Workspace{Cwd: t.TempDir()},
		Config:    config,
	})
	if err != nil {
		t.Fatal(err)
	}
	var tools []string
	for {
		event, err := run.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if call := event.GetToolCall(); call != nil {
			tools = append(tools, call.GetName())
		}
	}
	result := run.Result()
	if result.GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED || result.GetSummary() != "Read a prompt of 6 bytes." {
		t.Errorf("the run ended so: %v", result)
	}
	if !slices.Equal(tools, []string{"list"}) || !result.GetTreeConfirmedDead() {
		t.Errorf("tools: %v; confirmed dead: %v", tools, result.GetTreeConfirmedDead())
	}
}
