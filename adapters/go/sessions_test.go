package adapter_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

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
			if started.GetNativeSessionId() != test.resumed {
				t.Errorf("started says that it resumes %q", started.GetNativeSessionId())
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
			if named := event.GetStarted().GetNativeSessionId(); (named == "gone") != (len(started) == 1) {
				t.Errorf("attempt %d says that it resumes %q", len(started), named)
			}
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
