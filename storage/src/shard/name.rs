//! A shard's name says what it holds: `epoch=E/TASK-PART-ATTEMPT.parquet`.

use forebay_core::ids::{Attempt, DatasetName, EpochId, TaskId};
use object_store::path::Path;

/// The numbers in a shard's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardName {
    pub epoch: EpochId,
    pub task: TaskId,
    pub part: u32,
    pub attempt: Attempt,
    /// 0 for the first file of this name. A later one exists where a version that was replaced, and is still readable, took the name.
    pub generation: u32,
}

impl ShardName {
    /// Relative to the dataset's table.
    pub fn path(&self) -> String {
        let (stem, Self { attempt, generation, .. }) = (self.stem(), self);
        match generation {
            0 => format!("{stem}-{attempt}.parquet"),
            _ => format!("{stem}-{attempt}-{generation}.parquet"),
        }
    }

    /// Which rows of the dataset it holds, whoever wrote them.
    pub(super) fn stem(&self) -> String {
        let Self { epoch, task, part, .. } = self;
        format!("epoch={epoch}/{task:06}-{part:03}")
    }
}

/// Where a dataset's file lies under the root; `relative` is relative to its table.
pub fn shard_path(name: &DatasetName, relative: &str) -> Path {
    // Parts are joined as they are: a name from a foreign log may hold characters that `Path::from` would escape a second time.
    Path::parse(format!("datasets/{name}/{relative}")).unwrap_or_else(|_| Path::from(format!("datasets/{name}/{relative}")))
}
