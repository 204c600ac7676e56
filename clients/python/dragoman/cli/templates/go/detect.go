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
