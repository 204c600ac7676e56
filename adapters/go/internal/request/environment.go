package request

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"dragoman/adapters/go/internal/redact"
	pb "dragoman/clients/go/dragomanv1"
)

const (
	defaultPrefix = "DRAGOMAN"
	defaultPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// inherited names what an agent inherits: the environment of a service holds secrets that no model should see, and
// variables that change how programs work.
var inherited = strings.Fields(`
	PATH HOME USER LOGNAME SHELL TMPDIR TMP TEMP LANG LANGUAGE LC_* TZ TERM COLORTERM NO_COLOR XDG_*
	HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
	SSL_CERT_FILE SSL_CERT_DIR NIX_SSL_CERT_FILE NODE_EXTRA_CA_CERTS
	REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO AWS_CA_BUNDLE SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS
	NVM_DIR NVM_BIN FNM_DIR FNM_MULTISHELL_PATH VOLTA_HOME PNPM_HOME N_PREFIX
	BUN_INSTALL DENO_INSTALL ASDF_DIR ASDF_DATA_DIR PYENV_ROOT RBENV_ROOT
	CARGO_HOME RUSTUP_HOME GOPATH GOROOT JAVA_HOME SDKMAN_DIR ANDROID_HOME
	HOMEBREW_PREFIX HOMEBREW_CELLAR HOMEBREW_REPOSITORY NIX_PATH NIX_PROFILES`)

// reserved are prefixes that belong to other programs, which would take the run's variables for their own.
var reserved = strings.Fields(`
	AIDER AMP ANTHROPIC AUGMENT AZURE AWS BEDROCK CEREBRAS CLAUDE CLAUDECODE CLINE CODEX COHERE COPILOT CRUSH CURSOR
	DEEPSEEK FACTORY FIREWORKS GEMINI GOOGLE GOOSE GROK GROQ HERMES HF HUGGINGFACE KIMI MINIMAX MISTRAL MOONSHOT OLLAMA
	OPENAI OPENCLAW OPENCODE OPENROUTER PERPLEXITY PI QWEN TOGETHER VERTEX XAI ZAI GITHUB GH GITLAB
	BUN CARGO CI CURL DBUS DENO DOCKER DYLD GIT GLIBC GO HOME HTTP HTTPS JAVA KUBERNETES LANG LC LD MALLOC NIX NODE NO
	NPM PATH PERL PIP PYTHON REQUESTS RUBY RUST SHELL SSH SSL SYSTEMD TERM TMP TMPDIR USER UV VIRTUAL XDG`)

var prefixShape = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)

// Prefix returns the prefix of the run's variables, as it stands before _RUN_ID.
func Prefix(request *pb.ExecuteRequest) string {
	return strings.TrimRight(or(request.GetBrand().GetEnvPrefix(), defaultPrefix), "_")
}

// wrongPrefix returns what is wrong with a caller's prefix; empty if nothing is.
func wrongPrefix(prefix string) string {
	if !prefixShape.MatchString(prefix) {
		return "must be an upper-case letter, then up to 63 upper-case letters, digits and underscores"
	}
	name := strings.TrimRight(prefix, "_")
	for _, taken := range reserved {
		if name == taken || strings.HasPrefix(name, taken+"_") {
			return taken + " belongs to another program, which would take the run's variables for its own"
		}
	}
	return ""
}

// RunVariables returns the variables that every run has. What is absent is not set.
func RunVariables(request *pb.ExecuteRequest) map[string]string {
	context := request.GetContext()
	prefix := Prefix(request) + "_"
	variables := map[string]string{}
	for name, value := range map[string]string{
		"AGENT_ID": request.GetAgent().GetId(), "COMPANY_ID": request.GetAgent().GetCompanyId(),
		"API_URL": request.GetApiUrl(), "RUN_ID": request.GetRunId(),
		"TASK_ID": or(context.GetTaskId(), context.GetIssueId()), "WAKE_REASON": context.GetWakeReason(),
		"WAKE_COMMENT_ID": or(context.GetWakeCommentId(), context.GetCommentId()),
		"APPROVAL_ID":     context.GetApprovalId(), "APPROVAL_STATUS": context.GetApprovalStatus(),
		"LINKED_ISSUE_IDS": strings.Join(context.GetLinkedIssueIds(), ","),
		"API_KEY":          request.GetAuthToken(),
	} {
		if value != "" {
			variables[prefix+name] = value
		}
	}
	return variables
}

// Inherited returns what an agent inherits of an adapter's own variables, which are as in os.Environ.
func Inherited(own []string, prefix string) map[string]string {
	kept := map[string]string{}
	for _, variable := range own {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, prefix+"_") || strings.HasPrefix(name, defaultPrefix+"_") || redact.IsSecretEntry(name, value) {
			continue
		}
		isAllowed := slices.ContainsFunc(inherited, func(pattern string) bool {
			matches, _ := path.Match(pattern, name)
			return matches
		})
		if isAllowed {
			kept[name] = value
		}
	}
	return kept
}
