//! The messages. Fields are only added, with defaults, within one [`super::CONTROL_VERSION`].

use std::fmt;
use std::ops::Range;

use forebay_core::Error;
use forebay_core::dispatch::{Quarantined, RunId, RunSpec, StagedShards, StreamId};
use forebay_core::ids::{
    Attempt, BatchId, ConsumerName, DatasetName, EpochId, Incarnation, JobName, PassId, Session, TaskId, VersionId, WindowId, WorkerName,
};
use forebay_core::job::JobSettings;
use forebay_core::shard::ShardMeta;
use serde::{Deserialize, Serialize};

/// One request of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub worker: WorkerName,
    /// Of this process: another one under the same name takes its place.
    pub instance: String,
    pub ask: Ask,
}

/// How others reach a worker, and what it can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerAddress {
    /// `host:port`, as given by `--advertise`.
    pub address: String,
    /// Tasks that it runs at once.
    pub slots: u32,
    pub draining: bool,
}

/// An attempt at a task, by name: its spec is fetched once per run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseRef {
    pub dataset: DatasetName,
    pub run: RunId,
    pub epoch: EpochId,
    pub task: TaskId,
    pub attempt: Attempt,
}

/// A task that a worker runs, with its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Running {
    pub lease: LeaseRef,
    pub rows: u64,
    pub bytes: u64,
}

/// A job's stream that a worker has open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamRef {
    pub job: JobName,
    pub stream: StreamId,
}

/// A heartbeat: renews the worker's lease, and says all that the worker holds, so that what the dispatcher gave and the worker never heard of is
/// taken back.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Beat {
    pub tasks: Vec<Running>,
    pub streams: Vec<StreamRef>,
}

/// What a worker asks or reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    Register(WorkerAddress),
    Beat(Beat),
    /// It is going: nothing new for it, and its streams end with `drain`.
    Drain,
    /// It is gone: whatever it still holds goes back or is lost.
    Leave,
    NextTask {
        wait_ms: u64,
    },
    /// The spec of a run that a task belongs to.
    Spec {
        dataset: DatasetName,
        run: RunId,
    },
    TaskStaged {
        lease: LeaseRef,
        shards: Vec<ShardMeta>,
        quarantined: Quarantined,
    },
    TaskFailed {
        lease: LeaseRef,
        error: Error,
    },
    JobSettings {
        job: JobName,
    },
    OpenStream {
        job: JobName,
        incarnation: Incarnation,
        consumer: ConsumerName,
        /// The consumer's process, here and below.
        #[serde(default)]
        session: Option<Session>,
        acks: bool,
    },
    NextGrant {
        job: JobName,
        stream: StreamId,
        max_batches: u64,
        /// How many grants the worker has had on the stream.
        #[serde(default)]
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
        #[serde(default)]
        session: Option<Session>,
        pass: PassId,
        batches: Vec<(BatchId, Option<u64>)>,
    },
    CloseStream {
        job: JobName,
        stream: StreamId,
        clean: bool,
    },
    LeaveJob {
        job: JobName,
        consumer: ConsumerName,
        #[serde(default)]
        session: Option<Session>,
    },
    /// Shards of an epoch that is being written, from a staging number on.
    Staged {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        from: u64,
    },
    /// The spec of a dataset's current or last run.
    RunSpec {
        dataset: DatasetName,
    },
    /// Whether any stream of the consumer is open, on any worker.
    Streaming {
        job: JobName,
        consumer: ConsumerName,
    },
}

/// What a registered worker needs to know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// URL of the root as the dispatcher has it, without credentials.
    pub root: String,
    /// Signs the root's tickets; as secret as the token.
    pub secret: [u8; 32],
    /// Length of every lease.
    pub term_ms: u64,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("root", &self.root).field("term_ms", &self.term_ms).finish_non_exhaustive()
    }
}

/// Answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Told {
    /// Tasks of the heartbeat that nobody waits for any more.
    pub unwanted: Vec<LeaseRef>,
    /// Somebody asked for this worker to be drained.
    pub draining: bool,
    /// Addresses of the workers that are there, this one among them: queries are divided among them.
    #[serde(default)]
    pub workers: Vec<String>,
}

/// As `forebay_core::dispatch::Granted`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantedMessage {
    Batches {
        pass: PassId,
        epoch: EpochId,
        /// Null while the epoch is being written.
        version: Option<VersionId>,
        /// Who writes it then.
        #[serde(default)]
        run: Option<RunId>,
        selection: Option<String>,
        window: WindowId,
        attempt: Attempt,
        batches: Range<u64>,
        /// From one batch to the next.
        #[serde(default = "one")]
        every: u64,
        /// Of the first batch, where ranks take turns.
        #[serde(default)]
        step: Option<u64>,
        #[serde(default)]
        padding: bool,
    },
    EndOfPass(PassId),
    EndOfJob,
    Drain,
}

fn one() -> u64 {
    1
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    /// Nothing for that long.
    Wait,
    /// This dispatcher does not know the worker, or not any more: register first.
    Unregistered,
    Registered(Registered),
    Told(Told),
    Task(LeaseRef),
    Spec(Box<RunSpec>),
    Settings(Option<Box<JobSettings>>),
    Stream(StreamId),
    Granted(GrantedMessage),
    Staged(StagedShards),
    RunSpec(Option<Box<RunSpec>>),
    Yes(bool),
}

/// An answer, or the dispatcher's refusal: statuses are for the transport and for standbys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok(Answer),
    Err(Error),
}
