//! The Delta log of a dataset: which shards exist in which version.
//!
//! Owns: reading a version, the bytes of a commit, committing them at one exact version, dropping and vacuuming. Must not know: who commits
//! and why, what is in a shard.
//!
//! The log is read here and not through a library, for three reasons: an add action's tags (task, part, row groups) are what plans are made
//! of and the libraries' file views leave them out; a commit must land at one exact version with journaled bytes or not at all, without a
//! library's retries; and paths from a log must be refused before anything opens them. What is written is plain Delta (reader 1, writer 2,
//! no features), and `python/tests/test_storage_*.py` read it back through delta-rs and let delta-rs write to it, checkpoints included.

mod actions;
mod commit;
mod history;
mod index;
mod log;
mod open;
mod paths;
mod vacuum;

use arrow::datatypes::SchemaRef;
use forebay_core::Result;
use forebay_core::ids::{DatasetName, EpochId, VersionId};
use forebay_core::shard::{RowGroupMeta, ShardMeta};
use std::collections::{BTreeMap, BTreeSet};

pub use commit::{CommitOutcome, EpochCommit, commit_at, commit_body};
pub use history::{VersionInfo, versions};
pub use index::{INDEX_PROPERTY, index_body, index_property};
pub use open::{list_datasets, open_version};
pub use paths::{BUNDLES, QUERIES};
pub use vacuum::{Swept, drop_dataset, vacuum};

use crate::types::{PART, StoredSchema, delta_schema_json, stored_from_delta, to_stored};

/// Prefix of the table properties that are ours.
pub const PROPERTY_PREFIX: &str = "forebay.";
/// Table property: the epochs that were published without a row, as numbers with commas. Epochs with rows are known by their shards.
const EMPTY_EPOCHS: &str = "forebay.empty_epochs";

/// One version of a dataset, as far as planning and reading need it.
#[derive(Debug, Clone)]
pub struct DatasetVersion {
    pub name: DatasetName,
    pub version: VersionId,
    /// Logical, without the partition column `epoch`.
    pub schema: SchemaRef,
    pub stored: StoredSchema,
    /// Sorted by (epoch, task, part).
    pub shards: Vec<ShardMeta>,
    /// The table's configuration: `forebay.fingerprint`, `forebay.pipeline` and whatever else the commits carried.
    pub properties: BTreeMap<String, String>,
    table: TableIdentity,
}

/// What a later `metaData` action has to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TableIdentity {
    id: String,
    created_ms: Option<i64>,
}

impl DatasetVersion {
    /// The table's own id, which another table of the same name doesn't have.
    pub fn table_id(&self) -> &str {
        &self.table.id
    }

    /// The published epochs in order, those without rows included.
    pub fn epochs(&self) -> Vec<EpochId> {
        let mut epochs: BTreeSet<_> = self.shards.iter().map(|s| s.epoch).collect();
        epochs.extend(self.empty_epochs());
        epochs.into_iter().collect()
    }

    fn empty_epochs(&self) -> impl Iterator<Item = EpochId> {
        let list = self.properties.get(EMPTY_EPOCHS).map_or("", String::as_str);
        list.split(',').filter_map(|e| e.parse().ok().map(EpochId))
    }

    /// The shards of one epoch in (task, part) order.
    pub fn shards_of(&self, epoch: EpochId) -> Vec<&ShardMeta> {
        self.shards.iter().filter(|s| s.epoch == epoch).collect()
    }

    /// The row groups of one epoch in (task, part, row group) order: index into [`DatasetVersion::shards`], index in that shard, sizes.
    pub fn row_groups(&self, epoch: EpochId) -> Vec<(usize, usize, RowGroupMeta)> {
        let shards = self.shards.iter().enumerate().filter(|(_, s)| s.epoch == epoch);
        shards.flat_map(|(i, s)| s.row_groups.iter().enumerate().map(move |(g, meta)| (i, g, *meta))).collect()
    }

    /// The same in the order in which their tasks were staged, and how many of them belong to the first task that has rows. Files that nobody staged
    /// (another writer's) come last.
    pub fn staged_row_groups(&self, epoch: EpochId) -> (Vec<(usize, usize, RowGroupMeta)>, usize) {
        let place = |shard: usize| self.shards.get(shard).map(|s| (s.staging.unwrap_or(u64::MAX), s.task, s.part));
        let mut groups = self.row_groups(epoch);
        groups.sort_by_key(|(shard, group, _)| (place(*shard), *group));
        let task = |shard: usize| place(shard).map(|(staging, task, _)| (staging, task));
        let first = groups.iter().find(|(.., meta)| meta.rows > 0).map(|(shard, ..)| task(*shard));
        let count = first.map_or(0, |first| groups.partition_point(|(shard, ..)| task(*shard) <= first));
        (groups, count)
    }

    /// What stands for the version number of what no version names.
    pub const UNPUBLISHED: VersionId = VersionId(u64::MAX);

    /// A dataset of which nothing is published yet, without a shard.
    ///
    /// # Errors
    /// As [`to_stored`](crate::types::to_stored).
    pub fn unpublished(name: DatasetName, schema: SchemaRef, properties: BTreeMap<String, String>) -> Result<Self> {
        // By way of the log's own words, so that the columns are exactly those of the version that comes.
        let stored = stored_from_delta(&delta_schema_json(&to_stored(&schema)?)?)?;
        let table = TableIdentity { id: String::new(), created_ms: None };
        let schema = SchemaRef::clone(&stored.logical);
        Ok(Self { name, version: Self::UNPUBLISHED, schema, stored, shards: Vec::new(), properties, table })
    }

    /// The same with more staged shards.
    #[must_use]
    pub fn with_staged(&self, more: Vec<ShardMeta>) -> Self {
        let mut grown = self.clone();
        grown.shards.extend(more);
        grown.shards.sort_by_key(|s| (s.epoch, s.task, s.part));
        grown
    }

    /// Whether a step multiplied rows, so that the key is (`_id`, `_part`).
    pub fn has_part(&self) -> bool {
        self.stored.index_of(PART).is_some()
    }

    /// Rows of one epoch.
    pub fn rows(&self, epoch: EpochId) -> u64 {
        self.shards.iter().filter(|s| s.epoch == epoch).map(ShardMeta::rows).sum()
    }
}

#[cfg(test)]
mod tests;
