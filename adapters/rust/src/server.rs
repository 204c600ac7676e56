//! The service of the contract.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use prost::Message;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::api::adapter_service_server::AdapterService;
use crate::api::{
    AgentEvent, AttachRequest, AuthState, CancelRequest, CancelResponse, DescribeRequest, DescribeResponse,
    DetectRequest, DetectResponse, Detection, DetectionConfidence, Duty, EnvironmentCheck, ExecuteRequest, Feature,
    ListModelsRequest, ListModelsResponse, ListSkillsRequest, ListSkillsResponse, ModelSource, RespondRequest,
    RespondResponse, Severity, TestEnvironmentRequest, TestEnvironmentResponse, TestMode, TestStatus,
};
use crate::core::Core;
use crate::holders::{Hold, Holders};
use crate::listen::Caller;
use crate::log::{Interruption, Options};
use crate::reason::{Reason, Refusal};
use crate::request::{self, bounds, check_directory, has, schema::Schema, sessions::Session};
use crate::run::{Error, Run, remove_directory};
use crate::spans::RunSpan;
use crate::store::{Runs, Store, Stored};
use crate::sync::random_hex;
use crate::trace::Trace;
use crate::{Adapter, REVISION, batches, detection, guard, json, json_log};

const RUN_ID: &str = "dragoman-run-id";
/// That a run may take to end after its grace.
const FLUSH: Duration = Duration::from_secs(1);
/// The same for one whose program must be killed.
const KILL_MARGIN: Duration = guard::STUCK_AFTER.saturating_add(Duration::from_secs(4));
/// After the grace that a run may take to end when the server stops.
const DRAIN_MARGIN: Duration = Duration::from_secs(15);

/// Serves one adapter.
pub struct Server<A> {
    adapter: Arc<A>,
    described: DescribeResponse,
    schema: Schema,
    store: Arc<Store>,
    is_draining: AtomicBool,
    serving: watch::Sender<bool>,
    /// The streams are to end.
    ending: watch::Sender<bool>,
    /// What is still done for runs and streams holds one of its receivers.
    driving: watch::Sender<()>,
    streaming: watch::Sender<()>,
}

fn is_type(name: &str) -> bool {
    let is_rest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 64 && name.chars().all(is_rest)
}

fn is_run_id(id: &str) -> bool {
    let is_rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    id.starts_with(|c: char| c.is_ascii_alphanumeric()) && id.len() <= 128 && id.chars().all(is_rest)
}

impl<A: Adapter> Server<A> {
    pub fn new(adapter: A, serving: watch::Sender<bool>) -> Result<Arc<Self>, String> {
        let mut described = adapter.describe();
        if !is_type(&described.adapter) {
            return Err(format!("the type {:?} does not match [a-z][a-z0-9_]{{0,63}}", described.adapter));
        }
        let schema = Schema::parse(&described.config_schema_json)?;
        if described.label.is_empty() {
            described.label.clone_from(&described.adapter);
        }
        described.revision = REVISION;
        described.instance_id = random_hex(16);
        described.batching = true;
        described.pid = Some(i64::from(std::process::id()));
        described.capabilities.get_or_insert_default();
        described.duties =
            [Duty::Templates, Duty::Redaction, Duty::Limits, Duty::Unattended, Duty::Refusals].map(|d| d as i32).into();
        Ok(Arc::new(Self {
            adapter: Arc::new(adapter),
            described,
            schema,
            store: Arc::default(),
            is_draining: AtomicBool::new(false),
            serving,
            ending: watch::Sender::new(false),
            driving: watch::Sender::new(()),
            streaming: watch::Sender::new(()),
        }))
    }

    pub fn name(&self) -> &str {
        &self.described.adapter
    }

    /// Rejects new runs, and waits until none lives any more, or that long. `drain` comes after it.
    pub async fn settle(&self, limit: Duration) {
        self.is_draining.store(true, Ordering::SeqCst);
        self.serving.send_replace(false);
        let _ = timeout(limit, self.driving.closed()).await; // or they are cancelled
    }

    /// Rejects new runs, stops those that live within a grace, and ends the streams with their results.
    pub async fn drain(&self, grace: Duration) {
        self.is_draining.store(true, Ordering::SeqCst);
        self.serving.send_replace(false);
        for core in self.store.live() {
            core.cancel(grace, "the adapter is shutting down");
        }
        let _ = timeout(grace + DRAIN_MARGIN, self.driving.closed()).await; // or they are given up
        let _ = timeout(FLUSH, self.streaming.closed()).await;
        self.ending.send_replace(true);
        let _ = timeout(FLUSH, self.streaming.closed()).await;
    }

    /// Ends the runs at once.
    pub fn hurry(&self) {
        for core in self.store.live() {
            core.cancel(Duration::ZERO, "the adapter is shutting down");
        }
    }

    /// Takes a request that is small enough and meant for this adapter.
    fn checked<M: Message>(&self, request: Request<M>, name: &str, adapter: fn(&M) -> &str) -> Result<M, Refusal> {
        let request = request.into_inner();
        bounds::check(&request, name)?;
        let (asked, own) = (adapter(&request), &self.described.adapter);
        if asked.is_empty() || asked == own || self.described.aliases.iter().any(|alias| alias == asked) {
            return Ok(request);
        }
        let message = format!("this sidecar serves {own}, not {asked:?}");
        Err(Refusal::new(Reason::AdapterNotFound, message).with("adapter", asked).with("did_you_mean", own))
    }

    /// Checks a request and begins its run. The caller has checked that there is none with this ID.
    fn begin(&self, request: ExecuteRequest, runs: &Runs, trace: Trace) -> Result<(Arc<Core>, Arc<Holders>), Refusal> {
        if self.is_draining.load(Ordering::SeqCst) {
            return Err(draining());
        }
        let settings = request::accept(&request, &self.described, &self.schema)?;
        refuse_busy_session(&settings.session, runs)?;
        self.adapter.accept(&request)?;
        let span = RunSpan::begin(&self.described.adapter, &request, trace);
        let core = Core::new(&request, &settings, &self.described, span);
        let holders = Holders::new(request::duration(request.orphan_after).unwrap_or_default(), Arc::clone(&core));
        let program = detection::program_of(A::PROGRAM, &settings.config).to_owned();
        let run = Run { program, core: Arc::clone(&core), request: Arc::new(request), settings: Arc::new(settings) };
        let (store, driving) = (Arc::clone(&self.store), self.driving.subscribe());
        tokio::spawn(drive(Arc::clone(&self.adapter), run, Arc::clone(&holders), store, driving));
        tokio::spawn(Arc::clone(&core).watch());
        Ok((core, holders))
    }

    /// Looks for the agent; `None` if there is nothing to look for.
    async fn find(&self, asked: DetectRequest) -> Result<Option<Detection>, Error> {
        let own = self.adapter.detect(asked.clone()).await?;
        Ok(own.or_else(|| detection::look(A::PROGRAM, &asked)))
    }

    /// Streams the events of a run, until it is over.
    fn follow(&self, core: &Core, options: Options, hold: Option<Hold>, is_batching: bool) -> Result<Events, Refusal> {
        let mut hold = hold;
        let state = core.lock();
        let opened = core.log.read(options, core.pending(&state));
        drop(state); // nothing was resolved in between
        let mut reader = opened.map_err(|last| {
            let message = format!("after_sequence {} is past the end; the last is {last}", options.after);
            Refusal::new(Reason::SequenceAhead, message).with("last_sequence", last.to_string())
        })?;
        let (sender, events) = mpsc::channel(1);
        let (mut ending, streaming) = (self.ending.subscribe(), self.streaming.subscribe());
        tokio::spawn(async move {
            let _streaming = streaming;
            loop {
                let last = reader.cursor().to_string();
                let next = tokio::select! {
                    next = reader.next() => next,
                    () = until(&mut ending) => {
                        end_by_server(&mut hold);
                        let _ = sender.send(Err(draining().with("last_sequence", last).into())).await; // or the reader left
                        return;
                    }
                    () = sender.closed() => return,
                };
                let chunk = match next {
                    Ok(chunk) => chunk,
                    Err(Interruption::Slow) => {
                        end_by_server(&mut hold);
                        let message = format!("this stream's reader was too slow; attach again after sequence {last}");
                        let refusal = Refusal::new(Reason::SlowConsumer, message).with("last_sequence", last);
                        let _ = sender.send(Err(refusal.into())).await; // or the reader left
                        return;
                    }
                };
                if chunk.is_empty() {
                    return;
                }
                let messages = if is_batching {
                    batches::join(chunk)
                } else {
                    chunk.into_iter().map(Arc::unwrap_or_clone).collect()
                };
                for message in messages {
                    if sender.send(Ok(message)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Box::pin(ReceiverStream::new(events)))
    }

    fn stream_of(
        &self,
        stored: &Stored,
        options: Options,
        hold: Option<Hold>,
        is_batching: bool,
    ) -> Result<Response<Events>, Status> {
        let mut response = Response::new(self.follow(&stored.core, options, hold, is_batching)?);
        if let Ok(id) = MetadataValue::try_from(&stored.core.run_id) {
            response.metadata_mut().insert(RUN_ID, id);
        }
        Ok(response)
    }
}

/// Waits until the streams are to end.
async fn until(ending: &mut watch::Receiver<bool>) {
    let _ = ending.wait_for(|is_over| *is_over).await; // or the server is gone
}

fn end_by_server(hold: &mut Option<Hold>) {
    if let Some(hold) = hold {
        hold.is_ended_by_server = true;
    }
}

/// Two runs in one session would mix up what was said in it.
fn refuse_busy_session(session: &Session, runs: &Runs) -> Result<(), Refusal> {
    let is_same = |core: &&Arc<Core>| session.in_use().is_some() && core.session.in_use() == session.in_use();
    let Some(other) = runs.live().find(is_same) else { return Ok(()) };
    let message = format!("run {:?} uses this session; wait for it, or fork the session", other.run_id);
    Err(Refusal::new(Reason::SessionBusy, message).with("run_id", &other.run_id))
}

fn draining() -> Refusal {
    Refusal {
        retry_after: Some(Duration::from_secs(1)),
        ..Refusal::new(Reason::Draining, "this server is shutting down")
    }
}

/// Returns the status of a fault of the adapter, whose text is logged and shown to no caller.
fn incident(rpc: &str, error: &Error) -> Status {
    let incident = random_hex(6);
    json_log::error("internal error", &[("rpc", rpc), ("incident", &incident), ("error", &format!("{error:?}"))]);
    let message = format!("internal error; the server's log has more under incident {incident}");
    Refusal::new(Reason::Internal, message).with("incident", incident).into()
}

/// Does a run, and ends it whatever its adapter does.
async fn drive<A: Adapter>(
    adapter: Arc<A>,
    run: Run,
    holders: Arc<Holders>,
    store: Arc<Store>,
    _driving: watch::Receiver<()>,
) {
    let core = Arc::clone(&run.core);
    json_log::info("run accepted", &core.fields(&[]));
    let mut stopping = core.stopping.subscribe();
    let mut working = tokio::spawn(core.span.within(async move { adapter.run(run).await }));
    let returned = loop {
        let margin = if core.lock().has_process { KILL_MARGIN } else { FLUSH };
        let abandonment = stopping.borrow_and_update().map(|stop| stop.deadline + margin);
        tokio::select! {
            returned = &mut working => break returned.unwrap_or_else(|fault| Err(fault.into())),
            _ = stopping.changed() => {}
            () = sleep_until(abandonment.unwrap_or_else(Instant::now)), if abandonment.is_some() => {
                json_log::error("the adapter did not stop its run in time", &core.fields(&[]));
                working.abort();
                break Ok(None);
            }
        }
    };
    let directory = core.lock().directory.take();
    if let Some(Err(error)) = directory.as_deref().map(remove_directory) {
        json_log::error("the run's directory is left", &core.fields(&[("error", &error.to_string())]));
    }
    core.finish(core.conclude(returned));
    holders.close();
    store.retire(&core);
    json_log::info("run ended", &core.fields(&[]));
}

type Events = Pin<Box<dyn Stream<Item = Result<AgentEvent, Status>> + Send>>;

#[tonic::async_trait]
impl<A: Adapter> AdapterService for Arc<Server<A>> {
    async fn describe(&self, request: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        self.checked(request, "DescribeRequest", |asked| &asked.adapter)?;
        Ok(Response::new(self.described.clone()))
    }

    async fn detect(&self, request: Request<DetectRequest>) -> Result<Response<DetectResponse>, Status> {
        let asked = self.checked(request, "DetectRequest", |asked| &asked.adapter)?;
        let found = self.find(asked).await.map_err(|error| incident("Detect", &error))?;
        let mut found = found.unwrap_or_else(|| Detection {
            available: true,
            auth: AuthState::NotNeeded as i32,
            confidence: DetectionConfidence::NotApplicable as i32,
            message: format!("{} needs no agent.", self.described.label),
            ..Detection::default()
        });
        found.adapter.clone_from(&self.described.adapter);
        found.label.clone_from(&self.described.label);
        found.detected_at = Some(SystemTime::now().into());
        found.capabilities = found.capabilities.or_else(|| self.described.capabilities.clone());
        Ok(Response::new(DetectResponse { detections: vec![found], ..DetectResponse::default() }))
    }

    async fn test_environment(
        &self,
        request: Request<TestEnvironmentRequest>,
    ) -> Result<Response<TestEnvironmentResponse>, Status> {
        let asked = self.checked(request, "TestEnvironmentRequest", |asked| &asked.adapter)?;
        let check = |level: Severity, code: &str, message: String| EnvironmentCheck {
            code: code.to_owned(),
            level: level as i32,
            message,
            ..EnvironmentCheck::default()
        };
        let config = asked.config.as_ref().map_or_else(|| Value::Object(Map::new()), json::object);
        let wrong = self.schema.check(&config).into_iter();
        let mut checks: Vec<EnvironmentCheck> = wrong
            .map(|wrong| check(Severity::Error, "config_invalid", format!("{}: {}", wrong.field, wrong.description)))
            .collect();
        if checks.is_empty() {
            checks.push(check(Severity::Info, "config_valid", "The settings are valid.".to_owned()));
        }
        if has(&self.described, Feature::Workspace) {
            let own = asked.workspace.as_ref().map_or("", |workspace| &workspace.cwd);
            let cwd = request::or(own, config["cwd"].as_str().unwrap_or_default());
            checks.push(match check_directory(cwd) {
                Some(problem) => check(Severity::Error, "cwd_invalid", problem),
                None => check(Severity::Info, "cwd_valid", "The working directory can be used.".to_owned()),
            });
        }
        let mode = asked.mode.max(TestMode::Quick as i32);
        let looked = DetectRequest { config: asked.config.clone(), env: asked.env.clone(), ..DetectRequest::default() };
        let found = self.find(looked).await.map_err(|error| incident("TestEnvironment", &error))?;
        checks.extend(found.map(detection::check));
        checks.extend(self.adapter.checks(asked).await.map_err(|error| incident("TestEnvironment", &error))?);
        let status = match checks.iter().map(|check| check.level).max() {
            Some(level) if level == Severity::Error as i32 => TestStatus::Fail,
            Some(level) if level == Severity::Warning as i32 => TestStatus::Warn,
            _ => TestStatus::Pass,
        };
        let (adapter, tested_at) = (self.described.adapter.clone(), Some(SystemTime::now().into()));
        Ok(Response::new(TestEnvironmentResponse { adapter, status: status as i32, checks, tested_at, mode }))
    }

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<Events>, Status> {
        let trace = Trace::received(request.metadata());
        let mut asked = self.checked(request, "ExecuteRequest", |asked| &asked.adapter)?;
        if asked.run_id.is_empty() {
            asked.run_id = format!("run-{}", random_hex(12));
        } else if !is_run_id(&asked.run_id) {
            return Err(Refusal::field(
                Reason::InvalidRequest,
                "run_id",
                "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}",
            )
            .into());
        }
        let is_batching = asked.batching.is_some();
        let stored = self.store.join(asked, |asked, runs| self.begin(asked, runs, trace))?;
        let options = Options { after: stored.first_sequence - 1, holds: true, replay_done: false };
        self.stream_of(&stored, options, Some(stored.holders.acquire()), is_batching)
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<Events>, Status> {
        let asked = self.checked(request, "AttachRequest", |asked| &asked.adapter)?;
        let stored = self.store.find(&asked.run_id)?;
        let options = Options { after: asked.after_sequence, holds: asked.hold, replay_done: true };
        let hold = asked.hold.then(|| stored.holders.acquire());
        self.stream_of(&stored, options, hold, asked.batching.is_some())
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let asked = self.checked(request, "CancelRequest", |asked| &asked.adapter)?;
        let core = Arc::clone(&self.store.find(&asked.run_id)?.core);
        core.cancel(request::duration(asked.grace).unwrap_or(core.grace), &asked.reason);
        let mut ending = core.ending.subscribe();
        let ended = ending.wait_for(Option::is_some).await.ok().and_then(|ended| *ended);
        Ok(Response::new(ended.map_or_else(CancelResponse::default, |ended| CancelResponse {
            outcome: ended.outcome,
            result_sequence: ended.sequence,
            tree_confirmed_dead: ended.tree_confirmed_dead,
        })))
    }

    async fn respond(&self, request: Request<RespondRequest>) -> Result<Response<RespondResponse>, Status> {
        let caller = request.extensions().get::<Caller>().map_or_else(String::new, Caller::name);
        let asked = self.checked(request, "RespondRequest", |asked| &asked.adapter)?;
        let core = Arc::clone(&self.store.find(&asked.run_id)?.core);
        let responder = if asked.responder.is_empty() { caller } else { asked.responder };
        let sequence = core.answer(&asked.request_id, asked.answer.unwrap_or_default(), responder)?;
        Ok(Response::new(RespondResponse { sequence }))
    }

    async fn list_models(&self, request: Request<ListModelsRequest>) -> Result<Response<ListModelsResponse>, Status> {
        self.checked(request, "ListModelsRequest", |asked| &asked.adapter)?;
        let models = self.described.models.clone();
        Ok(Response::new(ListModelsResponse {
            models,
            source: ModelSource::Static as i32,
            ..ListModelsResponse::default()
        }))
    }

    /// Lists none: adapters of this crate have no skills of their own.
    async fn list_skills(&self, request: Request<ListSkillsRequest>) -> Result<Response<ListSkillsResponse>, Status> {
        self.checked(request, "ListSkillsRequest", |asked| &asked.adapter)?;
        Ok(Response::new(ListSkillsResponse::default()))
    }
}
