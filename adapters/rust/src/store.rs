//! The runs by their IDs: live ones, and finished ones for a while.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;

use crate::api::ExecuteRequest;
use crate::core::Core;
use crate::holders::Holders;
use crate::reason::{Reason, Refusal};
use crate::sync::lock;

const RETENTION: Duration = Duration::from_secs(10 * 60);
const MOST_RETAINED: usize = 256;
/// Of the events of all finished runs.
const RETAINED_BYTES: usize = 256 << 20;

/// A run that is kept.
pub struct Stored {
    pub core: Arc<Core>,
    pub holders: Arc<Holders>,
    /// The first sequence that this adapter wrote.
    pub first_sequence: u64,
    digest: [u64; 2],
}

#[derive(Default)]
pub struct Store {
    /// Two keys at random: a digest of a request allows no guess at its secrets.
    keys: [RandomState; 2],
    runs: Mutex<Runs>,
}

#[derive(Default)]
pub struct Runs {
    by_id: HashMap<String, Arc<Stored>>,
    /// In the order of their ends.
    finished: Vec<Arc<Stored>>,
}

impl Store {
    pub fn find(&self, id: &str) -> Result<Arc<Stored>, Refusal> {
        lock(&self.runs).by_id.get(id).map(Arc::clone).ok_or_else(|| {
            Refusal::new(
                Reason::RunNotFound,
                format!("run {id:?} not found; it may have expired, or another adapter has it"),
            )
        })
    }

    /// Returns the run that a request would start again, or adds the one that `begin` makes. Of several requests with one
    /// ID, one begins the run.
    pub fn join(
        &self,
        request: ExecuteRequest,
        begin: impl FnOnce(ExecuteRequest, &Runs) -> Result<(Arc<Core>, Arc<Holders>), Refusal>,
    ) -> Result<Arc<Stored>, Refusal> {
        let digest = self.digest(&request);
        let id = request.run_id.clone();
        let first_sequence = request.relay.unwrap_or_default().first_sequence.max(1);
        let mut runs = lock(&self.runs);
        if let Some(known) = runs.by_id.get(&id).map(Arc::clone) {
            // A router that begins the next attempt holds what came before.
            let ended = known.core.ending.borrow().map(|ending| ending.sequence);
            let relayed = request.relay.map_or(0, |relay| relay.first_sequence);
            if ended.is_none_or(|last| relayed <= last) {
                if known.digest == digest {
                    return Ok(known);
                }
                let message = format!("run {id:?} exists with another request; choose another ID");
                return Err(Refusal::new(Reason::RunIdReused, message).with("run_id", id));
            }
            runs.remove(&known);
        }
        let (core, holders) = begin(request, &runs)?;
        let stored = Arc::new(Stored { core, holders, first_sequence, digest });
        runs.by_id.insert(id, Arc::clone(&stored));
        Ok(stored)
    }

    /// Returns the runs that have not ended.
    pub fn live(&self) -> Vec<Arc<Core>> {
        lock(&self.runs).live().map(Arc::clone).collect()
    }

    /// Keeps a finished run for its time, and no more of them than there is room for.
    pub fn retire(self: &Arc<Self>, core: &Arc<Core>) {
        let mut runs = lock(&self.runs);
        let known = runs.by_id.get(&core.run_id).filter(|known| Arc::ptr_eq(&known.core, core)).map(Arc::clone);
        let Some(known) = known else { return }; // the next attempt has begun
        runs.finished.push(Arc::clone(&known));
        let kept = |runs: &Runs| runs.finished.iter().map(|stored| stored.core.log.kept()).sum::<usize>();
        while runs.finished.len() > 1 && (runs.finished.len() > MOST_RETAINED || kept(&runs) > RETAINED_BYTES) {
            let oldest = Arc::clone(&runs.finished[0]);
            runs.remove(&oldest);
        }
        let store = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(RETENTION).await;
            lock(&store.runs).remove(&known);
        });
    }

    /// Returns a digest of a request that is equal for requests of one run.
    fn digest(&self, request: &ExecuteRequest) -> [u64; 2] {
        let compared = ExecuteRequest {
            relay: None,
            auth_token: String::new(),
            batching: None,
            orphan_after: None,
            admission: None,
            labels: std::collections::BTreeMap::new(),
            ..request.clone()
        };
        let canonical = compared.encode_to_vec(); // its maps are in order
        self.keys.each_ref().map(|key| key.hash_one(&canonical))
    }
}

impl Runs {
    /// Returns the runs that have not ended.
    pub fn live(&self) -> impl Iterator<Item = &Arc<Core>> {
        let live = self.by_id.values().filter(|stored| stored.core.ending.borrow().is_none());
        live.map(|stored| &stored.core)
    }

    fn remove(&mut self, stored: &Arc<Stored>) {
        if self.by_id.get(&stored.core.run_id).is_some_and(|known| Arc::ptr_eq(known, stored)) {
            self.by_id.remove(&stored.core.run_id);
        }
        self.finished.retain(|other| !Arc::ptr_eq(other, stored));
    }
}
