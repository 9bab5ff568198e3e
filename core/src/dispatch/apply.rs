//! Folds entries into the state: the same function live and in replay. It never fails and never decides; an entry about something that is
//! not there changes nothing.

use std::sync::Arc;

use super::apply_jobs;
use super::entry::{Change, Entry, JobEnd};
use super::run_state::{
    Dataset, EarlierEpoch, EpochPhase, EpochRun, KEPT_FAILURES, Quarantined, Run, RunPhase, RunSpec, Staged, Task, TaskFailure,
};
use super::state::{RunId, State};
use crate::error::Error;
use crate::ids::{Attempt, DatasetName, EpochId, TaskId, VersionId, WorkerName};
use crate::shard::ShardMeta;

/// Folds one entry into the state. An entry of an older fence than the state's changes nothing (I4).
pub fn apply(state: &mut State, entry: &Entry) {
    if entry.fence < state.fence {
        return;
    }
    state.fence = entry.fence;
    let at_ms = entry.at_ms;
    match &entry.change {
        Change::Lead { address } => state.leader.clone_from(address),
        Change::RunStarted { dataset, run, spec, epochs, replace } => run_started(state, dataset, *run, spec, epochs, *replace, at_ms),
        Change::RunExtended { dataset, run, epochs } => with_run(state, dataset, *run, |run, next| extend(run, epochs, next)),
        Change::RunResumed { dataset, run, epochs } => with_run(state, dataset, *run, |run, next| run_resumed(run, epochs, next)),
        Change::RunInterrupted { dataset, run } => with_run(state, dataset, *run, |run, _| end_run(run, RunPhase::Interrupted)),
        Change::RunCancelled { dataset, run } => with_run(state, dataset, *run, |run, _| end_run(run, RunPhase::Cancelled)),
        Change::RunFailed { dataset, run, error } => with_run(state, dataset, *run, |run, _| end_run(run, RunPhase::Failed(error.clone()))),
        Change::TaskLeased { dataset, run, epoch, task, attempt, worker } => {
            task_leased(state, dataset, *run, *epoch, *task, *attempt, worker)
        }
        Change::TaskReturned { dataset, run, epoch, task, attempt, error } => {
            task_returned(state, dataset, *run, *epoch, *task, *attempt, error.as_ref(), at_ms);
        }
        Change::TaskStaged { dataset, run, epoch, task, attempt, shards, quarantined } => {
            with_run(state, dataset, *run, |run, _| task_staged(run, *epoch, *task, *attempt, shards, quarantined));
        }
        Change::Publishing { dataset, run, epoch, version, body } => with_run(state, dataset, *run, |run, _| {
            if let Some(epoch) = run.epochs.get_mut(epoch).filter(|e| !e.is_published()) {
                epoch.phase = EpochPhase::Publishing { version: *version, body: body.clone() };
            }
        }),
        Change::Published { dataset, run, epoch, version } => published(state, dataset, *run, *epoch, *version),
        Change::DatasetDropped { dataset } => dataset_dropped(state, dataset, at_ms),
        _ => apply_jobs::apply(state, &entry.change, at_ms),
    }
}

/// `f` gets the run and the dataset's first attempt number that no run has used.
fn with_run(state: &mut State, dataset: &DatasetName, id: RunId, f: impl FnOnce(&mut Run, u32)) {
    if let Some(dataset) = state.datasets.get_mut(dataset) {
        let next = dataset.next_attempt;
        if let Some(run) = dataset.run.as_mut().filter(|r| r.id == id) {
            f(run, next);
        }
    }
}

fn run_started(state: &mut State, name: &DatasetName, id: RunId, spec: &RunSpec, epochs: &[EpochId], replace: bool, at_ms: i64) {
    let dataset = state.datasets.entry(name.clone()).or_default();
    remember_published(dataset);
    let tasks = spec.task_bytes.len();
    let epochs = epochs.iter().map(|e| (*e, EpochRun::new(tasks, dataset.next_attempt))).collect();
    let spec = Arc::new(spec.clone());
    dataset.run = Some(Run { id, spec, replace, phase: RunPhase::Running, started_ms: at_ms, epochs });
    state.next_run = state.next_run.max(RunId(id.0 + 1));
}

/// The run is about to be forgotten; what it published is not.
fn remember_published(dataset: &mut Dataset) {
    let Some(run) = &dataset.run else { return };
    for (epoch, written) in &run.epochs {
        if let EpochPhase::Published { version } = written.phase {
            dataset.earlier.insert(*epoch, EarlierEpoch { run: run.id, version, rows: written.rows });
        }
    }
}

fn extend(run: &mut Run, epochs: &[EpochId], next_attempt: u32) {
    let tasks = run.spec.task_bytes.len();
    for epoch in epochs {
        run.epochs.entry(*epoch).or_insert_with(|| EpochRun::new(tasks, next_attempt));
    }
}

fn run_resumed(run: &mut Run, epochs: &[EpochId], next_attempt: u32) {
    extend(run, epochs, next_attempt);
    run.phase = RunPhase::Running;
    release(run, true);
}

fn end_run(run: &mut Run, phase: RunPhase) {
    run.phase = phase;
    release(run, false);
}

/// Takes all leases back.
fn release(run: &mut Run, forgive: bool) {
    for epoch in run.epochs.values_mut() {
        for task in &mut epoch.tasks {
            task.holders.clear();
            if forgive {
                task.failures = 0;
            }
        }
        epoch.first_pending = 0;
        epoch.advance();
    }
}

fn task_mut(run: &mut Run, epoch: EpochId, task: TaskId) -> Option<&mut Task> {
    run.epochs.get_mut(&epoch)?.tasks.get_mut(task.0 as usize)
}

fn task_leased(state: &mut State, name: &DatasetName, run: RunId, epoch: EpochId, task: TaskId, attempt: Attempt, worker: &WorkerName) {
    with_run(state, name, run, |run, _| {
        if let Some(task) = task_mut(run, epoch, task) {
            task.next_attempt = task.next_attempt.max(attempt.0 + 1);
            task.holders.push((attempt, worker.clone()));
        }
        if let Some(epoch) = run.epochs.get_mut(&epoch) {
            epoch.advance();
        }
    });
    if let Some(dataset) = state.datasets.get_mut(name) {
        dataset.next_attempt = dataset.next_attempt.max(attempt.0 + 1);
    }
}

#[allow(clippy::too_many_arguments)]
fn task_returned(
    state: &mut State,
    name: &DatasetName,
    run_id: RunId,
    epoch: EpochId,
    task_id: TaskId,
    attempt: Attempt,
    error: Option<&Error>,
    at_ms: i64,
) {
    let Some(dataset) = state.datasets.get_mut(name) else { return };
    let Some(run) = dataset.run.as_mut().filter(|r| r.id == run_id) else { return };
    let Some(task) = task_mut(run, epoch, task_id) else { return };
    let Some(index) = task.holders.iter().position(|(a, _)| *a == attempt) else { return };
    let (_, worker) = task.holders.remove(index);
    let failures = task.failures + u32::from(error.is_some());
    task.failures = failures;
    if let Some(epoch) = run.epochs.get_mut(&epoch) {
        epoch.first_pending = epoch.first_pending.min(task_id.0 as usize);
    }
    if let Some(error) = error {
        if dataset.failures.len() >= KEPT_FAILURES {
            dataset.failures.pop_front();
        }
        dataset.failures.push_back(TaskFailure { run: run_id, epoch, task: task_id, attempt, worker, error: error.clone(), at_ms });
    }
}

fn task_staged(run: &mut Run, epoch: EpochId, task: TaskId, attempt: Attempt, shards: &[ShardMeta], quarantined: &Quarantined) {
    let source_bytes = run.spec.task_bytes.get(task.0 as usize).copied().unwrap_or_default();
    let Some(epoch) = run.epochs.get_mut(&epoch) else { return };
    let Some(slot) = epoch.tasks.get_mut(task.0 as usize).filter(|t| t.staged.is_none()) else { return };
    let staging = epoch.staged;
    let shards = shards.iter().map(|s| ShardMeta { staging: Some(staging), ..s.clone() }).collect::<Vec<_>>();
    epoch.staged += 1;
    epoch.rows += shards.iter().map(ShardMeta::rows).sum::<u64>();
    epoch.bytes += shards.iter().map(|s| s.size).sum::<u64>();
    epoch.source_bytes += source_bytes;
    epoch.quarantined += quarantined.rows;
    slot.holders.clear();
    slot.staged = Some(Staged { attempt, staging, shards, quarantined: quarantined.clone() });
}

fn published(state: &mut State, name: &DatasetName, run: RunId, epoch: EpochId, version: VersionId) {
    let Some(dataset) = state.datasets.get_mut(name) else { return };
    dataset.version = Some(version);
    let Some(run) = dataset.run.as_mut().filter(|r| r.id == run) else { return };
    if let Some(epoch) = run.epochs.get_mut(&epoch) {
        epoch.phase = EpochPhase::Published { version };
        epoch.tasks = Vec::new();
    }
    // An interrupted run whose last commit is finished by a new leader is done too.
    if run.epochs.values().all(EpochRun::is_published) {
        run.phase = RunPhase::Done;
    }
}

fn dataset_dropped(state: &mut State, name: &DatasetName, at_ms: i64) {
    if let Some(dataset) = state.datasets.get_mut(name) {
        // The attempt counter stays: a dataset made again under this name must not meet leftovers of the old one.
        *dataset = Dataset { next_attempt: dataset.next_attempt, ..Dataset::default() };
    }
    let error = Error::not_found(format!("dataset `{name}` was dropped while the job was reading it"));
    for job in state.jobs.values_mut().filter(|j| j.settings.dataset == *name) {
        apply_jobs::end_job(job, &JobEnd::Failed(error.clone()), at_ms);
    }
}
