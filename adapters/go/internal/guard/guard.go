// Package guard runs a command under a process of its own, the guard, which ends the command with all that it started:
// when it is asked to, when the command ends, and when the guard's owner is gone.
//
// The guard is this very program, started again under another name, so an adapter is one file.
package guard

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	name = "dragoman-guard"
	// Marker is the environment variable that marks all processes of a run.
	Marker = "DRAGOMAN_RUN_MARKER"

	controlFD, statusFD = 3, 4

	orderTerm, orderKill = 't', 'k'

	linger    = time.Second     // between TERM and KILL for what the command leaves behind
	killBound = 5 * time.Second // after which the guard gives up: a process that is stuck in the kernel
	// StuckAfter is how long after a kill a guard has ended, or is killed itself.
	StuckAfter = killBound + 3*time.Second
	pipeBound  = time.Second // that pipes stay open after all known writers are gone
	pollEvery  = 5 * time.Millisecond
)

// status is what the guard reports, one JSON object a line.
type status struct {
	PID    int    `json:"pid,omitempty"`
	Errno  string `json:"errno,omitempty"`
	Exited bool   `json:"exited,omitempty"`
	Code   int    `json:"code,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Gone   bool   `json:"gone,omitempty"`
	Proven bool   `json:"proven,omitempty"`
}

// Is returns whether this process was started as a guard; then it calls Main and nothing else.
func Is() bool { return len(os.Args) > 3 && os.Args[0] == name }

// Spec is a command to run.
type Spec struct {
	Argv   []string // the program is looked up in the PATH of Env unless it has a slash
	Env    []string // the whole environment, with Marker
	Dir    string
	Marker string
}

// Process is a command under its guard.
type Process struct {
	Stdin          *os.File
	Stdout, Stderr *os.File
	PID            int // 0 if the command killed its guard at once; then Wait reports that it is gone

	guard   *exec.Cmd
	control *os.File
	status  *bufio.Scanner
	marker  string
	mu      sync.Mutex // of writes to control
}

// StartError says that the command was not started, by the name of an errno, e.g. "ENOENT".
type StartError struct{ Errno string }

func (e *StartError) Error() string { return "start the command: " + e.Errno }

// Start runs a command. It returns a *StartError if the command itself cannot be started.
func Start(spec Spec) (*Process, error) {
	program := lookPath(spec)
	if program == "" {
		return nil, &StartError{Errno: "ENOENT"}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the guard: %w", err)
	}
	var ours, theirs []*os.File
	closeAll := func(files []*os.File) {
		for _, file := range files {
			_ = file.Close()
		}
	}
	pipe := func(weRead bool) error {
		reader, writer, err := os.Pipe()
		if err != nil {
			return err
		}
		if weRead {
			reader, writer = writer, reader
		}
		theirs, ours = append(theirs, reader), append(ours, writer)
		return nil
	}
	for _, weRead := range []bool{false, true, true, false, true} { // stdin, stdout, stderr, control, status
		if err := pipe(weRead); err != nil {
			closeAll(append(ours, theirs...))
			return nil, fmt.Errorf("make the guard's pipes: %w", err)
		}
	}
	command := &exec.Cmd{
		Path:        self,
		Args:        append([]string{name, spec.Dir, program}, spec.Argv...),
		Env:         spec.Env,
		Dir:         "/",
		Stdin:       theirs[0],
		Stdout:      theirs[1],
		Stderr:      theirs[2],
		ExtraFiles:  theirs[3:],
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = command.Start()
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		var errno syscall.Errno
		if errors.As(err, &errno) && errno == syscall.E2BIG {
			return nil, &StartError{Errno: "E2BIG"}
		}
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	process := &Process{
		Stdin: ours[0], Stdout: ours[1], Stderr: ours[2],
		guard: command, control: ours[3], status: bufio.NewScanner(ours[4]), marker: spec.Marker,
	}
	first, _ := process.next()
	if first.Errno != "" {
		_ = command.Wait()
		closeAll(ours)
		return nil, &StartError{Errno: first.Errno}
	}
	process.PID = first.PID
	return process, nil
}

func (p *Process) next() (status, bool) {
	var report status
	if !p.status.Scan() || json.Unmarshal(p.status.Bytes(), &report) != nil {
		return status{}, false
	}
	return report, true
}

// Terminate asks the command to end.
func (p *Process) Terminate() { p.order(orderTerm) }

// Kill ends the command and everything beneath it, now. Harmless when it has ended.
func (p *Process) Kill() {
	p.order(orderKill)
	_ = p.guard.Process.Signal(syscall.SIGCONT) // a command may have stopped its guard
}

// KillGuard kills the guard itself, which is stuck.
func (p *Process) KillGuard() { _ = p.guard.Process.Kill() }

func (p *Process) order(order byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.control.Write([]byte{order}) // a guard that has ended needs no orders
}

// End is how a command ended.
type End struct {
	Code   *int // nil if a signal ended it, or it is unknown
	Signal syscall.Signal
	// Proven says that nothing that it started is left.
	Proven bool
}

// Wait waits until the command and everything beneath it is gone. onExit is called once the command itself has ended.
func (p *Process) Wait(onExit func()) End {
	var end End
	hasExited, isGone := false, false
	for {
		report, isThere := p.next()
		if !isThere {
			break
		}
		if report.Exited {
			hasExited = true
			if report.Signal != 0 {
				end.Signal = syscall.Signal(report.Signal)
			} else {
				end.Code = &report.Code
			}
			onExit()
		}
		if report.Gone {
			isGone, end.Proven = true, report.Proven
		}
	}
	_ = p.guard.Wait()
	if !isGone { // the guard was killed, and the processes have lost their keeper
		killMarked(p.marker)
	}
	if !hasExited {
		onExit()
	}
	_ = p.Stdin.Close()
	_ = p.control.Close()
	// What the command wrote is read to its end, unless a process outside holds a pipe open.
	now := time.Now()
	_, _ = p.Stdout.SetReadDeadline(now), p.Stderr.SetReadDeadline(now)
	return end
}

// Read reads output of the command. It ends where the command's output does; after the command's end also if nothing
// comes for a second.
func Read(pipe *os.File, buffer []byte) (int, error) {
	n, err := pipe.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = pipe.SetReadDeadline(time.Now().Add(pipeBound))
		n, err = pipe.Read(buffer)
	}
	return n, err
}

// lookPath returns the program's path; empty if it is not found. A name alone must never reach the system, which would
// look for it in the working directory.
func lookPath(spec Spec) string {
	program := spec.Argv[0]
	if strings.Contains(program, "/") {
		return program
	}
	for _, variable := range spec.Env {
		path, isPath := strings.CutPrefix(variable, "PATH=")
		if !isPath {
			continue
		}
		for _, directory := range filepath.SplitList(path) {
			candidate := filepath.Join(directory, program)
			if filepath.IsAbs(directory) && isExecutable(candidate) {
				return candidate
			}
		}
	}
	return ""
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// LookPath returns the path of a program that is found in a PATH, or is a path; empty if it is not there.
func LookPath(program, path string) string {
	found := lookPath(Spec{Argv: []string{program}, Env: []string{"PATH=" + path}})
	if strings.Contains(found, "/") && isExecutable(found) {
		return found
	}
	return ""
}

// Main is the guard: it starts the command of its arguments, and exits when nothing of it is left.
func Main() {
	// The parent-death signal of the command is about this thread.
	runtime.LockOSThread()
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(statusFD)
	control, reports := os.NewFile(controlFD, "control"), json.NewEncoder(os.NewFile(statusFD, "status"))
	report := func(s status) { _ = reports.Encode(s) } // an owner that is gone is noticed elsewhere
	becomeSubreaper()
	leader, err := syscall.ForkExec(os.Args[2], os.Args[3:], &syscall.ProcAttr{
		Dir: os.Args[1], Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: leaderAttributes(),
	})
	if err != nil {
		report(status{Errno: errnoName(err)})
		return
	}
	for fd := range 3 {
		_ = syscall.Close(fd) // the command's alone, so that readers see when it has ended
	}
	report(status{PID: leader})

	orders := make(chan byte)
	go func() {
		buffer := make([]byte, 1)
		for {
			if n, err := control.Read(buffer); n == 0 || err != nil {
				orders <- orderKill // the owner is gone
				return
			}
			orders <- buffer[0]
		}
	}()
	ends := make(chan syscall.WaitStatus, 1)
	tree := &tree{leader: leader, ends: ends}
	ticker := time.NewTicker(pollEvery)
	children := make(chan os.Signal, 1)
	notifyChildren(children)
	isKilled := false
	for {
		tree.reap()
		select {
		case end := <-ends:
			report(exitStatus(end))
			tree.end(orders, isKilled)
			report(status{Gone: true, Proven: tree.isGone()})
			return
		case order := <-orders:
			if order == orderKill {
				isKilled = true
				tree.signal(syscall.SIGKILL)
			} else {
				_ = syscall.Kill(-leader, syscall.SIGTERM)
				_ = syscall.Kill(-leader, syscall.SIGCONT)
			}
		case <-children:
		case <-killTicks(ticker, isKilled):
			tree.signal(syscall.SIGKILL)
		}
	}
}

// killTicks returns the ticks at which a kill is repeated: what forks may have been missed.
func killTicks(ticker *time.Ticker, isKilled bool) <-chan time.Time {
	if isKilled {
		return ticker.C
	}
	return nil
}

func exitStatus(end syscall.WaitStatus) status {
	if end.Signaled() {
		return status{Exited: true, Signal: int(end.Signal())}
	}
	return status{Exited: true, Code: end.ExitStatus()}
}

// tree is the processes beneath the guard.
type tree struct {
	leader   int
	ends     chan<- syscall.WaitStatus
	isReaped bool // no child is left
}

// reap takes the children that have ended.
func (t *tree) reap() {
	for {
		var end syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &end, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		t.isReaped = err != nil
		if err != nil || pid <= 0 {
			return
		}
		if pid == t.leader {
			t.ends <- end
		}
	}
}

// end ends what the command has left behind: by TERM, then by KILL.
func (t *tree) end(orders <-chan byte, isKilled bool) {
	began := time.Now()
	if isKilled {
		began = began.Add(-linger)
	} else {
		t.signal(syscall.SIGTERM)
	}
	for t.reap(); !t.isGone() && time.Since(began) < linger+killBound; t.reap() {
		select {
		case <-orders:
			began = began.Add(-linger)
		case <-time.After(pollEvery):
		}
		if time.Since(began) >= linger {
			t.signal(syscall.SIGKILL)
		}
	}
}

func errnoName(err error) string {
	names := map[syscall.Errno]string{
		syscall.ENOENT: "ENOENT", syscall.EACCES: "EACCES", syscall.ENOEXEC: "ENOEXEC", syscall.E2BIG: "E2BIG",
		syscall.ENOTDIR: "ENOTDIR", syscall.EMFILE: "EMFILE", syscall.ENOMEM: "ENOMEM", syscall.EAGAIN: "EAGAIN",
		syscall.ELOOP: "ELOOP", syscall.EISDIR: "EISDIR", syscall.ETXTBSY: "ETXTBSY", syscall.EPERM: "EPERM",
		syscall.ENAMETOOLONG: "ENAMETOOLONG",
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && names[errno] != "" {
		return names[errno]
	}
	return "EIO"
}
