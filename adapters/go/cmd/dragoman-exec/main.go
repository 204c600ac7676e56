// Program dragoman-exec is the adapter process where there is no Python: it runs any command as an agent. The prompt goes
// to it by standard input, file or argument, and its exit code decides.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

//go:embed config.schema.json
var configSchema string

//go:embed configuration.md
var configurationDoc string

const version = "1.0.0"

func main() {
	adapter.Main(process())
}

func process() *adapter.Adapter {
	return &adapter.Adapter{
		Describe: &pb.DescribeResponse{
			Adapter: "process", Label: "Process", Version: version,
			ConfigSchemaJson: configSchema, ConfigurationDoc: configurationDoc,
			Capabilities: capabilities(),
		},
		Run:    run,
		Detect: detect,
	}
}

func capabilities() *pb.Capabilities {
	return adapter.Features(pb.PermissionMode_PERMISSION_MODE_NONE,
		pb.Feature_FEATURE_PROMPT, pb.Feature_FEATURE_WORKSPACE, pb.Feature_FEATURE_AUTH_TOKEN)
}

func run(_ context.Context, run *adapter.Run) (*pb.Result, error) {
	command, err := plan(run)
	if err != nil {
		return nil, err
	}
	if run.Config["output"] == "jsonl" {
		parser := &objects{run: run}
		exit, err := run.Exec(command, parser.line)
		if err != nil {
			return nil, err
		}
		return parser.result(exit), nil
	}
	parser := &texts{run: run}
	exit, err := run.Exec(command, parser.line)
	if err != nil {
		return nil, err
	}
	return parser.result(exit), nil
}

// plan returns how to run the configured command; config.promptVia says how the prompt gets to it.
func plan(run *adapter.Run) (adapter.Command, error) {
	directory, err := run.Dir()
	if err != nil {
		return adapter.Command{}, err
	}
	via, _ := run.Config["promptVia"].(string)
	promptFile := filepath.Join(directory, "prompt.txt")
	values := strings.NewReplacer(placeholders(map[string]string{
		"prompt": run.Prompt, "promptFile": promptFile, "cwd": run.Cwd, "runId": run.Request.GetRunId(),
	})...)
	name, _ := run.Config["command"].(string)
	command := adapter.Command{Path: name}
	for _, argument := range arguments(run.Config) {
		command.Args = append(command.Args, values.Replace(argument))
	}
	switch via {
	case "", "stdin":
		command.Stdin = []byte(run.Prompt)
	case "file":
		prefix := strings.TrimRight(cmp.Or(run.Request.GetBrand().GetEnvPrefix(), "DRAGOMAN"), "_")
		command.Env = map[string]string{prefix + "_PROMPT_FILE": promptFile}
		if err := os.WriteFile(promptFile, []byte(run.Prompt), 0o600); err != nil {
			return adapter.Command{}, fmt.Errorf("write the prompt: %w", err)
		}
	}
	return command, nil
}

func placeholders(values map[string]string) []string {
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, "{{"+name+"}}", value)
	}
	return pairs
}

func arguments(config map[string]any) []string {
	listed, isList := config["extraArgs"].([]any)
	if !isList {
		listed, _ = config["args"].([]any)
	}
	var all []string
	for _, item := range listed {
		if text, isText := item.(string); isText {
			all = append(all, text)
		}
	}
	return all
}

func detect(_ context.Context, request *pb.DetectRequest) (*pb.Detection, error) {
	found := &pb.Detection{Auth: pb.AuthState_AUTH_STATE_NOT_NEEDED, Capabilities: capabilities()}
	name, _ := request.GetConfig().AsMap()["command"].(string)
	if name == "" {
		found.Available, found.Confidence = true, pb.DetectionConfidence_DETECTION_CONFIDENCE_NOT_APPLICABLE
		found.Message = "Process runs the command that config.command names."
		return found, nil
	}
	found.Executable = adapter.LookPath(name, cmp.Or(request.GetEnv()["PATH"], os.Getenv("PATH")))
	if found.Available = found.Executable != ""; !found.Available {
		found.Confidence, found.Auth = pb.DetectionConfidence_DETECTION_CONFIDENCE_ABSENT, pb.AuthState_AUTH_STATE_UNSPECIFIED
		found.Message = name + ", which config.command names, was not found."
		found.Hint = "Install it. Or correct config.command."
		return found, nil
	}
	found.Confidence, found.Message = pb.DetectionConfidence_DETECTION_CONFIDENCE_CONFIDENT, "Process is installed."
	return found, nil
}
