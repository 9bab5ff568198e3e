//! The dispatcher's shell: receives, decides with `forebay_core::dispatch`, makes the decision durable, then acts on it and answers.
//!
//! Owns: the one task that has the state and the journal, the order "durable first", who waits for what, timers, and the work that decisions ask
//! for. Must not know: the rules (they are in core), rows, sockets, how a plan or a commit is made (that is the [`Planner`]).
//!
//! - [`Dispatcher`] is the handle that everybody has; in a worker's process it leads to the dispatcher of another ([`RemoteDispatcher`]).
//! - `shell` is the task: it drains its queue, decides each event on the newest state, appends all entries in one write and answers only then. If
//!   that write fails, nothing was told to anybody and the task ends: what it knew is void, and the journal is the truth.
//! - `work` runs what decisions ask for, and reports back as events.

mod handle;
mod member;
mod remote;
mod shell;
mod staged;
mod waiting;
mod work;

use async_trait::async_trait;
use forebay_core::dispatch::{Entry, PassAnswer, State, VisitRow, apply};
use forebay_core::ids::{BatchId, DatasetName, EpochId, PassId, VersionId};
use forebay_core::job::JobSettings;
use forebay_core::{Error, Result};
use forebay_storage::journal::Loaded;
use forebay_storage::ledger;
use std::time::Duration;

pub use forebay_core::dispatch::{
    CommitOutcome, CommitRequest, Grant, Granted, JobInfo, OpenedJob, PassShape, Quarantined, RunRequest, RunSpec, RunState, RunStatus,
    StagedShards, StoredDataset, StreamId, TaskLease,
};
pub use handle::Dispatcher;
pub use member::Member;
pub use remote::RemoteDispatcher;

/// What the dispatcher asks of the rest of the engine.
#[async_trait]
pub trait Planner: std::fmt::Debug + Send + Sync + 'static {
    /// What the Delta log says of a dataset now, or at a version; none if there is no such dataset. Never from a cache that may be old.
    async fn stored(&self, dataset: &DatasetName, version: Option<VersionId>) -> Result<Option<StoredDataset>>;

    /// Plans a pass: pins version and filter. `epochs` are the C epochs of the job's incarnation, in order; the pass reads
    /// `epochs[pass % C]`. [`PassAnswer::NotYet`] while that epoch is not stored.
    async fn pass_shape(&self, settings: &JobSettings, pass: PassId, epochs: &[EpochId]) -> Result<PassAnswer>;

    /// The commit of an epoch on top of the newest version: the version it makes and its exact bytes.
    async fn commit_body(&self, request: &CommitRequest) -> Result<(VersionId, String)>;

    /// Puts exactly `body` at exactly `version`. An error means that it is in doubt, and is tried again with the same bytes.
    async fn commit_at(&self, dataset: &DatasetName, version: VersionId, body: &str) -> Result<CommitOutcome>;

    /// An epoch was published: forget what was cached of the dataset.
    fn published(&self, _dataset: &DatasetName, _version: VersionId) {}
}

/// Settings of a dispatcher: plain data.
#[derive(Debug, Clone)]
pub struct DispatcherConfig {
    /// Where this process listens, as others reach it.
    pub address: String,
    /// Length of every lease.
    pub term: Duration,
    /// Workers live in their owner's process: those of a dead owner are dead too, and their leases are over at once.
    pub workers_died: bool,
    /// Go on by itself with runs that a dead owner left; else they wait for `--resume`. For servers, not for embedded commands.
    pub continue_runs: bool,
    /// Entries after which the journal is replaced by the state.
    pub compact_after: u64,
}

impl DispatcherConfig {
    /// The settings of one process that is dispatcher and worker.
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), term: Duration::from_secs(20), workers_died: true, continue_runs: false, compact_after: 4_096 }
    }
}

/// Rebuilds the state from what the journal holds.
///
/// # Errors
/// `Corrupt` or `Unsupported` for a state or an entry that this program can't read.
pub fn fold(loaded: &Loaded) -> Result<State> {
    let mut state: State = match &loaded.snapshot {
        Some(bytes) => serde_json::from_slice(bytes).map_err(|e| Error::corrupt(format!("the journal's state is not valid: {e}")))?,
        None => State::default(),
    };
    for (seq, bytes) in &loaded.entries {
        let entry = Entry::decode(bytes).map_err(|e| e.context(format!("journal entry {seq}")))?;
        apply(&mut state, &entry);
    }
    Ok(state)
}

/// A visit as the ledger stores it.
pub fn ledger_row(row: VisitRow) -> ledger::VisitRow {
    ledger::VisitRow {
        incarnation: row.incarnation,
        pass: row.pass,
        epoch: row.epoch,
        batch: BatchId(row.batch),
        step: row.step,
        consumer: row.consumer.map(|c| c.0),
        worker: row.worker.map(|w| w.0),
        state: row.state.as_str().to_owned(),
        rows: row.rows,
        committed: row.committed,
        at_ms: row.at_ms,
        reason: row.reason,
        digest: row.digest,
    }
}

#[cfg(test)]
mod tests;
