package dragoman_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const deadline = 20 * time.Second

// call is what the scripted server does with one call of Execute or Attach, and the request that it must be.
type call struct {
	wants  proto.Message // compared if set
	denies bool          // sends no run ID
	events []*pb.AgentEvent
	err    error
}

// scripted is a server that plays one call after the other.
type scripted struct {
	pb.UnimplementedAdapterServiceServer
	t     *testing.T
	calls chan call
	runs  []string
	asked proto.Message // by the last call
}

func (s *scripted) Execute(request *pb.ExecuteRequest, stream grpc.ServerStreamingServer[pb.AgentEvent]) error {
	s.runs = append(s.runs, request.GetRunId())
	return s.play(request, request.GetRunId(), stream)
}

func (s *scripted) Attach(request *pb.AttachRequest, stream grpc.ServerStreamingServer[pb.AgentEvent]) error {
	return s.play(request, "", stream)
}

func (s *scripted) play(request proto.Message, runID string, stream grpc.ServerStreamingServer[pb.AgentEvent]) error {
	select {
	case next := <-s.calls:
		s.asked = request
		if next.wants != nil && !proto.Equal(next.wants, request) {
			s.t.Errorf("request %v, want %v", request, next.wants)
		}
		if runID != "" && !next.denies {
			if err := stream.SendHeader(metadata.Pairs("dragoman-run-id", runID)); err != nil {
				return err
			}
		}
		for _, event := range next.events {
			if err := stream.Send(event); err != nil {
				return err
			}
		}
		return next.err
	default:
		s.t.Errorf("a call too many: %v", request)
		return status.Error(codes.FailedPrecondition, "a call too many")
	}
}

func (s *scripted) Cancel(context.Context, *pb.CancelRequest) (*pb.CancelResponse, error) {
	return nil, dragoman.Errorf(dragoman.RunNotFound, "no such run")
}

// serve plays calls on a Unix socket and returns a client of it.
func serve(t *testing.T, calls ...call) (*dragoman.Client, *scripted) {
	t.Helper()
	script := &scripted{t: t, calls: make(chan call, len(calls))}
	for _, next := range calls {
		script.calls <- next
	}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterAdapterServiceServer(server, script)
	go func() { _ = server.Serve(listener) }()
	client, err := dragoman.New("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		server.Stop()
		if left := len(script.calls); left > 0 {
			t.Errorf("%d calls were not made", left)
		}
	})
	return client, script
}

func text(sequence uint64) *pb.AgentEvent {
	return &pb.AgentEvent{Sequence: sequence, Body: &pb.AgentEvent_Text{Text: &pb.Text{}}}
}

func result(sequence uint64) *pb.AgentEvent {
	return &pb.AgentEvent{Sequence: sequence, Body: &pb.AgentEvent_Result{Result: &pb.Result{Outcome: pb.Outcome_OUTCOME_SUCCEEDED}}}
}

func replayDone() *pb.AgentEvent {
	return &pb.AgentEvent{Body: &pb.AgentEvent_ReplayDone{ReplayDone: &pb.ReplayDone{}}}
}

func batch(events ...*pb.AgentEvent) *pb.AgentEvent {
	return &pb.AgentEvent{
		Sequence: events[len(events)-1].GetSequence(), Body: &pb.AgentEvent_Batch{Batch: &pb.Batch{Events: events}},
	}
}

// collect returns the sequences that are received up to the end.
func collect(t *testing.T, run *dragoman.Run) []uint64 {
	t.Helper()
	var sequences []uint64
	for {
		event, err := run.Recv()
		if errors.Is(err, io.EOF) {
			return sequences
		}
		if err != nil {
			t.Fatal(err)
		}
		sequences = append(sequences, event.GetSequence())
	}
}

func TestExecute(t *testing.T) {
	broken := status.Error(codes.Unavailable, "connection reset")
	attach := func(after uint64) *pb.AttachRequest {
		return &pb.AttachRequest{RunId: "r", Adapter: "process", AfterSequence: after, Hold: true, Batching: &pb.Batching{}}
	}
	tests := map[string]struct {
		calls []call
		want  []uint64
	}{
		"a whole stream": {
			calls: []call{{events: []*pb.AgentEvent{text(1), result(2)}}},
			want:  []uint64{1, 2},
		},
		"batches are unrolled": {
			calls: []call{{events: []*pb.AgentEvent{batch(text(1), text(2)), result(3)}}},
			want:  []uint64{1, 2, 3},
		},
		"a broken stream is continued after its last event": {
			calls: []call{
				{events: []*pb.AgentEvent{text(1), text(2)}, err: broken},
				{wants: attach(2), events: []*pb.AgentEvent{replayDone(), text(3), result(4)}},
			},
			want: []uint64{1, 2, 3, 4},
		},
		"no event comes twice": {
			calls: []call{
				{events: []*pb.AgentEvent{text(1), text(2)}, err: broken},
				{events: []*pb.AgentEvent{batch(text(2), text(3)), result(4)}},
			},
			want: []uint64{1, 2, 3, 4},
		},
		"a slow reader attaches again": {
			calls: []call{
				{events: []*pb.AgentEvent{text(1)}, err: dragoman.Errorf(dragoman.SlowConsumer, "slow")},
				{wants: attach(1), events: []*pb.AgentEvent{result(2)}},
			},
			want: []uint64{1, 2},
		},
		"a stream that ends without a result is continued": {
			calls: []call{
				{events: []*pb.AgentEvent{text(1)}},
				{wants: attach(1), events: []*pb.AgentEvent{result(2)}},
			},
			want: []uint64{1, 2},
		},
		"a gap moves the cursor": {
			calls: []call{
				{events: []*pb.AgentEvent{text(1), {Body: &pb.AgentEvent_Gap{Gap: &pb.Gap{FromSequence: 2, ToSequence: 7}}}}, err: broken},
				{wants: attach(7), events: []*pb.AgentEvent{text(8), result(9)}},
			},
			want: []uint64{1, 0, 8, 9},
		},
		"an accepted run of an adapter without events is attached to": {
			calls: []call{
				{err: broken},
				{wants: attach(0), events: []*pb.AgentEvent{text(1), result(2)}},
			},
			want: []uint64{1, 2},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			client, _ := serve(t, test.calls...)
			run, err := client.Execute(ctx, &pb.ExecuteRequest{RunId: "r", Adapter: "process"})
			if err != nil {
				t.Fatal(err)
			}
			got := collect(t, run)
			if len(got) != len(test.want) {
				t.Fatalf("sequences %v, want %v", got, test.want)
			}
			for i := range got {
				if got[i] != test.want[i] {
					t.Fatalf("sequences %v, want %v", got, test.want)
				}
			}
			if run.Result().GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
				t.Errorf("result %v", run.Result())
			}
		})
	}
}

func TestTheSameRequestIsSentAgainBeforeTheRunIsAccepted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	client, script := serve(t,
		call{denies: true, err: status.Error(codes.Unavailable, "connection reset")},
		call{events: []*pb.AgentEvent{result(1)}},
	)
	run, err := client.Execute(ctx, &pb.ExecuteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(script.runs) != 2 || script.runs[0] != script.runs[1] || script.runs[0] != run.ID() {
		t.Errorf("run IDs %q, and the run is %q", script.runs, run.ID())
	}
}

func TestBatchesAreNotRequestedOfAServerThatRejectsThem(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	client, _ := serve(t,
		call{denies: true, err: dragoman.FieldError(dragoman.NotSupported, "batching", "not here")},
		call{events: []*pb.AgentEvent{result(1)}},
	)
	run, err := client.Execute(ctx, &pb.ExecuteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := collect(t, run); len(got) != 1 {
		t.Errorf("sequences %v", got)
	}
}

func TestRejections(t *testing.T) {
	tests := map[string]struct {
		err  error
		want dragoman.Reason
	}{
		"a wrong field":         {dragoman.FieldError(dragoman.InvalidRequest, "workspace.cwd", "must be absolute"), dragoman.InvalidRequest},
		"a server that drains":  {dragoman.Errorf(dragoman.Draining, "stopping"), dragoman.Draining},
		"a reason of later":     {&dragoman.Error{Code: codes.Aborted, Reason: "LATER", Message: "new"}, "LATER"},
		"an adapter that is no": {dragoman.Errorf(dragoman.AdapterNotFound, "none"), dragoman.AdapterNotFound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, call{denies: true, err: test.err})
			_, err := client.Execute(t.Context(), &pb.ExecuteRequest{})
			if got := dragoman.ReasonOf(err); got != test.want {
				t.Errorf("reason %q of %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestErrorsKeepTheirDetails(t *testing.T) {
	sent := dragoman.FieldError(dragoman.InvalidRequest, "env", "too large").WithMetadata("bytes", "9")
	sent.RetryAfter = time.Second
	client, _ := serve(t, call{denies: true, err: sent})
	_, err := client.Execute(t.Context(), &pb.ExecuteRequest{})
	var got *dragoman.Error
	if !errors.As(err, &got) {
		t.Fatalf("%T %v", err, err)
	}
	if got.Error() != sent.Error() || got.Metadata["bytes"] != "9" || got.RetryAfter != time.Second ||
		len(got.Violations) != 1 || got.Violations[0] != sent.Violations[0] {
		t.Errorf("got %+v, want %+v", got, sent)
	}
}

func TestUnaryCallsFailWithTypedErrors(t *testing.T) {
	client, _ := serve(t)
	_, err := client.Adapter.Cancel(t.Context(), &pb.CancelRequest{RunId: "r"})
	if dragoman.ReasonOf(err) != dragoman.RunNotFound {
		t.Errorf("%v", err)
	}
}

func TestAttach(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	client, _ := serve(t,
		call{events: []*pb.AgentEvent{replayDone(), text(3)}, err: status.Error(codes.Unavailable, "reset")},
		call{events: []*pb.AgentEvent{replayDone(), result(4)}},
	)
	run, err := client.Attach(ctx, &pb.AttachRequest{RunId: "r", AfterSequence: 2})
	if err != nil {
		t.Fatal(err)
	}
	if got := collect(t, run); len(got) != 3 || got[0] != 0 || got[1] != 3 || got[2] != 4 {
		t.Errorf("sequences %v", got)
	}
}

func TestAServerThatIsNotThereIsReportedAtOnce(t *testing.T) {
	client, err := dragoman.New("unix:" + filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Execute(t.Context(), &pb.ExecuteRequest{})
	if failed := dragoman.FromError(err); failed.Code != codes.Unavailable || !strings.Contains(failed.Message, "dragoman serve") {
		t.Errorf("%v", err)
	}
}

func TestReconnectingIsGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	script := &scripted{t: t, calls: make(chan call, 1)}
	script.calls <- call{events: []*pb.AgentEvent{text(1)}, err: status.Error(codes.Unavailable, "reset")}
	server := grpc.NewServer()
	pb.RegisterAdapterServiceServer(server, script)
	go func() { _ = server.Serve(listener) }()
	client, err := dragoman.New("unix:"+path, dragoman.WithReattach(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	run, err := client.Execute(t.Context(), &pb.ExecuteRequest{RunId: "r"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Recv(); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	_, err = run.Recv()
	if err == nil || !strings.Contains(err.Error(), "reconnecting failed") || dragoman.FromError(err).Metadata["run_id"] != "r" {
		t.Errorf("%v", err)
	}
}

func TestTheEndOfTheContextWhileReconnectingIsItsStatus(t *testing.T) {
	unavailable := dragoman.Errorf(dragoman.AdapterUnavailable, "gone")
	unavailable.RetryAfter = deadline
	client, _ := serve(t, call{events: []*pb.AgentEvent{text(1)}, err: unavailable})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	run, err := client.Execute(ctx, &pb.ExecuteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = run.Wait(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v, want the status DeadlineExceeded", err)
	}
}
