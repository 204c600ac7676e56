//! Counts the streams that hold a run, and ends the run when none has for a while. Losing a stream is not intent.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::core::Core;
use crate::sync::lock;

const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// That a stream that the server ended still counts as open.
const SERVER_ENDED_GRACE: Duration = Duration::from_secs(30);

pub struct Holders {
    after: Duration,
    core: Arc<Core>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    count: usize,
    timer: Option<AbortHandle>,
    is_closed: bool,
}

impl Holders {
    pub fn new(after: Duration, core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self { after: after.min(LONGEST), core, state: Mutex::default() })
    }

    /// Takes note of a stream, which holds the run until what is returned is dropped.
    pub fn acquire(self: &Arc<Self>) -> Hold {
        let mut state = lock(&self.state);
        state.count += 1;
        if let Some(timer) = state.timer.take() {
            timer.abort();
        }
        Hold { holders: Arc::clone(self), is_ended_by_server: false }
    }

    fn release(self: &Arc<Self>, by_server: bool) {
        let mut state = lock(&self.state);
        if by_server && !state.is_closed {
            // Its reader did nothing wrong.
            self.later(SERVER_ENDED_GRACE, |holders| holders.release(false));
            return;
        }
        state.count -= 1;
        if state.count == 0 && !state.is_closed {
            state.timer = self.later(self.after, |holders| {
                let is_orphan = {
                    let state = lock(&holders.state);
                    state.count == 0 && !state.is_closed
                };
                if is_orphan {
                    holders.core.cancel(holders.core.grace, "no client is attached");
                }
            });
        }
    }

    fn later(self: &Arc<Self>, delay: Duration, then: fn(&Arc<Self>)) -> Option<AbortHandle> {
        let holders = Arc::clone(self);
        let runtime = tokio::runtime::Handle::try_current().ok()?; // none: the server has ended
        let task = runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            then(&holders);
        });
        Some(task.abort_handle())
    }

    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        if let Some(timer) = state.timer.take() {
            timer.abort();
        }
    }
}

/// A stream that holds a run.
pub struct Hold {
    holders: Arc<Holders>,
    pub is_ended_by_server: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holders.release(self.is_ended_by_server);
    }
}
