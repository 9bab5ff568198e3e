//! A worker's link to its dispatcher: requests go to whoever leads, through a change of leader.
//!
//! Owns: what is repeated and for how long, what the worker holds (for its heartbeats), and the worker's lease. `session` finds the leader and
//! keeps the lease alive; calls here wait for it. Everything that is repeated may be: staging, reports and acknowledgements change nothing the
//! second time, and what a lost answer leaves behind (a task, a stream) is missing in the next heartbeats and taken back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use forebay_core::dispatch::{Event, Grant, Granted, Reply, RunId, RunSpec, StagedShards, TaskLease};
use forebay_core::ids::{ConsumerName, DatasetName, EpochId, JobName, WorkerName};
use forebay_core::job::JobSettings;
use forebay_core::{Error, Kind, Result};
use forebay_flight::control::{Answer, Ask, Beat, Call, ControlClient, GrantedMessage, LeaseRef, Missed, Running, StreamRef, Told};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::lease::Lease;
use crate::dispatcher::RemoteDispatcher;

/// How long a request is repeated while nobody leads: longer than a takeover.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(100);
/// Specs of runs that are kept.
const SPECS: usize = 16;

/// The leader that a worker is registered with.
#[derive(Debug, Clone)]
pub(super) struct Connected {
    pub(super) client: ControlClient,
    /// Cancelled when another leader is looked for: its pending calls are made again there.
    pub(super) gone: CancellationToken,
}

#[derive(Debug)]
struct Progress {
    rows: u64,
    bytes: u64,
    unwanted: bool,
    hold: u64,
}

/// A run's spec, by what names the run.
type KnownSpec = ((DatasetName, RunId), Arc<RunSpec>);

#[derive(Debug)]
pub(super) struct WorkerLink {
    worker: WorkerName,
    instance: String,
    leader: watch::Sender<Option<Connected>>,
    /// Wakes the session: a call met silence.
    doubt: Notify,
    lease: Mutex<Lease>,
    tasks: Mutex<BTreeMap<LeaseRef, Progress>>,
    streams: Mutex<BTreeSet<StreamRef>>,
    specs: Mutex<VecDeque<KnownSpec>>,
    draining: AtomicBool,
    /// Addresses of all workers, as the leader last said.
    workers: Mutex<Vec<String>>,
}

impl WorkerLink {
    pub(super) fn new(worker: WorkerName, instance: String) -> Arc<Self> {
        Arc::new(Self {
            worker,
            instance,
            leader: watch::Sender::new(None),
            doubt: Notify::new(),
            lease: Mutex::new(Lease::new()),
            tasks: Mutex::default(),
            streams: Mutex::default(),
            specs: Mutex::default(),
            draining: AtomicBool::new(false),
            workers: Mutex::default(),
        })
    }

    pub(super) fn worker(&self) -> &WorkerName {
        &self.worker
    }

    pub(super) fn message(&self, ask: Ask) -> Call {
        Call { worker: self.worker.clone(), instance: self.instance.clone(), ask }
    }

    /// Sets the leader, or none; calls that wait on the old one are made again.
    pub(super) fn lead(&self, leader: Option<Connected>) {
        if let Some(before) = self.leader.send_replace(leader) {
            before.gone.cancel();
        }
    }

    pub(super) fn leader_address(&self) -> Option<String> {
        self.leader.borrow().as_ref().map(|c| c.client.address().to_owned())
    }

    /// Waits until a call met silence.
    pub(super) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    pub(super) fn renew(&self, sent: Instant, term: Duration) {
        self.lease.lock().renew(sent, term);
    }

    /// What the worker holds, for a heartbeat.
    pub(super) fn beat(&self) -> Beat {
        let tasks = self.tasks.lock();
        let running = tasks.iter().map(|(lease, p)| Running { lease: lease.clone(), rows: p.rows, bytes: p.bytes }).collect();
        Beat { tasks: running, streams: self.streams.lock().iter().cloned().collect() }
    }

    pub(super) fn told(&self, told: Told) {
        let mut tasks = self.tasks.lock();
        for lease in &told.unwanted {
            if let Some(progress) = tasks.get_mut(lease) {
                progress.unwanted = true;
            }
        }
        if told.draining {
            self.draining.store(true, Ordering::Relaxed);
        }
        *self.workers.lock() = told.workers;
    }

    /// Addresses of the workers of this root that were there a moment ago.
    pub(super) fn workers(&self) -> Vec<String> {
        self.workers.lock().clone()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether the worker holds no task and no stream.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks.lock().is_empty() && self.streams.lock().is_empty()
    }

    /// Takes nothing new from here on; streams end with `drain`.
    pub(super) async fn drain(&self, limit: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        self.say(Ask::Drain, limit).await;
    }

    /// Says good-bye, so that what is left goes back at once and not at the lease's end.
    pub(super) async fn leave(&self, limit: Duration) {
        self.say(Ask::Leave, limit).await;
    }

    /// A word that nobody waits for longer than `limit`: the lease's end says the same.
    async fn say(&self, ask: Ask, limit: Duration) {
        let Some(connected) = self.leader.borrow().clone() else { return };
        let message = self.message(ask);
        match tokio::time::timeout(limit, connected.client.call(&message)).await {
            Ok(Ok(_)) => {}
            Ok(Err(missed)) => tracing::debug!(?missed, "the dispatcher did not hear it"),
            Err(_) => tracing::debug!("the dispatcher did not hear it in time"),
        }
    }

    /// The leader of this moment, waited for until `end`.
    async fn connected(&self, end: Option<Instant>) -> Result<Connected> {
        let mut leader = self.leader.subscribe();
        let wait = async {
            let found = leader.wait_for(Option::is_some).await;
            found.ok().and_then(|f| f.clone())
        };
        let found = match end {
            None => wait.await,
            Some(end) => tokio::time::timeout_at(end.into(), wait).await.unwrap_or_default(),
        };
        found.ok_or_else(|| {
            Error::new(Kind::Unavailable, format!("no dispatcher answered for {} s", PATIENCE.as_secs()))
                .with_remedy("start one, or look at those that --dispatcher names")
        })
    }

    /// One request, repeated while nobody leads.
    async fn call(&self, ask: Ask) -> Result<Answer> {
        let message = self.message(ask);
        let mut end = None;
        loop {
            if self.leader.borrow().is_none() {
                end.get_or_insert_with(|| Instant::now() + PATIENCE);
            }
            let connected = self.connected(end).await?;
            let missed = tokio::select! {
                answer = connected.client.call(&message) => match answer {
                    Ok(Answer::Unregistered) => None,
                    Ok(answer) => return Ok(answer),
                    Err(Missed::Refused(error)) => return Err(error),
                    Err(Missed::Elsewhere { error, .. }) => Some(error),
                },
                () = connected.gone.cancelled() => None,
            };
            let until = *end.get_or_insert_with(|| Instant::now() + PATIENCE);
            if Instant::now() >= until {
                return Err(missed.unwrap_or_else(|| Error::new(Kind::Unavailable, "the dispatcher did not answer")));
            }
            self.doubt.notify_one();
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn done(&self, ask: Ask) -> Result<Reply> {
        match self.call(ask).await? {
            Answer::Done => Ok(Reply::Done),
            other => Err(unexpected(&other)),
        }
    }

    async fn next_task(&self, wait: Duration) -> Result<Reply> {
        if self.is_draining() {
            tokio::time::sleep(wait.min(Duration::from_secs(1))).await;
            return Ok(Reply::Wait);
        }
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let of = match self.call(Ask::NextTask { wait_ms }).await? {
            Answer::Task(of) => of,
            Answer::Wait => return Ok(Reply::Wait),
            other => return Err(unexpected(&other)),
        };
        // Known from here on, so that the next heartbeat names it.
        let progress = Progress { rows: 0, bytes: 0, unwanted: false, hold: self.hold() };
        self.tasks.lock().insert(of.clone(), progress);
        match self.spec(&of.dataset, of.run).await {
            Ok(spec) => {
                let LeaseRef { dataset, run, epoch, task, attempt } = of;
                Ok(Reply::Task(Box::new(TaskLease { dataset, run, epoch, task, attempt, worker: self.worker.clone(), spec })))
            }
            Err(error) => {
                self.tasks.lock().remove(&of);
                Err(error)
            }
        }
    }

    async fn spec(&self, dataset: &DatasetName, run: RunId) -> Result<Arc<RunSpec>> {
        let key = (dataset.clone(), run);
        if let Some((_, spec)) = self.specs.lock().iter().find(|(known, _)| *known == key) {
            return Ok(Arc::clone(spec));
        }
        let spec: Arc<RunSpec> = match self.call(Ask::Spec { dataset: dataset.clone(), run }).await? {
            Answer::Spec(spec) => Arc::from(spec),
            other => return Err(unexpected(&other)),
        };
        let mut specs = self.specs.lock();
        specs.push_back((key, Arc::clone(&spec)));
        if specs.len() > SPECS {
            specs.pop_front();
        }
        Ok(spec)
    }

    /// Reports an attempt's end; whatever comes of it, the worker does not hold the task any more.
    async fn ended(&self, lease: &TaskLease, ask: impl FnOnce(LeaseRef) -> Ask) -> Result<Reply> {
        let of = lease_ref(lease);
        let told = self.done(ask(of.clone())).await;
        self.tasks.lock().remove(&of);
        told
    }

    async fn open_stream(&self, job: JobName, ask: Ask) -> Result<Reply> {
        match self.call(ask).await? {
            Answer::Stream(stream) => {
                self.streams.lock().insert(StreamRef { job, stream });
                Ok(Reply::Stream(stream))
            }
            other => Err(unexpected(&other)),
        }
    }
}

#[async_trait]
impl RemoteDispatcher for WorkerLink {
    async fn ask(&self, event: Event, wait: Option<Duration>) -> Result<Reply> {
        let (session, event) = match event {
            Event::OfSession { session, event } => (Some(session), *event),
            event => (None, event),
        };
        match event {
            Event::NextTask { .. } => self.next_task(wait.unwrap_or(PAUSE)).await,
            Event::TaskStaged { lease, shards, quarantined } => {
                self.ended(&lease, |lease| Ask::TaskStaged { lease, shards, quarantined }).await
            }
            Event::TaskFailed { lease, error } => self.ended(&lease, |lease| Ask::TaskFailed { lease, error }).await,
            Event::OpenStream { job, incarnation, consumer, acks, .. } => {
                self.open_stream(job.clone(), Ask::OpenStream { job, incarnation, consumer, session, acks }).await
            }
            Event::NextGrant { job, stream, max_batches, received } => {
                match self.call(Ask::NextGrant { job, stream, max_batches, received }).await? {
                    Answer::Granted(message) => Ok(Reply::Granted(granted(message))),
                    other => Err(unexpected(&other)),
                }
            }
            Event::Sent { job, stream, pass, batches } => self.done(Ask::Sent { job, stream, pass, batches }).await,
            Event::Acknowledge { job, incarnation, consumer, pass, batches } => {
                self.done(Ask::Acknowledge { job, incarnation, consumer, session, pass, batches }).await
            }
            Event::CloseStream { job, stream, clean } => {
                let told = self.done(Ask::CloseStream { job: job.clone(), stream, clean }).await;
                self.streams.lock().remove(&StreamRef { job, stream });
                told
            }
            Event::LeaveJob { job, consumer } => self.done(Ask::LeaveJob { job, consumer, session }).await,
            other => Err(Error::internal(format!("a worker asked its dispatcher for what only an owner does: {other:?}"))),
        }
    }

    async fn job_settings(&self, job: &JobName) -> Result<Option<JobSettings>> {
        match self.call(Ask::JobSettings { job: job.clone() }).await? {
            Answer::Settings(settings) => Ok(settings.map(|s| *s)),
            other => Err(unexpected(&other)),
        }
    }

    async fn is_streaming(&self, job: &JobName, consumer: &ConsumerName) -> Result<bool> {
        match self.call(Ask::Streaming { job: job.clone(), consumer: consumer.clone() }).await? {
            Answer::Yes(yes) => Ok(yes),
            other => Err(unexpected(&other)),
        }
    }

    async fn staged_shards(&self, dataset: &DatasetName, run: RunId, epoch: EpochId, from: u64) -> Result<StagedShards> {
        match self.call(Ask::Staged { dataset: dataset.clone(), run, epoch, from }).await? {
            Answer::Staged(shards) => Ok(shards),
            other => Err(unexpected(&other)),
        }
    }

    async fn spec_of(&self, dataset: &DatasetName, run: RunId) -> Result<Arc<RunSpec>> {
        self.spec(dataset, run).await
    }

    async fn run_spec(&self, dataset: &DatasetName) -> Result<Option<Arc<RunSpec>>> {
        match self.call(Ask::RunSpec { dataset: dataset.clone() }).await? {
            Answer::RunSpec(spec) => Ok(spec.map(Arc::from)),
            other => Err(unexpected(&other)),
        }
    }

    fn report(&self, lease: &TaskLease, rows: u64, bytes: u64) -> bool {
        let mut tasks = self.tasks.lock();
        let Some(progress) = tasks.get_mut(&lease_ref(lease)) else { return false };
        (progress.rows, progress.bytes) = (rows, bytes);
        let (wanted, hold) = (!progress.unwanted, progress.hold);
        drop(tasks);
        wanted && self.holds(hold)
    }

    fn hold(&self) -> u64 {
        self.lease.lock().number()
    }

    fn holds(&self, hold: u64) -> bool {
        self.lease.lock().holds(hold)
    }
}

fn lease_ref(lease: &TaskLease) -> LeaseRef {
    let TaskLease { dataset, run, epoch, task, attempt, .. } = lease;
    LeaseRef { dataset: dataset.clone(), run: *run, epoch: *epoch, task: *task, attempt: *attempt }
}

fn granted(message: GrantedMessage) -> Granted {
    match message {
        GrantedMessage::Batches { pass, epoch, version, run, selection, window, attempt, batches, every, step, padding } => {
            Granted::Batches(Grant { pass, epoch, version, run, selection, window, attempt, batches, every, step, padding })
        }
        GrantedMessage::EndOfPass(pass) => Granted::EndOfPass(pass),
        GrantedMessage::EndOfJob => Granted::EndOfJob,
        GrantedMessage::Drain => Granted::Drain,
    }
}

fn unexpected(answer: &Answer) -> Error {
    Error::internal(format!("the dispatcher answered something else: {answer:?}"))
}
