package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"dragoman/adapters/go/internal/eventlog"
	"dragoman/adapters/go/internal/guard"
	"dragoman/adapters/go/internal/redact"
	"dragoman/adapters/go/internal/request"
	pb "dragoman/clients/go/dragomanv1"
)

const heartbeatAfter = 15 * time.Second

// Errors of a run, and causes of the end of its context.
var (
	// ErrCancelled is the cause if a caller cancelled the run, or all callers left it.
	ErrCancelled = errors.New("the run was cancelled")
	// ErrLimit is the cause if the run exceeded one of its limits.
	ErrLimit = errors.New("the run exceeded a limit")
	// ErrEnded is returned for an event that comes after the end of the run.
	ErrEnded = errors.New("the run has ended")
)

// Failure is why an agent failed; a Run function returns it as its error.
type Failure struct {
	Kind    pb.FailureKind
	Code    string // stable and more specific; may be empty
	Message string // for people: what went wrong, and what to do
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

func (f *Failure) proto() *pb.Failure {
	return &pb.Failure{Kind: f.Kind, Code: f.Code, Message: f.Message, Retryable: isRetryable(f.Kind)}
}

func isRetryable(kind pb.FailureKind) bool {
	switch kind {
	case pb.FailureKind_FAILURE_KIND_QUOTA_EXCEEDED, pb.FailureKind_FAILURE_KIND_RATE_LIMITED,
		pb.FailureKind_FAILURE_KIND_UPSTREAM_UNAVAILABLE, pb.FailureKind_FAILURE_KIND_NETWORK,
		pb.FailureKind_FAILURE_KIND_SESSION_LOST, pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED,
		pb.FailureKind_FAILURE_KIND_NO_RESULT, pb.FailureKind_FAILURE_KIND_START_TIMEOUT,
		pb.FailureKind_FAILURE_KIND_IDLE_TIMEOUT, pb.FailureKind_FAILURE_KIND_TOOL_TIMEOUT,
		pb.FailureKind_FAILURE_KIND_ADAPTER_LOST:
		return true
	}
	return false
}

// Run is one run, as its adapter sees it. Its methods may be called by several goroutines.
type Run struct {
	Request *pb.ExecuteRequest // as it was sent; it must not be changed
	Prompt  string             // rendered, with what goes before it
	Config  map[string]any     // the settings, checked against the schema
	Program string             // what to run: Adapter.Program, or the setting "command"
	Cwd     string             // absolute and existing; empty if the adapter has no FEATURE_WORKSPACE
	Resume  string             // the agent's ID of the session to resume, or to copy if Fork; empty for a new one
	Fork    bool
	// SkillsDir is where files of the request's skills are, for this run alone: laid out as Adapter.SkillLayout says, or
	// those beside the texts that are in the prompt. Empty if there are none.
	SkillsDir string

	described *pb.DescribeResponse
	settings  *request.Settings
	redactor  *redact.Redactor
	span      *runSpan
	logger    *slog.Logger
	log       *eventlog.Log
	holders   *holders
	marker    string
	done      chan struct{} // closed when the run has ended

	ctx  context.Context // of the Run function
	end  context.CancelCauseFunc
	wake chan struct{} // of the goroutine that watches the limits

	mu          sync.Mutex
	phase       phase
	sessionID   string // as the agent says
	isLost      bool   // the session that was to be resumed no longer exists
	skillText   string // in the prompt
	attempt     uint32
	clocks      clocks
	counters    *pb.RunCounters
	calls       map[string]bool // tool calls that were counted
	items       map[itemKey]*item
	heardAt     time.Time
	writtenAt   time.Time
	directory   string
	budget      *uint64 // bytes of text that are left; nil without a limit
	isPiped     bool    // output is counted where it is read
	isCut       bool    // the limit of output was reported
	stop        stop
	process     *guard.Process
	processEnd  time.Time // of the last one, with what it started
	hasExited   bool      // the process has ended
	isDone      bool      // it has reported its end
	stdin       *stdin    // of the process, if it stays open
	inputs      []*input  // in the order in which they were asked
	openInputs  int
	notes       []string     // for started
	waiting     []*pb.Notice // for the attempt that opens next
	captured    captured
	isJoining   bool // lines that are logged are joined
	joined      *pb.Log
	lines       []string // of joined
	joinedBytes int
	result      *pb.Result
	resultAt    uint64
}

// phase is where a run is in the order of events.
type phase int

const (
	initial phase = iota
	attempt
	ended
)

// stop is the request to end a run.
type stop struct {
	deadline    time.Time // zero: none was made
	isCancelled bool
	expiry      *expiry       // the limit that was exceeded
	changed     chan struct{} // gets a value whenever the run may be abandoned earlier
}

func newRun(own *pb.ExecuteRequest, settings *request.Settings, described *pb.DescribeResponse, logger *slog.Logger, span *runSpan) *Run {
	now := time.Now()
	first := max(own.GetRelay().GetFirstSequence(), 1)
	ctx, end := context.WithCancelCause(span.ctx)
	run := &Run{
		Request: own, Config: settings.Config, Cwd: settings.Cwd,
		Resume: settings.Session.NativeID, Fork: settings.Session.Disposition == pb.SessionDisposition_SESSION_DISPOSITION_FORK,
		described: described, settings: settings, redactor: redact.New(settings.Secrets),
		span: span, logger: span.logged(logger.With("run_id", own.GetRunId())), log: eventlog.New(own.GetRunId(), first),
		marker: randomHex(16), done: make(chan struct{}), ctx: ctx, end: end, wake: make(chan struct{}, 1),
		attempt: max(own.GetRelay().GetFirstAttempt(), 1) - 1,
		clocks: clocks{
			startUp: settings.StartUp, idle: settings.Idle, wall: settings.Wall, toolCall: settings.ToolCall, acceptedAt: now,
		},
		counters: &pb.RunCounters{}, calls: map[string]bool{}, items: map[itemKey]*item{},
		heardAt: now, writtenAt: now, stop: stop{changed: make(chan struct{}, 1)},
	}
	if settings.OutputBytes > 0 {
		left := settings.OutputBytes
		run.budget = &left
	}
	return run
}

// Start opens the attempt. Call it before anything of the agent is started, to say what that is: Command, Argv, Env,
// Notes, AgentVersion. The rest is filled in. Without it the first event opens the attempt.
func (r *Run) Start(started *pb.Started) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != initial {
		return errors.New("the attempt was started before")
	}
	return r.start(started)
}

func (r *Run) start(started *pb.Started) error {
	started.Adapter, started.InstanceId = r.described.GetAdapter(), r.described.GetInstanceId()
	started.Cwd, started.Labels, started.Limits = r.Cwd, maps.Clone(r.Request.GetLabels()), r.settings.Limits()
	started.Capabilities = proto.CloneOf(r.described.GetCapabilities())
	started.Permissions = proto.CloneOf(r.Request.GetPermissions())
	started.PromptBytes = r.settings.PromptBytes
	session := r.settings.Session
	started.SessionDisposition, started.SessionReason, started.NativeSessionId = session.Disposition, session.Reason, session.NativeID
	started.Notes = append(r.notes, started.GetNotes()...)
	r.attempt++
	r.phase = attempt
	event := &pb.AgentEvent{Body: &pb.AgentEvent_Started{Started: started}, Origin: pb.EventOrigin_EVENT_ORIGIN_ADAPTER}
	r.write(event)
	r.state(&pb.State{Phase: pb.RunPhase_RUN_PHASE_STARTING})
	for _, path := range r.settings.Missing {
		r.notice(pb.Severity_SEVERITY_INFO, "template_value_missing",
			fmt.Sprintf("The template's {{%s}} is not set; it was replaced by nothing.", path))
	}
	for _, notice := range r.waiting {
		r.writeNotice(notice)
	}
	r.waiting = nil
	r.clocks.start(time.Now())
	r.awake()
	return nil
}

// Emit writes an event of the agent: a body, and what else the agent says of it. The run owns the event from then on.
// Text, thinking and output of tools need no offset: it is counted after redaction, and a piece without content says that
// its item is complete. Emit waits while the callers that hold the run are far behind.
func (r *Run) Emit(event *pb.AgentEvent) error {
	var err error
	r.locked(func() { err = r.emit(event) })
	if err != nil {
		return err
	}
	r.pace()
	return nil
}

// locked calls a function that holds r.mu, and no longer than it, if it panics, either: the run is to end then.
func (r *Run) locked(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

func (r *Run) emit(event *pb.AgentEvent) error {
	switch event.GetBody().(type) {
	case nil, *pb.AgentEvent_Started, *pb.AgentEvent_AttemptEnded, *pb.AgentEvent_Result, *pb.AgentEvent_Gap,
		*pb.AgentEvent_ReplayDone, *pb.AgentEvent_Heartbeat, *pb.AgentEvent_Batch, *pb.AgentEvent_InputRequest,
		*pb.AgentEvent_InputResolved, *pb.AgentEvent_InputAccepted, *pb.AgentEvent_InputDropped, *pb.AgentEvent_RunUpdated:
		return fmt.Errorf("emit an event of kind %T: only the server writes it", event.GetBody())
	}
	if r.phase == ended {
		return ErrEnded
	}
	r.writeLog()
	if r.phase == initial {
		if err := r.start(&pb.Started{}); err != nil {
			return err
		}
	}
	now := time.Now()
	if event.GetOrigin() == pb.EventOrigin_EVENT_ORIGIN_UNSPECIFIED {
		event.Origin = pb.EventOrigin_EVENT_ORIGIN_AGENT
	}
	if event.GetOrigin() == pb.EventOrigin_EVENT_ORIGIN_AGENT {
		r.heardAt = now
		r.clocks.active(now)
	}
	if event.GetState() != nil && !r.stop.deadline.IsZero() {
		return nil // the run is being stopped, whatever the agent still tries
	}
	r.clocks.observe(event, now)
	if event.GetToolCall() != nil {
		r.awake() // its limit may be shorter
	}
	if ended := event.GetToolResult(); ended != nil {
		for number := range pb.OutputStream_name {
			r.endItem(itemKey{"output " + pb.OutputStream(number).String(), ended.GetToolCallId()})
		}
	}
	if id := event.GetSession().GetNativeId(); id != "" {
		r.sessionID = strings.ToValidUTF8(id, "\ufffd") // as the event has it
	}
	r.count(event)
	if !r.isPiped && !r.within(event) {
		return nil
	}
	if piece := pieceOf(event); piece != nil {
		r.take(event, piece)
		return nil
	}
	r.write(event)
	return nil
}

// within cuts an event's text to what the limit of output leaves; it returns false if that is nothing.
func (r *Run) within(event *pb.AgentEvent) bool {
	if r.budget == nil {
		return true
	}
	text := textOf(event)
	if text == nil {
		return true
	}
	kept := cutText(*text, int(min(*r.budget, 1<<30)))
	*r.budget -= uint64(len(kept))
	if dropped := len(*text) - len(kept); dropped > 0 {
		kept = r.withoutHalf(kept)
		r.counters.DroppedBytes += uint64(dropped)
		r.reportCut()
		*text = kept
		return kept != ""
	}
	return true
}

// withoutHalf returns a text that is cut off, without what may be the first half of a secret.
func (r *Run) withoutHalf(text string) string {
	if cut := r.redactor.Undecided(text); len(text)-cut > redact.Harmless {
		return text[:cut]
	}
	return text
}

func (r *Run) reportCut() {
	if r.isCut {
		return
	}
	r.isCut = true
	r.notice(pb.Severity_SEVERITY_WARNING, "output_cut", fmt.Sprintf(
		"The agent's output exceeded limits.output_bytes (%d bytes); what follows is discarded.", r.settings.OutputBytes))
}

// pace waits while the callers that hold the run are far behind. That time is not the agent's.
func (r *Run) pace() {
	if !r.log.IsBehind() {
		return
	}
	r.locked(func() { r.clocks.wait(time.Now()) })
	r.log.WaitTaken()
	r.locked(func() {
		r.clocks.resume(time.Now())
		r.awake()
	})
}

// Text emits a piece of an answer, which continues the item of that name.
func (r *Run) Text(itemID, delta string) error {
	text := &pb.Text{ItemId: itemID, Content: &pb.Text_Delta{Delta: delta}}
	return r.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: text}})
}

// EndText says that the item of that name is complete, so that nothing of it is held back any longer.
func (r *Run) EndText(itemID string) error {
	return r.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: &pb.Text{ItemId: itemID}}})
}

// Notice writes a message for people, with a stable code. Before an attempt is open, it is kept until one is.
func (r *Run) Notice(severity pb.Severity, code, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.phase {
	case initial:
		r.waiting = append(r.waiting, &pb.Notice{Severity: severity, Code: code, Message: message})
	case attempt:
		r.notice(severity, code, message)
	}
}

func (r *Run) notice(severity pb.Severity, code, message string) {
	r.writeNotice(&pb.Notice{Severity: severity, Code: code, Message: message})
}

func (r *Run) writeNotice(notice *pb.Notice) {
	r.write(&pb.AgentEvent{Body: &pb.AgentEvent_Notice{Notice: notice}, Origin: pb.EventOrigin_EVENT_ORIGIN_ADAPTER})
}

// hint is a notice that says what to do.
func (r *Run) hint(code, message, hint string) {
	r.writeNotice(&pb.Notice{Severity: pb.Severity_SEVERITY_WARNING, Code: code, Message: message, Hint: hint})
}

func (r *Run) state(state *pb.State) {
	origin := pb.EventOrigin_EVENT_ORIGIN_ADAPTER
	if state.GetPhase() == pb.RunPhase_RUN_PHASE_CANCELLING {
		origin = pb.EventOrigin_EVENT_ORIGIN_OPERATOR
	}
	r.write(&pb.AgentEvent{Body: &pb.AgentEvent_State{State: state}, Origin: origin})
}

// Redact returns a text without the secrets of the request.
func (r *Run) Redact(text string) string { return r.redactor.Text(text) }

// write writes an event in its place: redacted, with sequence and envelope, within its size.
func (r *Run) write(event *pb.AgentEvent) {
	cut := redactEvent(event, r.redactor)
	event.Sequence = r.log.Last() + 1
	r.address(event)
	cut = countCut(event, cut+fitEvent(event))
	r.span.note(event)
	r.log.Append(event)
	r.writtenAt = time.Now()
	if cut > 0 && r.phase == attempt && event.GetNotice() == nil {
		r.notice(pb.Severity_SEVERITY_WARNING, "event_cut", fmt.Sprintf("%d bytes of an event were cut, as it has at most 1 MiB.", cut))
	}
}

func (r *Run) address(event *pb.AgentEvent) {
	event.RunId, event.Attempt, event.Time = r.Request.GetRunId(), r.attempt, timestamppb.Now()
}

// count counts what a result reports.
func (r *Run) count(event *pb.AgentEvent) {
	switch body := event.GetBody().(type) {
	case *pb.AgentEvent_ToolResult:
		switch body.ToolResult.GetStatus() {
		case pb.ToolStatus_TOOL_STATUS_FAILED:
			r.counters.FailedToolCalls++
		case pb.ToolStatus_TOOL_STATUS_DENIED:
			r.counters.DeniedToolCalls++
		}
	case *pb.AgentEvent_ToolCall:
		r.calls[body.ToolCall.GetId()] = true // emitted again whenever it changes
		r.counters.ToolCalls = uint32(len(r.calls))
	case *pb.AgentEvent_FileChange:
		r.counters.FileChanges++
	case *pb.AgentEvent_State:
		if body.State.GetPhase() == pb.RunPhase_RUN_PHASE_RETRYING {
			r.counters.Retries++
		}
	case *pb.AgentEvent_Log:
		if body.Log.GetStream() == pb.OutputStream_OUTPUT_STREAM_STDOUT {
			r.counters.UnparsedLines += 1 + uint32(strings.Count(body.Log.GetText(), "\n"))
		}
	}
}

func (r *Run) awake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// watch keeps the limits, and sends heartbeats, until the run has ended.
func (r *Run) watch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-r.wake:
		case <-timer.C:
		}
		timer.Reset(r.due(time.Now()))
	}
}

// due does what is due, and returns the time until something is again.
func (r *Run) due(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == ended {
		return heartbeatAfter
	}
	if silent := now.Sub(r.writtenAt); silent >= heartbeatAfter {
		beat := &pb.Heartbeat{LastSequence: r.log.Last(), Idle: durationpb.New(now.Sub(r.heardAt))}
		event := &pb.AgentEvent{Body: &pb.AgentEvent_Heartbeat{Heartbeat: beat}, Origin: pb.EventOrigin_EVENT_ORIGIN_ADAPTER}
		r.address(event)
		r.log.Send(event)
		r.writtenAt = now
	}
	next := r.writtenAt.Add(heartbeatAfter)
	limit, isLimited := r.clocks.next()
	if isLimited && r.stop.deadline.IsZero() {
		if now.Before(limit.at) {
			if limit.at.Before(next) {
				next = limit.at
			}
		} else {
			r.stop.expiry = &limit
			r.stopBy(now.Add(r.settings.Grace), ErrLimit)
		}
	}
	return max(next.Sub(now), time.Millisecond)
}

// cancel requests the run's end within a grace. A later, shorter grace shortens it.
func (r *Run) cancel(grace time.Duration, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == ended {
		return
	}
	isFirst := r.stop.deadline.IsZero()
	if isFirst && !r.clocks.areOff { // else the agent has ended by itself
		r.stop.isCancelled = true
	}
	if isFirst && r.phase == attempt {
		r.state(&pb.State{Phase: pb.RunPhase_RUN_PHASE_CANCELLING, Reason: reason})
	}
	r.stopBy(time.Now().Add(grace), ErrCancelled)
}

func (r *Run) stopBy(deadline time.Time, cause error) {
	if !r.stop.deadline.IsZero() && !deadline.Before(r.stop.deadline) {
		return
	}
	r.stop.deadline = deadline
	r.log.Unpause()
	r.end(cause)
	r.hasten()
	if r.process != nil {
		r.stopProcess()
	}
}

func (r *Run) hasten() {
	select {
	case r.stop.changed <- struct{}{}:
	default:
	}
}

// conclude returns how the run ended, of what its adapter returned.
func (r *Run) conclude(result *pb.Result, err error) *pb.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	isDefault := result == nil && err == nil
	if result == nil {
		result = &pb.Result{Outcome: pb.Outcome_OUTCOME_SUCCEEDED}
	}
	var failure *Failure
	switch {
	case result.GetOutcome() == pb.Outcome_OUTCOME_SUCCEEDED && err == nil && (!isDefault || r.stop.deadline.IsZero()):
	case r.stop.isCancelled:
		result.Outcome, result.Failure = pb.Outcome_OUTCOME_CANCELLED, nil
	case r.stop.expiry != nil:
		limit := r.stop.expiry
		result.Outcome = pb.Outcome_OUTCOME_TIMED_OUT
		result.Failure = (&Failure{Kind: limit.kind, Code: limit.code, Message: limit.message}).proto()
	case errors.As(err, &failure):
		result.Outcome, result.Failure = pb.Outcome_OUTCOME_FAILED, failure.proto()
	case err != nil:
		r.logger.Error("the adapter failed", "error", r.redactor.Text(err.Error()))
		result.Outcome = pb.Outcome_OUTCOME_FAILED
		result.Failure = (&Failure{
			Kind: pb.FailureKind_FAILURE_KIND_INTERNAL, Code: "adapter_failed",
			Message: "The adapter failed. Its log has more under this run's ID.",
		}).proto()
	case isDefault: // it was stopped after the agent had ended
	case result.GetFailure() == nil:
		r.logger.Warn("the adapter's result has no Failure", "outcome", result.GetOutcome().String())
		result.Failure = (&Failure{
			Kind: pb.FailureKind_FAILURE_KIND_INTERNAL, Code: "no_reason", Message: "The adapter did not say why the run failed.",
		}).proto()
	}
	return result
}

// reader returns a reader of the run's events, which begins with the requests that are open.
func (r *Run) reader(options eventlog.Options) (*eventlog.Reader, error) {
	r.mu.Lock() // so that none is asked or answered in between
	defer r.mu.Unlock()
	options.Pending = r.pending()
	return r.log.Read(options)
}

// ending returns the sequence of the result, and whether the run has ended.
func (r *Run) ending() (sequence uint64, hasEnded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resultAt, r.phase == ended
}

// finish writes the result, last. Only the first call counts.
func (r *Run) finish(result *pb.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == ended {
		return
	}
	if r.phase == initial { // a run that failed before its first attempt has this event too
		_ = r.start(&pb.Started{})
	}
	r.flushItems()
	r.dropAll(nil)
	result.Counters, result.Session = r.counters, r.sessionUpdate(result)
	result.Duration = durationpb.New(time.Since(r.clocks.acceptedAt))
	r.phase = ended
	event := &pb.AgentEvent{Body: &pb.AgentEvent_Result{Result: result}, Origin: pb.EventOrigin_EVENT_ORIGIN_ADAPTER}
	r.write(event)
	r.result, r.resultAt = event.GetResult(), event.GetSequence()
	r.log.Close()
	r.end(ErrEnded)
	close(r.done)
}
