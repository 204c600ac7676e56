package adapter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"dragoman/adapters/go/internal/guard"
	"dragoman/adapters/go/internal/redact"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	inputTimeout = 10 * time.Minute
	longestInput = 10 * 365 * 24 * time.Hour
)

// Resolution is how an input request ended.
type Resolution struct {
	How      pb.InputResolution
	Answer   *pb.InputAnswer // empty if the request was dropped
	Sequence uint64          // where input_resolved stands; 0 if no caller was asked
}

// Question is what a caller is shown of a permission request beside its subject. All of it may be empty.
type Question struct {
	Title       string
	Description string
	// EditableInputJSON is the tool's input as JSON text, which the answer may replace.
	EditableInputJSON string
}

// Decision is whether an agent may do something.
type Decision struct {
	Allowed bool
	// Message is what the caller says to the agent; may be empty.
	Message string
	// UpdatedInputJSON is the tool's input as the caller changed it; empty if it is unchanged.
	UpdatedInputJSON string
	// ForAll says that the caller allows similar actions too, from now on.
	ForAll bool
}

// input is a request to the caller, open or resolved.
type input struct {
	request  *pb.InputRequest // as it was shown: redacted
	isMasked bool             // a secret is hidden in the input that may be changed
	process  *guard.Process   // that ran when it was asked
	timer    *time.Timer
	done     chan struct{} // closed once it is resolved
	end      Resolution
	shown    *pb.InputAnswer // the answer as it was written: redacted
}

func (i *input) isOpen() bool { return i.end.How == pb.InputResolution_INPUT_RESOLUTION_UNSPECIFIED }

// Ask asks the caller, and waits for the answer, or for the default answer when the request expires. Its ID, expires_at
// and default_answer are filled in where they are absent. In a run that is not interactive no caller is asked, and the
// default answer applies. A request whose program has ended is dropped. The error is the cause of the end of the run's
// context if the run is to stop.
//
// For a permission use Permit, which applies the rules of the run.
func (r *Run) Ask(request *pb.InputRequest) (*Resolution, error) {
	asked, err := r.askAttended(request)
	if err != nil {
		return nil, err
	}
	if asked == nil {
		answer := request.GetDefaultAnswer()
		if answer == nil {
			answer = defaultAnswer(request, "The run is unattended.")
		}
		return &Resolution{How: pb.InputResolution_INPUT_RESOLUTION_POLICY, Answer: answer}, nil
	}
	return r.answered(asked)
}

// askAttended asks; it returns nil if the run is unattended.
func (r *Run) askAttended(request *pb.InputRequest) (*input, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(); err != nil {
		return nil, err
	}
	if !r.Request.GetPermissions().GetInteractive() {
		r.hint("question_declined", "The agent asked a question, and the run is unattended.",
			"Run with permissions.interactive and answer.")
		return nil, nil
	}
	return r.ask(proto.CloneOf(request))
}

// Permit decides about an action of the agent as the permissions of the run say: by a rule, or by asking the caller. In
// a run that is not interactive no caller is asked, and what no rule allows is denied. The action is not permitted
// either if the run ends, or the program that asks; the error is that of Ask.
func (r *Run) Permit(subject *pb.InputSubject, question Question) (Decision, error) {
	asked, decision, err := r.askUndecided(subject, question)
	if asked == nil {
		return decision, err
	}
	end, err := r.answered(asked)
	if err != nil {
		return Decision{}, err
	}
	chosen := ""
	if len(end.Answer.GetOptionIds()) > 0 {
		chosen = end.Answer.GetOptionIds()[0]
	}
	decision = Decision{
		Allowed: strings.HasPrefix(chosen, "allow"), ForAll: chosen == "allow_always",
		Message: end.Answer.GetMessage(), UpdatedInputJSON: end.Answer.GetUpdatedInputJson(),
	}
	if decision.Allowed {
		r.locked(func() { r.callState(subject, pb.ToolStatus_TOOL_STATUS_RUNNING, decision.UpdatedInputJSON) })
	}
	return decision, nil
}

// askUndecided asks for permission; it returns the decision alone if a rule decides.
func (r *Run) askUndecided(subject *pb.InputSubject, question Question) (*input, Decision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(); err != nil {
		return nil, Decision{}, err
	}
	switch decide(r.Request.GetPermissions(), subject, r.Cwd) {
	case allow:
		return nil, Decision{Allowed: true}, nil
	case deny:
		r.hint("permission_denied", cmp.Or(subject.GetToolName(), question.Title, "An action")+" was denied by policy.",
			"Allow it with a rule in permissions, or run with permissions.interactive and answer.")
		return nil, Decision{Message: "Not allowed by this run's permission policy."}, nil
	}
	r.callState(subject, pb.ToolStatus_TOOL_STATUS_AWAITING_PERMISSION, "")
	asked, err := r.ask(&pb.InputRequest{
		Kind:        pb.InputKind_INPUT_KIND_PERMISSION,
		Title:       cmp.Or(question.Title, cmp.Or(subject.GetToolName(), "The agent")+" asks for permission"),
		Description: question.Description, Subject: proto.CloneOf(subject), EditableInputJson: question.EditableInputJSON,
		Options: []*pb.InputOption{
			{Id: "allow", Kind: pb.InputOptionKind_INPUT_OPTION_KIND_ALLOW_ONCE, Label: "Allow"},
			{Id: "reject", Kind: pb.InputOptionKind_INPUT_OPTION_KIND_REJECT_ONCE, Label: "Reject"},
			{Id: "allow_always", Kind: pb.InputOptionKind_INPUT_OPTION_KIND_ALLOW_ALWAYS, Label: "Allow in this run"},
		},
	})
	return asked, Decision{}, err
}

// begin opens the attempt unless it is open, for what the agent asks. The caller holds r.mu.
func (r *Run) begin() error {
	if r.phase == ended {
		return ErrEnded
	}
	if !r.stop.deadline.IsZero() {
		return context.Cause(r.ctx)
	}
	r.writeLog()
	if r.phase == initial {
		return r.start(&pb.Started{})
	}
	return nil
}

// callState says that a tool call waits for its permission, or goes on; only the server knows both. The caller holds
// r.mu.
func (r *Run) callState(subject *pb.InputSubject, status pb.ToolStatus, inputJSON string) {
	if subject.GetToolCallId() == "" {
		return
	}
	call := &pb.ToolCall{Id: subject.GetToolCallId(), Name: subject.GetToolName(), Kind: subject.GetToolKind()}
	call.Status, call.InputJson = status, inputJSON
	event := &pb.AgentEvent{Body: &pb.AgentEvent_ToolCall{ToolCall: call}, Origin: pb.EventOrigin_EVENT_ORIGIN_ADAPTER}
	_ = r.emit(event) // the run may be over by now
}

// ask writes a request, which the run owns from then on. The caller holds r.mu.
func (r *Run) ask(request *pb.InputRequest) (*input, error) {
	if request.GetId() == "" {
		request.Id = fmt.Sprintf("input-%d", len(r.inputs)+1)
	}
	if r.input(request.GetId()) != nil {
		return nil, fmt.Errorf("the request ID %q is not unique", request.GetId())
	}
	timeout := inputTimeout
	if own := r.Request.GetPermissions().GetRequestTimeout(); own != nil {
		timeout = min(max(own.AsDuration(), 0), longestInput)
	}
	request.ExpiresAt = timestamppb.New(time.Now().Add(timeout))
	if request.GetDefaultAnswer() == nil {
		request.DefaultAnswer = defaultAnswer(request, "No answer arrived in time.")
	}
	unmasked := request.GetEditableInputJson()
	r.write(&pb.AgentEvent{Body: &pb.AgentEvent_InputRequest{InputRequest: request}, Origin: pb.EventOrigin_EVENT_ORIGIN_AGENT})
	asked := &input{
		request: request, isMasked: request.GetEditableInputJson() != unmasked, process: r.process, done: make(chan struct{}),
	}
	r.inputs = append(r.inputs, asked)
	now := time.Now()
	r.clocks.wait(now)
	if r.openInputs++; r.openInputs == 1 {
		r.state(&pb.State{Phase: pb.RunPhase_RUN_PHASE_WAITING_FOR_INPUT})
	}
	r.awake()
	asked.timer = time.AfterFunc(timeout, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.resolve(asked, pb.InputResolution_INPUT_RESOLUTION_EXPIRED, asked.request.GetDefaultAnswer(), "")
	})
	if r.process != nil && r.hasExited { // the line that asks was its last one
		r.drop(asked)
	}
	return asked, nil
}

// answered waits for the end of a request.
func (r *Run) answered(asked *input) (*Resolution, error) {
	select {
	case <-asked.done:
	case <-r.ctx.Done():
		r.locked(func() { r.drop(asked) })
		if asked.end.How == pb.InputResolution_INPUT_RESOLUTION_DROPPED {
			return nil, context.Cause(r.ctx)
		}
	}
	end := asked.end
	return &end, nil
}

func (r *Run) input(id string) *input {
	for _, asked := range r.inputs {
		if asked.request.GetId() == id {
			return asked
		}
	}
	return nil
}

// resolve writes the end of a request, and returns its sequence. Only the first call counts. The caller holds r.mu.
func (r *Run) resolve(asked *input, how pb.InputResolution, answer *pb.InputAnswer, responder string) uint64 {
	if !asked.isOpen() {
		return asked.end.Sequence
	}
	asked.timer.Stop()
	resolved := &pb.InputResolved{Id: asked.request.GetId(), Resolution: how, Responder: responder}
	if how != pb.InputResolution_INPUT_RESOLUTION_DROPPED {
		resolved.Answer = proto.CloneOf(answer)
	}
	origin := pb.EventOrigin_EVENT_ORIGIN_ADAPTER
	if how == pb.InputResolution_INPUT_RESOLUTION_ANSWERED {
		origin = pb.EventOrigin_EVENT_ORIGIN_OPERATOR
	}
	event := &pb.AgentEvent{Body: &pb.AgentEvent_InputResolved{InputResolved: resolved}, Origin: origin}
	r.write(event)
	asked.end = Resolution{How: how, Answer: answer, Sequence: event.GetSequence()}
	asked.shown = resolved.GetAnswer()
	r.openInputs--
	r.clocks.resume(time.Now())
	if r.openInputs == 0 && r.phase == attempt && r.stop.deadline.IsZero() {
		r.state(&pb.State{Phase: pb.RunPhase_RUN_PHASE_RUNNING})
	}
	r.awake()
	close(asked.done)
	return asked.end.Sequence
}

// drop says that the agent no longer waits for an answer. The caller holds r.mu.
func (r *Run) drop(asked *input) {
	r.resolve(asked, pb.InputResolution_INPUT_RESOLUTION_DROPPED, &pb.InputAnswer{}, "")
}

// dropAll drops the requests of a program that has ended, or all that are open if it is nil. The caller holds r.mu.
func (r *Run) dropAll(process *guard.Process) {
	for _, asked := range r.inputs {
		if asked.isOpen() && (process == nil || asked.process == process) {
			r.drop(asked)
		}
	}
}

// pending returns the open requests as events for a reader that attaches. The caller holds r.mu.
func (r *Run) pending() []*pb.AgentEvent {
	var events []*pb.AgentEvent
	for _, asked := range r.inputs {
		if asked.isOpen() {
			event := &pb.AgentEvent{
				Body: &pb.AgentEvent_InputRequest{InputRequest: asked.request}, Origin: pb.EventOrigin_EVENT_ORIGIN_ADAPTER,
			}
			r.address(event)
			events = append(events, event)
		}
	}
	return events
}

// respond answers a request, and returns the sequence of input_resolved.
func (r *Run) respond(id string, answer *pb.InputAnswer, responder string) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.input(id)
	if asked == nil {
		return 0, dragoman.Errorf(dragoman.RequestNotFound, "the run has no request %q", id)
	}
	switch {
	case asked.isOpen():
		if err := checkAnswer(asked, answer); err != nil {
			return 0, err
		}
		return r.resolve(asked, pb.InputResolution_INPUT_RESOLUTION_ANSWERED, answer, responder), nil
	case asked.end.How == pb.InputResolution_INPUT_RESOLUTION_EXPIRED:
		return 0, dragoman.Errorf(dragoman.RequestExpired, "the request has expired; its default was taken")
	case asked.end.How == pb.InputResolution_INPUT_RESOLUTION_DROPPED && r.phase == ended:
		return 0, dragoman.Errorf(dragoman.RunFinished, "the run is over, and the request with it")
	case asked.end.How == pb.InputResolution_INPUT_RESOLUTION_DROPPED:
		return 0, dragoman.Errorf(dragoman.RequestExpired, "the agent no longer waits for an answer to this request")
	case proto.Equal(asked.end.Answer, answer):
		return asked.end.Sequence, nil
	}
	recorded, _ := protojson.Marshal(asked.shown) // it came as a message
	return 0, dragoman.Errorf(dragoman.AlreadyResolved, "the request was answered otherwise").WithMetadata("answer", string(recorded))
}

// defaultAnswer returns what a request gets that no caller answers: a refusal where there is one, else nothing.
func defaultAnswer(request *pb.InputRequest, why string) *pb.InputAnswer {
	answer := &pb.InputAnswer{Message: why}
	for _, kind := range []pb.InputOptionKind{
		pb.InputOptionKind_INPUT_OPTION_KIND_REJECT_ONCE, pb.InputOptionKind_INPUT_OPTION_KIND_REJECT_ALWAYS,
	} {
		for _, option := range request.GetOptions() {
			if option.GetKind() == kind {
				answer.OptionIds = []string{option.GetId()}
				return answer
			}
		}
	}
	return answer
}

// checkAnswer returns what is wrong with an answer: INVALID_ANSWER, with the field.
func checkAnswer(asked *input, answer *pb.InputAnswer) error {
	unfit := func(field, description string) error {
		return dragoman.FieldError(dragoman.InvalidAnswer, "answer."+field, description)
	}
	request := asked.request
	known := make([]string, len(request.GetOptions()))
	for i, option := range request.GetOptions() {
		known[i] = option.GetId()
	}
	listed := strings.Join(known, ", ")
	if len(known) > 0 && len(answer.GetOptionIds()) == 0 {
		return unfit("option_ids", "choose one of "+listed)
	}
	if len(answer.GetOptionIds()) > 1 && !request.GetMultiple() {
		return unfit("option_ids", "choose one option only")
	}
	for _, chosen := range answer.GetOptionIds() {
		if !slices.Contains(known, chosen) {
			return unfit("option_ids", fmt.Sprintf("%q is not an option; choose one of %s", cutText(chosen, 80), listed))
		}
	}
	if updated := answer.GetUpdatedInputJson(); updated != "" {
		var object map[string]any
		switch {
		case request.GetEditableInputJson() == "":
			return unfit("updated_input_json", "this request's input cannot be changed")
		case json.Unmarshal([]byte(updated), &object) != nil || object == nil:
			return unfit("updated_input_json", "a tool's input is a JSON object")
		case asked.isMasked && strings.Contains(updated, redact.Mask): // the agent would get the mask in place of the secret
			return unfit("updated_input_json", "it still has "+redact.Mask+" where a secret is hidden; give the value, or leave the input")
		}
	}
	if request.GetKind() == pb.InputKind_INPUT_KIND_TEXT && answer.GetText() == "" {
		return unfit("text", "must not be empty")
	}
	if request.GetKind() == pb.InputKind_INPUT_KIND_SCHEMA && !json.Valid([]byte(answer.GetValueJson())) {
		return unfit("value_json", "not JSON")
	}
	return nil
}
