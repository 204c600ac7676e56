package adapter

import (
	"sync"
	"time"
)

// Stop refuses new runs, stops those that live within a grace, ends the streams with their results, and closes.
func (s *Server) Stop(grace time.Duration) {
	s.stop.Do(func() { s.drain(grace) })
}

// Drain refuses new runs, and returns once none lives any more, or when this time is over. Stop comes after it.
func (s *Server) Drain(limit time.Duration) {
	s.refuse()
	waitFor(&s.driving, limit)
}

func (s *Server) refuse() {
	s.mu.Lock()
	s.isDraining = true
	s.mu.Unlock()
	s.health.Shutdown()
}

func (s *Server) drain(grace time.Duration) {
	s.refuse()
	for _, run := range s.store.live() {
		run.cancel(grace, "the adapter is shutting down")
	}
	waitFor(&s.driving, grace+drainMargin)
	waitFor(&s.streams, flush)
	close(s.ending)
	waitFor(&s.streams, flush)
	// Stop alone would close connections before the last messages are written; a watcher of health does not leave.
	timer := time.AfterFunc(flush, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
}

// hurry ends the runs at once.
func (s *Server) hurry() {
	for _, run := range s.store.live() {
		run.cancel(0, "the adapter is shutting down")
	}
}

func waitFor(group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
