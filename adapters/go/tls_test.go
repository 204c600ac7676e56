package adapter_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

// authority is one that a test makes.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	made := &authority{key: newKey(t)}
	made.certificate = sign(t, template, template, &made.key.PublicKey, made.key)
	return made
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.Subject = serial, pkix.Name{CommonName: serial.String()}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	data, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(data)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func newFiles(t *testing.T) dragoman.TLSFiles {
	t.Helper()
	folder := t.TempDir()
	return dragoman.TLSFiles{
		Certificate: filepath.Join(folder, "cert.pem"), Key: filepath.Join(folder, "key.pem"), Authorities: filepath.Join(folder, "ca.pem"),
	}
}

// fill replaces files, as a rotation does: with a certificate of an authority, which is the one that is trusted.
func (a *authority) fill(t *testing.T, files dragoman.TLSFiles, uris ...string) {
	t.Helper()
	names := make([]*url.URL, len(uris))
	for i, uri := range uris {
		name, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		names[i] = name
	}
	key := newKey(t)
	certificate := sign(t, &x509.Certificate{
		URIs: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, &key.PublicKey, a.key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, kind string, data []byte) {
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	// The key first: a handshake between the two finds files that do not fit, and keeps the last ones.
	write(files.Key, "PRIVATE KEY", private)
	write(files.Certificate, "CERTIFICATE", certificate.Raw)
	write(files.Authorities, "CERTIFICATE", a.certificate.Raw)
}

// overTLS serves an adapter on loopback with certificates, and returns its address.
func overTLS(t *testing.T, run runFunc, files dragoman.TLSFiles, features ...pb.Feature) string {
	t.Helper()
	t.Setenv("DRAGOMAN_TOKEN", "a-token-of-tests")
	t.Setenv("DRAGOMAN_TLS_CERT", files.Certificate)
	t.Setenv("DRAGOMAN_TLS_KEY", files.Key)
	t.Setenv("DRAGOMAN_TLS_CA", files.Authorities)
	server, err := adapter.NewServer(described(run, features...), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := adapter.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(100 * time.Millisecond) })
	return listener.Addr().String()
}

func clientOf(t *testing.T, address string, options ...dragoman.Option) *dragoman.Client {
	t.Helper()
	client, err := dragoman.New(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func describe(t *testing.T, client *dragoman.Client, options ...grpc.CallOption) error {
	t.Helper()
	_, err := client.Adapter.Describe(background(t), &pb.DescribeRequest{}, options...)
	return err
}

func TestMutualTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	files, strangers := newFiles(t), newFiles(t)
	ours.fill(t, files)
	theirs.fill(t, strangers)
	address := overTLS(t, hang, files)
	client := clientOf(t, address) // the files of the environment
	run, err := client.Execute(background(t), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Adapter.Cancel(background(t), &pb.CancelRequest{RunId: run.ID()}); err != nil {
		t.Fatal(err)
	}
	if err := describe(t, clientOf(t, address, dragoman.WithToken("another"))); dragoman.ReasonOf(err) != dragoman.TokenRequired {
		t.Errorf("with another token: %v", err)
	}
	refused := map[string]dragoman.TLSFiles{
		"without a certificate":      {Authorities: files.Authorities},
		"with a stranger's":          {Certificate: strangers.Certificate, Key: strangers.Key, Authorities: files.Authorities},
		"that trusts another server": {Certificate: files.Certificate, Key: files.Key, Authorities: strangers.Authorities},
		"in the clear":               {},
	}
	for name, shown := range refused {
		if err := describe(t, clientOf(t, address, dragoman.WithTLS(shown))); err == nil || dragoman.ReasonOf(err) != "" {
			t.Errorf("a client %s: %v", name, err)
		}
	}
}

func TestWithoutAuthoritiesAServerAsksForNoCertificate(t *testing.T) {
	files := newFiles(t)
	newAuthority(t).fill(t, files)
	address := overTLS(t, hang, dragoman.TLSFiles{Certificate: files.Certificate, Key: files.Key})
	if err := describe(t, clientOf(t, address, dragoman.WithTLS(dragoman.TLSFiles{Authorities: files.Authorities}))); err != nil {
		t.Error(err)
	}
}

func TestCertificatesAreRotatedWithoutARestart(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	servers, first, second := newFiles(t), newFiles(t), newFiles(t)
	before.fill(t, servers)
	before.fill(t, first)
	after.fill(t, second)
	isOver := make(chan struct{})
	address := overTLS(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		if err := run.Text("answer", "ready"); err != nil {
			return nil, err
		}
		<-isOver
		return nil, run.Text("answer", ", and over")
	}, servers)
	run, err := clientOf(t, address, dragoman.WithTLS(first)).Execute(background(t), request(nil))
	if err != nil {
		t.Fatal(err)
	}
	late := clientOf(t, address, dragoman.WithTLS(second))
	if err := describe(t, late); err == nil {
		t.Fatal("a client of another authority is answered")
	}
	after.fill(t, servers)
	if err := describe(t, late, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("the new certificate is not used: %v", err)
	}
	if err := describe(t, clientOf(t, address, dragoman.WithTLS(first))); err == nil {
		t.Error("the old certificate is still used for new connections")
	}
	for _, path := range []string{servers.Certificate, servers.Authorities} {
		if err := os.WriteFile(path, []byte("no certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := describe(t, clientOf(t, address, dragoman.WithTLS(second))); err != nil {
			t.Errorf("with a broken file the last certificate is not used: %v", err)
		}
	}
	close(isOver)
	if got := textOf(events(t, run)); got != "ready, and over" {
		t.Errorf("the stream of before got %q", got)
	}
}

func TestAClientTakesUpReplacedFiles(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	servers, files := newFiles(t), newFiles(t)
	ours.fill(t, servers)
	theirs.fill(t, files)
	client := clientOf(t, overTLS(t, hang, servers), dragoman.WithTLS(files))
	if err := describe(t, client); err == nil {
		t.Fatal("a server of another authority is trusted")
	}
	ours.fill(t, files)
	if err := describe(t, client, grpc.WaitForReady(true)); err != nil {
		t.Errorf("the new files are not used: %v", err)
	}
}

func TestWhatOtherMachinesReachIsRefusedInTheClear(t *testing.T) {
	t.Setenv("DRAGOMAN_TOKEN", "a-token-of-tests")
	server, err := adapter.NewServer(described(hang), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := adapter.Listen("0.0.0.0:0"); err == nil || !strings.Contains(err.Error(), "DRAGOMAN_TLS_CERT") {
		t.Errorf("it listens everywhere: %v", err)
	}
	everywhere, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(everywhere); err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("it serves everywhere: %v", err)
	}
	if _, err := dragoman.New("192.0.2.1:7777"); dragoman.ReasonOf(err) != dragoman.AddressUntrusted {
		t.Errorf("a token would go there in the clear: %v", err)
	}
	files := newFiles(t)
	newAuthority(t).fill(t, files)
	t.Setenv("DRAGOMAN_TLS_CERT", files.Certificate)
	t.Setenv("DRAGOMAN_TLS_KEY", files.Key)
	listener, err := adapter.Listen("0.0.0.0:0")
	if err != nil {
		t.Fatalf("with a certificate: %v", err)
	}
	_ = listener.Close()
	client := clientOf(t, "192.0.2.1:7777", dragoman.WithTLS(files))
	_ = client.Close() // it connects with the first call
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	ours := newAuthority(t)
	fresh := func() dragoman.TLSFiles {
		files := newFiles(t)
		ours.fill(t, files)
		return files
	}
	changed := func(change func(*dragoman.TLSFiles)) dragoman.TLSFiles {
		files := fresh()
		change(&files)
		return files
	}
	tests := map[string]struct {
		files dragoman.TLSFiles
		says  string
	}{
		"a certificate alone": {changed(func(f *dragoman.TLSFiles) { f.Key = "" }), "set both or neither"},
		"another's key":       {changed(func(f *dragoman.TLSFiles) { f.Key = fresh().Key }), "does not match"},
		"no file":             {changed(func(f *dragoman.TLSFiles) { f.Certificate += ".gone" }), "no such file"},
		"no authority":        {changed(func(f *dragoman.TLSFiles) { f.Authorities = f.Key }), "no certificate in"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DRAGOMAN_TLS_CERT", test.files.Certificate)
			t.Setenv("DRAGOMAN_TLS_KEY", test.files.Key)
			t.Setenv("DRAGOMAN_TLS_CA", test.files.Authorities)
			_, served := adapter.NewServer(described(hang), slog.Default())
			_, dialed := dragoman.New("127.0.0.1:1", dragoman.WithToken("a-token-of-tests"))
			for _, err := range []error{served, dialed} {
				if dragoman.ReasonOf(err) != dragoman.AddressUntrusted || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "PRIVATE") {
					t.Errorf("it says %v", err)
				}
			}
		})
	}
}
