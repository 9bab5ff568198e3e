//! The dispatcher of another process, as its workers see it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::Result;
use forebay_core::dispatch::{Event, Reply, RunId, RunSpec, StagedShards, TaskLease};
use forebay_core::ids::{ConsumerName, DatasetName, EpochId, JobName};
use forebay_core::job::JobSettings;

/// Carries a worker's requests to whoever leads, through a change of leader.
#[async_trait]
pub trait RemoteDispatcher: fmt::Debug + Send + Sync + 'static {
    /// Asks or reports what a worker may. `wait` bounds how long the dispatcher keeps a request that has no answer yet.
    async fn ask(&self, event: Event, wait: Option<Duration>) -> Result<Reply>;

    async fn job_settings(&self, job: &JobName) -> Result<Option<JobSettings>>;

    async fn is_streaming(&self, job: &JobName, consumer: &ConsumerName) -> Result<bool>;

    /// As [`super::Dispatcher::staged_shards`].
    async fn staged_shards(&self, dataset: &DatasetName, run: RunId, epoch: EpochId, from: u64) -> Result<StagedShards>;

    /// The spec of a run of the dataset.
    async fn spec_of(&self, dataset: &DatasetName, run: RunId) -> Result<Arc<RunSpec>>;

    /// The spec of the dataset's current or last run.
    async fn run_spec(&self, dataset: &DatasetName) -> Result<Option<Arc<RunSpec>>>;

    /// Notes progress for the next heartbeat; false when the attempt is not wanted any more, or not this worker's.
    fn report(&self, lease: &TaskLease, rows: u64, bytes: u64) -> bool;

    /// Number of the worker's lease: another one after every interruption.
    fn hold(&self) -> u64;

    /// Whether that lease runs, by this process's own clock.
    fn holds(&self, hold: u64) -> bool;
}
