package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const asks = pb.Feature_FEATURE_PERMISSION_REQUESTS

// permitting asks for a permission, and says what came of it.
func permitting(_ context.Context, run *adapter.Run) (*pb.Result, error) {
	decision, err := run.Permit(
		&pb.InputSubject{ToolCallId: "c1", ToolName: "Bash", ToolKind: pb.ToolKind_TOOL_KIND_EXECUTE, Command: "ls"},
		adapter.Question{Description: "It lists files.", EditableInputJSON: `{"command": "ls ` + secret + `"}`},
	)
	if err != nil {
		return nil, err
	}
	return nil, run.Text("answer", fmt.Sprintf("%+v", decision))
}

func interactive(change func(*pb.Permissions)) *pb.ExecuteRequest {
	return request(func(r *pb.ExecuteRequest) {
		r.RunId, r.Permissions = "r", &pb.Permissions{Interactive: true}
		if change != nil {
			change(r.Permissions)
		}
	})
}

// asked starts a run, and returns it with the first request that it makes.
func asked(t *testing.T, client *dragoman.Client, request *pb.ExecuteRequest) (*dragoman.Run, *pb.InputRequest) {
	t.Helper()
	run, err := client.Execute(background(t), request)
	if err != nil {
		t.Fatal(err)
	}
	for {
		event, err := run.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetInputRequest() != nil {
			return run, event.GetInputRequest()
		}
	}
}

func respond(t *testing.T, client *dragoman.Client, id string, answer *pb.InputAnswer) (uint64, error) {
	t.Helper()
	done, err := client.Adapter.Respond(background(t), &pb.RespondRequest{RunId: "r", RequestId: id, Answer: answer})
	return done.GetSequence(), err
}

func choose(option string) *pb.InputAnswer { return &pb.InputAnswer{OptionIds: []string{option}} }

func textOf(all []*pb.AgentEvent) string {
	text := ""
	for _, event := range all {
		text += event.GetText().GetDelta() + event.GetText().GetWhole()
	}
	return text
}

// bodies returns what kinds of events came, in short.
func bodies(all []*pb.AgentEvent) []string {
	var names []string
	for _, event := range all {
		switch body := event.GetBody().(type) {
		case *pb.AgentEvent_State:
			names = append(names, strings.TrimPrefix(body.State.GetPhase().String(), "RUN_PHASE_"))
		case *pb.AgentEvent_ToolCall:
			names = append(names, strings.TrimPrefix(body.ToolCall.GetStatus().String(), "TOOL_STATUS_"))
		case *pb.AgentEvent_InputRequest:
			names = append(names, "asked")
		case *pb.AgentEvent_InputResolved:
			names = append(names, strings.TrimPrefix(body.InputResolved.GetResolution().String(), "INPUT_RESOLUTION_"))
		case *pb.AgentEvent_Notice:
			names = append(names, body.Notice.GetCode())
		case *pb.AgentEvent_Text:
			names = append(names, "text")
		}
	}
	return names
}

func TestAPermissionIsAskedAndAnsweredOnce(t *testing.T) {
	client, _ := serve(t, permitting, asks)
	run, question := asked(t, client, interactive(nil))
	if question.GetTitle() != "Bash asks for permission" || question.GetSubject().GetCommand() != "ls" ||
		strings.Contains(question.String(), secret) || question.GetExpiresAt() == nil {
		t.Errorf("it asks %v", question)
	}
	if !slices.Equal(question.GetDefaultAnswer().GetOptionIds(), []string{"reject"}) {
		t.Errorf("the default is %v", question.GetDefaultAnswer())
	}
	wrong := map[string]*pb.InputAnswer{
		"no option":       {},
		"two options":     {OptionIds: []string{"allow", "reject"}},
		"a strange one":   choose("maybe"),
		"no JSON":         {OptionIds: []string{"allow"}, UpdatedInputJson: "{"},
		"no object":       {OptionIds: []string{"allow"}, UpdatedInputJson: "[]"},
		"a hidden secret": {OptionIds: []string{"allow"}, UpdatedInputJson: `{"command": "ls [redacted]"}`},
	}
	for name, answer := range wrong {
		if _, err := respond(t, client, question.GetId(), answer); dragoman.ReasonOf(err) != dragoman.InvalidAnswer {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := respond(t, client, "no-such", choose("allow")); dragoman.ReasonOf(err) != dragoman.RequestNotFound {
		t.Errorf("an unknown request: %v", err)
	}
	answer := &pb.InputAnswer{OptionIds: []string{"allow_always"}, UpdatedInputJson: `{"command": "pwd"}`, Message: "go on"}
	first, err := respond(t, client, question.GetId(), answer)
	if err != nil {
		t.Fatal(err)
	}
	rest := events(t, run)
	want := "{Allowed:true Message:go on UpdatedInputJSON:{\"command\": \"pwd\"} ForAll:true}"
	if got := textOf(rest); got != want {
		t.Errorf("the adapter sees %s", got)
	}
	if got := bodies(rest); !slices.Equal(got, []string{"WAITING_FOR_INPUT", "ANSWERED", "RUNNING", "RUNNING", "text"}) {
		t.Errorf("then came %v", got)
	}
	resolved := rest[1]
	if resolved.GetSequence() != first || resolved.GetInputResolved().GetResponder() != fmt.Sprintf("uid %d", os.Geteuid()) ||
		resolved.GetOrigin() != pb.EventOrigin_EVENT_ORIGIN_OPERATOR {
		t.Errorf("it is recorded as %v", resolved)
	}
	if again, err := respond(t, client, question.GetId(), answer); err != nil || again != first {
		t.Errorf("the same answer again: %v, %v", again, err)
	}
	_, err = respond(t, client, question.GetId(), choose("reject"))
	if dragoman.ReasonOf(err) != dragoman.AlreadyResolved || !strings.Contains(dragoman.FromError(err).Metadata["answer"], "allow_always") {
		t.Errorf("another answer: %v", err)
	}
}

func TestAPermissionThatNoCallerGives(t *testing.T) {
	tests := map[string]struct {
		permissions *pb.Permissions
		allowed     string
		bodies      []string
	}{
		"unattended": {nil, "false", []string{"STARTING", "permission_denied", "text"}},
		"by a rule": {&pb.Permissions{Rules: []*pb.PermissionRule{
			{Decision: pb.PermissionDecision_PERMISSION_DECISION_ALLOW, CommandPrefix: "ls"},
		}}, "true", []string{"STARTING", "text"}},
		"denied by a rule": {&pb.Permissions{Interactive: true, Rules: []*pb.PermissionRule{
			{Decision: pb.PermissionDecision_PERMISSION_DECISION_DENY, ToolKind: pb.ToolKind_TOOL_KIND_EXECUTE},
		}}, "false", []string{"STARTING", "permission_denied", "text"}},
		"in time": {
			&pb.Permissions{Interactive: true, RequestTimeout: durationpb.New(50 * time.Millisecond)}, "false",
			[]string{"STARTING", "AWAITING_PERMISSION", "asked", "WAITING_FOR_INPUT", "EXPIRED", "RUNNING", "text"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, permitting, asks)
			all := execute(t, client, request(func(r *pb.ExecuteRequest) { r.RunId, r.Permissions = "r", test.permissions }))
			if got := bodies(all); !slices.Equal(got, test.bodies) {
				t.Errorf("came %v", got)
			}
			if !strings.Contains(textOf(all), "Allowed:"+test.allowed) {
				t.Errorf("the adapter sees %s", textOf(all))
			}
			if name == "in time" {
				if _, err := respond(t, client, "input-1", choose("allow")); dragoman.ReasonOf(err) != dragoman.RequestExpired {
					t.Errorf("an answer after it: %v", err)
				}
			}
		})
	}
}

func TestARunThatWaitsForAnAnswerIsCancelled(t *testing.T) {
	client, _ := serve(t, permitting, asks)
	run, question := asked(t, client, interactive(func(p *pb.Permissions) { p.RequestTimeout = nil }))
	done, err := client.Adapter.Cancel(background(t), &pb.CancelRequest{RunId: "r"})
	if err != nil || done.GetOutcome() != pb.Outcome_OUTCOME_CANCELLED {
		t.Fatalf("cancelled: %v, %v", done, err)
	}
	if got := bodies(events(t, run)); !slices.Equal(got, []string{"WAITING_FOR_INPUT", "CANCELLING", "DROPPED"}) {
		t.Errorf("then came %v", got)
	}
	if _, err := respond(t, client, question.GetId(), choose("allow")); dragoman.ReasonOf(err) != dragoman.RunFinished {
		t.Errorf("an answer after the end: %v", err)
	}
}

func TestTheClocksStandStillWhileACallerIsAsked(t *testing.T) {
	client, _ := serve(t, permitting, asks)
	limited := interactive(nil)
	limited.Limits.Idle, limited.Limits.StartUp = durationpb.New(80*time.Millisecond), durationpb.New(80*time.Millisecond)
	run, question := asked(t, client, limited)
	// Several times the limit, without a sign of the agent.
	second, err := client.Adapter.Respond(background(t), &pb.RespondRequest{RunId: "r", RequestId: question.GetId(), Answer: choose("x")})
	for start := time.Now(); time.Since(start) < 400*time.Millisecond; {
		second, err = client.Adapter.Respond(background(t), &pb.RespondRequest{RunId: "r", RequestId: question.GetId(), Answer: choose("x")})
	}
	if dragoman.ReasonOf(err) != dragoman.InvalidAnswer {
		t.Fatalf("the request is not open any more: %v, %v", second, err)
	}
	if _, err := respond(t, client, question.GetId(), choose("allow")); err != nil {
		t.Fatal(err)
	}
	if result := resultOf(events(t, run)); result.GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("it ended so: %v", result)
	}
}

func TestALateReaderGetsTheOpenRequest(t *testing.T) {
	client, _ := serve(t, permitting, asks)
	run, question := asked(t, client, interactive(nil))
	late, err := client.Attach(background(t), &pb.AttachRequest{RunId: "r", AfterSequence: 4})
	if err != nil {
		t.Fatal(err)
	}
	first, err := late.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for first.GetInputRequest() == nil && first.GetReplayDone() == nil {
		if first, err = late.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if first.GetInputRequest().GetId() != question.GetId() || first.GetSequence() != 0 {
		t.Errorf("before the end of the replay came %v", first)
	}
	if _, err := respond(t, client, question.GetId(), choose("reject")); err != nil {
		t.Fatal(err)
	}
	events(t, run)
	for _, event := range events(t, late) {
		if event.GetInputRequest() != nil {
			t.Errorf("it comes again: %v", event)
		}
	}
}

func TestOtherQuestions(t *testing.T) {
	text := &pb.InputRequest{Id: "name", Kind: pb.InputKind_INPUT_KIND_TEXT, Title: "Which name?"}
	value := &pb.InputRequest{Id: "name", Kind: pb.InputKind_INPUT_KIND_SCHEMA, Title: "Which?", SchemaJson: "{}"}
	tests := map[string]struct {
		question     *pb.InputRequest
		wrong, right *pb.InputAnswer
		see          string
	}{
		"a text":  {text, &pb.InputAnswer{}, &pb.InputAnswer{Text: "Ada"}, "ANSWERED Ada"},
		"a value": {value, &pb.InputAnswer{ValueJson: "{"}, &pb.InputAnswer{ValueJson: "{}"}, "ANSWERED {}"},
	}
	asking := func(question *pb.InputRequest) runFunc {
		return func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			end, err := run.Ask(question)
			if err != nil {
				return nil, err
			}
			if _, err := run.Ask(question); run.Request.GetPermissions().GetInteractive() && err == nil {
				return nil, errors.New("an ID was used twice")
			}
			how := strings.TrimPrefix(end.How.String(), "INPUT_RESOLUTION_")
			return nil, run.Text("answer", how+" "+end.Answer.GetText()+end.Answer.GetValueJson()+end.Answer.GetMessage())
		}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, asking(test.question), pb.Feature_FEATURE_INPUT_REQUESTS)
			run, question := asked(t, client, interactive(nil))
			if _, err := respond(t, client, question.GetId(), test.wrong); dragoman.ReasonOf(err) != dragoman.InvalidAnswer {
				t.Errorf("a wrong answer: %v", err)
			}
			if _, err := respond(t, client, question.GetId(), test.right); err != nil {
				t.Fatal(err)
			}
			if got := textOf(events(t, run)); got != test.see {
				t.Errorf("the adapter sees %q", got)
			}
		})
	}
	client, _ := serve(t, asking(text), pb.Feature_FEATURE_INPUT_REQUESTS)
	all := execute(t, client, request(nil))
	if got := bodies(all); textOf(all) != "POLICY The run is unattended." || !slices.Contains(got, "question_declined") || slices.Contains(got, "asked") {
		t.Errorf("unattended, came %v: %q", got, textOf(all))
	}
}

// agentThatAsks asks in a line of its output, and reads the answer.
const agentThatAsks = `echo ask; read -r answer; echo "got $answer"; cat; echo done`

func converse(script string) runFunc {
	return func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		exit, err := run.Exec(adapter.Command{Path: "sh", Args: []string{"-c", script}, OpenStdin: true}, func(line adapter.Line) {
			run.Log(line)
			switch string(line.Data) {
			case "ask":
				decision, err := run.Permit(&pb.InputSubject{ToolName: "Bash"}, adapter.Question{})
				if err == nil {
					_ = run.Write(fmt.Appendf(nil, "%v\n", decision.Allowed))
				}
			case "got true", "got false":
				run.Done()
			}
		})
		if err != nil {
			return nil, err
		}
		return exit.Result(), nil
	}
}

func TestAProgramAsksAndReadsTheAnswer(t *testing.T) {
	client, _ := serve(t, converse(agentThatAsks), asks)
	run, question := asked(t, client, interactive(nil))
	if _, err := respond(t, client, question.GetId(), choose("allow")); err != nil {
		t.Fatal(err)
	}
	if all := events(t, run); logged(all) != "got true\ndone" || resultOf(all).GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("it said %q, and ended so: %v", logged(all), resultOf(all))
	}
}

func TestAProgramEndsWhileItAsks(t *testing.T) {
	dropped := func(run runFunc) {
		client, _ := serve(t, run, asks)
		stream, question := asked(t, client, interactive(nil))
		all := events(t, stream)
		if got := bodies(all); !slices.Contains(got, "DROPPED") || resultOf(all).GetFailure().GetCode() != "exit_code" {
			t.Errorf("then came %v, %v", got, resultOf(all))
		}
		if _, err := respond(t, client, question.GetId(), choose("allow")); dragoman.ReasonOf(err) != dragoman.RunFinished {
			t.Errorf("an answer after it: %v", err)
		}
	}
	dropped(converse("echo ask; sleep 0.2; exit 3"))
	// Its last line is read when it and its guard are gone.
	dropped(func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		exit, err := run.Exec(adapter.Command{Path: "sh", Args: []string{"-c", "echo $PPID; exit 3"}}, func(line adapter.Line) {
			for guard, _ := strconv.Atoi(string(line.Data)); syscall.Kill(guard, 0) == nil; {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(10 * time.Millisecond)
			_, _ = run.Permit(&pb.InputSubject{ToolName: "Bash"}, adapter.Question{})
		})
		if err != nil {
			return nil, err
		}
		return exit.Result(), nil
	})
}

func TestARunEndsWhileItAsks(t *testing.T) {
	isOver := make(chan struct{})
	client, _ := serve(t, func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
		go func() { _, _ = permitting(ctx, run) }()
		<-isOver
		return nil, nil
	}, asks)
	run, _ := asked(t, client, interactive(nil))
	close(isOver)
	all := events(t, run)
	if got := bodies(all); len(got) < 2 || got[1] != "DROPPED" || resultOf(all).GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("then came %v, %v", got, resultOf(all))
	}
}

func TestAPanicWithinAQuestionEndsTheRun(t *testing.T) {
	client, _ := serve(t, panicking(func(run *adapter.Run) { _, _ = run.Ask(nil) }), pb.Feature_FEATURE_INPUT_REQUESTS)
	result := resultOf(execute(t, client, interactive(nil)))
	if result.GetFailure().GetCode() != "adapter_failed" {
		t.Errorf("got %v", result)
	}
}

func TestNothingIsWrittenToAProgramThatReadsNothing(t *testing.T) {
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		if err := run.Write([]byte("x")); err == nil {
			return nil, errors.New("there is no program")
		}
		exit, err := run.Exec(adapter.Command{Path: "cat", Stdin: []byte("ready\n")}, func(line adapter.Line) {
			if run.Write([]byte("x")) == nil {
				_, _ = io.WriteString(os.Stderr, "its standard input is not open\n")
				os.Exit(1)
			}
			run.Log(line)
		})
		if err != nil {
			return nil, err
		}
		return exit.Result(), nil
	})
	if all := execute(t, client, request(nil)); logged(all) != "ready" || resultOf(all).GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("got %v", resultOf(all))
	}
}
