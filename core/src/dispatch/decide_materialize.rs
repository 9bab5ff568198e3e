//! Runs: who may start one, which task goes to whom, whose result counts, and publication.

use std::collections::BTreeSet;

use super::decide::{Deciding, is_transient};
use super::entry::Change;
use super::event::{Action, CommitOutcome, Reply, RunProgress, RunRequest, RunState, RunStatus, StoredDataset, TaskLease};
use super::run_state::{EpochPhase, Quarantined, Run, RunPhase, RunSpec, Task};
use super::state::RunId;
use super::volatile::Work;
use crate::error::{Error, Kind, Result};
use crate::ids::{DatasetName, EpochId, VersionId, WorkerName};
use crate::pipeline::{self, OnError, PipelineSpec};
use crate::shard::ShardMeta;

/// Failures of one task that are tried again; the next one fails the run.
pub(super) const RETRIES: u32 = 3;
/// How the parts begin that say which version of a dataset a query reads, as `v3 TABLE`.
pub const INPUT_PART: &str = "dataset ";
/// Failures in a row of preparing or putting a commit after which the run is reported as failed.
const COMMIT_TRIES: u32 = 8;

pub(super) fn start_run(d: &mut Deciding<'_>, request: RunRequest, stored: Option<&StoredDataset>, certain: bool) -> Result<()> {
    let name = &request.spec.dataset;
    if request.epochs.is_empty() {
        return Err(Error::bad_input(format!("no epoch of `{name}` is asked for")).with_remedy("give a range such as --epochs 0..3"));
    }
    let known = d.state.datasets.get(name);
    if !certain && known.and_then(|k| k.version) > stored.map(|s| s.version) {
        d.reply(Reply::Again);
        return Ok(());
    }
    let run = known.and_then(|k| k.run.as_ref());
    let same = run.filter(|r| r.spec.fingerprint == request.spec.fingerprint);
    if let Some(run) = run.filter(|r| r.is_running()) {
        if same.is_none() {
            return Err(busy(name, &run.spec, &request.spec));
        }
        return join_run(d, run, &request, stored);
    }
    if run.is_some_and(|r| r.publishing().is_some()) {
        // The leader is finishing a commit that its predecessor wrote down: what is stored is about to change.
        d.reply(Reply::Again);
        return Ok(());
    }
    let mut replace = false;
    let mut missing = request.epochs.clone();
    if let Some(stored) = stored {
        if stored.fingerprint == request.spec.fingerprint {
            missing.retain(|e| !stored.epochs.contains(e));
        } else if request.replace || (request.resume && same.is_some_and(|r| r.replace)) {
            replace = true;
        } else {
            return Err(changed(stored, &request.spec));
        }
    }
    if missing.is_empty() {
        d.reply(Reply::Run(Box::new(already(name, &request, stored))));
        return Ok(());
    }
    let (dataset, epochs) = (name.clone(), missing);
    match same.filter(|r| request.resume && r.phase != RunPhase::Done) {
        Some(run) => d.push(Change::RunResumed { dataset: dataset.clone(), run: run.id, epochs }),
        None => {
            let run = d.state.next_run;
            d.push(Change::RunStarted { dataset: dataset.clone(), run, spec: Box::new(request.spec), epochs, replace });
        }
    }
    accepted(d, &dataset);
    Ok(())
}

fn accepted(d: &mut Deciding<'_>, dataset: &DatasetName) {
    d.volatile.retry_at.remove(&Work::Prepare(dataset.clone()));
    d.dataset_changed(dataset);
    d.act(Action::TasksChanged);
    d.reply(Reply::Accepted);
}

/// The same pipeline is being materialized: a repeated command waits with the first, further epochs are added to the run.
fn join_run(d: &mut Deciding<'_>, run: &Run, request: &RunRequest, stored: Option<&StoredDataset>) -> Result<()> {
    let there = stored.filter(|s| s.fingerprint == request.spec.fingerprint).map_or(&[][..], |s| &s.epochs);
    let epochs: Vec<_> = request.epochs.iter().copied().filter(|e| !run.epochs.contains_key(e) && !there.contains(e)).collect();
    let dataset = request.spec.dataset.clone();
    if !epochs.is_empty() {
        d.push(Change::RunExtended { dataset: dataset.clone(), run: run.id, epochs });
    }
    accepted(d, &dataset);
    Ok(())
}

fn busy(name: &DatasetName, old: &RunSpec, new: &RunSpec) -> Error {
    let difference = lines(&pipeline::difference(&old.pipeline, &new.pipeline), &old.parts, &new.parts);
    Error::failed_precondition(format!("`{name}` is being materialized from another version of this pipeline: {difference}"))
        .with_remedy("wait until it is done, or stop it, and try again")
}

fn changed(stored: &StoredDataset, new: &RunSpec) -> Error {
    refuse_changed(stored.pipeline.as_ref(), &stored.parts, &new.pipeline, &new.parts)
}

/// The refusal of a pipeline that its dataset was not made by, for those who can tell before a run is asked for.
pub fn refuse_changed(stored: Option<&PipelineSpec>, stored_parts: &Parts, new: &PipelineSpec, parts: &Parts) -> Error {
    let spec = stored.map(|old| pipeline::difference(old, new)).unwrap_or_default();
    let difference = lines(&spec, stored_parts, parts);
    Error::failed_precondition(format!("`{}` is stored from another version of this pipeline: {difference}", new.name))
        .with_remedy("give --replace to publish a new version without the old epochs, or choose another name")
}

type Parts = std::collections::BTreeMap<String, String>;

fn lines(spec: &[String], old: &Parts, new: &Parts) -> String {
    let mut lines = spec.to_vec();
    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    lines.extend(names.into_iter().filter(|n| old.get(*n) != new.get(*n)).map(|n| part_line(n, old.get(n), new.get(n))));
    if lines.is_empty() { "its source or its code changed".to_owned() } else { lines.join(", ") }
}

/// The versions that a query reads are told as such; of files and code it is enough that they changed.
fn part_line(name: &str, old: Option<&String>, new: Option<&String>) -> String {
    if !name.starts_with(INPUT_PART) {
        return format!("{name} changed");
    }
    let version = |part: Option<&String>| part.map_or("(not read)", |p| p.split(' ').next().unwrap_or_default()).to_owned();
    match (version(old), version(new)) {
        (before, after) if before == after => format!("{name} was made anew"),
        (before, after) => format!("{name}: {before} -> {after}"),
    }
}

fn already(name: &DatasetName, request: &RunRequest, stored: Option<&StoredDataset>) -> RunStatus {
    RunStatus {
        dataset: name.clone(),
        state: RunState::AlreadyMaterialized,
        epochs: request.epochs.clone(),
        published: request.epochs.clone(),
        progress: RunProgress::default(),
        version: stored.map(|s| s.version),
        error: None,
    }
}

pub(super) fn cancel_run(d: &mut Deciding<'_>, name: &DatasetName) -> Result<()> {
    let run = d.state.datasets.get(name).and_then(|k| k.run.as_ref()).filter(|r| r.is_running());
    let Some(run) = run else {
        return Err(Error::failed_precondition(format!("`{name}` is not being materialized")));
    };
    d.push(Change::RunCancelled { dataset: name.clone(), run: run.id });
    d.dataset_changed(name);
    Ok(())
}

pub(super) fn drop_dataset(d: &mut Deciding<'_>, name: DatasetName) -> Result<()> {
    let run = d.state.datasets.get(&name).and_then(|k| k.run.as_ref());
    if run.is_some_and(|r| r.is_running()) {
        return Err(Error::failed_precondition(format!("`{name}` is being materialized")).with_remedy("wait until it is done, or stop it"));
    }
    if run.is_some_and(|r| r.publishing().is_some()) {
        d.reply(Reply::Again);
        return Ok(());
    }
    let state = d.state;
    for (job, _) in state.jobs.iter().filter(|(_, j)| j.settings.dataset == name) {
        d.may_lose(job);
        d.job_changed(job);
    }
    d.dataset_changed(&name);
    d.push(Change::DatasetDropped { dataset: name });
    Ok(())
}

pub(super) fn next_task(d: &mut Deciding<'_>, worker: &WorkerName) {
    d.volatile.worker_seen(worker, d.now);
    d.reply(Reply::Wait);
    if d.volatile.is_draining(worker) {
        return;
    }
    // The oldest run first, its epochs in order: epochs are published as early as they can be.
    let state = d.state;
    let mut runs: Vec<_> = state.datasets.iter().filter_map(|(n, k)| Some((n, k.run.as_ref().filter(|r| r.is_running())?))).collect();
    runs.sort_by_key(|(_, r)| r.id);
    for (name, run) in runs {
        for (epoch, epoch_run) in run.epochs.iter().filter(|(_, e)| matches!(e.phase, EpochPhase::Open)) {
            let Some(id) = epoch_run.pending_task() else { continue };
            let Some(task) = run.task(*epoch, id) else { continue };
            let lease = TaskLease {
                dataset: name.clone(),
                run: run.id,
                epoch: *epoch,
                task: id,
                attempt: crate::ids::Attempt(task.next_attempt),
                worker: worker.clone(),
                spec: run.spec.clone(),
            };
            d.push(Change::TaskLeased {
                dataset: name.clone(),
                run: run.id,
                epoch: *epoch,
                task: id,
                attempt: lease.attempt,
                worker: worker.clone(),
            });
            d.reply(Reply::Task(Box::new(lease)));
            return;
        }
    }
}

/// The run and task of a lease, if the run is going on and handed that attempt out.
fn find<'a>(d: &Deciding<'a>, lease: &TaskLease) -> Option<(&'a Run, &'a Task)> {
    let run = d.state.datasets.get(&lease.dataset)?.run.as_ref().filter(|r| r.id == lease.run && r.is_running())?;
    let task = run.task(lease.epoch, lease.task).filter(|t| t.knows(lease.attempt))?;
    Some((run, task))
}

pub(super) fn progress(d: &mut Deciding<'_>, lease: TaskLease, rows: u64, bytes: u64) {
    d.volatile.worker_seen(&lease.worker, d.now);
    let wanted = find(d, &lease).is_some_and(|(_, task)| task.staged.is_none());
    if wanted {
        d.act(Action::RunChanged(lease.dataset.clone()));
        d.volatile.progress.insert((lease.dataset, lease.epoch, lease.task, lease.attempt), (rows, bytes));
    }
    d.reply(Reply::Wanted(wanted));
}

fn forget_progress(d: &mut Deciding<'_>, lease: &TaskLease) {
    d.volatile.progress.remove(&(lease.dataset.clone(), lease.epoch, lease.task, lease.attempt));
}

/// The first finisher of a task wins, whether its lease still runs or not: attempts write equal rows under their own names.
pub(super) fn task_staged(d: &mut Deciding<'_>, lease: TaskLease, shards: Vec<ShardMeta>, quarantined: Quarantined) -> Result<()> {
    d.volatile.worker_seen(&lease.worker, d.now);
    forget_progress(d, &lease);
    let what = || format!("attempt {} of task {} of epoch {} of `{}`", lease.attempt, lease.task, lease.epoch, lease.dataset);
    let Some((run, task)) = find(d, &lease) else {
        return Err(Error::failed_precondition(format!("{} is not wanted any more", what())));
    };
    if task.staged.is_some() {
        return Ok(());
    }
    if let Some(odd) = shards.iter().find(|s| (s.epoch, s.task, s.attempt) != (lease.epoch, lease.task, lease.attempt)) {
        return Err(Error::bad_input(format!("{} reported the shard `{}`, which is not its own", what(), odd.path)));
    }
    let epoch = run.epochs.get(&lease.epoch).map_or(0, |e| e.quarantined) + quarantined.rows;
    let limit = match run.spec.pipeline.output.on_error {
        OnError::Quarantine { max_errors } => max_errors,
        OnError::Fail => 0,
    };
    d.dataset_changed(&lease.dataset);
    let TaskLease { dataset, run, epoch: epoch_id, task, attempt, .. } = lease;
    d.push(Change::TaskStaged { dataset: dataset.clone(), run, epoch: epoch_id, task, attempt, shards, quarantined });
    if epoch > limit {
        let error = Error::bad_input(format!("{epoch} rows of epoch {epoch_id} of `{dataset}` are bad, and max_errors is {limit}"))
            .with_remedy("look at system.quarantine, mend the rows or the step, or raise output.on_error.max_errors");
        d.push(Change::RunFailed { dataset, run, error });
    }
    Ok(())
}

pub(super) fn task_failed(d: &mut Deciding<'_>, lease: &TaskLease, error: Error) {
    d.volatile.worker_seen(&lease.worker, d.now);
    forget_progress(d, lease);
    let error = (error.kind != Kind::Cancelled).then_some(error);
    if let Some((run, task)) = find(d, lease)
        && task.holders.iter().any(|(a, _)| *a == lease.attempt)
    {
        return_task(d, run, task, lease, error);
    }
}

/// Takes a task back; an error counts, and fails the run when it is the task's fault or one too many.
fn return_task(d: &mut Deciding<'_>, run: &Run, task: &Task, lease: &TaskLease, error: Option<Error>) {
    let TaskLease { dataset, epoch, task: id, attempt, worker, .. } = lease.clone();
    let failed = error.as_ref().filter(|e| !is_transient(e) || task.failures >= RETRIES).map(|e| {
        let tries = task.failures + 1;
        let times = if tries > 1 { format!(" {tries} times") } else { String::new() };
        e.clone().context(format!("task {id} of epoch {epoch} of `{dataset}` failed{times} on worker `{worker}`"))
    });
    d.dataset_changed(&dataset);
    d.act(Action::TasksChanged);
    d.push(Change::TaskReturned { dataset: dataset.clone(), run: run.id, epoch, task: id, attempt, error });
    let failed_already = d.out.entries.iter().any(|e| matches!(&e.change, Change::RunFailed { run: r, .. } if *r == run.id));
    if let Some(error) = failed.filter(|_| !failed_already) {
        d.push(Change::RunFailed { dataset, run: run.id, error });
    }
}

/// All tasks that a worker holds go back.
pub(super) fn return_tasks_of(d: &mut Deciding<'_>, worker: &WorkerName, error: Option<&Error>) {
    let state = d.state;
    for (name, dataset) in &state.datasets {
        let Some(run) = dataset.run.as_ref().filter(|r| r.is_running()) else { continue };
        for (epoch, epoch_run) in &run.epochs {
            for (index, task) in epoch_run.tasks.iter().enumerate() {
                for (attempt, _) in task.holders.iter().filter(|(_, w)| w == worker) {
                    let lease = TaskLease {
                        dataset: name.clone(),
                        run: run.id,
                        epoch: *epoch,
                        task: crate::ids::TaskId(u32::try_from(index).unwrap_or(u32::MAX)),
                        attempt: *attempt,
                        worker: worker.clone(),
                        spec: run.spec.clone(),
                    };
                    forget_progress(d, &lease);
                    return_task(d, run, task, &lease, error.cloned());
                }
            }
        }
    }
}

fn run_of<'a>(d: &Deciding<'a>, dataset: &DatasetName, id: RunId) -> Option<&'a Run> {
    d.state.datasets.get(dataset)?.run.as_ref().filter(|r| r.id == id)
}

pub(super) fn commit_prepared(
    d: &mut Deciding<'_>,
    dataset: DatasetName,
    run_id: RunId,
    epoch: EpochId,
    body: Result<(VersionId, String)>,
) {
    let work = Work::Prepare(dataset.clone());
    d.volatile.touch_dataset(&dataset);
    let run = run_of(d, &dataset, run_id);
    // A run that was stopped meanwhile publishes nothing new; a commit already written down has to be finished whatever became of its run.
    let wanted = run.is_some_and(|r| {
        r.epochs.get(&epoch).is_some_and(|e| (r.is_running() && e.is_complete()) || matches!(e.phase, EpochPhase::Publishing { .. }))
    });
    match body {
        Ok((version, body)) => {
            d.volatile.succeeded(&work);
            if wanted {
                d.push(Change::Publishing { dataset, run: run_id, epoch, version, body });
            }
        }
        Err(error) => {
            let tries = d.volatile.failed(work, d.now);
            let running = run.is_some_and(Run::is_running);
            if running && (!is_transient(&error) || tries >= COMMIT_TRIES) {
                let error = error.context(format!("the commit of epoch {epoch} of `{dataset}` could not be prepared"));
                d.act(Action::RunChanged(dataset.clone()));
                d.push(Change::RunFailed { dataset, run: run_id, error });
            }
        }
    }
}

pub(super) fn commit_done(
    d: &mut Deciding<'_>,
    dataset: DatasetName,
    run_id: RunId,
    epoch: EpochId,
    version: VersionId,
    outcome: Result<CommitOutcome>,
) {
    let work = Work::Commit(dataset.clone());
    d.volatile.touch_dataset(&dataset);
    let run = run_of(d, &dataset, run_id);
    let open = run.and_then(Run::publishing).is_some_and(|(e, v, _)| (e, v) == (epoch, version));
    match outcome {
        Ok(CommitOutcome::Ours) => {
            d.volatile.succeeded(&work);
            if open {
                d.dataset_changed(&dataset);
                d.push(Change::Published { dataset, run: run_id, epoch, version });
            }
        }
        Ok(CommitOutcome::Foreign) => {
            d.volatile.succeeded(&work);
            if let (true, Some(run)) = (open, run)
                && d.volatile.begin(Work::Prepare(dataset), d.now)
            {
                let request = super::reconcile::commit_request(run, epoch);
                d.out.actions.extend(request.map(|r| Action::PrepareCommit(Box::new(r))));
            }
        }
        Err(error) => {
            let tries = d.volatile.failed(work, d.now);
            // The commit is tried on and on, because it is in doubt; whoever waits is told.
            if tries == COMMIT_TRIES && run.is_some_and(Run::is_running) {
                let error = error.context(format!("epoch {epoch} of `{dataset}` could not be published at version {version}"));
                d.act(Action::RunChanged(dataset.clone()));
                d.push(Change::RunFailed { dataset, run: run_id, error });
            }
        }
    }
}
