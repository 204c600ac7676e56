package adapter

import (
	"time"

	pb "dragoman/clients/go/dragomanv1"
)

// clocks say when a run has exceeded one of its limits. Silence is not the agent's while a tool call is open, which has a
// limit of its own, nor while it waits for readers of its events, or for an answer.
type clocks struct {
	startUp, idle, wall, toolCall time.Duration // 0: no limit

	acceptedAt time.Time
	startedAt  time.Time // of the agent; zero before
	activeAt   time.Time // of its last sign of life; zero before the first
	waits      int       // for how many reasons it waits for us
	waitsSince time.Time // for the first of them
	calls      []openCall
	areOff     bool // the agent has ended
}

type openCall struct {
	id string
	at time.Time
}

// expiry is the limit that is exceeded next.
type expiry struct {
	at      time.Time
	kind    pb.FailureKind
	code    string
	message string
}

func (c *clocks) start(now time.Time) {
	c.startedAt, c.activeAt, c.calls, c.areOff = now, time.Time{}, nil, false
}

func (c *clocks) active(now time.Time) { c.activeAt = now }

func (c *clocks) wait(now time.Time) {
	if c.waits++; c.waits == 1 {
		c.waitsSince = now
	}
}

func (c *clocks) resume(now time.Time) {
	if c.waits--; c.waits > 0 {
		return
	}
	for i, call := range c.calls { // their time stood still
		if call.at.Before(c.waitsSince) {
			c.calls[i].at = call.at.Add(now.Sub(c.waitsSince))
		} else {
			c.calls[i].at = now
		}
	}
	c.activeAt = now
}

// observe takes note of the beginning and the end of tool calls.
func (c *clocks) observe(event *pb.AgentEvent, now time.Time) {
	switch body := event.GetBody().(type) {
	case *pb.AgentEvent_ToolResult:
		c.endCall(body.ToolResult.GetToolCallId(), now)
	case *pb.AgentEvent_ToolCall:
		call := body.ToolCall
		switch {
		case call.GetStatus() > pb.ToolStatus_TOOL_STATUS_RUNNING:
			c.endCall(call.GetId(), now)
		case call.GetStatus() == pb.ToolStatus_TOOL_STATUS_RUNNING && call.GetKind() != pb.ToolKind_TOOL_KIND_SUBAGENT:
			for _, open := range c.calls {
				if open.id == call.GetId() {
					return
				}
			}
			c.calls = append(c.calls, openCall{call.GetId(), now})
		}
	}
}

func (c *clocks) endCall(id string, now time.Time) {
	for i, open := range c.calls {
		if open.id == id {
			c.calls = append(c.calls[:i], c.calls[i+1:]...)
			c.activeAt = now
			return
		}
	}
}

// next returns the limit that is exceeded next; false if none will be by itself.
func (c *clocks) next() (expiry, bool) {
	var found expiry
	consider := func(limit time.Duration, since time.Time, kind pb.FailureKind, code, message string) {
		if at := since.Add(limit); limit > 0 && (found.at.IsZero() || at.Before(found.at)) {
			found = expiry{at, kind, code, message}
		}
	}
	if c.areOff {
		return found, false
	}
	consider(c.wall, c.acceptedAt, pb.FailureKind_FAILURE_KIND_WALL_TIMEOUT, "wall_timeout",
		"The run took longer than its wall limit. Raise limits.wall if the task needs it.")
	if !c.startedAt.IsZero() && c.waits == 0 {
		since := c.activeAt
		if since.IsZero() {
			since = c.startedAt
			consider(c.startUp, since, pb.FailureKind_FAILURE_KIND_START_TIMEOUT, "start_up_timeout",
				"The agent gave no sign within its start-up limit. Raise limits.start_up, or see why it hangs.")
		}
		if len(c.calls) > 0 {
			consider(c.toolCall, c.calls[0].at, pb.FailureKind_FAILURE_KIND_TOOL_TIMEOUT, "tool_call_timeout",
				"A tool call took longer than its limit. Raise limits.tool_call if the task needs it.")
		} else {
			consider(c.idle, since, pb.FailureKind_FAILURE_KIND_IDLE_TIMEOUT, "idle_timeout",
				"The agent was silent for longer than its idle limit. Raise limits.idle if the task needs it.")
		}
	}
	return found, !found.at.IsZero()
}
