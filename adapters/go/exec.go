package adapter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"dragoman/adapters/go/internal/guard"
	"dragoman/adapters/go/internal/redact"
	"dragoman/adapters/go/internal/request"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	maxLine      = 16 << 20
	maxJoined    = 64 << 10 // bytes of lines in one log
	joinedFrom   = 32       // lines in one piece of output from which on they are joined: the program is ahead of us
	rawHead      = 16 << 10
	rawTail      = 16 << 10
	errorTail    = 8 << 10
	lingerOfDone = 5 * time.Second // that a program may live on after it has reported its end
	shownTail    = 400             // bytes of the last output in a message
	defaultPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Command is a program to run.
type Command struct {
	Path  string // a name on the run's PATH, or an absolute path
	Args  []string
	Stdin []byte
	// OpenStdin keeps standard input open after Stdin, for Run.Write, until Run.Done or the program's end.
	OpenStdin bool
	Env       map[string]string // beside the run's variables; those of the settings and of the request win
}

// Line is a line of a program's output.
type Line struct {
	Stream       pb.OutputStream
	Data         []byte // without its newline; valid until the handler returns
	Unterminated bool   // the stream ended without a newline after it
	CutBytes     uint64 // of a line that is too long
}

// Exit is how a program ended, and what is known of why.
type Exit struct {
	Code   *int32         // nil if a signal ended it, or it did not run
	Signal syscall.Signal // 0 if none ended it
	// Errno is the name of the error if the program could not be started, e.g. "ENOENT".
	Errno string
	// Confirmed says that nothing that the program started is left.
	Confirmed bool

	command    string
	isLost     bool // the working directory is gone
	wasStopped bool
	raw        headTail // of standard output that was logged
	stderr     headTail
}

// Exec runs a program in the run's directory, with the run's variables, and waits until it and all that it started is
// gone. It opens the attempt, unless Start did. Each line goes to handle, one after the other; without one, to Log. When
// the run is to stop, the program gets SIGTERM, and is killed after the grace. A panic of handle kills it, and is an error.
func (r *Run) Exec(command Command, handle func(Line)) (*Exit, error) {
	if handle == nil {
		handle = r.Log
	}
	directory, err := r.Dir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(directory, "tmp"), 0o700); err != nil {
		return nil, fmt.Errorf("make the run's directory: %w", err)
	}
	environment := r.environment(command, filepath.Join(directory, "tmp"))
	if err := r.announce(command, environment); err != nil {
		return nil, err
	}
	exit := &Exit{command: command.Path, raw: headTail{head: rawHead, tail: rawTail}, stderr: headTail{tail: errorTail}}
	process, isStopped, err := r.spawn(command, environment, exit)
	if err != nil || process == nil {
		exit.wasStopped, exit.Confirmed = isStopped, true
		return exit, err
	}
	r.feed(process, command)
	var reading sync.WaitGroup
	var handling sync.Mutex
	var fault error
	handle = guarded(handle, func(stack []byte) {
		r.logger.Error("the adapter panicked", "stack", string(stack))
		fault = errors.New("a panic while a line was handled")
		process.Kill()
	})
	for _, output := range []struct {
		stream pb.OutputStream
		pipe   *os.File
	}{
		{pb.OutputStream_OUTPUT_STREAM_STDOUT, process.Stdout}, {pb.OutputStream_OUTPUT_STREAM_STDERR, process.Stderr},
	} {
		reading.Go(func() {
			r.read(output.stream, output.pipe, &handling, handle)
			_ = output.pipe.Close()
		})
	}
	end := process.Wait(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.clocks.areOff = true
		exit.wasStopped = !r.stop.deadline.IsZero()
	})
	r.mu.Lock()
	r.hasExited = true
	r.dropAll(process) // a handler may wait for an answer
	r.mu.Unlock()
	reading.Wait()
	r.mu.Lock()
	r.closeStdin()
	r.process, r.processEnd = nil, time.Now()
	r.hasten()
	r.clocks.areOff = r.isDone // what follows is limited, too
	r.clocks.active(time.Now())
	r.awake()
	exit.raw, exit.stderr = r.captured.raw, r.captured.stderr
	r.mu.Unlock()
	if end.Code != nil {
		code := int32(*end.Code)
		exit.Code = &code
	}
	exit.Signal, exit.Confirmed = end.Signal, end.Proven
	return exit, fault
}

// guarded returns a handler that calls another one until that panics: it runs beside the run, and a panic there would
// end the adapter with all of its runs.
func guarded(handle func(Line), onPanic func(stack []byte)) func(Line) {
	hasPanicked := false
	return func(line Line) {
		if hasPanicked {
			return
		}
		defer func() {
			if recover() != nil {
				hasPanicked = true
				onPanic(debug.Stack())
			}
		}()
		handle(line)
	}
}

// stdin is the standard input of a program, which one writes at a time.
type stdin struct {
	mu   sync.Mutex
	pipe *os.File
}

// feed writes what the command has for the program, and closes its standard input unless it stays open.
func (r *Run) feed(process *guard.Process, command Command) {
	input := &stdin{pipe: process.Stdin}
	input.mu.Lock() // what Write writes comes after
	go func() {
		defer input.mu.Unlock()
		_, _ = process.Stdin.Write(command.Stdin) // a program need not read it
		if !command.OpenStdin {
			_ = process.Stdin.Close()
		}
	}()
	if command.OpenStdin {
		r.mu.Lock()
		r.stdin = input
		r.mu.Unlock()
	}
}

// Write writes to the standard input of the program, which the command kept open.
func (r *Run) Write(data []byte) error {
	r.mu.Lock()
	input := r.stdin
	r.mu.Unlock()
	if input == nil {
		return errors.New("no program runs whose standard input is open")
	}
	input.mu.Lock()
	defer input.mu.Unlock()
	if _, err := input.pipe.Write(data); err != nil {
		return fmt.Errorf("write to the program: %w", err)
	}
	return nil
}

// closeStdin closes the standard input that was kept open; a write that waits returns. The caller holds r.mu.
func (r *Run) closeStdin() {
	if r.stdin != nil {
		_ = r.stdin.pipe.Close()
		r.stdin = nil
	}
}

// spawn starts the program, unless the run is to stop already. Without a process, the exit says why.
func (r *Run) spawn(command Command, environment map[string]string, exit *Exit) (process *guard.Process, isStopped bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stop.deadline.IsZero() {
		return nil, true, nil
	}
	directory := r.Cwd
	if directory == "" {
		directory = r.directory
	}
	variables := make([]string, 0, len(environment))
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		variables = append(variables, name+"="+environment[name])
	}
	process, err = guard.Start(guard.Spec{
		Argv: append([]string{command.Path}, command.Args...), Env: variables, Dir: directory, Marker: r.marker,
	})
	var failed *guard.StartError
	if errors.As(err, &failed) {
		exit.Errno = failed.Errno
		exit.isLost = request.CheckDirectory(directory) != ""
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	r.process, r.hasExited, r.isDone, r.isPiped = process, false, false, true
	r.captured = captured{raw: headTail{head: rawHead, tail: rawTail}, stderr: headTail{tail: errorTail}}
	r.clocks.start(time.Now())
	r.awake()
	running := &pb.State{Phase: pb.RunPhase_RUN_PHASE_RUNNING}
	if pid := int64(process.PID); pid > 0 {
		running.Pid, running.ProcessGroupId = &pid, &pid
		running.Host, running.PidNamespace = placeOfProcesses()
	}
	r.state(running)
	return process, false, nil
}

// placeOfProcesses returns where a process ID of this process means something: the machine's name, and the PID
// namespace, nil where there is none.
func placeOfProcesses() (string, *uint64) {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	var namespace uint64
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return host, nil // another system than Linux
	}
	if _, err := fmt.Sscanf(link, "pid:[%d]", &namespace); err != nil {
		return host, nil
	}
	return host, &namespace
}

// captured is what is kept of output that was logged.
type captured struct{ raw, stderr headTail }

// environment returns all variables of the program.
func (r *Run) environment(command Command, temporary string) map[string]string {
	all := request.Inherited(os.Environ(), request.Prefix(r.Request))
	maps.Copy(all, request.RunVariables(r.Request))
	all["TMPDIR"] = temporary
	maps.Copy(all, r.span.variables())
	maps.Copy(all, command.Env)
	maps.Copy(all, r.settings.Env)
	maps.Copy(all, r.Request.GetEnv())
	if all["PATH"] == "" {
		all["PATH"] = defaultPath
	}
	all[guard.Marker] = r.marker
	return all
}

// announce opens the attempt, unless that was done.
func (r *Run) announce(command Command, environment map[string]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != initial {
		return nil
	}
	shown := map[string]string{}
	for name, value := range environment {
		_, isRequested := r.Request.GetEnv()[name]
		switch {
		case name == guard.Marker || (!isRequested && os.Getenv(name) == value):
		case isRequested || redact.IsSecretEntry(name, value):
			shown[name] = redact.Mask // events show the names of such variables, never their values
		default:
			shown[name] = r.redactor.Text(value)
		}
	}
	argv := append([]string{command.Path}, command.Args...)
	return r.start(&pb.Started{Command: command.Path, Argv: withoutPrompt(argv, r.Prompt), Env: shown})
}

// withoutPrompt returns arguments with the prompt replaced by its length.
func withoutPrompt(argv []string, prompt string) []string {
	mask := fmt.Sprintf("[prompt: %d bytes]", len(prompt))
	shown := slices.Clone(argv)
	for i, argument := range argv {
		switch {
		case prompt == "":
		case argument == prompt:
			shown[i] = mask
		case len(prompt) > 8: // a short one may be in other arguments by chance
			shown[i] = strings.ReplaceAll(argument, prompt, mask)
		}
	}
	return shown
}

// stopProcess ends the program by the deadline. The caller holds r.mu.
func (r *Run) stopProcess() {
	process, deadline := r.process, r.stop.deadline
	process.Terminate()
	time.AfterFunc(time.Until(deadline), process.Kill)
	time.AfterFunc(time.Until(deadline)+guard.StuckAfter, process.KillGuard)
}

// Done says that the program has reported its end: its standard input is closed; if it lives on, it is killed in a
// while, and no limit holds.
func (r *Run) Done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if process := r.process; process != nil && !r.clocks.areOff {
		r.isDone, r.clocks.areOff = true, true
		r.closeStdin()
		time.AfterFunc(lingerOfDone, process.Kill)
	}
}

// Log emits a line as a log. Lines that come together in great number are joined.
func (r *Run) Log(line Line) {
	r.locked(func() { r.logLine(line) })
	r.pace()
}

func (r *Run) logLine(line Line) {
	entry := &pb.Log{Stream: line.Stream, TruncatedBytes: line.CutBytes, Unterminated: line.Unterminated}
	entry.Text = validText(line.Data)
	if entry.Text != string(line.Data) {
		entry.Raw = bytes.Clone(line.Data)
	}
	isWhole := entry.Raw == nil && !line.Unterminated && line.CutBytes == 0
	if last := r.joined; last != nil && isWhole && last.GetStream() == line.Stream && r.joinedBytes+len(entry.GetText()) < maxJoined {
		r.lines = append(r.lines, entry.GetText())
		r.joinedBytes += len(entry.GetText()) + 1
		return
	}
	r.writeLog()
	r.joined, r.lines, r.joinedBytes = entry, []string{entry.GetText()}, len(entry.GetText())
	if !isWhole || !r.isJoining {
		r.writeLog()
	}
}

// writeLog writes the lines that wait.
func (r *Run) writeLog() {
	entry := r.joined
	if entry == nil {
		return
	}
	r.joined = nil
	entry.Text = strings.Join(r.lines, "\n")
	if r.emit(&pb.AgentEvent{Body: &pb.AgentEvent_Log{Log: entry}}) != nil {
		return
	}
	// Redacted by now: a cut may go through a secret.
	if entry.GetStream() == pb.OutputStream_OUTPUT_STREAM_STDERR {
		r.captured.stderr.add(entry.GetText() + "\n")
	} else {
		r.captured.raw.add(entry.GetText() + "\n")
	}
}

// join sets whether lines that are logged are joined from here on.
func (r *Run) join(isJoining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeLog()
	r.isJoining = isJoining
}

// read cuts a stream into lines. The lines of one piece of output are handled together.
func (r *Run) read(stream pb.OutputStream, pipe io.Reader, handling sync.Locker, handle func(Line)) {
	buffer := make([]byte, 64<<10)
	var pending []byte
	cut := uint64(0)
	for {
		n, err := readPipe(pipe, buffer)
		data := r.counted(stream, buffer[:n])
		handling.Lock()
		r.join(bytes.Count(data, []byte("\n")) >= joinedFrom)
		for {
			part, rest, isTerminated := bytes.Cut(data, []byte("\n"))
			if !isTerminated {
				break
			}
			data = rest
			pending, cut = extend(pending, part, cut)
			r.handle(Line{Stream: stream, Data: bytes.TrimSuffix(pending, []byte("\r")), CutBytes: cut}, handle)
			pending, cut = pending[:0], 0
		}
		r.join(false)
		handling.Unlock()
		pending, cut = extend(pending, data, cut)
		if err != nil {
			break
		}
	}
	if len(pending) == 0 && cut == 0 {
		return
	}
	r.mu.Lock()
	if r.isCut { // by the limit of output, which may have cut a secret in two
		pending = pending[:len(r.withoutHalf(string(pending)))]
	}
	r.mu.Unlock()
	handling.Lock()
	defer handling.Unlock()
	r.handle(Line{Stream: stream, Data: pending, CutBytes: cut, Unterminated: true}, handle)
}

func (r *Run) handle(line Line, handle func(Line)) {
	if line.CutBytes > 0 {
		r.mu.Lock()
		r.counters.DroppedBytes += line.CutBytes
		r.mu.Unlock()
		r.Notice(pb.Severity_SEVERITY_WARNING, "line_too_long",
			fmt.Sprintf("A line was longer than %d bytes; %d bytes were cut.", maxLine, line.CutBytes))
	}
	handle(line)
}

func readPipe(pipe io.Reader, buffer []byte) (int, error) {
	if file, isFile := pipe.(*os.File); isFile {
		return guard.Read(file, buffer)
	}
	return pipe.Read(buffer)
}

func extend(pending, part []byte, cut uint64) ([]byte, uint64) {
	room := min(maxLine-len(pending), len(part))
	return append(pending, part[:room]...), cut + uint64(len(part)-room)
}

// counted counts output, which is a sign of life, and returns what the limit leaves of it.
func (r *Run) counted(stream pb.OutputStream, data []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(data) == 0 {
		return data
	}
	r.clocks.active(time.Now())
	if stream == pb.OutputStream_OUTPUT_STREAM_STDERR {
		r.counters.StderrBytes += uint64(len(data))
	} else {
		r.counters.StdoutBytes += uint64(len(data))
	}
	if r.budget == nil {
		return data
	}
	kept := data[:min(uint64(len(data)), *r.budget)]
	*r.budget -= uint64(len(kept))
	if dropped := len(data) - len(kept); dropped > 0 {
		r.counters.DroppedBytes += uint64(dropped)
		r.reportCut()
	}
	return kept
}

// Result returns what a program's end means: code 0 is success. The run's own limits and cancellation come on top.
func (e *Exit) Result() *pb.Result {
	result := &pb.Result{ExitCode: e.Code, TreeConfirmedDead: &e.Confirmed, Outcome: pb.Outcome_OUTCOME_FAILED}
	if e.Signal != 0 {
		result.Signal = signalName(e.Signal)
	}
	if e.Code != nil && *e.Code == 0 && !e.wasStopped {
		result.Outcome = pb.Outcome_OUTCOME_SUCCEEDED
		return result
	}
	result.Failure = e.failure().proto()
	return result
}

// Raw returns head and tail of the output that was logged, and the end of what was logged of standard error.
func (e *Exit) Raw() (head, tail, stderr string) {
	head, tail = e.raw.parts()
	_, stderr = e.stderr.parts()
	return head, tail, stderr
}

func (e *Exit) failure() *Failure {
	switch {
	case e.isLost:
		return &Failure{
			Kind: pb.FailureKind_FAILURE_KIND_WORKSPACE_FAILED, Code: "cwd_absent",
			Message: "The working directory was removed before the agent was started.",
		}
	case e.Errno == "ENOENT":
		return &Failure{
			Kind: pb.FailureKind_FAILURE_KIND_NOT_INSTALLED, Code: "command_not_found",
			Message: fmt.Sprintf("%s was not found on the run's PATH: that of the request's env, else of the adapter. "+
				"Install it there, or name its path.", e.command),
		}
	case e.Errno != "":
		return &Failure{
			Kind: pb.FailureKind_FAILURE_KIND_SPAWN_FAILED, Code: "spawn_" + strings.ToLower(e.Errno),
			Message: fmt.Sprintf("%s could not be started (%s).", e.command, e.Errno),
		}
	}
	head, tail, last := e.Raw()
	if strings.TrimSpace(last) == "" {
		last = head + tail
	}
	if last = strings.TrimSpace(last); last != "" {
		last = strings.ToValidUTF8(last[max(0, len(last)-shownTail):], "")
		last = " Its last output: " + last
	}
	switch {
	case e.Signal != 0:
		return &Failure{
			Kind: pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, Code: "signal",
			Message: fmt.Sprintf("The agent was ended by %s.%s", signalName(e.Signal), last),
		}
	case e.Code == nil:
		return &Failure{
			Kind: pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, Code: "vanished",
			Message: "The agent is gone; its exit was not observed." + last,
		}
	}
	return &Failure{
		Kind: pb.FailureKind_FAILURE_KIND_PROCESS_CRASHED, Code: "exit_code",
		Message: fmt.Sprintf("The agent exited with code %d.%s", *e.Code, last),
	}
}

func signalName(number syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGHUP: "SIGHUP", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGILL: "SIGILL",
		syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE", syscall.SIGKILL: "SIGKILL",
		syscall.SIGUSR1: "SIGUSR1", syscall.SIGSEGV: "SIGSEGV", syscall.SIGUSR2: "SIGUSR2", syscall.SIGPIPE: "SIGPIPE",
		syscall.SIGALRM: "SIGALRM", syscall.SIGTERM: "SIGTERM", syscall.SIGTRAP: "SIGTRAP", syscall.SIGXCPU: "SIGXCPU",
	}
	if name := names[number]; name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(number))
}

// headTail keeps the first and the last bytes of a text.
type headTail struct {
	head, tail int
	first      []byte
	last       []byte
}

func (h *headTail) add(text string) {
	if room := h.head - len(h.first); room > 0 {
		part := cutText(text, room)
		h.first = append(h.first, part...)
		if text = text[len(part):]; text != "" {
			h.head = len(h.first) // full, if only because a character did not fit
		}
	}
	h.last = append(h.last, text...)
	if excess := len(h.last) - h.tail; excess > h.tail {
		h.last = append(h.last[:0], h.last[excess:]...)
	}
}

func (h *headTail) parts() (first, last string) {
	tail := h.last[max(0, len(h.last)-h.tail):]
	return string(h.first), strings.ToValidUTF8(string(tail), "")
}

// LookPath returns where a program is that is found in a PATH, or is a path itself; empty if it is not there.
func LookPath(program, path string) string { return guard.LookPath(program, path) }
