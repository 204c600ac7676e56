package dragoman

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

const (
	routerVariable = "DRAGOMAN_ROUTER"
	tokenVariable  = "DRAGOMAN_TOKEN"
	longestSocket  = 103 // bytes of a socket's path on every system
	listening      = "0A"
)

// DefaultAddress returns where clients look for a router: DRAGOMAN_ROUTER, else the socket of this user's router.
func DefaultAddress() string {
	return cmp.Or(os.Getenv(routerVariable), "unix:"+filepath.Join(defaultDirectory(), "router.sock"))
}

func defaultDirectory() string {
	candidates := []string{filepath.Join(stateDirectory(), "run"), fmt.Sprintf("/tmp/dragoman-%d", os.Geteuid())}
	base := os.Getenv("XDG_RUNTIME_DIR")
	// After su, the variable may still name the directory of the user before.
	if info, err := os.Stat(base); filepath.IsAbs(base) && err == nil && ownerOf(info) == os.Geteuid() {
		candidates = append([]string{filepath.Join(base, "dragoman")}, candidates...)
	}
	for _, directory := range candidates {
		if len(filepath.Join(directory, "router.sock")) <= longestSocket {
			return directory
		}
	}
	return candidates[len(candidates)-1]
}

func stateDirectory() string {
	if base := os.Getenv("XDG_STATE_HOME"); base != "" {
		return filepath.Join(base, "dragoman")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "dragoman")
	}
	return filepath.Join(home, ".local", "state", "dragoman")
}

// UserToken returns the token of this user's servers: DRAGOMAN_TOKEN, else that of the user's file; empty if there is
// none.
func UserToken() (string, error) {
	if token := environmentToken(); token != "" {
		return token, nil
	}
	path := filepath.Join(stateDirectory(), "token")
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || ownerOf(info) != os.Geteuid() {
		return "", fmt.Errorf("%s can be read by others; remove it, and a new token is made", path)
	}
	content := make([]byte, 512)
	n, err := file.Read(content)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(content[:n])), nil
}

// place is what an address comes to.
type place struct {
	target  string // for grpc.NewClient
	isTCP   bool
	isLocal bool
	path    string
	port    int
}

func parseAddress(address string) (place, error) {
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		if strings.HasPrefix(path, "///") {
			path = path[2:]
		}
		if !filepath.IsAbs(path) || strings.HasPrefix(path, "//") {
			return place{}, Errorf(AddressUntrusted, "%q: the path of a Unix socket is absolute", address)
		}
		return place{target: "unix:" + path, isLocal: true, path: path}, nil
	}
	host, portText, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil || host == "" {
		return place{}, Errorf(AddressUntrusted, "%q is no address; use unix:/path or host:port", address)
	}
	ip := net.ParseIP(host)
	isLocal := host == "localhost" || (ip != nil && ip.IsLoopback())
	return place{target: "passthrough:///" + address, isTCP: true, isLocal: isLocal, port: int(port)}, nil
}

// check refuses a place of this machine where another user listens, or could: prompts and tokens travel there in the
// clear.
func (p place) check() error {
	if !p.isTCP {
		return checkSocket(p.path)
	}
	uid, isKnown := listenerOn(p.port)
	if isKnown && !isTrusted(uid) {
		return Errorf(AddressUntrusted, "port %d: the server there is run by uid %d, not by you (uid %d)",
			p.port, uid, os.Geteuid())
	}
	return nil
}

func checkSocket(path string) error {
	directory, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil // nothing is there to be reached
	}
	if directory.Mode().Perm()&0o022 != 0 || !isTrusted(ownerOf(directory)) {
		return Errorf(AddressUntrusted, "unix:%s: other users can write to %s and could put a socket of their own there",
			path, filepath.Dir(path))
	}
	if info, err := os.Lstat(path); err == nil && !isTrusted(ownerOf(info)) {
		return Errorf(AddressUntrusted, "unix:%s belongs to uid %d, not to you (uid %d)", path, ownerOf(info), os.Geteuid())
	}
	return nil
}

// listenerOn returns the user whose server listens on a TCP port here, a stranger first. Only Linux says.
func listenerOn(port int) (uid int, isKnown bool) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(table)
		if err != nil {
			continue
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 8 || fields[3] != listening {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			number, err := strconv.ParseUint(hex, 16, 16)
			if err != nil || int(number) != port {
				continue
			}
			owner, err := strconv.Atoi(fields[7])
			if err != nil {
				continue
			}
			if uid, isKnown = owner, true; !isTrusted(owner) {
				return uid, true
			}
		}
	}
	return uid, isKnown
}

func isTrusted(uid int) bool { return uid == 0 || uid == os.Geteuid() }

func ownerOf(info os.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

func environmentToken() string { return strings.TrimSpace(os.Getenv(tokenVariable)) }
