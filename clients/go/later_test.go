package dragoman_test

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "dragoman/clients/go/dragomanv1"
)

const (
	laterField = 9001
	laterBody  = 61
	laterValue = 9002
)

// grown returns a message with a field that no revision of today knows.
func grown[M proto.Message](message M, number protowire.Number) M {
	field := protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), "later")
	message.ProtoReflect().SetUnknown(field)
	return message
}

// TestWhatALaterRevisionAddsPassesThrough has a server and a caller of a later revision, and this client between them.
func TestWhatALaterRevisionAddsPassesThrough(t *testing.T) {
	words := func(sequence uint64) *pb.AgentEvent {
		event := grown(text(sequence), laterField)
		grown(event.GetText(), laterField)
		return event
	}
	another := grown(&pb.AgentEvent{Sequence: 2}, laterBody)
	phase := &pb.AgentEvent{Sequence: 3, Body: &pb.AgentEvent_State{State: &pb.State{Phase: laterValue}}}
	end := grown(result(6), laterField)
	client, script := serve(t, call{events: []*pb.AgentEvent{words(1), another, phase, batch(words(4), words(5)), end}})

	run, err := client.Execute(t.Context(), grown(&pb.ExecuteRequest{Adapter: "echo"}, laterField))
	if err != nil {
		t.Fatal(err)
	}
	want := []*pb.AgentEvent{words(1), another, phase, words(4), words(5), end}
	for _, due := range want {
		event, err := run.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(event, due) { // which compares unknown fields, too
			t.Errorf("%v, want %v", event, due)
		}
	}
	if _, err := run.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the result: %v", err)
	}
	if unknown := script.asked.ProtoReflect().GetUnknown(); len(unknown) == 0 {
		t.Errorf("the field of the request is lost: %v", script.asked)
	}
}
