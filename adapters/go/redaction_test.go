package adapter_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"dragoman/adapters/go"
	pb "dragoman/clients/go/dragomanv1"
)

func TestSecretsAreRedacted(t *testing.T) {
	tests := map[string]struct {
		run  runFunc
		want string
	}{
		"in a piece": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			return nil, run.Text("a", "<"+secret+">")
		}, "<[redacted]>"},
		"cut into pieces": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			for _, part := range []string{"<", secret[:7], secret[7:9], secret[9:] + ">"} {
				if err := run.Text("a", part); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}, "<[redacted]>"},
		"with an event between": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			_ = run.Text("a", secret[:7])
			run.Notice(pb.Severity_SEVERITY_INFO, "between", "between")
			return nil, run.Text("a", secret[7:])
		}, "[redacted]"},
		"that does not come": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			return nil, run.Text("a", "< "+secret[:7])
		}, "< " + secret[:7]},
		"in another text": {func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
			_ = run.Text("a", secret[:7])
			return nil, run.Text("b", secret[7:])
		}, secret[7:] + secret[:7]}, // two texts: neither has it
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, test.run)
			got := ""
			lengths := map[string]uint64{}
			for _, event := range execute(t, client, request(nil)) {
				text := event.GetText()
				if text == nil {
					continue
				}
				if text.GetOffset() != lengths[text.GetItemId()] {
					t.Errorf("offset %d of %v, want %d", text.GetOffset(), text, lengths[text.GetItemId()])
				}
				lengths[text.GetItemId()] += uint64(len(text.GetDelta()))
				got += text.GetDelta()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestSecretsOfAProgramAreRedacted(t *testing.T) {
	client, _ := serve(t, shell(`echo "out $MY_TOKEN"; echo "err $MY_TOKEN" >&2; printf '%s' "${MY_TOKEN%secret}"; sleep 0.05; echo secret; exit 1`))
	all := execute(t, client, request(func(r *pb.ExecuteRequest) { r.Labels = map[string]string{"note": "with " + secret} }))
	for _, event := range all {
		if strings.Contains(event.String(), "very-secret") {
			t.Errorf("a secret is in %v", event)
		}
	}
	if text := logged(all); strings.Count(text, "[redacted]") != 3 {
		t.Errorf("got %q", text)
	}
	started := all[0].GetStarted()
	if started.GetEnv()["MY_TOKEN"] != "[redacted]" || started.GetLabels()["note"] != "with [redacted]" {
		t.Errorf("got %v", started)
	}
}

func TestTheEnvironmentOfAProgram(t *testing.T) {
	t.Setenv("OF_THE_SERVER", "x")
	client, _ := serve(t, shell(`pwd; echo "$DRAGOMAN_RUN_ID $A"; cat; echo; echo "$OF_THE_SERVER."; test -d "$TMPDIR" && echo "$TMPDIR"`),
		pb.Feature_FEATURE_WORKSPACE)
	directory := t.TempDir()
	all := execute(t, client, request(func(r *pb.ExecuteRequest) {
		r.RunId, r.Workspace, r.Env = "r-1", &pb.Workspace{Cwd: directory}, map[string]string{"A": "b"}
		r.Task = &pb.ExecuteRequest_PromptTemplate{PromptTemplate: "prompt of {{runId}}"}
	}))
	want := strings.Join([]string{directory, "r-1 b", "prompt of r-1", ".", ""}, "\n")
	temporary, isThere := strings.CutPrefix(logged(all), want)
	if !isThere {
		t.Errorf("got %q, want %q", logged(all), want)
	}
	if _, err := os.Stat(temporary); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", temporary, err)
	}
}

func TestOutputThatIsNoText(t *testing.T) {
	client, _ := serve(t, shell(`printf 'a\342\202\n\377\376b\r\n'; printf 'last'`))
	var lines []string
	for _, event := range execute(t, client, request(nil)) {
		if entry := event.GetLog(); entry != nil {
			lines = append(lines, entry.GetText())
			if (entry.GetRaw() != nil) != strings.Contains(entry.GetText(), "\ufffd") || entry.GetUnterminated() != (entry.GetText() == "last") {
				t.Errorf("got %v", entry)
			}
		}
	}
	if want := []string{"a\ufffd", "\ufffd\ufffdb", "last"}; !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
}

func TestIDsThatAreNoText(t *testing.T) {
	client, _ := serve(t, func(_ context.Context, run *adapter.Run) (*pb.Result, error) {
		if err := run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_Session{Session: &pb.Session{NativeId: "s\xff"}}}); err != nil {
			return nil, err
		}
		return nil, run.Emit(&pb.AgentEvent{Body: &pb.AgentEvent_ToolCall{ToolCall: &pb.ToolCall{Id: "a\xff"}}})
	}, pb.Feature_FEATURE_RESUME)
	all := execute(t, client, request(nil))
	if !slices.ContainsFunc(all, func(event *pb.AgentEvent) bool { return event.GetToolCall().GetId() == "a\ufffd" }) {
		t.Errorf("got %v", all)
	}
	if handle := resultOf(all).GetSession().GetHandle(); handle.GetNativeId() != "s\ufffd" {
		t.Errorf("got %v", handle)
	}
}
