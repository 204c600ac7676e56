package adapter_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dragoman/adapters/go"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	theRouter = "spiffe://example.org/router"
	table     = "[[identities]]\nuri = \"" + theRouter + "\"\nscopes = [\"admin\"]\n\n" +
		"[[identities]]\nuri = \"spiffe://example.org/people/*\"\nscopes = [\"run\"]\n"
)

// trusting has the servers of a test read a table; it returns the file.
func trusting(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trust.toml")
	write(t, path, text)
	t.Setenv("DRAGOMAN_TRUST", path)
	return path
}

// write replaces a file by another one, as a changed ConfigMap does.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestTheIdentityOfACertificateStandsForAToken(t *testing.T) {
	ours, servers := newAuthority(t), newFiles(t)
	ours.fill(t, servers)
	trusting(t, table)
	address := overTLS(t, hang, servers)
	without, with := dragoman.WithToken(""), dragoman.WithToken("a-token-of-tests")
	tests := map[string]struct {
		uris   []string
		token  dragoman.Option
		reason dragoman.Reason
	}{
		"the router":                      {[]string{theRouter}, without, ""},
		"the router with another's token": {[]string{theRouter}, dragoman.WithToken("another"), dragoman.TokenRequired},
		"one below a path":                {[]string{"spiffe://example.org/people/ada"}, without, dragoman.NotPermitted},
		"one below a path, with a token":  {[]string{"spiffe://example.org/people/ada"}, with, ""},
		"a stranger":                      {[]string{"spiffe://example.org/routers"}, without, dragoman.NotPermitted},
		"a stranger with the token":       {[]string{"spiffe://example.org/people/"}, with, dragoman.NotPermitted},
		"two at once":                     {[]string{theRouter, "spiffe://example.org/other"}, with, dragoman.NotPermitted},
		"a certificate without a URI":     {nil, without, dragoman.TokenRequired},
		"the same with the token":         {nil, with, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			files := newFiles(t)
			ours.fill(t, files, test.uris...)
			err := describe(t, clientOf(t, address, dragoman.WithTLS(files), test.token))
			if dragoman.ReasonOf(err) != test.reason || (test.reason == "") != (err == nil) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

func TestWhoAnswersByACertificateIsNamedByIt(t *testing.T) {
	ours, servers, routers := newAuthority(t), newFiles(t), newFiles(t)
	ours.fill(t, servers)
	ours.fill(t, routers, theRouter)
	trusting(t, table)
	question := &pb.InputRequest{Id: "name", Kind: pb.InputKind_INPUT_KIND_TEXT, Title: "Which name?"}
	asking := func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		_, err := run.Ask(question)
		return nil, err
	}
	address := overTLS(t, asking, servers, pb.Feature_FEATURE_INPUT_REQUESTS)
	client := clientOf(t, address, dragoman.WithTLS(routers), dragoman.WithToken(""))
	run, asked := asked(t, client, interactive(nil))
	answer := &pb.RespondRequest{RunId: run.ID(), RequestId: asked.GetId(), Answer: &pb.InputAnswer{Text: "Ada"}}
	if _, err := client.Adapter.Respond(background(t), answer); err != nil {
		t.Fatal(err)
	}
	responder := ""
	for _, event := range events(t, run) {
		responder += event.GetInputResolved().GetResponder()
	}
	if responder != theRouter {
		t.Errorf("the answer is of %q", responder)
	}
}

func TestATableIsReadAgainWhenItHasChanged(t *testing.T) {
	ours, servers, routers := newAuthority(t), newFiles(t), newFiles(t)
	ours.fill(t, servers)
	ours.fill(t, routers, "spiffe://example.org/late")
	path := trusting(t, table)
	client := clientOf(t, overTLS(t, hang, servers), dragoman.WithTLS(routers), dragoman.WithToken(""))
	if err := describe(t, client); dragoman.ReasonOf(err) != dragoman.NotPermitted {
		t.Fatalf("a stranger: %v", err)
	}
	write(t, path, strings.ReplaceAll(table, "router", "late"))
	if err := describe(t, client); err != nil {
		t.Errorf("the new table is not used: %v", err)
	}
	write(t, path, "[[identities")
	if err := describe(t, client); err != nil {
		t.Errorf("with a broken table the last one is not used: %v", err)
	}
}

func TestTablesThatCannotBeUsed(t *testing.T) {
	t.Setenv("DRAGOMAN_TOKEN", "a-token-of-tests")
	row := func(uri, rest string) string { return "[[identities]]\nuri = \"" + uri + "\"\n" + rest }
	tests := map[string]struct{ text, says string }{
		"no TOML":         {"[[identities", "DRAGOMAN_TRUST"},
		"no URI":          {row("router", "scopes = [\"admin\"]"), "must be a URI"},
		"stars elsewhere": {row("spiffe://*/router", "scopes = [\"admin\"]"), "must be a URI"},
		"no such scope":   {row(theRouter, "scopes = [\"root\"]"), "no such scope: root"},
		"no scope":        {row(theRouter, ""), "no scope was named"},
		"no such key":     {row(theRouter, "scopes = [\"admin\"]\nuntil = 1"), "no such key: identities.until"},
		"issuers":         {"[[issuers]]\nname = \"idp\"", "by their certificates alone"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			trusting(t, test.text)
			if err := served(t); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("it says %v", err)
			}
		})
	}
	path := trusting(t, table)
	if err := os.Chmod(path, 0o620); err != nil {
		t.Fatal(err)
	}
	if err := served(t); err == nil || !strings.Contains(err.Error(), "written by other users") {
		t.Errorf("a table that others can write: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := served(t); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without the table: %v", err)
	}
}

// served serves on loopback until it is refused.
func served(t *testing.T) error {
	t.Helper()
	server, err := adapter.NewServer(described(hang), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := adapter.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(deadline, func() { server.Stop(0) })
	defer timer.Stop()
	return server.Serve(listener)
}
