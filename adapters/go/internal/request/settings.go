package request

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"dragoman/adapters/go/internal/redact"
	"dragoman/adapters/go/internal/skills"
	dragoman "dragoman/clients/go"
	pb "dragoman/clients/go/dragomanv1"
)

const defaultGrace = 15 * time.Second

// Settings are what a request comes down to.
type Settings struct {
	Config      map[string]any // checked against the schema
	Cwd         string         // absolute and existing; empty if the adapter has no workspace
	PromptBytes map[string]uint64
	Session     SessionPlan
	Skills      []skills.Skill
	Missing     []string // paths in templates that nothing is at
	Env         map[string]string
	Secrets     []string

	before, task string // rendered: what goes before the skills, and the prompt proper

	StartUp, Idle, Wall, ToolCall time.Duration // 0: no limit
	Grace                         time.Duration
	OutputBytes                   uint64 // 0: no limit
}

// Limits returns the limits in effect.
func (s *Settings) Limits() *pb.Limits {
	limits := &pb.Limits{Grace: durationpb.New(s.Grace), OutputBytes: s.OutputBytes}
	for _, limit := range []struct {
		value time.Duration
		field **durationpb.Duration
	}{{s.StartUp, &limits.StartUp}, {s.Idle, &limits.Idle}, {s.Wall, &limits.Wall}, {s.ToolCall, &limits.ToolCall}} {
		if limit.value > 0 {
			*limit.field = durationpb.New(limit.value)
		}
	}
	return limits
}

// Accept checks a request against what an adapter says of itself. No secret of the request is in the error.
func Accept(request *pb.ExecuteRequest, described *pb.DescribeResponse, schema *Schema) (*Settings, error) {
	secrets := redact.Secrets(request)
	settings, err := accept(request, described, schema)
	if err != nil {
		return nil, redacted(err, redact.New(secrets))
	}
	settings.Secrets = secrets
	return settings, nil
}

func redacted(err *dragoman.Error, redactor *redact.Redactor) error {
	err.Message = redactor.Text(err.Message)
	for key, value := range err.Metadata {
		err.Metadata[key] = redactor.Text(value)
	}
	for i, wrong := range err.Violations {
		err.Violations[i] = dragoman.Violation{Field: redactor.Text(wrong.Field), Description: redactor.Text(wrong.Description)}
	}
	return err
}

func accept(request *pb.ExecuteRequest, described *pb.DescribeResponse, schema *Schema) (*Settings, *dragoman.Error) {
	if err := refuse(request, described); err != nil {
		return nil, err
	}
	config := request.GetConfig()
	if config == nil {
		config = request.GetAgent().GetAdapterConfig()
	}
	settings := &Settings{Config: config.AsMap()}
	if settings.Config == nil {
		settings.Config = map[string]any{}
	}
	wrong := schema.Check(settings.Config)
	wrong = append(wrong, wrongFields(request)...)
	cwdField, cwd := "workspace.cwd", request.GetWorkspace().GetCwd()
	if cwd == "" {
		if configured, isText := settings.Config["cwd"].(string); isText && configured != "" {
			cwdField, cwd = "config.cwd", configured
		}
	}
	if Has(described, pb.Feature_FEATURE_WORKSPACE) {
		if problem := CheckDirectory(cwd); problem != "" {
			wrong = append(wrong, dragoman.Violation{Field: cwdField, Description: problem})
		}
		settings.Cwd = cwd
	}
	found, unfit := skills.Read(request.GetSkills())
	settings.Skills, wrong = found, append(wrong, unfit...)
	if len(wrong) > 0 {
		err := dragoman.Errorf(dragoman.InvalidRequest, "%s: %s", wrong[0].Field, wrong[0].Description)
		err.Violations = wrong
		return nil, err
	}
	settings.limits(request)
	settings.Env = map[string]string{}
	if variables, isObject := settings.Config["env"].(map[string]any); isObject {
		for name, value := range variables {
			settings.Env[name], _ = value.(string)
		}
	}
	settings.Session = planSession(request, described, settings.Cwd)
	if err := settings.render(request); err != nil {
		return nil, dragoman.FromError(err)
	}
	return settings, nil
}

// Has returns whether a feature is declared.
func Has(described *pb.DescribeResponse, feature pb.Feature) bool {
	return slices.ContainsFunc(described.GetCapabilities().GetItems(), func(item *pb.Capability) bool {
		return item.GetFeature() == feature
	})
}

// refuse refuses set fields that an adapter cannot honour.
func refuse(request *pb.ExecuteRequest, described *pb.DescribeResponse) *dragoman.Error {
	notSupported := func(field, description string) *dragoman.Error {
		return dragoman.FieldError(dragoman.NotSupported, field, description)
	}
	session := request.GetSession()
	label := described.GetLabel()
	for _, field := range []struct {
		name    string
		isSet   bool
		feature pb.Feature
	}{
		{"fallback", request.GetFallback() != nil, 0},
		{"admission", request.GetAdmission() != nil, 0},
		{"limits.budget", request.GetLimits().GetBudget() != nil, 0},
		{"agent_name", request.GetAgentName() != "", 0},
		{"session.key", session.GetKey() != nil, 0},
		{"session.resume_run_id", session.GetResumeRunId() != "", 0},
		{"skills", len(request.GetSkills()) > 0, pb.Feature_FEATURE_SKILLS},
		{"mcp_servers", len(request.GetMcpServers()) > 0, pb.Feature_FEATURE_MCP_SERVERS},
		{"system_prompt", request.GetSystemPrompt() != "", pb.Feature_FEATURE_SYSTEM_PROMPT},
		{"instructions", request.GetInstructions() != nil, pb.Feature_FEATURE_INSTRUCTIONS},
		{"model", request.GetModel() != "", pb.Feature_FEATURE_MODEL_CHOICE},
		{"track_changes", request.GetTrackChanges(), pb.Feature_FEATURE_CHANGES},
		{"attachments", len(request.GetAttachments()) > 0, pb.Feature_FEATURE_ATTACHMENTS},
		{"session.handle", session.GetHandle() != nil, pb.Feature_FEATURE_RESUME},
		{"session.fork", session.GetHandle() != nil && session.GetFork(), pb.Feature_FEATURE_FORK},
		{"auth_token", request.GetAuthToken() != "", pb.Feature_FEATURE_AUTH_TOKEN},
	} {
		if !field.isSet {
			continue
		}
		if field.feature == 0 {
			return notSupported(field.name, "only a router does that; leave it out")
		}
		if !Has(described, field.feature) {
			return notSupported(field.name, label+" does not support it; leave it out")
		}
	}
	permissions := request.GetPermissions()
	asks := len(permissions.GetRules()) > 0 || permissions.GetDefaultDecision() != 0 ||
		permissions.GetNativeMode() != "" || permissions.GetAutoApprove()
	mode := described.GetCapabilities().GetPermissionMode()
	keeps := mode == pb.PermissionMode_PERMISSION_MODE_STRICT || mode == pb.PermissionMode_PERMISSION_MODE_PERMISSIVE
	if asks && !keeps && !Has(described, pb.Feature_FEATURE_PERMISSION_REQUESTS) {
		return notSupported("permissions", label+" never asks for permission; leave permissions out")
	}
	var missing []string
	for _, feature := range request.GetRequiredCapabilities() {
		if !Has(described, feature) {
			missing = append(missing, feature.String())
		}
	}
	if len(missing) > 0 {
		names := strings.Join(missing, ", ")
		return dragoman.Errorf(dragoman.CapabilityMissing, "%s cannot: %s", described.GetAdapter(), names).WithMetadata("missing", names)
	}
	return nil
}

func wrongFields(request *pb.ExecuteRequest) []dragoman.Violation {
	var wrong []dragoman.Violation
	fail := func(field, description string) {
		wrong = append(wrong, dragoman.Violation{Field: field, Description: description})
	}
	session := request.GetSession()
	if _, isFresh := session.GetSelector().(*pb.SessionSelector_Fresh); isFresh && !session.GetFresh() {
		fail("session.fresh", "must be true, or absent")
	}
	if session.GetFork() && session.GetHandle() == nil {
		fail("session.fork", "a session to fork is missing; give session.handle")
	}
	if session.GetReason() != "" && !session.GetFresh() {
		fail("session.reason", "goes with session.fresh")
	}
	if session.GetHandover() != "" && !session.GetFresh() {
		fail("session.handover", "goes with session.fresh")
	}
	for i, directory := range request.GetWorkspace().GetAdditionalDirectories() {
		if problem := CheckDirectory(directory); problem != "" {
			fail(fmt.Sprintf("workspace.additional_directories[%d]", i), problem)
		}
	}
	if prefix := request.GetBrand().GetEnvPrefix(); prefix != "" {
		if problem := wrongPrefix(prefix); problem != "" {
			fail("brand.env_prefix", problem)
		}
	}
	for name, value := range request.GetEnv() {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			fail("env", "a variable's name must not be empty, nor contain '=' or a zero byte")
		} else if strings.Contains(value, "\x00") {
			fail("env."+cut(name, shownKey), "a variable's value must not contain a zero byte")
		}
	}
	for name, value := range RunVariables(request) {
		if strings.Contains(value, "\x00") {
			fail(name, "must not contain a zero byte")
		}
	}
	return wrong
}

// CheckDirectory returns what keeps an agent from working in a directory; empty if nothing does.
func CheckDirectory(path string) string {
	if path == "" {
		return "a working directory is required; give the absolute path of an existing directory"
	}
	shown := cut(path, 300)
	if strings.Contains(path, "\x00") {
		return fmt.Sprintf("%q contains a zero byte", shown)
	}
	if !filepath.IsAbs(path) {
		return fmt.Sprintf("%q is not an absolute path; give the path from / on", shown)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Sprintf("%q does not exist on the adapter's machine, or may not be reached", shown)
	}
	if !info.IsDir() {
		return fmt.Sprintf("%q is no directory", shown)
	}
	directory, err := os.Open(path)
	if err != nil {
		return fmt.Sprintf("%q may not be entered; give the adapter's user access to it", shown)
	}
	_ = directory.Close()
	return ""
}

func (s *Settings) limits(request *pb.ExecuteRequest) {
	limits := request.GetLimits()
	s.StartUp, s.Idle = limits.GetStartUp().AsDuration(), limits.GetIdle().AsDuration()
	s.ToolCall, s.OutputBytes = limits.GetToolCall().AsDuration(), limits.GetOutputBytes()
	s.Wall, s.Grace = limits.GetWall().AsDuration(), limits.GetGrace().AsDuration()
	if limits.GetWall() == nil {
		s.Wall = s.seconds("timeoutSec", 0)
	}
	if limits.GetGrace() == nil {
		s.Grace = s.seconds("graceSec", defaultGrace)
	}
}

func (s *Settings) seconds(key string, absent time.Duration) time.Duration {
	if number, isNumber := s.Config[key].(float64); isNumber {
		return time.Duration(number * float64(time.Second))
	}
	return absent
}

// Prompt returns the whole prompt. Skills that are text of it go into that of every run, as each has its own.
func (s *Settings) Prompt(skills string) string {
	if skills != "" {
		s.PromptBytes["skills"] = uint64(len(skills))
	}
	text := ""
	for _, section := range []string{s.before, skills} {
		if section != "" {
			text += section + "\n\n"
		}
	}
	return text + s.task
}

// BeginAnew makes these settings those of a new session, in place of one that cannot be resumed.
func (s *Settings) BeginAnew(request *pb.ExecuteRequest, reason string) error {
	s.Session = SessionPlan{Disposition: pb.SessionDisposition_SESSION_DISPOSITION_RESUME_REFUSED, Reason: reason}
	return s.render(request)
}

// render makes the prompt. The text that is handed over is no template. A session that is resumed has had what goes
// before the first prompt.
func (s *Settings) render(request *pb.ExecuteRequest) error {
	s.PromptBytes, s.Missing = map[string]uint64{}, nil
	isNew := s.Session.NativeID == ""
	var sections []string
	put := func(name, text string) {
		s.PromptBytes[name] = uint64(len(text))
		sections = append(sections, text)
	}
	var data map[string]any // made once, and only for a template
	fill := func(name, template string) error {
		if data == nil {
			data = TemplateData(request)
		}
		if template == "" {
			template = DefaultPrompt(data)
		}
		text, missing, err := Render(template, data)
		if err != nil {
			return err
		}
		s.Missing = append(s.Missing, missing...)
		put(name, text)
		return nil
	}
	if bootstrap, isText := s.Config["bootstrapPromptTemplate"].(string); isNew && isText && bootstrap != "" {
		if err := fill("bootstrap", bootstrap); err != nil {
			return err
		}
	}
	if handover := request.GetSession().GetHandover(); handover != "" {
		put("handover", handover)
	}
	s.before = strings.Join(sections, "\n\n")
	sections = nil
	if prompt, isLiteral := request.GetTask().(*pb.ExecuteRequest_Prompt); isLiteral {
		put("prompt", prompt.Prompt)
	} else {
		template := request.GetPromptTemplate()
		if template == "" {
			template, _ = s.Config["promptTemplate"].(string)
		}
		if err := fill("prompt", template); err != nil {
			return err
		}
	}
	s.task = sections[0]
	slices.Sort(s.Missing)
	s.Missing = slices.Compact(s.Missing)
	return nil
}
