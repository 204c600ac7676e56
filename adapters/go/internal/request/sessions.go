package request

import (
	"path/filepath"
	"slices"

	pb "dragoman/clients/go/dragomanv1"
)

// SessionPlan is what an attempt does with the session that was asked for.
type SessionPlan struct {
	Disposition pb.SessionDisposition
	NativeID    string // of the session to resume or to copy; empty for a new one
	Reason      string // why the one asked for is not resumed
}

// InUse returns the ID of the session that the run resumes; empty if it begins one, or copies one.
func (p SessionPlan) InUse() string {
	if p.Disposition == pb.SessionDisposition_SESSION_DISPOSITION_RESUME {
		return p.NativeID
	}
	return ""
}

// planSession decides whether the session that was asked for fits this adapter and this directory.
func planSession(asked *pb.ExecuteRequest, described *pb.DescribeResponse, cwd string) SessionPlan {
	refused := func(reason string) SessionPlan {
		return SessionPlan{Disposition: pb.SessionDisposition_SESSION_DISPOSITION_RESUME_REFUSED, Reason: reason}
	}
	session := asked.GetSession()
	handle := session.GetHandle()
	if handle == nil {
		if session.GetFresh() && session.GetReason() != "" {
			return refused(session.GetReason())
		}
		return SessionPlan{Disposition: pb.SessionDisposition_SESSION_DISPOSITION_NEW}
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
		return SessionPlan{Disposition: pb.SessionDisposition_SESSION_DISPOSITION_FORK, NativeID: nativeID}
	}
	return SessionPlan{Disposition: pb.SessionDisposition_SESSION_DISPOSITION_RESUME, NativeID: nativeID}
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
