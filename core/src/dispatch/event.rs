//! What comes in and what goes out of a decision.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

use super::commit_state::Token;
use super::entry::Entry;
use super::pass_state::PassShape;
use super::report::VisitRow;
use super::run_state::{Quarantined, RunSpec};
use super::state::{RunId, StreamId};
use crate::error::{Error, Result};
use crate::ids::{
    Attempt, BatchId, ConsumerName, DatasetName, EpochId, Fence, Incarnation, JobName, PassId, Session, TaskId, VersionId, WindowId,
    WorkerName,
};
use crate::job::{ConsumerSettings, JobSettings};
use crate::pipeline::PipelineSpec;
use crate::shard::ShardMeta;

/// Batches that a trainer took, with their digests where the reporter knows them.
pub type Taken = Vec<(PassId, Vec<(BatchId, Option<u64>)>)>;

/// What is asked of the dispatcher or reported to it.
#[derive(Debug, Clone)]
pub enum Event {
    /// This process leads from now on.
    Lead {
        fence: Fence,
        address: Option<String>,
        /// All workers lived in the owner that is gone: their leases are over at once.
        workers_died: bool,
        /// Go on with unfinished runs; else they wait for `--resume`.
        continue_runs: bool,
    },
    /// Time passed, or something changed that may make work due.
    Tick,

    StartRun {
        request: Box<RunRequest>,
        stored: Option<Box<StoredDataset>>,
        /// `stored` was read more than once: believe it even where the journal knows a newer version (a table removed by hand).
        certain: bool,
    },
    CancelRun {
        dataset: DatasetName,
    },
    DropDataset {
        dataset: DatasetName,
    },
    NextTask {
        worker: WorkerName,
    },
    Progress {
        lease: TaskLease,
        rows: u64,
        bytes: u64,
    },
    TaskStaged {
        lease: TaskLease,
        shards: Vec<ShardMeta>,
        quarantined: Quarantined,
    },
    TaskFailed {
        lease: TaskLease,
        error: Error,
    },
    CommitPrepared {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        body: Result<(VersionId, String)>,
    },
    CommitDone {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        version: VersionId,
        outcome: Result<CommitOutcome>,
    },

    OpenJob {
        settings: Box<JobSettings>,
        consumer: Box<ConsumerSettings>,
        stored: Option<Box<StoredDataset>>,
    },
    OpenStream {
        job: JobName,
        incarnation: Incarnation,
        consumer: ConsumerName,
        worker: WorkerName,
        acks: bool,
    },
    NextGrant {
        job: JobName,
        stream: StreamId,
        max_batches: u64,
        /// How many grants the stream's worker has had, where it says so: an answer that was lost on its way is given again.
        received: Option<u64>,
    },
    Sent {
        job: JobName,
        stream: StreamId,
        pass: PassId,
        batches: Vec<(BatchId, u64)>,
    },
    Acknowledge {
        job: JobName,
        incarnation: Incarnation,
        consumer: ConsumerName,
        pass: PassId,
        batches: Vec<(BatchId, Option<u64>)>,
    },
    CloseStream {
        job: JobName,
        stream: StreamId,
        clean: bool,
    },
    /// The consumer lost streams, and received this of what it has not acknowledged; null names all its streams. The others go to somebody else
    /// after this, so it drops them, and opens no stream before the answer.
    Report {
        job: JobName,
        incarnation: Incarnation,
        consumer: ConsumerName,
        /// Its own count of reports, from 1: repetitions are known by it.
        number: u64,
        streams: Option<Vec<StreamId>>,
        received: Vec<(PassId, Vec<BatchId>)>,
    },
    /// The consumer's `call`-th call of `commit()` or `state_dict()`, from 1. `taken`: what it took and was not told to be durable. What it takes
    /// after the call it acknowledges after the answer: the call may arrive late.
    Commit {
        job: JobName,
        incarnation: Incarnation,
        consumer: ConsumerName,
        call: u64,
        taken: Taken,
    },
    /// Goes on from a checkpoint in a new incarnation. `attempt` is null, or named alike by all consumers that restore together.
    Restore {
        settings: Box<JobSettings>,
        consumer: Box<ConsumerSettings>,
        token: Token,
        attempt: Option<String>,
        /// For a job that nobody has opened yet.
        stored: Option<Box<StoredDataset>>,
    },
    /// The event of a consumer's process: `OpenJob`, `OpenStream`, `Acknowledge`, `Report`, `Commit`, `Restore` or `LeaveJob`.
    OfSession {
        session: Session,
        event: Box<Event>,
    },
    /// The consumer says that it leaves for good.
    LeaveJob {
        job: JobName,
        consumer: ConsumerName,
    },
    StopJob {
        job: JobName,
    },
    PassShaped {
        job: JobName,
        incarnation: Incarnation,
        pass: PassId,
        answer: Result<PassAnswer>,
    },
    LedgerWritten {
        job: JobName,
        incarnation: Incarnation,
        number: u64,
        windows: Vec<(PassId, Vec<WindowId>)>,
        result: Result<Vec<String>>,
    },

    /// A worker lives in this process and is alive until it is gone.
    WorkerAttached {
        worker: WorkerName,
    },
    WorkerBeat {
        worker: WorkerName,
    },
    WorkerGone {
        worker: WorkerName,
    },
    /// It gets nothing new; its streams end with `drain`.
    DrainWorker {
        worker: WorkerName,
    },
}

/// A request to materialize epochs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRequest {
    pub spec: RunSpec,
    pub epochs: Vec<EpochId>,
    /// Keep what an interrupted run of the same pipeline staged.
    pub resume: bool,
    /// Publish a changed pipeline without the old epochs.
    pub replace: bool,
}

/// What the Delta log says of a dataset, read before the decision.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDataset {
    pub version: VersionId,
    /// In order.
    pub epochs: Vec<EpochId>,
    pub fingerprint: String,
    /// Null when the properties of the table do not hold a readable spec.
    pub pipeline: Option<PipelineSpec>,
    /// As [`RunSpec::parts`].
    pub parts: std::collections::BTreeMap<String, String>,
}

/// One attempt at one task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskLease {
    pub dataset: DatasetName,
    pub run: RunId,
    pub epoch: EpochId,
    pub task: TaskId,
    pub attempt: Attempt,
    pub worker: WorkerName,
    pub spec: Arc<RunSpec>,
}

/// What became of a put of exactly one body at exactly one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitOutcome {
    /// That version is this body.
    Ours,
    /// That version is somebody else's.
    Foreign,
}

/// Answer to [`Action::ShapePass`].
#[derive(Debug, Clone, PartialEq)]
pub enum PassAnswer {
    Shape(PassShape),
    /// The pass's epoch is not stored yet.
    NotYet,
}

/// What happens when a decision's entries are durable.
#[derive(Debug, Clone, Default)]
pub struct Decision {
    pub entries: Vec<Entry>,
    pub actions: Vec<Action>,
    pub reply: Reply,
}

/// Work of the shell. Each is started at most once at a time and answered by an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the commit's body. Answer: [`Event::CommitPrepared`].
    PrepareCommit(Box<CommitRequest>),
    /// Put the body at the version. Answer: [`Event::CommitDone`].
    Commit { dataset: DatasetName, run: RunId, epoch: EpochId, version: VersionId, body: String },
    /// Plan a pass. Answer: [`Event::PassShaped`].
    ShapePass { job: JobName, incarnation: Incarnation, pass: PassId, settings: Arc<JobSettings>, epochs: Vec<EpochId> },
    /// Write closed visits. Answer: [`Event::LedgerWritten`].
    WriteLedger { job: JobName, incarnation: Incarnation, number: u64, windows: Vec<(PassId, Vec<WindowId>)>, rows: Vec<VisitRow> },
    /// Somebody who waits for a task may get one.
    TasksChanged,
    /// A run's status changed.
    RunChanged(DatasetName),
    /// Somebody who waits for a grant of this job may get one.
    JobChanged(JobName),
}

/// Everything that an epoch's commit says.
#[derive(Debug, Clone, PartialEq)]
pub struct CommitRequest {
    pub run: RunId,
    pub spec: Arc<RunSpec>,
    pub epoch: EpochId,
    /// Of all tasks, in task order, with their staging numbers.
    pub shards: Vec<ShardMeta>,
    /// Files of quarantined rows, under the root.
    pub quarantine: Vec<String>,
    pub quarantined_rows: u64,
    /// Remove the epochs that are there.
    pub replace: bool,
}

/// The answer to whoever sent the event.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Reply {
    #[default]
    Done,
    /// Nothing now: ask again when something changed.
    Wait,
    /// What was read before the decision is out of date, or a commit is being finished: read again and ask again.
    Again,
    /// Accepted; the status is [`super::run_status`] after the entries are applied.
    Accepted,
    Run(Box<RunStatus>),
    Task(Box<TaskLease>),
    /// Whether the attempt is still wanted.
    Wanted(bool),
    Job(OpenedJob),
    Stream(StreamId),
    Granted(Granted),
    /// So many of the batches were not acknowledged before.
    Acknowledged(u64),
    /// The commit is complete: what every consumer gets.
    Committed(Token),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedJob {
    pub job: JobName,
    pub incarnation: Incarnation,
    /// The pass that the consumer is in, or will be.
    pub pass: Option<PassId>,
    /// When the incarnation began, in milliseconds since 1970: another job of the same name began at another time.
    pub created_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Granted {
    Batches(Grant),
    /// The consumer's pass is over, and another follows.
    EndOfPass(PassId),
    /// All passes are over.
    EndOfJob,
    /// The worker is leaving: go on elsewhere.
    Drain,
}

/// A block of batches that one stream may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub pass: PassId,
    pub epoch: EpochId,
    /// Null while the epoch is being written.
    pub version: Option<VersionId>,
    /// Who writes the epoch, where it was being written when the pass began to be granted: its shards are asked of the dispatcher.
    pub run: Option<RunId>,
    /// As in the pass's shape.
    pub selection: Option<String>,
    pub window: WindowId,
    pub attempt: Attempt,
    /// The first batch, and the end behind the last.
    pub batches: Range<u64>,
    /// From one batch to the next: 1 but in `static` and `rounds`.
    pub every: u64,
    /// Of the first batch, in `static` and `rounds`; each further batch is one step later.
    pub step: Option<u64>,
    /// Repeats an earlier batch: flagged as padding, acknowledged like any other.
    pub padding: bool,
}

impl Grant {
    /// The granted batches in order.
    pub fn each(&self) -> impl Iterator<Item = BatchId> + use<> {
        self.batches.clone().step_by(usize::try_from(self.every.max(1)).unwrap_or(usize::MAX)).map(BatchId)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    Done,
    AlreadyMaterialized,
    Failed,
    Cancelled,
    Interrupted,
}

/// A run as users see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    pub dataset: DatasetName,
    pub state: RunState,
    pub epochs: Vec<EpochId>,
    pub published: Vec<EpochId>,
    pub progress: RunProgress,
    pub version: Option<VersionId>,
    pub error: Option<Error>,
}

/// Rows and bytes include what running attempts report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunProgress {
    pub tasks: u64,
    pub tasks_done: u64,
    pub rows: u64,
    pub source_bytes: u64,
    pub source_bytes_done: u64,
    pub bytes: u64,
    pub quarantined: u64,
}
