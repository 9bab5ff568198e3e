//! One event in, one decision out. Pure: the same state, volatile, moment and event give the same decision.

use super::entry::{Change, ENTRY_VERSION, Entry};
use super::event::{Action, Decision, Event, Reply};
use super::job_state::Job;
use super::run_state::RunPhase;
use super::spans::Reason;
use super::state::State;
use super::volatile::{Life, Now, Volatile, Worker};
use super::{decide_commits, decide_jobs, decide_materialize, decide_visits, reconcile};
use crate::error::{Error, Kind, Result};
use crate::ids::{ConsumerName, DatasetName, Fence, JobName, Session, WorkerName};
use crate::job::Visitation;

/// Decides what `event` means.
///
/// # Errors
/// The event is refused, and nothing durable changes. The kinds are those of [`Kind`]'s contract.
pub fn decide(state: &State, volatile: &mut Volatile, now: Now, event: Event) -> Result<Decision> {
    let (session, event) = match event {
        Event::OfSession { session, event } => (Some(session), *event),
        event => (None, event),
    };
    let fence = if let Event::Lead { fence, .. } = &event { *fence } else { state.fence };
    let mut d = Deciding { state, volatile, now, fence, session, out: Decision::default() };
    match event {
        Event::Lead { fence, address, workers_died, continue_runs } => lead(&mut d, fence, address, workers_died, continue_runs)?,
        Event::Tick => reconcile::tick(&mut d),
        Event::StartRun { request, stored, certain } => decide_materialize::start_run(&mut d, *request, stored.as_deref(), certain)?,
        Event::CancelRun { dataset } => decide_materialize::cancel_run(&mut d, &dataset)?,
        Event::DropDataset { dataset } => decide_materialize::drop_dataset(&mut d, dataset)?,
        Event::NextTask { worker } => decide_materialize::next_task(&mut d, &worker),
        Event::Progress { lease, rows, bytes } => decide_materialize::progress(&mut d, lease, rows, bytes),
        Event::TaskStaged { lease, shards, quarantined } => decide_materialize::task_staged(&mut d, lease, shards, quarantined)?,
        Event::TaskFailed { lease, error } => decide_materialize::task_failed(&mut d, &lease, error),
        Event::CommitPrepared { dataset, run, epoch, body } => decide_materialize::commit_prepared(&mut d, dataset, run, epoch, body),
        Event::CommitDone { dataset, run, epoch, version, outcome } => {
            decide_materialize::commit_done(&mut d, dataset, run, epoch, version, outcome);
        }
        Event::OpenJob { settings, consumer, stored } => decide_jobs::open_job(&mut d, *settings, &consumer, stored.as_deref())?,
        Event::OpenStream { job, incarnation, consumer, worker, acks } => {
            decide_jobs::open_stream(&mut d, &job, incarnation, consumer, worker, acks)?;
        }
        Event::NextGrant { job, stream, max_batches, received } => decide_visits::next_grant(&mut d, &job, stream, max_batches, received)?,
        Event::Sent { job, stream, pass, batches } => decide_visits::sent(&mut d, job, stream, pass, batches)?,
        Event::Acknowledge { job, incarnation, consumer, pass, batches } => {
            decide_visits::acknowledge(&mut d, job, incarnation, consumer, pass, batches)?;
        }
        Event::CloseStream { job, stream, clean } => decide_jobs::close_stream(&mut d, job, stream, clean),
        Event::Report { job, incarnation, consumer, number, streams, received } => {
            decide_commits::report(&mut d, job, incarnation, consumer, number, streams, received)?;
        }
        Event::Commit { job, incarnation, consumer, call, taken } => {
            decide_commits::commit(&mut d, job, incarnation, consumer, call, taken)?;
        }
        Event::Restore { settings, consumer, token, attempt, stored } => {
            decide_commits::restore(&mut d, *settings, &consumer, token, attempt, stored.as_deref())?;
        }
        Event::OfSession { .. } => return Err(Error::internal("a session within a session")),
        Event::LeaveJob { job, consumer } => {
            if d.state.jobs.get(&job).is_some_and(|j| d.is_session_of(j, &consumer)) {
                decide_jobs::leave(&mut d, job, consumer, Reason::ConsumerLeft);
            }
        }
        Event::StopJob { job } => decide_jobs::stop(&mut d, job)?,
        Event::PassShaped { job, incarnation, pass, answer } => decide_jobs::pass_shaped(&mut d, job, incarnation, pass, answer),
        Event::LedgerWritten { job, incarnation, number, windows, result } => {
            decide_jobs::ledger_written(&mut d, job, incarnation, number, windows, result);
        }
        Event::WorkerAttached { worker } => {
            d.volatile.draining.remove(&worker);
            d.volatile.workers.insert(worker, Worker { life: Life::Attached });
        }
        Event::WorkerBeat { worker } => d.volatile.worker_seen(&worker, now),
        Event::WorkerGone { worker } => worker_gone(&mut d, &worker, None),
        Event::DrainWorker { worker } => drain(&mut d, worker)?,
    }
    Ok(d.out)
}

/// A decision in the making.
pub(super) struct Deciding<'a> {
    pub state: &'a State,
    pub volatile: &'a mut Volatile,
    pub now: Now,
    fence: Fence,
    /// The process that the event is from, where it says so.
    pub session: Option<Session>,
    pub out: Decision,
}

impl Deciding<'_> {
    pub(super) fn push(&mut self, change: Change) {
        self.out.entries.push(Entry { v: ENTRY_VERSION, fence: self.fence, at_ms: self.now.wall_ms, change });
    }

    /// Whether the event may be of the process that takes part under this name now.
    pub(super) fn is_session_of(&self, job: &Job, consumer: &ConsumerName) -> bool {
        let of = job.consumers.get(consumer).and_then(|c| c.session);
        // Where rows must not be trained on twice, a call that does not say whose it is may be an older process's.
        let may_be_silent = job.settings.visitation != Visitation::ExactlyOnce;
        of.is_none() || (may_be_silent && self.session.is_none()) || of == self.session
    }

    pub(super) fn act(&mut self, action: Action) {
        self.out.actions.push(action);
    }

    pub(super) fn reply(&mut self, reply: Reply) {
        self.out.reply = reply;
    }

    pub(super) fn dataset_changed(&mut self, dataset: &DatasetName) {
        self.volatile.touch_dataset(dataset);
        self.act(Action::RunChanged(dataset.clone()));
    }

    pub(super) fn job_changed(&mut self, job: &JobName) {
        self.volatile.touch_job(job);
        self.act(Action::JobChanged(job.clone()));
    }

    /// Batches of the job may be lost by this decision: late reports are taken for two terms.
    pub(super) fn may_lose(&mut self, job: &JobName) {
        let until = self.now.mono_ms + 2 * self.volatile.term_ms;
        self.volatile.late_until.insert(job.clone(), until);
    }
}

/// Whether trying again may help.
pub(super) fn is_transient(error: &Error) -> bool {
    matches!(error.kind, Kind::Internal | Kind::Unavailable | Kind::ResourceExhausted | Kind::Cancelled | Kind::Corrupt)
}

fn lead(d: &mut Deciding<'_>, fence: Fence, address: Option<String>, workers_died: bool, continue_runs: bool) -> Result<()> {
    if fence < d.state.fence {
        return Err(Error::failed_precondition(format!("a newer leader (fence {}) owns this root", d.state.fence)));
    }
    d.push(Change::Lead { address });
    let state = d.state;
    for (name, dataset) in &state.datasets {
        let Some(run) = dataset.run.as_ref().filter(|r| r.phase == RunPhase::Running) else { continue };
        if !continue_runs {
            d.push(Change::RunInterrupted { dataset: name.clone(), run: run.id });
        }
    }
    d.volatile.recover(state, d.now);
    if workers_died {
        let workers: Vec<_> = d.volatile.workers.keys().cloned().collect();
        // Counted as a failure: a task that kills its owner must not do so for ever.
        let error = Error::new(Kind::Unavailable, "the process that ran this task died");
        for worker in workers {
            release(d, &worker, Some(&error), continue_runs);
        }
    }
    Ok(())
}

/// A worker is over: its tasks and windows go back, and what it may have sent is lost.
pub(super) fn worker_gone(d: &mut Deciding<'_>, worker: &WorkerName, error: Option<&Error>) {
    release(d, worker, error, true);
}

fn release(d: &mut Deciding<'_>, worker: &WorkerName, error: Option<&Error>, tasks: bool) {
    let state = d.state;
    d.volatile.workers.remove(worker);
    d.volatile.draining.remove(worker);
    if tasks {
        decide_materialize::return_tasks_of(d, worker, error);
    }
    for (name, job) in &state.jobs {
        if job.streams.is_busy(worker) {
            d.push(Change::WorkerGone { job: name.clone(), worker: worker.clone() });
            d.may_lose(name);
            d.job_changed(name);
        }
    }
}

fn drain(d: &mut Deciding<'_>, name: WorkerName) -> Result<()> {
    if !d.volatile.workers.contains_key(&name) {
        return Err(Error::not_found(format!("there is no worker `{name}`")).with_remedy("see `forebay workers`"));
    }
    let state = d.state;
    for (job, _) in state.jobs.iter().filter(|(_, j)| j.streams.has_open_on(&name)) {
        d.job_changed(job);
    }
    d.volatile.draining.insert(name);
    Ok(())
}
