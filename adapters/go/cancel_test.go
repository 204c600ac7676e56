package adapter_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

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

func TestARunThatOutlivesItsProgramIsNotWaitedFor(t *testing.T) {
	client, _ := serve(t, func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
		_, _ = shell("echo ready; exec sleep 60")(ctx, run)
		select {}
	})
	run, err := client.Execute(background(t), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	for isReady := false; !isReady; {
		event, err := run.Recv()
		if err != nil {
			t.Fatal(err)
		}
		isReady = event.GetLog() != nil
	}
	began := time.Now()
	answer, err := client.Adapter.Cancel(background(t), &pb.CancelRequest{RunId: run.ID(), Grace: durationpb.New(0)})
	if err != nil || answer.GetOutcome() != pb.Outcome_OUTCOME_CANCELLED {
		t.Errorf("%v, %v", answer, err)
	}
	if took := time.Since(began); took > 6*time.Second { // a second, on a machine that is busy
		t.Errorf("Cancel took %v", took)
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
