//go:build unix && !linux

package guard

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// becomeSubreaper does nothing: only Linux has subreapers. What a command starts is found by its process group.
func becomeSubreaper() {}

func leaderAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func notifyChildren(ended chan<- os.Signal) { signal.Notify(ended, syscall.SIGCHLD) }

// isGone returns whether a search finds nothing that is left.
func (t *tree) isGone() bool { return errors.Is(syscall.Kill(-t.leader, 0), syscall.ESRCH) }

func (t *tree) signal(number syscall.Signal) {
	_ = syscall.Kill(-t.leader, number)
	_ = syscall.Kill(-t.leader, syscall.SIGCONT)
}

// ParentOf returns 0: the parent of a process is not known here.
func ParentOf(int) int { return 0 }

func killMarked(string) {}
