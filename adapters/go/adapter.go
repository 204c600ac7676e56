// Package adapter serves an agent as an AdapterService of Dragoman: what is common to all adapters, so that an author
// writes a description and a function.
//
// It keeps the runs and their events, and serves Execute, Attach, Cancel, Respond, health and reflection; renders
// prompts, redacts secrets, keeps limits and permissions, checks requests, lays out skills, ends orphaned runs, and
// drains on SIGTERM. Run.Exec runs a program with all that it starts under a guard.
//
//	func main() {
//		adapter.Main(&adapter.Adapter{
//			Describe: &pb.DescribeResponse{Adapter: "echo", Label: "Echo"},
//			Run: func(ctx context.Context, run *adapter.Run) (*pb.Result, error) {
//				return nil, run.Text("answer", run.Prompt)
//			},
//		})
//	}
package adapter

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"dragoman/adapters/go/internal/guard"
	"dragoman/adapters/go/internal/request"
	"dragoman/adapters/go/internal/skills"
	pb "dragoman/clients/go/dragomanv1"
)

// Revision of the contract that this package implements.
const Revision = 1

const defaultGrace = 15 * time.Second

// Adapter is what an author supplies.
type Adapter struct {
	// Describe says what the adapter is: its type, label, version, capabilities, the schema of its settings. The server
	// adds what it knows itself: revision, instance, process, and what this package does of a router's duties.
	Describe *pb.DescribeResponse

	// Run does one run. It emits the agent's events and returns how the run ended: nil means that it succeeded, or was
	// stopped if it was asked to. An error that is a *Failure is the agent's failure; any other is a fault of the adapter,
	// whose text is logged and shown to no caller.
	//
	// The context ends when the run is to stop; context.Cause says why. A second after the grace, and after the end of the
	// program that Exec runs, the run ends without Run.
	Run func(ctx context.Context, run *Run) (*pb.Result, error)

	// SkillLayout says where an agent with skills of its own looks for one of them, below a directory that it is given,
	// e.g. ".claude/skills/{name}"; that directory is Run.SkillsDir. Empty, although FEATURE_SKILLS is declared: skills go
	// into the prompt as text.
	SkillLayout string

	// Accept checks a request beyond its schema and its capabilities, before the run exists. May be nil.
	Accept func(request *pb.ExecuteRequest) error

	// Program is the agent's program: a name on the PATH, or a path. The setting "command" names another one. Without
	// Detect, the server looks for it; if both are empty, there is nothing to look for.
	Program string

	// Detect looks for the agent; TestEnvironment asks it, too. Nil: the server looks for Program.
	Detect func(ctx context.Context, request *pb.DetectRequest) (*pb.Detection, error)

	// Checks checks what else a run with this configuration needs, e.g. a login; settings, directory and whether the agent
	// is there are checked already. May be nil.
	Checks func(ctx context.Context, request *pb.TestEnvironmentRequest) ([]*pb.EnvironmentCheck, error)

	// TracerProvider records a span of each run and of each of its tool calls; the context of Run holds the run's span.
	// Nil: none is recorded. The trace that the caller sends reaches the agent, and log lines, in either case.
	TracerProvider trace.TracerProvider
}

// program returns the program of a run with these settings.
func (a *Adapter) program(config map[string]any) string {
	command, _ := config["command"].(string)
	return cmp.Or(command, a.Program)
}

var typeShape = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// described returns the whole description, and the schema of the settings.
func (a *Adapter) described() (*pb.DescribeResponse, *request.Schema, error) {
	if a.Describe == nil || a.Run == nil {
		return nil, nil, errors.New("an adapter needs Describe and Run")
	}
	described := proto.CloneOf(a.Describe)
	if !typeShape.MatchString(described.GetAdapter()) {
		return nil, nil, fmt.Errorf("the type %q does not match %v", described.GetAdapter(), typeShape)
	}
	place := strings.ReplaceAll(a.SkillLayout, "{name}", "name")
	if a.SkillLayout != "" && (place == a.SkillLayout || !skills.IsPlain(place)) {
		return nil, nil, fmt.Errorf("SkillLayout %q is no relative path with {name}", a.SkillLayout)
	}
	schema, err := request.ParseSchema(described.GetConfigSchemaJson())
	if err != nil {
		return nil, nil, err
	}
	described.Label = cmp.Or(described.GetLabel(), described.GetAdapter())
	described.Revision, described.InstanceId, described.Batching = Revision, randomHex(16), true
	described.Pid = proto.Int64(int64(os.Getpid()))
	if described.Capabilities == nil {
		described.Capabilities = &pb.Capabilities{}
	}
	described.Duties = []pb.Duty{
		pb.Duty_DUTY_TEMPLATES, pb.Duty_DUTY_REDACTION, pb.Duty_DUTY_LIMITS, pb.Duty_DUTY_UNATTENDED, pb.Duty_DUTY_REFUSALS,
	}
	return described, schema, nil
}

// Features returns capabilities of an adapter that declares these features.
func Features(mode pb.PermissionMode, features ...pb.Feature) *pb.Capabilities {
	capabilities := &pb.Capabilities{PermissionMode: mode}
	for _, feature := range features {
		capabilities.Items = append(capabilities.Items, &pb.Capability{
			Feature: feature, Origin: pb.CapabilityOrigin_CAPABILITY_ORIGIN_DECLARED,
		})
	}
	return capabilities
}

// Init must come first in a program that does anything before Main, as one that sets up a TracerProvider, or that uses a
// Server without Main, as a test does: a run's guard is this very program, started again, and Init is what it does then. It
// does not return in a guard.
func Init() {
	if guard.Is() {
		guard.Main()
		os.Exit(0)
	}
}

// Main serves an adapter where the variable DRAGOMAN_LISTEN says, and does not return. It ends on SIGTERM or SIGINT,
// once its runs have; a second signal ends these at once. They may continue for the seconds in DRAGOMAN_DRAIN_GRACE before
// they are cancelled. DRAGOMAN_HEALTH is the address of a port in the clear that serves health alone, for probes. Spans that
// the TracerProvider has not exported yet are exported before it ends, if that takes at most five seconds.
func Main(a *Adapter) {
	Init()
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	err := serve(a, logger)
	flushSpans(a.TracerProvider, logger)
	if err != nil {
		logger.Error("adapter failed", "error", err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(a *Adapter, logger *slog.Logger) error {
	address := os.Getenv("DRAGOMAN_LISTEN")
	if address == "" {
		return errors.New("nowhere to listen: set DRAGOMAN_LISTEN, e.g. to unix:$HOME/agent.sock")
	}
	allowed, err := drainGrace()
	if err != nil {
		return err
	}
	server, err := NewServer(a, logger)
	if err != nil {
		return err
	}
	if probed := os.Getenv(healthVariable); probed != "" {
		stop, err := server.ServeHealth(probed)
		if err != nil {
			return err
		}
		defer stop()
	}
	listener, err := Listen(address)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	logger.Info("adapter ready", "adapter", a.Describe.GetAdapter(), "listen", address)
	select {
	case err := <-served:
		return err
	case <-signals:
	}
	logger.Info("adapter draining")
	stopped := make(chan struct{})
	go func() {
		server.Drain(allowed)
		server.Stop(defaultGrace)
		close(stopped)
	}()
	for {
		select {
		case <-signals:
			server.hurry()
		case <-stopped:
			logger.Info("adapter stopped")
			return nil
		}
	}
}

func randomHex(bytes int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}
