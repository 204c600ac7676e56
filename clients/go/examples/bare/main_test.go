package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "dragoman/clients/go/dragomanv1"
)

const deadline = 60 * time.Second

// routed returns a client of a router in front of the adapter. DRAGOMAN names the program; otherwise it is on the PATH.
func routed(t *testing.T, ctx context.Context) pb.AdapterServiceClient {
	t.Helper()
	folder, err := os.MkdirTemp("", "bare")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	listener, err := net.Listen("unix", filepath.Join(folder, "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	served := server()
	go served.Serve(listener)
	t.Cleanup(served.Stop)
	program := os.Getenv("DRAGOMAN")
	if program == "" {
		program = "dragoman"
	}
	address := "unix:" + filepath.Join(folder, "r.sock")
	router := exec.Command(program, "serve", "--no-detect", "--listen", address,
		"--adapter", "unix:"+filepath.Join(folder, "a.sock"), "--state-dir", filepath.Join(folder, "s"))
	router.Env = append(os.Environ(), "HOME="+folder, "XDG_RUNTIME_DIR="+folder, "XDG_CONFIG_HOME="+folder)
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = router.Process.Signal(syscall.SIGTERM)
		_ = router.Wait()
	})
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	watch, err := pb.NewRouterServiceClient(connection).WatchAdapters(ctx, &pb.WatchAdaptersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		list, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range list.Adapters {
			if entry.Adapter == "bare" && entry.State == pb.AdapterState_ADAPTER_STATE_READY {
				return pb.NewAdapterServiceClient(connection)
			}
		}
	}
}

// run returns what a run says, and its result or the status of a rejected one.
func run(ctx context.Context, client pb.AdapterServiceClient, request *pb.ExecuteRequest) (string, *pb.Result, error) {
	request.Adapter = "bare"
	stream, err := client.Execute(ctx, request)
	if err != nil {
		return "", nil, err
	}
	var text strings.Builder
	var result *pb.Result
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return text.String(), result, nil
		}
		if err != nil {
			return text.String(), result, err
		}
		text.WriteString(event.GetText().GetDelta())
		if event.GetResult() != nil {
			result = event.GetResult()
		}
	}
}

func TestARouterKeepsItsPromisesForABareAdapter(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client := routed(t, ctx)

	text, result, err := run(ctx, client, &pb.ExecuteRequest{
		Task:  &pb.ExecuteRequest_PromptTemplate{PromptTemplate: "I am {{agent.name}}{{context.absent}}."},
		Agent: &pb.Agent{Name: "Ada"},
	})
	if err != nil || text != "I am Ada." || result.GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("template: %q, %v, %v", text, result, err)
	}

	text, _, err = run(ctx, client, &pb.ExecuteRequest{
		Task: &pb.ExecuteRequest_Prompt{Prompt: "It is $API_TOKEN indeed"},
		Env:  map[string]string{"API_TOKEN": "hunter2-secret-xyz"},
	})
	if err != nil || text != "It is [redacted] indeed" {
		t.Errorf("redaction: %q, %v", text, err)
	}

	_, result, err = run(ctx, client, &pb.ExecuteRequest{
		Task:   &pb.ExecuteRequest_Prompt{Prompt: "Wait forever"},
		Limits: &pb.Limits{Wall: durationpb.New(200 * time.Millisecond)},
	})
	if err != nil || result.GetFailure().GetKind() != pb.FailureKind_FAILURE_KIND_WALL_TIMEOUT {
		t.Errorf("wall limit: %v, %v", result, err)
	}

	text, _, err = run(ctx, client, &pb.ExecuteRequest{
		Task:   &pb.ExecuteRequest_Prompt{Prompt: "Much too long"},
		Limits: &pb.Limits{OutputBytes: 4},
	})
	if err != nil || text != "Much" {
		t.Errorf("output limit: %q, %v", text, err)
	}

	_, result, err = run(ctx, client, &pb.ExecuteRequest{
		Task:  &pb.ExecuteRequest_Prompt{Prompt: "Hello"},
		Model: "large",
	})
	reason := ""
	for _, detail := range status.Convert(err).Details() {
		if info, isInfo := detail.(*errdetails.ErrorInfo); isInfo {
			reason = info.Reason
		}
	}
	if reason != "NOT_SUPPORTED" {
		t.Errorf("refusal: %v, %v", result, err)
	}
}
