package adapter

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/structpb"

	"dragoman/adapters/go/internal/request"
	pb "dragoman/clients/go/dragomanv1"
)

// Retry ends the attempt, as its session no longer exists, and makes the run ready for the next attempt, in a new
// session: Resume is empty then, and Prompt has what goes before the first prompt of a session. The error is the cause of
// the end of the run's context if the run is to stop.
func (r *Run) Retry(failure *Failure) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.phase != attempt:
		return errors.New("no attempt is under way")
	case !r.stop.deadline.IsZero():
		return context.Cause(r.ctx)
	case r.Resume == "":
		return errors.New("the attempt resumes no session")
	}
	reason := "the session asked for no longer exists; a new one is begun"
	if err := r.settings.BeginAnew(r.Request, reason); err != nil {
		return err
	}
	r.writeLog()
	r.flushItems()
	r.dropAll(nil)
	end := &pb.AttemptEnded{
		Failure: failure.proto(), Reason: reason, Session: &pb.SessionUpdate{Change: pb.SessionChange_SESSION_CHANGE_CLEAR},
	}
	r.write(&pb.AgentEvent{Body: &pb.AgentEvent_AttemptEnded{AttemptEnded: end}, Origin: pb.EventOrigin_EVENT_ORIGIN_ADAPTER})
	r.phase, r.sessionID, r.isLost = initial, "", true
	r.Resume, r.Fork, r.Prompt = "", false, r.settings.Prompt(r.skillText)
	return nil
}

// sessionUpdate says what to do with the stored session. A run that succeeded, or was cancelled, leaves a conversation
// that can be resumed; a session that is gone is forgotten. The caller holds r.mu.
func (r *Run) sessionUpdate(result *pb.Result) *pb.SessionUpdate {
	if result.GetSession() != nil || !request.Has(r.described, pb.Feature_FEATURE_RESUME) {
		return result.GetSession()
	}
	outcome := result.GetOutcome()
	switch {
	case r.sessionID != "" && (outcome == pb.Outcome_OUTCOME_SUCCEEDED || outcome == pb.Outcome_OUTCOME_CANCELLED):
		params, _ := structpb.NewStruct(map[string]any{"sessionId": r.sessionID, "cwd": r.Cwd}) // texts never fail
		return &pb.SessionUpdate{Change: pb.SessionChange_SESSION_CHANGE_SET, Handle: &pb.SessionHandle{
			Adapter: r.described.GetAdapter(), NativeId: r.sessionID, Cwd: r.Cwd,
			AdapterVersion: r.described.GetVersion(), Params: params,
		}}
	case r.isLost || result.GetFailure().GetKind() == pb.FailureKind_FAILURE_KIND_SESSION_LOST:
		return &pb.SessionUpdate{Change: pb.SessionChange_SESSION_CHANGE_CLEAR}
	}
	return nil
}
