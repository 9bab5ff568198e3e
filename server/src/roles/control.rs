//! The leader's end of the control protocol: workers' calls become the dispatcher's events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::dispatch::{Granted, RunId, RunSpec, State, TaskLease};
use forebay_core::ids::{DatasetName, WorkerName};
use forebay_core::{Error, Kind, Result};
use forebay_flight::control::{Answer, Ask, Beat, Call, Control, GrantedMessage, LeaseRef, Registered, StreamRef, Told, WorkerAddress};
use parking_lot::Mutex;

use super::registry::{Held, Registry};
use crate::dispatcher::{Dispatcher, Member};

/// Specs of runs that are kept: a root works on few at a time.
const SPECS: usize = 64;
/// The longest that a request for a task is kept.
const LONGEST: Duration = Duration::from_secs(20);

/// Answers the workers of one leader.
pub(super) struct LeaderControl {
    dispatcher: Dispatcher,
    registry: Arc<Registry>,
    root: String,
    secret: [u8; 32],
    specs: Mutex<BTreeMap<(DatasetName, RunId), Arc<RunSpec>>>,
}

impl LeaderControl {
    pub(super) fn new(dispatcher: &Dispatcher, registry: Arc<Registry>, root: String, secret: [u8; 32]) -> Self {
        Self { dispatcher: dispatcher.for_others(), registry, root, secret, specs: Mutex::default() }
    }

    async fn register(&self, worker: &WorkerName, instance: &str, address: WorkerAddress) -> Result<Answer> {
        let draining = address.draining;
        tracing::info!(%worker, address = %address.address, slots = address.slots, "a worker registered");
        if self.registry.register(worker, instance, address)? {
            self.dispatcher.worker_gone(worker).await?;
        }
        self.dispatcher.worker_beat(worker).await?;
        if draining {
            self.dispatcher.drain_worker(worker).await?;
        }
        let term_ms = u64::try_from(self.registry.term().as_millis()).unwrap_or(u64::MAX);
        Ok(Answer::Registered(Registered { root: self.root.clone(), secret: self.secret, term_ms }))
    }

    async fn beat(&self, worker: &WorkerName, beat: Beat) -> Result<Answer> {
        self.dispatcher.worker_beat(worker).await?;
        let mut unwanted = Vec::new();
        for running in &beat.tasks {
            let wanted = match self.lease(worker, &running.lease).await? {
                Some(lease) => self.dispatcher.progress(&lease, running.rows, running.bytes).await?,
                None => false,
            };
            if !wanted {
                unwanted.push(running.lease.clone());
            }
        }
        self.take_back(worker, &beat).await?;
        Ok(Answer::Told(Told { unwanted, draining: self.registry.is_draining(worker), workers: self.registry.addresses() }))
    }

    /// Takes back what the journal gives to the worker and the worker does not know of: the answer to its request was lost.
    async fn take_back(&self, worker: &WorkerName, beat: &Beat) -> Result<()> {
        let name = worker.clone();
        let held = self.dispatcher.look(move |state, _| held_by(state, &name)).await?;
        let known: BTreeSet<Held> =
            beat.tasks.iter().map(|t| Held::Task(t.lease.clone())).chain(beat.streams.iter().cloned().map(Held::Stream)).collect();
        let unknown = held.difference(&known).cloned().collect();
        for lost in self.registry.beat(worker, beat.tasks.len(), beat.streams.len(), unknown) {
            match lost {
                Held::Task(lease) => {
                    if let Some(lease) = self.lease(worker, &lease).await? {
                        tracing::info!(%worker, dataset = %lease.dataset, task = %lease.task, "a task that its worker never heard of goes back");
                        self.dispatcher.task_failed(&lease, Error::new(Kind::Cancelled, "the worker never heard of it")).await?;
                    }
                }
                Held::Stream(StreamRef { job, stream }) => self.dispatcher.close_stream(&job, stream, false).await?,
            }
        }
        Ok(())
    }

    async fn spec(&self, dataset: &DatasetName, run: RunId) -> Result<Option<Arc<RunSpec>>> {
        let key = (dataset.clone(), run);
        if let Some(spec) = self.specs.lock().get(&key) {
            return Ok(Some(Arc::clone(spec)));
        }
        let name = dataset.clone();
        let found = self.dispatcher.look(move |state, _| {
            let current = state.datasets.get(&name)?.run.as_ref().filter(|r| r.id == run)?;
            Some(current.spec.clone())
        });
        let found = found.await?;
        if let Some(spec) = &found {
            self.keep(key, Arc::clone(spec));
        }
        Ok(found)
    }

    fn keep(&self, key: (DatasetName, RunId), spec: Arc<RunSpec>) {
        let mut specs = self.specs.lock();
        specs.insert(key, spec);
        if specs.len() > SPECS {
            // Runs are numbered in the order they began.
            let oldest = specs.keys().min_by_key(|(_, run)| *run).cloned();
            oldest.map(|key| specs.remove(&key));
        }
    }

    /// The lease that a worker names; none when its run is forgotten.
    async fn lease(&self, worker: &WorkerName, of: &LeaseRef) -> Result<Option<TaskLease>> {
        let LeaseRef { dataset, run, epoch, task, attempt } = of.clone();
        let spec = self.spec(&dataset, run).await?;
        Ok(spec.map(|spec| TaskLease { dataset, run, epoch, task, attempt, worker: worker.clone(), spec }))
    }

    async fn wanted_lease(&self, worker: &WorkerName, of: &LeaseRef) -> Result<TaskLease> {
        let lease = self.lease(worker, of).await?;
        lease.ok_or_else(|| Error::failed_precondition(format!("the run of `{}` that this task belongs to is over", of.dataset)))
    }

    async fn next_task(&self, worker: &WorkerName, wait_ms: u64) -> Result<Answer> {
        let wait = Duration::from_millis(wait_ms).min(LONGEST);
        let Some(lease) = self.dispatcher.next_task(worker, wait).await? else { return Ok(Answer::Wait) };
        let TaskLease { dataset, run, epoch, task, attempt, spec, .. } = lease;
        self.keep((dataset.clone(), run), spec);
        Ok(Answer::Task(LeaseRef { dataset, run, epoch, task, attempt }))
    }

    async fn leave(&self, worker: &WorkerName) -> Result<Answer> {
        self.dispatcher.worker_gone(worker).await?;
        self.registry.remove(worker);
        tracing::info!(%worker, "a worker left");
        Ok(Answer::Done)
    }

    async fn answer(&self, worker: &WorkerName, ask: Ask) -> Result<Answer> {
        let dispatcher = &self.dispatcher;
        let done = |()| Answer::Done;
        match ask {
            Ask::Register(_) => Err(Error::internal("registered before it came here")),
            Ask::Beat(beat) => self.beat(worker, beat).await,
            Ask::Drain => {
                self.registry.drain(worker);
                dispatcher.drain_worker(worker).await.map(done)
            }
            Ask::Leave => self.leave(worker).await,
            Ask::NextTask { wait_ms } => self.next_task(worker, wait_ms).await,
            Ask::Spec { dataset, run } => match self.spec(&dataset, run).await? {
                Some(spec) => Ok(Answer::Spec(Box::new(RunSpec::clone(&spec)))),
                None => Err(Error::failed_precondition(format!("the run {run} of `{dataset}` is over"))),
            },
            Ask::TaskStaged { lease, shards, quarantined } => {
                let lease = self.wanted_lease(worker, &lease).await?;
                dispatcher.task_staged(&lease, shards, quarantined).await.map(done)
            }
            Ask::TaskFailed { lease, error } => match self.lease(worker, &lease).await? {
                Some(lease) => dispatcher.task_failed(&lease, error).await.map(done),
                None => Ok(Answer::Done),
            },
            Ask::JobSettings { job } => Ok(Answer::Settings(dispatcher.job_settings(&job).await?.map(Box::new))),
            Ask::OpenStream { job, incarnation, consumer, session, acks } => {
                let of = Member { job, incarnation, consumer, session };
                dispatcher.open_stream(&of, worker, acks).await.map(Answer::Stream)
            }
            Ask::NextGrant { job, stream, max_batches, received } => {
                Ok(Answer::Granted(message_of(dispatcher.next_grant_after(&job, stream, max_batches, received).await?)))
            }
            Ask::Sent { job, stream, pass, batches } => dispatcher.sent(&job, stream, pass, batches).await.map(done),
            Ask::Acknowledge { job, incarnation, consumer, session, pass, batches } => {
                let of = Member { job, incarnation, consumer, session };
                dispatcher.acknowledge(&of, pass, batches).await.map(done)
            }
            Ask::CloseStream { job, stream, clean } => dispatcher.close_stream(&job, stream, clean).await.map(done),
            Ask::LeaveJob { job, consumer, session } => dispatcher.leave_job(&job, &consumer, session).await.map(done),
            Ask::Staged { dataset, run, epoch, from } => dispatcher.staged_shards(&dataset, run, epoch, from).await.map(Answer::Staged),
            Ask::RunSpec { dataset } => {
                let spec = dispatcher.run_spec(&dataset).await?;
                Ok(Answer::RunSpec(spec.map(|spec| Box::new(RunSpec::clone(&spec)))))
            }
            Ask::Streaming { job, consumer } => dispatcher.is_streaming(&job, &consumer).await.map(Answer::Yes),
        }
    }
}

#[async_trait]
impl Control for LeaderControl {
    async fn call(&self, call: Call) -> Result<Answer> {
        let Call { worker, instance, ask } = call;
        if let Ask::Register(address) = ask {
            return self.register(&worker, &instance, address).await;
        }
        if !self.registry.touch(&worker, &instance) {
            return Ok(Answer::Unregistered);
        }
        self.answer(&worker, ask).await
    }
}

fn message_of(granted: Granted) -> GrantedMessage {
    match granted {
        Granted::Batches(grant) => GrantedMessage::Batches {
            pass: grant.pass,
            epoch: grant.epoch,
            version: grant.version,
            run: grant.run,
            selection: grant.selection,
            window: grant.window,
            attempt: grant.attempt,
            batches: grant.batches,
            every: grant.every,
            step: grant.step,
            padding: grant.padding,
        },
        Granted::EndOfPass(pass) => GrantedMessage::EndOfPass(pass),
        Granted::EndOfJob => GrantedMessage::EndOfJob,
        Granted::Drain => GrantedMessage::Drain,
    }
}

/// Tasks and open streams that the journal gives to a worker.
fn held_by(state: &State, worker: &WorkerName) -> BTreeSet<Held> {
    let mut held = BTreeSet::new();
    for (dataset, known) in &state.datasets {
        let Some(run) = known.run.as_ref().filter(|r| r.is_running()) else { continue };
        for (epoch, tasks) in &run.epochs {
            for (number, task) in (0u32..).zip(&tasks.tasks) {
                let its = task.holders.iter().filter(|(_, w)| w == worker);
                held.extend(its.map(|(attempt, _)| {
                    let task = forebay_core::ids::TaskId(number);
                    Held::Task(LeaseRef { dataset: dataset.clone(), run: run.id, epoch: *epoch, task, attempt: *attempt })
                }));
            }
        }
    }
    for (job, known) in &state.jobs {
        let its = known.streams.iter().filter(|(_, s)| s.open && s.worker == *worker);
        held.extend(its.map(|(stream, _)| Held::Stream(StreamRef { job: job.clone(), stream: *stream })));
    }
    held
}
