//! One task: a source chunk goes through the steps up to the cut and becomes shards.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_core::ids::{EpochId, TaskId};
use forebay_core::pipeline::{OnError, SplitBy};
use forebay_core::shard::ShardMeta;
use forebay_core::source::{BadRow, SourceSnapshot};
use forebay_core::split::StratifyFit;
use forebay_core::{Error, Kind, Result};
use forebay_sql::python::PythonPool;
use forebay_sql::steps::CompiledSteps;
use forebay_sql::text::build::{BuildRequest, MEMORY_BUDGET};
use forebay_storage::artifact::{self, Of};
use forebay_storage::root::Root;
use forebay_storage::shard::ShardWriter;
use forebay_storage::source::{read_task, source_schema, under_root};
use forebay_storage::types::to_stored;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::Worker;
use super::split::{Fitting, Splitter, with_split};
use crate::crash;
use crate::dispatcher::{Quarantined, RunSpec, TaskLease};

/// Runs whose compiled steps are kept: a process works on few pipelines at a time.
const KEPT: usize = 8;
/// Bad rows of one task whose messages are kept; the rest is counted.
const KEPT_BAD_ROWS: usize = 100_000;

/// A run as its tasks need it: compiled once, shared by all tasks of the process.
#[derive(Debug)]
pub(crate) struct PreparedRun {
    pub(crate) spec: Arc<RunSpec>,
    snapshot: Arc<SourceSnapshot>,
    steps: CompiledSteps,
    splitter: Option<Splitter>,
    /// Schema of the stored rows.
    pub(crate) schema: SchemaRef,
}

/// A run that is compiled by whoever asks for it first.
type Cell = Arc<OnceCell<Arc<PreparedRun>>>;

/// Prepared runs by fingerprint.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    kept: Mutex<VecDeque<(String, Cell)>>,
}

impl Runs {
    /// The run of a spec, compiled when it is first asked for.
    pub(crate) async fn get(&self, root: &Root, python: &PythonPool, spec: &Arc<RunSpec>) -> Result<Arc<PreparedRun>> {
        let cell = {
            let mut kept = self.kept.lock();
            match kept.iter().find(|(fingerprint, _)| *fingerprint == spec.fingerprint) {
                Some((_, cell)) => cell.clone(),
                None => {
                    let cell = Cell::default();
                    kept.push_back((spec.fingerprint.clone(), cell.clone()));
                    if kept.len() > KEPT {
                        kept.pop_front();
                    }
                    cell
                }
            }
        };
        cell.get_or_try_init(|| async { PreparedRun::load(root, python, spec.clone()).await.map(Arc::new) }).await.cloned()
    }
}

/// Where the fit of a stratified split is kept.
pub(crate) fn split_name(fingerprint: &str) -> String {
    format!("splits/{fingerprint}.json")
}

impl PreparedRun {
    async fn load(root: &Root, python: &PythonPool, spec: Arc<RunSpec>) -> Result<Self> {
        let of = Of::Dataset(&spec.dataset);
        let missing = |name: &str| Error::corrupt(format!("`{name}` of dataset `{}` is missing", spec.dataset));
        let snapshot: SourceSnapshot = artifact::get_json(root, of, &spec.snapshot).await?.ok_or_else(|| missing(&spec.snapshot))?;
        let pipeline = &spec.pipeline;
        let snapshot = under_root(snapshot, pipeline.source.format, &root.table_url(&spec.dataset));
        let input = source_schema(&pipeline.source, &snapshot).await?;
        let steps = CompiledSteps::compile(&pipeline.steps, input, &spec.code, Some(python)).await?;
        let stored = steps.output_schema(pipeline.output.cut);
        let splitter = match &pipeline.split {
            None => None,
            Some(split) => {
                let fit: Option<StratifyFit> = match split.by {
                    SplitBy::Stratify { .. } => {
                        let name = split_name(&spec.fingerprint);
                        Some(artifact::get_json(root, of, &name).await?.ok_or_else(|| missing(&name))?)
                    }
                    _ => None,
                };
                Some(Splitter::new(split, pipeline.epochs.seed, fit.map(Arc::new))?)
            }
        };
        let schema = if splitter.is_some() { with_split(&stored) } else { stored };
        Ok(Self { snapshot: Arc::new(snapshot), steps, splitter, schema, spec })
    }
}

/// What became of one task.
struct Output {
    shards: Vec<ShardMeta>,
    bad: Vec<BadRow>,
    bad_count: u64,
}

impl Worker {
    /// Runs a task to its end and reports it. Never fails: what goes wrong is the task's failure.
    pub(super) async fn run_task(self, lease: TaskLease, stop: CancellationToken) {
        let outcome = tokio::select! {
            outcome = self.attempt(&lease) => outcome,
            () = stop.cancelled() => Err(Error::new(Kind::Cancelled, "the worker is stopping")),
        };
        let reported = match outcome {
            Ok((shards, quarantined)) => {
                crash::point("after-shards");
                self.metrics.rows_materialized.inc_by(shards.iter().map(ShardMeta::rows).sum());
                self.metrics.bytes_materialized.inc_by(shards.iter().map(|s| s.size).sum());
                self.metrics.rows_quarantined.inc_by(quarantined.rows);
                self.metrics.tasks_finished.inc();
                self.dispatcher.task_staged(&lease, shards, quarantined).await
            }
            Err(error) => {
                if error.kind != Kind::Cancelled {
                    self.metrics.tasks_failed.inc();
                    tracing::warn!(dataset = %lease.dataset, epoch = %lease.epoch, task = %lease.task, attempt = %lease.attempt, %error, "task failed");
                }
                self.dispatcher.task_failed(&lease, error).await
            }
        };
        if let Err(error) = reported {
            tracing::warn!(dataset = %lease.dataset, task = %lease.task, %error, "a task's end could not be reported");
        }
    }

    async fn attempt(&self, lease: &TaskLease) -> Result<(Vec<ShardMeta>, Quarantined)> {
        let run = self.runs.get(&self.root, &self.python, &lease.spec).await?;
        let output = &run.spec.pipeline.output;
        let writer = ShardWriter::new(&self.root, &lease.dataset, lease.epoch, lease.task, lease.attempt, run.schema.clone(), output)?;
        let mut done = self.write(&run, lease, writer).await?;
        self.index(&run, lease, &mut done.shards).await?;
        let path = artifact::put_quarantine(&self.root, &lease.dataset, lease.epoch, lease.task, lease.attempt, &done.bad).await?;
        Ok((done.shards, Quarantined { rows: done.bad_count, path }))
    }

    /// Builds the text indexes of a task's shards. Nothing names them before the task is staged, and no reader sees them before the epoch.
    async fn index(&self, run: &PreparedRun, lease: &TaskLease, shards: &mut [ShardMeta]) -> Result<()> {
        // Of the lease, not of the prepared run: the index is not in the fingerprint by which those are shared.
        let columns = lease.spec.pipeline.index.columns();
        if columns.is_empty() || shards.is_empty() {
            return Ok(());
        }
        let stored = to_stored(&run.schema)?;
        let (root, name) = (&self.root, &lease.dataset);
        let request = BuildRequest { root, name, stored: &stored, columns: &columns, memory: MEMORY_BUDGET, variant: "" };
        let (rows, bytes) = (shards.iter().map(ShardMeta::rows).sum(), shards.iter().map(|s| s.size).sum());
        for shard in shards {
            if !self.dispatcher.report_progress(lease, rows, bytes).await {
                return Err(Error::new(Kind::Cancelled, "the run is over"));
            }
            shard.index = Some(request.shard(shard, || true).await.map_err(|e| e.context("index.text"))?);
        }
        Ok(())
    }

    async fn write(&self, run: &PreparedRun, lease: &TaskLease, mut writer: ShardWriter) -> Result<Output> {
        let on_error = run.spec.pipeline.output.on_error;
        let (mut bad, mut bad_count, mut rows_done) = (Vec::new(), 0, 0);
        let mut rows = run.rows(lease.epoch, lease.task)?;
        while let Some(next) = rows.next().await {
            let outcome = async {
                let (batch, found) = next?;
                if let (OnError::Fail, Some(first)) = (on_error, found.first()) {
                    return Err(bad_row(&lease.dataset.0, first));
                }
                bad_count += found.len() as u64;
                if let OnError::Quarantine { max_errors } = on_error
                    && bad_count > max_errors
                {
                    return Err(Error::bad_input(format!("more than {max_errors} bad rows, the last: {}", describe(found.last())))
                        .with_remedy("mend the rows, or raise output.on_error's max_errors"));
                }
                let room = KEPT_BAD_ROWS.saturating_sub(bad.len());
                bad.extend(found.into_iter().take(room));
                rows_done += batch.num_rows() as u64;
                writer.write(&batch).await?;
                if !self.dispatcher.report_progress(lease, rows_done, writer.bytes_written()).await {
                    return Err(Error::new(Kind::Cancelled, "the run is over"));
                }
                Ok(())
            };
            if let Err(error) = outcome.await {
                writer.abort().await;
                return Err(error);
            }
        }
        Ok(Output { shards: writer.finish().await?, bad, bad_count })
    }
}

/// Rows of a task as they are stored, with those that could not be read or computed.
type StoredRows<'a> = futures::stream::BoxStream<'a, Result<(RecordBatch, Vec<BadRow>)>>;

impl PreparedRun {
    fn rows(&self, epoch: EpochId, task: TaskId) -> Result<StoredRows<'_>> {
        let pipeline = &self.spec.pipeline;
        let spec = self
            .snapshot
            .tasks
            .get(task.0 as usize)
            .ok_or_else(|| Error::internal(format!("task {task} is not one of the source's {}", self.snapshot.tasks.len())))?;
        let source = read_task(&pipeline.source, self.snapshot.clone(), spec);
        let max_bad = match pipeline.output.on_error {
            OnError::Fail => 0,
            OnError::Quarantine { max_errors } => usize::try_from(max_errors).unwrap_or(usize::MAX),
        };
        Ok(source
            .then(move |next| async move {
                let read = next?;
                let mut bad = read.bad;
                let out = self.steps.run_until(0..pipeline.output.cut, pipeline.epochs.seed, epoch.0, read.batch, max_bad).await?;
                bad.extend(out.bad);
                let batch = match &self.splitter {
                    Some(splitter) => splitter.apply(&out.batch)?,
                    None => out.batch,
                };
                Ok((batch, bad))
            })
            .boxed())
    }
}

fn describe(row: Option<&BadRow>) -> String {
    row.map_or_else(String::new, |r| format!("`_id` {} of {}: {}", r.id, r.source, r.message))
}

fn bad_row(dataset: &str, row: &BadRow) -> Error {
    Error::bad_input(format!("dataset `{dataset}`: row {}", describe(Some(row))))
        .with_remedy("mend the row, or set output.on_error = \"quarantine\" with max_errors to keep going without it")
}

/// Fits a stratified split over all rows of the source, before the first task: thresholds on the rows' hashes, exact within each label.
/// Costs one pass through the steps up to the cut.
pub(crate) async fn fit_split(root: &Root, python: &PythonPool, spec: &Arc<RunSpec>) -> Result<()> {
    let Some(split) = &spec.pipeline.split else { return Ok(()) };
    let SplitBy::Stratify { column } = &split.by else { return Ok(()) };
    let (of, name) = (Of::Dataset(&spec.dataset), split_name(&spec.fingerprint));
    if artifact::get_bytes(root, of, &name).await?.is_some() {
        return Ok(());
    }
    // The rows are needed without the split that is being fitted.
    let mut unsplit = RunSpec::clone(spec);
    unsplit.pipeline.split = None;
    let run = PreparedRun::load(root, python, Arc::new(unsplit)).await?;
    let (seed, mut fitting) = (spec.pipeline.epochs.seed, Fitting::default());
    for task in 0..run.snapshot.tasks.len() {
        let mut rows = run.rows(EpochId(0), TaskId(u32::try_from(task).unwrap_or(u32::MAX)))?;
        while let Some(next) = rows.next().await {
            let (batch, bad) = next?;
            if let (OnError::Fail, Some(first)) = (spec.pipeline.output.on_error, bad.first()) {
                return Err(bad_row(&spec.dataset.0, first));
            }
            fitting.add(&batch, column, seed)?;
        }
    }
    artifact::put_json(root, of, &name, &fitting.finish(split)).await
}
