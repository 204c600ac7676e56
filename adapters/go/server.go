package adapter

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"dragoman/adapters/go/internal/eventlog"
	"dragoman/adapters/go/internal/guard"
	"dragoman/adapters/go/internal/request"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	mib = 1 << 20

	runIDKey       = "dragoman-run-id"
	flush          = time.Second      // that streams may still write once the runs have ended
	concludeWithin = time.Second      // that a Run function may take to return after the grace, and after its program
	drainMargin    = 15 * time.Second // after the grace that a run may take to end when the server stops
	killMargin     = guard.StuckAfter + 4*time.Second
)

// Server serves one adapter.
type Server struct {
	pb.UnimplementedAdapterServiceServer

	adapter   *Adapter
	described *pb.DescribeResponse
	schema    *request.Schema
	logger    *slog.Logger
	store     *store
	transport transport
	trust     atomic.Pointer[trust] // nil without a table, and on Unix sockets
	grpc      *grpc.Server
	health    *health.Server
	driving   sync.WaitGroup
	streams   sync.WaitGroup
	ending    chan struct{} // closed when the streams end
	stop      sync.Once

	mu         sync.Mutex
	isDraining bool
}

// NewServer returns a server of an adapter. It reads the files of TLS that the environment names.
func NewServer(a *Adapter, logger *slog.Logger) (*Server, error) {
	described, schema, err := a.described()
	if err != nil {
		return nil, err
	}
	transport, err := newTransport()
	if err != nil {
		return nil, err
	}
	s := &Server{
		transport: transport, adapter: a, described: described, schema: schema, logger: logger, store: newStore(), health: health.NewServer(),
		ending: make(chan struct{}),
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(transport),
		grpc.MaxRecvMsgSize(32*mib), // above the contract's own limit, so that that one is reported, with a reason
		grpc.MaxSendMsgSize(17*mib),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			return dragoman.Errorf(dragoman.NotImplemented, "%s is not served here", method)
		}),
	)
	pb.RegisterAdapterServiceServer(s.grpc, s)
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	s.health.SetServingStatus(pb.AdapterService_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	reflection.Register(s.grpc)
	return s, nil
}

// Serve serves a listener until Stop. One that other machines can reach is refused without TLS. On TCP, the file that
// DRAGOMAN_TRUST names says which certificates stand for a token.
func (s *Server) Serve(listener net.Listener) error {
	if err := s.transport.mayServe(listener); err != nil {
		return errors.Join(err, listener.Close())
	}
	if _, isTCP := listener.Addr().(*net.TCPAddr); isTCP {
		trust, err := openTrust(s.logger)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		s.trust.Store(trust)
	}
	return s.grpc.Serve(listener)
}

// The boundary: who may call, how large requests are, and statuses of what goes wrong.

func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer s.recovered(ctx, info.FullMethod, &err)
	if err := s.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if err := checkBounds(info.FullMethod, request); err != nil {
		return nil, err
	}
	response, err = handler(ctx, request)
	return response, s.explained(ctx, info.FullMethod, err)
}

func (s *Server) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer s.recovered(stream.Context(), info.FullMethod, &err)
	if err := s.admit(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return s.explained(stream.Context(), info.FullMethod, handler(server, &bounded{ServerStream: stream, method: info.FullMethod}))
}

// bounded is a stream whose requests are checked.
type bounded struct {
	grpc.ServerStream
	method string
}

func (b *bounded) RecvMsg(message any) error {
	if err := b.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return checkBounds(b.method, message)
}

func checkBounds(method string, message any) error {
	if received, isMessage := message.(proto.Message); isMessage && strings.HasPrefix(method, "/dragoman.") {
		return request.CheckBounds(received)
	}
	return nil
}

// explained returns an error with a reason of the contract.
func (s *Server) explained(ctx context.Context, method string, err error) error {
	var known *dragoman.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case status.Code(err) == codes.NotFound && strings.HasPrefix(method, "/grpc.health.v1.Health/"):
		return dragoman.Errorf(dragoman.ServiceUnknown, "there is no such service here; '' is all of them")
	case status.Code(err) == codes.Unimplemented:
		return dragoman.Errorf(dragoman.NotImplemented, "%s is not served here", method)
	case status.Code(err) == codes.Canceled, status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Unavailable,
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err // the caller went away
	}
	return s.incident(ctx, method, "error", err.Error())
}

func (s *Server) recovered(ctx context.Context, method string, err *error) {
	if fault := recover(); fault != nil {
		*err = s.incident(ctx, method, "stack", string(debug.Stack()))
	}
}

func (s *Server) incident(ctx context.Context, method, key, detail string) error {
	incident := randomHex(6)
	receivedTrace(ctx).logged(s.logger).Error("internal error", "rpc", method, "incident", incident, key, detail)
	return dragoman.Errorf(dragoman.Internal, "internal error; the server's log has more under incident %s", incident).
		WithMetadata("incident", incident)
}

func (s *Server) checkName(name string) error {
	if name == "" || name == s.described.GetAdapter() || slices.Contains(s.described.GetAliases(), name) {
		return nil
	}
	return dragoman.Errorf(dragoman.AdapterNotFound, "this sidecar serves %s, not %q", s.described.GetAdapter(), name).
		WithMetadata("adapter", name).WithMetadata("did_you_mean", s.described.GetAdapter())
}

// Describe says what the adapter is.
func (s *Server) Describe(_ context.Context, request *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return s.described, s.checkName(request.GetAdapter())
}

// Detect looks for the agent.
func (s *Server) Detect(ctx context.Context, request *pb.DetectRequest) (*pb.DetectResponse, error) {
	if err := s.checkName(request.GetAdapter()); err != nil {
		return nil, err
	}
	found, err := s.find(ctx, request)
	if err != nil {
		return nil, err
	}
	if found == nil {
		found = &pb.Detection{
			Available: true, Auth: pb.AuthState_AUTH_STATE_NOT_NEEDED,
			Confidence: pb.DetectionConfidence_DETECTION_CONFIDENCE_NOT_APPLICABLE,
			Message:    s.described.GetLabel() + " needs no agent.",
		}
	}
	found.Adapter, found.Label = s.described.GetAdapter(), s.described.GetLabel()
	found.DetectedAt = timestamppb.Now()
	if found.Capabilities == nil {
		found.Capabilities = s.described.GetCapabilities()
	}
	return &pb.DetectResponse{Detections: []*pb.Detection{found}}, nil
}

// find looks for the agent; nil if there is nothing to look for.
func (s *Server) find(ctx context.Context, asked *pb.DetectRequest) (*pb.Detection, error) {
	if s.adapter.Detect != nil {
		return s.adapter.Detect(ctx, asked)
	}
	program := s.adapter.program(asked.GetConfig().AsMap())
	if program == "" {
		return nil, nil
	}
	path := LookPath(program, cmp.Or(asked.GetEnv()["PATH"], os.Getenv("PATH"), defaultPath))
	if path == "" {
		return &pb.Detection{
			Confidence: pb.DetectionConfidence_DETECTION_CONFIDENCE_ABSENT,
			Message:    program + " was not found.", Hint: "Install it, or set config.command to its path.",
		}, nil
	}
	return &pb.Detection{
		Available: true, Executable: path, Auth: pb.AuthState_AUTH_STATE_UNKNOWN,
		Confidence: pb.DetectionConfidence_DETECTION_CONFIDENCE_EXECUTABLE_ONLY, Message: program + " is installed.",
	}, nil
}

// TestEnvironment checks whether a run with this configuration would work.
func (s *Server) TestEnvironment(ctx context.Context, asked *pb.TestEnvironmentRequest) (*pb.TestEnvironmentResponse, error) {
	if err := s.checkName(asked.GetAdapter()); err != nil {
		return nil, err
	}
	var checks []*pb.EnvironmentCheck
	add := func(level pb.Severity, code, message string) {
		checks = append(checks, &pb.EnvironmentCheck{Code: code, Level: level, Message: message})
	}
	config := asked.GetConfig().AsMap()
	wrong := s.schema.Check(config)
	for _, violation := range wrong {
		add(pb.Severity_SEVERITY_ERROR, "config_invalid", violation.Field+": "+violation.Description)
	}
	if len(wrong) == 0 {
		add(pb.Severity_SEVERITY_INFO, "config_valid", "The settings are valid.")
	}
	if request.Has(s.described, pb.Feature_FEATURE_WORKSPACE) {
		cwd := asked.GetWorkspace().GetCwd()
		if configured, isText := config["cwd"].(string); isText && cwd == "" {
			cwd = configured
		}
		if problem := request.CheckDirectory(cwd); problem != "" {
			add(pb.Severity_SEVERITY_ERROR, "cwd_invalid", problem)
		} else {
			add(pb.Severity_SEVERITY_INFO, "cwd_valid", "The working directory can be used.")
		}
	}
	agent, err := s.agentChecks(ctx, asked)
	if err != nil {
		return nil, err
	}
	checks = append(checks, agent...)
	if s.adapter.Checks != nil {
		more, err := s.adapter.Checks(ctx, asked)
		if err != nil {
			return nil, err
		}
		checks = append(checks, more...)
	}
	worst := pb.TestStatus_TEST_STATUS_PASS
	for _, check := range checks {
		switch check.GetLevel() {
		case pb.Severity_SEVERITY_ERROR:
			worst = pb.TestStatus_TEST_STATUS_FAIL
		case pb.Severity_SEVERITY_WARNING:
			worst = max(worst, pb.TestStatus_TEST_STATUS_WARN)
		}
	}
	return &pb.TestEnvironmentResponse{
		Adapter: s.described.GetAdapter(), Status: worst, Checks: checks, TestedAt: timestamppb.Now(),
		Mode: max(asked.GetMode(), pb.TestMode_TEST_MODE_QUICK),
	}, nil
}

// agentChecks says whether the agent is there, if there is one to look for.
func (s *Server) agentChecks(ctx context.Context, asked *pb.TestEnvironmentRequest) ([]*pb.EnvironmentCheck, error) {
	found, err := s.find(ctx, &pb.DetectRequest{Config: asked.GetConfig(), Env: asked.GetEnv()})
	if err != nil || found == nil {
		return nil, err
	}
	check := &pb.EnvironmentCheck{Code: "command_found", Level: pb.Severity_SEVERITY_INFO, Message: found.GetMessage()}
	if !found.GetAvailable() {
		check.Code, check.Level, check.Hint = "command_not_found", pb.Severity_SEVERITY_ERROR, found.GetHint()
	}
	return []*pb.EnvironmentCheck{check}, nil
}

// ListModels lists the models of the description.
func (s *Server) ListModels(_ context.Context, request *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	response := &pb.ListModelsResponse{Models: s.described.GetModels(), Source: pb.ModelSource_MODEL_SOURCE_STATIC}
	return response, s.checkName(request.GetAdapter())
}

// ListSkills lists none: adapters of this package have no skills of their own.
func (s *Server) ListSkills(_ context.Context, request *pb.ListSkillsRequest) (*pb.ListSkillsResponse, error) {
	return &pb.ListSkillsResponse{}, s.checkName(request.GetAdapter())
}

var runIDShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Execute starts a run, or joins the one that has this ID and this request; then it streams the run.
func (s *Server) Execute(asked *pb.ExecuteRequest, stream grpc.ServerStreamingServer[pb.AgentEvent]) error {
	if err := s.checkName(asked.GetAdapter()); err != nil {
		return err
	}
	if asked.GetRunId() == "" {
		asked.RunId = "run-" + randomHex(12)
	} else if !runIDShape.MatchString(asked.GetRunId()) {
		return dragoman.FieldError(dragoman.InvalidRequest, "run_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
	}
	run, err := s.store.join(asked, func() (*Run, error) { return s.accept(stream.Context(), asked) })
	if err != nil {
		return err
	}
	run.holders.acquire()
	isServers := false
	defer func() { run.holders.release(isServers) }()
	if err := stream.SendHeader(metadata.Pairs(runIDKey, asked.GetRunId())); err != nil {
		return err
	}
	after := max(run.Request.GetRelay().GetFirstSequence(), 1) - 1
	err = s.follow(run, stream, eventlog.Options{After: after, Holds: true}, asked.GetBatching() != nil)
	isServers = endedByServer(err)
	return err
}

// Attach follows a run.
func (s *Server) Attach(asked *pb.AttachRequest, stream grpc.ServerStreamingServer[pb.AgentEvent]) error {
	if err := s.checkName(asked.GetAdapter()); err != nil {
		return err
	}
	run, err := s.store.find(asked.GetRunId())
	if err != nil {
		return err
	}
	isServers := false
	if asked.GetHold() {
		run.holders.acquire()
		defer func() { run.holders.release(isServers) }()
	}
	options := eventlog.Options{After: asked.GetAfterSequence(), Holds: asked.GetHold(), ReplayDone: true}
	err = s.follow(run, stream, options, asked.GetBatching() != nil)
	isServers = endedByServer(err)
	return err
}

func endedByServer(err error) bool {
	reason := dragoman.ReasonOf(err)
	return reason == dragoman.SlowConsumer || reason == dragoman.Draining
}

// accept checks a request and begins its run. The caller holds the store, which has none with this ID.
func (s *Server) accept(ctx context.Context, asked *pb.ExecuteRequest) (*Run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDraining {
		return nil, draining()
	}
	settings, err := request.Accept(asked, s.described, s.schema)
	if err != nil {
		return nil, err
	}
	if other := s.store.resuming(settings.Session.InUse()); other != "" {
		return nil, dragoman.Errorf(dragoman.SessionBusy, "run %q uses this session; wait for it, or fork the session", other).
			WithMetadata("run_id", other)
	}
	if s.adapter.Accept != nil {
		if err := s.adapter.Accept(asked); err != nil {
			return nil, err
		}
	}
	run := newRun(asked, settings, s.described, s.logger,
		beginSpan(s.adapter.TracerProvider, s.described.GetAdapter(), asked, receivedTrace(ctx)))
	run.Program = s.adapter.program(settings.Config)
	run.holders = newHolders(asked.GetOrphanAfter().AsDuration(), func() {
		run.cancel(settings.Grace, "no client is attached")
	})
	s.driving.Add(1)
	go s.drive(run)
	go run.watch()
	return run, nil
}

func draining() *dragoman.Error {
	err := dragoman.Errorf(dragoman.Draining, "this server is shutting down")
	err.RetryAfter = time.Second
	return err
}

// drive does a run, and ends it whatever its adapter does.
func (s *Server) drive(run *Run) {
	defer s.driving.Done()
	run.logger.Info("run accepted")
	type outcome struct {
		result *pb.Result
		err    error
	}
	returned := make(chan outcome, 1)
	go func() {
		var own outcome
		defer func() {
			if fault := recover(); fault != nil {
				run.logger.Error("the adapter panicked", "stack", string(debug.Stack()))
				own = outcome{nil, errors.New("a panic")}
			}
			returned <- own
		}()
		if own.err = run.prepare(s.adapter.SkillLayout); own.err == nil {
			own.result, own.err = s.adapter.Run(run.ctx, run)
		}
	}()
	var own outcome
	for isOver := false; !isOver; {
		select {
		case own = <-returned:
			isOver = true
		case <-run.stop.changed:
		case <-run.abandonment():
			run.logger.Warn("the adapter did not stop its run in time")
			isOver = true
		}
	}
	run.removeDirectory()
	run.finish(run.conclude(own.result, own.err))
	run.holders.close()
	s.store.retire(run)
	run.logger.Info("run ended", "outcome", run.result.GetOutcome().String(), "sequence", run.resultAt)
}

// abandonment returns when a run ends without its adapter: after its grace, and a moment after the end of its program.
func (r *Run) abandonment() <-chan time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop.deadline.IsZero() {
		return nil
	}
	if r.process != nil {
		return time.After(time.Until(r.stop.deadline.Add(killMargin)))
	}
	last := r.stop.deadline
	if r.processEnd.After(last) { // what the program reported is still to be returned
		last = r.processEnd
	}
	return time.After(time.Until(last.Add(concludeWithin)))
}

// Cancel stops a run and says how it ended.
func (s *Server) Cancel(ctx context.Context, asked *pb.CancelRequest) (*pb.CancelResponse, error) {
	if err := s.checkName(asked.GetAdapter()); err != nil {
		return nil, err
	}
	run, err := s.store.find(asked.GetRunId())
	if err != nil {
		return nil, err
	}
	grace := run.settings.Grace
	if asked.GetGrace() != nil {
		grace = asked.GetGrace().AsDuration()
	}
	run.cancel(grace, asked.GetReason())
	select {
	case <-run.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &pb.CancelResponse{
		Outcome: run.result.GetOutcome(), ResultSequence: run.resultAt, TreeConfirmedDead: run.result.TreeConfirmedDead,
	}, nil
}

// Respond answers a request of a run.
func (s *Server) Respond(ctx context.Context, asked *pb.RespondRequest) (*pb.RespondResponse, error) {
	if err := s.checkName(asked.GetAdapter()); err != nil {
		return nil, err
	}
	run, err := s.store.find(asked.GetRunId())
	if err != nil {
		return nil, err
	}
	answer := asked.GetAnswer()
	if answer == nil {
		answer = &pb.InputAnswer{}
	}
	sequence, err := run.respond(asked.GetRequestId(), answer, cmp.Or(asked.GetResponder(), callerName(ctx)))
	if err != nil {
		return nil, err
	}
	return &pb.RespondResponse{Sequence: sequence}, nil
}

// follow writes the events of a run, until it is over.
func (s *Server) follow(run *Run, stream grpc.ServerStreamingServer[pb.AgentEvent], options eventlog.Options, batching bool) error {
	s.streams.Add(1)
	defer s.streams.Done()
	reader, err := run.reader(options)
	if err != nil {
		return dragoman.Errorf(dragoman.SequenceAhead, "after_sequence %d is past the end; the last is %d", options.After, run.log.Last()).
			WithMetadata("last_sequence", strconv.FormatUint(run.log.Last(), 10))
	}
	defer reader.Close()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-s.ending:
			cancel(draining())
		case <-ctx.Done():
		}
	}()
	for {
		written := reader.Cursor()
		events, err := reader.Next(ctx)
		if err != nil {
			return interrupted(err, written)
		}
		if len(events) == 0 {
			return nil
		}
		if batching {
			events = joined(events)
		}
		for _, event := range events {
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

// interrupted returns the status of a stream that the server ends.
func interrupted(err error, written uint64) error {
	last := strconv.FormatUint(written, 10)
	var known *dragoman.Error
	switch {
	case errors.Is(err, eventlog.ErrSlow):
		return dragoman.Errorf(dragoman.SlowConsumer, "this stream's reader was too slow; attach again after sequence %s", last).
			WithMetadata("last_sequence", last)
	case errors.As(err, &known):
		return draining().WithMetadata("last_sequence", last)
	}
	return err
}
