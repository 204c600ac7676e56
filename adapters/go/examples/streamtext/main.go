// Program streamtext is an adapter on the generated stubs alone: it streams its prompt back, and does nothing of what a
// router does for an adapter that declares no duties.
package main

import (
	"context"
	"crypto/rand"
	"log"
	"net"
	"os"
	"strings"

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
	if err := stream.SendHeader(metadata.Pairs("dragoman-run-id", request.GetRunId())); err != nil {
		return err
	}
	events := []*pb.AgentEvent{{Body: &pb.AgentEvent_Started{Started: &pb.Started{Adapter: "streamtext"}}}}
	offset := uint64(0)
	for word := range strings.SplitAfterSeq(request.GetPrompt(), " ") {
		text := &pb.Text{ItemId: "answer", Offset: offset, Content: &pb.Text_Delta{Delta: word}}
		events, offset = append(events, &pb.AgentEvent{Body: &pb.AgentEvent_Text{Text: text}}), offset+uint64(len(word))
	}
	result := &pb.Result{Outcome: pb.Outcome_OUTCOME_SUCCEEDED}
	for i, event := range append(events, &pb.AgentEvent{Body: &pb.AgentEvent_Result{Result: result}}) {
		event.RunId, event.Sequence, event.Attempt = request.GetRunId(), uint64(i+1), 1
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	return nil
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
