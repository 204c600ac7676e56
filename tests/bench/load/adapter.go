package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Step is one rate of a paced run.
type Step struct {
	PerSecond float64 `json:"per_second"` // events of this run, not of all
	Seconds   float64 `json:"seconds"`
}

// Emission is what a run is to emit: its prompt, as JSON. Without steps and seconds it starts and ends.
type Emission struct {
	Gate    string  `json:"gate"`    // emit nothing behind the first event until this name is posted to /start
	Bytes   int     `json:"bytes"`   // the length of each text
	Seconds float64 `json:"seconds"` // emit flat out for this long
	Events  uint64  `json:"events"`  // and this many at most; 0: no bound
	Steps   []Step  `json:"steps"`   // emit paced
	Idle    bool    `json:"idle"`    // emit nothing more until the caller leaves
	Phase   float64 `json:"phase"`   // the part of an interval that the first event waits
}

const stampLen = 22 // nanoseconds of the clock in 20 digits, the step in 2

type adapter struct {
	description []byte
	mutex       sync.Mutex
	gates       map[string]chan struct{}
}

func serve(socket string, description []byte) error {
	a := &adapter{description: description, gates: map[string]chan struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+service+"Describe", a.describe)
	mux.HandleFunc("POST "+service+"Execute", a.execute)
	mux.HandleFunc("POST /grpc.health.v1.Health/Watch", watch)
	mux.HandleFunc("POST /start", a.start)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { begin(w); end(w, "12") })
	server := &http.Server{
		Handler: mux, Protocols: protocols(), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1 << 20},
	}
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return server.Serve(listener)
}

func begin(w http.ResponseWriter) {
	w.Header().Set("content-type", "application/grpc")
}

func end(w http.ResponseWriter, status string) {
	w.Header().Set(http.TrailerPrefix+"grpc-status", status)
}

func (a *adapter) describe(w http.ResponseWriter, _ *http.Request) {
	begin(w)
	_, _ = w.Write(appendMessage(nil, a.description))
	end(w, "0")
}

// watch says that all is well for as long as the caller listens.
func watch(w http.ResponseWriter, r *http.Request) {
	begin(w)
	_, _ = w.Write(appendMessage(nil, appendNumber(nil, 1, 1)))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func (a *adapter) gate(name string) chan struct{} {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.gates[name] == nil {
		a.gates[name] = make(chan struct{})
	}
	return a.gates[name]
}

func (a *adapter) start(_ http.ResponseWriter, r *http.Request) {
	name, _ := io.ReadAll(r.Body)
	close(a.gate(string(name)))
}

func (a *adapter) execute(w http.ResponseWriter, r *http.Request) {
	begin(w)
	request, err := io.ReadAll(r.Body)
	var emission Emission
	run := &emitter{w: w, control: http.NewResponseController(w)}
	if err == nil && len(request) >= prefixLen {
		err = fields(request[prefixLen:], func(field int, _ uint64, value []byte) {
			switch field {
			case requestRunID:
				run.id = append([]byte(nil), value...)
			case requestPrompt:
				_ = json.Unmarshal(value, &emission)
			case requestBatching:
				run.batches = true
			}
		})
	}
	if err != nil {
		end(w, "3")
		return
	}
	w.Header().Set("dragoman-run-id", string(run.id))
	run.text = make([]byte, max(emission.Bytes, stampLen))
	for i := range run.text {
		run.text[i] = 'x'
	}
	run.other(eventStarted, appendBytes(nil, startedAdapter, []byte("load")))
	run.flush()
	if emission.Gate != "" {
		select {
		case <-a.gate(emission.Gate):
		case <-r.Context().Done():
			return
		}
	}
	if emission.Idle {
		<-r.Context().Done()
		return
	}
	run.flatOut(emission.Seconds, emission.Events)
	run.paced(emission.Steps, emission.Phase)
	run.other(eventResult, appendNumber(nil, resultOutcome, outcomeSucceeded))
	run.flush()
	end(w, "0")
}

// emitter writes the events of one run.
type emitter struct {
	w                    http.ResponseWriter
	control              *http.ResponseController
	id                   []byte
	batches              bool
	sequence, offset     uint64
	text                 []byte
	message, body, inner []byte
	pending, batch       []byte // gRPC messages to be written, and the events of the next batch
	failed               error
}

const batchSize = 32 // events

func (e *emitter) event(field int, body []byte) []byte {
	e.sequence++
	e.message = appendSequence(e.message[:0], e.sequence)
	e.message = appendBytes(e.message, field, body)
	e.message = appendBytes(e.message, eventRunID, e.id)
	e.message = appendNumber(e.message, eventAttempt, 1)
	return e.message
}

func (e *emitter) other(field int, body []byte) {
	e.endBatch()
	e.pending = appendMessage(e.pending, e.event(field, body))
}

func (e *emitter) delta(stamp time.Time, step int) {
	copy(e.text, fmt.Appendf(e.inner[:0], "%020d%02d", stamp.UnixNano(), step))
	e.body = appendBytes(e.body[:0], textItem, []byte("t"))
	e.body = appendNumber(e.body, textOffset, e.offset)
	e.body = appendBytes(e.body, textDelta, e.text)
	e.offset += uint64(len(e.text))
	event := e.event(eventText, e.body)
	if e.batches {
		e.batch = appendBytes(e.batch, batchEvents, event)
	} else {
		e.pending = appendMessage(e.pending, event)
	}
}

func (e *emitter) endBatch() {
	if len(e.batch) == 0 {
		return
	}
	message := appendSequence(nil, e.sequence)
	e.pending = appendMessage(e.pending, appendBytes(message, eventBatch, e.batch))
	e.batch = e.batch[:0]
}

func (e *emitter) flush() {
	e.endBatch()
	if _, err := e.w.Write(e.pending); err != nil {
		e.failed = err
	}
	if err := e.control.Flush(); err != nil {
		e.failed = err
	}
	e.pending = e.pending[:0]
}

func (e *emitter) flatOut(seconds float64, most uint64) {
	until := time.Now().Add(time.Duration(seconds * 1e9))
	last := e.sequence + most
	for e.failed == nil && (most == 0 || e.sequence < last) {
		now := time.Now()
		if !now.Before(until) {
			return
		}
		// As gRPC's libraries do: each message, of one event or of a batch, is written and framed on its own.
		e.delta(now, 0)
		for count := 1; e.batches && count < batchSize && (most == 0 || e.sequence < last); count++ {
			e.delta(now, 0)
		}
		e.flush()
	}
}

// paced writes each event when it is due. What is late is stamped with the time at which it was due.
func (e *emitter) paced(steps []Step, phase float64) {
	began := time.Now()
	for number, step := range steps {
		interval := time.Duration(1e9 / step.PerSecond)
		ends := began.Add(time.Duration(step.Seconds * 1e9))
		for due := began.Add(time.Duration(phase * float64(interval))); due.Before(ends); due = due.Add(interval) {
			time.Sleep(time.Until(due))
			stamp := time.Now()
			if stamp.Sub(due) > time.Millisecond {
				stamp = due
			}
			e.delta(stamp, number)
			e.flush()
			if e.failed != nil {
				return
			}
		}
		began = ends
	}
}
