//! The handle: one method per request, each answered when what it says is durable. It leads to the task in this process or, in a worker of its
//! own, to the dispatcher of another.

use forebay_core::dispatch::{
    self, Event, Granted, OpenedJob, Quarantined, Reply, RunRequest, RunStatus, State, StreamId, Taken, TaskLease, Token, Volatile,
};
use forebay_core::ids::{BatchId, ConsumerName, DatasetName, JobName, PassId, Session, WorkerName};
use forebay_core::job::{ConsumerSettings, JobSettings};
use forebay_core::shard::ShardMeta;
use forebay_core::{Error, Kind, Result};
use forebay_storage::journal::Journal;
use forebay_storage::owner::OwnerRecord;
use forebay_storage::root::Root;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::member::{Member, of_session};
use super::remote::RemoteDispatcher;
use super::shell::{Message, Shared, Shell};
use super::waiting::Request;
use super::{DispatcherConfig, Planner};

/// How long a request waits for a commit or a ledger file that has to come first.
const PATIENCE: Duration = Duration::from_secs(30);
/// Reads of the Delta log that may lag behind the journal before it is believed.
const SURE_AFTER: u32 = 5;

/// The dispatcher, as the rest of the process sees it. Clones share it.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    pub(super) link: Link,
}

#[derive(Debug, Clone)]
pub(super) enum Link {
    Local(Local),
    Remote(Arc<dyn RemoteDispatcher>),
}

#[derive(Debug, Clone)]
pub(super) struct Local {
    inbox: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    planner: Arc<dyn Planner>,
    /// Whether workers that use this handle live in this process.
    attach: bool,
}

impl Dispatcher {
    /// Rebuilds the state from the journal, begins to lead and writes the first heartbeat. The task ends with an error when the journal can't be
    /// written any more (another owner took over, the store failed): nothing that was not durable was told to anybody.
    ///
    /// # Errors
    /// What the journal says; `Corrupt` for a journal that can't be read.
    pub async fn start(
        journal: Journal,
        root: Root,
        planner: Arc<dyn Planner>,
        address: impl Into<String>,
    ) -> Result<(Self, JoinHandle<Result<()>>, OwnerRecord)> {
        Self::start_with(journal, root, planner, DispatcherConfig::new(address)).await
    }

    /// [`Dispatcher::start`] with other settings.
    ///
    /// # Errors
    /// As [`Dispatcher::start`].
    pub async fn start_with(
        journal: Journal,
        root: Root,
        planner: Arc<dyn Planner>,
        config: DispatcherConfig,
    ) -> Result<(Self, JoinHandle<Result<()>>, OwnerRecord)> {
        let (shell, inbox, shared, record) = Shell::start(journal, root, planner.clone(), config).await?;
        let task = tokio::spawn(shell.run());
        let link = Link::Local(Local { inbox, shared, planner, attach: true });
        Ok((Self { link }, task, record))
    }

    /// The dispatcher of another process, for a worker: what only an owner can do is refused.
    pub fn remote(link: Arc<dyn RemoteDispatcher>) -> Self {
        Self { link: Link::Remote(link) }
    }

    /// This dispatcher for workers of other processes: they are alive as long as they say so.
    #[must_use]
    pub fn for_others(&self) -> Self {
        match &self.link {
            Link::Local(local) => Self { link: Link::Local(Local { attach: false, ..local.clone() }) },
            Link::Remote(_) => self.clone(),
        }
    }

    fn local(&self) -> Result<&Local> {
        match &self.link {
            Link::Local(local) => Ok(local),
            Link::Remote(_) => {
                Err(Error::failed_precondition("this process is a worker and leads nothing").with_remedy("ask its dispatcher"))
            }
        }
    }

    /// Marks a moment of a worker's lease, for [`Dispatcher::holds`].
    pub fn hold(&self) -> u64 {
        match &self.link {
            Link::Local(_) => 0,
            Link::Remote(remote) => remote.hold(),
        }
    }

    /// Whether the worker's lease has lasted since that moment: what was granted to it before an interruption is not its own any more.
    pub fn holds(&self, hold: u64) -> bool {
        match &self.link {
            Link::Local(_) => true,
            Link::Remote(remote) => remote.holds(hold),
        }
    }

    /// Ends the task after what is queued; whoever waits for work is told that there is none. Await the task's handle afterwards.
    pub async fn shutdown(&self) {
        let (done, ended) = oneshot::channel();
        let Ok(local) = self.local() else { return };
        if local.inbox.send(Message::Shutdown(done)).await.is_ok() {
            // An answer that never comes means that the task is gone already.
            let _ = ended.await;
        }
    }

    async fn ask_until(&self, event: Event, until: Option<Instant>) -> Result<Reply> {
        let local = match &self.link {
            Link::Local(local) => local,
            Link::Remote(remote) => return remote.ask(event, until.map(|until| until.saturating_duration_since(Instant::now()))).await,
        };
        let (reply, answer) = oneshot::channel();
        local.inbox.send(Message::Ask(Request { event, reply, until, attach: local.attach })).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn ask(&self, event: Event) -> Result<Reply> {
        self.ask_until(event, None).await
    }

    async fn done(&self, event: Event) -> Result<()> {
        match self.ask(event).await? {
            Reply::Done | Reply::Wanted(_) | Reply::Acknowledged(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks again while the answer is that something else has to be finished first.
    async fn ask_patiently<F: Future<Output = Result<Event>>>(&self, event: impl Fn(bool) -> F) -> Result<Reply> {
        let end = Instant::now() + PATIENCE;
        let mut tries = 0;
        loop {
            match self.ask(event(tries >= SURE_AFTER).await?).await? {
                Reply::Again if Instant::now() < end => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(20 << tries.min(5))).await;
                }
                Reply::Again => {
                    return Err(
                        Error::new(Kind::Unavailable, "an earlier commit or ledger file is still being written").with_remedy("try again")
                    );
                }
                reply => return Ok(reply),
            }
        }
    }

    /// Starts a run, joins the one that is going on, or says that there is nothing to do. Durably accepted when it returns.
    ///
    /// # Errors
    /// `FailedPrecondition` with the difference for a changed pipeline.
    pub async fn start_run(&self, run: RunRequest) -> Result<RunStatus> {
        let (request, planner) = (&run, &self.local()?.planner);
        let reply = self.ask_patiently(|certain| async move {
            let stored = planner.stored(&request.spec.dataset, None).await?.map(Box::new);
            Ok(Event::StartRun { request: Box::new(request.clone()), stored, certain })
        });
        match reply.await? {
            Reply::Run(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// Follows a dataset's run. Its status now counts as the first change.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn watch_run(&self, dataset: &DatasetName) -> Result<watch::Receiver<RunStatus>> {
        let (reply, answer) = oneshot::channel();
        self.local()?.inbox.send(Message::Watch(dataset.clone(), reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// A task for this worker, or none if there was nothing to do for that long.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn next_task(&self, worker: &WorkerName, wait: Duration) -> Result<Option<TaskLease>> {
        match self.ask_until(Event::NextTask { worker: worker.clone() }, Some(Instant::now() + wait)).await? {
            Reply::Task(lease) => Ok(Some(*lease)),
            Reply::Wait => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Rows and bytes of an attempt so far; costs no more than a lock. False when the run is over and the attempt may as well stop.
    pub async fn report_progress(&self, lease: &TaskLease, rows: u64, bytes: u64) -> bool {
        match &self.link {
            Link::Local(local) => local.shared.report(lease, rows, bytes),
            Link::Remote(remote) => remote.report(lease, rows, bytes),
        }
    }

    /// Reports a task's shards. The first finisher of a task wins; a later one is told the same, and its shards are named by nothing.
    ///
    /// # Errors
    /// `FailedPrecondition` when the run is over.
    pub async fn task_staged(&self, lease: &TaskLease, shards: Vec<ShardMeta>, quarantined: Quarantined) -> Result<()> {
        self.done(Event::TaskStaged { lease: lease.clone(), shards, quarantined }).await
    }

    /// Gives a task back. `Cancelled` does not count as a failure.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn task_failed(&self, lease: &TaskLease, error: Error) -> Result<()> {
        self.done(Event::TaskFailed { lease: lease.clone(), error }).await
    }

    /// Stops a run; what it staged stays for `--resume`.
    ///
    /// # Errors
    /// `FailedPrecondition` when nothing is running.
    pub async fn cancel_run(&self, dataset: &DatasetName) -> Result<()> {
        self.done(Event::CancelRun { dataset: dataset.clone() }).await
    }

    /// Forgets the dataset and ends the jobs that read it. The caller removes its objects afterwards.
    ///
    /// # Errors
    /// `FailedPrecondition` while it is being materialized.
    pub async fn drop_dataset(&self, dataset: &DatasetName) -> Result<()> {
        match self.ask_patiently(|_| async { Ok(Event::DropDataset { dataset: dataset.clone() }) }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Shards and index bundles that are staged and in no version yet, relative to the dataset's table: vacuum keeps them.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn staged_paths(&self, dataset: &DatasetName) -> Result<BTreeSet<String>> {
        let name = dataset.clone();
        self.look(move |state, _| {
            let tasks =
                state.datasets.get(&name).and_then(|d| d.run.as_ref()).into_iter().flat_map(|r| r.epochs.values()).flat_map(|e| &e.tasks);
            tasks.filter_map(|t| t.staged.as_ref()).flat_map(|s| &s.shards).flat_map(paths).collect()
        })
        .await
    }

    /// Joins a job, creating it if there is none of that name. `session`: the consumer's process.
    ///
    /// # Errors
    /// `NotFound` for no such dataset, `AlreadyExists` with the difference for other settings, `FailedPrecondition` "finished".
    pub async fn open_job(&self, settings: JobSettings, consumer: ConsumerSettings, session: Option<Session>) -> Result<OpenedJob> {
        settings.check_supported()?;
        let (settings, consumer, planner) = (&settings, &consumer, &self.local()?.planner);
        let reply = self.ask_patiently(|_| async move {
            let stored = planner.stored(&settings.dataset, settings.version).await?.map(Box::new);
            let event = Event::OpenJob { settings: Box::new(settings.clone()), consumer: Box::new(consumer.clone()), stored };
            Ok(of_session(session, event))
        });
        match reply.await? {
            Reply::Job(opened) => Ok(opened),
            other => Err(unexpected(&other)),
        }
    }

    /// Goes on from a checkpoint in a new incarnation, which fences the older consumers, or joins the one that another consumer opened for the same
    /// restore. `attempt` is named alike by all who restore together, or by none.
    ///
    /// # Errors
    /// `NotFound` for a commit that is not kept, `AlreadyExists` with the difference for settings of another plan.
    pub async fn restore(
        &self,
        settings: JobSettings,
        consumer: ConsumerSettings,
        session: Option<Session>,
        token: Token,
        attempt: Option<String>,
    ) -> Result<OpenedJob> {
        settings.check_supported()?;
        let (settings, consumer, attempt, planner) = (&settings, &consumer, &attempt, &self.local()?.planner);
        let reply = self.ask_patiently(|_| async move {
            let stored = planner.stored(&settings.dataset, settings.version).await?.map(Box::new);
            let (settings, consumer) = (Box::new(settings.clone()), Box::new(consumer.clone()));
            Ok(of_session(session, Event::Restore { settings, consumer, token, attempt: attempt.clone(), stored }))
        });
        match reply.await? {
            Reply::Job(opened) => Ok(opened),
            other => Err(unexpected(&other)),
        }
    }

    /// A consumer's `call`-th commit, from 1; none while other consumers have not made theirs after `wait`: say it again.
    ///
    /// # Errors
    /// `FailedPrecondition` where the ranks stand at different steps, and for a consumer that is fenced.
    pub async fn commit(&self, of: &Member, call: u64, taken: Taken, wait: Duration) -> Result<Option<Token>> {
        let event = Event::Commit { job: of.job.clone(), incarnation: of.incarnation, consumer: of.consumer.clone(), call, taken };
        match self.ask_until(of.says(event), Some(Instant::now() + wait)).await? {
            Reply::Committed(token) => Ok(Some(token)),
            Reply::Wait => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// A consumer lost streams, all of its own where `streams` is null, and received this of what it has not acknowledged: the rest goes to others.
    /// `number`: its own count of reports, from 1.
    ///
    /// # Errors
    /// `FailedPrecondition` for a consumer that is fenced: nothing of what it holds may be used.
    pub async fn report(
        &self,
        of: &Member,
        number: u64,
        streams: Option<Vec<StreamId>>,
        received: Vec<(PassId, Vec<BatchId>)>,
    ) -> Result<()> {
        let Member { job, incarnation, consumer, .. } = of.clone();
        self.done(of.says(Event::Report { job, incarnation, consumer, number, streams, received })).await
    }

    /// Begins a stream of a consumer that joined. `acks`: batches are acknowledged one by one; else a clean end acknowledges what was sent.
    ///
    /// # Errors
    /// `FailedPrecondition` for another incarnation, an ended job, or a consumer whose lease ran out.
    pub async fn open_stream(&self, of: &Member, worker: &WorkerName, acks: bool) -> Result<StreamId> {
        let Member { job, incarnation, consumer, .. } = of.clone();
        match self.ask(of.says(Event::OpenStream { job, incarnation, consumer, worker: worker.clone(), acks })).await? {
            Reply::Stream(id) => Ok(id),
            other => Err(unexpected(&other)),
        }
    }

    /// The next block for a stream, at most `max_batches`; waits until there is one, or an end to tell. At the end of the job's last pass it says
    /// `EndOfJob`. Whoever drops the call loses at most the block that was being granted.
    ///
    /// # Errors
    /// `FailedPrecondition` when the stream or the job is over.
    pub async fn next_grant(&self, job: &JobName, stream: StreamId, max_batches: u64) -> Result<Granted> {
        self.next_grant_after(job, stream, max_batches, None).await
    }

    /// [`Dispatcher::next_grant`] of a worker that says how many grants it has had on the stream: one that it did not hear of comes again.
    ///
    /// # Errors
    /// As [`Dispatcher::next_grant`].
    pub async fn next_grant_after(&self, job: &JobName, stream: StreamId, max_batches: u64, received: Option<u64>) -> Result<Granted> {
        match self.ask(Event::NextGrant { job: job.clone(), stream, max_batches, received }).await? {
            Reply::Granted(granted) => Ok(granted),
            other => Err(unexpected(&other)),
        }
    }

    /// Batches handed to the transport, with the digests of their row keys. Batches that are not granted to the stream are passed over.
    ///
    /// # Errors
    /// `NotFound` for no such job.
    pub async fn sent(&self, job: &JobName, stream: StreamId, pass: PassId, batches: Vec<(BatchId, u64)>) -> Result<()> {
        self.done(Event::Sent { job: job.clone(), stream, pass, batches }).await
    }

    /// Batches taken by the trainer. A repetition changes nothing; a late one moves lost to acknowledged until the window is in the ledger.
    ///
    /// # Errors
    /// `BadInput` for a batch that was never granted to the consumer, `FailedPrecondition` for another incarnation.
    pub async fn acknowledge(&self, of: &Member, pass: PassId, batches: Vec<(BatchId, Option<u64>)>) -> Result<()> {
        let Member { job, incarnation, consumer, .. } = of.clone();
        self.done(of.says(Event::Acknowledge { job, incarnation, consumer, pass, batches })).await
    }

    /// [`Dispatcher::acknowledge`] at the leader, with how many of the batches were not acknowledged before.
    ///
    /// # Errors
    /// As [`Dispatcher::acknowledge`]; `FailedPrecondition` in a worker's process.
    pub async fn acknowledge_new(&self, of: &Member, pass: PassId, batches: Vec<(BatchId, Option<u64>)>) -> Result<u64> {
        self.local()?;
        let Member { job, incarnation, consumer, .. } = of.clone();
        match self.ask(of.says(Event::Acknowledge { job, incarnation, consumer, pass, batches })).await? {
            Reply::Acknowledged(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends a stream. Clean: the consumer read it to its end, or closed it.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn close_stream(&self, job: &JobName, stream: StreamId, clean: bool) -> Result<()> {
        self.done(Event::CloseStream { job: job.clone(), stream, clean }).await
    }

    /// The consumer is leaving for good: what it holds is lost.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn leave_job(&self, job: &JobName, consumer: &ConsumerName, session: Option<Session>) -> Result<()> {
        self.done(of_session(session, Event::LeaveJob { job: job.clone(), consumer: consumer.clone() })).await
    }

    /// Ends a job: nothing more is granted, and what is open is lost.
    ///
    /// # Errors
    /// `NotFound` for no such job.
    pub async fn stop_job(&self, job: &JobName) -> Result<()> {
        self.done(Event::StopJob { job: job.clone() }).await
    }

    /// A job by name; none if the journal does not know it.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn job_status(&self, job: &JobName) -> Result<Option<dispatch::JobInfo>> {
        let name = job.clone();
        self.look(move |state, _| dispatch::job_info(state, &name)).await
    }

    /// The settings of a job; none if the journal does not know it.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn job_settings(&self, job: &JobName) -> Result<Option<JobSettings>> {
        if let Link::Remote(remote) = &self.link {
            return remote.job_settings(job).await;
        }
        let name = job.clone();
        self.look(move |state, _| state.jobs.get(&name).map(|job| JobSettings::clone(&job.settings))).await
    }

    /// Workers where the ranks of a job with a fixed map are to read; none where any will do.
    ///
    /// # Errors
    /// `BadInput` for a name that no job can have, `Unavailable` when the dispatcher has ended.
    pub async fn map_workers(&self, job: &str) -> Result<Vec<WorkerName>> {
        let name = JobName::parse(job)?;
        self.look(move |state, volatile| {
            let fixed = state.jobs.get(&name).is_some_and(|job| job.settings.is_fixed());
            if fixed { dispatch::job_workers(state, volatile, &name) } else { Vec::new() }
        })
        .await
    }

    /// Length of every lease.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn term(&self) -> Result<Duration> {
        Ok(Duration::from_millis(self.look(|_, volatile| volatile.term_ms).await?))
    }

    /// Whether a consumer has any stream open, on any worker.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn is_streaming(&self, job: &JobName, consumer: &ConsumerName) -> Result<bool> {
        if let Link::Remote(remote) = &self.link {
            return remote.is_streaming(job, consumer).await;
        }
        let (job, consumer) = (job.clone(), consumer.clone());
        let streams = move |state: &State, _: &Volatile| {
            state.jobs.get(&job).is_some_and(|job| job.streams.values().any(|stream| stream.open && stream.consumer == consumer))
        };
        self.look(streams).await
    }

    /// A worker of another process gives a sign of life: its lease begins again.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn worker_beat(&self, worker: &WorkerName) -> Result<()> {
        self.done(Event::WorkerBeat { worker: worker.clone() }).await
    }

    /// Progress of an attempt on a worker of another process: whether it is still wanted.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn progress(&self, lease: &TaskLease, rows: u64, bytes: u64) -> Result<bool> {
        match self.ask(Event::Progress { lease: lease.clone(), rows, bytes }).await? {
            Reply::Wanted(wanted) => Ok(wanted),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives a worker no new work; its streams end with `drain`.
    ///
    /// # Errors
    /// `NotFound` for no such worker.
    pub async fn drain_worker(&self, worker: &WorkerName) -> Result<()> {
        self.done(Event::DrainWorker { worker: worker.clone() }).await
    }

    /// A worker of this process ended: its tasks go back, and what it may have sent is lost.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn worker_gone(&self, worker: &WorkerName) -> Result<()> {
        self.done(Event::WorkerGone { worker: worker.clone() }).await
    }

    /// How often a check found an invariant broken: a bug, and a metric.
    pub fn violations(&self) -> u64 {
        self.local().map_or(0, |local| local.shared.violations.load(Ordering::Relaxed))
    }

    /// The whole durable state and what goes with it, for the system tables.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn snapshot(&self) -> Result<(Arc<State>, Volatile)> {
        self.look(|state, volatile| (Arc::new(state.clone()), volatile.clone())).await
    }

    /// Looks at the state when all that it says is durable. `f` runs on the dispatcher's task: keep it short.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher has ended.
    pub async fn look<T: Send + 'static>(&self, f: impl FnOnce(&State, &Volatile) -> T + Send + 'static) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let look = Box::new(move |state: &State, volatile: &Volatile| {
            // Whoever asked may have gone away.
            let _ = reply.send(f(state, volatile));
        });
        self.local()?.inbox.send(Message::Look(look)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

/// The shard, and its index bundle where it has one.
fn paths(shard: &ShardMeta) -> impl Iterator<Item = String> + use<> {
    [Some(shard.path.clone()), shard.index.as_ref().map(|i| i.path.clone())].into_iter().flatten()
}

fn gone() -> Error {
    Error::new(Kind::Unavailable, "the dispatcher of this process has ended").with_remedy("look at its log, and start it again")
}

fn unexpected(reply: &Reply) -> Error {
    Error::internal(format!("the dispatcher answered something else: {reply:?}"))
}
