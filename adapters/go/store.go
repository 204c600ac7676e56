package adapter

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	retention     = 10 * time.Minute
	mostRetained  = 256
	retainedBytes = 256 << 20 // of the events of all finished runs
)

// store has the runs by their IDs: live ones, and finished ones for a while.
type store struct {
	key []byte // of the digests, so that memory does not allow guessing secrets

	mu       sync.Mutex
	runs     map[string]*stored
	finished []*stored // in the order of their ends
}

type stored struct {
	run        *Run
	digest     []byte
	isFinished bool
	forget     *time.Timer
}

func newStore() *store {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return &store{key: key, runs: map[string]*stored{}}
}

func (s *store) find(id string) (*Run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.runs[id]; known != nil {
		return known.run, nil
	}
	return nil, dragoman.Errorf(dragoman.RunNotFound, "run %q not found; it may have expired, or another adapter has it", id)
}

// join returns the run that a request would start again, or adds the one that begin makes. Of several requests with one
// ID, one begins the run.
func (s *store) join(request *pb.ExecuteRequest, begin func() (*Run, error)) (*Run, error) {
	digest := s.digest(request)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.runs[request.GetRunId()]; known != nil {
		// A router that begins the next attempt holds what came before.
		last, hasEnded := known.run.ending()
		if isNext := hasEnded && request.GetRelay().GetFirstSequence() > last; !isNext {
			if !hmac.Equal(known.digest, digest) {
				return nil, dragoman.Errorf(dragoman.RunIDReused, "run %q exists with another request; choose another ID",
					request.GetRunId()).WithMetadata("run_id", request.GetRunId())
			}
			return known.run, nil
		}
		s.remove(known)
	}
	run, err := begin()
	if err != nil {
		return nil, err
	}
	s.runs[request.GetRunId()] = &stored{run: run, digest: digest}
	return run, nil
}

// resuming returns the ID of the live run that resumes a session: two would mix up what is said in it. Empty if there is
// none, or no session. The caller holds s.mu, as begin of join does.
func (s *store) resuming(session string) string {
	for id, known := range s.runs {
		if session != "" && !known.isFinished && known.run.settings.Session.InUse() == session {
			return id
		}
	}
	return ""
}

// live returns the runs that have not ended.
func (s *store) live() []*Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	var runs []*Run
	for _, known := range s.runs {
		if !known.isFinished {
			runs = append(runs, known.run)
		}
	}
	return runs
}

// retire keeps a finished run for its time, and no more of them than there is room for.
func (s *store) retire(run *Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.runs[run.Request.GetRunId()]
	if known == nil || known.run != run {
		return // the next attempt has begun
	}
	known.isFinished = true
	known.forget = time.AfterFunc(retention, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.runs[run.Request.GetRunId()] == known {
			s.remove(known)
		}
	})
	s.finished = append(s.finished, known)
	kept := int64(0)
	for _, other := range s.finished {
		kept += other.run.log.Kept()
	}
	for len(s.finished) > 1 && (len(s.finished) > mostRetained || kept > retainedBytes) {
		kept -= s.finished[0].run.log.Kept()
		s.remove(s.finished[0])
	}
}

func (s *store) remove(known *stored) {
	if known.forget != nil {
		known.forget.Stop()
	}
	delete(s.runs, known.run.Request.GetRunId())
	for i, other := range s.finished {
		if other == known {
			s.finished = append(s.finished[:i], s.finished[i+1:]...)
			return
		}
	}
}

// digest returns a digest of a request that is equal for requests of one run.
func (s *store) digest(request *pb.ExecuteRequest) []byte {
	compared := proto.CloneOf(request)
	compared.Relay, compared.AuthToken, compared.Batching, compared.OrphanAfter = nil, "", nil, nil
	compared.Admission, compared.Labels = nil, nil
	canonical, err := proto.MarshalOptions{Deterministic: true}.Marshal(compared)
	if err != nil {
		return nil // a text that is no UTF-8, which no request that was received has
	}
	mac := hmac.New(sha256.New, s.key)
	mac.Write(canonical)
	return mac.Sum(nil)
}
