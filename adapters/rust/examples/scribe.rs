//! An adapter for an agent that prints JSON lines, as docs/guides/write-an-adapter-rust.md explains it.

use std::process::ExitCode;

use dragoman_adapter::api::agent_event::Body;
use dragoman_adapter::api::{self, Feature, Outcome, PermissionMode, ToolKind, ToolStatus, UsageScope, text};
use dragoman_adapter::{Adapter, Command, Ended, Error, Failure, Line, Run, features, serve};
use serde_json::Value;

const SCHEMA: &str = r#"{
  "type": "object", "additionalProperties": false,
  "properties": {"command": {"type": "string", "description": "Another executable than scribe."}}
}"#;

struct Scribe;

impl Adapter for Scribe {
    const PROGRAM: &'static str = "scribe";

    fn describe(&self) -> api::DescribeResponse {
        let declared = [Feature::Prompt, Feature::Workspace, Feature::ToolStart];
        api::DescribeResponse {
            adapter: "scribe_rust".into(),
            label: "Scribe".into(),
            version: "1".into(),
            config_schema_json: SCHEMA.into(),
            configuration_doc: "Use when: something is to be noted. Don't use when: you want an answer.".into(),
            capabilities: Some(features(PermissionMode::None, &declared)),
            ..Default::default()
        }
    }

    async fn run(&self, run: Run) -> Result<Option<api::Result>, Error> {
        let command = Command::new(run.program()).stdin(run.prompt());
        let mut agent = run.exec(command).await?;
        let (mut done, mut failure) = (None, None);
        while let Some(line) = agent.next_line().await {
            let frame: Value = serde_json::from_slice(&line.data).unwrap_or_default();
            match frame["type"].as_str() {
                Some("done") => {
                    agent.done(); // it may live on for a moment, and is not waited for
                    done = Some(frame);
                }
                Some("error") => failure = Some(text_of(&frame, "message")),
                _ => understand(&run, &frame, line).await?,
            }
        }
        let mut result = agent.wait().await.result();
        if let Some(done) = done {
            // The agent's own report outranks its exit code.
            (result.outcome, result.failure) = (Outcome::Succeeded as i32, None);
            result.summary = text_of(&done, "summary");
            let count = |name: &str| done["tokens"][name].as_u64(); // absent is not zero
            let tokens = api::TokenCounts { input: count("input"), output: count("output"), ..Default::default() };
            let scope = UsageScope::Run as i32;
            result.usage = Some(api::Usage { scope, tokens: Some(tokens), ..Default::default() });
        } else if let (Some(message), Some(failure)) = (failure, &mut result.failure) {
            *failure = Failure::new(failure.kind(), "scribe_error", message).into();
        }
        Ok(Some(result))
    }
}

async fn understand(run: &Run, frame: &Value, line: Line) -> Result<(), Ended> {
    let body = match frame["type"].as_str() {
        Some("text") => {
            let content = Some(text::Content::Whole(text_of(frame, "text")));
            Body::Text(api::Text { item_id: "answer".into(), content, ..Default::default() })
        }
        Some("tool_start") => Body::ToolCall(api::ToolCall {
            id: text_of(frame, "id"),
            name: text_of(frame, "name"),
            kind: ToolKind::Edit as i32,
            input_json: frame["input"].to_string(),
            status: ToolStatus::Running as i32,
            ..Default::default()
        }),
        Some("tool_end") => {
            let is_error = Some(frame["ok"] != true);
            let status = if is_error == Some(true) { ToolStatus::Failed } else { ToolStatus::Completed } as i32;
            let (tool_call_id, content) = (text_of(frame, "id"), text_of(frame, "output"));
            Body::ToolResult(api::ToolResult { tool_call_id, content, status, is_error, ..Default::default() })
        }
        _ => {
            run.log(line).await; // no line is lost
            return Ok(());
        }
    };
    run.emit(body).await
}

fn text_of(frame: &Value, key: &str) -> String {
    frame[key].as_str().unwrap_or_default().to_owned()
}

fn main() -> ExitCode {
    serve(Scribe)
}
