//! Batches that several jobs with the same plan take: gathered once, and sent from where they lie.
//!
//! Owns: which windows more than one job reads, and keeping their batches' rows together in the cache. Must not know: how rows are encoded, who
//! gets them. A job that is alone with its order gathers each batch straight into its message, which costs no memory and is never needed again. Where
//! the cache does not hold the epoch twice, as stored and in the plan's order, all do so: what is kept must not push out what has to be read again.

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use forebay_core::ids::BatchId;
use forebay_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;

use super::cache::Admission;
use super::pass::PassPlan;
use super::served::Served;
use super::window::{Item, Loader, MadeKey, WindowData};

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;

/// Windows whose first reader is remembered.
const REMEMBERED: usize = 1 << 14;

/// Which job read a window first, by hashes, of the windows read last.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    first: Mutex<(HashMap<u64, u64>, VecDeque<u64>)>,
}

impl Kept {
    /// Notes that `job` reads the window; whether another one did before.
    fn is_shared(&self, data: &WindowData, job: &str) -> bool {
        self.note(hash(&data.key), hash(&job))
    }

    fn note(&self, window: u64, job: u64) -> bool {
        let mut first = self.first.lock();
        let (known, order) = &mut *first;
        if let Some(by) = known.get(&window) {
            return *by != job;
        }
        known.insert(window, job);
        order.push_back(window);
        if order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        false
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Loader {
    /// Whether the batches of a window that `job` has come to are worth keeping for others.
    pub(crate) fn shares(&self, data: &WindowData, pass: &PassPlan, job: &str) -> bool {
        let bytes: u64 = pass.groups.iter().map(|(_, _, group)| group.bytes).sum();
        self.kept.is_shared(data, job) && bytes.saturating_mul(2) <= self.items.limits().idle
    }

    /// The rows of a batch in one piece, gathered by whichever job comes first. None where there is no room now: the caller gathers them for itself.
    pub(crate) async fn gathered(
        &self,
        data: &Arc<WindowData>,
        pass: &PassPlan,
        served: &Served,
        batch: BatchId,
        rows: &[(u32, u32)],
    ) -> Result<Option<RecordBatch>> {
        let key = Item::Made(MadeKey::new(data, pass, served, pass.plan.batch_rows(batch)));
        let Some(pins) = self.items.pin(&[(key, data.row_bytes() * rows.len() as u64)], 0, Admission::IfRoom).await? else {
            return Ok(None);
        };
        let gathering = async {
            let (data, rows) = (Arc::clone(data), rows.to_vec());
            let gathered = tokio::task::spawn_blocking(move || gather(&data, &rows)).await;
            let gathered = gathered.map_err(|e| Error::internal(format!("gathering a batch failed: {e}")))??;
            self.metrics.batches_kept.inc();
            let bytes = gathered.get_array_memory_size() as u64;
            Ok((vec![gathered], bytes))
        };
        Ok(pins.get(0, gathering).await?.first().cloned())
    }
}

fn gather(data: &WindowData, rows: &[(u32, u32)]) -> Result<RecordBatch> {
    let chunks: Vec<&RecordBatch> = data.chunks.iter().collect();
    let rows: Vec<(usize, usize)> = rows.iter().map(|(chunk, row)| (*chunk as usize, *row as usize)).collect();
    interleave_record_batch(&chunks, &rows).map_err(|e| Error::internal(format!("taking a batch's rows: {e}")))
}
