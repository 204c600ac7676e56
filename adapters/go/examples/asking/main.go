// Program asking is an adapter for an agent that asks for permission, as docs/guides/write-an-adapter-go.md explains it.
package main

import (
	"context"
	"encoding/json"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

const schema = `{"type": "object", "additionalProperties": false, "properties": {"command": {"type": "string"}}}`

func main() {
	adapter.Main(&adapter.Adapter{
		Describe: &pb.DescribeResponse{
			Adapter: "careful", Label: "Careful", Version: "1", ConfigSchemaJson: schema,
			Capabilities: adapter.Features(pb.PermissionMode_PERMISSION_MODE_STRICT,
				pb.Feature_FEATURE_PROMPT, pb.Feature_FEATURE_WORKSPACE, pb.Feature_FEATURE_PERMISSION_REQUESTS),
		},
		Program: "careful", Run: run,
	})
}

func run(_ context.Context, run *adapter.Run) (*pb.Result, error) {
	agent := adapter.Command{Path: run.Program, Stdin: []byte(run.Prompt + "\n"), OpenStdin: true}
	summary := ""
	exit, err := run.Exec(agent, func(line adapter.Line) {
		var frame struct{ Type, ID, Tool, Path, Text string }
		if json.Unmarshal(line.Data, &frame) != nil {
			run.Log(line)
			return
		}
		switch frame.Type {
		case "ask":
			subject := &pb.InputSubject{ToolCallId: frame.ID, ToolName: frame.Tool, ToolKind: pb.ToolKind_TOOL_KIND_EDIT, Paths: []string{frame.Path}}
			decision, err := run.Permit(subject, adapter.Question{Title: "May I write " + frame.Path + "?"})
			answer := "reject\n"
			if err == nil && decision.Allowed { // an error says that the run is to stop
				answer = "allow\n"
			}
			_ = run.Write([]byte(answer))
		case "done":
			summary = frame.Text
			_ = run.Text("answer", summary)
			run.Done()
		default:
			run.Log(line)
		}
	})
	if err != nil {
		return nil, err
	}
	result := exit.Result()
	result.Summary = summary
	return result, nil
}
