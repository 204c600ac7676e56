// Program scribe is an adapter for an agent that prints JSON lines, as docs/guides/write-an-adapter-go.md explains it.
package main

import (
	"context"
	"encoding/json"

	"google.golang.org/protobuf/proto"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

const schema = `{
  "type": "object",
  "additionalProperties": false,
  "properties": {"command": {"type": "string", "description": "Another executable than scribe."}}
}`

func main() {
	adapter.Main(&adapter.Adapter{
		Describe: &pb.DescribeResponse{
			Adapter: "scribe_go", Label: "Scribe", Version: "1",
			ConfigSchemaJson: schema,
			ConfigurationDoc: "Use when: something is to be noted. Don't use when: you want an answer.",
			Capabilities: adapter.Features(pb.PermissionMode_PERMISSION_MODE_NONE,
				pb.Feature_FEATURE_PROMPT, pb.Feature_FEATURE_WORKSPACE, pb.Feature_FEATURE_TOOL_START),
		},
		Program: "scribe", Run: run,
	})
}

func run(_ context.Context, run *adapter.Run) (*pb.Result, error) {
	agent := &scribe{run: run}
	exit, err := run.Exec(adapter.Command{Path: run.Program, Stdin: []byte(run.Prompt)}, agent.line)
	if err != nil {
		return nil, err
	}
	result := exit.Result()
	if agent.done != nil { // the agent's own report outranks its exit code
		result.Outcome, result.Failure, result.Summary = pb.Outcome_OUTCOME_SUCCEEDED, nil, agent.done.Summary
		result.Usage = &pb.Usage{Scope: pb.UsageScope_USAGE_SCOPE_RUN, Tokens: &pb.TokenCounts{
			Input: agent.done.Tokens["input"], Output: agent.done.Tokens["output"],
		}}
	} else if agent.failure != "" {
		result.Failure.Code, result.Failure.Message = "scribe_error", agent.failure
	}
	return result, nil
}

// scribe understands one attempt.
type scribe struct {
	run     *adapter.Run
	done    *frame
	failure string
}

// frame is a line of the agent.
type frame struct {
	Type, Text, ID, Name, Output, Summary, Message string

	Input  json.RawMessage
	OK     bool
	Tokens map[string]*uint64 // absent is not zero
}

func (s *scribe) line(line adapter.Line) {
	var f frame
	if json.Unmarshal(line.Data, &f) != nil {
		s.run.Log(line) // no line is lost
		return
	}
	switch f.Type {
	case "text":
		text := &pb.Text{ItemId: "answer", Content: &pb.Text_Whole{Whole: f.Text}}
		_ = s.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: text}})
	case "tool_start":
		call := &pb.ToolCall{Id: f.ID, Name: f.Name, Kind: pb.ToolKind_TOOL_KIND_EDIT, InputJson: string(f.Input)}
		call.Status = pb.ToolStatus_TOOL_STATUS_RUNNING
		_ = s.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolCall{ToolCall: call}})
	case "tool_end":
		result := &pb.ToolResult{ToolCallId: f.ID, Content: f.Output, Status: pb.ToolStatus_TOOL_STATUS_COMPLETED}
		if result.IsError = proto.Bool(!f.OK); !f.OK {
			result.Status = pb.ToolStatus_TOOL_STATUS_FAILED
		}
		_ = s.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolResult{ToolResult: result}})
	case "done":
		s.done = &f
		s.run.Done() // it may live on for a moment, and is not waited for
	case "error":
		s.failure = f.Message
	default:
		s.run.Log(line)
	}
}
