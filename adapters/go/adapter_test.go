package adapter_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

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
	server, err := adapter.NewServer(served, slog.New(slog.NewTextHandler(io.Discard, nil)))
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
		"by a fault": {func(context.Context, *adapter.Run) (*pb.Result, error) { return nil, errors.New(secret) }, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_INTERNAL, "adapter_failed"},
		"by a panic": {func(context.Context, *adapter.Run) (*pb.Result, error) { panic(secret) }, pb.Outcome_OUTCOME_FAILED, pb.FailureKind_FAILURE_KIND_INTERNAL, "adapter_failed"},
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

func TestCancel(t *testing.T) {
	tests := map[string]struct {
		run    runFunc
		grace  time.Duration
		signal string
	}{
		"a function":                        {hang, deadline, ""},
		"a function that is deaf":           {func(_ context.Context, run *adapter.Run) (*pb.Result, error) { _ = run.Text("a", "ready"); select {} }, 10 * time.Millisecond, ""},
		"a program":                         {shell("echo ready; exec sleep 60"), deadline, "SIGTERM"},
		"a program that is deaf":            {shell("trap '' TERM; echo ready; while :; do sleep 1; done"), 10 * time.Millisecond, "SIGKILL"},
		"a program, at once":                {shell("trap '' TERM; echo ready; while :; do sleep 1; done"), 0, "SIGKILL"},
		"a program that ends well after it": {shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"), deadline, ""},
		"a program of another session":      {shell("setsid sh -c 'trap \"\" TERM; sleep 60' & echo ready; exec sleep 60"), deadline, "SIGTERM"},
		"a program that stopped itself":     {shell("echo ready; kill -STOP $$"), deadline, "SIGTERM"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, _ := serve(t, test.run)
			run, err := client.Execute(background(t), request(nil))
			if err != nil {
				t.Fatal(err)
			}
			for isReady := false; !isReady; {
				event, err := run.Recv()
				if err != nil {
					t.Fatal(err)
				}
				isReady = event.GetLog() != nil || event.GetText() != nil
			}
			asked := &pb.CancelRequest{RunId: run.ID(), Grace: durationpb.New(test.grace), Reason: "enough"}
			answer, err := client.Adapter.Cancel(background(t), asked)
			if err != nil {
				t.Fatal(err)
			}
			result := resultOf(events(t, run))
			if answer.GetOutcome() != pb.Outcome_OUTCOME_CANCELLED || result.GetOutcome() != answer.GetOutcome() || result.GetSignal() != test.signal {
				t.Errorf("answer %v, result %v", answer, result)
			}
			if result.TreeConfirmedDead != nil && !result.GetTreeConfirmedDead() {
				t.Error("its death is not confirmed")
			}
			again, err := client.Adapter.Cancel(background(t), asked)
			if err != nil || again.GetResultSequence() != answer.GetResultSequence() {
				t.Errorf("again: %v, %v", again, err)
			}
		})
	}
}

func TestASuccessThatIsReportedStaysOne(t *testing.T) {
	client, _ := serve(t, func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
		_ = run.Text("a", "ready")
		<-ctx.Done()
		return &pb.Result{Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Summary: context.Cause(ctx).Error()}, nil
	})
	run, err := client.Execute(background(t), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Adapter.Cancel(background(t), &pb.CancelRequest{RunId: run.ID(), Grace: durationpb.New(deadline)})
	if err != nil || answer.GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("%v, %v", answer, err)
	}
	if summary := resultOf(events(t, run)).GetSummary(); summary != adapter.ErrCancelled.Error() {
		t.Errorf("the cause was %q", summary)
	}
}

func TestWhatAProgramLeavesBehindIsEnded(t *testing.T) {
	tests := map[string]string{
		"a child that holds the output":  "sleep 60 & echo done",
		"a daemon":                       "setsid sh -c 'exec >/dev/null 2>&1 </dev/null; sleep 60' & echo done",
		"a daemon without variables":     "setsid env -i sleep 60 & echo done",
		"children that ignore the order": "(trap '' TERM; sleep 60; sleep 60) & echo done",
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, _ := serve(t, shell(script))
			all := execute(t, client, request(nil))
			result := resultOf(all)
			if result.GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED || !result.GetTreeConfirmedDead() || logged(all) != "done" {
				t.Errorf("%q, %v", logged(all), result)
			}
		})
	}
}

func TestSecretsAreRedacted(t *testing.T) {
	tests := map[string]struct {
		run  runFunc
		want string
	}{
		"in a piece": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			return nil, run.Text("a", "<"+secret+">")
		}, "<[redacted]>"},
		"cut into pieces": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			for _, part := range []string{"<", secret[:7], secret[7:9], secret[9:] + ">"} {
				if err := run.Text("a", part); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}, "<[redacted]>"},
		"with an event between": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			_ = run.Text("a", secret[:7])
			run.Notice(pb.Severity_SEVERITY_INFO, "between", "between")
			return nil, run.Text("a", secret[7:])
		}, "[redacted]"},
		"that does not come": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			return nil, run.Text("a", "< "+secret[:7])
		}, "< " + secret[:7]},
		"in another text": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			_ = run.Text("a", secret[:7])
			return nil, run.Text("b", secret[7:])
		}, secret[7:] + secret[:7]}, // two texts: neither has it
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, test.run)
			got := ""
			lengths := map[string]uint64{}
			for _, event := range execute(t, client, request(nil)) {
				text := event.GetText()
				if text == nil {
					continue
				}
				if text.GetOffset() != lengths[text.GetItemId()] {
					t.Errorf("offset %d of %v, want %d", text.GetOffset(), text, lengths[text.GetItemId()])
				}
				lengths[text.GetItemId()] += uint64(len(text.GetDelta()))
				got += text.GetDelta()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestSecretsOfAProgramAreRedacted(t *testing.T) {
	client, _ := serve(t, shell(`echo "out $MY_TOKEN"; echo "err $MY_TOKEN" >&2; printf '%s' "${MY_TOKEN%secret}"; sleep 0.05; echo secret; exit 1`))
	all := execute(t, client, request(func(r *pb.ExecuteRequest) { r.Labels = map[string]string{"note": "with " + secret} }))
	for _, event := range all {
		if strings.Contains(event.String(), "very-secret") {
			t.Errorf("a secret is in %v", event)
		}
	}
	if text := logged(all); strings.Count(text, "[redacted]") != 3 {
		t.Errorf("got %q", text)
	}
	started := all[0].GetStarted()
	if started.GetEnv()["MY_TOKEN"] != "[redacted]" || started.GetLabels()["note"] != "with [redacted]" {
		t.Errorf("got %v", started)
	}
}

func TestTheEnvironmentOfAProgram(t *testing.T) {
	t.Setenv("OF_THE_SERVER", "x")
	client, _ := serve(t, shell(`pwd; echo "$DRAGOMAN_RUN_ID $A"; cat; echo; echo "$OF_THE_SERVER."; test -d "$TMPDIR" && echo "$TMPDIR"`),
		pb.Feature_FEATURE_WORKSPACE)
	directory := t.TempDir()
	all := execute(t, client, request(func(r *pb.ExecuteRequest) {
		r.RunId, r.Workspace, r.Env = "r-1", &pb.Workspace{Cwd: directory}, map[string]string{"A": "b"}
		r.Task = &pb.ExecuteRequest_PromptTemplate{PromptTemplate: "prompt of {{runId}}"}
	}))
	want := strings.Join([]string{directory, "r-1 b", "prompt of r-1", ".", ""}, "\n")
	temporary, isThere := strings.CutPrefix(logged(all), want)
	if !isThere {
		t.Errorf("got %q, want %q", logged(all), want)
	}
	if _, err := os.Stat(temporary); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", temporary, err)
	}
}

func TestOutputThatIsNoText(t *testing.T) {
	client, _ := serve(t, shell(`printf 'a\342\202\n\377\376b\r\n'; printf 'last'`))
	var lines []string
	for _, event := range execute(t, client, request(nil)) {
		if entry := event.GetLog(); entry != nil {
			lines = append(lines, entry.GetText())
			if (entry.GetRaw() != nil) != strings.Contains(entry.GetText(), "\ufffd") || entry.GetUnterminated() != (entry.GetText() == "last") {
				t.Errorf("got %v", entry)
			}
		}
	}
	if want := []string{"a\ufffd", "\ufffd\ufffdb", "last"}; !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
}

func TestAttachFromEverywhere(t *testing.T) {
	client, _ := serve(t, shell("echo 1; echo 2; echo 3"))
	all := execute(t, client, request(func(r *pb.ExecuteRequest) { r.RunId = "r" }))
	for after := range all {
		run, err := client.Attach(background(t), &pb.AttachRequest{RunId: "r", AfterSequence: uint64(after)})
		if err != nil {
			t.Fatal(err)
		}
		if rest := events(t, run); len(rest) != len(all)-after || rest[0].GetSequence() != uint64(after+1) {
			t.Errorf("after %d: %v", after, rest)
		}
	}
	run, err := client.Attach(background(t), &pb.AttachRequest{RunId: "r", AfterSequence: uint64(len(all))})
	if err != nil {
		t.Fatal(err)
	}
	if again := events(t, run); len(again) != 1 || again[0].GetResult() == nil {
		t.Errorf("at the end: %v", again)
	}
	_, err = client.Attach(background(t), &pb.AttachRequest{RunId: "r", AfterSequence: uint64(len(all) + 1)})
	if dragoman.ReasonOf(err) != dragoman.SequenceAhead {
		t.Errorf("past the end: %v", err)
	}
}

func TestTheSameRequestJoinsAndAnotherIsRefused(t *testing.T) {
	client, _ := serve(t, hang)
	first, err := client.Execute(background(t), request(func(r *pb.ExecuteRequest) { r.RunId = "r" }))
	if err != nil {
		t.Fatal(err)
	}
	second, err := client.Execute(background(t), request(func(r *pb.ExecuteRequest) { r.RunId, r.Labels = "r", map[string]string{"a": "b"} }))
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Execute(background(t), request(func(r *pb.ExecuteRequest) { r.RunId, r.Task = "r", &pb.ExecuteRequest_Prompt{Prompt: "x"} }))
	if dragoman.ReasonOf(err) != dragoman.RunIDReused {
		t.Errorf("another request: %v", err)
	}
	if _, err := client.Adapter.Cancel(background(t), &pb.CancelRequest{RunId: "r"}); err != nil {
		t.Fatal(err)
	}
	if one, other := len(events(t, first)), len(events(t, second)); one != other {
		t.Errorf("%d and %d events", one, other)
	}
}

func TestARouterContinuesARun(t *testing.T) {
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) { return nil, run.Text("a", "hello") })
	run := func(sequence uint64, attempt uint32) []*pb.AgentEvent {
		return execute(t, client, request(func(r *pb.ExecuteRequest) {
			r.RunId, r.Relay = "r", &pb.Relay{FirstSequence: sequence, FirstAttempt: attempt}
		}))
	}
	next := uint64(100)
	for attempt := uint32(3); attempt < 23; attempt++ { // at once, when the result is there
		all := run(next, attempt)
		if all[0].GetSequence() != next || all[0].GetAttempt() != attempt {
			t.Fatalf("attempt %d begins with %v", attempt, all[0])
		}
		next = all[len(all)-1].GetSequence() + 1
	}
}

func TestARunThatIsLeftIsCancelled(t *testing.T) {
	client, _ := serve(t, hang)
	ctx, leave := context.WithCancel(background(t))
	run, err := client.Execute(ctx, request(func(r *pb.ExecuteRequest) { r.OrphanAfter = durationpb.New(time.Millisecond) }))
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := client.Attach(background(t), &pb.AttachRequest{RunId: run.ID()})
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if result := resultOf(events(t, watcher)); result.GetOutcome() != pb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("got %v", result)
	}
}

func TestStopDrains(t *testing.T) {
	client, server := serve(t, shell("echo ready; exec sleep 60"))
	run, err := client.Execute(background(t), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		server.Stop(deadline)
		close(stopped)
	}()
	if result := resultOf(events(t, run)); result.GetOutcome() != pb.Outcome_OUTCOME_CANCELLED || !result.GetTreeConfirmedDead() {
		t.Errorf("got %v", result)
	}
	<-stopped
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

func TestListen(t *testing.T) {
	directory := t.TempDir()
	address := "unix:" + filepath.Join(directory, "s")
	listener, err := adapter.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(directory, "s")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := adapter.Listen(address); err == nil || !strings.Contains(err.Error(), "another server listens") {
		t.Errorf("a second server: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]string{
		"relative": "unix:s", "nothing": "", "another machine": "192.0.2.1:80", "no port": "127.0.0.1",
	} {
		if _, err := adapter.Listen(wrong); err == nil {
			t.Errorf("it listens on %s, %s", wrong, name)
		}
	}
	if err := os.Chmod(directory, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := adapter.Listen(address); err == nil || !strings.Contains(err.Error(), "other users can write") {
		t.Errorf("where others can write: %v", err)
	}
}

func TestSessions(t *testing.T) {
	seen := make(chan string, 8)
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		seen <- run.Resume
		id := "session-1"
		if run.Resume == "gone" {
			return nil, &adapter.Failure{Kind: pb.FailureKind_FAILURE_KIND_SESSION_LOST, Message: "There is no such session."}
		}
		return nil, run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Session{Session: &pb.Session{NativeId: id}}})
	}, pb.Feature_FEATURE_RESUME)
	resuming := func(handle *pb.SessionHandle) *pb.ExecuteRequest {
		return request(func(r *pb.ExecuteRequest) {
			if handle != nil {
				r.Session = &pb.SessionSelector{Selector: &pb.SessionSelector_Handle{Handle: handle}}
			}
		})
	}
	first := resultOf(execute(t, client, resuming(nil))).GetSession()
	if first.GetChange() != pb.SessionChange_SESSION_CHANGE_SET || first.GetHandle().GetNativeId() != "session-1" {
		t.Fatalf("the session to store is %v", first)
	}
	other := &pb.SessionHandle{Adapter: "another", NativeId: "session-1"}
	for _, test := range []struct {
		name        string
		handle      *pb.SessionHandle
		resumed     string
		disposition pb.SessionDisposition
		change      pb.SessionChange
	}{
		{"its own", first.GetHandle(), "session-1", pb.SessionDisposition_SESSION_DISPOSITION_RESUME, pb.SessionChange_SESSION_CHANGE_SET},
		{"another's", other, "", pb.SessionDisposition_SESSION_DISPOSITION_RESUME_REFUSED, pb.SessionChange_SESSION_CHANGE_SET},
		{"nameless", &pb.SessionHandle{}, "", pb.SessionDisposition_SESSION_DISPOSITION_RESUME_REFUSED, pb.SessionChange_SESSION_CHANGE_SET},
		{"gone", &pb.SessionHandle{NativeId: "gone"}, "gone", pb.SessionDisposition_SESSION_DISPOSITION_RESUME,
			pb.SessionChange_SESSION_CHANGE_CLEAR},
	} {
		t.Run(test.name, func(t *testing.T) {
			for len(seen) > 0 {
				<-seen
			}
			all := execute(t, client, resuming(test.handle))
			started := all[0].GetStarted()
			if resumed := <-seen; resumed != test.resumed || started.GetSessionDisposition() != test.disposition {
				t.Errorf("resumed %q as %v", resumed, started.GetSessionDisposition())
			}
			if isRefused := test.resumed == ""; isRefused != (started.GetSessionReason() != "") {
				t.Errorf("the reason is %q", started.GetSessionReason())
			}
			if change := resultOf(all).GetSession().GetChange(); change != test.change {
				t.Errorf("the change is %v", change)
			}
		})
	}
}

func TestASessionThatIsGoneIsReplacedByANewOne(t *testing.T) {
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		if err := run.Start(&pb.Started{}); err != nil {
			return nil, err
		}
		if run.Resume == "gone" {
			failure := &adapter.Failure{Kind: pb.FailureKind_FAILURE_KIND_SESSION_LOST, Code: "gone", Message: "There is no such session."}
			if err := run.Retry(failure); err != nil {
				return nil, err
			}
			if err := run.Start(&pb.Started{}); err != nil {
				return nil, err
			}
		}
		if strings.Contains(run.Prompt, "Say nothing.") {
			return nil, nil
		}
		session := &pb.Session{NativeId: "new"}
		return nil, errors.Join(run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Session{Session: session}}), run.Text("a", run.Resume+run.Prompt))
	}, pb.Feature_FEATURE_RESUME)
	config, err := structpb.NewStruct(map[string]any{"bootstrapPromptTemplate": "First."})
	if err != nil {
		t.Fatal(err)
	}
	resuming := func(session, prompt string) []*pb.AgentEvent {
		return execute(t, client, request(func(r *pb.ExecuteRequest) {
			handle := &pb.SessionHandle{Adapter: "test", NativeId: session}
			r.Config, r.Task = config, &pb.ExecuteRequest_Prompt{Prompt: prompt}
			r.Session = &pb.SessionSelector{Selector: &pb.SessionSelector_Handle{Handle: handle}}
		}))
	}
	if all := resuming("there", "Go on."); textOf(all) != "thereGo on." {
		t.Errorf("a session that is resumed gets %q", textOf(all))
	}
	all := resuming("gone", "Go on.")
	var started []pb.SessionDisposition
	for _, event := range all {
		if event.GetStarted() != nil {
			started = append(started, event.GetStarted().GetSessionDisposition())
		}
		if end := event.GetAttemptEnded(); end != nil && end.GetFailure().GetCode() != "gone" {
			t.Errorf("the first attempt ended so: %v", end)
		}
	}
	want := []pb.SessionDisposition{
		pb.SessionDisposition_SESSION_DISPOSITION_RESUME, pb.SessionDisposition_SESSION_DISPOSITION_RESUME_REFUSED,
	}
	if !slices.Equal(started, want) || all[len(all)-1].GetAttempt() != 2 || textOf(all) != "First.\n\nGo on." {
		t.Errorf("it began so: %v; the new session gets %q", started, textOf(all))
	}
	if handle := resultOf(all).GetSession().GetHandle(); handle.GetNativeId() != "new" {
		t.Errorf("the session to store is %v", handle)
	}
	if session := resultOf(resuming("gone", "Say nothing.")).GetSession(); session.GetChange() != pb.SessionChange_SESSION_CHANGE_CLEAR {
		t.Errorf("without a new session, the change is %v", session)
	}
}

func TestASessionIsNotResumedWithoutTheFeature(t *testing.T) {
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		return nil, run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Session{Session: &pb.Session{NativeId: "session-1"}}})
	})
	if session := resultOf(execute(t, client, request(nil))).GetSession(); session != nil {
		t.Errorf("the result offers a session that cannot be resumed: %v", session)
	}
}

func TestTwoRunsDoNotResumeOneSession(t *testing.T) {
	features := []pb.Feature{pb.Feature_FEATURE_RESUME, pb.Feature_FEATURE_FORK}
	client, _ := serve(t, hang, features...)
	resuming := func(id, session string, isFork bool) *pb.ExecuteRequest {
		return request(func(r *pb.ExecuteRequest) {
			handle := &pb.SessionHandle{Adapter: "test", NativeId: session}
			r.RunId, r.Session = id, &pb.SessionSelector{Selector: &pb.SessionSelector_Handle{Handle: handle}, Fork: isFork}
		})
	}
	start := func(asked *pb.ExecuteRequest) error {
		_, err := client.Execute(background(t), asked)
		return err
	}
	cancel := func(id string) {
		if _, err := client.Adapter.Cancel(background(t), &pb.CancelRequest{RunId: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(start(resuming("a", "s", false)), start(resuming("a", "s", false))); err != nil {
		t.Fatalf("the same request does not join: %v", err)
	}
	err := start(resuming("b", "s", false))
	if dragoman.ReasonOf(err) != dragoman.SessionBusy || dragoman.FromError(err).Metadata["run_id"] != "a" {
		t.Errorf("a second run in the session: %v", err)
	}
	if err := errors.Join(start(resuming("c", "s", true)), start(resuming("d", "other", false))); err != nil {
		t.Errorf("a copy, or another session: %v", err)
	}
	cancel("a")
	if err := start(resuming("e", "s", false)); err != nil {
		t.Errorf("after the end of the first: %v", err)
	}
}
