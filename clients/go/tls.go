package dragoman

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

// Variables that name the files of TLS, of servers and of clients.
const (
	tlsCertVariable = "DRAGOMAN_TLS_CERT"
	tlsKeyVariable  = "DRAGOMAN_TLS_KEY"
	tlsCAVariable   = "DRAGOMAN_TLS_CA"
)

// TLSFiles are paths of PEM files; empty for none. What replaces a file is used for the next connection. While the files
// cannot be used, that is logged, and the last ones stay.
type TLSFiles struct {
	Certificate string // of this process, with its chain
	Key         string // of the certificate
	Authorities string // that certificates of peers are of
}

// EnvironmentTLS returns the files that DRAGOMAN_TLS_CERT, DRAGOMAN_TLS_KEY and DRAGOMAN_TLS_CA name.
func EnvironmentTLS() (TLSFiles, error) {
	files := TLSFiles{os.Getenv(tlsCertVariable), os.Getenv(tlsKeyVariable), os.Getenv(tlsCAVariable)}
	return files, files.check()
}

func (f TLSFiles) check() error {
	if (f.Certificate == "") != (f.Key == "") {
		return Errorf(AddressUntrusted, "%s and %s belong together: set both or neither", tlsCertVariable, tlsKeyVariable)
	}
	return nil
}

// ServerConfig returns what a server of TLS uses: with authorities, a client has to show a certificate of theirs. It
// needs a certificate.
func (f TLSFiles) ServerConfig() (*tls.Config, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if f.Certificate == "" {
		return nil, Errorf(AddressUntrusted, "a server of TLS needs a certificate: set %s and %s", tlsCertVariable, tlsKeyVariable)
	}
	latest, err := newReloader(f)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return latest.get().server(), nil },
	}, nil
}

// pems is what the files hold.
type pems struct {
	certificates []tls.Certificate // at most one
	authorities  *x509.CertPool    // nil without
}

func (p pems) server() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: p.certificates, NextProtos: []string{"h2"}}
	if p.authorities != nil {
		config.ClientCAs, config.ClientAuth = p.authorities, tls.RequireAndVerifyClientCert
	}
	return config
}

func (p pems) client() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: p.certificates, RootCAs: p.authorities}
}

func (f TLSFiles) paths() []string {
	var named []string
	for _, path := range []string{f.Certificate, f.Key, f.Authorities} {
		if path != "" {
			named = append(named, path)
		}
	}
	return named
}

// read reads the files. The error quotes nothing of them.
func (f TLSFiles) read() (pems, error) {
	wrong := func(err error) (pems, error) {
		var reason *fs.PathError
		if errors.As(err, &reason) {
			err = reason.Err
		}
		return pems{}, Errorf(AddressUntrusted, "TLS: %s: %v; each is a PEM file, and the key is the certificate's",
			strings.Join(f.paths(), ", "), err)
	}
	var read pems
	if f.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
		if err != nil {
			return wrong(err)
		}
		read.certificates = []tls.Certificate{pair}
	}
	if f.Authorities != "" {
		text, err := os.ReadFile(f.Authorities)
		if err != nil {
			return wrong(err)
		}
		// An empty pool would trust no server, and no pool every public authority.
		if read.authorities = x509.NewCertPool(); !read.authorities.AppendCertsFromPEM(text) {
			return wrong(fmt.Errorf("there is no certificate in %s", f.Authorities))
		}
	}
	return read, nil
}

// stamp is what differs once a file was replaced or written.
type stamp struct {
	inode   uint64
	changed time.Time
	size    int64
}

// stamps returns the stamps of the files; those of a file that is missing are zero.
func (f TLSFiles) stamps() [3]stamp {
	var found [3]stamp
	for i, path := range f.paths() {
		if info, err := os.Stat(path); err == nil {
			found[i] = stamp{changed: info.ModTime(), size: info.Size()}
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				found[i].inode = stat.Ino
			}
		}
	}
	return found
}

// reloader has what the files held when they could be used last.
type reloader struct {
	files TLSFiles

	mu   sync.Mutex
	last [3]stamp
	read pems
}

func newReloader(files TLSFiles) (*reloader, error) {
	last := files.stamps() // before the files are read: what is written meanwhile is read at the next connection
	read, err := files.read()
	if err != nil {
		return nil, err
	}
	return &reloader{files: files, last: last, read: read}, nil
}

func (r *reloader) get() pems {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.files.stamps()
	if now == r.last {
		return r.read
	}
	read, err := r.files.read()
	if err != nil {
		slog.Warn("certificate not reloaded; the last one stays", "error", err.Error())
		return r.read
	}
	r.last, r.read = now, read
	slog.Info("certificate reloaded", "certificate", r.files.Certificate)
	return r.read
}

// clientCredentials are the credentials of a client's connections; each uses what the files hold by then.
type clientCredentials struct{ latest *reloader }

func (c clientCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.latest.get().client()).ClientHandshake(ctx, authority, conn)
}

func (clientCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are a client's credentials")
}

func (clientCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (c clientCredentials) Clone() credentials.TransportCredentials { return c }
func (clientCredentials) OverrideServerName(string) error           { return nil }
