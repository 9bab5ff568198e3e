//! What is known of a shard without opening it: the journal stages it, the Delta log's add action carries it in its tags.

use serde::{Deserialize, Serialize};

use crate::ids::{Attempt, EpochId, TaskId};
use crate::text::BundleMeta;

/// The unit of reading inside a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowGroupMeta {
    pub rows: u64,
    /// Stored uncompressed size of all columns, in bytes.
    pub bytes: u64,
}

/// One Parquet file of one epoch, written once at its final name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardMeta {
    /// Relative to the dataset's table: `epoch=E/TASK-PART-ATTEMPT.parquet`.
    pub path: String,
    pub epoch: EpochId,
    pub task: TaskId,
    /// Which of the task's shards, from 0.
    pub part: u32,
    pub attempt: Attempt,
    /// Size of the file in bytes.
    pub size: u64,
    /// Milliseconds since the Unix epoch at which the file was closed.
    pub modified_ms: i64,
    pub row_groups: Vec<RowGroupMeta>,
    /// Order in which the task was staged, from 0; replays `order = "staged"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<u64>,
    /// Delta statistics (`numRecords`, `minValues`, ...) as the JSON text that goes into the add action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<String>,
    /// Its text index, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<BundleMeta>,
}

impl ShardMeta {
    pub fn rows(&self) -> u64 {
        self.row_groups.iter().map(|g| g.rows).sum()
    }
}
