//! The worker's serving half: windows of stored rows in memory, and the streams that hand out their batches.
//!
//! Owns: how stored rows become batches, and how much memory that takes. Must not know: who is granted what (that is the dispatcher), how messages
//! look (that is `flight`).
//!
//! - [`Reader`] plans passes, reads windows and keeps decoded row groups, for all jobs of a process; `forebay plan` uses it without any job.
//! - [`Serving`] opens a consumer's stream: grants from the dispatcher, rows from the reader, acknowledgements back.

pub(crate) mod cache;
#[cfg(test)]
pub(crate) mod fixture;
mod kept;
mod making;
mod pace;
pub(crate) mod pass;
pub mod plan_info;
mod report;
pub(crate) mod served;
pub(crate) mod staged;
mod stream;
pub(crate) mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use forebay_core::ids::{DatasetName, VersionId, WorkerName};
use forebay_core::job::JobSettings;
use forebay_core::{Kind, Result};
use forebay_flight::backend::JobStream;
use forebay_sql::python::PythonPool;
use forebay_storage::delta::DatasetVersion;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::dispatcher::{Dispatcher, Member};
use crate::engine::View;
use crate::metrics::Metrics;
use crate::worker::task::Runs;
use cache::Limits;
pub use cache::Usage;
use pass::Passes;
use served::Served;
use staged::StagedEpochs;
pub use stream::Acks;
use window::Loader;

/// How long a stream waits for memory that other streams hold.
const PATIENCE: Duration = Duration::from_secs(30);
/// Views of versions that are kept compiled.
const KEPT: usize = 64;

/// Memory of a process's windows, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServeLimits {
    /// Decoded row groups that nobody reads at the moment.
    pub cache: u64,
    /// Windows in use, over all streams; a single window may be larger. A transport may hold on to the rows of the window before until it has the
    /// next batch.
    pub in_use: u64,
}

/// One compiled view: the version's files, the columns asked for, and the bucket column.
type Compiled = (Arc<DatasetVersion>, Option<Vec<String>>, Option<String>, Arc<Served>);

/// Reads windows for all jobs of a process.
#[derive(Debug)]
pub struct Reader {
    pub(crate) view: View,
    pub(crate) loader: Loader,
    pub(crate) passes: Passes,
    pub(crate) staged: StagedEpochs,
    /// Batches whose steps behind the cut run at once.
    pub(crate) making: Arc<Semaphore>,
    python: Arc<PythonPool>,
    compiled: Mutex<VecDeque<Compiled>>,
}

impl Reader {
    pub(crate) fn new(view: View, python: Arc<PythonPool>, runs: Arc<Runs>, limits: ServeLimits, metrics: Metrics) -> Arc<Self> {
        let limits = Limits { idle: limits.cache, pinned: limits.in_use, patience: PATIENCE };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let loader = Loader::new(view.root().clone(), limits, metrics);
        Arc::new(Self {
            loader,
            passes: Passes::default(),
            staged: StagedEpochs::new(view.root().clone(), python.clone(), runs),
            making: Arc::new(Semaphore::new(cores)),
            view,
            python,
            compiled: Mutex::default(),
        })
    }

    /// What is in memory now: for metrics and tests.
    pub fn usage(&self) -> Usage {
        self.loader.usage()
    }

    /// How a version's rows become a consumer's; the steps behind the cut are compiled once.
    pub(crate) async fn served(&self, version: &Arc<DatasetVersion>, settings: &JobSettings) -> Result<Arc<Served>> {
        let (columns, bucket) = (settings.columns.as_deref(), settings.bucket_by.as_deref());
        let find = |kept: &VecDeque<Compiled>| {
            let same =
                |(of, wanted, by, _): &&Compiled| Arc::ptr_eq(of, version) && wanted.as_deref() == columns && by.as_deref() == bucket;
            kept.iter().find(same).map(|(.., served)| Arc::clone(served))
        };
        if let Some(served) = find(&self.compiled.lock()) {
            return Ok(served);
        }
        let served = Arc::new(Served::new(version, columns, bucket, &self.python).await?);
        let mut kept = self.compiled.lock();
        if let Some(first) = find(&kept) {
            return Ok(first);
        }
        kept.push_back((Arc::clone(version), columns.map(<[String]>::to_vec), bucket.map(str::to_owned), Arc::clone(&served)));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        Ok(served)
    }

    /// A dataset at a version or at its newest; before anything of it is published, what its run is going to store.
    ///
    /// # Errors
    /// `NotFound` for a version that does not exist, and for a dataset that does not and that nobody ever wrote.
    pub(crate) async fn version(
        &self,
        dispatcher: &Dispatcher,
        dataset: &DatasetName,
        version: Option<VersionId>,
    ) -> Result<Arc<DatasetVersion>> {
        match self.view.version(dataset, version).await {
            Err(error) if error.kind == Kind::NotFound && version.is_none() => self.staged.coming(dispatcher, dataset).await?.ok_or(error),
            found => found,
        }
    }

    /// The columns that a job's consumers get, of the pinned or the newest version.
    ///
    /// # Errors
    /// `NotFound` for a dataset or version that does not exist, `BadInput` for a column that it does not have.
    pub(crate) async fn schema(&self, dispatcher: &Dispatcher, settings: &JobSettings) -> Result<SchemaRef> {
        let version = self.version(dispatcher, &settings.dataset, settings.version).await?;
        Ok(Arc::clone(&self.served(&version, settings).await?.schema))
    }
}

/// Opens the streams of one worker.
#[derive(Debug)]
pub struct Serving {
    pub(crate) reader: Arc<Reader>,
    dispatcher: Dispatcher,
    worker: WorkerName,
    metrics: Metrics,
}

impl Serving {
    pub fn new(reader: Arc<Reader>, dispatcher: Dispatcher, worker: WorkerName, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { reader, dispatcher, worker, metrics })
    }

    /// Opens a consumer's stream of a job that it joined. Dropping the stream frees what it holds and tells the dispatcher.
    ///
    /// # Errors
    /// What the dispatcher says of the job, the incarnation and the consumer; `BadInput` for columns that do not exist.
    pub async fn open_stream(self: &Arc<Self>, settings: Arc<JobSettings>, member: Member, acks: Acks) -> Result<Box<dyn JobStream>> {
        let version = self.reader.version(&self.dispatcher, &settings.dataset, settings.version).await?;
        let served = self.reader.served(&version, &settings).await?;
        let each = acks != Acks::AtEnd;
        let stream = self.dispatcher.open_stream(&member, &self.worker, each).await?;
        let of = report::StreamOf { member, stream };
        Ok(Box::new(stream::ServedStream::new(Arc::clone(self), settings, of, acks, served)))
    }
}
