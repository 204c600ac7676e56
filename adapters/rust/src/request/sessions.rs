//! What a run does with the session that was asked for, and what its router is to store afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::api::session_selector::Selector;
use crate::api::{
    DescribeResponse, ExecuteRequest, FailureKind, Feature, Result as RunResult, SessionChange, SessionDisposition,
    SessionHandle, SessionUpdate,
};
use crate::request::has;

/// How a run uses the session that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// Whether it is resumed, copied or begun.
    pub disposition: SessionDisposition,
    /// The agent's own ID of the session to resume or copy; empty: a new one.
    pub native_id: String,
    /// Why the session that was asked for is not resumed, for people.
    pub reason: String,
}

impl Session {
    /// Returns the session that no other run may use at the same time; `None` for a new one, or a copy.
    pub fn in_use(&self) -> Option<&str> {
        (self.disposition == SessionDisposition::Resume).then_some(self.native_id.as_str())
    }
}

/// Decides about the session. One of another adapter or directory is not resumed, and the run says why.
pub fn plan(request: &ExecuteRequest, described: &DescribeResponse, cwd: &str) -> Session {
    let refused =
        |reason: String| Session { disposition: SessionDisposition::ResumeRefused, reason, ..Session::default() };
    let Some(session) = &request.session else { return fresh() };
    let Some(Selector::Handle(handle)) = &session.selector else {
        return if session.reason.is_empty() { fresh() } else { refused(session.reason.clone()) };
    };
    let first = |texts: [&str; 3]| texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_owned();
    let native_id = first([&handle.native_id, parameter(handle, "sessionId"), parameter(handle, "session_id")]);
    let directory = first([&handle.cwd, parameter(handle, "cwd"), ""]);
    let is_own = |name: &String| *name == described.adapter || described.aliases.contains(name);
    if !handle.adapter.is_empty() && !is_own(&handle.adapter) {
        return refused(format!("the session belongs to {}", handle.adapter));
    }
    if native_id.is_empty() {
        return refused("the handle names no session".to_owned());
    }
    if !directory.is_empty() && !cwd.is_empty() && real(&directory) != real(cwd) {
        return refused(format!("the session belongs to {directory}"));
    }
    let disposition = if session.fork { SessionDisposition::Fork } else { SessionDisposition::Resume };
    Session { disposition, native_id, reason: String::new() }
}

fn fresh() -> Session {
    Session { disposition: SessionDisposition::New, ..Session::default() }
}

/// Fills in what the stored session is to be: a handle's fields, and to forget one that is gone.
pub fn complete(result: &mut RunResult, described: &DescribeResponse, cwd: &str) {
    let is_lost = result.failure.as_ref().is_some_and(|failure| failure.kind() == FailureKind::SessionLost);
    if result.session.is_none() && is_lost && has(described, Feature::Resume) {
        result.session = Some(SessionUpdate { change: SessionChange::Clear as i32, ..SessionUpdate::default() });
    }
    let Some(handle) = result.session.as_mut().and_then(|session| session.handle.as_mut()) else { return };
    let fill = |own: &mut String, known: &str| {
        if own.is_empty() {
            known.clone_into(own);
        }
    };
    fill(&mut handle.adapter, &described.adapter);
    fill(&mut handle.adapter_version, &described.version);
    fill(&mut handle.cwd, cwd);
    if handle.params.is_none() {
        let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let fields = [("sessionId".to_owned(), text(&handle.native_id)), ("cwd".to_owned(), text(&handle.cwd))];
        handle.params = Some(Struct { fields: fields.into() });
    }
}

fn parameter<'a>(handle: &'a SessionHandle, name: &str) -> &'a str {
    match handle.params.as_ref().and_then(|params| params.fields.get(name)).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StringValue(text)) => text,
        _ => "",
    }
}

/// Returns a directory without links: two paths may be one.
fn real(path: &str) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| Path::new(path).components().collect()) // it does not exist here
}
