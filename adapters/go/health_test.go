package adapter_test

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	serving = grpc_health_v1.HealthCheckResponse_SERVING
)

// freePort returns a port of loopback on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// probe asks as the kubelet does: by TCP, in the clear, without a credential.
func probe(t *testing.T, port string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("127.0.0.1:"+port, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func ask(t *testing.T, connection *grpc.ClientConn, service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
	t.Helper()
	asked := &grpc_health_v1.HealthCheckRequest{Service: service}
	answer, err := grpc_health_v1.NewHealthClient(connection).Check(background(t), asked)
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}

func TestRunsContinueWhileTheAdapterDrains(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	client, server := serve(t, shell(`echo ready; until [ -e "`+gate+`" ]; do sleep 0.02; done`))
	port := freePort(t)
	stop, err := server.ServeHealth(port)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	kubelet := probe(t, port)
	if got := ask(t, kubelet, ""); got != serving {
		t.Errorf("before: %v", got)
	}
	run, err := client.Execute(background(t), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	go func() {
		server.Drain(deadline)
		close(drained)
	}()
	for ask(t, kubelet, "") == serving {
	}
	if got := ask(t, kubelet, "liveness"); got != serving {
		t.Errorf("what drains must not be killed: %v", got)
	}
	another, err := client.Execute(background(t), request(nil))
	if err == nil {
		_, err = another.Recv()
	}
	if dragoman.ReasonOf(err) != dragoman.Draining {
		t.Errorf("a new run: %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if result := resultOf(events(t, run)); result.GetOutcome() != pb.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("got %v", result)
	}
	<-drained
}

func TestTheHealthPortServesHealthAlone(t *testing.T) {
	server, err := adapter.NewServer(described(hang), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	stop, err := server.ServeHealth("127.0.0.1:" + port)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if _, err := server.ServeHealth(port); err == nil {
		t.Error("two listen at one port")
	}
	kubelet := probe(t, port)
	_, err = pb.NewAdapterServiceClient(kubelet).Describe(background(t), &pb.DescribeRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("Describe: %v", err)
	}
	health := grpc_health_v1.NewHealthClient(kubelet)
	watch, err := health.Watch(background(t), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("Watch: %v", err)
	}
	if _, err := health.Check(background(t), &grpc_health_v1.HealthCheckRequest{Service: "another"}); status.Code(err) != codes.NotFound {
		t.Errorf("another service: %v", err)
	}
	if got := ask(t, kubelet, pb.AdapterService_ServiceDesc.ServiceName); got != serving {
		t.Errorf("the adapter's service: %v", got)
	}
}
