// Program scripted is an adapter whose agent is in its own process and performs the steps of the conformance kit: it
// asks and has sessions, which the kit's own program has not.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	mark = "dragoman-script:\n"
	end  = "\n---\n"
)

func main() {
	adapter.Main(&adapter.Adapter{
		Describe: &pb.DescribeResponse{
			Adapter: "scripted_go", Label: "Scripted", Version: "1",
			ConfigSchemaJson: `{"type": "object", "additionalProperties": false, "properties": {}}`,
			Capabilities: adapter.Features(pb.PermissionMode_PERMISSION_MODE_STRICT,
				pb.Feature_FEATURE_PROMPT, pb.Feature_FEATURE_TEXT_DELTAS, pb.Feature_FEATURE_TOOL_START,
				pb.Feature_FEATURE_PERMISSION_REQUESTS, pb.Feature_FEATURE_INPUT_REQUESTS, pb.Feature_FEATURE_SKILLS,
				pb.Feature_FEATURE_RESUME, pb.Feature_FEATURE_RESUME_REJECTION),
		},
		Run: func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
			agent := &agent{ctx: ctx, run: run}
			if err := agent.perform(); err != nil {
				return nil, err
			}
			return &pb.Result{Outcome: pb.Outcome_OUTCOME_SUCCEEDED, Usage: agent.usage}, nil
		},
	})
}

type agent struct {
	ctx   context.Context
	run   *adapter.Run
	rest  string
	items int
	calls int
	isIn  bool // a message that comes in pieces
	usage *pb.Usage
}

func (a *agent) perform() error {
	if err := a.run.Start(&pb.Started{Notes: []string{"performs the steps of its prompt"}}); err != nil {
		return err
	}
	script := ""
	// Skills, and what else goes before the prompt, may precede it.
	if _, found, isThere := strings.Cut(a.run.Prompt, mark); isThere {
		script, a.rest, _ = strings.Cut(found, end)
	}
	for step := range strings.SplitSeq(script, "\n") {
		if step == "" {
			continue
		}
		if err := context.Cause(a.ctx); err != nil {
			return err
		}
		name, value, _ := strings.Cut(step, "=")
		if err := a.step(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) step(name, value string) error {
	switch name {
	case "say":
		return a.say(value)
	case "piece":
		return a.piece(value)
	case "prompt":
		return a.say(fmt.Sprintf("bytes=%d sha256=%x", len(a.run.Prompt), sha256.Sum256([]byte(a.run.Prompt))))
	case "echo":
		return a.say(a.rest[:min(len(a.rest), 200)])
	case "received":
		word, err := hex.DecodeString(value)
		if err != nil {
			return err
		}
		isIn := strings.Contains(a.run.Prompt, string(word)) || a.run.Resume == string(word)
		return a.say(map[bool]string{true: "received: yes", false: "received: no"}[isIn])
	case "env":
		return a.say(a.run.Request.GetEnv()[value])
	case "split":
		secret := a.run.Request.GetEnv()[value]
		return errors.Join(a.piece(secret[:len(secret)/2]), a.piece(secret[len(secret)/2:]))
	case "flood":
		lines, err := strconv.Atoi(value)
		for i := 0; i < lines && err == nil; i++ {
			err = a.say(fmt.Sprintf("%0100d", i))
		}
		return err
	case "usage":
		return a.report(value)
	case "call":
		return a.tool(value, pb.ToolStatus_TOOL_STATUS_RUNNING)
	case "tool":
		return a.tool(value, pb.ToolStatus_TOOL_STATUS_COMPLETED)
	case "failing":
		return a.tool(value, pb.ToolStatus_TOOL_STATUS_FAILED)
	case "session":
		return a.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Session{Session: &pb.Session{NativeId: cmp.Or(a.run.Resume, value)}}})
	case "lost":
		return a.lose()
	case "touch":
		return os.WriteFile(value, nil, 0o600)
	case "wait":
		return a.wait(value)
	case "ask", "write", "question":
		return a.ask(name, value)
	case "fail":
		return &adapter.Failure{Kind: pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, Code: "scripted", Message: value}
	case "hang":
		<-a.ctx.Done()
		return context.Cause(a.ctx)
	}
	return &adapter.Failure{
		Kind: pb.FailureKind_FAILURE_KIND_INVALID_CONFIG, Code: "step",
		Message: fmt.Sprintf("dragoman-script: step '%s' not supported", name),
	}
}

func (a *agent) ask(name, value string) error {
	if name == "question" {
		resolution, err := a.run.Ask(&pb.InputRequest{Kind: pb.InputKind_INPUT_KIND_TEXT, Title: value})
		if err != nil {
			return err
		}
		return a.say("answered " + resolution.Answer.GetText())
	}
	subject := &pb.InputSubject{ToolName: value, ToolKind: pb.ToolKind_TOOL_KIND_EXECUTE}
	if name == "write" {
		subject.ToolName, subject.ToolKind = "write", pb.ToolKind_TOOL_KIND_EDIT
	}
	decision, err := a.run.Permit(subject, adapter.Question{Title: "May I use " + subject.GetToolName() + "?"})
	if err != nil {
		return err
	}
	if name == "write" && decision.Allowed {
		if err := os.WriteFile(value, nil, 0o600); err != nil {
			return err
		}
	}
	return a.say(map[bool]string{true: "allowed", false: "rejected"}[decision.Allowed])
}

func (a *agent) say(text string) error {
	a.isIn = false
	a.items++
	whole := &pb.Text{ItemId: fmt.Sprint("item-", a.items), Content: &pb.Text_Whole{Whole: text}}
	return a.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: whole}})
}

func (a *agent) piece(text string) error {
	if !a.isIn {
		a.isIn = true
		a.items++
	}
	return a.run.Text(fmt.Sprint("item-", a.items), text)
}

// tool reports a tool call, and how it ended unless it still runs.
func (a *agent) tool(name string, end pb.ToolStatus) error {
	a.calls++
	call := &pb.ToolCall{Id: fmt.Sprint("call-", a.calls), Name: name, Kind: pb.ToolKind_TOOL_KIND_OTHER, InputJson: "{}"}
	call.Status = pb.ToolStatus_TOOL_STATUS_RUNNING
	err := a.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolCall{ToolCall: call}})
	if err != nil || end == call.GetStatus() {
		return err
	}
	result := &pb.ToolResult{ToolCallId: call.GetId(), Content: "done", Status: end}
	return a.run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolResult{ToolResult: result}})
}

// report takes note of tokens, "IN,OUT", of which one may be missing.
func (a *agent) report(value string) error {
	input, output, _ := strings.Cut(value, ",")
	tokens := &pb.TokenCounts{}
	for count, text := range map[**uint64]string{&tokens.Input: input, &tokens.Output: output} {
		if text == "" {
			continue // absent is not zero
		}
		number, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return err
		}
		*count = &number
	}
	a.usage = &pb.Usage{Scope: pb.UsageScope_USAGE_SCOPE_RUN, Tokens: tokens}
	return nil
}

// lose says that the session to resume does not exist, and begins a new one.
func (a *agent) lose() error {
	if a.run.Resume == "" {
		return nil
	}
	failure := &adapter.Failure{Kind: pb.FailureKind_FAILURE_KIND_SESSION_LOST, Code: "unknown", Message: "There is no such session."}
	if err := a.run.Retry(failure); err != nil {
		return err
	}
	return a.run.Start(&pb.Started{})
}

func (a *agent) wait(path string) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
