package dragoman

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "dragoman/clients/go/dragomanv1"
)

const (
	runIDKey     = "dragoman-run-id"
	firstDelay   = 50 * time.Millisecond
	longestDelay = time.Second
)

// Run is the events of one run. It survives broken connections: after one it attaches after the last sequence; before
// the first event it sends the same request again, which is idempotent. Events that are no longer stored are reported
// by a gap.
//
// A Run is for one goroutine.
type Run struct {
	client  *Client
	ctx     context.Context // of the stream, as in a gRPC stream
	execute *pb.ExecuteRequest
	attach  *pb.AttachRequest

	stream       grpc.ServerStreamingClient[pb.AgentEvent]
	cancel       context.CancelFunc
	ready        []*pb.AgentEvent
	accepted     bool
	lastSequence uint64
	replayed     bool            // whether replay_done was passed on; what reconnecting replays is not reported
	requested    map[string]bool // input requests that were passed on; every Attach repeats those that are open
	result       *pb.Result

	broken   *Error    // why the stream broke, until there is progress
	deadline time.Time // of reconnecting; zero while the stream is whole
	tries    int
}

// ID returns the ID of the run.
func (r *Run) ID() string { return r.attach.GetRunId() }

// LastSequence returns the last sequence that was received; a later Attach can continue after it.
func (r *Run) LastSequence() uint64 { return r.lastSequence }

// Result returns how the run ended; nil until that was received.
func (r *Run) Result() *pb.Result { return r.result }

// Recv returns the next event; io.EOF after the result. Batches are unrolled, and no event with a sequence comes twice.
func (r *Run) Recv() (*pb.AgentEvent, error) {
	for len(r.ready) == 0 {
		if r.result != nil {
			r.drop()
			return nil, io.EOF
		}
		if err := r.step(); err != nil {
			return nil, err
		}
	}
	event := r.ready[0]
	r.ready = r.ready[1:]
	return event, nil
}

// Wait receives all events and returns how the run ended.
func (r *Run) Wait() (*pb.Result, error) {
	for {
		if _, err := r.Recv(); err == io.EOF {
			return r.result, nil
		} else if err != nil {
			return nil, err
		}
	}
}

// Close detaches from the run. Without another client it is orphaned, and cancelled after orphan_after.
func (r *Run) Close() { r.drop() }

// step opens a stream if none is open, else receives a message; if the stream broke it waits before the next one.
func (r *Run) step() error {
	if r.stream == nil {
		if err := r.open(); err != nil {
			r.drop()
			return r.failed(err)
		}
		return nil
	}
	message, err := r.stream.Recv()
	if err != nil {
		r.drop()
		if err == io.EOF {
			err = &Error{Code: codes.Internal, Message: fmt.Sprintf("the server ended the stream of %s without a result", r.ID())}
		}
		return r.failed(err)
	}
	r.accept()
	r.take(message)
	return nil
}

func (r *Run) open() error {
	r.client.waitConnected(r.ctx)
	ctx, cancel := context.WithCancel(r.ctx)
	r.cancel = cancel
	continues, err := r.mustAttach(ctx)
	if err != nil {
		return err
	}
	if continues {
		attach := proto.CloneOf(r.attach)
		attach.AfterSequence = r.lastSequence
		r.stream, err = r.client.Adapter.Attach(ctx, attach)
	} else {
		r.stream, err = r.client.Adapter.Execute(ctx, r.execute)
	}
	if err != nil {
		return err
	}
	header, err := r.stream.Header()
	if err != nil {
		return err
	}
	if ids := header.Get(runIDKey); len(ids) > 0 {
		r.attach.RunId = ids[0]
		r.accept()
	}
	return nil
}

// mustAttach returns whether the run is continued by Attach, and not by sending its request again.
func (r *Run) mustAttach(ctx context.Context) (bool, error) {
	if r.execute == nil || r.lastSequence > 0 {
		return true, nil
	}
	if !r.accepted {
		return false, nil
	}
	// A router that stopped before it dispatched a run leaves one that starts anew by the same request. An adapter
	// forgets its runs when it stops, and would start the run twice; it does not know GetRun.
	_, err := r.client.Router.GetRun(ctx, &pb.GetRunRequest{RunId: r.ID()})
	if err == nil {
		return false, nil
	}
	if FromError(err).Code == codes.Unimplemented {
		return true, nil
	}
	return false, err
}

func (r *Run) accept() {
	r.accepted = true
	r.client.connected.Store(true)
}

func (r *Run) drop() {
	if r.cancel != nil {
		r.cancel()
	}
	r.stream, r.cancel = nil, nil
}

// take keeps the events of a message that are new.
func (r *Run) take(message *pb.AgentEvent) {
	events := []*pb.AgentEvent{message}
	if batch := message.GetBatch(); batch != nil {
		events = batch.GetEvents()
	}
	for _, event := range events {
		if r.result == nil && r.isNew(event) {
			r.ready = append(r.ready, event)
		}
	}
}

// isNew takes note of an event, and returns whether the caller has not had it.
func (r *Run) isNew(event *pb.AgentEvent) bool {
	if result := event.GetResult(); result != nil {
		r.result = result // it comes again for a reader that attaches at the end
		r.lastSequence = max(r.lastSequence, event.GetSequence())
		return true
	}
	if sequence := event.GetSequence(); sequence > 0 {
		if sequence <= r.lastSequence {
			return false
		}
		r.lastSequence = sequence
		r.noteRequests(event)
		r.progressed()
		return true
	}
	switch body := event.GetBody().(type) {
	case *pb.AgentEvent_Gap:
		r.lastSequence = max(r.lastSequence, body.Gap.GetToSequence())
	case *pb.AgentEvent_InputRequest:
		isNew := !r.requested[body.InputRequest.GetId()]
		r.noteRequests(event)
		return isNew
	case *pb.AgentEvent_ReplayDone:
		isNew := r.execute == nil && !r.replayed
		r.replayed = true
		return isNew
	default:
		r.progressed()
	}
	return true
}

func (r *Run) noteRequests(event *pb.AgentEvent) {
	if request := event.GetInputRequest(); request != nil {
		r.requested[request.GetId()] = true
	} else if resolved := event.GetInputResolved(); resolved != nil {
		delete(r.requested, resolved.GetId())
	}
}

func (r *Run) progressed() { r.broken, r.deadline, r.tries = nil, time.Time{}, 0 }

// failed decides what follows a failed call: it waits before the next one and returns nil, or returns the error.
func (r *Run) failed(cause error) error {
	err := r.client.convert(cause)
	if r.ctx.Err() != nil {
		return err
	}
	if r.continuesWithoutBatches(err) {
		return nil
	}
	before := r.broken
	if before == nil {
		r.broken = err
	}
	if before != nil && r.accepted && r.lastSequence == 0 && err.is(RunNotFound) && isVerdict(before) {
		return before // the run was rejected after it was accepted: it is no longer known
	}
	if !r.mayReconnect(err, before != nil) {
		return err
	}
	delay, isInTime := r.nextDelay(err)
	if !isInTime {
		err.Message = fmt.Sprintf("the stream of %s broke, and reconnecting failed for %v: %s", r.ID(), r.client.reattach, err.Message)
		return err.WithMetadata("run_id", r.ID())
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.ctx.Done():
		return FromError(status.FromContextError(r.ctx.Err()).Err())
	}
}

func isVerdict(err *Error) bool { return err.Reason != "" && !err.is(Draining, RunLogUnavailable) }

// mayReconnect returns whether an error is about the stream, and not about the run.
func (r *Run) mayReconnect(err *Error, inDoubt bool) bool {
	switch {
	case err.Reason == "":
		// RST_STREAM, GOAWAY, a broken connection, a proxy's time limit.
		statuses := []codes.Code{codes.Unavailable, codes.Internal, codes.Unknown, codes.Canceled, codes.DeadlineExceeded}
		return r.client.connected.Load() && slices.Contains(statuses, err.Code)
	case r.accepted:
		return err.is(SlowConsumer, Draining, Internal, AdapterUnavailable, RunLogUnavailable)
	case err.is(AdapterUnavailable):
		return err.Metadata["run_id"] != "" // the run exists, and its router is unreachable
	}
	return inDoubt && err.is(Draining, RunLogUnavailable)
}

func (r *Run) nextDelay(err *Error) (delay time.Duration, isInTime bool) {
	now := time.Now()
	if r.deadline.IsZero() {
		r.deadline = now.Add(r.client.reattach)
	}
	left := r.deadline.Sub(now)
	if left <= 0 {
		return 0, false
	}
	longest := min(firstDelay<<min(r.tries, 10), longestDelay)
	r.tries++
	delay = longest/2 + rand.N(longest/2) // spreads the load of clients that lost one server together
	return min(max(delay, err.RetryAfter), left), true
}

// continuesWithoutBatches returns whether only batching was rejected, which is then not requested again.
func (r *Run) continuesWithoutBatches(err *Error) bool {
	isBatching := func(violation Violation) bool { return violation.Field == "batching" }
	if r.attach.Batching == nil || !err.is(NotSupported) || !slices.ContainsFunc(err.Violations, isBatching) {
		return false
	}
	r.client.unbatching.Store(true)
	r.setBatching(false)
	return true
}

func (r *Run) setBatching(requested bool) {
	var batching *pb.Batching
	if requested {
		batching = &pb.Batching{}
	}
	r.attach.Batching = batching
	if r.execute != nil {
		r.execute.Batching = batching
	}
}

func newRunID() string {
	var random [12]byte
	_, _ = crand.Read(random[:]) // never fails
	return "run-" + hex.EncodeToString(random[:])
}
