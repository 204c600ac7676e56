//! The variables of an agent that is a program.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex_lite::Regex;

use super::or;
use crate::api::ExecuteRequest;
use crate::redact::names::is_secret_entry;

const DEFAULT_PREFIX: &str = "DRAGOMAN";

/// What an agent inherits: the environment of a service holds secrets that no model should see, and variables that change
/// how programs work. A `*` ends a prefix.
const INHERITED: &str = "PATH HOME USER LOGNAME SHELL TMPDIR TMP TEMP LANG LANGUAGE LC_* TZ TERM COLORTERM NO_COLOR XDG_* \
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy \
    SSL_CERT_FILE SSL_CERT_DIR NIX_SSL_CERT_FILE NODE_EXTRA_CA_CERTS \
    REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO AWS_CA_BUNDLE SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS \
    NVM_DIR NVM_BIN FNM_DIR FNM_MULTISHELL_PATH VOLTA_HOME PNPM_HOME N_PREFIX \
    BUN_INSTALL DENO_INSTALL ASDF_DIR ASDF_DATA_DIR PYENV_ROOT RBENV_ROOT \
    CARGO_HOME RUSTUP_HOME GOPATH GOROOT JAVA_HOME SDKMAN_DIR ANDROID_HOME \
    HOMEBREW_PREFIX HOMEBREW_CELLAR HOMEBREW_REPOSITORY NIX_PATH NIX_PROFILES";

/// Prefixes that belong to other programs, which would take the run's variables for their own.
const RESERVED: &str = "AIDER AMP ANTHROPIC AUGMENT AZURE AWS BEDROCK CEREBRAS CLAUDE CLAUDECODE CLINE CODEX COHERE COPILOT \
    CRUSH CURSOR DEEPSEEK FACTORY FIREWORKS GEMINI GOOGLE GOOSE GROK GROQ HERMES HF HUGGINGFACE KIMI MINIMAX MISTRAL \
    MOONSHOT OLLAMA OPENAI OPENCLAW OPENCODE OPENROUTER PERPLEXITY PI QWEN TOGETHER VERTEX XAI ZAI GITHUB GH GITLAB \
    BUN CARGO CI CURL DBUS DENO DOCKER DYLD GIT GLIBC GO HOME HTTP HTTPS JAVA KUBERNETES LANG LC LD MALLOC NIX NODE NO \
    NPM PATH PERL PIP PYTHON REQUESTS RUBY RUST SHELL SSH SSL SYSTEMD TERM TMP TMPDIR USER UV VIRTUAL XDG";

static PREFIX_SHAPE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^[A-Z][A-Z0-9_]{0,63}$").expect("a constant pattern"));

/// Returns the prefix of the run's variables, as it stands before `_RUN_ID`.
pub fn prefix(request: &ExecuteRequest) -> &str {
    let own = request.brand.as_ref().map_or("", |brand| &brand.env_prefix);
    or(own, DEFAULT_PREFIX).trim_end_matches('_')
}

/// Returns what is wrong with a caller's prefix.
pub fn wrong_prefix(prefix: &str) -> Option<String> {
    if !PREFIX_SHAPE.is_match(prefix) {
        return Some(
            "must be an upper-case letter, then up to 63 upper-case letters, digits and underscores".to_owned(),
        );
    }
    let name = prefix.trim_end_matches('_');
    let taken = RESERVED
        .split_ascii_whitespace()
        .find(|taken| name.strip_prefix(taken).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))?;
    Some(format!("{taken} belongs to another program, which would take the run's variables for its own"))
}

/// Returns the variables that every run has. What is absent is not set.
pub fn run_variables(request: &ExecuteRequest) -> BTreeMap<String, String> {
    let (agent, context) = (request.agent.clone().unwrap_or_default(), request.context.clone().unwrap_or_default());
    let named = [
        ("AGENT_ID", agent.id.as_str()),
        ("COMPANY_ID", &agent.company_id),
        ("API_URL", &request.api_url),
        ("RUN_ID", &request.run_id),
        ("TASK_ID", or(&context.task_id, &context.issue_id)),
        ("WAKE_REASON", &context.wake_reason),
        ("WAKE_COMMENT_ID", or(&context.wake_comment_id, &context.comment_id)),
        ("APPROVAL_ID", &context.approval_id),
        ("APPROVAL_STATUS", &context.approval_status),
        ("LINKED_ISSUE_IDS", &context.linked_issue_ids.join(",")),
        ("API_KEY", &request.auth_token),
    ];
    let set = named.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(name, value)| (format!("{}_{name}", prefix(request)), value.to_owned())).collect()
}

/// Returns what an agent inherits of an adapter's own variables.
pub fn inherited(own: impl Iterator<Item = (String, String)>, prefix: &str) -> BTreeMap<String, String> {
    let is_of = |name: &str, prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('_'));
    let is_allowed = |name: &str| {
        INHERITED.split_ascii_whitespace().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == pattern,
        })
    };
    own.filter(|(name, value)| {
        !is_of(name, prefix) && !is_of(name, DEFAULT_PREFIX) && !is_secret_entry(name, value) && is_allowed(name)
    })
    .collect()
}
