package adapter

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/BurntSushi/toml"
)

const (
	trustVariable = "DRAGOMAN_TRUST"
	trustBytes    = 1 << 20
	admin         = "admin"
)

// scopes are those of the contract. An adapter answers only admin: it does not know who started a run.
var scopes = []string{"read", "run", "respond", "adapter", admin}

// identity is a row of the table: peers by the URI in their certificates, as SPIFFE has it, and what they may do.
type identity struct {
	URI      string   `toml:"uri"` // one that ends in "/*" stands for all that are below that path
	Scopes   []string `toml:"scopes"`
	Adapters []string `toml:"adapters"` // of no effect for admin
}

func (i identity) names(uri string) bool {
	stem, isBelow := strings.CutSuffix(i.URI, "*")
	if !isBelow {
		return uri == i.URI
	}
	return uri != stem && strings.HasPrefix(uri, stem)
}

func (i identity) problem() error {
	parsed, err := url.Parse(strings.TrimSuffix(i.URI, "/*"))
	if err != nil || parsed.Scheme == "" || parsed.Host == "" || strings.Contains(parsed.Host+parsed.Path, "*") {
		return fmt.Errorf("identity %q must be a URI such as spiffe://example.org/ci, or one that ends in /*", i.URI)
	}
	for _, scope := range i.Scopes {
		if !slices.Contains(scopes, scope) {
			return fmt.Errorf("identity %q: no such scope: %s", i.URI, scope)
		}
	}
	if len(i.Scopes) == 0 {
		return fmt.Errorf("identity %q: no scope was named", i.URI)
	}
	return nil
}

// trust is the table in a file, as it is now. If a change is invalid, what was trusted before stays in force.
type trust struct {
	path   string
	logger *slog.Logger

	mu   sync.Mutex
	seen os.FileInfo
	rows []identity
}

// openTrust reads the file that DRAGOMAN_TRUST names; nil if it names none.
func openTrust(logger *slog.Logger) (*trust, error) {
	path := os.Getenv(trustVariable)
	if path == "" {
		return nil, nil
	}
	rows, seen, err := readTrust(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", trustVariable, err)
	}
	return &trust{path: path, logger: logger, seen: seen, rows: rows}, nil
}

// current returns the rows; they are read again if the file is another one, as a changed ConfigMap's is.
func (t *trust) current() []identity {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now, err := os.Stat(t.path)
	if err == nil && os.SameFile(now, t.seen) && now.ModTime().Equal(t.seen.ModTime()) && now.Size() == t.seen.Size() {
		return t.rows
	}
	rows, seen, err := readTrust(t.path)
	if err != nil {
		t.logger.Error("trust kept as it was", "why", err.Error())
		return t.rows
	}
	t.rows, t.seen = rows, seen
	t.logger.Info("trust changed", "file", t.path)
	return t.rows
}

func readTrust(path string) ([]identity, os.FileInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	found, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	if owner, isKnown := found.Sys().(*syscall.Stat_t); found.Mode().Perm()&0o022 != 0 ||
		isKnown && owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
		return nil, nil, fmt.Errorf("%s can be written by other users", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, trustBytes))
	if err != nil {
		return nil, nil, err
	}
	rows, err := parseTrust(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, found, nil
}

// parseTrust reads a table. A key that is not known is refused: it may be a restriction.
func parseTrust(data []byte) ([]identity, error) {
	var table struct {
		Identities []identity `toml:"identities"`
	}
	known, err := toml.Decode(string(data), &table)
	if err != nil {
		return nil, err
	}
	for _, key := range known.Undecoded() {
		if key[0] == "issuers" || key[0] == "run_tokens" {
			return nil, fmt.Errorf("%s: adapters on the Go SDK know callers by their certificates alone; "+
				"give this one a file with the router's identity", key[0])
		}
		return nil, fmt.Errorf("no such key: %s", key)
	}
	for _, row := range table.Identities {
		if err := row.problem(); err != nil {
			return nil, err
		}
	}
	return table.Identities, nil
}

var (
	errUnknownIdentity = errors.New("the trust file does not have the identity of this certificate")
	errNotAdmin        = errors.New("an adapter does not know who started a run, and answers only who has the scope admin")
)

// answers decides about a caller by the URIs of its certificate: false if they decide nothing, and it needs a token.
// An identity that the table does not have is refused, with a token too; otherwise a call with a token is that token's.
func answers(rows []identity, uris []string, hasToken bool) (bool, error) {
	if len(rows) == 0 || len(uris) == 0 {
		return false, nil
	}
	// Only one URI is an identity, as SPIFFE requires.
	known := slices.IndexFunc(rows, func(row identity) bool { return len(uris) == 1 && row.names(uris[0]) })
	switch {
	case known < 0:
		return false, errUnknownIdentity
	case hasToken:
		return false, nil
	case !slices.Contains(rows[known].Scopes, admin):
		return false, errNotAdmin
	}
	return true, nil
}
