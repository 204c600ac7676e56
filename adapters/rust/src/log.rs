//! The events of one run in memory: one writer, many readers.
//!
//! A reader is a position, so it costs nothing while it keeps up and cannot make others wait. If it falls too far behind it
//! is dropped, and may attach again; events that are no longer kept become a gap. A reader may hold the run: the writer
//! waits while even the foremost of these is far behind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use prost::Message as _;
use tokio::sync::Notify;

use crate::api::agent_event::Body;
use crate::api::{AgentEvent, Gap, GapReason, ReplayDone};
use crate::sync::lock;

/// Bytes that are kept for readers that come later.
const CAPACITY: usize = 16 << 20;
/// Bytes that one reader may fall behind.
const READER_LAG: u64 = 8 << 20;
/// Bytes that wait for the readers that hold the run, before the writer waits.
const BACKLOG: u64 = 4 << 20;
const CHUNK_EVENTS: usize = 256;
const CHUNK_BYTES: usize = 256 << 10;
/// Events without a sequence that wait for one reader.
const EPHEMERALS: usize = 64;

struct Entry {
    event: Arc<AgentEvent>,
    size: usize,
    /// Bytes ever appended, with this event.
    end: u64,
}

/// The events of one run.
pub struct Log {
    run_id: String,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    last: u64,
    end: u64,
    kept: usize,
    is_closed: bool,
    is_unpaused: bool,
    /// By the foremost reader that holds the run, or by the last one while there is none.
    taken: u64,
    readers: BTreeMap<u64, Position>,
    next_reader: u64,
}

#[derive(Default)]
struct Position {
    holds: bool,
    /// The last sequence handed out.
    cursor: u64,
    read: u64,
    taken: u64,
    is_slow: bool,
    ephemeral: VecDeque<(u64, Arc<AgentEvent>)>,
    replay_to: u64,
    wants_mark: bool,
}

/// Where a reader begins.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// The last sequence that the reader has.
    pub after: u64,
    pub holds: bool,
    /// Mark where the replay ends.
    pub replay_done: bool,
}

/// Why a reader gets no more.
#[derive(Debug, PartialEq, Eq)]
pub enum Interruption {
    /// It fell too far behind.
    Slow,
}

impl Log {
    /// Returns the log of a run whose first event has a sequence.
    pub fn new(run_id: &str, first_sequence: u64) -> Arc<Self> {
        let state = State { last: first_sequence - 1, ..State::default() };
        Arc::new(Self { run_id: run_id.to_owned(), state: Mutex::new(state), changed: Notify::new() })
    }

    /// Appends a durable event, whose sequence is the next one.
    pub fn append(&self, event: AgentEvent) {
        let mut state = lock(&self.state);
        let size = event.encoded_len();
        state.last = event.sequence;
        state.end += size as u64;
        state.kept += size;
        let end = state.end;
        state.entries.push_back(Entry { event: Arc::new(event), size, end });
        while state.kept > CAPACITY && state.entries.len() > 1 {
            let size = state.entries.pop_front().map_or(0, |entry| entry.size);
            state.kept -= size;
        }
        for position in state.readers.values_mut() {
            position.is_slow |= end - position.read > READER_LAG;
        }
        self.wake(state);
    }

    /// Hands an event without a sequence to all present readers.
    pub fn send(&self, event: AgentEvent) {
        let mut state = lock(&self.state);
        let (event, last) = (Arc::new(event), state.last);
        for position in state.readers.values_mut() {
            if position.ephemeral.len() == EPHEMERALS {
                position.ephemeral.pop_front();
            }
            position.ephemeral.push_back((last, Arc::clone(&event)));
        }
        self.wake(state);
    }

    /// Says that nothing follows.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        self.wake(state);
    }

    /// Returns the last sequence.
    pub fn last(&self) -> u64 {
        lock(&self.state).last
    }

    /// Returns the bytes of events in memory.
    pub fn kept(&self) -> usize {
        lock(&self.state).kept
    }

    /// Makes the writer wait no more: the agent is to stop, and must not wait in a write.
    pub fn unpause(&self) {
        let mut state = lock(&self.state);
        state.is_unpaused = true;
        self.wake(state);
    }

    /// Returns whether the readers that hold the run are far behind, as they are while there is none.
    pub fn is_behind(&self) -> bool {
        let state = lock(&self.state);
        !state.is_unpaused && state.end - state.taken > BACKLOG
    }

    /// Waits while the readers that hold the run are far behind.
    pub async fn wait_taken(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = lock(&self.state);
                if state.is_unpaused || state.is_closed || state.end - state.taken <= BACKLOG / 2 {
                    return;
                }
            }
            changed.await;
        }
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns a new reader; the last sequence if the reader is ahead of it. One that asks where the replay ends gets what is
    /// pending before that mark.
    pub fn read(self: &Arc<Self>, options: Options, pending: Vec<AgentEvent>) -> Result<Reader, u64> {
        let mut state = lock(&self.state);
        if options.after > state.last {
            return Err(state.last);
        }
        let mut position = Position {
            holds: options.holds,
            cursor: options.after,
            read: state.end,
            replay_to: state.last,
            wants_mark: options.replay_done && !state.is_closed,
            ..Position::default()
        };
        if position.wants_mark {
            position.ephemeral.extend(pending.into_iter().map(|event| (state.last, Arc::new(event))));
        }
        if state.is_closed && options.after == state.last && !state.entries.is_empty() {
            position.cursor -= 1; // the result comes again
        }
        let next = state.entries.get(state.seek(position.cursor));
        position.taken = next.map_or(state.end, |entry| entry.end - entry.size as u64);
        let key = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(key, position);
        state.note_taken();
        self.wake(state);
        Ok(Reader { log: Arc::clone(self), key })
    }
}

impl State {
    /// Takes note of how far the foremost reader is that holds the run.
    fn note_taken(&mut self) {
        if let Some(foremost) = self.readers.values().filter(|reader| reader.holds).map(|reader| reader.taken).max() {
            self.taken = foremost;
        }
    }

    /// Returns the index of the first event that is kept after a sequence.
    fn seek(&self, after: u64) -> usize {
        self.entries.partition_point(|entry| entry.event.sequence <= after)
    }
}

/// A position in a log, until it is dropped.
pub struct Reader {
    log: Arc<Log>,
    key: u64,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = lock(&self.log.state);
        state.readers.remove(&self.key);
        state.note_taken();
        self.log.wake(state);
    }
}

impl Reader {
    /// Returns the last sequence that was handed out.
    pub fn cursor(&self) -> u64 {
        lock(&self.log.state).readers.get(&self.key).map_or(0, |position| position.cursor)
    }

    /// Returns the next events, waiting for at least one; none at the end of the run.
    pub async fn next(&mut self) -> Result<Vec<Arc<AgentEvent>>, Interruption> {
        loop {
            let mut changed = std::pin::pin!(self.log.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = lock(&self.log.state);
                let State { entries, readers, last, is_closed, .. } = &mut *state;
                let Some(position) = readers.get_mut(&self.key) else { return Ok(Vec::new()) };
                if position.is_slow {
                    return Err(Interruption::Slow);
                }
                let events = position.take(entries, *last, &self.log.run_id);
                let (is_closed, holds) = (*is_closed, position.holds);
                if !events.is_empty() || is_closed {
                    if holds {
                        state.note_taken();
                        self.log.wake(state);
                    }
                    return Ok(events);
                }
            }
            changed.await;
        }
    }
}

impl Position {
    fn take(&mut self, entries: &VecDeque<Entry>, last: u64, run_id: &str) -> Vec<Arc<AgentEvent>> {
        let mut events = Vec::new();
        let mut bytes = 0;
        let first = entries.partition_point(|entry| entry.event.sequence <= self.cursor);
        for entry in entries.iter().skip(first) {
            if events.len() >= CHUNK_EVENTS || bytes >= CHUNK_BYTES {
                break;
            }
            self.between(&mut events, last, run_id);
            let sequence = entry.event.sequence;
            if sequence != self.cursor + 1 {
                let gap = Gap {
                    from_sequence: self.cursor + 1,
                    to_sequence: sequence - 1,
                    reason: GapReason::Evicted as i32,
                };
                self.cursor = sequence - 1;
                events.push(ephemeral(run_id, Body::Gap(gap)));
                self.between(&mut events, last, run_id);
            }
            events.push(Arc::clone(&entry.event));
            bytes += entry.size;
            self.cursor = sequence;
            self.taken = entry.end;
            self.read = self.read.max(entry.end);
        }
        self.between(&mut events, last, run_id);
        events
    }

    /// Takes what belongs between the last sequence and the next.
    fn between(&mut self, events: &mut Vec<Arc<AgentEvent>>, last: u64, run_id: &str) {
        let is_replayed = self.wants_mark && self.cursor >= self.replay_to;
        while self.ephemeral.front().is_some_and(|(after, _)| *after <= self.cursor) {
            events.extend(self.ephemeral.pop_front().map(|(_, event)| event));
        }
        if is_replayed {
            self.wants_mark = false;
            events.push(ephemeral(run_id, Body::ReplayDone(ReplayDone { last_sequence: last })));
        }
    }
}

fn ephemeral(run_id: &str, body: Body) -> Arc<AgentEvent> {
    Arc::new(AgentEvent { run_id: run_id.to_owned(), body: Some(body), ..AgentEvent::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api;

    fn event(sequence: u64, size: usize) -> AgentEvent {
        let body = Some(Body::Log(api::Log { text: "x".repeat(size), ..Default::default() }));
        AgentEvent { sequence, body, ..AgentEvent::default() }
    }

    fn filled(first: u64, last: u64, size: usize) -> Arc<Log> {
        let log = Log::new("r", first);
        (first..=last).for_each(|sequence| log.append(event(sequence, size)));
        log
    }

    /// Returns the sequences that a reader gets until the end, and the ends of gaps as negative numbers.
    async fn read(mut reader: Reader) -> Vec<i64> {
        let mut got = Vec::new();
        loop {
            let events = reader.next().await.expect("it is fast enough");
            if events.is_empty() {
                return got;
            }
            got.extend(events.iter().map(|event| match &event.body {
                Some(Body::Gap(gap)) => -i64::try_from(gap.to_sequence).expect("small"),
                _ => i64::try_from(event.sequence).expect("small"),
            }));
        }
    }

    #[tokio::test]
    async fn readers_get_what_follows_their_sequence() {
        let cases: [(u64, u64, &[i64]); 5] =
            [(1, 0, &[1, 2, 3, 4]), (1, 2, &[3, 4]), (1, 4, &[4]), (3, 2, &[3, 4]), (3, 0, &[-2, 3, 4])];
        for (first, after, expected) in cases {
            let log = filled(first, 4, 10);
            log.close();
            let reader =
                log.read(Options { after, replay_done: true, ..Options::default() }, Vec::new()).expect("not ahead");
            assert_eq!(read(reader).await, expected, "from {first}, after {after}");
        }
        assert_eq!(filled(1, 2, 10).read(Options { after: 3, ..Options::default() }, Vec::new()).err(), Some(2));
    }

    #[tokio::test]
    async fn replay_done_comes_between_old_and_new() {
        let log = filled(1, 2, 10);
        let reader = log.read(Options { replay_done: true, ..Options::default() }, Vec::new()).expect("not ahead");
        log.append(event(3, 10));
        log.close();
        assert_eq!(read(reader).await, [1, 2, 0, 3]);
    }

    #[tokio::test]
    async fn events_that_are_not_kept_are_a_gap() {
        let log = filled(1, 40, 1 << 20);
        log.close();
        let got = read(log.read(Options::default(), Vec::new()).expect("not ahead")).await;
        assert!(got[0] < 0 && got[1] == 1 - got[0] && got.last() == Some(&40), "{got:?}");
        assert!(log.kept() <= CAPACITY);
    }

    #[tokio::test]
    async fn a_slow_reader_is_dropped() {
        let log = Log::new("r", 1);
        let mut reader = log.read(Options::default(), Vec::new()).expect("not ahead");
        (1..=10).for_each(|sequence| log.append(event(sequence, 1 << 20)));
        assert_eq!(reader.next().await.err(), Some(Interruption::Slow));
    }

    #[tokio::test]
    async fn the_writer_waits_for_the_foremost_holder() {
        let log = Log::new("r", 1);
        let holds = Options { holds: true, ..Options::default() };
        let mut holder = log.read(holds, Vec::new()).expect("not ahead");
        let _lazy = log.read(holds, Vec::new()).expect("not ahead");
        (1..=5).for_each(|sequence| log.append(event(sequence, 1 << 20)));
        assert!(log.is_behind());
        let waiting = tokio::spawn({
            let log = Arc::clone(&log);
            async move { log.wait_taken().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        for _ in 0..5 {
            holder.next().await.expect("it is fast enough");
        }
        waiting.await.expect("it goes on");
        assert!(!log.is_behind());
    }
}
