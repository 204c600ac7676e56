//! When a run has exceeded one of its limits. Silence is not the agent's while a tool call is open, which has a limit of its
//! own, nor while it waits for readers of its events or for an answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::agent_event::Body;
use crate::api::{FailureKind, ToolKind, ToolStatus};
use crate::request::RunLimits;

pub struct Clocks {
    limits: RunLimits,
    pub accepted_at: Instant,
    /// Of the agent.
    started_at: Option<Instant>,
    /// Of its last sign of life.
    active_at: Option<Instant>,
    /// For how many reasons it waits for us, and since when.
    waits: usize,
    waits_since: Instant,
    calls: Vec<(String, Instant)>,
    /// The agent has ended.
    pub are_off: bool,
}

/// A limit that is exceeded at a time.
#[derive(Clone, Copy)]
pub struct Expiry {
    pub at: Instant,
    pub kind: FailureKind,
    pub code: &'static str,
    pub message: &'static str,
}

impl Clocks {
    pub fn new(limits: RunLimits, now: Instant) -> Self {
        Self {
            limits,
            accepted_at: now,
            started_at: None,
            active_at: None,
            waits: 0,
            waits_since: now,
            calls: Vec::new(),
            are_off: false,
        }
    }

    pub fn start(&mut self, now: Instant) {
        self.started_at = Some(now);
        self.active_at = None;
        self.calls.clear();
    }

    pub fn active(&mut self, now: Instant) {
        self.active_at = Some(now);
    }

    pub fn wait(&mut self, now: Instant) {
        if self.waits == 0 {
            self.waits_since = now;
        }
        self.waits += 1;
    }

    pub fn resume(&mut self, now: Instant) {
        self.waits -= 1;
        if self.waits > 0 {
            return;
        }
        let since = self.waits_since;
        for (_, at) in &mut self.calls {
            *at = if *at < since { *at + (now - since) } else { now }; // their time stood still
        }
        self.active_at = Some(now);
    }

    /// Takes note of the beginning and the end of tool calls.
    pub fn observe(&mut self, body: &Body, now: Instant) {
        match body {
            Body::ToolResult(result) => self.end_call(&result.tool_call_id, now),
            Body::ToolCall(call) if call.status > ToolStatus::Running as i32 => self.end_call(&call.id, now),
            Body::ToolCall(call)
                if call.status == ToolStatus::Running as i32
                    && call.kind != ToolKind::Subagent as i32
                    && self.calls.iter().all(|(id, _)| *id != call.id) =>
            {
                self.calls.push((call.id.clone(), now));
            }
            _ => {}
        }
    }

    fn end_call(&mut self, id: &str, now: Instant) {
        if let Some(at) = self.calls.iter().position(|(known, _)| known == id) {
            self.calls.remove(at);
            self.active_at = Some(now);
        }
    }

    /// Returns the limit that is exceeded next; none if none will be by itself.
    pub fn next(&self) -> Option<Expiry> {
        if self.are_off {
            return None;
        }
        let expiry = |limit: Option<Duration>, since: Instant, kind, code, message| {
            limit.and_then(|limit| since.checked_add(limit)).map(|at| Expiry { at, kind, code, message })
        };
        let wall = expiry(
            self.limits.wall,
            self.accepted_at,
            FailureKind::WallTimeout,
            "wall_timeout",
            "The run took longer than its wall limit. Raise limits.wall if the task needs it.",
        );
        let mut all = vec![wall];
        if let (Some(started_at), 0) = (self.started_at, self.waits) {
            if self.active_at.is_none() {
                all.push(expiry(
                    self.limits.start_up,
                    started_at,
                    FailureKind::StartTimeout,
                    "start_up_timeout",
                    "The agent gave no sign within its start-up limit. Raise limits.start_up, or see why it hangs.",
                ));
            }
            all.push(match self.calls.first() {
                Some((_, at)) => expiry(
                    self.limits.tool_call,
                    *at,
                    FailureKind::ToolTimeout,
                    "tool_call_timeout",
                    "A tool call took longer than its limit. Raise limits.tool_call if the task needs it.",
                ),
                None => expiry(
                    self.limits.idle,
                    self.active_at.unwrap_or(started_at),
                    FailureKind::IdleTimeout,
                    "idle_timeout",
                    "The agent was silent for longer than its idle limit. Raise limits.idle if the task needs it.",
                ),
            });
        }
        all.into_iter().flatten().min_by_key(|expiry| expiry.at)
    }
}
