//! An adapter whose agent is in its own process and performs the steps of the conformance kit: it asks, resumes sessions and
//! reads skills, which the program of the kit cannot.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use dragoman_adapter::api::agent_event::Body;
use dragoman_adapter::api::{
    self, FailureKind, Feature, InputKind, InputRequest, InputSubject, PermissionMode, SessionChange,
    SessionDisposition, Severity, Started, ToolKind, ToolStatus, UsageScope, text,
};
use dragoman_adapter::{Adapter, Error, Failure, Question, Run, features, serve, succeeded};

const MARK: &str = "dragoman-script:\n";

struct Scripted;

impl Adapter for Scripted {
    fn describe(&self) -> api::DescribeResponse {
        let declared = [
            Feature::Prompt,
            Feature::Workspace,
            Feature::TextDeltas,
            Feature::ToolStart,
            Feature::PermissionRequests,
            Feature::InputRequests,
            Feature::Resume,
            Feature::ResumeRejection,
            Feature::Fork,
            Feature::Skills,
        ];
        api::DescribeResponse {
            adapter: "scripted_rust".into(),
            label: "Scripted".into(),
            version: "1".into(),
            config_schema_json: r#"{"type": "object", "additionalProperties": false, "properties": {}}"#.into(),
            capabilities: Some(features(PermissionMode::Strict, &declared)),
            ..Default::default()
        }
    }

    async fn run(&self, run: Run) -> Result<Option<api::Result>, Error> {
        if let Some(code) = run.prompt().split('\n').find_map(|step| step.strip_prefix("early=")) {
            run.notice(Severity::Info, code, "It comes before the attempt.");
        }
        run.start(Started { notes: vec!["performs the steps of its prompt".into()], ..Default::default() })?;
        tokio::select! {
            biased; // nothing is done after a question that the stop has dropped
            _ = run.stopped() => Ok(None),
            result = perform(&run) => result,
        }
    }
}

async fn perform(run: &Run) -> Result<Option<api::Result>, Error> {
    let (head, rest) = run.prompt().split_once("\n---\n").unwrap_or((run.prompt(), ""));
    let steps = head.strip_prefix(MARK).unwrap_or_default();
    let mut says = Says { run, items: 0, is_open: false };
    let (mut session, mut calls, mut usage) = (run.session().native_id.clone(), 0, None);
    for step in steps.split('\n').filter(|step| !step.is_empty()) {
        let (name, value) = step.split_once('=').unwrap_or((step, ""));
        match name {
            "early" => {}
            "say" => says.whole(value).await?,
            "piece" => says.piece(value).await?,
            "echo" => says.whole(&rest.chars().take(200).collect::<String>()).await?,
            "received" => {
                let is_in_skills = contains(&run.place_skills(".agent/skills/{name}")?, &from_hex(value)?)?;
                let is_session = run.session().native_id == from_hex(value)?;
                let is_received = is_in_skills || is_session || run.prompt().contains(&from_hex(value)?);
                says.whole(if is_received { "received: yes" } else { "received: no" }).await?;
            }
            "usage" => usage = Some(reported(value)?),
            "env" => says.whole(run.request().env.get(value).map_or("", String::as_str)).await?,
            "split" => {
                let secret = run.request().env.get(value).cloned().unwrap_or_default();
                let (one, other) = secret.split_at(secret.floor_char_boundary(secret.len() / 2));
                says.piece(one).await?;
                says.piece(other).await?;
            }
            "flood" => {
                for number in 0..value.parse()? {
                    says.whole(&format!("{number:0100}")).await?;
                }
            }
            "tool" | "failing" | "call" => {
                calls += 1;
                let status = if name == "tool" { ToolStatus::Completed } else { ToolStatus::Failed };
                tool(run, value, calls, Some(status).filter(|_| name != "call")).await?;
            }
            "touch" => {
                let workspace = run.request().workspace.as_ref().map_or("", |workspace| workspace.cwd.as_str());
                std::fs::write(Path::new(workspace).join(value), "")?;
            }
            "wait" => {
                while std::fs::metadata(value).is_err() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            "ask" => {
                let subject =
                    InputSubject { tool_name: value.into(), tool_kind: ToolKind::Execute as i32, ..Default::default() };
                let is_allowed = run.permit(subject, Question::default()).await?.is_allowed;
                says.whole(if is_allowed { "allowed" } else { "rejected" }).await?;
            }
            "write" => {
                let subject =
                    InputSubject { tool_name: "write".into(), tool_kind: ToolKind::Edit as i32, ..Default::default() };
                if run.permit(subject, Question::default()).await?.is_allowed {
                    std::fs::write(value, "")?;
                }
            }
            "question" => {
                let kind = InputKind::Text as i32;
                let asked = InputRequest { kind, title: value.into(), ..Default::default() };
                let words = run.ask(asked).await?.answer.text;
                says.whole(&format!("answered {words}")).await?;
            }
            "session" if session.is_empty() || run.session().disposition == SessionDisposition::Fork => {
                value.clone_into(&mut session);
            }
            "session" => {}
            "lost" if run.session().disposition == SessionDisposition::Resume => {
                let reason = "the agent does not know the session";
                let failure = Failure::new(FailureKind::SessionLost, "lost", reason);
                let session_disposition = SessionDisposition::ResumeRefused as i32;
                run.retry(
                    failure,
                    Started { session_disposition, session_reason: reason.into(), ..Default::default() },
                )?;
                session.clear();
            }
            "lost" => {}
            "skill" => {
                let place = run.place_skills(".agent/skills/{name}")?.join(".agent/skills").join(value);
                says.whole(&std::fs::read_to_string(place)?).await?;
            }
            "fail" => return Err(Failure::new(FailureKind::ProcessCrashed, "scripted", value).into()),
            "hang" => std::future::pending().await,
            _ => {
                let message = format!("dragoman-script: step '{name}' not supported");
                return Err(Failure::new(FailureKind::InvalidConfig, "step", message).into());
            }
        }
    }
    let handle = api::SessionHandle { native_id: session, ..Default::default() };
    let change = api::SessionUpdate { change: SessionChange::Set as i32, handle: Some(handle) };
    let is_session = change.handle.as_ref().is_some_and(|handle| !handle.native_id.is_empty());
    Ok(Some(api::Result { session: Some(change).filter(|_| is_session), usage, ..succeeded() }))
}

/// Returns the tokens of `IN,OUT`, of which one may be missing: absent is not zero.
fn reported(counts: &str) -> Result<api::Usage, Error> {
    let (input, output) = counts.split_once(',').unwrap_or((counts, ""));
    let count = |text: &str| if text.is_empty() { Ok(None) } else { text.parse().map(Some) };
    let tokens = api::TokenCounts { input: count(input)?, output: count(output)?, ..Default::default() };
    Ok(api::Usage { scope: UsageScope::Run as i32, tokens: Some(tokens), ..Default::default() })
}

fn from_hex(digits: &str) -> Result<String, Error> {
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2).unwrap_or_default(), 16);
    let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Result<Vec<_>, _>>()?;
    Ok(String::from_utf8(bytes)?)
}

/// Says whether a file below a directory has a word.
fn contains(directory: &Path, word: &str) -> Result<bool, Error> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let is_there =
            if path.is_dir() { contains(&path, word)? } else { std::fs::read_to_string(&path)?.contains(word) };
        if is_there {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn tool(run: &Run, name: &str, number: usize, end: Option<ToolStatus>) -> Result<(), Error> {
    let id = format!("call-{number}");
    let (kind, status) = (ToolKind::Other as i32, ToolStatus::Running as i32);
    let (name, input_json) = (name.to_owned(), "{}".to_owned());
    let call = api::ToolCall { id: id.clone(), name, kind, input_json, status, ..Default::default() };
    run.emit(Body::ToolCall(call)).await?;
    if let Some(status) = end {
        let (content, status) = ("done".to_owned(), status as i32);
        let result = api::ToolResult { tool_call_id: id, content, status, ..Default::default() };
        run.emit(Body::ToolResult(result)).await?;
    }
    Ok(())
}

/// Writes texts: pieces that follow one another are one item.
struct Says<'a> {
    run: &'a Run,
    items: usize,
    is_open: bool,
}

impl Says<'_> {
    async fn whole(&mut self, text: &str) -> Result<(), Error> {
        self.is_open = false;
        self.items += 1;
        let content = Some(text::Content::Whole(text.to_owned()));
        let item_id = format!("item-{}", self.items);
        Ok(self.run.emit(Body::Text(api::Text { item_id, content, ..Default::default() })).await?)
    }

    async fn piece(&mut self, text: &str) -> Result<(), Error> {
        self.items += usize::from(!self.is_open);
        self.is_open = true;
        Ok(self.run.text(&format!("item-{}", self.items), text).await?)
    }
}

fn main() -> ExitCode {
    serve(Scripted)
}
