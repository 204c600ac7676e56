// Package eventlog keeps the events of one run in memory: one writer, many readers.
//
// A reader is a position, so it costs nothing while it keeps up and cannot make others wait. If it falls too far behind
// it is dropped, and may attach again; events that are no longer kept become a gap. A reader may hold the run: the
// writer waits while even the foremost of these is far behind.
package eventlog

import (
	"context"
	"errors"
	"sort"
	"sync"

	"google.golang.org/protobuf/proto"

	pb "dragoman/clients/go/dragomanv1"
)

// Bounds of a log, in bytes.
const (
	capacity  = 16 << 20 // of what is kept for readers that come later
	readerLag = 8 << 20  // how far one reader may fall behind
	backlog   = 4 << 20  // how much waits for the readers that hold the run, before the writer waits

	chunkEvents = 256
	chunkBytes  = 256 << 10
	ephemerals  = 64 // that wait for one reader
)

// Errors of readers.
var (
	ErrSlow  = errors.New("the reader fell too far behind")
	ErrAhead = errors.New("there is no such sequence yet")
)

type entry struct {
	event *pb.AgentEvent
	size  int64
	end   int64 // bytes ever appended, with this event
}

// Log is the events of one run.
type Log struct {
	mu       sync.Mutex
	runID    string
	entries  []entry
	last     uint64
	end      int64
	kept     int64
	closed   bool
	changed  chan struct{} // closed when something happens that a reader or the writer waits for
	readers  map[*Reader]bool
	taken    int64 // by the foremost reader that holds the run, or by the last one while there is none
	unpaused bool
}

// New returns the log of a run whose first event has a sequence.
func New(runID string, firstSequence uint64) *Log {
	return &Log{runID: runID, last: firstSequence - 1, changed: make(chan struct{}), readers: map[*Reader]bool{}}
}

// Append appends a durable event, whose sequence is the next one. The event must not be changed any more.
func (l *Log) Append(event *pb.AgentEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := int64(proto.Size(event))
	l.last, l.end, l.kept = event.GetSequence(), l.end+size, l.kept+size
	l.entries = append(l.entries, entry{event, size, l.end})
	for l.kept > capacity && len(l.entries) > 1 {
		l.kept -= l.entries[0].size
		l.entries[0] = entry{}
		l.entries = l.entries[1:]
	}
	for reader := range l.readers {
		if l.end-reader.read > readerLag {
			reader.isSlow = true
			delete(l.readers, reader)
		}
	}
	l.wake()
}

// Send hands an event without a sequence to all present readers.
func (l *Log) Send(event *pb.AgentEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	for reader := range l.readers {
		if len(reader.ephemeral) == ephemerals {
			reader.ephemeral = reader.ephemeral[1:]
		}
		reader.ephemeral = append(reader.ephemeral, ephemeral{after: l.last, event: event})
	}
	l.wake()
}

// Close says that nothing follows.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

// Last returns the last sequence.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Kept returns the bytes of events in memory.
func (l *Log) Kept() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}

// Unpause makes the writer wait no more: the agent is to stop, and must not wait in a write.
func (l *Log) Unpause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unpaused = true
	l.wake()
}

// IsBehind returns whether the readers that hold the run are far behind, as they are while there is none.
func (l *Log) IsBehind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.unpaused && l.end-l.taken > backlog
}

// WaitTaken waits while the readers that hold the run are far behind.
func (l *Log) WaitTaken() {
	for {
		l.mu.Lock()
		if l.unpaused || l.closed || l.end-l.taken <= backlog/2 {
			l.mu.Unlock()
			return
		}
		changed := l.changed
		l.mu.Unlock()
		<-changed
	}
}

func (l *Log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

type ephemeral struct {
	after uint64
	event *pb.AgentEvent
}

// Reader is a position in a log. Close it when done.
type Reader struct {
	log       *Log
	holds     bool
	cursor    uint64 // the last sequence handed out
	read      int64
	taken     int64
	isSlow    bool
	ephemeral []ephemeral
	pending   []*pb.AgentEvent
	replayTo  uint64
	wantsMark bool
}

// Options of a reader.
type Options struct {
	After      uint64 // the last sequence that the reader has
	Holds      bool
	ReplayDone bool // mark where the replay ends
	// Pending are events without a sequence that come before that mark.
	Pending []*pb.AgentEvent
}

// Read returns a new reader; ErrAhead if there is no such sequence yet.
func (l *Log) Read(options Options) (*Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if options.After > l.last {
		return nil, ErrAhead
	}
	reader := &Reader{
		log: l, holds: options.Holds, cursor: options.After, read: l.end,
		pending: options.Pending, replayTo: l.last, wantsMark: options.ReplayDone && !l.closed,
	}
	if l.closed && options.After == l.last && len(l.entries) > 0 {
		reader.cursor-- // the result comes again
	}
	if index := l.seek(reader.cursor); index < len(l.entries) {
		reader.taken = l.entries[index].end - l.entries[index].size
	} else {
		reader.taken = l.end
	}
	l.readers[reader] = true
	l.noteTaken()
	return reader, nil
}

// noteTaken takes note of how far the foremost reader is that holds the run.
func (l *Log) noteTaken() {
	foremost := int64(-1)
	for reader := range l.readers {
		if reader.holds {
			foremost = max(foremost, reader.taken)
		}
	}
	if foremost >= 0 && foremost != l.taken {
		l.taken = foremost
		l.wake()
	}
}

// seek returns the index of the first event that is kept after a sequence.
func (l *Log) seek(after uint64) int {
	return sort.Search(len(l.entries), func(i int) bool { return l.entries[i].event.GetSequence() > after })
}

// Close leaves.
func (r *Reader) Close() {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	delete(r.log.readers, r)
	r.log.noteTaken()
}

// Cursor returns the last sequence that was handed out.
func (r *Reader) Cursor() uint64 { return r.cursor }

// Next returns the next events, waiting for at least one; none at the end of the run. The error is ErrSlow or that of
// the context.
func (r *Reader) Next(ctx context.Context) ([]*pb.AgentEvent, error) {
	for {
		r.log.mu.Lock()
		if r.isSlow {
			r.log.mu.Unlock()
			return nil, ErrSlow
		}
		events := r.take()
		isClosed, changed := r.log.closed, r.log.changed
		r.log.mu.Unlock()
		if len(events) > 0 || isClosed {
			return events, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (r *Reader) take() []*pb.AgentEvent {
	var events []*pb.AgentEvent
	bytes := int64(0)
	index := r.log.seek(r.cursor)
	for ; index < len(r.log.entries) && len(events) < chunkEvents && bytes < chunkBytes; index++ {
		next := r.log.entries[index]
		events = r.between(events)
		if sequence := next.event.GetSequence(); sequence != r.cursor+1 {
			events = append(events, r.gap(sequence-1))
			events = r.between(events)
		}
		events = append(events, next.event)
		bytes += next.size
		r.cursor, r.taken = next.event.GetSequence(), next.end
		r.read = max(r.read, next.end)
	}
	events = r.between(events)
	if r.holds {
		r.log.noteTaken()
	}
	return events
}

// between takes what belongs between the last sequence and the next.
func (r *Reader) between(events []*pb.AgentEvent) []*pb.AgentEvent {
	if r.wantsMark && r.cursor >= r.replayTo {
		r.wantsMark = false
		events = append(events, r.pending...)
		r.pending = nil
		done := &pb.ReplayDone{LastSequence: r.log.last}
		events = append(events, &pb.AgentEvent{RunId: r.log.runID, Body: &pb.AgentEvent_ReplayDone{ReplayDone: done}})
	}
	for len(r.ephemeral) > 0 && r.ephemeral[0].after <= r.cursor {
		events = append(events, r.ephemeral[0].event)
		r.ephemeral = r.ephemeral[1:]
	}
	return events
}

func (r *Reader) gap(to uint64) *pb.AgentEvent {
	gap := &pb.Gap{FromSequence: r.cursor + 1, ToSequence: to, Reason: pb.GapReason_GAP_REASON_EVICTED}
	r.cursor = to
	return &pb.AgentEvent{RunId: r.log.runID, Body: &pb.AgentEvent_Gap{Gap: gap}}
}
