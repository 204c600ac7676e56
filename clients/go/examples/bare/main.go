// Bare is an adapter in a few lines, without an SDK: it says the words of its prompt, and declares no duty. A router
// renders its templates, keeps its limits, redacts its events and refuses what it cannot honour.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	pb "dragoman/clients/go/dragomanv1"
)

type adapter struct {
	pb.UnimplementedAdapterServiceServer
	runs sync.Map // what ends each run, by its ID
}

func (a *adapter) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return &pb.DescribeResponse{Adapter: "bare", Revision: 1, InstanceId: "bare-1"}, nil
}

func (a *adapter) Execute(request *pb.ExecuteRequest, stream grpc.ServerStreamingServer[pb.AgentEvent]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	a.runs.Store(request.RunId, cancel)
	defer a.runs.Delete(request.RunId)
	_ = stream.SendHeader(metadata.Pairs("dragoman-run-id", request.RunId))
	event := &pb.AgentEvent{RunId: request.RunId, Origin: pb.EventOrigin_EVENT_ORIGIN_AGENT}
	event.Sequence = max(request.GetRelay().GetFirstSequence(), 1)
	event.Attempt = max(request.GetRelay().GetFirstAttempt(), 1)
	event.Body = &pb.AgentEvent_Started{Started: &pb.Started{Adapter: "bare", InstanceId: "bare-1"}}
	err := stream.Send(event)
	offset := uint64(0)
	for _, word := range strings.SplitAfter(request.GetPrompt(), " ") {
		if strings.TrimSpace(word) == "forever" {
			<-ctx.Done()
		}
		// "$NAME" is a variable; what it says comes character by character, as from a model.
		for _, piece := range strings.Split(os.Expand(word, func(name string) string { return request.Env[name] }), "") {
			event.Sequence++
			text := &pb.Text{ItemId: "answer", Offset: offset, Content: &pb.Text_Delta{Delta: piece}}
			event.Body = &pb.AgentEvent_Text{Text: text}
			err, offset = stream.Send(event), offset+uint64(len(piece))
		}
	}
	event.Sequence++
	result := &pb.Result{Outcome: pb.Outcome_OUTCOME_SUCCEEDED}
	if ctx.Err() != nil {
		result.Outcome = pb.Outcome_OUTCOME_CANCELLED
	}
	event.Body = &pb.AgentEvent_Result{Result: result}
	if err == nil {
		err = stream.Send(event)
	}
	return err
}

func (a *adapter) Cancel(_ context.Context, request *pb.CancelRequest) (*pb.CancelResponse, error) {
	if cancel, found := a.runs.Load(request.RunId); found {
		cancel.(context.CancelFunc)()
	}
	return &pb.CancelResponse{Outcome: pb.Outcome_OUTCOME_CANCELLED}, nil
}

func server() *grpc.Server {
	server := grpc.NewServer()
	pb.RegisterAdapterServiceServer(server, &adapter{})
	healthpb.RegisterHealthServer(server, health.NewServer())
	return server
}

func main() {
	listener, err := net.Listen("unix", strings.TrimPrefix(os.Getenv("DRAGOMAN_LISTEN"), "unix:"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server().Serve(listener))
}
