//! The task that has the state and the journal.

use bytes::Bytes;
use forebay_core::dispatch::{
    self, Action, Change, Entry, Event, Now, Reply, RunProgress, RunState, RunStatus, State, TaskLease, Volatile,
};
use forebay_core::ids::{Attempt, DatasetName, EpochId, TaskId, WorkerName};
use forebay_core::{Error, Kind, Result};
use forebay_storage::journal::Journal;
use forebay_storage::owner::OwnerRecord;
use forebay_storage::root::Root;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::waiting::{Request, Waiting, may_wait};
use super::work::Doer;
use super::{DispatcherConfig, Planner, fold};
use crate::crash;

/// Requests that may wait in the queue; more make their callers wait.
const QUEUE: usize = 4_096;
/// Requests decided before one write to the journal.
const GROUP: usize = 1_024;
/// How often timers are looked at.
const TICK: Duration = Duration::from_millis(200);
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Cascades of decisions (a pass starts, so a waiter is granted, ...) in one step.
const ROUNDS: usize = 64;
/// Parts of a state up to which debug builds check it after every step.
const CHECKED_SIZE: usize = 2_000;

type Look = Box<dyn FnOnce(&State, &Volatile) + Send>;

/// What comes into the queue.
pub(super) enum Message {
    Ask(Request),
    /// Work that ended.
    Tell(Event),
    Look(Look),
    Watch(DatasetName, oneshot::Sender<watch::Receiver<RunStatus>>),
    /// The heartbeat could not be written.
    Lost(Error),
    Shutdown(oneshot::Sender<()>),
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ask(_) => "Ask",
            Self::Tell(_) => "Tell",
            Self::Look(_) => "Look",
            Self::Watch(..) => "Watch",
            Self::Lost(_) => "Lost",
            Self::Shutdown(_) => "Shutdown",
        })
    }
}

type TaskKey = (DatasetName, EpochId, TaskId, Attempt);

/// Progress of running attempts on its way to the task, and which runs are going on.
#[derive(Debug, Default)]
pub(super) struct Shared {
    progress: Mutex<BTreeMap<TaskKey, (TaskLease, u64, u64)>>,
    live: Mutex<BTreeSet<dispatch::RunId>>,
    /// Checks that found an invariant broken.
    pub violations: AtomicU64,
}

impl Shared {
    pub(super) fn report(&self, lease: &TaskLease, rows: u64, bytes: u64) -> bool {
        let key = (lease.dataset.clone(), lease.epoch, lease.task, lease.attempt);
        self.progress.lock().insert(key, (lease.clone(), rows, bytes));
        self.live.lock().contains(&lease.run)
    }
}

/// An answer that waits for its entries to be durable.
type Answer = (oneshot::Sender<Result<Reply>>, Result<Reply>);

/// What one step is going to write and then do.
#[derive(Default)]
struct Step {
    entries: Vec<Entry>,
    actions: Vec<Action>,
    answers: Vec<Answer>,
    looks: Vec<Look>,
    watches: Vec<(DatasetName, oneshot::Sender<watch::Receiver<RunStatus>>)>,
}

pub(super) struct Shell {
    state: State,
    volatile: Volatile,
    journal: Journal,
    config: DispatcherConfig,
    inbox: mpsc::Receiver<Message>,
    waiting: Waiting,
    doer: Doer,
    shared: Arc<Shared>,
    watches: BTreeMap<DatasetName, watch::Sender<RunStatus>>,
    /// Workers of this process that were seen.
    attached: BTreeSet<WorkerName>,
    began: Instant,
    since_compaction: u64,
    /// Entries after which the state is written down.
    compact_after: u64,
    /// What the next step begins with: tasks that were handed to a caller that had gone away.
    unheard: Vec<Event>,
    heartbeat: AbortOnDropHandle<()>,
}

type Started = (Shell, mpsc::Sender<Message>, Arc<Shared>, OwnerRecord);

impl Shell {
    pub(super) async fn start(journal: Journal, root: Root, planner: Arc<dyn Planner>, config: DispatcherConfig) -> Result<Started> {
        let loaded = journal.load().await?;
        let (sender, inbox) = mpsc::channel(QUEUE);
        let record =
            OwnerRecord { address: config.address.clone(), fence: journal.fence(), pid: std::process::id(), beat: 1, at_ms: wall_ms() };
        let pulse = Pulse { journal: journal.clone(), record: Arc::new(Mutex::new(record.clone())) };
        let beating = heartbeat(pulse.clone(), sender.downgrade());
        let mut shell = Self {
            state: fold(&loaded)?,
            volatile: Volatile::new(u64::try_from(config.term.as_millis()).unwrap_or(u64::MAX)),
            doer: Doer { root, planner, pulse, inbox: sender.downgrade() },
            journal,
            inbox,
            waiting: Waiting::default(),
            shared: Arc::default(),
            watches: BTreeMap::new(),
            attached: BTreeSet::new(),
            began: Instant::now(),
            since_compaction: loaded.entries.len() as u64,
            compact_after: dispatch::entries_per_state(config.compact_after, loaded.snapshot.as_ref().map_or(0, |s| s.len())),
            unheard: Vec::new(),
            config,
            heartbeat: AbortOnDropHandle::new(beating),
        };
        let lead = Event::Lead {
            fence: shell.journal.fence(),
            address: Some(shell.config.address.clone()),
            workers_died: shell.config.workers_died,
            continue_runs: shell.config.continue_runs,
        };
        let mut step = Step::default();
        shell.decide(&mut step, lead)?;
        shell.finish(step).await?;
        shell.journal.put_owner(record.clone()).await?;
        let shared = shell.shared.clone();
        Ok((shell, sender, shared, record))
    }

    /// Runs until it is told to stop or the journal fails.
    pub(super) async fn run(mut self) -> Result<()> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut messages = Vec::with_capacity(GROUP);
        loop {
            let deadline = self.waiting.next_deadline();
            tokio::select! {
                biased;
                n = self.inbox.recv_many(&mut messages, GROUP) => if n == 0 { return self.journal.close().await },
                _ = tick.tick() => {}
                () = sleep_until(deadline) => {}
            }
            let mut stop = Vec::new();
            let mut step = Step::default();
            for event in std::mem::take(&mut self.unheard) {
                self.tell(&mut step, event);
            }
            for message in messages.drain(..) {
                match message {
                    Message::Ask(request) => self.ask(&mut step, request),
                    Message::Tell(event) => self.tell(&mut step, event),
                    Message::Look(look) => step.looks.push(look),
                    Message::Watch(dataset, reply) => step.watches.push((dataset, reply)),
                    Message::Lost(error) => return Err(error),
                    Message::Shutdown(done) => stop.push(done),
                }
            }
            self.progress(&mut step);
            self.settle(&mut step);
            self.finish(step).await?;
            if !stop.is_empty() {
                return self.end(stop).await;
            }
        }
    }

    fn now(&self) -> Now {
        Now { wall_ms: wall_ms(), mono_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX) }
    }

    /// Decides one event on the newest state and folds what it decided; all of it is durable before anybody hears of it.
    fn decide(&mut self, step: &mut Step, event: Event) -> Result<Reply> {
        let now = self.now();
        let decision = dispatch::decide(&self.state, &mut self.volatile, now, event)?;
        for entry in &decision.entries {
            dispatch::apply(&mut self.state, entry);
        }
        step.entries.extend(decision.entries);
        step.actions.extend(decision.actions);
        Ok(decision.reply)
    }

    fn ask(&mut self, step: &mut Step, request: Request) {
        if request.reply.is_closed() {
            return;
        }
        if request.attach {
            self.attach(step, &request.event);
        }
        let attach = request.attach;
        let dataset = if let Event::StartRun { request, .. } = &request.event { Some(request.spec.dataset.clone()) } else { None };
        let parked = may_wait(&request.event).then(|| request.event.clone());
        let answer = self.decide(step, request.event);
        match (answer, parked, dataset) {
            (Ok(Reply::Wait), Some(event), _) => {
                self.waiting.park(Request { event, reply: request.reply, until: request.until, attach });
            }
            (Ok(Reply::Accepted), _, Some(dataset)) => {
                let status = dispatch::run_status(&self.state, &self.volatile, &dataset);
                let status = status.map(|s| Reply::Run(Box::new(s))).ok_or_else(|| Error::internal("an accepted run is gone"));
                step.answers.push((request.reply, status));
            }
            (answer, _, _) => step.answers.push((request.reply, answer)),
        }
    }

    /// Workers of this process are alive as long as it is.
    fn attach(&mut self, step: &mut Step, event: &Event) {
        let worker = match event {
            Event::NextTask { worker } | Event::OpenStream { worker, .. } => worker,
            Event::OfSession { event, .. } => return self.attach(step, event),
            Event::WorkerGone { worker } => {
                self.attached.remove(worker);
                return;
            }
            _ => return,
        };
        if !self.attached.contains(worker) {
            self.attached.insert(worker.clone());
            self.tell(step, Event::WorkerAttached { worker: worker.clone() });
        }
    }

    /// An event that nobody waits for.
    fn tell(&mut self, step: &mut Step, event: Event) {
        if let Err(error) = self.decide(step, event) {
            tracing::warn!(%error, "a report was refused");
        }
    }

    fn progress(&mut self, step: &mut Step) {
        let reported = std::mem::take(&mut *self.shared.progress.lock());
        for (lease, rows, bytes) in reported.into_values() {
            self.tell(step, Event::Progress { lease, rows, bytes });
        }
    }

    /// Does what became due, and asks again for those who wait for what changed, until nothing changes.
    fn settle(&mut self, step: &mut Step) {
        for request in self.waiting.take_expired(Instant::now()) {
            step.answers.push((request.reply, Ok(Reply::Wait)));
        }
        let mut seen = 0;
        for _ in 0..ROUNDS {
            self.tell(step, Event::Tick);
            let (mut tasks, mut jobs) = (false, BTreeSet::new());
            for action in &step.actions[seen..] {
                match action {
                    Action::TasksChanged => tasks = true,
                    Action::JobChanged(job) => {
                        jobs.insert(job.clone());
                    }
                    _ => {}
                }
            }
            if seen == step.actions.len() {
                return;
            }
            seen = step.actions.len();
            let mut woken = if tasks { self.waiting.take_tasks() } else { Vec::new() };
            woken.extend(jobs.iter().flat_map(|job| self.waiting.take_waiting_for(job)));
            for request in woken {
                self.ask(step, request);
            }
        }
    }

    /// Makes a step durable, then answers and acts.
    async fn finish(&mut self, step: Step) -> Result<()> {
        self.check(false);
        if !step.entries.is_empty() {
            let encoded = step.entries.iter().map(|e| Ok(Bytes::from(e.encode()?))).collect::<Result<Vec<_>>>()?;
            self.since_compaction += encoded.len() as u64;
            let upto = self.journal.append(encoded).await?;
            crash_points(&step.entries);
            if self.since_compaction >= self.compact_after {
                self.compact(upto).await?;
            }
        }
        *self.shared.live.lock() = self.live_runs();
        for (reply, answer) in step.answers {
            // A caller that went away gives its task back; a grant is lost when its stream closes.
            if let Err(Ok(Reply::Task(lease))) = reply.send(answer) {
                let error = Error::new(Kind::Cancelled, "nobody took the task");
                self.unheard.push(Event::TaskFailed { lease: *lease, error });
            }
        }
        for look in step.looks {
            look(&self.state, &self.volatile);
        }
        for (dataset, reply) in step.watches {
            let _ = reply.send(self.watch(&dataset));
        }
        let mut changed = BTreeSet::new();
        for action in step.actions {
            match action {
                Action::RunChanged(dataset) => {
                    changed.insert(dataset);
                }
                action => self.doer.start(action),
            }
        }
        for dataset in changed {
            self.tell_watchers(&dataset);
        }
        Ok(())
    }

    fn live_runs(&self) -> BTreeSet<dispatch::RunId> {
        self.state.datasets.values().filter_map(|d| d.run.as_ref()).filter(|r| r.is_running()).map(|r| r.id).collect()
    }

    async fn compact(&mut self, upto: u64) -> Result<()> {
        self.check(true);
        let state = serde_json::to_vec(&self.state).map_err(|e| Error::internal(format!("the state could not be encoded: {e}")))?;
        self.compact_after = dispatch::entries_per_state(self.config.compact_after, state.len());
        self.journal.compact(upto, state.into()).await?;
        self.since_compaction = 0;
        Ok(())
    }

    fn status(&self, dataset: &DatasetName) -> RunStatus {
        dispatch::run_status(&self.state, &self.volatile, dataset).unwrap_or_else(|| RunStatus {
            dataset: dataset.clone(),
            state: RunState::Done,
            epochs: Vec::new(),
            published: Vec::new(),
            progress: RunProgress::default(),
            version: None,
            error: None,
        })
    }

    /// The status at hand counts as a change, so that whoever waits for one misses none that came before it asked.
    fn watch(&mut self, dataset: &DatasetName) -> watch::Receiver<RunStatus> {
        let status = self.status(dataset);
        let mut receiver = match self.watches.get(dataset) {
            Some(sender) => {
                sender.send_replace(status);
                sender.subscribe()
            }
            None => {
                let (sender, receiver) = watch::channel(status);
                self.watches.insert(dataset.clone(), sender);
                receiver
            }
        };
        receiver.mark_changed();
        receiver
    }

    fn tell_watchers(&mut self, dataset: &DatasetName) {
        let status = self.status(dataset);
        if let Some(sender) = self.watches.get(dataset) {
            // Kept without receivers too: a later one must not see an older status.
            sender.send_replace(status);
        }
    }

    /// Broken invariants are bugs: debug builds look after every step while that is cheap, release builds when the state is written down.
    fn check(&self, written_down: bool) {
        let windows: usize = self.state.jobs.values().flat_map(|j| j.passes.values()).map(|p| p.windows.len()).sum();
        let tasks: usize =
            self.state.datasets.values().filter_map(|d| d.run.as_ref()).flat_map(|r| r.epochs.values()).map(|e| e.tasks.len()).sum();
        if (written_down || (cfg!(debug_assertions) && windows + tasks <= CHECKED_SIZE))
            && let Err(violation) = dispatch::check(&self.state)
        {
            self.shared.violations.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%violation, "an invariant does not hold");
        }
    }

    /// The last step: what is waiting is let go, the journal replaced by the state.
    async fn end(mut self, stop: Vec<oneshot::Sender<()>>) -> Result<()> {
        // Workers of other processes hear nothing: they ask the next leader.
        for request in self.waiting.take_all().into_iter().filter(|r| r.attach) {
            let answer = match &request.event {
                Event::NextGrant { .. } => Ok(Reply::Granted(dispatch::Granted::Drain)),
                _ => Ok(Reply::Wait),
            };
            let _ = request.reply.send(answer);
        }
        let upto = self.journal.append(Vec::new()).await?;
        let compacted = if self.since_compaction > 0 { self.compact(upto).await } else { Ok(()) };
        // Awaited: a heartbeat on its way would undo the leave.
        self.heartbeat.abort();
        let _ = (&mut self.heartbeat).await;
        let left = self.journal.leave().await;
        let closed = left.and(self.journal.close().await);
        for done in stop {
            let _ = done.send(());
        }
        compacted.and(closed)
    }
}

fn crash_points(entries: &[Entry]) {
    for entry in entries {
        match &entry.change {
            Change::TaskStaged { .. } => crash::point("after-staged"),
            Change::Published { .. } => crash::point("after-published"),
            _ => {}
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The owner's heartbeat. One that was seen to advance proves that this owner's fence still holds, so it goes through the journal.
#[derive(Debug, Clone)]
pub(super) struct Pulse {
    journal: Journal,
    record: Arc<Mutex<OwnerRecord>>,
}

impl Pulse {
    /// Writes the next heartbeat; `FailedPrecondition` when another process has become the owner.
    pub(super) async fn beat(&self) -> Result<()> {
        let record = {
            let mut record = self.record.lock();
            record.beat += 1;
            record.at_ms = wall_ms();
            record.clone()
        };
        self.journal.put_owner(record).await
    }
}

fn heartbeat(pulse: Pulse, inbox: mpsc::WeakSender<Message>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            let Err(error) = pulse.beat().await else { continue };
            if error.kind == Kind::FailedPrecondition {
                if let Some(inbox) = inbox.upgrade() {
                    let _ = inbox.send(Message::Lost(error)).await;
                }
                return;
            }
            tracing::warn!(%error, "the heartbeat could not be written");
        }
    })
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
