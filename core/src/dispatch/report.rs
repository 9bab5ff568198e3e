//! The state as people and SQL see it.

use serde::{Deserialize, Serialize};

use super::event::{RunProgress, RunState, RunStatus};
use super::job_state::{Job, JobPhase};
use super::pass_state::Counts;
use super::run_state::{EpochPhase, RunPhase, TaskFailure};
use super::spans::{Mark, VisitState};
use super::state::State;
use super::volatile::{Life, Volatile};
use super::{entry::JobEnd, run_state::Run};
use crate::error::Error;
use crate::ids::{ConsumerName, DatasetName, EpochId, Incarnation, JobName, PassId, VersionId, WindowId, WorkerName};
use crate::job::JobSettings;

/// What happened to one batch: a row of `system.visits`, and of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisitRow {
    pub job: JobName,
    pub incarnation: Incarnation,
    pub pass: PassId,
    pub epoch: EpochId,
    pub batch: u64,
    /// The round or rank step; null in dynamic jobs.
    pub step: Option<u64>,
    pub consumer: Option<ConsumerName>,
    pub worker: Option<WorkerName>,
    pub state: VisitState,
    pub rows: u64,
    pub committed: bool,
    pub at_ms: i64,
    /// Why it was lost or dropped.
    pub reason: Option<String>,
    /// XXH3-64 of its row keys, where it was sent.
    pub digest: Option<u64>,
}

/// One task of a run that is not published yet, or one failed attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    pub dataset: DatasetName,
    pub epoch: EpochId,
    pub task: u32,
    /// `pending | running | staged | failed`
    pub state: &'static str,
    /// Of the running, staged or failed attempt.
    pub attempt: Option<u32>,
    pub worker: Option<WorkerName>,
    pub failures: u32,
    pub rows: Option<u64>,
    pub bytes: Option<u64>,
    pub quarantined: u64,
    pub error: Option<Error>,
    /// Of failed attempts.
    pub at_ms: Option<i64>,
}

/// One consumer that takes part now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerRow {
    pub job: JobName,
    pub incarnation: Incarnation,
    pub consumer: ConsumerName,
    pub rank: Option<u32>,
    pub pass: Option<PassId>,
    /// Open streams.
    pub streams: u64,
    /// Batches granted or sent and not final.
    pub held: u64,
    pub joined_ms: i64,
}

/// A job as `jobs show` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobInfo {
    pub job: JobName,
    pub dataset: DatasetName,
    /// `open | finished | stopped | failed | restoring`
    pub state: &'static str,
    /// Why it failed or ended early.
    pub error: Option<Error>,
    pub incarnation: Incarnation,
    /// The pass that is going on.
    pub pass: Option<PassId>,
    pub version: Option<VersionId>,
    /// Batches of the passes started so far.
    pub batches: u64,
    pub pending: u64,
    pub counts: Counts,
    pub consumers: Vec<ConsumerName>,
    pub settings: JobSettings,
    pub created_ms: i64,
    /// Ledger files that hold its closed visits, all incarnations.
    pub ledger: Vec<String>,
}

/// The status of a dataset's run, with what running attempts report; none if nothing was ever run.
pub fn run_status(state: &State, volatile: &Volatile, name: &DatasetName) -> Option<RunStatus> {
    let dataset = state.datasets.get(name)?;
    let run = dataset.run.as_ref()?;
    let (kind, error) = match &run.phase {
        RunPhase::Running => (RunState::Running, None),
        RunPhase::Interrupted => (RunState::Interrupted, None),
        RunPhase::Cancelled => (RunState::Cancelled, None),
        RunPhase::Failed(error) => (RunState::Failed, Some(error.clone())),
        RunPhase::Done => (RunState::Done, None),
    };
    Some(RunStatus {
        dataset: name.clone(),
        state: kind,
        epochs: run.epochs.keys().copied().collect(),
        published: run.published(),
        progress: progress(run, volatile, name),
        version: run
            .epochs
            .values()
            .filter_map(|e| if let EpochPhase::Published { version } = e.phase { Some(version) } else { None })
            .max(),
        error,
    })
}

fn progress(run: &Run, volatile: &Volatile, name: &DatasetName) -> RunProgress {
    let tasks = run.spec.task_bytes.len() as u64;
    let source: u64 = run.spec.task_bytes.iter().sum();
    let mut sum =
        RunProgress { tasks: tasks * run.epochs.len() as u64, source_bytes: source * run.epochs.len() as u64, ..RunProgress::default() };
    for epoch in run.epochs.values() {
        sum.tasks_done += epoch.staged;
        sum.rows += epoch.rows;
        sum.bytes += epoch.bytes;
        sum.source_bytes_done += epoch.source_bytes;
        sum.quarantined += epoch.quarantined;
    }
    let first = (name.clone(), EpochId(0), crate::ids::TaskId(0), crate::ids::Attempt(0));
    for ((dataset, epoch, task, _), (rows, bytes)) in volatile.progress.range(first..) {
        if dataset != name {
            break;
        }
        if run.task(*epoch, *task).is_some_and(|t| t.staged.is_none() && !t.holders.is_empty()) {
            sum.rows += rows;
            sum.bytes += bytes;
        }
    }
    sum
}

fn phase_name(phase: &JobPhase) -> (&'static str, Option<Error>) {
    match phase {
        JobPhase::Open | JobPhase::Ending => ("open", None),
        JobPhase::Ended { end, .. } => match end {
            JobEnd::Finished => ("finished", None),
            JobEnd::Restored => ("restoring", None),
            JobEnd::Stopped => ("stopped", None),
            JobEnd::Idle => ("stopped", Some(Error::failed_precondition("no consumer came within the idle timeout"))),
            JobEnd::Failed(error) => ("failed", Some(error.clone())),
        },
    }
}

/// A job by name.
pub fn job_info(state: &State, name: &JobName) -> Option<JobInfo> {
    let job = state.jobs.get(name)?;
    let counts = job.counts();
    let pending = job.passes.values().map(super::pass_state::Pass::pending).sum();
    let (phase, error) = phase_name(&job.phase);
    Some(JobInfo {
        job: name.clone(),
        dataset: job.settings.dataset.clone(),
        state: phase,
        error,
        incarnation: job.incarnation,
        pass: job.current(),
        version: job.current().and_then(|p| job.passes.get(&p)).and_then(|p| p.shape.version),
        batches: counts.total() + pending,
        pending,
        counts,
        consumers: job.consumers.keys().cloned().collect(),
        settings: job.settings.as_ref().clone(),
        created_ms: job.created_ms,
        ledger: job.ledger.clone(),
    })
}

/// All jobs that the journal knows.
pub fn jobs(state: &State) -> Vec<JobInfo> {
    state.jobs.keys().filter_map(|name| job_info(state, name)).collect()
}

/// Visits of a job, or of all, that are not in the ledger.
pub fn system_visits(state: &State, only: Option<&JobName>) -> Vec<VisitRow> {
    let jobs = state.jobs.iter().filter(|(name, _)| only.is_none_or(|o| o == *name));
    jobs.flat_map(|(name, job)| {
        job.passes.iter().flat_map(move |(pass, p)| p.windows.keys().flat_map(move |window| window_rows(name, job, *pass, *window)))
    })
    .collect()
}

/// One row for each batch of a window that is not pending, and not in the ledger already.
pub(super) fn window_rows(name: &JobName, job: &Job, pass_id: PassId, id: WindowId) -> Vec<VisitRow> {
    part_rows(name, job, pass_id, id, &[(0, u32::MAX)])
}

/// The same of some places of the window.
pub(super) fn part_rows(name: &JobName, job: &Job, pass_id: PassId, id: WindowId, parts: &[(u32, u32)]) -> Vec<VisitRow> {
    let Some(pass) = job.passes.get(&pass_id) else { return Vec::new() };
    let Some(window) = pass.windows.get(&id) else { return Vec::new() };
    let row = |span: &super::spans::Span, at: u32| {
        let stream = span.stream.and_then(|s| job.streams.get(&s));
        let batch = pass.batch(id, at);
        VisitRow {
            job: name.clone(),
            incarnation: job.incarnation,
            pass: pass_id,
            epoch: pass.shape.epoch,
            batch: batch.0,
            step: pass.map.as_ref().map(|map| map.step_of(batch.0)),
            consumer: stream.map(|s| s.consumer.clone()),
            worker: stream.map(|s| s.worker.clone()),
            state: span.state,
            rows: pass.batch_rows(batch, job.settings.batch_size),
            committed: span.mark == Mark::Committed,
            at_ms: span.at_ms,
            reason: span.reason.map(|r| r.as_str().to_owned()),
            digest: window.digest(at),
        }
    };
    // What an earlier incarnation's commit holds is among that one's visits.
    let ours = |span: &&super::spans::Span| !span.is_folded();
    let spans = |(from, to): &(u32, u32)| {
        let (from, to) = (*from, *to);
        let within = window.spans.within(from, to).filter(ours);
        within.flat_map(move |span| (span.from.max(from)..span.to.min(to)).map(move |at| row(span, at)))
    };
    parts.iter().flat_map(spans).collect()
}

/// Tasks of epochs that are not published, then the failures remembered.
pub fn system_tasks(state: &State, volatile: &Volatile) -> Vec<TaskRow> {
    let mut rows = Vec::new();
    for (name, dataset) in &state.datasets {
        for (epoch, epoch_run) in dataset.run.iter().flat_map(|r| &r.epochs) {
            for (task, index) in epoch_run.tasks.iter().zip(0u32..) {
                let holder = task.holders.first();
                let reported = holder.and_then(|(a, _)| volatile.progress.get(&(name.clone(), *epoch, crate::ids::TaskId(index), *a)));
                let staged = task.staged.as_ref();
                let stored =
                    staged.map(|s| (s.shards.iter().map(crate::shard::ShardMeta::rows).sum(), s.shards.iter().map(|x| x.size).sum()));
                let amount = stored.or(reported.copied());
                rows.push(TaskRow {
                    dataset: name.clone(),
                    epoch: *epoch,
                    task: index,
                    state: if staged.is_some() {
                        "staged"
                    } else if holder.is_some() {
                        "running"
                    } else {
                        "pending"
                    },
                    attempt: staged.map(|s| s.attempt.0).or(holder.map(|(a, _)| a.0)),
                    worker: holder.map(|(_, w)| w.clone()),
                    failures: task.failures,
                    rows: amount.map(|a| a.0),
                    bytes: amount.map(|a| a.1),
                    quarantined: staged.map_or(0, |s| s.quarantined.rows),
                    error: None,
                    at_ms: None,
                });
            }
        }
        rows.extend(dataset.failures.iter().map(|f| failure_row(name, f)));
    }
    rows
}

fn failure_row(name: &DatasetName, failure: &TaskFailure) -> TaskRow {
    TaskRow {
        dataset: name.clone(),
        epoch: failure.epoch,
        task: failure.task.0,
        state: "failed",
        attempt: Some(failure.attempt.0),
        worker: Some(failure.worker.clone()),
        failures: 1,
        rows: None,
        bytes: None,
        quarantined: 0,
        error: Some(failure.error.clone()),
        at_ms: Some(failure.at_ms),
    }
}

/// Consumers of all open jobs.
pub fn system_consumers(state: &State) -> Vec<ConsumerRow> {
    let of = |(name, job): (&JobName, &Job)| -> Vec<ConsumerRow> {
        job.consumers
            .iter()
            .map(|(consumer, c)| {
                let streams = job.streams.of_consumer(consumer).iter().filter_map(|id| job.streams.get(id));
                ConsumerRow {
                    job: name.clone(),
                    incarnation: job.incarnation,
                    consumer: consumer.clone(),
                    rank: c.rank,
                    pass: job.pass_at(c.at),
                    streams: streams.clone().filter(|s| s.open).count() as u64,
                    held: streams.map(|s| s.held).sum(),
                    joined_ms: c.joined_ms,
                }
            })
            .collect()
    };
    state.jobs.iter().flat_map(of).collect()
}

/// Workers that the consumers of a job may connect to: for a fixed map those that hold its open windows, and others up to the most it may use; for
/// a dynamic job all that are not leaving.
pub fn job_workers(state: &State, volatile: &Volatile, name: &JobName) -> Vec<WorkerName> {
    let Some(job) = state.jobs.get(name) else { return Vec::new() };
    let live = volatile.workers.keys().filter(|w| !volatile.is_draining(w));
    if !job.settings.is_fixed() {
        return live.cloned().collect();
    }
    let holders = job.passes.keys().flat_map(|pass| super::decide_fixed::holders(job, *pass));
    let mut chosen: Vec<WorkerName> = holders.filter(|w| !volatile.is_draining(w)).cloned().collect();
    chosen.sort_unstable();
    chosen.dedup();
    for worker in live {
        if chosen.len() < volatile.map_workers() && !chosen.contains(worker) {
            chosen.push(worker.clone());
        }
    }
    chosen
}

/// Workers known now: (name, in this process, draining).
pub fn system_workers(volatile: &Volatile) -> Vec<(WorkerName, bool, bool)> {
    volatile.workers.iter().map(|(name, w)| (name.clone(), w.life == Life::Attached, volatile.is_draining(name))).collect()
}
