//! Journal entries: what was decided, as JSON with a version. Old entries must decode for ever, so fields are only added, with defaults.

use serde::{Deserialize, Serialize};

use super::commit_state::Restored;
use super::pass_state::PassShape;
use super::run_state::{Quarantined, RunSpec};
use super::spans::Reason;
use super::state::{RunId, StreamId};
use crate::error::{Error, Result};
use crate::ids::{
    Attempt, BatchId, ConsumerName, DatasetName, EpochId, Fence, Incarnation, JobName, PassId, Session, TaskId, VersionId, WindowId,
    WorkerName,
};
use crate::job::JobSettings;
use crate::shard::ShardMeta;

/// Written into every entry; a newer one is refused.
pub const ENTRY_VERSION: u32 = 1;

/// One durable fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub v: u32,
    /// Of the leader that wrote it.
    pub fence: Fence,
    /// Wall clock of the decision, for people; nothing is decided by it.
    pub at_ms: i64,
    pub change: Change,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A leader begins; entries under older fences count no more.
    Lead {
        address: Option<String>,
    },

    RunStarted {
        dataset: DatasetName,
        run: RunId,
        spec: Box<RunSpec>,
        epochs: Vec<EpochId>,
        replace: bool,
    },
    /// More epochs of the same pipeline.
    RunExtended {
        dataset: DatasetName,
        run: RunId,
        epochs: Vec<EpochId>,
    },
    /// An interrupted, cancelled or failed run goes on with what it staged.
    RunResumed {
        dataset: DatasetName,
        run: RunId,
        epochs: Vec<EpochId>,
    },
    RunInterrupted {
        dataset: DatasetName,
        run: RunId,
    },
    RunCancelled {
        dataset: DatasetName,
        run: RunId,
    },
    RunFailed {
        dataset: DatasetName,
        run: RunId,
        error: Error,
    },
    TaskLeased {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        task: TaskId,
        attempt: Attempt,
        worker: WorkerName,
    },
    /// An attempt ended without a result; with an error it counts as a failure.
    TaskReturned {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        task: TaskId,
        attempt: Attempt,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Error>,
    },
    TaskStaged {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        task: TaskId,
        attempt: Attempt,
        shards: Vec<ShardMeta>,
        #[serde(default)]
        quarantined: Quarantined,
    },
    /// Exactly this body is going to be committed at exactly this version.
    Publishing {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        version: VersionId,
        body: String,
    },
    Published {
        dataset: DatasetName,
        run: RunId,
        epoch: EpochId,
        version: VersionId,
    },
    /// The run is forgotten and jobs on the dataset end.
    DatasetDropped {
        dataset: DatasetName,
    },

    /// A job's first or next incarnation; `epochs` are the C epochs it reads.
    JobCreated {
        settings: Box<JobSettings>,
        incarnation: Incarnation,
        epochs: Vec<EpochId>,
        /// The checkpoint that it goes on from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restored: Option<Box<Restored>>,
    },
    ConsumerJoined {
        job: JobName,
        consumer: ConsumerName,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rank: Option<u32>,
        #[serde(default)]
        acks_by_action: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<Session>,
    },
    /// It holds nothing any more.
    ConsumerGone {
        job: JobName,
        consumer: ConsumerName,
        reason: Reason,
    },
    StreamOpened {
        job: JobName,
        stream: StreamId,
        consumer: ConsumerName,
        worker: WorkerName,
        acks: bool,
    },
    StreamClosed {
        job: JobName,
        stream: StreamId,
        clean: bool,
    },
    PassStarted {
        job: JobName,
        pass: PassId,
        shape: PassShape,
    },
    /// The epoch of a pass that is being written has come further, or is published: more windows may be granted.
    PassGrown {
        job: JobName,
        pass: PassId,
        shape: PassShape,
    },
    WindowLeased {
        job: JobName,
        pass: PassId,
        window: WindowId,
        worker: WorkerName,
        attempt: Attempt,
    },
    /// Batches `[from, to)` of the window, counted from its first.
    Granted {
        job: JobName,
        pass: PassId,
        window: WindowId,
        stream: StreamId,
        from: u32,
        to: u32,
    },
    /// (batch, digest of its row keys).
    Sent {
        job: JobName,
        pass: PassId,
        stream: StreamId,
        batches: Vec<(BatchId, u64)>,
    },
    /// (batch, digest where the reporter knows it).
    Acknowledged {
        job: JobName,
        pass: PassId,
        consumer: ConsumerName,
        batches: Vec<(BatchId, Option<u64>)>,
    },
    /// The consumer lost these streams, and of what it was granted on closed streams it received only this: the rest is revoked at the client.
    Reported {
        job: JobName,
        consumer: ConsumerName,
        /// Its own count of reports: an older one says nothing.
        number: u64,
        streams: Vec<StreamId>,
        received: Vec<(PassId, Vec<BatchId>)>,
    },
    /// A batch is repeated on a stream, so that its rank makes as many steps as the others.
    Padded {
        job: JobName,
        pass: PassId,
        stream: StreamId,
        batch: BatchId,
    },
    /// The common end of the pass is after this many steps now.
    EndMoved {
        job: JobName,
        pass: PassId,
        steps: u64,
    },
    /// `rank_lost`: the others go on without the rank, from this batch of this pass on.
    RankDropped {
        job: JobName,
        rank: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<(PassId, BatchId)>,
        /// The common end of that pass now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<u64>,
    },
    /// The consumer made its `call`-th call, of this commit: it holds what the consumer had acknowledged by now.
    CommitCalled {
        job: JobName,
        consumer: ConsumerName,
        commit: u64,
        call: u64,
    },
    /// Every live consumer made its call.
    Committed {
        job: JobName,
        commit: u64,
        place: u32,
        /// Of a fixed map: the ranks stand before this batch of the pass at that place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<u64>,
        /// Of a fixed map: why there is nothing to restore.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uneven: Option<String>,
    },
    /// A worker's streams and window leases of a job are over.
    WorkerGone {
        job: JobName,
        worker: WorkerName,
    },
    /// The consumer was told that its pass is over.
    ConsumerAdvanced {
        job: JobName,
        consumer: ConsumerName,
        at: u32,
    },
    /// Nothing of the pass is pending: one decision, told to all.
    PassEnded {
        job: JobName,
        pass: PassId,
    },
    JobEnded {
        job: JobName,
        end: JobEnd,
    },
    /// These windows' visits are in those ledger files and are forgotten here.
    Watermark {
        job: JobName,
        pass: PassId,
        windows: Vec<WindowId>,
        /// Of windows that stay, the acknowledged batches `[from, to)` that those files hold too.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<(WindowId, Vec<(u32, u32)>)>,
        ledger: Vec<String>,
        number: u64,
    },
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEnd {
    /// All passes are over and all visits final.
    Finished,
    Stopped,
    /// No consumer was alive for the job's idle timeout.
    Idle,
    Failed(Error),
    /// A checkpoint is being restored: the next incarnation goes on.
    Restored,
}

impl Entry {
    /// The bytes that are journaled.
    pub fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::internal(format!("a journal entry could not be encoded: {e}")))
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let version: Version = serde_json::from_slice(bytes).map_err(|e| Error::corrupt(format!("a journal entry is not valid: {e}")))?;
        if version.v > ENTRY_VERSION {
            return Err(Error::unsupported(format!(
                "the journal has entries of version {}, and this program knows {ENTRY_VERSION}",
                version.v
            ))
            .with_remedy("use a newer forebay"));
        }
        serde_json::from_slice(bytes).map_err(|e| Error::corrupt(format!("a journal entry is not valid: {e}")))
    }
}

/// States up to this size are written down after a fixed number of entries.
const SMALL_STATE: usize = 1 << 20;
/// What an entry weighs against a state.
const ENTRY_BYTES: u64 = 256;

/// After how many entries a state that was `state_bytes` long when it was last written down is written again: `least`, and more where it is large, so
/// that neither writing states nor reading entries back costs much more than the other.
pub fn entries_per_state(least: u64, state_bytes: usize) -> u64 {
    least.max(state_bytes.saturating_sub(SMALL_STATE) as u64 / ENTRY_BYTES)
}

/// Shared values in the state are stored as what they point to.
pub(super) mod arc {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(in super::super) fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

/// The same where there may be none.
pub(super) mod arc_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(in super::super) fn serialize<T: Serialize, S: Serializer>(value: &Option<Arc<T>>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_deref().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<T>>, D::Error> {
        Ok(Option::<T>::deserialize(deserializer)?.map(Arc::new))
    }
}
