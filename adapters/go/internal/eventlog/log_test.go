package eventlog

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	pb "dragoman/clients/go/dragomanv1"
)

func event(sequence uint64, size int) *pb.AgentEvent {
	entry := &pb.Log{Text: strings.Repeat("x", size)}
	return &pb.AgentEvent{Sequence: sequence, Body: &pb.AgentEvent_Log{Log: entry}}
}

func result(sequence uint64) *pb.AgentEvent {
	return &pb.AgentEvent{Sequence: sequence, Body: &pb.AgentEvent_Result{Result: &pb.Result{}}}
}

// filled returns a log with events up to a sequence.
func filled(first, last uint64, size int) *Log {
	log := New("r", first)
	for sequence := first; sequence <= last; sequence++ {
		log.Append(event(sequence, size))
	}
	return log
}

// read returns what a reader gets until the end; a gap as the negative of its last sequence, replay_done as 0.
func read(t *testing.T, reader *Reader) []int64 {
	t.Helper()
	var got []int64
	for {
		events, err := reader.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return got
		}
		for _, event := range events {
			if gap := event.GetGap(); gap != nil {
				got = append(got, -int64(gap.GetToSequence()))
			} else {
				got = append(got, int64(event.GetSequence()))
			}
		}
	}
}

func TestReadersGetWhatFollowsTheirSequence(t *testing.T) {
	tests := map[string]struct {
		first, after uint64
		want         []int64
	}{
		"from the beginning":                 {1, 0, []int64{1, 2, 3, 4}},
		"from the middle":                    {1, 2, []int64{3, 4}},
		"at the end the result comes again":  {1, 4, []int64{4}},
		"of a run that continues another":    {3, 2, []int64{3, 4}},
		"what another writer had is missing": {3, 0, []int64{-2, 3, 4}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			log := filled(test.first, 3, 10)
			log.Append(result(4))
			log.Close()
			reader, err := log.Read(Options{After: test.after, ReplayDone: true})
			if err != nil {
				t.Fatal(err)
			}
			if got := read(t, reader); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestReplayDoneComesBetweenOldAndNew(t *testing.T) {
	log := filled(1, 2, 10)
	reader, err := log.Read(Options{ReplayDone: true})
	if err != nil {
		t.Fatal(err)
	}
	log.Append(event(3, 10))
	log.Close()
	if got := read(t, reader); !slices.Equal(got, []int64{1, 2, 0, 3}) {
		t.Errorf("got %v", got)
	}
}

func TestEventsWithoutASequenceComeInTheirPlace(t *testing.T) {
	log := filled(1, 1, 10)
	reader, err := log.Read(Options{})
	if err != nil {
		t.Fatal(err)
	}
	log.Append(event(2, 10))
	log.Send(&pb.AgentEvent{Body: &pb.AgentEvent_Heartbeat{}})
	log.Append(event(3, 10))
	log.Close()
	if got := read(t, reader); !slices.Equal(got, []int64{1, 2, 0, 3}) {
		t.Errorf("got %v", got)
	}
}

func TestASequenceThatIsAheadIsAnError(t *testing.T) {
	if _, err := filled(1, 2, 10).Read(Options{After: 3}); !errors.Is(err, ErrAhead) {
		t.Errorf("got %v", err)
	}
}

func TestEventsThatAreNotKeptAreAGap(t *testing.T) {
	log := filled(1, 40, 1<<20) // 40 MiB
	log.Close()
	reader, err := log.Read(Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := read(t, reader)
	if got[0] >= 0 || got[1] != -got[0]+1 || got[len(got)-1] != 40 {
		t.Errorf("got %v", got)
	}
	if kept := log.Kept(); kept > capacity || kept < capacity/2 {
		t.Errorf("%d bytes are kept", kept)
	}
}

func TestASlowReaderIsDropped(t *testing.T) {
	log := New("r", 1)
	slow, err := log.Read(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for sequence := uint64(1); sequence <= 10; sequence++ {
		log.Append(event(sequence, 1<<20))
	}
	if _, err := slow.Next(t.Context()); !errors.Is(err, ErrSlow) {
		t.Errorf("got %v", err)
	}
}

func TestTheWriterWaitsForTheForemostHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := New("r", 1)
		holder, err := log.Read(Options{Holds: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Read(Options{Holds: true}); err != nil { // one that never reads
			t.Fatal(err)
		}
		for sequence := uint64(1); sequence <= 5; sequence++ {
			log.Append(event(sequence, 1<<20))
		}
		if !log.IsBehind() {
			t.Fatal("it is not behind")
		}
		hasGoneOn := false
		go func() {
			log.WaitTaken()
			hasGoneOn = true
		}()
		synctest.Wait()
		if hasGoneOn {
			t.Error("it did not wait")
		}
		for range 5 {
			if _, err := holder.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if !hasGoneOn || log.IsBehind() {
			t.Error("it waits although the events were taken")
		}
	})
}

func TestTheWriterWaitsWhileThereIsNoHolder(t *testing.T) {
	log := filled(1, 5, 1<<20)
	if !log.IsBehind() {
		t.Error("it is not behind")
	}
	log.Unpause()
	if log.IsBehind() {
		t.Error("it waits although the run is to stop")
	}
	log.WaitTaken()
}

func TestTheEndOfTheContextEndsARead(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reader, err := New("r", 1).Read(Options{})
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("the reader left")
	cancel(cause)
	if _, err := reader.Next(ctx); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}
