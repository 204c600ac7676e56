//! An adapter for the agent newagent: it runs the agent and turns the JSON lines that it prints into events. Change
//! `Reader` to what your agent prints, `run` to its command line, and `describe` to what it can do.

use std::process::ExitCode;

use dragoman_adapter::api::agent_event::Body;
use dragoman_adapter::api::{self, FailureKind, Feature, Outcome, PermissionMode, ToolKind, ToolStatus};
use dragoman_adapter::{Adapter, Command, Ended, Error, Failure, Line, Run, features, serve};
use serde_json::Value;

const SCHEMA: &str = r#"{"type": "object", "additionalProperties": false, "properties": {
  "command": {"type": "string", "description": "Another executable than newagent."}}}"#;

struct Newagent;

impl Adapter for Newagent {
    const PROGRAM: &'static str = "newagent";
    /// Says what the agent is. A feature that is not declared is refused before anything starts.
    fn describe(&self) -> api::DescribeResponse {
        let declared = [Feature::Prompt, Feature::Workspace, Feature::ToolStart];
        api::DescribeResponse {
            adapter: "newagent".into(),
            label: "Newagent".into(),
            version: "0.1.0".into(),
            config_schema_json: SCHEMA.into(),
            configuration_doc: "Use when: (what this agent is good at). Don't use when: (what it is not).".into(),
            capabilities: Some(features(PermissionMode::None, &declared)),
            ..Default::default()
        }
    }

    /// Does one run: it starts the agent, and returns how the run ended.
    async fn run(&self, run: Run) -> Result<Option<api::Result>, Error> {
        let mut agent = run.exec(Command::new(run.program()).stdin(run.prompt())).await?;
        let mut reader = Reader { run: &run, item: 0 };
        let mut done = None;
        while let Some(line) = agent.next_line().await {
            let frame: Value = serde_json::from_slice(&line.data).unwrap_or_default();
            if frame["type"] != "result" {
                reader.take(&frame, line).await?;
                continue;
            }
            agent.done(); // it may live on for a moment, and is not waited for
            done = Some((frame["isError"] == true, frame["text"].as_str().unwrap_or_default().to_owned()));
        }
        let mut result = agent.wait().await.result();
        // The agent's own report outranks its exit code; code 0 without a report proves nothing.
        let failure = match done {
            Some((true, message)) => Failure::new(FailureKind::ProcessCrashed, "newagent_error", message),
            Some((false, summary)) => {
                return Ok(Some(api::Result { outcome: Outcome::Succeeded as i32, summary, failure: None, ..result }));
            }
            None if result.failure.is_some() => return Ok(Some(result)),
            None => Failure::new(FailureKind::NoResult, "", "newagent exited without a result."),
        };
        (result.outcome, result.failure) = (Outcome::Failed as i32, Some(failure.into()));
        Ok(Some(result))
    }
}

/// Understands what the agent prints in one run.
struct Reader<'a> {
    run: &'a Run,
    item: usize, // the number of the message that is being read
}

impl Reader<'_> {
    /// Turns a line into events. An error says that the run is over: there is nothing left to do.
    async fn take(&mut self, frame: &Value, line: Line) -> Result<(), Ended> {
        if frame["type"] != "assistant" || frame["delta"] != true {
            // The message that came in pieces is complete.
            let item_id = format!("text-{}", self.item);
            self.run.emit(Body::Text(api::Text { item_id, ..Default::default() })).await?;
            self.item += 1;
        }
        let text = |key: &str| frame[key].as_str().unwrap_or_default().to_owned();
        let body = match frame["type"].as_str() {
            Some("assistant") => return self.run.text(&format!("text-{}", self.item), text("text")).await,
            Some("tool_call") => {
                let (kind, status) = (ToolKind::Other as i32, ToolStatus::Running as i32);
                let (id, name, input_json) = (text("id"), text("name"), frame["input"].to_string());
                Body::ToolCall(api::ToolCall { id, name, kind, input_json, status, ..Default::default() })
            }
            Some("tool_result") => {
                let status = if frame["isError"] == true { ToolStatus::Failed } else { ToolStatus::Completed } as i32;
                let (tool_call_id, content) = (text("toolUseId"), text("content"));
                Body::ToolResult(api::ToolResult { tool_call_id, content, status, ..Default::default() })
            }
            _ => {
                self.run.log(line).await; // no line is lost
                return Ok(());
            }
        };
        self.run.emit(body).await
    }
}

fn main() -> ExitCode {
    serve(Newagent)
}
