package adapter

import (
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"dragoman/adapters/go/internal/request"
	pb "dragoman/clients/go/dragomanv1"
)

// sessionPlan is what an attempt does with the session that was asked for.
type sessionPlan struct {
	disposition pb.SessionDisposition
	nativeID    string // of the session to resume or to copy; empty for a new one
	reason      string // why the one asked for is not resumed
}

// planSession decides whether the session that was asked for fits this adapter and this directory.
func planSession(asked *pb.ExecuteRequest, described *pb.DescribeResponse, cwd string) sessionPlan {
	refused := func(reason string) sessionPlan {
		return sessionPlan{disposition: pb.SessionDisposition_SESSION_DISPOSITION_RESUME_REFUSED, reason: reason}
	}
	session := asked.GetSession()
	handle := session.GetHandle()
	if handle == nil {
		if session.GetFresh() && session.GetReason() != "" {
			return refused(session.GetReason())
		}
		return sessionPlan{disposition: pb.SessionDisposition_SESSION_DISPOSITION_NEW}
	}
	nativeID, directory := readHandle(handle)
	names := append([]string{described.GetAdapter()}, described.GetAliases()...)
	switch {
	case handle.GetAdapter() != "" && !slices.Contains(names, handle.GetAdapter()):
		return refused("the session belongs to " + handle.GetAdapter())
	case nativeID == "":
		return refused("the handle names no session")
	case directory != "" && cwd != "" && !isSameDirectory(directory, cwd):
		return refused("the session belongs to " + directory)
	case session.GetFork():
		return sessionPlan{disposition: pb.SessionDisposition_SESSION_DISPOSITION_FORK, nativeID: nativeID}
	}
	return sessionPlan{disposition: pb.SessionDisposition_SESSION_DISPOSITION_RESUME, nativeID: nativeID}
}

// readHandle returns ID and directory of a handle, which may have them in its params alone.
func readHandle(handle *pb.SessionHandle) (nativeID, cwd string) {
	params := handle.GetParams().GetFields()
	nativeID, cwd = handle.GetNativeId(), handle.GetCwd()
	for _, name := range []string{"sessionId", "session_id"} {
		if nativeID == "" {
			nativeID = params[name].GetStringValue()
		}
	}
	if cwd == "" {
		cwd = params["cwd"].GetStringValue()
	}
	return nativeID, cwd
}

func isSameDirectory(one, other string) bool {
	first, err := filepath.EvalSymlinks(one)
	if err != nil {
		return filepath.Clean(one) == filepath.Clean(other)
	}
	second, err := filepath.EvalSymlinks(other)
	return err == nil && first == second
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
	case result.GetFailure().GetKind() == pb.FailureKind_FAILURE_KIND_SESSION_LOST:
		return &pb.SessionUpdate{Change: pb.SessionChange_SESSION_CHANGE_CLEAR}
	}
	return nil
}
