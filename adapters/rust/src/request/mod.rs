//! Checks a request, and makes of it what a run needs: settings, prompt, environment.

pub mod bounds;
pub mod environment;
pub mod schema;
pub mod sessions;
pub mod skills;
pub mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::api::execute_request::Task;
use crate::api::session_selector::Selector;
use crate::api::{DescribeResponse, ExecuteRequest, Feature, Limits, PermissionMode};
use crate::json;
use crate::reason::{Reason, Refusal, Violation};
use crate::redact::{self, Redactor};
use schema::Schema;

const DEFAULT_GRACE: Duration = Duration::from_secs(15);
const SHOWN_PATH: usize = 300;

/// What a request comes down to.
pub struct Settings {
    /// Checked against the schema.
    pub config: Map<String, Value>,
    /// Absolute and existing; empty if the adapter has no workspace.
    pub cwd: String,
    /// Rendered, bootstrap and handover included.
    pub prompt: String,
    pub prompt_bytes: BTreeMap<String, u64>,
    /// Paths in templates that nothing is at.
    pub missing: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub secrets: Vec<String>,
    pub limits: RunLimits,
    pub session: sessions::Session,
    pub skills: Vec<skills::Skill>,
}

/// The limits of a run; `None` is no limit.
#[derive(Clone, Default)]
pub struct RunLimits {
    pub start_up: Option<Duration>,
    pub idle: Option<Duration>,
    pub wall: Option<Duration>,
    pub tool_call: Option<Duration>,
    pub grace: Duration,
    pub output_bytes: Option<usize>,
}

impl RunLimits {
    fn of(request: &ExecuteRequest, config: &Map<String, Value>) -> Self {
        let asked = request.limits.clone().unwrap_or_default();
        let seconds =
            |key: &str| config.get(key).and_then(Value::as_f64).and_then(|s| Duration::try_from_secs_f64(s).ok());
        let limit = |asked: Option<prost_types::Duration>| duration(asked).filter(|limit| !limit.is_zero());
        Self {
            start_up: limit(asked.start_up),
            idle: limit(asked.idle),
            tool_call: limit(asked.tool_call),
            wall: if asked.wall.is_some() {
                limit(asked.wall)
            } else {
                seconds("timeoutSec").filter(|limit| !limit.is_zero())
            },
            grace: duration(asked.grace).or_else(|| seconds("graceSec")).unwrap_or(DEFAULT_GRACE),
            output_bytes: usize::try_from(asked.output_bytes).ok().filter(|limit| *limit > 0),
        }
    }

    /// Returns the limits in effect, as `started` shows them.
    pub fn shown(&self) -> Limits {
        let shown = |limit: Option<Duration>| limit.and_then(|limit| limit.try_into().ok());
        Limits {
            start_up: shown(self.start_up),
            idle: shown(self.idle),
            wall: shown(self.wall),
            tool_call: shown(self.tool_call),
            grace: shown(Some(self.grace)),
            output_bytes: self.output_bytes.map_or(0, |limit| limit as u64),
            ..Default::default()
        }
    }
}

/// Returns a duration that was checked; `None` if it is absent.
pub fn duration(sent: Option<prost_types::Duration>) -> Option<Duration> {
    sent.and_then(|sent| sent.try_into().ok())
}

/// Checks a request against what an adapter says of itself. No secret of the request is in the error.
pub fn accept(request: &ExecuteRequest, described: &DescribeResponse, schema: &Schema) -> Result<Settings, Refusal> {
    let secrets = redact::secrets(request);
    match settings(request, described, schema) {
        Ok(settings) => Ok(Settings { secrets, ..settings }),
        Err(refusal) => Err(redacted(refusal, &Redactor::new(&secrets))),
    }
}

fn redacted(mut refusal: Refusal, redactor: &Redactor) -> Refusal {
    let shown = |text: &mut String| *text = redactor.text(text).into_owned();
    shown(&mut refusal.message);
    refusal.metadata.values_mut().for_each(shown);
    for wrong in &mut refusal.violations {
        shown(&mut wrong.field);
        shown(&mut wrong.description);
    }
    refusal
}

fn settings(request: &ExecuteRequest, described: &DescribeResponse, schema: &Schema) -> Result<Settings, Refusal> {
    refuse(request, described)?;
    let stored = request.agent.as_ref().and_then(|agent| agent.adapter_config.as_ref());
    let config = request.config.as_ref().or(stored).map(json::object).unwrap_or_else(|| Value::Object(Map::new()));
    let mut wrong = schema.check(&config);
    let Value::Object(config) = config else { unreachable!("json::object makes objects") };
    wrong.extend(wrong_fields(request));
    let (skills, wrong_skills) = skills::read(&request.skills);
    wrong.extend(wrong_skills);
    let mut cwd = (request.workspace.as_ref().map_or("", |workspace| &workspace.cwd), "workspace.cwd");
    if let ("", Some(Value::String(configured))) = (cwd.0, config.get("cwd"))
        && !configured.is_empty()
    {
        cwd = (configured, "config.cwd");
    }
    let has_workspace = has(described, Feature::Workspace);
    if let Some(problem) = check_directory(cwd.0).filter(|_| has_workspace) {
        wrong.push(Violation::new(cwd.1, problem));
    }
    if let Some(first) = wrong.first() {
        let message = format!("{}: {}", first.field, first.description);
        return Err(Refusal { violations: wrong, ..Refusal::new(Reason::InvalidRequest, message) });
    }
    let variables = config.get("env").and_then(Value::as_object).into_iter().flatten();
    let env = variables.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    let mut made = Settings {
        session: sessions::plan(request, described, if has_workspace { cwd.0 } else { "" }),
        skills,
        cwd: if has_workspace { cwd.0.to_owned() } else { String::new() },
        limits: RunLimits::of(request, &config),
        config,
        prompt: String::new(),
        prompt_bytes: BTreeMap::new(),
        missing: Vec::new(),
        env,
        secrets: Vec::new(),
    };
    made.render(request)?;
    Ok(made)
}

/// Returns whether a feature is declared.
pub fn has(described: &DescribeResponse, feature: Feature) -> bool {
    let items = described.capabilities.iter().flat_map(|capabilities| &capabilities.items);
    items.into_iter().any(|item| item.feature == feature as i32)
}

/// Rejects set fields that an adapter cannot honour.
fn refuse(request: &ExecuteRequest, described: &DescribeResponse) -> Result<(), Refusal> {
    let label = &described.label;
    let session = request.session.clone().unwrap_or_default();
    let handle = matches!(session.selector, Some(Selector::Handle(_)));
    let permissions = request.permissions.as_ref();
    let asks = permissions.is_some_and(|asked| {
        !asked.rules.is_empty() || asked.default_decision != 0 || !asked.native_mode.is_empty() || asked.auto_approve
    });
    let mode = described.capabilities.as_ref().map_or(0, |capabilities| capabilities.permission_mode);
    let keeps = mode == PermissionMode::Strict as i32 || mode == PermissionMode::Permissive as i32;
    let unless = |feature| {
        if has(described, feature) { None } else { Some(format!("{label} does not support it; leave it out")) }
    };
    let routers = || Some("only a router does that; leave it out".to_owned());
    let never_asks = || {
        let is_kept = keeps || has(described, Feature::PermissionRequests);
        (!is_kept).then(|| format!("{label} never asks for permission; leave permissions out"))
    };
    let fields = [
        ("fallback", request.fallback.is_some(), routers()),
        ("limits.budget", request.limits.as_ref().is_some_and(|limits| limits.budget.is_some()), routers()),
        ("admission", request.admission.is_some(), routers()),
        ("agent_name", !request.agent_name.is_empty(), routers()),
        ("session.key", matches!(session.selector, Some(Selector::Key(_))), routers()),
        ("session.resume_run_id", matches!(session.selector, Some(Selector::ResumeRunId(_))), routers()),
        ("skills", !request.skills.is_empty(), unless(Feature::Skills)),
        ("mcp_servers", !request.mcp_servers.is_empty(), unless(Feature::McpServers)),
        ("system_prompt", !request.system_prompt.is_empty(), unless(Feature::SystemPrompt)),
        ("instructions", request.instructions.is_some(), unless(Feature::Instructions)),
        ("model", !request.model.is_empty(), unless(Feature::ModelChoice)),
        ("track_changes", request.track_changes, unless(Feature::Changes)),
        ("attachments", !request.attachments.is_empty(), unless(Feature::Attachments)),
        ("session.handle", handle, unless(Feature::Resume)),
        ("session.fork", handle && session.fork, unless(Feature::Fork)),
        ("auth_token", !request.auth_token.is_empty(), unless(Feature::AuthToken)),
        ("permissions", asks, never_asks()),
    ];
    for (field, _, problem) in fields.into_iter().filter(|(_, is_set, _)| *is_set) {
        if let Some(description) = problem {
            return Err(Refusal::field(Reason::NotSupported, field, description));
        }
    }
    let declared: Vec<i32> =
        described.capabilities.iter().flat_map(|all| all.items.iter().map(|item| item.feature)).collect();
    let missing: Vec<String> = request
        .required_capabilities
        .iter()
        .filter(|feature| !declared.contains(feature))
        .map(|feature| name_of(*feature))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(", ");
    let message = format!("{} cannot: {names}", described.adapter);
    Err(Refusal::new(Reason::CapabilityMissing, message).with("missing", names))
}

fn name_of(feature: i32) -> String {
    Feature::try_from(feature).map_or_else(|_| feature.to_string(), |known| known.as_str_name().to_owned())
}

fn wrong_fields(request: &ExecuteRequest) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let session = request.session.clone().unwrap_or_default();
    let is_fresh = session.selector == Some(Selector::Fresh(true));
    if session.selector == Some(Selector::Fresh(false)) {
        wrong.push(Violation::new("session.fresh", "must be true, or absent"));
    }
    if session.fork && !matches!(session.selector, Some(Selector::Handle(_))) {
        wrong.push(Violation::new("session.fork", "a session to fork is missing; give session.handle"));
    }
    for (field, value) in [("session.reason", &session.reason), ("session.handover", &session.handover)] {
        if !value.is_empty() && !is_fresh {
            wrong.push(Violation::new(field, "goes with session.fresh"));
        }
    }
    let directories = request.workspace.iter().flat_map(|workspace| &workspace.additional_directories);
    for (number, directory) in directories.enumerate() {
        if let Some(problem) = check_directory(directory) {
            wrong.push(Violation::new(format!("workspace.additional_directories[{number}]"), problem));
        }
    }
    if let Some(brand) = request.brand.as_ref().filter(|brand| !brand.env_prefix.is_empty())
        && let Some(problem) = environment::wrong_prefix(&brand.env_prefix)
    {
        wrong.push(Violation::new("brand.env_prefix", problem));
    }
    for (name, value) in &request.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            wrong.push(Violation::new("env", "a variable's name must not be empty, nor contain '=' or a zero byte"));
        } else if value.contains('\0') {
            let field = format!("env.{}", cut(name, bounds::SHOWN_KEY));
            wrong.push(Violation::new(field, "a variable's value must not contain a zero byte"));
        }
    }
    let variables = environment::run_variables(request);
    wrong.extend(
        variables
            .iter()
            .filter(|(_, value)| value.contains('\0'))
            .map(|(name, _)| Violation::new(name, "must not contain a zero byte")),
    );
    wrong
}

/// Returns what keeps an agent from working in a directory.
pub fn check_directory(path: &str) -> Option<String> {
    if path.is_empty() {
        return Some("a working directory is required; give the absolute path of an existing directory".to_owned());
    }
    let shown = cut(path, SHOWN_PATH);
    if path.contains('\0') {
        return Some(format!("{shown:?} contains a zero byte"));
    }
    if !Path::new(path).is_absolute() {
        return Some(format!("{shown:?} is not an absolute path; give the path from / on"));
    }
    match fs::metadata(path) {
        Err(_) => Some(format!("{shown:?} does not exist on the adapter's machine, or may not be reached")),
        Ok(found) if !found.is_dir() => Some(format!("{shown:?} is no directory")),
        Ok(_) => fs::read_dir(path)
            .err()
            .map(|_| format!("{shown:?} may not be entered; give the adapter's user access to it")),
    }
}

impl Settings {
    /// Makes the prompt. The text that is handed over is no template.
    fn render(&mut self, request: &ExecuteRequest) -> Result<(), Refusal> {
        let bootstrap = self.text("bootstrapPromptTemplate");
        let configured = self.text("promptTemplate");
        let handover = request.session.as_ref().map_or("", |session| &session.handover);
        let template = match &request.task {
            Some(Task::Prompt(_)) => None,
            Some(Task::PromptTemplate(own)) if !own.is_empty() => Some(own.clone()),
            _ => Some(configured),
        };
        let data = if template.is_some() || !bootstrap.is_empty() { template::data(request) } else { Value::Null };
        let mut sections = Vec::new();
        if !bootstrap.is_empty() {
            sections.push(("bootstrap", self.fill(&bootstrap, &data)?));
        }
        if !handover.is_empty() {
            sections.push(("handover", handover.to_owned()));
        }
        let prompt = match (&request.task, template) {
            (Some(Task::Prompt(literal)), _) => literal.clone(),
            (_, Some(template)) if !template.is_empty() => self.fill(&template, &data)?,
            _ => self.fill(&template::default_prompt(&data), &data)?,
        };
        sections.push(("prompt", prompt));
        self.prompt_bytes = sections.iter().map(|(name, text)| ((*name).to_owned(), text.len() as u64)).collect();
        self.prompt = sections.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n\n");
        self.missing.sort_unstable();
        self.missing.dedup();
        Ok(())
    }

    fn text(&self, key: &str) -> String {
        self.config.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn fill(&mut self, template: &str, data: &Value) -> Result<String, Refusal> {
        let (text, missing) = template::render(template, data)?;
        self.missing.extend(missing);
        Ok(text)
    }
}

/// Returns the first of two texts that is not empty.
pub fn or<'a>(one: &'a str, other: &'a str) -> &'a str {
    if one.is_empty() { other } else { one }
}

/// Returns at most so many bytes of a text, which end with a character.
pub fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
