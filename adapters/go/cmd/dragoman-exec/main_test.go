package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

func TestMain(m *testing.M) {
	adapter.Init()
	os.Exit(m.Run())
}

// What the adapter declares is what the one in Python declares; `make test-go` runs one table of cases against both.
func TestTheDocumentsAreThoseOfTheOtherAdapter(t *testing.T) {
	for name, own := range map[string]string{"config.schema.json": configSchema, "configuration.md": configurationDoc} {
		other, err := os.ReadFile(filepath.Join("..", "..", "..", "python", "dragoman", "adapters", "process", name))
		if err != nil {
			t.Fatal(err)
		}
		if own != string(other) {
			t.Errorf("%s differs: copy that of the adapter in Python", name)
		}
	}
}

func TestShortened(t *testing.T) {
	tests := map[string]struct {
		text string
		most int
		want string
	}{
		"short":         {"a text", 10, "a text"},
		"between words": {"one two three", 8, "one two ..."},
		"one long word": {"abcdefghij", 5, "..."},
		"wide letters":  {"ää öö üü", 5, "ää öö ..."},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := shortened(test.text, test.most); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	listed := []any{"a", "b"}
	for name, config := range map[string]map[string]any{
		"args": {"args": listed}, "extraArgs": {"extraArgs": listed}, "both": {"args": []any{"c"}, "extraArgs": listed},
	} {
		if got := arguments(config); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestDetect(t *testing.T) {
	tests := map[string]struct {
		command    string
		available  bool
		confidence pb.DetectionConfidence
	}{
		"nothing named": {"", true, pb.DetectionConfidence_DETECTION_CONFIDENCE_NOT_APPLICABLE},
		"on the PATH":   {"sh", true, pb.DetectionConfidence_DETECTION_CONFIDENCE_CONFIDENT},
		"not there":     {"no-such-program", false, pb.DetectionConfidence_DETECTION_CONFIDENCE_ABSENT},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := detect(t.Context(), detectRequest(t, test.command))
			if err != nil {
				t.Fatal(err)
			}
			if found.GetAvailable() != test.available || found.GetConfidence() != test.confidence {
				t.Errorf("got %v", found)
			}
		})
	}
}

func detectRequest(t *testing.T, command string) *pb.DetectRequest {
	t.Helper()
	if command == "" {
		return &pb.DetectRequest{}
	}
	config, err := structpb.NewStruct(map[string]any{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	return &pb.DetectRequest{Config: config}
}
