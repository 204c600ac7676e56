package adapter

import (
	"sync"
	"time"
)

const (
	longestOrphan    = 24 * time.Hour
	serverEndedGrace = 30 * time.Second // that a stream that the server ended still counts as open
)

// holders counts the streams that hold a run, and ends the run when none has for a while. Losing a stream is not intent.
type holders struct {
	after    time.Duration
	onOrphan func()

	mu       sync.Mutex
	count    int
	timer    *time.Timer
	isClosed bool
}

func newHolders(after time.Duration, onOrphan func()) *holders {
	return &holders{after: min(max(after, 0), longestOrphan), onOrphan: onOrphan}
}

func (h *holders) acquire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
}

// release takes note of the end of a stream. One that the server ended counts for a while: its reader did nothing wrong.
func (h *holders) release(byServer bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if byServer && !h.isClosed {
		time.AfterFunc(serverEndedGrace, func() { h.release(false) })
		return
	}
	h.count--
	if h.count == 0 && !h.isClosed {
		h.timer = time.AfterFunc(h.after, h.orphaned)
	}
}

func (h *holders) orphaned() {
	h.mu.Lock()
	isOrphan := h.count == 0 && !h.isClosed
	h.mu.Unlock()
	if isOrphan {
		h.onOrphan()
	}
}

func (h *holders) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isClosed = true
	if h.timer != nil {
		h.timer.Stop()
	}
}
