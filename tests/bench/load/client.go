package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Job is what a client does: it keeps Streams runs open until it has begun Runs, or for Seconds.
type Job struct {
	Socket      string   `json:"socket"`
	Adapter     string   `json:"adapter"`  // its socket; its gate is opened once all streams are
	Request     string   `json:"request"`  // a serialized ExecuteRequest without run ID and prompt, in hex
	Name        string   `json:"name"`     // of the job; begins the run IDs, and is the name of the gate
	Emission    Emission `json:"emission"` // of each run; a gate, if any, gets the job's name
	Connections int      `json:"connections"`
	Streams     int      `json:"streams"`
	Seconds     float64  `json:"seconds"`    // begin no more runs after this; 0: one run per stream
	ReadBytes   float64  `json:"read_bytes"` // per second and stream; 0: as fast as they come
	LateS       float64  `json:"late_s"`     // a step fails when a hundredth of its events is later
	TimeoutS    float64  `json:"timeout_s"`
}

// Report is what came of it. Times are in microseconds; steps are those of the emission.
type Report struct {
	Runs       int64   `json:"runs"`
	Failed     int64   `json:"failed"`
	Failure    string  `json:"failure"`
	Events     int64   `json:"events"`
	Messages   int64   `json:"messages"`
	WallS      float64 `json:"wall_s"` // since the gate was opened, or since the start
	FirstP50   float64 `json:"first_p50_us"`
	FirstP99   float64 `json:"first_p99_us"`
	LatencyP50 float64 `json:"latency_p50_us"`
	LatencyP99 float64 `json:"latency_p99_us"`
	StepsHeld  int     `json:"steps_held"`
}

type client struct {
	job        Job
	request    []byte
	transports []*http.Transport
	cancel     context.CancelFunc
	opened     sync.WaitGroup // one for each stream: the first event of its first run

	runs, failed, events, messages atomic.Int64
	late                           [100]atomic.Int64
	stepFailed                     atomic.Int64 // the first step that failed

	mutex             sync.Mutex
	failure           string
	firsts, latencies []float64
}

const mostLatencies = 1 << 20

func read(input io.Reader, output io.Writer) error {
	lines := bufio.NewReader(input)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	c := &client{}
	if err := json.Unmarshal(line, &c.job); err != nil {
		return err
	}
	if c.request, err = hex.DecodeString(c.job.Request); err != nil {
		return err
	}
	window := 1 << 20
	if c.job.ReadBytes > 0 {
		window = 1 << 16
	}
	for range c.job.Connections {
		c.transports = append(c.transports, &http.Transport{
			Protocols: protocols(), HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: window},
			DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", c.job.Socket) },
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.job.TimeoutS*1e9))
	defer cancel()
	c.cancel = cancel
	c.stepFailed.Store(math.MaxInt64)
	began := time.Now()
	if c.job.Emission.Gate != "" {
		c.job.Emission.Gate = c.job.Name
	}
	c.opened.Add(c.job.Streams)
	var workers sync.WaitGroup
	for number := range c.job.Streams {
		workers.Go(func() { c.work(ctx, number, began) })
	}
	c.opened.Wait()
	// The caller takes the first reading now, and then writes a line; the end of the input ends an idle job.
	fmt.Fprintln(output, "open")
	if _, err := lines.ReadBytes('\n'); err != nil {
		return err
	}
	if c.job.Emission.Gate != "" {
		began = time.Now()
		if err := c.start(); err != nil {
			return err
		}
	}
	if c.job.Emission.Idle || c.job.ReadBytes > 0 {
		_, _ = io.Copy(io.Discard, lines)
		cancel()
	}
	workers.Wait()
	return json.NewEncoder(output).Encode(c.report(time.Since(began)))
}

func (c *client) start() error {
	transport := &http.Transport{Protocols: protocols(),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", c.job.Adapter) }}
	response, err := (&http.Client{Transport: transport}).Post("http://load/start", "", bytes.NewBufferString(c.job.Name))
	if err == nil {
		err = response.Body.Close()
	}
	return err
}

func (c *client) work(ctx context.Context, number int, began time.Time) {
	once := sync.OnceFunc(c.opened.Done)
	defer once()
	for count := 0; ; count++ {
		if err := c.one(ctx, number, count, once); err != nil {
			if ctx.Err() == nil || c.job.Seconds > 0 {
				c.failed.Add(1)
				c.mutex.Lock()
				c.failure = err.Error()
				c.mutex.Unlock()
			}
			return
		}
		if time.Since(began).Seconds() >= c.job.Seconds {
			return
		}
	}
}

// one opens a run and reads it to its end.
func (c *client) one(ctx context.Context, number, count int, opened func()) error {
	emission := c.job.Emission
	emission.Phase = rand.Float64()
	prompt, err := json.Marshal(emission)
	if err != nil {
		return err
	}
	request := appendBytes(slices.Clip(c.request), requestRunID, fmt.Appendf(nil, "%s-%d-%d", c.job.Name, number, count))
	request = appendBytes(request, requestPrompt, prompt)
	post, err := http.NewRequestWithContext(
		ctx, "POST", "http://localhost"+service+"Execute", bytes.NewReader(appendMessage(nil, request)))
	if err != nil {
		return err
	}
	post.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	began := time.Now()
	response, err := c.transports[number%len(c.transports)].RoundTrip(post)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return c.follow(response, began, opened)
}

func (c *client) follow(response *http.Response, began time.Time, opened func()) error {
	var latencies []float64
	var outcome uint64
	var now time.Time
	isFirst := true
	var visit func(field int, number uint64, value []byte)
	visit = func(field int, _ uint64, value []byte) {
		switch field {
		case eventText:
			latencies = c.text(value, now, latencies)
		case eventBatch:
			_ = fields(value, func(_ int, _ uint64, event []byte) { _ = fields(event, visit) })
		case eventResult:
			_ = fields(value, func(field int, number uint64, _ []byte) {
				if field == resultOutcome {
					outcome = number
				}
			})
		}
	}
	reader := bufio.NewReaderSize(response.Body, 64*1024)
	var message []byte
	var prefix [prefixLen]byte
	var taken float64
	for {
		if _, err := io.ReadFull(reader, prefix[:]); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(prefix[1:]))
		message = slices.Grow(message[:0], size)[:size]
		if _, err := io.ReadFull(reader, message); err != nil {
			return err
		}
		now = time.Now()
		c.messages.Add(1)
		if isFirst {
			c.first(now.Sub(began))
			opened()
			isFirst = false
		}
		if err := fields(message, visit); err != nil {
			return err
		}
		if taken += float64(size); c.job.ReadBytes > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(taken / c.job.ReadBytes * 1e9))))
		}
	}
	if status := response.Trailer.Get("grpc-status") + response.Header.Get("grpc-status"); status != "0" {
		return fmt.Errorf("status %s: %s", status, response.Trailer.Get("grpc-message")+response.Header.Get("grpc-message"))
	}
	if outcome != outcomeSucceeded {
		return fmt.Errorf("outcome %d", outcome)
	}
	c.runs.Add(1)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.latencies = append(c.latencies, latencies...)
	return nil
}

func (c *client) first(taken time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.firsts = append(c.firsts, float64(taken)/1e3)
}

// text counts an event, and how late it is.
func (c *client) text(text []byte, now time.Time, latencies []float64) []float64 {
	c.events.Add(1)
	if len(c.job.Emission.Steps) == 0 {
		return latencies
	}
	_ = fields(text, func(field int, _ uint64, delta []byte) {
		if field != textDelta || len(delta) < stampLen {
			return
		}
		stamp, _ := strconv.ParseInt(string(delta[:20]), 10, 64)
		number, _ := strconv.Atoi(string(delta[20:stampLen]))
		late := float64(now.UnixNano()-stamp) / 1e9
		if len(latencies) < mostLatencies/c.job.Streams {
			latencies = append(latencies, late*1e6)
		}
		if c.job.LateS == 0 || late <= c.job.LateS {
			return
		}
		step := c.job.Emission.Steps[number]
		all := step.PerSecond * step.Seconds * float64(c.job.Streams)
		if float64(c.late[number].Add(1)) > all/100 {
			c.stepFailed.Store(min(c.stepFailed.Load(), int64(number)))
			c.cancel()
		}
	})
	return latencies
}

func (c *client) report(wall time.Duration) Report {
	return Report{
		Runs: c.runs.Load(), Failed: c.failed.Load(), Failure: c.failure,
		Events: c.events.Load(), Messages: c.messages.Load(), WallS: wall.Seconds(),
		FirstP50: quantile(c.firsts, 0.5), FirstP99: quantile(c.firsts, 0.99),
		LatencyP50: quantile(c.latencies, 0.5), LatencyP99: quantile(c.latencies, 0.99),
		StepsHeld: int(min(c.stepFailed.Load(), int64(len(c.job.Emission.Steps)))),
	}
}

func quantile(values []float64, share float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(share*float64(len(values))))]
}
