package guard

import (
	"bytes"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

const prSetChildSubreaper = 36

// becomeSubreaper makes the guard the parent of all orphans beneath it, however often they forked and whichever session
// they moved to. So a wait that knows no child proves that none is left.
func becomeSubreaper() {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0, 0, 0, 0)
}

func leaderAttributes() *syscall.SysProcAttr {
	// A command that kills its guard dies with it.
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

func notifyChildren(ended chan<- os.Signal) { signal.Notify(ended, syscall.SIGCHLD) }

// isGone returns whether nothing is left.
func (t *tree) isGone() bool { return t.isReaped }

// signal signals everything beneath the guard, and wakes what was stopped.
func (t *tree) signal(number syscall.Signal) {
	for _, pid := range descendants(os.Getpid()) {
		_ = syscall.Kill(pid, number)
		if number != syscall.SIGKILL {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}

// descendants returns the processes beneath one, in no order.
func descendants(root int) []int {
	children := map[int][]int{}
	for _, pid := range pids() {
		if parent := ParentOf(pid); parent > 0 {
			children[parent] = append(children[parent], pid)
		}
	}
	var found []int
	for waiting := children[root]; len(waiting) > 0; {
		pid := waiting[len(waiting)-1]
		waiting = append(waiting[:len(waiting)-1], children[pid]...)
		found = append(found, pid)
	}
	return found
}

func pids() []int {
	directory, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer directory.Close()
	names, _ := directory.Readdirnames(-1) // what could be read
	var found []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// ParentOf returns the parent of a process; 0 if it is gone.
func ParentOf(pid int) int {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The program's name stands in parentheses and may hold any byte.
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(fields[1])) // 0 if the kernel wrote something else
	return parent
}

// killMarked kills the processes whose environment has the marker.
func killMarked(marker string) {
	needle := []byte(Marker + "=" + marker)
	for _, pid := range pids() {
		environment, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, variable := range bytes.Split(environment, []byte{0}) {
			if bytes.Equal(variable, needle) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
