//! Runs the stand-in through the contract.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use dragoman_adapter::api::adapter_service_client::AdapterServiceClient;
use dragoman_adapter::api::agent_event::Body;
use dragoman_adapter::api::{ExecuteRequest, Outcome, Workspace, execute_request::Task};
use prost_types::{Struct, Value, value::Kind};
use tonic::transport::{Channel, Endpoint};

/// The program of this crate, serving; it is gone with this.
struct Serving {
    process: Child,
    directory: PathBuf,
}

impl Serving {
    fn start() -> Result<Self, Box<dyn Error>> {
        let directory = env::temp_dir().join(format!("newagent-{}", std::process::id())); // short, as sockets need it
        fs::create_dir(&directory)?;
        let process = Command::new(env!("CARGO_BIN_EXE_newagent_adapter"))
            .env("DRAGOMAN_LISTEN", format!("unix:{}", directory.join("socket").display()))
            .spawn()?;
        Ok(Self { process, directory })
    }

    /// Connects once it listens.
    async fn client(&self) -> Result<AdapterServiceClient<Channel>, Box<dyn Error>> {
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.directory.join("socket").display()))?;
        let connecting = async {
            loop {
                match endpoint.connect().await {
                    Ok(channel) => return channel,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        Ok(AdapterServiceClient::new(tokio::time::timeout(Duration::from_secs(30), connecting).await?))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn a_run_succeeds_and_reports() -> Result<(), Box<dyn Error>> {
    let serving = Serving::start()?;
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("newagent");
    let command = Value { kind: Some(Kind::StringValue(agent.display().to_string())) };
    let request = ExecuteRequest {
        adapter: "newagent".into(),
        task: Some(Task::Prompt("Hello.".into())),
        workspace: Some(Workspace { cwd: serving.directory.display().to_string(), ..Default::default() }),
        config: Some(Struct { fields: BTreeMap::from([("command".to_owned(), command)]) }),
        ..Default::default()
    };
    let mut events = serving.client().await?.execute(request).await?.into_inner();
    let (mut tools, mut result) = (Vec::new(), None);
    while let Some(event) = events.message().await? {
        match event.body {
            Some(Body::ToolCall(call)) => tools.push(call.name),
            Some(Body::Result(own)) => result = Some(own),
            _ => {}
        }
    }
    let result = result.ok_or("there is no result")?;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{result:?}");
    assert_eq!(result.summary, "Read a prompt of 6 bytes.");
    assert_eq!(result.tree_confirmed_dead, Some(true));
    assert_eq!(tools, ["list"]);
    Ok(())
}
