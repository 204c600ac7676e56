//! Serves an agent as an `AdapterService` of Dragoman: what is common to all adapters, so that an author writes a description
//! and a function.
//!
//! It keeps the runs and their events, and serves Execute, Attach, Cancel, Respond, health and reflection; renders prompts, redacts
//! secrets, keeps limits, checks requests, ends orphaned runs, and drains on SIGTERM. [`Run::exec`] runs a program with all
//! that it starts under a guard.
//!
//! ```no_run
//! use dragoman_adapter::{Adapter, Error, Run, api, serve};
//!
//! struct Echo;
//!
//! impl Adapter for Echo {
//!     fn describe(&self) -> api::DescribeResponse {
//!         api::DescribeResponse { adapter: "echo".into(), label: "Echo".into(), ..Default::default() }
//!     }
//!
//!     async fn run(&self, run: Run) -> Result<Option<api::Result>, Error> {
//!         run.text("answer", run.prompt()).await?;
//!         Ok(None)
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     serve(Echo)
//! }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// The types of the contract; its comments describe them.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod api {
    tonic::include_proto!("dragoman.v1");
}

mod batches;
mod clocks;
mod core;
mod descriptors;
mod detection;
mod exec;
mod guard;
mod holders;
mod inputs;
mod items;
mod json;
mod json_log;
mod lines;
mod listen;
mod log;
mod outgoing;
mod permissions;
mod reason;
mod redact;
mod request;
mod run;
mod serve;
mod server;
mod spans;
mod store;
mod sync;
mod tls;
mod trace;
mod wire;

use std::future::{self, Future};

pub use exec::{Agent, Command, Exit, Line};
pub use guard::look_path;
pub use inputs::{Decision, Question, Resolution};
pub use reason::{DOMAIN, Reason, Refusal, Violation};
pub use request::sessions::Session;
pub use run::{Ended, Error, Failure, Run, Stop, succeeded};
pub use serve::{init, serve};

/// Revision of the contract that this crate implements.
pub const REVISION: u32 = 1;

/// What an author supplies.
pub trait Adapter: Send + Sync + 'static {
    /// The agent's program: a name on the `PATH`, or a path. The setting `command` names another one. The server looks for it,
    /// unless [`Adapter::detect`] does; if both are empty, there is nothing to look for.
    const PROGRAM: &'static str = "";

    /// Says what the adapter is: its type, label, version, capabilities, the schema of its settings. The server adds what it
    /// knows itself: revision, instance, process, and what this crate does of a router's duties.
    fn describe(&self) -> api::DescribeResponse;

    /// Does one run: emits the agent's events and returns how the run ended. `None` means that it succeeded, or was stopped
    /// if it was asked to. An [`Error::Failure`] is the agent's failure; any other is a fault of the adapter, whose text is
    /// logged and shown to no caller.
    ///
    /// [`Run::stopped`] says when the run is to stop. After the grace the future is dropped.
    fn run(&self, run: Run) -> impl Future<Output = Result<Option<api::Result>, Error>> + Send;

    /// Checks a request beyond its schema and its capabilities, before the run exists.
    ///
    /// # Errors
    ///
    /// The request is rejected.
    fn accept(&self, _request: &api::ExecuteRequest) -> Result<(), Refusal> {
        Ok(())
    }

    /// Looks for the agent; a test of the environment asks it, too. `None`: the server looks for [`Adapter::PROGRAM`].
    fn detect(
        &self,
        _request: api::DetectRequest,
    ) -> impl Future<Output = Result<Option<api::Detection>, Error>> + Send {
        future::ready(Ok(None))
    }

    /// Checks what else a run with this configuration needs; settings, directory and program are checked already.
    fn checks(
        &self,
        _request: api::TestEnvironmentRequest,
    ) -> impl Future<Output = Result<Vec<api::EnvironmentCheck>, Error>> + Send {
        future::ready(Ok(Vec::new()))
    }
}

/// Returns capabilities of an adapter that declares these features.
#[must_use]
pub fn features(mode: api::PermissionMode, features: &[api::Feature]) -> api::Capabilities {
    let declared = api::CapabilityOrigin::Declared as i32;
    let item =
        |feature: &api::Feature| api::Capability { feature: *feature as i32, origin: declared, ..Default::default() };
    api::Capabilities { permission_mode: mode as i32, items: features.iter().map(item).collect(), ..Default::default() }
}
