//! Epochs that are being written, as far as this process has heard of them.
//!
//! Owns: which shards are staged and what their columns are, before any version says so. Must not know: how far a job has come with them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use forebay_core::Result;
use forebay_core::dispatch::{RunId, RunSpec, StagedShards, State};
use forebay_core::ids::{DatasetName, EpochId, VersionId};
use forebay_core::{Error, dispatch};
use forebay_sql::python::PythonPool;
use forebay_storage::delta::DatasetVersion;
use forebay_storage::root::Root;
use parking_lot::Mutex;

use crate::dispatcher::Dispatcher;
use crate::engine::property;
use crate::worker::task::Runs;

#[cfg(test)]
#[path = "staged_tests.rs"]
mod tests;

/// Runs and epochs that are kept: a process follows few at a time.
const KEPT: usize = 32;

/// An epoch as it stands.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// What is staged by now, of no version.
    Staged(Arc<DatasetVersion>),
    Published(VersionId),
}

#[derive(Debug, Clone)]
struct Known {
    key: (DatasetName, RunId, EpochId),
    version: Arc<DatasetVersion>,
    /// Staging number from which on nothing is known.
    next: u64,
}

/// What this process knows of epochs that are being written. Nothing of it changes: it only becomes more.
#[derive(Debug)]
pub(crate) struct StagedEpochs {
    root: Root,
    python: Arc<PythonPool>,
    runs: Arc<Runs>,
    epochs: Mutex<VecDeque<Known>>,
    /// By fingerprint: the dataset without any shard.
    empty: Mutex<VecDeque<(String, Arc<DatasetVersion>)>>,
}

fn keep<T>(kept: &mut VecDeque<T>, new: T) {
    kept.push_back(new);
    if kept.len() > KEPT {
        kept.pop_front();
    }
}

fn json_text<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal(format!("a run's spec could not be written: {e}")))
}

impl StagedEpochs {
    pub(crate) fn new(root: Root, python: Arc<PythonPool>, runs: Arc<Runs>) -> Self {
        Self { root, python, runs, epochs: Mutex::default(), empty: Mutex::default() }
    }

    /// What a run will store, without a row of it.
    pub(crate) async fn empty(&self, spec: &Arc<RunSpec>) -> Result<Arc<DatasetVersion>> {
        let of = |kept: &VecDeque<(String, Arc<DatasetVersion>)>| {
            kept.iter().find(|(known, version)| *known == spec.fingerprint && version.name == spec.dataset).map(|(_, v)| Arc::clone(v))
        };
        if let Some(known) = of(&self.empty.lock()) {
            return Ok(known);
        }
        let run = self.runs.get(&self.root, &self.python, spec).await?;
        let properties = BTreeMap::from([
            (property::FINGERPRINT.to_owned(), spec.fingerprint.clone()),
            (property::PIPELINE.to_owned(), json_text(&spec.pipeline)?),
            (property::CODE.to_owned(), json_text(&spec.code)?),
        ]);
        let version = Arc::new(DatasetVersion::unpublished(spec.dataset.clone(), Arc::clone(&run.schema), properties)?);
        let mut kept = self.empty.lock();
        if let Some(first) = of(&kept) {
            return Ok(first);
        }
        keep(&mut kept, (spec.fingerprint.clone(), Arc::clone(&version)));
        Ok(version)
    }

    /// A dataset of which nothing is published, as the run that writes its first epoch says, or the one that gave up.
    pub(crate) async fn coming(&self, dispatcher: &Dispatcher, dataset: &DatasetName) -> Result<Option<Arc<DatasetVersion>>> {
        match dispatcher.run_spec(dataset).await? {
            Some(spec) => self.empty(&spec).await.map(Some),
            None => Ok(None),
        }
    }

    /// An epoch as it stands, with all that is staged by now.
    ///
    /// # Errors
    /// `FailedPrecondition` when its run is over and did not publish it.
    pub(crate) async fn read(&self, dispatcher: &Dispatcher, dataset: &DatasetName, run: RunId, epoch: EpochId) -> Result<Standing> {
        let key = (dataset.clone(), run, epoch);
        let found = self.epochs.lock().iter().find(|known| known.key == key).cloned();
        let mut known = match found {
            Some(known) => known,
            None => match self.first(dispatcher, key).await? {
                Ok(known) => known,
                Err(version) => return Ok(Standing::Published(version)),
            },
        };
        loop {
            let page = dispatcher.staged_shards(dataset, run, epoch, known.next).await?;
            if let Some(version) = page.version {
                self.epochs.lock().retain(|old| old.key != known.key);
                return Ok(Standing::Published(version));
            }
            let more = page.more;
            known = with(known, page);
            if !more {
                break;
            }
        }
        let version = Arc::clone(&known.version);
        let mut kept = self.epochs.lock();
        // Whoever asked at the same time may have heard of more.
        if kept.iter().all(|old| old.key != known.key || old.next < known.next) {
            kept.retain(|old| old.key != known.key);
            keep(&mut kept, known);
        }
        Ok(Standing::Staged(version))
    }

    async fn first(&self, dispatcher: &Dispatcher, key: (DatasetName, RunId, EpochId)) -> Result<std::result::Result<Known, VersionId>> {
        let (dataset, run, epoch) = (&key.0, key.1, key.2);
        if let Some(version) = dispatcher.staged_shards(dataset, run, epoch, 0).await?.version {
            return Ok(Err(version));
        }
        let spec = dispatcher.spec_of(dataset, run).await?;
        let version = self.empty(&spec).await?;
        Ok(Ok(Known { key, version, next: 0 }))
    }

    /// The same of a state that was read, for those who only look.
    ///
    /// # Errors
    /// As [`StagedEpochs::read`].
    pub(crate) async fn of_state(&self, state: &State, dataset: &DatasetName, run: RunId, epoch: EpochId) -> Result<Standing> {
        let mut page = dispatch::staged_shards(state, dataset, run, epoch, 0)?;
        if let Some(version) = page.version {
            return Ok(Standing::Published(version));
        }
        let spec = state.datasets.get(dataset).and_then(|d| d.run.as_ref()).map(|r| r.spec.clone());
        let spec = spec.ok_or_else(|| Error::internal(format!("the run {run} of `{dataset}` is gone")))?;
        let mut known = Known { key: (dataset.clone(), run, epoch), version: self.empty(&spec).await?, next: 0 };
        while page.more {
            let next = page.next;
            known = with(known, page);
            page = dispatch::staged_shards(state, dataset, run, epoch, next)?;
        }
        Ok(Standing::Staged(with(known, page).version))
    }
}

fn with(known: Known, page: StagedShards) -> Known {
    if page.shards.is_empty() {
        return Known { next: page.next, ..known };
    }
    Known { version: Arc::new(known.version.with_staged(page.shards)), next: page.next, ..known }
}
