//! What workers ask of epochs that are being written.

use std::sync::Arc;

use forebay_core::dispatch::{self, RunId, RunSpec, StagedShards};
use forebay_core::ids::{DatasetName, EpochId};
use forebay_core::{Error, Result};

use super::Dispatcher;
use super::handle::Link;

impl Dispatcher {
    /// Shards that a run staged of an epoch, from a staging number on; once it is published, the version that has it.
    ///
    /// # Errors
    /// `FailedPrecondition` when the run is over and did not publish the epoch.
    pub async fn staged_shards(&self, dataset: &DatasetName, run: RunId, epoch: EpochId, from: u64) -> Result<StagedShards> {
        if let Link::Remote(remote) = &self.link {
            return remote.staged_shards(dataset, run, epoch, from).await;
        }
        let name = dataset.clone();
        self.look(move |state, _| dispatch::staged_shards(state, &name, run, epoch, from)).await?
    }

    /// The spec of a run that writes, or wrote last.
    ///
    /// # Errors
    /// `FailedPrecondition` when another run has taken its place.
    pub async fn spec_of(&self, dataset: &DatasetName, run: RunId) -> Result<Arc<RunSpec>> {
        if let Link::Remote(remote) = &self.link {
            return remote.spec_of(dataset, run).await;
        }
        let name = dataset.clone();
        let spec =
            self.look(move |state, _| state.datasets.get(&name)?.run.as_ref().filter(|r| r.id == run).map(|r| r.spec.clone())).await?;
        spec.ok_or_else(|| Error::failed_precondition(format!("the run {run} of `{dataset}` is over")))
    }

    /// The spec of the dataset's current or last run.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn run_spec(&self, dataset: &DatasetName) -> Result<Option<Arc<RunSpec>>> {
        if let Link::Remote(remote) = &self.link {
            return remote.run_spec(dataset).await;
        }
        let name = dataset.clone();
        self.look(move |state, _| state.datasets.get(&name)?.run.as_ref().map(|r| r.spec.clone())).await
    }
}
