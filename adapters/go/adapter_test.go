package adapter_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	deadline = 20 * time.Second
	secret   = "env-0815-very-secret"
)

func TestMain(m *testing.M) {
	adapter.Init()
	os.Exit(m.Run())
}

type runFunc func(ctx context.Context, run *adapter.Run) (*pb.Result, error)

// serve serves an adapter that does what a function does, and returns a client of it.
func serve(t *testing.T, run runFunc, features ...pb.Feature) (*dragoman.Client, *adapter.Server) {
	t.Helper()
	return serveAdapter(t, described(run, features...))
}

func described(run runFunc, features ...pb.Feature) *adapter.Adapter {
	return &adapter.Adapter{
		Describe: &pb.DescribeResponse{
			Adapter: "test", Label: "Test", Version: "1", Aliases: []string{"test_local"},
			Capabilities: adapter.Features(pb.PermissionMode_PERMISSION_MODE_NONE, append(features, pb.Feature_FEATURE_PROMPT)...),
		},
		Run: run,
	}
}

func serveAdapter(t *testing.T, served *adapter.Adapter) (*dragoman.Client, *adapter.Server) {
	t.Helper()
	return serveLogging(t, served, io.Discard)
}

func serveLogging(t *testing.T, served *adapter.Adapter, log io.Writer) (*dragoman.Client, *adapter.Server) {
	t.Helper()
	server, err := adapter.NewServer(served, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	directory, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	address := "unix:" + filepath.Join(directory, "s")
	listener, err := adapter.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	client, err := dragoman.New(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		server.Stop(100 * time.Millisecond)
		_ = os.RemoveAll(directory)
	})
	return client, server
}

func request(change func(*pb.ExecuteRequest)) *pb.ExecuteRequest {
	made := &pb.ExecuteRequest{
		Env:    map[string]string{"MY_TOKEN": secret},
		Limits: &pb.Limits{Grace: durationpb.New(100 * time.Millisecond)},
	}
	if change != nil {
		change(made)
	}
	return made
}

func background(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// events returns what is received of a run until its end.
func events(t *testing.T, run *dragoman.Run) []*pb.AgentEvent {
	t.Helper()
	var all []*pb.AgentEvent
	for {
		event, err := run.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, event)
	}
}

func execute(t *testing.T, client *dragoman.Client, request *pb.ExecuteRequest) []*pb.AgentEvent {
	t.Helper()
	run, err := client.Execute(background(t), request)
	if err != nil {
		t.Fatal(err)
	}
	return events(t, run)
}

func resultOf(all []*pb.AgentEvent) *pb.Result { return all[len(all)-1].GetResult() }

func shell(script string) runFunc {
	return func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		exit, err := run.Exec(adapter.Command{Path: "sh", Args: []string{"-c", script}, Stdin: []byte(run.Prompt)}, nil)
		if err != nil {
			return nil, err
		}
		return exit.Result(), nil
	}
}

func logged(all []*pb.AgentEvent) string {
	var lines []string
	for _, event := range all {
		if event.GetLog() != nil {
			lines = append(lines, event.GetLog().GetText())
		}
	}
	return strings.Join(lines, "\n")
}

func hang(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
	if err := run.Text("answer", "ready"); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, nil
}

// panicking runs a program that lives on, and does what panics at its first line.
func panicking(handle func(*adapter.Run)) runFunc {
	return func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		lines := adapter.Command{Path: "sh", Args: []string{"-c", "echo line; echo line; exec sleep 600"}}
		exit, err := run.Exec(lines, func(adapter.Line) { handle(run) })
		if err != nil {
			return nil, err
		}
		return exit.Result(), nil
	}
}

func TestHowARunEnds(t *testing.T) {
	tests := map[string]struct {
		run     runFunc
		outcome pb.Outcome
		kind    pb.FailureKind
		code    string
	}{
		"by itself": {func(context.Context, *adapter.Run) (*pb.Result, error) { return nil, nil }, pb.Outcome_OUTCOME_SUCCEEDED, 0, ""},
		"by its failure": {func(context.Context, *adapter.Run) (*pb.Result, error) {
			return nil, &adapter.Failure{Kind: pb.FailureKind_FAILURE_KIND_NETWORK, Code: "c", Message: "m"}
		}, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_NETWORK, "c"},
		"by a fault":                         {func(context.Context, *adapter.Run) (*pb.Result, error) { return nil, errors.New(secret) }, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_INTERNAL, "adapter_failed"},
		"by a panic":                         {func(context.Context, *adapter.Run) (*pb.Result, error) { panic(secret) }, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_INTERNAL, "adapter_failed"},
		"by a panic while its program lives": {panicking(func(*adapter.Run) { panic(secret) }), pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_INTERNAL, "adapter_failed"},
		"by a panic within an event": {panicking(func(run *adapter.Run) {
			_ = run.Emit(&pb.AgentEvent{Body: (*pb.AgentEvent_Text)(nil)})
		}), pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_INTERNAL, "adapter_failed"},
		"without reason": {func(context.Context, *adapter.Run) (*pb.Result, error) {
			return &pb.Result{Outcome: pb.Outcome_OUTCOME_FAILED}, nil
		}, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_INTERNAL, "no_reason"},
		"a program":                 {shell("cat"), pb.Outcome_OUTCOME_SUCCEEDED, 0, ""},
		"a program fails":           {shell("exit 3"), pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, "exit_code"},
		"a program is killed":       {shell("kill -9 $$"), pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, "signal"},
		"a program kills its guard": {shell("kill -9 $PPID; sleep 60"), pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, "vanished"},
		"no such program": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			exit, err := run.Exec(adapter.Command{Path: "no-such-program"}, nil)
			if err != nil {
				return nil, err
			}
			return exit.Result(), nil
		}, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_NOT_INSTALLED, "command_not_found"},
		"no program": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			exit, err := run.Exec(adapter.Command{Path: "/etc/passwd"}, nil)
			if err != nil {
				return nil, err
			}
			return exit.Result(), nil
		}, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_SPAWN_FAILED, "spawn_eacces"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, test.run)
			all := execute(t, client, request(nil))
			result := resultOf(all)
			if result.GetOutcome() != test.outcome || result.GetFailure().GetKind() != test.kind || result.GetFailure().GetCode() != test.code {
				t.Errorf("got %v", result)
			}
			for i, event := range all {
				if event.GetSequence() != uint64(i+1) || event.GetAttempt() != 1 || event.GetTime() == nil {
					t.Errorf("event %d is %v", i, event)
				}
				if strings.Contains(event.String(), secret) {
					t.Errorf("a secret is in %v", event)
				}
			}
			if all[0].GetStarted() == nil || all[0].GetStarted().GetAdapter() != "test" {
				t.Errorf("it begins with %v", all[0])
			}
		})
	}
}

func TestNames(t *testing.T) {
	client, _ := serve(t, hang)
	for _, name := range []string{"", "test", "test_local"} {
		described, err := client.Adapter.Describe(background(t), &pb.DescribeRequest{Adapter: name})
		if err != nil || described.GetRevision() != adapter.Revision || described.GetInstanceId() == "" || !described.GetBatching() {
			t.Errorf("%q: %v, %v", name, described, err)
		}
	}
	_, err := client.Adapter.Describe(background(t), &pb.DescribeRequest{Adapter: "other"})
	if dragoman.ReasonOf(err) != dragoman.AdapterNotFound {
		t.Errorf("another name: %v", err)
	}
}

func TestDescriptionsThatAreRefused(t *testing.T) {
	run := func(context.Context, *adapter.Run) (*pb.Result, error) { return nil, nil }
	tests := map[string]*adapter.Adapter{
		"nothing":                {},
		"no type":                {Describe: &pb.DescribeResponse{}, Run: run},
		"a wrong type":           {Describe: &pb.DescribeResponse{Adapter: "A-1"}, Run: run},
		"no schema":              {Describe: &pb.DescribeResponse{Adapter: "a", ConfigSchemaJson: "no JSON"}, Run: run},
		"a layout that leads up": {Describe: &pb.DescribeResponse{Adapter: "a"}, Run: run, SkillLayout: "../{name}"},
		"a layout for one skill": {Describe: &pb.DescribeResponse{Adapter: "a"}, Run: run, SkillLayout: "skills"},
	}
	for name, wrong := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := adapter.NewServer(wrong, slog.Default()); err == nil {
				t.Error("it is served")
			}
		})
	}
}

func TestAFailureWithoutReasonIsInTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	client, _ := serveLogging(t, described(func(context.Context, *adapter.Run) (*pb.Result, error) {
		return &pb.Result{Outcome: pb.Outcome_OUTCOME_FAILED}, nil
	}), log)
	id := execute(t, client, request(nil))[0].GetRunId()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var warnings []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "level=WARN") {
			warnings = append(warnings, line)
		}
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "outcome=OUTCOME_FAILED") || !strings.Contains(warnings[0], id) {
		t.Errorf("the log of run %s warns: %q", id, warnings)
	}
}

func TestANoticeBeforeTheAttemptComesFirstInIt(t *testing.T) {
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		run.Notice(pb.Severity_SEVERITY_WARNING, "early", "It knows my "+secret)
		return shell("echo ready")(t.Context(), run)
	})
	var kinds []string
	for _, event := range execute(t, client, request(nil)) {
		switch {
		case event.GetStarted() != nil:
			kinds = append(kinds, "started")
		case event.GetNotice() != nil:
			kinds = append(kinds, event.GetNotice().GetCode()+": "+event.GetNotice().GetMessage())
		case event.GetLog() != nil:
			kinds = append(kinds, "log")
		}
	}
	if len(kinds) != 3 || kinds[0] != "started" || !strings.HasPrefix(kinds[1], "early: It knows my ") || strings.Contains(kinds[1], secret) {
		t.Errorf("the events are %q", kinds)
	}
}
