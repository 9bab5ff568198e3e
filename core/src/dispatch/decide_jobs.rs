//! The life of jobs, consumers, streams and passes.

use super::decide::{Deciding, is_transient};
use super::entry::{Change, JobEnd};
use super::event::{OpenedJob, PassAnswer, Reply, StoredDataset};
use super::growth;
use super::job_state::{Job, JobPhase};
use super::pass_state::PassShape;
use super::reconcile;
use super::run_state::{EpochRun, RunPhase};
use super::spans::Reason;
use super::state::StreamId;
use super::volatile::Work;
use crate::error::{Error, Kind, Result};
use crate::ids::{ConsumerName, EpochId, Incarnation, JobName, PassId, WindowId, WorkerName};
use crate::job::{ConsumerSettings, JobSettings, Order, Visitation};

/// How long after a pass began each consumer that joined finds a batch of it, however fast the others are.
const RESERVE_MS: u64 = 1_000;
/// Failures in a row of planning a pass after which the job fails.
const SHAPE_TRIES: u32 = 6;

pub(super) fn open_job(
    d: &mut Deciding<'_>,
    settings: JobSettings,
    consumer: &ConsumerSettings,
    stored: Option<&StoredDataset>,
) -> Result<()> {
    let name = settings.job.clone();
    if let Some(rank) = consumer.rank
        && settings.world_size.is_some_and(|size| rank >= size)
    {
        let size = settings.world_size.unwrap_or_default();
        return Err(Error::bad_input(format!("rank {rank} is not below the world size {size} of job `{name}`")));
    }
    match d.state.jobs.get(&name) {
        Some(Job { phase: JobPhase::Ended { end: JobEnd::Restored, .. }, .. }) if !consumer.restart => {
            d.reply(Reply::Again);
            Ok(())
        }
        Some(job) if job.is_over() && !consumer.restart => Err(over(job)),
        Some(job) if job.is_over() => restart(d, job, settings, consumer, stored),
        Some(job) => {
            let settings = if job.restored.is_some() { with_rounds_of(job, settings) } else { settings };
            let difference = job.settings.difference(&settings);
            if !difference.is_empty() {
                return Err(Error::new(Kind::AlreadyExists, format!("job `{name}` has other settings: {}", difference.join(", ")))
                    .with_remedy("give the same settings, or choose another job name"));
            }
            join(d, job, consumer)
        }
        None => {
            let epochs = epochs_of(d, &settings, stored)?;
            create(d, settings, Incarnation(0), epochs, consumer)
        }
    }
}

/// Rounds are part of the plan: after a restore they stay what they were, also where that was the world size.
pub(super) fn with_rounds_of(job: &Job, settings: JobSettings) -> JobSettings {
    JobSettings { round_size: job.settings.round_size.filter(|_| settings.bucket_by.is_some()), ..settings }
}

pub(super) fn over(job: &Job) -> Error {
    let name = &job.settings.job;
    let why = match &job.phase {
        JobPhase::Ended { end: JobEnd::Stopped, .. } => format!("job `{name}` was stopped"),
        JobPhase::Ended { end: JobEnd::Idle, .. } => format!("job `{name}` was ended because no consumer came within its idle timeout"),
        JobPhase::Ended { end: JobEnd::Failed(error), .. } => format!("job `{name}` failed: {}", error.message),
        _ => format!("job `{name}` is finished"),
    };
    Error::failed_precondition(why)
        .with_remedy("ask for `restart` to start it again (`--restart` on the command line), or choose another job name")
}

/// The C epochs that a new incarnation reads: what is stored and what is being written.
pub(super) fn epochs_of(d: &Deciding<'_>, settings: &JobSettings, stored: Option<&StoredDataset>) -> Result<Vec<EpochId>> {
    let mut epochs = stored.map(|s| s.epochs.clone()).unwrap_or_default();
    let run = d.state.datasets.get(&settings.dataset).and_then(|k| k.run.as_ref()).filter(|r| r.is_running());
    if let Some(run) = run
        && settings.version.is_none()
        && stored.is_none_or(|s| s.fingerprint == run.spec.fingerprint)
    {
        epochs.extend(run.epochs.keys());
    }
    epochs.sort_unstable();
    epochs.dedup();
    if epochs.is_empty() {
        let version = settings.version.map(|v| format!(" at version {v}")).unwrap_or_default();
        return Err(Error::not_found(format!("there is no dataset `{}`{version}", settings.dataset))
            .with_remedy("materialize it first; `forebay datasets` lists what there is"));
    }
    Ok(epochs)
}

fn create(
    d: &mut Deciding<'_>,
    settings: JobSettings,
    incarnation: Incarnation,
    epochs: Vec<EpochId>,
    consumer: &ConsumerSettings,
) -> Result<()> {
    let job = Job::new(settings.clone(), epochs.clone(), incarnation, d.now.wall_ms);
    d.volatile.forget_job(&job.settings.job);
    d.push(Change::JobCreated { settings: Box::new(settings), incarnation, epochs, restored: None });
    join(d, &job, consumer)
}

pub(super) fn join(d: &mut Deciding<'_>, job: &Job, consumer: &ConsumerSettings) -> Result<()> {
    let name = &job.settings.job;
    let replaced = !d.is_session_of(job, &consumer.consumer);
    let there = job.consumers.get(&consumer.consumer).filter(|_| !replaced);
    let at = there.map_or(job.ended, |c| c.at);
    if there.is_none() {
        let rank = if job.settings.is_ranked() { Some(free_rank(job, consumer)?) } else { consumer.rank };
        if replaced {
            // Its process died and came back, or two have one name: the older one learns it with its next call.
            d.may_lose(name);
            d.push(Change::ConsumerGone { job: name.clone(), consumer: consumer.consumer.clone(), reason: Reason::Replaced });
        }
        d.push(Change::ConsumerJoined {
            job: name.clone(),
            consumer: consumer.consumer.clone(),
            rank,
            acks_by_action: consumer.acks_by_action,
            session: d.session,
        });
        d.job_changed(name);
    }
    d.volatile.consumer_seen(name, &consumer.consumer, d.now);
    d.volatile.idle_since.remove(name);
    let (incarnation, created_ms) = (job.incarnation, job.created_ms);
    d.reply(Reply::Job(OpenedJob { job: name.clone(), incarnation, pass: job.pass_at(at), created_ms }));
    Ok(())
}

/// The rank that a consumer gets: the one it asks for, or the lowest that nobody has.
fn free_rank(job: &Job, consumer: &ConsumerSettings) -> Result<u32> {
    let name = &job.settings.job;
    let world = job.settings.world_size.unwrap_or(1);
    let holder = |rank: u32| job.consumers.of_rank(rank).find(|n| **n != consumer.consumer);
    let Some(rank) = consumer.rank else {
        if job.settings.is_fixed() {
            return Err(Error::bad_input(format!("job `{name}` gives batches to ranks")).with_remedy("give this consumer's `rank`"));
        }
        let free = (0..world).find(|rank| holder(*rank).is_none() && !job.dropped_ranks.contains(rank));
        return free.ok_or_else(|| {
            Error::failed_precondition(format!("job `{name}` is for {world} consumers, and they are there"))
                .with_remedy("wait until one has left, or restore a commit at another `world_size`")
        });
    };
    if job.dropped_ranks.contains(&rank) {
        return Err(Error::failed_precondition(format!("rank {rank} of job `{name}` was lost, and the others went on without it"))
            .with_remedy("restore a commit to take it in again"));
    }
    if let Some(other) = holder(rank) {
        return Err(Error::new(Kind::AlreadyExists, format!("rank {rank} of job `{name}` is consumer `{other}`"))
            .with_remedy("give each consumer a rank of its own; a consumer that died gives its rank back when its lease ends"));
    }
    Ok(rank)
}

/// Refuses calls of whoever takes part no more, where what it held went to others.
pub(super) fn check_member(d: &Deciding<'_>, job: &Job, consumer: &ConsumerName) -> Result<()> {
    let name = &job.settings.job;
    let fenced = |why: &str| Error::failed_precondition(format!("consumer `{consumer}` of job `{name}` is fenced: {why}"));
    if !d.is_session_of(job, consumer) {
        return Err(fenced("another process took its place").with_remedy("stop this process"));
    }
    let told = matches!(&job.phase, JobPhase::Ended { end: JobEnd::Failed(_) | JobEnd::Stopped | JobEnd::Finished, .. });
    if !job.consumers.contains_key(consumer) && told {
        // Not fenced: a consumer whose stream broke may be the last to hear of the end.
        return if job.settings.redelivers() || job.settings.is_ranked() || !is_finished(job) { Err(over(job)) } else { Ok(()) };
    }
    if !job.consumers.contains_key(consumer) && (job.settings.visitation == Visitation::ExactlyOnce || job.settings.is_ranked()) {
        return Err(fenced("its lease ran out, and what it had not committed goes to others")
            .with_remedy("go back to the last commit, and open the job again"));
    }
    Ok(())
}

fn is_finished(job: &Job) -> bool {
    matches!(&job.phase, JobPhase::Ended { end: JobEnd::Finished, .. })
}

/// A new incarnation begins when all that the old one did is in the ledger.
fn restart(
    d: &mut Deciding<'_>,
    job: &Job,
    settings: JobSettings,
    consumer: &ConsumerSettings,
    stored: Option<&StoredDataset>,
) -> Result<()> {
    let name = settings.job.clone();
    if reconcile::is_flushed(job) && matches!(job.phase, JobPhase::Ended { .. }) {
        let epochs = epochs_of(d, &settings, stored)?;
        return create(d, settings, Incarnation(job.incarnation.0 + 1), epochs, consumer);
    }
    if !matches!(job.phase, JobPhase::Ended { .. }) {
        d.push(Change::JobEnded { job: name.clone(), end: JobEnd::Finished });
    }
    d.volatile.flush_now.insert(name.clone());
    d.job_changed(&name);
    d.reply(Reply::Again);
    Ok(())
}

pub(super) fn find<'a>(d: &Deciding<'a>, name: &JobName) -> Result<&'a Job> {
    d.state.jobs.get(name).ok_or_else(|| Error::not_found(format!("there is no job `{name}`")).with_remedy("open it first"))
}

pub(super) fn open_stream(
    d: &mut Deciding<'_>,
    name: &JobName,
    incarnation: Incarnation,
    consumer: ConsumerName,
    worker: WorkerName,
    acks: bool,
) -> Result<()> {
    let job = find(d, name)?;
    job.check_incarnation(incarnation)?;
    if matches!(job.phase, JobPhase::Ended { .. }) {
        return Err(over(job));
    }
    check_member(d, job, &consumer)?;
    if job.settings.redelivers() && !acks {
        return Err(Error::bad_input(format!("job `{name}` gives out again what is not acknowledged"))
            .with_remedy("set `acks` to \"action\" and acknowledge with forebay.job.ack, or read with DoExchange"));
    }
    if !job.consumers.contains_key(&consumer) {
        // Its lease ran out between asking for the job and reading, or between two streams. What it held is lost; it may take part again.
        d.push(Change::ConsumerJoined {
            job: name.clone(),
            consumer: consumer.clone(),
            rank: None,
            acks_by_action: false,
            session: d.session,
        });
        d.volatile.idle_since.remove(name);
    }
    d.volatile.consumer_seen(name, &consumer, d.now);
    d.volatile.worker_seen(&worker, d.now);
    let stream = d.state.next_stream;
    d.push(Change::StreamOpened { job: name.clone(), stream, consumer, worker, acks });
    d.reply(Reply::Stream(stream));
    Ok(())
}

pub(super) fn close_stream(d: &mut Deciding<'_>, name: JobName, id: StreamId, clean: bool) {
    let Some(stream) = d.state.jobs.get(&name).and_then(|j| j.streams.get(&id)).filter(|s| s.open) else { return };
    // A broken stream is not the consumer's death: it has a lease's time to come back.
    d.volatile.consumer_seen(&name, &stream.consumer, d.now);
    d.may_lose(&name);
    d.job_changed(&name);
    d.push(Change::StreamClosed { job: name, stream: id, clean });
}

/// What the consumer holds is lost.
pub(super) fn leave(d: &mut Deciding<'_>, name: JobName, consumer: ConsumerName, reason: Reason) {
    d.volatile.forget_consumer(&name, &consumer);
    if d.state.jobs.get(&name).is_some_and(|j| j.consumers.contains_key(&consumer)) {
        d.may_lose(&name);
        d.job_changed(&name);
        d.push(Change::ConsumerGone { job: name, consumer, reason });
    }
}

pub(super) fn stop(d: &mut Deciding<'_>, name: JobName) -> Result<()> {
    let job = find(d, &name)?;
    if !matches!(job.phase, JobPhase::Ended { .. }) {
        d.may_lose(&name);
        d.job_changed(&name);
        d.push(Change::JobEnded { job: name, end: JobEnd::Stopped });
    }
    Ok(())
}

pub(super) fn pass_shaped(d: &mut Deciding<'_>, name: JobName, incarnation: Incarnation, pass: PassId, answer: Result<PassAnswer>) {
    let work = Work::Shape(name.clone());
    let job = d.state.jobs.get(&name).filter(|j| j.incarnation == incarnation && j.phase == JobPhase::Open);
    let Some(job) = job.filter(|j| j.pass_at(j.started) == Some(pass)) else {
        d.volatile.succeeded(&work);
        return;
    };
    d.volatile.touch_job(&name);
    match answer {
        Ok(PassAnswer::Shape(shape)) => start_pass(d, name, pass, shape),
        answer if is_not_yet(&answer) && is_being_written(d, job) => follow(d, job, pass),
        Ok(PassAnswer::NotYet) => {
            let tries = d.volatile.failed(work, d.now);
            // The log was read before the epoch was published, and its run is over since.
            if !was_published(d, job, pass) || tries >= SHAPE_TRIES {
                let error = not_stored(d, job, pass);
                fail(d, name, error);
            }
        }
        Err(error) => {
            let tries = d.volatile.failed(work, d.now);
            if !is_transient(&error) || tries >= SHAPE_TRIES {
                fail(d, name, error.context(format!("pass {pass} could not be planned")));
            }
        }
    }
}

/// Why a pass can't begin, and never will.
fn not_stored(d: &Deciding<'_>, job: &Job, pass: PassId) -> Error {
    let dataset = &job.settings.dataset;
    let what = format!("the epoch of pass {pass} of `{dataset}` is not stored, and nobody is writing it");
    let run = d.state.datasets.get(dataset).and_then(|k| k.run.as_ref());
    let run = run.filter(|r| job.epoch_of(pass).is_some_and(|epoch| r.epochs.contains_key(&epoch)));
    match run.map(|r| &r.phase) {
        Some(RunPhase::Failed(error)) => error.clone().context(what),
        _ => Error::failed_precondition(what).with_remedy("materialize it, then restart the job"),
    }
}

/// Whether the journal says that the pass's epoch is there.
fn was_published(d: &Deciding<'_>, job: &Job, pass: PassId) -> bool {
    let dataset = d.state.datasets.get(&job.settings.dataset).filter(|_| job.settings.version.is_none());
    dataset.zip(job.epoch_of(pass)).is_some_and(|(dataset, epoch)| {
        let run = dataset.run.as_ref().and_then(|r| r.epochs.get(&epoch));
        run.is_some_and(EpochRun::is_published) || dataset.earlier.contains_key(&epoch)
    })
}

fn start_pass(d: &mut Deciding<'_>, name: JobName, pass: PassId, shape: PassShape) {
    d.volatile.succeeded(&Work::Shape(name.clone()));
    d.volatile.wants_pass.remove(&name);
    d.volatile.reserved_until.insert(name.clone(), d.now.mono_ms + RESERVE_MS);
    d.job_changed(&name);
    d.push(Change::PassStarted { job: name, pass, shape });
}

/// Begins a pass in staged order over an epoch that is being written, or waits: for the first rows of it, or until it is there.
fn follow(d: &mut Deciding<'_>, job: &Job, pass: PassId) {
    let name = job.settings.job.clone();
    let staged = job.settings.order == Order::Staged;
    let dataset = d.state.datasets.get(&job.settings.dataset).zip(job.epoch_of(pass)).filter(|_| staged);
    match dataset.map_or(Ok(None), |(dataset, epoch)| growth::begin(&job.settings, pass, dataset, epoch)) {
        Ok(Some(shape)) => start_pass(d, name, pass, shape),
        Ok(None) => {
            // Looked at again when more is staged, the epoch is published or its run ends, and now and then.
            d.volatile.postponed(Work::Shape(name.clone()), d.now);
            d.volatile.waiting_for_epoch.insert(name);
        }
        Err(error) => fail(d, name, error.context(format!("pass {pass} could not be planned"))),
    }
}

/// A dataset whose first epoch is being written is not there yet either.
fn is_not_yet(answer: &Result<PassAnswer>) -> bool {
    matches!(answer, Ok(PassAnswer::NotYet)) || matches!(answer, Err(e) if e.kind == Kind::NotFound)
}

fn is_being_written(d: &Deciding<'_>, job: &Job) -> bool {
    let run = d.state.datasets.get(&job.settings.dataset).and_then(|k| k.run.as_ref());
    job.settings.version.is_none() && run.is_some_and(|r| r.is_running() || r.publishing().is_some())
}

pub(super) fn fail(d: &mut Deciding<'_>, name: JobName, error: Error) {
    d.may_lose(&name);
    d.job_changed(&name);
    d.push(Change::JobEnded { job: name, end: JobEnd::Failed(error) });
}

pub(super) fn ledger_written(
    d: &mut Deciding<'_>,
    name: JobName,
    incarnation: Incarnation,
    number: u64,
    windows: Vec<(PassId, Vec<WindowId>)>,
    result: Result<Vec<String>>,
) {
    let work = Work::Ledger(name.clone());
    d.volatile.touch_job(&name);
    let parts = d.volatile.folding.remove(&name).unwrap_or_default();
    match result {
        Ok(files) => {
            d.volatile.succeeded(&work);
            if d.state.jobs.get(&name).is_some_and(|j| j.incarnation == incarnation && j.next_ledger == number) {
                for change in reconcile::watermarks(&name, windows, parts, &files, number) {
                    d.push(change);
                }
                d.act(super::event::Action::JobChanged(name));
            }
        }
        Err(_) => {
            d.volatile.failed(work, d.now);
        }
    }
}
