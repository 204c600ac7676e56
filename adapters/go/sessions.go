package adapter

import (
	"google.golang.org/protobuf/types/known/structpb"

	"dragoman/adapters/go/internal/request"
	pb "dragoman/clients/go/dragomanv1"
)

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
	case result.GetFailure().GetKind() == pb.FailureKind_FAILURE_KIND_SESSION_LOST:
		return &pb.SessionUpdate{Change: pb.SessionChange_SESSION_CHANGE_CLEAR}
	}
	return nil
}
