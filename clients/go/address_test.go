package dragoman

import (
	"os"
	"path/filepath"
	"testing"
)

func TestParseAddress(t *testing.T) {
	tests := map[string]struct {
		want    place
		isError bool
	}{
		"unix:/run/a":      {want: place{target: "unix:/run/a", isLocal: true, path: "/run/a"}},
		"unix:///run/a":    {want: place{target: "unix:/run/a", isLocal: true, path: "/run/a"}},
		"127.0.0.1:7777":   {want: place{target: "passthrough:///127.0.0.1:7777", isTCP: true, isLocal: true, port: 7777}},
		"[::1]:1":          {want: place{target: "passthrough:///[::1]:1", isTCP: true, isLocal: true, port: 1}},
		"192.0.2.1:80":     {want: place{target: "passthrough:///192.0.2.1:80", isTCP: true, port: 80}},
		"unix:run/a":       {isError: true},
		"unix://host/a":    {isError: true},
		"127.0.0.1":        {isError: true},
		"127.0.0.1:port":   {isError: true},
		"127.0.0.1:700000": {isError: true},
		":80":              {isError: true},
	}
	for address, test := range tests {
		t.Run(address, func(t *testing.T) {
			got, err := parseAddress(address)
			if (err != nil) != test.isError || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
			if err != nil && ReasonOf(err) != AddressUntrusted {
				t.Errorf("reason of %v", err)
			}
		})
	}
}

func TestDefaultAddress(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"XDG_RUNTIME_DIR", "XDG_STATE_HOME", "DRAGOMAN_ROUTER"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", "/home/u")
	t.Setenv("XDG_STATE_HOME", "/s")
	if got := DefaultAddress(); got != "unix:/s/dragoman/run/router.sock" {
		t.Errorf("of the state directory: %s", got)
	}
	if len(home) < 60 {
		t.Setenv("XDG_RUNTIME_DIR", home)
		if got := DefaultAddress(); got != "unix:"+home+"/dragoman/router.sock" {
			t.Errorf("of the runtime directory: %s", got)
		}
	}
	t.Setenv("DRAGOMAN_ROUTER", "127.0.0.1:1")
	if got := DefaultAddress(); got != "127.0.0.1:1" {
		t.Errorf("of the variable: %s", got)
	}
}

func TestUserToken(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("DRAGOMAN_TOKEN", "")
	if token, err := UserToken(); token != "" || err != nil {
		t.Errorf("without a file: %q, %v", token, err)
	}
	path := filepath.Join(state, "dragoman", "token")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("of-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if token, err := UserToken(); token != "of-the-file" || err != nil {
		t.Errorf("of the file: %q, %v", token, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if token, err := UserToken(); token != "" || err == nil {
		t.Errorf("of a file that others read: %q, %v", token, err)
	}
	t.Setenv("DRAGOMAN_TOKEN", "of-the-variable")
	if token, err := UserToken(); token != "of-the-variable" || err != nil {
		t.Errorf("of the variable: %q, %v", token, err)
	}
}

func TestASocketThatOthersCouldReplaceIsRefused(t *testing.T) {
	directory := t.TempDir()
	if err := os.Chmod(directory, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New("unix:" + directory + "/s"); ReasonOf(err) != AddressUntrusted {
		t.Errorf("%v", err)
	}
}
