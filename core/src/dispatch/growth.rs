//! Passes over an epoch that is still being written: how far they have come, and what their workers may read.
//!
//! A window of such a pass is open to grants when no later task can change it, and stays what it was for ever (see [`Plan::staged`]). How far a pass
//! has grown is journaled with the pass: what the run knew of its tasks is forgotten when the epoch is published.
//!
//! [`Plan::staged`]: crate::plan::Plan::staged

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::decide::Deciding;
use super::decide_jobs;
use super::entry::Change;
use super::job_state::{Job, JobPhase};
use super::pass_state::PassShape;
use super::run_state::{Dataset, EpochPhase, EpochRun, Run, RunPhase, Staged};
use super::state::{RunId, State};
use super::volatile::Work;
use crate::error::{Error, Result};
use crate::ids::{DatasetName, EpochId, JobName, PassId, VersionId};
use crate::job::{JobSettings, Order};
use crate::plan::{self, PlanRowGroup};
use crate::shard::ShardMeta;

/// Row groups that one answer to a worker lists, about: far below the limit of a message.
const PAGE: usize = 4_096;

/// How far the epoch of a pass has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Who writes the epoch: another run would stage its tasks in another order.
    pub run: RunId,
    /// Tasks with a lower staging number are taken up.
    pub next: u64,
    pub blocks: plan::Blocks,
}

/// Shards of an epoch in staging order, for a worker that reads them before they are published, or after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedShards {
    /// Whole tasks, in (staging number, part) order; without statistics and text indexes, which reading does not need.
    pub shards: Vec<ShardMeta>,
    /// The staging number to ask from next.
    pub next: u64,
    /// There are more already.
    pub more: bool,
    /// The epoch is published: its shards are there, and not here.
    pub version: Option<VersionId>,
}

/// Staged tasks in staging order, from a staging number on.
fn tasks_from(epoch: &EpochRun, from: u64) -> Vec<&Staged> {
    let mut tasks: Vec<_> = epoch.tasks.iter().filter_map(|t| t.staged.as_ref()).filter(|s| s.staging >= from).collect();
    tasks.sort_unstable_by_key(|s| s.staging);
    tasks
}

fn groups(task: &Staged) -> Vec<PlanRowGroup> {
    task.shards.iter().flat_map(|s| &s.row_groups).map(|g| PlanRowGroup { rows: g.rows, bytes: g.bytes }).collect()
}

/// The shape with which a pass over an epoch begins that is being written; none as long as no row of it is staged.
pub(super) fn begin(settings: &JobSettings, pass: PassId, dataset: &Dataset, epoch: EpochId) -> Result<Option<PassShape>> {
    let Some(run) = dataset.run.as_ref() else { return Ok(None) };
    let Some(written) = run.epochs.get(&epoch).filter(|e| is_alive(run, e)) else { return Ok(None) };
    let tasks = tasks_from(written, 0);
    let Some(first) = tasks.iter().map(|task| groups(task)).find(|groups| groups.iter().any(|g| g.rows > 0)) else { return Ok(None) };
    let window_rows = plan::staged_window_rows(&first, &settings.plan(pass))?;
    let shape = PassShape {
        version: None,
        epoch,
        rows: 0,
        window_rows,
        batches_per_window: window_rows / settings.batch_size.max(1),
        selection: None,
        growth: Some(Growth { run: run.id, next: 0, blocks: plan::Blocks::default() }),
    };
    advance(&shape, written).map(Some)
}

/// Whether the epoch will be published, as far as anybody knows: a commit that is written down is finished whatever became of its run.
fn is_alive(run: &Run, epoch: &EpochRun) -> bool {
    run.is_running() || matches!(epoch.phase, EpochPhase::Publishing { .. })
}

/// Takes up what was staged since.
fn advance(shape: &PassShape, epoch: &EpochRun) -> Result<PassShape> {
    let mut shape = shape.clone();
    let Some(growth) = shape.growth.as_mut().filter(|growth| growth.next < epoch.staged) else { return Ok(shape) };
    for task in tasks_from(epoch, growth.next) {
        for group in task.shards.iter().flat_map(|s| &s.row_groups) {
            growth.blocks.push(group.rows, shape.window_rows)?;
        }
        growth.next = task.staging + 1;
    }
    shape.rows = growth.blocks.whole_windows(shape.window_rows);
    Ok(shape)
}

/// What a pass looks like now; the error is why there will be no more of its epoch.
fn look(shape: &PassShape, growth: &Growth, dataset: Option<&Dataset>, name: &DatasetName) -> Result<PassShape> {
    let published = |rows: u64, version: VersionId| PassShape { version: Some(version), rows, growth: None, ..shape.clone() };
    let epoch = shape.epoch;
    let run = dataset.and_then(|d| d.run.as_ref()).filter(|r| r.id == growth.run);
    let Some((run, written)) = run.and_then(|r| Some((r, r.epochs.get(&epoch)?))) else {
        // Another run has begun since; what this one published is known.
        let earlier = dataset.and_then(|d| d.earlier.get(&epoch)).filter(|e| e.run == growth.run);
        return earlier.map(|e| published(e.rows, e.version)).ok_or_else(|| {
            Error::failed_precondition(format!("epoch {epoch} of `{name}` was not finished by the run that the job followed"))
                .with_remedy("restart the job")
        });
    };
    if let EpochPhase::Published { version } = written.phase {
        return Ok(published(written.rows, version));
    }
    if is_alive(run, written) {
        return advance(shape, written);
    }
    let what = format!("epoch {epoch} of `{name}` was not published");
    let resume = "go on with `forebay materialize --resume`, then restart the job";
    Err(match &run.phase {
        RunPhase::Failed(error) => error.clone().context(what),
        RunPhase::Cancelled => Error::failed_precondition(format!("{what}: its run was stopped")).with_remedy(resume),
        _ => Error::failed_precondition(format!("{what}: its run was interrupted")).with_remedy(resume),
    })
}

/// Lets the passes of a job grow with their epochs. Returns whether that makes the rest of what is due out of date.
///
/// Tasks that open no window are journaled as taken up too: a job that is looked at often looks at each of them once.
pub(super) fn due_growth(d: &mut Deciding<'_>, name: &JobName, job: &Job) -> bool {
    if job.phase != JobPhase::Open || job.settings.order != Order::Staged {
        return false;
    }
    let dataset = d.state.datasets.get(&job.settings.dataset);
    let mut changed = false;
    for (id, pass) in &job.passes {
        let Some(growth) = pass.shape.growth.as_ref().filter(|_| !pass.ended) else { continue };
        match look(&pass.shape, growth, dataset, &job.settings.dataset) {
            Ok(shape) if shape == pass.shape => {}
            Ok(shape) => {
                changed |= shape.rows > pass.shape.rows || shape.growth.is_none();
                d.push(Change::PassGrown { job: name.clone(), pass: *id, shape });
            }
            Err(error) => {
                decide_jobs::fail(d, name.clone(), error.context(format!("pass {id}")));
                return true;
            }
        }
    }
    if changed {
        d.job_changed(name);
    }
    changed
}

/// Something happened to datasets that are being written: jobs that follow them are looked at now, and so are those that wait for an epoch, where that
/// may be there or will never be.
pub(super) fn followers(d: &mut Deciding<'_>, datasets: &BTreeSet<DatasetName>) -> Vec<JobName> {
    let mut jobs = Vec::new();
    for (name, job) in &d.state.jobs {
        if job.phase != JobPhase::Open || !datasets.contains(&job.settings.dataset) {
            continue;
        }
        if d.volatile.waiting_for_epoch.contains(name) && is_worth_a_look(d, job) {
            d.volatile.retry_at.remove(&Work::Shape(name.clone()));
            jobs.push(name.clone());
        } else if job.settings.order == Order::Staged {
            jobs.push(name.clone());
        }
    }
    jobs
}

fn is_worth_a_look(d: &Deciding<'_>, job: &Job) -> bool {
    let run = d.state.datasets.get(&job.settings.dataset).and_then(|k| k.run.as_ref()).filter(|r| r.is_running());
    let epoch = job.pass_at(job.started).and_then(|pass| job.epoch_of(pass));
    let written = run.zip(epoch).and_then(|(run, epoch)| run.epochs.get(&epoch));
    job.settings.order == Order::Staged || written.is_none_or(EpochRun::is_published)
}

/// Shards that a run staged of an epoch, from a staging number on.
///
/// # Errors
/// `FailedPrecondition` when the run is over and did not publish the epoch.
pub fn staged_shards(state: &State, name: &DatasetName, run: RunId, epoch: EpochId, from: u64) -> Result<StagedShards> {
    let dataset = state.datasets.get(name);
    let published = |version| StagedShards { shards: Vec::new(), next: from, more: false, version: Some(version) };
    let written = dataset.and_then(|d| d.run.as_ref()).filter(|r| r.id == run).and_then(|r| r.epochs.get(&epoch));
    let Some(written) = written else {
        let earlier = dataset.and_then(|d| d.earlier.get(&epoch)).filter(|e| e.run == run);
        return earlier.map(|e| published(e.version)).ok_or_else(|| {
            Error::failed_precondition(format!("epoch {epoch} of `{name}` is not written by the run {run} any more"))
                .with_remedy("restart the job")
        });
    };
    if let EpochPhase::Published { version } = written.phase {
        return Ok(published(version));
    }
    let (mut answer, mut listed) = (StagedShards { shards: Vec::new(), next: from, more: false, version: None }, 0);
    for task in tasks_from(written, from) {
        if listed >= PAGE {
            answer.more = true;
            break;
        }
        listed += task.shards.iter().map(|s| s.row_groups.len()).sum::<usize>();
        answer.shards.extend(task.shards.iter().map(|s| ShardMeta { stats: None, index: None, ..s.clone() }));
        answer.next = task.staging + 1;
    }
    Ok(answer)
}
