//! The state of a run, which everything that happens to it goes through.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::api::agent_event::Body;
use crate::api::{
    AgentEvent, AttemptEnded, DescribeResponse, EventOrigin, FailureKind, Heartbeat, Notice, Outcome, OutputStream,
    Result as RunResult, RunCounters, RunPhase, Severity, Started, State as PhaseState, ToolStatus,
};
use crate::clocks::{Clocks, Expiry};
use crate::exec::{Captured, Joined};
use crate::inputs::{self, Inputs};
use crate::items::{self, Items};
use crate::json_log;
use crate::log::Log;
use crate::outgoing;
use crate::redact::{HARMLESS, Redactor};
use crate::request::sessions::{self, Session};
use crate::request::{Settings, cut};
use crate::run::{Ended, Error, Failure, Stop};
use crate::spans::RunSpan;
use crate::sync::{lock, random_hex};

const HEARTBEAT_AFTER: Duration = Duration::from_secs(15);

/// One run, as the server sees it.
pub struct Core {
    pub run_id: String,
    /// Its span, and the trace that its agent is to continue.
    pub span: RunSpan,
    pub log: Arc<Log>,
    pub redactor: Redactor,
    /// Marks the processes of the run, in their environment.
    pub marker: String,
    pub grace: Duration,
    /// How long a question waits for its answer.
    pub input_timeout: Duration,
    /// What is done with the session that was asked for.
    pub session: Session,
    described: DescribeResponse,
    output_bytes: Option<usize>,
    missing: Vec<String>,
    /// What every `started` says.
    opening: Started,
    /// The request to end the run.
    pub stopping: watch::Sender<Option<Stopping>>,
    /// How the run ended.
    pub ending: watch::Sender<Option<Ending>>,
    /// Of the task that watches the limits.
    wake: Notify,
    state: Mutex<State>,
}

/// The request to end a run.
#[derive(Clone, Copy)]
pub struct Stopping {
    pub deadline: Instant,
    pub why: Stop,
}

/// How a run ended.
#[derive(Clone, Copy)]
pub struct Ending {
    pub outcome: i32,
    pub sequence: u64,
    pub tree_confirmed_dead: Option<bool>,
}

/// Where a run is in the order of events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Initial,
    Attempt,
    Ended,
}

pub struct State {
    pub phase: Phase,
    attempt: u32,
    pub clocks: Clocks,
    pub counters: RunCounters,
    /// Tool calls that were counted.
    calls: BTreeSet<String>,
    items: Items,
    heard_at: Instant,
    written_at: Instant,
    pub directory: Option<PathBuf>,
    /// Bytes of text that are left; none without a limit.
    budget: Option<usize>,
    /// Output is counted where it is read.
    pub is_piped: bool,
    /// The limit of output was reported.
    pub is_cut: bool,
    pub has_process: bool,
    is_cancelled: bool,
    expiry: Option<Expiry>,
    pub captured: Captured,
    pub joined: Joined,
    pub inputs: Inputs,
    /// Notices for the attempt that opens next: severity, code, message.
    pub waiting: Vec<(Severity, String, String)>,
}

impl Core {
    pub fn new(
        request: &crate::api::ExecuteRequest,
        settings: &Settings,
        described: &DescribeResponse,
        span: RunSpan,
    ) -> Arc<Self> {
        let now = Instant::now();
        let relay = request.relay.unwrap_or_default();
        let opening = Started {
            adapter: described.adapter.clone(),
            instance_id: described.instance_id.clone(),
            cwd: settings.cwd.clone(),
            labels: request.labels.clone(),
            limits: Some(settings.limits.shown()),
            capabilities: described.capabilities.clone(),
            permissions: request.permissions.clone(),
            prompt_bytes: settings.prompt_bytes.clone(),
            session_disposition: settings.session.disposition as i32,
            session_reason: settings.session.reason.clone(),
            native_session_id: settings.session.native_id.clone(),
            ..Started::default()
        };
        let state = State {
            phase: Phase::Initial,
            attempt: relay.first_attempt.max(1) - 1,
            clocks: Clocks::new(settings.limits.clone(), now),
            counters: RunCounters::default(),
            calls: BTreeSet::new(),
            items: Items::default(),
            heard_at: now,
            written_at: now,
            directory: None,
            budget: settings.limits.output_bytes,
            is_piped: false,
            is_cut: false,
            has_process: false,
            is_cancelled: false,
            expiry: None,
            captured: Captured::default(),
            joined: Joined::default(),
            inputs: Inputs::default(),
            waiting: Vec::new(),
        };
        Arc::new(Self {
            run_id: request.run_id.clone(),
            span,
            log: Log::new(&request.run_id, relay.first_sequence.max(1)),
            redactor: Redactor::new(&settings.secrets),
            marker: random_hex(16),
            grace: settings.limits.grace,
            input_timeout: inputs::timeout_of(request),
            session: settings.session.clone(),
            described: described.clone(),
            output_bytes: settings.limits.output_bytes,
            missing: settings.missing.clone(),
            opening,
            stopping: watch::Sender::new(None),
            ending: watch::Sender::new(None),
            wake: Notify::new(),
            state: Mutex::new(state),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the fields of a log line about the run: what identifies it, and these.
    pub fn fields<'a>(&'a self, own: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        std::iter::once(("run_id", self.run_id.as_str()))
            .chain(self.span.trace.fields())
            .chain(own.iter().copied())
            .collect()
    }

    /// Wakes the task that watches the limits.
    pub fn awake(&self) {
        self.wake.notify_one();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.borrow().is_some()
    }

    /// Opens the attempt.
    pub fn start(&self, state: &mut State, own: Started) {
        let started = Started {
            command: own.command,
            argv: own.argv,
            env: own.env,
            notes: own.notes,
            agent_version: own.agent_version,
            ..self.opening.clone()
        };
        let started = if own.session_disposition == 0 {
            started
        } else {
            Started {
                session_disposition: own.session_disposition,
                session_reason: own.session_reason,
                native_session_id: own.native_session_id,
                ..started
            }
        };
        state.attempt += 1;
        state.phase = Phase::Attempt;
        self.write_own(state, Body::Started(started));
        self.phase(state, PhaseState { phase: RunPhase::Starting as i32, ..PhaseState::default() });
        for path in &self.missing {
            let message = format!("The template's {{{{{path}}}}} is not set; it was replaced by nothing.");
            self.notice(state, Severity::Info, "template_value_missing", message);
        }
        for (severity, code, message) in std::mem::take(&mut state.waiting) {
            self.notice(state, severity, &code, message);
        }
        state.clocks.start(Instant::now());
        self.awake();
    }

    /// Opens the attempt, unless that was done.
    pub fn begin(&self) -> Result<(), Ended> {
        let mut guard = self.lock();
        match guard.phase {
            Phase::Initial => self.start(&mut guard, Started::default()),
            Phase::Attempt => {}
            Phase::Ended => return Err(Ended),
        }
        Ok(())
    }

    /// Ends the attempt, and opens the next one.
    pub fn retry(&self, failure: Failure, started: Started) -> Result<(), Ended> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase != Phase::Attempt {
            return Err(Ended);
        }
        self.drop_inputs(state);
        self.flush_joined(state);
        for held in state.items.flush(&self.redactor) {
            self.write(state, held);
        }
        let reason = started.session_reason.clone();
        let ended = AttemptEnded { failure: Some(failure.into()), reason, ..AttemptEnded::default() };
        self.write_own(state, Body::AttemptEnded(ended));
        self.start(state, started);
        Ok(())
    }

    /// Writes an event of the agent.
    pub fn emit(&self, state: &mut State, event: AgentEvent) -> Result<(), Ended> {
        if state.phase == Phase::Ended {
            return Err(Ended);
        }
        self.flush_joined(state);
        self.emit_now(state, event)
    }

    fn emit_now(&self, state: &mut State, mut event: AgentEvent) -> Result<(), Ended> {
        if state.phase == Phase::Ended {
            return Err(Ended);
        }
        if state.phase == Phase::Initial {
            self.start(state, Started::default());
        }
        let Some(body) = event.body.as_mut() else { return Ok(()) };
        if matches!(
            body,
            Body::Started(_)
                | Body::AttemptEnded(_)
                | Body::Result(_)
                | Body::Gap(_)
                | Body::ReplayDone(_)
                | Body::Heartbeat(_)
                | Body::Batch(_)
                | Body::InputRequest(_)
                | Body::InputResolved(_)
                | Body::InputAccepted(_)
                | Body::InputDropped(_)
                | Body::RunUpdated(_)
        ) {
            json_log::error("an event that only the server writes was emitted; it is left out", &self.fields(&[]));
            return Ok(());
        }
        let now = Instant::now();
        if event.origin == EventOrigin::Unspecified as i32 {
            event.origin = EventOrigin::Agent as i32;
        }
        if event.origin == EventOrigin::Agent as i32 {
            state.heard_at = now;
            state.clocks.active(now);
        }
        if matches!(body, Body::State(_)) && self.is_stopping() {
            return Ok(()); // the run is being stopped, whatever the agent still tries
        }
        state.clocks.observe(body, now);
        match body {
            Body::ToolCall(_) => self.awake(), // its limit may be shorter
            Body::ToolResult(result) => {
                for held in state.items.end_call(&result.tool_call_id, &self.redactor) {
                    self.write(state, held);
                }
            }
            _ => {}
        }
        state.count(body);
        if !state.is_piped && !self.fits_budget(state, body) {
            return Ok(());
        }
        for decided in state.items.take(event, &self.redactor) {
            self.write(state, decided);
        }
        Ok(())
    }

    /// Cuts an event's text to what the limit of output leaves; false if that is nothing.
    fn fits_budget(&self, state: &mut State, body: &mut Body) -> bool {
        let (Some(left), Some(text)) = (state.budget, items::text_of(body)) else { return true };
        let kept = cut(text, left).len();
        state.budget = Some(left - kept);
        if kept == text.len() {
            return true;
        }
        state.counters.dropped_bytes += (text.len() - kept) as u64;
        let shown = self.without_half(&text[..kept]).len();
        text.truncate(shown);
        self.report_cut(state);
        shown > 0
    }

    /// Returns a text that is cut off, without what may be the first half of a secret.
    pub fn without_half<'a>(&self, text: &'a str) -> &'a str {
        let cut = self.redactor.undecided(text);
        if text.len() - cut > HARMLESS { &text[..cut] } else { text }
    }

    fn report_cut(&self, state: &mut State) {
        if state.is_cut {
            return;
        }
        state.is_cut = true;
        let most = self.output_bytes.unwrap_or_default();
        let message =
            format!("The agent's output exceeded limits.output_bytes ({most} bytes); what follows is discarded.");
        self.notice(state, Severity::Warning, "output_cut", message);
    }

    /// Counts output that was read, which is a sign of life, and returns how much of it the limit leaves.
    pub fn counted(&self, stream: OutputStream, size: usize) -> usize {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.clocks.active(Instant::now());
        match stream {
            OutputStream::Stderr => state.counters.stderr_bytes += size as u64,
            _ => state.counters.stdout_bytes += size as u64,
        }
        let kept = state.budget.map_or(size, |left| left.min(size));
        if let Some(left) = &mut state.budget {
            *left -= kept;
        }
        if kept < size {
            state.counters.dropped_bytes += (size - kept) as u64;
            self.report_cut(state);
        }
        kept
    }

    /// Waits while the callers that hold the run are far behind. That time is not the agent's.
    pub async fn pace(&self) {
        if !self.log.is_behind() {
            return;
        }
        self.lock().clocks.wait(Instant::now());
        self.log.wait_taken().await;
        self.lock().clocks.resume(Instant::now());
        self.awake();
    }

    pub fn notice(&self, state: &mut State, severity: Severity, code: &str, message: String) {
        let notice = Notice { severity: severity as i32, code: code.to_owned(), message, ..Notice::default() };
        self.write_own(state, Body::Notice(notice));
    }

    pub fn phase(&self, state: &mut State, phase: PhaseState) {
        let is_asked = phase.phase == RunPhase::Cancelling as i32;
        let origin = if is_asked { EventOrigin::Operator } else { EventOrigin::Adapter };
        self.write(
            state,
            AgentEvent { body: Some(Body::State(phase)), origin: origin as i32, ..AgentEvent::default() },
        );
    }

    fn write_own(&self, state: &mut State, body: Body) {
        self.write(
            state,
            AgentEvent { body: Some(body), origin: EventOrigin::Adapter as i32, ..AgentEvent::default() },
        );
    }

    /// Writes an event in its place, and returns its sequence: redacted, with sequence and envelope, within its size.
    pub fn write(&self, state: &mut State, mut event: AgentEvent) -> u64 {
        let cut = outgoing::redact(&mut event, &self.redactor);
        event.sequence = self.log.last() + 1;
        self.address(state, &mut event);
        let fitted = outgoing::fit(&mut event);
        let cut = if cut + fitted > 0 { outgoing::count_cut(&mut event, cut + fitted) } else { 0 };
        let (is_notice, sequence) = (matches!(event.body, Some(Body::Notice(_))), event.sequence);
        self.span.note(&event);
        self.log.append(event);
        state.written_at = Instant::now();
        if cut > 0 && state.phase == Phase::Attempt && !is_notice {
            let message = format!("{cut} bytes of an event were cut, as it has at most 1 MiB.");
            self.notice(state, Severity::Warning, "event_cut", message);
        }
        sequence
    }

    pub fn address(&self, state: &State, event: &mut AgentEvent) {
        event.run_id.clone_from(&self.run_id);
        event.attempt = state.attempt;
        event.time = Some(SystemTime::now().into());
    }

    /// Keeps the limits, and sends heartbeats, until the run has ended.
    pub async fn watch(self: Arc<Self>) {
        let mut ending = self.ending.subscribe();
        while ending.borrow_and_update().is_none() {
            let next = self.due(Instant::now());
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(next) => {}
                _ = ending.changed() => {}
            }
        }
    }

    /// Does what is due, and returns when something is again.
    fn due(&self, now: Instant) -> Instant {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase == Phase::Ended {
            return now + HEARTBEAT_AFTER;
        }
        if now - state.written_at >= HEARTBEAT_AFTER {
            let idle = (now - state.heard_at).try_into().ok();
            let beat = Body::Heartbeat(Heartbeat { last_sequence: self.log.last(), idle, ..Heartbeat::default() });
            let mut event =
                AgentEvent { body: Some(beat), origin: EventOrigin::Adapter as i32, ..AgentEvent::default() };
            self.address(state, &mut event);
            self.log.send(event);
            state.written_at = now;
        }
        self.expire_inputs(state, now);
        let beat = state.written_at + HEARTBEAT_AFTER;
        let beat = state.inputs.next().map_or(beat, |expires| beat.min(expires));
        match state.clocks.next().filter(|_| !self.is_stopping()) {
            Some(limit) if limit.at > now => beat.min(limit.at),
            Some(limit) => {
                state.expiry = Some(limit);
                self.stop_by(now + self.grace, Stop::Limit);
                self.drop_inputs(state);
                beat
            }
            None => beat,
        }
    }

    /// Requests the run's end within a grace. A later, shorter grace shortens it.
    pub fn cancel(&self, grace: Duration, reason: &str) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase == Phase::Ended {
            return;
        }
        if !self.is_stopping() {
            state.is_cancelled |= !state.clocks.are_off; // else the agent has ended by itself
            if state.phase == Phase::Attempt {
                let phase = RunPhase::Cancelling as i32;
                self.phase(state, PhaseState { phase, reason: reason.to_owned(), ..PhaseState::default() });
            }
        }
        let now = Instant::now();
        self.stop_by(now.checked_add(grace).unwrap_or(now), Stop::Cancelled);
        self.drop_inputs(state);
    }

    fn stop_by(&self, deadline: Instant, why: Stop) {
        let is_shorter = self.stopping.send_if_modified(|current| match current {
            Some(known) if known.deadline <= deadline => false,
            Some(known) => {
                known.deadline = deadline;
                true
            }
            None => {
                *current = Some(Stopping { deadline, why });
                true
            }
        });
        if is_shorter {
            self.log.unpause();
        }
    }

    /// Returns how the run ended, of what its adapter returned.
    pub fn conclude(&self, returned: Result<Option<RunResult>, Error>) -> RunResult {
        let state = self.lock();
        let is_default = matches!(returned, Ok(None));
        let (mut result, error) = match returned {
            Ok(result) => (result.unwrap_or_else(crate::run::succeeded), None),
            Err(error) => (crate::run::succeeded(), Some(error)),
        };
        let is_success = result.outcome == Outcome::Succeeded as i32 && error.is_none();
        if is_success && (!is_default || !self.is_stopping()) {
            return result;
        }
        let failed = |result: &mut RunResult, outcome: Outcome, failure: Failure| {
            result.outcome = outcome as i32;
            result.failure = Some(failure.into());
        };
        if state.is_cancelled {
            result.outcome = Outcome::Cancelled as i32;
            result.failure = None;
        } else if let Some(limit) = &state.expiry {
            failed(&mut result, Outcome::TimedOut, Failure::new(limit.kind, limit.code, limit.message));
        } else if let Some(Error::Failure(failure)) = error {
            failed(&mut result, Outcome::Failed, failure);
        } else if let Some(Error::Fault(fault)) = error {
            let shown = self.redactor.text(&fault.to_string()).into_owned();
            json_log::error("the adapter failed", &self.fields(&[("error", &shown)]));
            let message = "The adapter failed. Its log has more under this run's ID.";
            failed(&mut result, Outcome::Failed, Failure::new(FailureKind::Internal, "adapter_failed", message));
        } else if !is_default && result.failure.is_none() {
            let message = "The adapter did not say why the run failed.";
            result.failure = Some(Failure::new(FailureKind::Internal, "no_reason", message).into());
        }
        result
    }

    /// Writes the result, last. Only the first call counts.
    pub fn finish(&self, mut result: RunResult) -> Option<Ending> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase == Phase::Ended {
            return None;
        }
        if state.phase == Phase::Initial {
            self.start(state, Started::default()); // a run that failed before its first attempt has this event too
        }
        self.drop_inputs(state);
        self.flush_joined(state);
        for held in state.items.flush(&self.redactor) {
            self.write(state, held);
        }
        sessions::complete(&mut result, &self.described, &self.opening.cwd);
        result.counters = Some(state.counters);
        result.duration = state.clocks.accepted_at.elapsed().try_into().ok();
        state.phase = Phase::Ended;
        let (outcome, tree_confirmed_dead) = (result.outcome, result.tree_confirmed_dead);
        self.write_own(state, Body::Result(result));
        let ending = Ending { outcome, sequence: self.log.last(), tree_confirmed_dead };
        self.log.close();
        self.ending.send_replace(Some(ending));
        Some(ending)
    }

    /// Writes the lines that wait to be joined by more.
    pub fn flush_joined(&self, state: &mut State) {
        let Some(entry) = state.joined.take() else { return };
        let shown = self.redactor.text(&entry.text).into_owned(); // before a cut goes through a secret
        state.captured.add(entry.stream, &shown);
        let _ = self.emit_now(state, AgentEvent { body: Some(Body::Log(entry)), ..AgentEvent::default() }); // or it has ended
    }
}

impl State {
    /// Counts what a result reports.
    fn count(&mut self, body: &Body) {
        let counters = &mut self.counters;
        match body {
            Body::ToolResult(result) if result.status == ToolStatus::Failed as i32 => counters.failed_tool_calls += 1,
            Body::ToolResult(result) if result.status == ToolStatus::Denied as i32 => counters.denied_tool_calls += 1,
            Body::ToolCall(call) => {
                self.calls.insert(call.id.clone()); // emitted again whenever it changes
                counters.tool_calls = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
            }
            Body::FileChange(_) => counters.file_changes += 1,
            Body::State(state) if state.phase == RunPhase::Retrying as i32 => counters.retries += 1,
            Body::Log(log) if log.stream == OutputStream::Stdout as i32 => {
                let lines = 1 + log.text.matches('\n').count();
                counters.unparsed_lines += u32::try_from(lines).unwrap_or(u32::MAX);
            }
            _ => {}
        }
    }
}
