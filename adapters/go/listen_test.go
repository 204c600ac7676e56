package adapter_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dragoman/adapters/go"
)

func TestListen(t *testing.T) {
	directory := t.TempDir()
	address := "unix:" + filepath.Join(directory, "s")
	listener, err := adapter.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(directory, "s")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := adapter.Listen(address); err == nil || !strings.Contains(err.Error(), "another server listens") {
		t.Errorf("a second server: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]string{
		"relative": "unix:s", "nothing": "", "another machine": "192.0.2.1:80", "no port": "127.0.0.1",
	} {
		if _, err := adapter.Listen(wrong); err == nil {
			t.Errorf("it listens on %s, %s", wrong, name)
		}
	}
	if err := os.Chmod(directory, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := adapter.Listen(address); err == nil || !strings.Contains(err.Error(), "other users can write") {
		t.Errorf("where others can write: %v", err)
	}
}
