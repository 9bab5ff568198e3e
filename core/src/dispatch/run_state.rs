//! Materialization runs as they stand.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::state::RunId;
use crate::error::Error;
use crate::ids::{Attempt, DatasetName, EpochId, TaskId, VersionId, WorkerName};
use crate::pipeline::PipelineSpec;
use crate::shard::ShardMeta;

/// Failures remembered per dataset, for `tasks --failed`.
pub(super) const KEPT_FAILURES: usize = 100;

/// What a worker needs to know to run any task of a run, and what decides the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    pub dataset: DatasetName,
    /// Hash of the canonical spec, the code and the source snapshot.
    pub fingerprint: String,
    pub pipeline: PipelineSpec,
    /// Module name -> text of the Python modules.
    #[serde(default)]
    pub code: BTreeMap<String, String>,
    /// Path of the source snapshot's artefact under the root.
    pub snapshot: String,
    /// Source bytes of each task; its length is the number of tasks of every epoch.
    pub task_bytes: Vec<u64>,
    /// What else is in the fingerprint, by a name users understand (`source`, `module augment`) with its own hash: names the difference when
    /// the specs are equal.
    #[serde(default)]
    pub parts: BTreeMap<String, String>,
}

/// What the dispatcher remembers of a dataset's materialization.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Dataset {
    /// Attempts below this were handed out by some run: shard names never collide, not even with those of replaced versions.
    pub next_attempt: u32,
    /// The newest version that this dispatcher published.
    pub version: Option<VersionId>,
    pub run: Option<Run>,
    /// What runs before that one published.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub earlier: BTreeMap<EpochId, EarlierEpoch>,
    /// The last failures of tasks, oldest first.
    #[serde(default)]
    pub failures: VecDeque<TaskFailure>,
}

/// An epoch that an earlier run published: jobs that followed it while it was written find it by its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierEpoch {
    pub run: RunId,
    pub version: VersionId,
    pub rows: u64,
}

/// One failed attempt of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskFailure {
    pub run: RunId,
    pub epoch: EpochId,
    pub task: TaskId,
    pub attempt: Attempt,
    pub worker: WorkerName,
    pub error: Error,
    pub at_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    Running,
    /// Its owner died and nobody asked to go on; staged shards are kept for `--resume`.
    Interrupted,
    Cancelled,
    Failed(Error),
    Done,
}

/// The materialization of some epochs of one pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub id: RunId,
    #[serde(with = "super::entry::arc")]
    pub spec: Arc<RunSpec>,
    /// The first commit of this run removes the epochs of the pipeline before it.
    pub replace: bool,
    pub phase: RunPhase,
    pub started_ms: i64,
    pub epochs: BTreeMap<EpochId, EpochRun>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochPhase {
    /// Tasks are missing, or all are staged and the commit is not written down yet.
    Open,
    /// This body is to be committed at this version, by whoever leads.
    Publishing {
        version: VersionId,
        body: String,
    },
    Published {
        version: VersionId,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochRun {
    pub phase: EpochPhase,
    /// By task number; emptied when the epoch is published.
    pub tasks: Vec<Task>,
    /// No task below this is pending.
    #[serde(default)]
    pub(super) first_pending: usize,
    /// Staged tasks so far, which is the next staging number too.
    pub staged: u64,
    pub rows: u64,
    /// Stored bytes.
    pub bytes: u64,
    /// Source bytes of the staged tasks.
    pub source_bytes: u64,
    pub quarantined: u64,
}

/// Rows that a task put aside.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quarantined {
    pub rows: u64,
    /// Where they are kept, under the root; null when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// The one accepted result of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Staged {
    pub attempt: Attempt,
    pub staging: u64,
    pub shards: Vec<ShardMeta>,
    #[serde(default)]
    pub quarantined: Quarantined,
}

/// One source chunk of one epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Attempts from here up to `next_attempt` belong to this run; reports of others change nothing.
    pub first_attempt: u32,
    pub next_attempt: u32,
    /// Who is at it: at most one until stragglers are run twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<(Attempt, WorkerName)>,
    #[serde(default)]
    pub failures: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<Staged>,
}

impl Task {
    pub fn new(first_attempt: u32) -> Self {
        Self { first_attempt, next_attempt: first_attempt, holders: Vec::new(), failures: 0, staged: None }
    }

    /// Whether it can be handed out.
    pub fn is_pending(&self) -> bool {
        self.staged.is_none() && self.holders.is_empty()
    }

    /// Whether `attempt` is one that this run handed out.
    pub fn knows(&self, attempt: Attempt) -> bool {
        (self.first_attempt..self.next_attempt).contains(&attempt.0)
    }
}

impl EpochRun {
    pub fn new(tasks: usize, first_attempt: u32) -> Self {
        Self {
            phase: EpochPhase::Open,
            tasks: (0..tasks).map(|_| Task::new(first_attempt)).collect(),
            first_pending: 0,
            staged: 0,
            rows: 0,
            bytes: 0,
            source_bytes: 0,
            quarantined: 0,
        }
    }

    /// All tasks are staged and nothing is written down of the commit.
    pub fn is_complete(&self) -> bool {
        matches!(self.phase, EpochPhase::Open) && self.staged == self.tasks.len() as u64
    }

    /// The first task that can be handed out.
    pub(super) fn pending_task(&self) -> Option<TaskId> {
        let index = self.first_pending + self.tasks.get(self.first_pending..)?.iter().position(Task::is_pending)?;
        u32::try_from(index).ok().map(TaskId)
    }

    /// Moves the lower bound past tasks that are not pending.
    pub(super) fn advance(&mut self) {
        while self.tasks.get(self.first_pending).is_some_and(|t| !t.is_pending()) {
            self.first_pending += 1;
        }
    }

    pub fn is_published(&self) -> bool {
        matches!(self.phase, EpochPhase::Published { .. })
    }
}

impl Run {
    pub fn is_running(&self) -> bool {
        self.phase == RunPhase::Running
    }

    /// The epoch whose commit is journaled and not known to have landed.
    pub fn publishing(&self) -> Option<(EpochId, VersionId, &str)> {
        self.epochs.iter().find_map(|(epoch, run)| match &run.phase {
            EpochPhase::Publishing { version, body } => Some((*epoch, *version, body.as_str())),
            _ => None,
        })
    }

    pub fn published(&self) -> Vec<EpochId> {
        self.epochs.iter().filter(|(_, e)| e.is_published()).map(|(id, _)| *id).collect()
    }

    pub fn task(&self, epoch: EpochId, task: TaskId) -> Option<&Task> {
        self.epochs.get(&epoch)?.tasks.get(task.0 as usize)
    }
}
