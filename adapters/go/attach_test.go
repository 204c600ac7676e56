package adapter_test

import (
	"context"
	"testing"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

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
