package adapter

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"dragoman/adapters/go/internal/guard"
	dragoman "dragoman/clients/go"
)

const (
	authorization = "authorization" // metadata with a token
	longestName   = 200             // bytes of an unknown identity that an error repeats
)

// Listen listens at "unix:/path", which only this user can reach, or at "host:port", where callers need this user's
// token: on loopback, or with TLS anywhere. The server uses TLS there if DRAGOMAN_TLS_CERT names a certificate.
func Listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return listenTCP(address)
	}
	path = strings.TrimPrefix(path, "//")
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%q: the path of a Unix socket is absolute", address)
	}
	directory, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if directory.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("listen on %s: other users can write to %s and could replace the socket; "+
			"use a directory that only you can write", address, filepath.Dir(path))
	}
	// A second bind on the same path would unlink a live server's socket. The lock file stays: removing it would let two
	// owners lock different files.
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", address, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("another server listens on %s; stop it or choose another path", address)
	}
	listener, err := bind(path)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return &locked{Listener: listener, lock: lock}, nil
}

func bind(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, errors.New("something is there that is no socket; choose another path")
		}
		if err := os.Remove(path); err != nil { // of a server that was killed
			return nil, err
		}
	}
	// Only this user may open the socket: on Linux from its first moment, as it takes the mode it has when it is bound. A
	// umask would do so for each file that the process creates meanwhile.
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
	}}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// locked is a listener that owns the lock of its path.
type locked struct {
	net.Listener
	lock *os.File
}

func (l *locked) Close() error {
	return errors.Join(l.Listener.Close(), l.lock.Close())
}

func listenTCP(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%q is no address; use unix:/path or host:port: %w", address, err)
	}
	files, err := dragoman.EnvironmentTLS()
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && files.Certificate == "" {
		return nil, clearRefused(address)
	}
	token, err := dragoman.UserToken()
	if err != nil {
		return nil, err
	}
	if token == "" {
		return nil, errors.New("over TCP callers need a token, and there is none: 'dragoman token' makes it, or set DRAGOMAN_TOKEN")
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

func clearRefused(address string) error {
	return fmt.Errorf("refusing to listen on %s without TLS: what can reach it can run programs as this user. Listen on "+
		"127.0.0.1:PORT or unix:/path, or set DRAGOMAN_TLS_CERT and DRAGOMAN_TLS_KEY to the files of a certificate and its key", address)
}

// transport are the credentials of connections: over a Unix socket, what the kernel says of the caller; over TCP, TLS if
// there is a certificate.
type transport struct {
	secure credentials.TransportCredentials // nil without
}

// newTransport returns the credentials of a server, with the files that the environment names.
func newTransport() (transport, error) {
	files, err := dragoman.EnvironmentTLS()
	if err != nil || files.Certificate == "" {
		return transport{}, err
	}
	config, err := files.ServerConfig()
	if err != nil {
		return transport{}, err
	}
	return transport{credentials.NewTLS(config)}, nil
}

// mayServe refuses a listener that other machines reach in the clear.
func (t transport) mayServe(listener net.Listener) error {
	address, isTCP := listener.Addr().(*net.TCPAddr)
	if isTCP && t.secure == nil && !address.IP.IsLoopback() {
		return clearRefused(address.String())
	}
	return nil
}

// caller is who is at the other end of a connection.
type caller struct {
	isUnix  bool
	refused string   // why its calls are refused; empty if they are not
	uris    []string // of its certificate
}

func (caller) AuthType() string { return "local" }

func (t transport) ServerHandshake(connection net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, isUnix := connection.(*net.UnixConn)
	if !isUnix && t.secure != nil {
		encrypted, info, err := t.secure.ServerHandshake(connection)
		who := caller{}
		if shown, isTLS := info.(credentials.TLSInfo); isTLS && len(shown.State.PeerCertificates) > 0 {
			for _, uri := range shown.State.PeerCertificates[0].URIs {
				who.uris = append(who.uris, uri.String())
			}
		}
		return encrypted, who, err
	}
	if !isUnix {
		return connection, caller{}, nil
	}
	who := caller{isUnix: true}
	pid, uid, isKnown := peerOf(socket)
	switch {
	case isKnown && uid != os.Geteuid() && uid != 0:
		who.refused = "this server answers its own user only"
	case isKnown && isBeneath(pid, os.Getpid()):
		who.refused = "this call comes from an agent's run, which may not call the server that it runs under"
	}
	return connection, who, nil
}

// isBeneath returns whether a process was started by another, or by what that has started.
func isBeneath(pid, above int) bool {
	for pid = guard.ParentOf(pid); pid > 0; pid = guard.ParentOf(pid) {
		if pid == above {
			return true
		}
	}
	return false
}

func (transport) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are a server's credentials")
}

func (transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "dragoman"}
}
func (t transport) Clone() credentials.TransportCredentials { return t }
func (transport) OverrideServerName(string) error           { return nil }

// callerName returns how a call was authenticated, for the record.
func callerName(ctx context.Context) string {
	if from, isKnown := peer.FromContext(ctx); isKnown {
		if who, _ := from.AuthInfo.(caller); who.isUnix {
			return fmt.Sprintf("uid %d", os.Geteuid()) // no other user's calls are answered
		} else if len(who.uris) == 1 && len(metadata.ValueFromIncomingContext(ctx, authorization)) == 0 {
			return who.uris[0] // without a token, only a table of identities lets it in
		}
	}
	return "token"
}

// admit returns an error for a call that is not answered.
func (s *Server) admit(ctx context.Context, method string) error {
	from, isKnown := peer.FromContext(ctx)
	if !isKnown {
		return dragoman.Errorf(dragoman.CallerRefused, "the caller is not known")
	}
	who, _ := from.AuthInfo.(caller)
	if who.refused != "" {
		return dragoman.Errorf(dragoman.CallerRefused, "%s", who.refused)
	}
	if who.isUnix || strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return nil
	}
	sent := metadata.ValueFromIncomingContext(ctx, authorization)
	isAnswered, err := answers(s.trust.Load().current(), who.uris, len(sent) > 0)
	if err != nil {
		shown := strings.Join(who.uris, " ")
		return dragoman.Errorf(dragoman.NotPermitted, "%s is not permitted to do this: %s.", shown[:min(len(shown), longestName)], err)
	}
	if isAnswered {
		return nil
	}
	token, err := dragoman.UserToken()
	if err == nil && token != "" {
		for _, value := range sent {
			if subtle.ConstantTimeCompare([]byte(value), []byte("Bearer "+token)) == 1 {
				return nil
			}
		}
	}
	return dragoman.Errorf(dragoman.TokenRequired,
		"over TCP each call needs the metadata 'authorization: Bearer TOKEN', with what 'dragoman token' prints")
}
