// Program streamtext is an adapter on the generated stubs alone, in fifty lines: it streams its prompt back. It declares
// no duty, so that a router renders its templates, keeps its limits, redacts its events and refuses what it cannot do.
package main

import (
	"context"
	"crypto/rand"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	pb "dragoman/clients/go/dragomanv1"
)

type server struct {
	pb.UnimplementedAdapterServiceServer
}

func (server) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return &pb.DescribeResponse{Adapter: "streamtext", Revision: 1, InstanceId: rand.Text()}, nil
}

func (server) Execute(request *pb.ExecuteRequest, stream grpc.ServerStreamingServer[pb.AgentEvent]) error {
	err := stream.SendHeader(metadata.Pairs("dragoman-run-id", request.GetRunId()))
	sequence := max(request.GetRelay().GetFirstSequence(), 1) - 1
	send := func(event *pb.AgentEvent) {
		sequence++
		event.RunId, event.Sequence, event.Attempt = request.GetRunId(), sequence, max(request.GetRelay().GetFirstAttempt(), 1)
		if event.Origin = pb.EventOrigin_EVENT_ORIGIN_AGENT; err == nil {
			err = stream.Send(event)
		}
	}
	send(&pb.AgentEvent{Body: &pb.AgentEvent_Started{Started: &pb.Started{Adapter: "streamtext"}}})
	for offset, character := range request.GetPrompt() { // as a model does: in pieces, which take their time
		text := &pb.Text{ItemId: "answer", Offset: uint64(offset), Content: &pb.Text_Delta{Delta: string(character)}}
		send(&pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: text}})
		time.Sleep(time.Millisecond)
	}
	send(&pb.AgentEvent{Body: &pb.AgentEvent_Result{Result: &pb.Result{Outcome: pb.Outcome_OUTCOME_SUCCEEDED}}})
	return err
}

func main() {
	listener, err := net.Listen("unix", strings.TrimPrefix(os.Getenv("DRAGOMAN_LISTEN"), "unix:"))
	if err != nil {
		log.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	pb.RegisterAdapterServiceServer(grpcServer, server{})
	grpc_health_v1.RegisterHealthServer(grpcServer, health.NewServer())
	log.Fatal(grpcServer.Serve(listener))
}
