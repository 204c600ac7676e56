package adapter

import (
	"net"
	"syscall"
)

// peerOf returns process and user at the other end of a Unix socket, as they were when it connected.
func peerOf(socket *net.UnixConn) (pid, uid int, isKnown bool) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	var found *syscall.Ucred
	err = raw.Control(func(fd uintptr) {
		found, _ = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED) // nil if it fails
	})
	if err != nil || found == nil {
		return 0, 0, false
	}
	return int(found.Pid), int(found.Uid), true
}
