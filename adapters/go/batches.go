package adapter

import (
	"google.golang.org/protobuf/proto"

	pb "dragoman/clients/go/dragomanv1"
)

const (
	mostInBatch  = 1024
	largestBatch = 256 << 10
)

// joined returns events with neighbours that may share a batch as one.
func joined(events []*pb.AgentEvent) []*pb.AgentEvent {
	var messages, group []*pb.AgentEvent
	size := 0
	flushGroup := func() {
		switch len(group) {
		case 0:
		case 1:
			messages = append(messages, group[0])
		default:
			batch := &pb.Batch{Events: group}
			last := group[len(group)-1].GetSequence()
			messages = append(messages, &pb.AgentEvent{Sequence: last, Body: &pb.AgentEvent_Batch{Batch: batch}})
		}
		group, size = nil, 0
	}
	for _, event := range events {
		own := proto.Size(event) + 8
		if !mayJoin(event) || own > largestBatch/2 {
			flushGroup()
			messages = append(messages, event)
			continue
		}
		isNext := len(group) > 0 && event.GetSequence() == group[len(group)-1].GetSequence()+1
		if !isNext || len(group) == mostInBatch || size+own > largestBatch-64 {
			flushGroup()
		}
		group = append(group, event)
		size += own
	}
	flushGroup()
	return messages
}

func mayJoin(event *pb.AgentEvent) bool {
	if event.GetSequence() == 0 {
		return false
	}
	switch event.GetBody().(type) {
	case *pb.AgentEvent_Started, *pb.AgentEvent_Session, *pb.AgentEvent_State, *pb.AgentEvent_InputRequest,
		*pb.AgentEvent_InputResolved, *pb.AgentEvent_InputAccepted, *pb.AgentEvent_InputDropped, *pb.AgentEvent_RunUpdated, *pb.AgentEvent_AttemptEnded, *pb.AgentEvent_Gap, *pb.AgentEvent_Result,
		*pb.AgentEvent_Batch, nil:
		return false
	}
	return true
}
