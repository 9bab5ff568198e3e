//! The snapshot of a source: which files, which id ranges, which tasks. Plain data; `storage` makes and reads it.

use serde::{Deserialize, Serialize};

use crate::ids::{DatasetName, TaskId, VersionId};

/// One source file as it was when the source was snapshotted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Relative to the source's base where the file lies under it, else absolute; `/`-separated. Names that are not UTF-8 have their
    /// bytes percent-encoded. Shown as `_source`.
    pub path: String,
    pub size: u64,
    /// An etag, or the modification time in nanoseconds as text: whatever changes with the content.
    pub stamp: String,
    /// First `_id` of the file's range.
    pub id_base: i64,
    /// Length of the file's id range.
    pub id_range: i64,
}

/// The part of a file that a task reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// The whole file.
    Whole,
    /// Records that begin in `[start, end)`, a byte range that begins on a record boundary.
    Bytes { start: u64, end: u64 },
    /// Rows `[start, end)`.
    Rows { start: u64, end: u64 },
}

/// One source chunk: pieces of files in the order of their ids, which is path order except for files that came later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    pub task: TaskId,
    /// (index into [`SourceSnapshot::files`], piece).
    pub pieces: Vec<(u32, Piece)>,
}

/// A dataset that a source's query reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceInput {
    pub dataset: DatasetName,
    /// The version that all of its rows come from.
    pub version: VersionId,
    /// The table's own id: a dataset that was dropped and made anew counts its versions from 0 again.
    pub table: String,
}

/// What a query answered when it was staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedQuery {
    /// In the order of their names.
    pub inputs: Vec<SourceInput>,
    pub rows: u64,
    /// Digest of the rows in their order, as hex; none where a column's type has none.
    pub digest: Option<String>,
}

/// Everything about a source that decides the rows it yields. Stored with the dataset; id ranges are never reassigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSnapshot {
    /// Absolute path or URL that the files' paths are relative to.
    pub base: String,
    pub files: Vec<SourceFile>,
    pub tasks: Vec<TaskSpec>,
    /// Resolved column names and Arrow type names in order, where the format has to infer them (csv, json); else empty.
    #[serde(default)]
    pub columns: Vec<(String, String)>,
    /// First `_id` that no file of this or an earlier snapshot has used: ranges of files that vanished are not reused either.
    #[serde(default)]
    pub next_id: i64,
    /// Of a source that is a query; its file is the staged result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<StagedQuery>,
}

/// A row that could not be read or processed. `Quarantine` keeps these, `Fail` reports the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRow {
    pub id: i64,
    /// The file it came from, as in `_source`.
    pub source: String,
    /// What is wrong and what to do about it, naming line, column or step.
    pub message: String,
}

impl SourceSnapshot {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }
}
