package adapter

import (
	"fmt"
	"os"
	"path/filepath"
)

// Dir returns a directory for this run alone, which is removed after it.
func (r *Run) Dir() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.directory != "" {
		return r.directory, nil
	}
	path, err := os.MkdirTemp("", "dragoman-run-")
	if err == nil && len(path) > 60 { // agents put sockets there, whose paths are short
		_ = os.Remove(path)
		path, err = os.MkdirTemp("/tmp", "dragoman-run-")
	}
	if err != nil {
		return "", fmt.Errorf("make the run's directory: %w", err)
	}
	r.directory = path
	return path, nil
}

func (r *Run) removeDirectory() {
	r.mu.Lock()
	path := r.directory
	r.mu.Unlock()
	if path == "" || os.RemoveAll(path) == nil {
		return
	}
	// An agent may leave directories that even their owner cannot enter.
	_ = filepath.WalkDir(path, func(inner string, entry os.DirEntry, err error) error {
		if entry != nil && entry.IsDir() {
			_ = os.Chmod(inner, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(path); err != nil {
		r.logger.Warn("the run's directory is left", "error", err.Error())
	}
}
