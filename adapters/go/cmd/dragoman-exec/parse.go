package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	summaryLines      = 5
	summaryCharacters = 400        // of one line
	longestAnswer     = 256 * 1024 // characters of an answer that make the summary
)

// texts takes lines as lines. The last ones are the summary.
type texts struct {
	run  *adapter.Run
	last []string
}

func (t *texts) line(line adapter.Line) {
	t.run.Log(line)
	if line.Stream != pb.OutputStream_OUTPUT_STREAM_STDOUT || len(bytes.TrimSpace(line.Data)) == 0 {
		return
	}
	t.last = append(t.last, shortened(t.run.Redact(string(line.Data)), summaryCharacters))
	if len(t.last) > summaryLines {
		t.last = t.last[1:]
	}
}

func (t *texts) result(exit *adapter.Exit) *pb.Result {
	result := exit.Result()
	result.Summary = strings.Join(t.last, "\n")
	withRaw(result, exit)
	return result
}

// withRaw adds what could not be parsed to the result of a run that did not succeed.
func withRaw(result *pb.Result, exit *adapter.Exit) {
	if result.GetOutcome() == pb.Outcome_OUTCOME_SUCCEEDED || result.GetRawJson() != "" {
		return
	}
	head, tail, stderr := exit.Raw()
	result.RawHead, result.RawTail = head, tail
	if tail == "" {
		result.RawTail = stderr
	}
}

// objects takes one JSON object a line; anything else becomes a log.
type objects struct {
	run      *adapter.Run
	items    int
	open     string // the item that pieces continue; empty if none is open
	answer   strings.Builder
	model    string
	frame    string // the present line, if the caller asked for it
	isKnown  bool   // anything but garbage came
	terminal *frame // the command's own report that it is done
	raw      string
}

// frame is an object, as far as its type says. Values of another type than is due read as absent.
type frame map[string]any

func (f frame) text(key string) string {
	text, _ := f[key].(string)
	return text
}

func (f frame) count(key string) *uint64 {
	number, isNumber := f[key].(float64)
	if !isNumber || number < 0 || number != math.Trunc(number) || number > math.MaxInt64 {
		return nil
	}
	count := uint64(number)
	return &count
}

func (o *objects) line(line adapter.Line) {
	var parsed frame
	if line.Stream != pb.OutputStream_OUTPUT_STREAM_STDOUT || json.Unmarshal(line.Data, &parsed) != nil || parsed == nil {
		o.run.Log(line)
		return
	}
	o.isKnown = true
	kind := parsed.text("type")
	if isPiece := kind == "assistant" && parsed["delta"] == true; !isPiece {
		o.pause()
	}
	if o.run.Request.GetIncludeNative() {
		o.frame = strings.ToValidUTF8(string(line.Data), "\ufffd")
	}
	switch kind {
	case "init":
		o.model = parsed.text("model")
		o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_Session{Session: &pb.Session{
			NativeId: parsed.text("sessionId"), DisplayId: parsed.text("sessionId"), Model: o.model,
		}}})
	case "assistant":
		o.assistant(parsed)
	case "thinking":
		o.items++
		o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_Thinking{Thinking: &pb.Thinking{
			ItemId: fmt.Sprintf("thinking-%d", o.items), Content: &pb.Thinking_Whole{Whole: parsed.text("text")},
		}}})
	case "user":
		o.message(pb.MessageRole_MESSAGE_ROLE_USER, parsed)
	case "system":
		o.message(pb.MessageRole_MESSAGE_ROLE_SYSTEM, parsed)
	case "tool_call":
		o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolCall{ToolCall: &pb.ToolCall{
			Id: parsed.text("id"), Name: parsed.text("name"), Kind: pb.ToolKind_TOOL_KIND_OTHER,
			InputJson: compact(line.Data, "input", "{}"), Status: pb.ToolStatus_TOOL_STATUS_RUNNING,
		}}})
	case "tool_result":
		o.toolResult(parsed, line.Data)
	case "result":
		o.terminal, o.raw = &parsed, compact(line.Data, "", "")
		o.run.Done()
	default:
		o.run.Log(line)
	}
}

// emit writes an event; after the end of the run there is no reader that misses it.
func (o *objects) emit(event *pb.AgentEvent) {
	if o.frame != "" { // with the first event of a line
		event.Native = &pb.NativeFrame{Protocol: "process-lines", Text: o.frame}
		o.frame = ""
	}
	_ = o.run.Emit(event)
}

func (o *objects) assistant(parsed frame) {
	words := parsed.text("text")
	if parsed["delta"] == true {
		if words == "" {
			return
		}
		if o.open == "" {
			o.items++
			o.open = fmt.Sprintf("text-%d", o.items)
			o.answer.Reset()
		}
		o.answer.WriteString(words)
		o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: &pb.Text{ItemId: o.open, Content: &pb.Text_Delta{Delta: words}}}})
		return
	}
	o.items++
	o.answer.Reset()
	o.answer.WriteString(words)
	o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: &pb.Text{
		ItemId: fmt.Sprintf("text-%d", o.items), Content: &pb.Text_Whole{Whole: words},
	}}})
}

// pause ends the item that pieces continue, so that nothing of it is held back until after what follows.
func (o *objects) pause() {
	if o.open != "" {
		o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: &pb.Text{ItemId: o.open}}})
		o.open = ""
	}
}

func (o *objects) message(role pb.MessageRole, parsed frame) {
	message := &pb.Message{Role: role, Text: parsed.text("text")}
	o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_Message{Message: message}})
}

func (o *objects) toolResult(parsed frame, data []byte) {
	result := &pb.ToolResult{ToolCallId: parsed.text("toolUseId"), Status: pb.ToolStatus_TOOL_STATUS_COMPLETED}
	if content, isText := parsed["content"].(string); isText {
		result.Content = content
	} else {
		result.Content = compact(data, "content", "")
	}
	if isError, isBool := parsed["isError"].(bool); isBool {
		result.IsError = &isError
		if isError {
			result.Status = pb.ToolStatus_TOOL_STATUS_FAILED
		}
	}
	o.emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolResult{ToolResult: result}})
}

// result returns how the run ended: the command's own report outranks its exit code.
func (o *objects) result(exit *adapter.Exit) *pb.Result {
	o.pause()
	result := exit.Result()
	result.Model, result.Summary = o.model, shortened(o.run.Redact(o.answer.String()), longestAnswer)
	if o.terminal == nil {
		o.refuseGarbage(result, exit)
		withRaw(result, exit)
		return result
	}
	parsed := *o.terminal
	if text := parsed.text("text"); text != "" {
		result.Summary = text
	}
	result.Subtype, result.RawJson, result.Usage = parsed.text("subtype"), o.raw, usage(parsed)
	if parsed["isError"] != true {
		result.Outcome, result.Failure = pb.Outcome_OUTCOME_SUCCEEDED, nil
		return result
	}
	result.Outcome = pb.Outcome_OUTCOME_FAILED
	result.Failure = &pb.Failure{
		Kind: pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, Code: "reported", Retryable: true, Message: result.GetSummary(),
	}
	if result.GetFailure().GetMessage() == "" {
		result.Failure.Message = "The command reports an error in its result."
	}
	if listed, isList := parsed["errors"].([]any); isList {
		for _, item := range listed {
			if text, isText := item.(string); isText {
				result.Failure.Errors = append(result.Failure.Errors, text)
			}
		}
	}
	return result
}

// refuseGarbage makes a failure of a command that printed lines, and no JSON at all.
func (o *objects) refuseGarbage(result *pb.Result, exit *adapter.Exit) {
	head, tail, stderr := exit.Raw()
	if o.isKnown || strings.TrimSpace(head+tail) == "" || exit.Code == nil {
		return
	}
	last := strings.TrimSpace(cmp.Or(strings.TrimSpace(stderr), head+tail))
	code := "unparseable_output"
	if *exit.Code != 0 {
		code = "exit_code"
	}
	result.Outcome = pb.Outcome_OUTCOME_FAILED
	result.Failure = &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_UNPARSEABLE_OUTPUT, Code: code, Message: fmt.Sprintf(
		"The adapter recognized none of the command's output; it exited with code %d. Its last output: %s",
		*exit.Code, strings.ToValidUTF8(last[max(0, len(last)-400):], ""))}
}

func usage(parsed frame) *pb.Usage {
	tokens := &pb.TokenCounts{
		Input: parsed.count("inputTokens"), Output: parsed.count("outputTokens"), CacheRead: parsed.count("cachedTokens"),
	}
	cost, hasCost := parsed["costUsd"].(float64)
	hasCost = hasCost && cost >= 0
	hasTokens := tokens.Input != nil || tokens.Output != nil || tokens.CacheRead != nil
	if !hasTokens && !hasCost {
		return nil
	}
	found := &pb.Usage{
		Scope: pb.UsageScope_USAGE_SCOPE_RUN, Semantics: pb.UsageSemantics_USAGE_SEMANTICS_CUMULATIVE,
	}
	if hasTokens {
		found.Tokens = tokens
	}
	if hasCost {
		amount := strings.TrimRight(strings.TrimRight(strconv.FormatFloat(cost, 'f', 10, 64), "0"), ".")
		found.Cost = &pb.Cost{Amount: amount, Currency: "USD", Basis: pb.CostBasis_COST_BASIS_REPORTED}
	}
	return found
}

// compact returns an object, or what is under one of its keys, as JSON on one line with its keys in their order.
func compact(object []byte, key, absent string) string {
	value := json.RawMessage(object)
	if key != "" {
		var members map[string]json.RawMessage
		if json.Unmarshal(object, &members) != nil || members[key] == nil {
			return absent
		}
		value = members[key]
	}
	var out bytes.Buffer
	if json.Compact(&out, value) != nil {
		return absent
	}
	return out.String()
}

// shortened shortens a text between words: half a secret would not be recognised.
func shortened(text string, most int) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	kept := string([]rune(text)[:most+1])
	kept = kept[:max(0, strings.LastIndex(kept, " "))]
	return strings.TrimLeft(kept+" ...", " ")
}
