// Program newagent is an adapter for the agent newagent: it runs the agent and turns the JSON lines that it prints into
// events. Change frame and line to what your agent prints, run to its command line, and Describe to what it can do.
package main

import (
	"context"
	"encoding/json"
	"fmt"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

const schema = `{"type": "object", "additionalProperties": false, "properties": {
  "command": {"type": "string", "description": "Another executable than newagent."}}}`

func main() { adapter.Main(newAdapter()) }

// newAdapter says what the agent is. A feature that is not declared is refused before anything starts.
func newAdapter() *adapter.Adapter {
	return &adapter.Adapter{
		Describe: &pb.DescribeResponse{
			Adapter: "newagent", Label: "Newagent", Version: "0.1.0",
			ConfigSchemaJson: schema,
			ConfigurationDoc: "Use when: (say what this agent is good at). Don't use when: (and what it is not).",
			Capabilities: adapter.Features(pb.PermissionMode_PERMISSION_MODE_NONE,
				pb.Feature_FEATURE_PROMPT, pb.Feature_FEATURE_WORKSPACE, pb.Feature_FEATURE_TOOL_START),
		},
		Program: "newagent", Run: run,
	}
}

// run does one run: it starts the agent, and returns how the run ended.
func run(_ context.Context, run *adapter.Run) (*pb.Result, error) {
	agent := &agent{run: run}
	exit, err := run.Exec(adapter.Command{Path: run.Program, Stdin: []byte(run.Prompt)}, agent.line)
	if err != nil {
		return nil, err
	}
	result := exit.Result()
	switch { // the agent's own report outranks its exit code
	case agent.done != nil && !agent.done.IsError:
		result.Outcome, result.Failure, result.Summary = pb.Outcome_OUTCOME_SUCCEEDED, nil, agent.done.Text
	case agent.done != nil:
		result.Outcome, result.Failure = pb.Outcome_OUTCOME_FAILED, &pb.Failure{
			Kind: pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, Code: "newagent_error", Message: agent.done.Text,
		}
	case result.Failure == nil: // it exited with code 0, which proves nothing
		result.Outcome, result.Failure = pb.Outcome_OUTCOME_FAILED, &pb.Failure{
			Kind: pb.FailureKind_FAILURE_KIND_NO_RESULT, Message: "newagent exited without a result.", Retryable: true,
		}
	}
	return result, nil
}

// frame is a line of the agent.
type frame struct {
	Type, ID, ToolUseID, Name, Text, Content string
	Input                                    json.RawMessage
	Delta, IsError                           bool
}

// agent understands what the agent prints in one run.
type agent struct {
	run  *adapter.Run
	item int    // the number of the message that is being read
	done *frame // its report that it is done
}

// line turns a line into events. An error of Emit says that the run is over: there is nothing left to do.
func (a *agent) line(line adapter.Line) {
	var f frame
	if json.Unmarshal(line.Data, &f) != nil {
		a.run.Log(line) // no line is lost
		return
	}
	if f.Type != "assistant" || !f.Delta { // the message that came in pieces is complete
		_ = a.run.EndText(fmt.Sprint("text-", a.item))
		a.item++
	}
	switch f.Type {
	case "assistant":
		_ = a.run.Text(fmt.Sprint("text-", a.item), f.Text)
	case "tool_call":
		call := &pb.ToolCall{Id: f.ID, Name: f.Name, Kind: pb.ToolKind_TOOL_KIND_OTHER, InputJson: string(f.Input)}
		call.Status = pb.ToolStatus_TOOL_STATUS_RUNNING
		_ = a.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolCall{ToolCall: call}})
	case "tool_result":
		result := &pb.ToolResult{ToolCallId: f.ToolUseID, Content: f.Content, Status: pb.ToolStatus_TOOL_STATUS_COMPLETED}
		if f.IsError {
			result.Status = pb.ToolStatus_TOOL_STATUS_FAILED
		}
		_ = a.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolResult{ToolResult: result}})
	case "result":
		a.done = &f
		a.run.Done() // it may live on for a moment, and is not waited for
	default:
		a.run.Log(line)
	}
}
