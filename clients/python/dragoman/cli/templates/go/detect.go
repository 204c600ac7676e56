package main

import (
	"cmp"
	"context"
	"os"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

// detect says whether the agent is installed, for dragoman detect.
func detect(_ context.Context, request *pb.DetectRequest) (*pb.Detection, error) {
	command, _ := request.GetConfig().AsMap()["command"].(string)
	command = cmp.Or(command, "newagent")
	path := adapter.LookPath(command, cmp.Or(request.GetEnv()["PATH"], os.Getenv("PATH")))
	if path == "" {
		return &pb.Detection{
			Confidence: pb.DetectionConfidence_DETECTION_CONFIDENCE_ABSENT,
			Message:    command + " was not found.", Hint: "Install it, or set config.command.",
		}, nil
	}
	return &pb.Detection{
		Available: true, Executable: path, Auth: pb.AuthState_AUTH_STATE_UNKNOWN,
		Confidence: pb.DetectionConfidence_DETECTION_CONFIDENCE_EXECUTABLE_ONLY, Message: "Newagent is installed.",
	}, nil
}

// checks says the same for dragoman test. Add what else a run needs, e.g. a login.
func checks(ctx context.Context, request *pb.TestEnvironmentRequest) ([]*pb.EnvironmentCheck, error) {
	found, err := detect(ctx, &pb.DetectRequest{Config: request.GetConfig(), Env: request.GetEnv()})
	if err != nil {
		return nil, err
	}
	check := &pb.EnvironmentCheck{Code: "command_found", Level: pb.Severity_SEVERITY_INFO, Message: found.GetMessage()}
	if !found.GetAvailable() {
		check.Code, check.Level, check.Hint = "command_missing", pb.Severity_SEVERITY_ERROR, found.GetHint()
	}
	return []*pb.EnvironmentCheck{check}, nil
}
