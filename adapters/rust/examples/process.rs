//! An adapter that runs any program that prints the JSON lines of the adapter `process`: what the conformance kit's script
//! prints, so that the kit examines this crate with it.

use std::process::ExitCode;

use dragoman_adapter::api::agent_event::Body;
use dragoman_adapter::api::{
    self, FailureKind, Feature, Outcome, OutputStream, PermissionMode, ToolKind, ToolStatus, text,
};
use dragoman_adapter::{Adapter, Command, Ended, Error, Failure, Line, Run, features, serve};
use serde_json::Value;

const SCHEMA: &str = r#"{
  "type": "object",
  "required": ["command"],
  "additionalProperties": false,
  "properties": {"command": {"type": "string", "minLength": 1, "description": "The program."}}
}"#;

struct Process;

impl Adapter for Process {
    fn describe(&self) -> api::DescribeResponse {
        let declared = [Feature::Prompt, Feature::Workspace, Feature::AuthToken];
        api::DescribeResponse {
            adapter: "process_rust".into(),
            label: "Process".into(),
            version: "1".into(),
            config_schema_json: SCHEMA.into(),
            capabilities: Some(features(PermissionMode::None, &declared)),
            ..Default::default()
        }
    }

    async fn run(&self, run: Run) -> Result<Option<api::Result>, Error> {
        let command = Command::new(run.program()).stdin(run.prompt());
        let mut agent = run.exec(command).await?;
        let mut items = Items::default();
        let mut report = None;
        while let Some(line) = agent.next_line().await {
            let frame: Value = match line.stream {
                OutputStream::Stdout => serde_json::from_slice(&line.data).unwrap_or_default(),
                _ => Value::Null,
            };
            if frame["type"] == "result" {
                agent.done();
                report = Some(frame);
            } else {
                items.take(&run, &frame, line).await?;
            }
        }
        let mut result = agent.wait().await.result();
        match report {
            Some(report) if report["isError"] == true => {
                let message = report["text"].as_str().unwrap_or("The command reports an error in its result.");
                result.outcome = Outcome::Failed as i32;
                result.failure = Some(Failure::new(FailureKind::ProcessCrashed, "reported", message).into());
            }
            Some(_) => {
                result.outcome = Outcome::Succeeded as i32;
                result.failure = None;
            }
            None => {}
        }
        Ok(Some(result))
    }
}

/// The items of a run: pieces that follow one another are one.
#[derive(Default)]
struct Items {
    count: usize,
    is_open: bool,
}

impl Items {
    async fn take(&mut self, run: &Run, frame: &Value, line: Line) -> Result<(), Ended> {
        let is_piece = frame["type"] == "assistant" && frame["delta"] == true;
        if self.is_open && !is_piece {
            self.is_open = false;
            run.emit(self.text(None)).await?; // the item is complete
        }
        let text = |key: &str| frame[key].as_str().unwrap_or_default().to_owned();
        let body = match frame["type"].as_str() {
            Some("assistant") => {
                self.count += usize::from(!self.is_open);
                self.is_open = is_piece;
                let own = text("text");
                self.text(Some(if is_piece { text::Content::Delta(own) } else { text::Content::Whole(own) }))
            }
            Some("tool_call") => Body::ToolCall(api::ToolCall {
                id: text("id"),
                name: text("name"),
                kind: ToolKind::Other as i32,
                input_json: frame["input"].to_string(),
                status: ToolStatus::Running as i32,
                ..Default::default()
            }),
            Some("tool_result") => {
                let is_failed = frame["isError"] == true;
                let status = if is_failed { ToolStatus::Failed } else { ToolStatus::Completed } as i32;
                let (tool_call_id, content) = (text("toolUseId"), text("content"));
                Body::ToolResult(api::ToolResult { tool_call_id, content, status, ..Default::default() })
            }
            _ => {
                run.log(line).await;
                return Ok(());
            }
        };
        run.emit(body).await
    }

    fn text(&self, content: Option<text::Content>) -> Body {
        Body::Text(api::Text { item_id: format!("text-{}", self.count), content, ..Default::default() })
    }
}

fn main() -> ExitCode {
    serve(Process)
}
