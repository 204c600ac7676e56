package request

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

func structOf(t *testing.T, values map[string]any) *structpb.Struct {
	t.Helper()
	made, err := structpb.NewStruct(values)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestBounds(t *testing.T) {
	entries := func(count int) map[string]string {
		all := map[string]string{}
		for i := range count {
			all[strings.Repeat("x", i+1)] = ""
		}
		return all
	}
	nested := map[string]any{}
	for range 33 {
		nested = map[string]any{"inner": nested}
	}
	many := map[string]any{}
	for i := range 2001 {
		many[strings.Repeat("k", i%900+1)+string(rune('a'+i%26))+time.Duration(i).String()] = true
	}
	tests := map[string]struct {
		request *pb.ExecuteRequest
		field   string
		reason  dragoman.Reason
	}{
		"an ordinary request": {request: &pb.ExecuteRequest{
			Task: &pb.ExecuteRequest_Prompt{Prompt: strings.Repeat("x", 15*mib)}, Config: structOf(t, map[string]any{"a": []any{1, "b"}}),
		}},
		"too many labels":     {&pb.ExecuteRequest{Labels: entries(65)}, "labels", dragoman.InvalidRequest},
		"a label's long name": {&pb.ExecuteRequest{Labels: map[string]string{strings.Repeat("x", 129): ""}}, "labels", dragoman.InvalidRequest},
		"a long value":        {&pb.ExecuteRequest{Labels: map[string]string{"a": strings.Repeat("x", 1025)}}, "labels.a", dragoman.InvalidRequest},
		"large variables": {&pb.ExecuteRequest{Env: map[string]string{
			"a": strings.Repeat("x", 127*kib), "b": strings.Repeat("x", 127*kib), "c": strings.Repeat("x", 127*kib),
			"d": strings.Repeat("x", 127*kib), "e": strings.Repeat("x", 127*kib),
		}}, "env", dragoman.InvalidRequest},
		"a long path": {&pb.ExecuteRequest{Workspace: &pb.Workspace{Cwd: strings.Repeat("x", 4097)}}, "workspace.cwd", dragoman.InvalidRequest},
		"a long item": {&pb.ExecuteRequest{Context: &pb.Context{LinkedIssueIds: []string{"a", strings.Repeat("x", 513)}}},
			"context.linked_issue_ids[1]", dragoman.InvalidRequest},
		"deep settings": {&pb.ExecuteRequest{Config: structOf(t, nested)}, "config", dragoman.InvalidRequest},
		"many settings": {&pb.ExecuteRequest{Config: structOf(t, many)}, "config", dragoman.InvalidRequest},
		"a negative time": {&pb.ExecuteRequest{Limits: &pb.Limits{Wall: durationpb.New(-time.Second)}},
			"limits.wall", dragoman.InvalidRequest},
		"a long time": {&pb.ExecuteRequest{OrphanAfter: &durationpb.Duration{Seconds: longestPeriod + 1}},
			"orphan_after", dragoman.InvalidRequest},
		"too large as a whole": {&pb.ExecuteRequest{Task: &pb.ExecuteRequest_Prompt{Prompt: strings.Repeat("x", 16*mib)}},
			"", dragoman.MessageTooLarge},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := CheckBounds(test.request)
			if dragoman.ReasonOf(err) != test.reason {
				t.Fatalf("got %v, want %v", err, test.reason)
			}
			if test.field != "" && !strings.HasPrefix(dragoman.FromError(err).Violations[0].Field, test.field) {
				t.Errorf("got %v, want the field %s", err, test.field)
			}
		})
	}
}

const exampleSchema = `{
	"type": "object", "required": ["command"], "additionalProperties": false,
	"properties": {
		"command": {"type": "string", "minLength": 1},
		"mode": {"enum": ["fast", "slow"]},
		"args": {"type": "array", "items": {"type": "string"}},
		"count": {"type": "integer", "minimum": 0, "maximum": 9},
		"env": {"type": "object", "additionalProperties": {"type": "string"}, "propertyNames": {"pattern": "^[^=\\u0000]+$"}}
	}
}`

func TestSchema(t *testing.T) {
	tests := map[string]struct {
		settings string
		want     []string
	}{
		"all in order":        {`{"command": "a", "mode": "fast", "args": ["b"], "count": 3, "env": {"A": "b"}}`, nil},
		"nothing":             {`{}`, []string{"config.command"}},
		"an unknown key":      {`{"command": "a", "other": 1}`, []string{"config.other"}},
		"a strange key":       {`{"command": "a", "a key": 1}`, []string{`config["a key"]`}},
		"a wrong type":        {`{"command": 1}`, []string{"config.command"}},
		"an empty text":       {`{"command": ""}`, []string{"config.command"}},
		"a wrong item":        {`{"command": "a", "args": ["b", 1]}`, []string{"config.args[1]"}},
		"none of the values":  {`{"command": "a", "mode": "other"}`, []string{"config.mode"}},
		"a fraction":          {`{"command": "a", "count": 1.5}`, []string{"config.count"}},
		"too large":           {`{"command": "a", "count": 10}`, []string{"config.count"}},
		"a zero byte":         {`{"command": "a\u0000"}`, []string{"config.command"}},
		"a wrong inner value": {`{"command": "a", "env": {"A": 1, "B=": "c"}}`, []string{"config.env", "config.env.A"}},
	}
	schema, err := ParseSchema(exampleSchema)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var settings map[string]any
			if err := json.Unmarshal([]byte(test.settings), &settings); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, violation := range schema.Check(settings) {
				got = append(got, violation.Field)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if _, err := ParseSchema("no JSON"); err == nil {
		t.Error("what is no JSON is a schema")
	}
}

func TestRender(t *testing.T) {
	request := &pb.ExecuteRequest{
		RunId: "r-1",
		Agent: &pb.Agent{Id: "a-1", Name: "Ada", CompanyId: "c-1", AdapterConfig: structOf(t, map[string]any{
			"apiKey": "hidden-1", "env": map[string]any{"A": "hidden-2"}, "model": "m-1",
		})},
		Company: structOf(t, map[string]any{"tier": map[string]any{"plan_name": "gold"}, "accessToken": "hidden-3"}),
		Context: &pb.Context{
			IssueId: "i-1", LinkedIssueIds: []string{"l-1", "l-2"},
			Extra: structOf(t, map[string]any{"title": "<a> {{runId}}", "task_id": "shadowed"}),
		},
		Brand: &pb.Brand{Name: "Acme"},
	}
	tests := map[string]struct {
		template, want string
		missing        []string
	}{
		"names":          {"{{runId}} {{run.id}} {{ agent.name }} {{agentId}} {{companyId}} {{brand.name}}", "r-1 r-1 Ada a-1 c-1 Acme", nil},
		"aliases":        {"{{context.taskId}} {{context.task_id}} {{context.issueIds.1}}", "i-1 i-1 l-2", nil},
		"inner values":   {"{{company.tier.plan_name}} {{context.linkedIssueIds}}", `gold ["l-1","l-2"]`, nil},
		"no second pass": {"{{context.title}}", "<a> {{runId}}", nil},
		"nothing there":  {"<{{agent.none}}{{no.such}}>", "<>", []string{"agent.none", "no.such"}},
		"secrets":        {"{{agent.adapterConfig.apiKey}}{{agent.adapterConfig.env.A}}{{company.accessToken}}", "", []string{"agent.adapterConfig.apiKey", "agent.adapterConfig.env.A", "company.accessToken"}},
		"settings":       {"{{agent.adapterConfig.model}} {{agent.adapter_config.model}}", "m-1 m-1", nil},
		"no placeholder": {"{{}} { {runId} } {{a b}}", "{{}} { {runId} } {{a b}}", nil},
	}
	data := TemplateData(request)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, missing, err := Render(test.template, data)
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want || !slices.Equal(missing, test.missing) {
				t.Errorf("got %q, missing %q; want %q, missing %q", got, missing, test.want, test.missing)
			}
		})
	}
}

func TestThePromptOfARun(t *testing.T) {
	schema := &Schema{}
	described := &pb.DescribeResponse{Adapter: "a", Label: "A"}
	tests := map[string]struct {
		request *pb.ExecuteRequest
		want    string
	}{
		"literal":     {&pb.ExecuteRequest{Task: &pb.ExecuteRequest_Prompt{Prompt: "do {{runId}}"}}, "do {{runId}}"},
		"template":    {&pb.ExecuteRequest{RunId: "r", Task: &pb.ExecuteRequest_PromptTemplate{PromptTemplate: "do {{runId}}"}}, "do r"},
		"none":        {&pb.ExecuteRequest{}, "Continue your Dragoman work."},
		"of an agent": {&pb.ExecuteRequest{Agent: &pb.Agent{Id: "a-1", Name: "Ada"}}, "You are agent a-1 (Ada). Continue your Dragoman work."},
		"of settings": {&pb.ExecuteRequest{RunId: "r", Config: structOf(t, map[string]any{
			"promptTemplate": "do {{runId}}", "bootstrapPromptTemplate": "first",
		})}, "first\n\ndo r"},
		"handed over": {&pb.ExecuteRequest{
			Task:    &pb.ExecuteRequest_Prompt{Prompt: "go on"},
			Session: &pb.SessionSelector{Selector: &pb.SessionSelector_Fresh{Fresh: true}, Handover: "before {{runId}}"},
		}, "before {{runId}}\n\ngo on"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			settings, err := Accept(test.request, described, schema)
			if err != nil {
				t.Fatal(err)
			}
			if got := settings.Prompt(""); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	schema, err := ParseSchema(exampleSchema)
	if err != nil {
		t.Fatal(err)
	}
	described := &pb.DescribeResponse{Adapter: "a", Label: "A", Capabilities: &pb.Capabilities{
		Items: []*pb.Capability{{Feature: pb.Feature_FEATURE_PROMPT}, {Feature: pb.Feature_FEATURE_WORKSPACE}},
	}}
	tests := map[string]struct {
		change func(*pb.ExecuteRequest)
		reason dragoman.Reason
		field  string
	}{
		"model":          {func(r *pb.ExecuteRequest) { r.Model = "m" }, dragoman.NotSupported, "model"},
		"skills":         {func(r *pb.ExecuteRequest) { r.Skills = []*pb.Skill{{Name: "s"}} }, dragoman.NotSupported, "skills"},
		"system prompt":  {func(r *pb.ExecuteRequest) { r.SystemPrompt = "s" }, dragoman.NotSupported, "system_prompt"},
		"instructions":   {func(r *pb.ExecuteRequest) { r.Instructions = &pb.Instructions{} }, dragoman.NotSupported, "instructions"},
		"MCP servers":    {func(r *pb.ExecuteRequest) { r.McpServers = []*pb.McpServer{{}} }, dragoman.NotSupported, "mcp_servers"},
		"a token":        {func(r *pb.ExecuteRequest) { r.AuthToken = "t" }, dragoman.NotSupported, "auth_token"},
		"permissions":    {func(r *pb.ExecuteRequest) { r.Permissions = &pb.Permissions{AutoApprove: true} }, dragoman.NotSupported, "permissions"},
		"a fallback":     {func(r *pb.ExecuteRequest) { r.Fallback = &pb.Fallback{} }, dragoman.NotSupported, "fallback"},
		"admission":      {func(r *pb.ExecuteRequest) { r.Admission = &pb.Admission{} }, dragoman.NotSupported, "admission"},
		"a budget":       {func(r *pb.ExecuteRequest) { r.Limits = &pb.Limits{Budget: &pb.Budget{}} }, dragoman.NotSupported, "limits.budget"},
		"attachments":    {func(r *pb.ExecuteRequest) { r.Attachments = []*pb.Attachment{{}} }, dragoman.NotSupported, "attachments"},
		"a stored agent": {func(r *pb.ExecuteRequest) { r.AgentName = "a" }, dragoman.NotSupported, "agent_name"},
		"a stored session": {func(r *pb.ExecuteRequest) {
			r.Session = &pb.SessionSelector{Selector: &pb.SessionSelector_ResumeRunId{ResumeRunId: "r"}}
		}, dragoman.NotSupported, "session.resume_run_id"},
		"a session": {func(r *pb.ExecuteRequest) {
			r.Session = &pb.SessionSelector{Selector: &pb.SessionSelector_Handle{Handle: &pb.SessionHandle{}}}
		}, dragoman.NotSupported, "session.handle"},
		"a feature": {func(r *pb.ExecuteRequest) {
			r.RequiredCapabilities = []pb.Feature{pb.Feature_FEATURE_PROMPT, 9999}
		}, dragoman.CapabilityMissing, ""},
		"no fresh session": {func(r *pb.ExecuteRequest) {
			r.Session = &pb.SessionSelector{Selector: &pb.SessionSelector_Fresh{}}
		}, dragoman.InvalidRequest, "session.fresh"},
		"no directory":         {func(r *pb.ExecuteRequest) { r.Workspace = nil }, dragoman.InvalidRequest, "workspace.cwd"},
		"a relative directory": {func(r *pb.ExecuteRequest) { r.Workspace.Cwd = "relative" }, dragoman.InvalidRequest, "workspace.cwd"},
		"a file":               {func(r *pb.ExecuteRequest) { r.Workspace.Cwd = file }, dragoman.InvalidRequest, "workspace.cwd"},
		"another directory": {func(r *pb.ExecuteRequest) {
			r.Workspace.AdditionalDirectories = []string{"/no/such/directory"}
		}, dragoman.InvalidRequest, "workspace.additional_directories[0]"},
		"a vendor's prefix": {func(r *pb.ExecuteRequest) { r.Brand = &pb.Brand{EnvPrefix: "OPENAI_X"} }, dragoman.InvalidRequest, "brand.env_prefix"},
		"a variable":        {func(r *pb.ExecuteRequest) { r.Env = map[string]string{"A": "\x00"} }, dragoman.InvalidRequest, "env.A"},
		"a setting":         {func(r *pb.ExecuteRequest) { r.Config = structOf(t, map[string]any{"command": 1}) }, dragoman.InvalidRequest, "config.command"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			request := &pb.ExecuteRequest{
				Workspace: &pb.Workspace{Cwd: t.TempDir()}, Config: structOf(t, map[string]any{"command": "c"}),
			}
			if _, err := Accept(request, described, schema); err != nil {
				t.Fatalf("unchanged: %v", err)
			}
			test.change(request)
			_, err := Accept(request, described, schema)
			if dragoman.ReasonOf(err) != test.reason {
				t.Fatalf("got %v, want %v", err, test.reason)
			}
			if test.field != "" && dragoman.FromError(err).Violations[0].Field != test.field {
				t.Errorf("got %v, want the field %s", err, test.field)
			}
		})
	}
}

func TestARefusalShowsNoSecret(t *testing.T) {
	const secret = "env-0815-very-secret"
	schema, err := ParseSchema(exampleSchema)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Accept(&pb.ExecuteRequest{
		Env: map[string]string{"MY_TOKEN": secret}, Config: structOf(t, map[string]any{"command": "c", secret: 1}),
	}, &pb.DescribeResponse{Adapter: "a"}, schema)
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Fatalf("got %v", err)
	}
	if field := dragoman.FromError(err).Violations[0].Field; strings.Contains(field, secret) {
		t.Errorf("got %s", field)
	}
}

func TestLimitsInEffect(t *testing.T) {
	settings, err := Accept(&pb.ExecuteRequest{
		Limits: &pb.Limits{Idle: durationpb.New(time.Minute)},
		Config: structOf(t, map[string]any{"timeoutSec": 2.5}),
	}, &pb.DescribeResponse{Adapter: "a"}, &Schema{})
	if err != nil {
		t.Fatal(err)
	}
	limits := settings.Limits()
	if limits.GetWall().AsDuration() != 2500*time.Millisecond || limits.GetIdle().AsDuration() != time.Minute ||
		limits.GetGrace().AsDuration() != defaultGrace || limits.GetStartUp() != nil {
		t.Errorf("got %v", limits)
	}
}

func TestEnvironment(t *testing.T) {
	request := &pb.ExecuteRequest{
		RunId: "r-1", Agent: &pb.Agent{Id: "a-1"}, AuthToken: "t-1", Brand: &pb.Brand{EnvPrefix: "ACME_"},
		Context: &pb.Context{TaskId: "k-1", LinkedIssueIds: []string{"i-1", "i-2"}},
	}
	want := map[string]string{
		"ACME_RUN_ID": "r-1", "ACME_AGENT_ID": "a-1", "ACME_API_KEY": "t-1", "ACME_TASK_ID": "k-1", "ACME_LINKED_ISSUE_IDS": "i-1,i-2",
	}
	if got := RunVariables(request); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	own := []string{"PATH=/bin", "HOME=/h", "LC_ALL=C", "SECRET=s", "ACME_X=1", "DRAGOMAN_LISTEN=unix:/s", "XDG_API_KEY=k", "EDITOR=vi"}
	if got := Inherited(own, Prefix(request)); !maps.Equal(got, map[string]string{"PATH": "/bin", "HOME": "/h", "LC_ALL": "C"}) {
		t.Errorf("got %v", got)
	}
}
