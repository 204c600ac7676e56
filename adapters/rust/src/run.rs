//! A run, as its adapter sees it.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, io};

use serde_json::{Map, Value};

use crate::api::agent_event::Body;
use crate::api::{
    AgentEvent, ExecuteRequest, FailureKind, Outcome, Result as RunResult, Severity, Started, Text, text,
};
use crate::core::{Core, Phase};
use crate::exec::{Agent, Command, Line};
use crate::request::Settings;
use crate::request::sessions::Session;
use crate::request::skills;
use crate::sync::random_hex;

/// Agents put sockets into a run's directory, whose paths are short.
const LONGEST_DIRECTORY: usize = 60;

/// Why an adapter's function ended without a result.
#[derive(Debug)]
pub enum Error {
    /// The agent's failure, which callers see.
    Failure(Failure),
    /// A fault of the adapter, which is logged and shown to no caller.
    Fault(Box<dyn std::error::Error + Send + Sync>),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(fault: E) -> Self {
        Self::Fault(Box::new(fault))
    }
}

/// Why an agent failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// Stable and more specific; may be empty.
    pub code: String,
    /// For people: what went wrong, and what to do.
    pub message: String,
}

impl Failure {
    /// Returns a failure.
    pub fn new(kind: FailureKind, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, code: code.into(), message: message.into() }
    }
}

impl From<Failure> for crate::api::Failure {
    fn from(failure: Failure) -> Self {
        let retryable = matches!(
            failure.kind,
            FailureKind::QuotaExceeded
                | FailureKind::RateLimited
                | FailureKind::UpstreamUnavailable
                | FailureKind::Network
                | FailureKind::SessionLost
                | FailureKind::ProcessCrashed
                | FailureKind::NoResult
                | FailureKind::StartTimeout
                | FailureKind::IdleTimeout
                | FailureKind::ToolTimeout
                | FailureKind::AdapterLost
        );
        Self { kind: failure.kind as i32, code: failure.code, message: failure.message, retryable, ..Self::default() }
    }
}

/// The run has ended: nothing can be written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

impl std::fmt::Display for Ended {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the run has ended")
    }
}

impl std::error::Error for Ended {}

/// Why a run is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A caller cancelled it, or all callers left it, or the adapter is shutting down.
    Cancelled,
    /// It exceeded one of its limits.
    Limit,
}

/// Returns the result of a run that succeeded.
#[must_use]
pub fn succeeded() -> RunResult {
    RunResult { outcome: Outcome::Succeeded as i32, ..RunResult::default() }
}

impl From<Body> for AgentEvent {
    fn from(body: Body) -> Self {
        Self { body: Some(body), ..Self::default() }
    }
}

/// One run.
pub struct Run {
    pub(crate) program: String,
    pub(crate) core: Arc<Core>,
    pub(crate) request: Arc<ExecuteRequest>,
    pub(crate) settings: Arc<Settings>,
}

impl Run {
    /// The request as it was sent.
    #[must_use]
    pub fn request(&self) -> &ExecuteRequest {
        &self.request
    }

    /// The prompt: rendered, with what goes before it.
    #[must_use]
    pub fn prompt(&self) -> &str {
        &self.settings.prompt
    }

    /// The settings, checked against the schema.
    #[must_use]
    pub fn config(&self) -> &Map<String, Value> {
        &self.settings.config
    }

    /// A setting that is text; `None` if it is absent.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.config.get(key).and_then(Value::as_str)
    }

    /// What to run: [`crate::Adapter::PROGRAM`], or the setting `command`.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The working directory: absolute and existing; empty if the adapter has no `FEATURE_WORKSPACE`.
    #[must_use]
    pub fn cwd(&self) -> &Path {
        Path::new(&self.settings.cwd)
    }

    /// Opens the attempt. Call it before anything of the agent is started, to say what that is: `command`, `argv`, `env`,
    /// `notes`, `agent_version`; the rest is filled in. Without it the first event opens the attempt.
    ///
    /// # Errors
    ///
    /// [`Ended`], also if the attempt was opened before.
    pub fn start(&self, started: Started) -> Result<(), Ended> {
        let mut guard = self.core.lock();
        if guard.phase != Phase::Initial {
            return Err(Ended);
        }
        self.core.start(&mut guard, started);
        Ok(())
    }

    /// Ends the attempt, and opens the next one with what `started` says: for a session that is gone.
    ///
    /// # Errors
    ///
    /// [`Ended`], also if no attempt was opened.
    pub fn retry(&self, failure: Failure, started: Started) -> Result<(), Ended> {
        self.core.retry(failure, started)
    }

    /// What to do with the session that was asked for.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.settings.session
    }

    /// Lays the skills of the request out as files in the run's directory, for an agent with `FEATURE_SKILLS` that finds them
    /// by itself, and returns the directory below which they are. `layout` is where one goes, e.g. `.claude/skills/{name}`.
    ///
    /// # Errors
    ///
    /// They cannot be written.
    pub fn place_skills(&self, layout: &str) -> io::Result<PathBuf> {
        let root = self.dir()?.join("skills");
        if root.exists() {
            fs::remove_dir_all(&root)?; // of the attempt before
        }
        fs::DirBuilder::new().mode(0o700).create(&root)?;
        skills::lay_out(&root, &self.settings.skills, layout)?;
        Ok(root)
    }

    /// Writes an event of the agent. Text, thinking and output of tools need no offset: it is counted after redaction, and a
    /// piece without content says that its item is complete. Waits while the callers that hold the run are far behind.
    ///
    /// # Errors
    ///
    /// [`Ended`].
    pub async fn emit(&self, event: impl Into<AgentEvent>) -> Result<(), Ended> {
        let event = event.into();
        self.core.emit(&mut self.core.lock(), event)?;
        self.core.pace().await;
        Ok(())
    }

    /// Writes a piece of an answer, which continues the item of that name.
    ///
    /// # Errors
    ///
    /// [`Ended`].
    pub async fn text(&self, item_id: &str, delta: impl Into<String>) -> Result<(), Ended> {
        let content = Some(text::Content::Delta(delta.into()));
        self.emit(Body::Text(Text { item_id: item_id.to_owned(), content, ..Text::default() })).await
    }

    /// Writes a line as a log. Lines that come together in great number are joined.
    pub async fn log(&self, line: Line) {
        self.core.log_line(line);
        self.core.pace().await;
    }

    /// Writes a message for people, with a stable code. Before the attempt is open, it is kept until it is.
    pub fn notice(&self, severity: Severity, code: &str, message: impl Into<String>) {
        let mut guard = self.core.lock();
        match guard.phase {
            Phase::Initial => guard.waiting.push((severity, code.to_owned(), message.into())),
            Phase::Attempt => {
                self.core.flush_joined(&mut guard);
                self.core.notice(&mut guard, severity, code, message.into());
            }
            Phase::Ended => {}
        }
    }

    /// Returns a text without the secrets of the request.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.core.redactor.text(text).into_owned()
    }

    /// Waits until the run is to stop, and says why. After the grace the function of the adapter is dropped.
    pub async fn stopped(&self) -> Stop {
        let mut stopping = self.core.stopping.subscribe();
        match stopping.wait_for(Option::is_some).await {
            Ok(found) => found.map_or(Stop::Cancelled, |stopping| stopping.why),
            Err(_) => Stop::Cancelled, // never: `self` has the sender
        }
    }

    /// Returns a directory for this run alone, which is removed after it.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn dir(&self) -> io::Result<PathBuf> {
        let mut guard = self.core.lock();
        if let Some(known) = &guard.directory {
            return Ok(known.clone());
        }
        let name = format!("dragoman-run-{}", random_hex(8));
        let path = Some(env::temp_dir().join(&name)).filter(|path| path.as_os_str().len() <= LONGEST_DIRECTORY);
        let path = path.unwrap_or_else(|| Path::new("/tmp").join(&name));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        guard.directory = Some(path.clone());
        Ok(path)
    }

    /// Starts a program in the run's directory, with the run's variables. It opens the attempt, unless [`Run::start`] did.
    /// When the run is to stop, the program gets SIGTERM, and is killed after the grace.
    ///
    /// # Errors
    ///
    /// The program's guard cannot be started. That the program itself cannot is no error: its [`crate::Exit`] says so.
    pub async fn exec(&self, command: Command) -> io::Result<Agent<'_>> {
        Agent::start(self, command).await
    }
}

/// Removes the directory of a run.
pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
    if fs::remove_dir_all(path).is_ok() {
        return Ok(());
    }
    open_directories(path); // an agent may leave directories that even their owner cannot enter
    fs::remove_dir_all(path)
}

fn open_directories(path: &Path) {
    let is_directory = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if !is_directory(path) || fs::set_permissions(path, fs::Permissions::from_mode(0o700)).is_err() {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        open_directories(&entry.path());
    }
}
