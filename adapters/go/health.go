package adapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

const (
	healthVariable     = "DRAGOMAN_HEALTH"
	drainGraceVariable = "DRAGOMAN_DRAIN_GRACE"
	liveness           = "liveness" // no service: served as long as the process answers, also while it drains

	longestDrain = float64(math.MaxInt64 / int64(time.Second))
)

// healthPort answers Check of health at a port in the clear, and nothing else: for the kubelet, which knows no TLS and no
// Unix socket. It has its own server, so that no other service can come to it by accident. Watch is not served: its
// streams stay open, and who reaches the port could hold many.
type healthPort struct {
	grpc_health_v1.UnimplementedHealthServer
	of grpc_health_v1.HealthServer
}

// Check answers for the adapter's services, and for liveness.
func (h healthPort) Check(
	ctx context.Context, asked *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	if asked.GetService() == liveness {
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
	}
	return h.of.Check(ctx, asked)
}

// ServeHealth answers probes of health in the clear at an address, a port on loopback or host:port, until the returned
// function is called.
func (s *Server) ServeHealth(address string) (stop func(), err error) {
	if _, err := strconv.ParseUint(address, 10, 16); err == nil {
		address = net.JoinHostPort("127.0.0.1", address)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("health cannot be served at %q: %w", address, err)
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(4096), // a request holds the name of a service
		grpc.MaxConcurrentStreams(8),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Minute}), // a probe asks once and goes
	)
	grpc_health_v1.RegisterHealthServer(server, healthPort{of: s.health})
	go func() { _ = server.Serve(listener) }()
	s.logger.Info("health is served", "address", listener.Addr().String())
	return server.Stop, nil
}

// drainGrace returns how long live runs may continue once the adapter is to end.
func drainGrace() (time.Duration, error) {
	text := strings.TrimSpace(os.Getenv(drainGraceVariable))
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(0 <= seconds && seconds < longestDrain) {
		return 0, errors.New(drainGraceVariable + "=" + strconv.Quote(text) + " is no number of seconds; e.g. 300")
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
