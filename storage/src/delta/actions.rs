//! The actions of the Delta protocol that matter here, as they are written and read.

use forebay_core::ids::{Attempt, EpochId, TaskId};
use forebay_core::shard::{RowGroupMeta, ShardMeta};
use forebay_core::text::BundleMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// One line of a commit: exactly one of these is set. Actions unknown here are ignored, as the protocol asks; what a reader may not ignore
/// is guarded by the protocol action's features.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) protocol: Option<Protocol>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) meta_data: Option<MetaData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) txn: Option<Txn>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) add: Option<Add>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remove: Option<Remove>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) commit_info: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Protocol {
    pub(super) min_reader_version: i32,
    pub(super) min_writer_version: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reader_features: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) writer_features: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MetaData {
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) format: Format,
    pub(super) schema_string: String,
    #[serde(default)]
    pub(super) partition_columns: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) created_time: Option<i64>,
    #[serde(default)]
    pub(super) configuration: BTreeMap<String, Option<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Format {
    pub(super) provider: String,
    #[serde(default)]
    pub(super) options: BTreeMap<String, Option<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Txn {
    pub(super) app_id: String,
    pub(super) version: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_updated: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Add {
    pub(super) path: String,
    #[serde(default)]
    pub(super) partition_values: BTreeMap<String, Option<String>>,
    pub(super) size: i64,
    pub(super) modification_time: i64,
    pub(super) data_change: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stats: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tags: Option<BTreeMap<String, Option<String>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deletion_vector: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Remove {
    pub(super) path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deletion_timestamp: Option<i64>,
    #[serde(default = "yes")]
    pub(super) data_change: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) extended_file_metadata: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) partition_values: Option<BTreeMap<String, Option<String>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<i64>,
}

fn yes() -> bool {
    true
}

const TASK: &str = "forebay.task";
const PART: &str = "forebay.part";
const ATTEMPT: &str = "forebay.attempt";
/// The shard's text index, as JSON.
const INDEX: &str = "forebay.index";
const STAGING: &str = "forebay.staging";
/// Rows of each row group, as numbers with commas.
const ROWS: &str = "forebay.rows";
/// Stored uncompressed bytes of each row group, likewise.
const BYTES: &str = "forebay.bytes";

fn numbers(list: impl Iterator<Item = u64>) -> String {
    list.map(|n| n.to_string()).collect::<Vec<_>>().join(",")
}

/// A bundle is only ever opened in the table's own private folder: a tampered log must not become another read.
fn bundle_path(index: &BundleMeta) -> bool {
    let inside = index.path.strip_prefix(super::paths::BUNDLES);
    inside.is_some_and(|rest| {
        rest.split('/').all(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_alphanumeric() || "=-_.".contains(c)) && !p.starts_with('.'))
    })
}

impl Add {
    /// The add action of a shard, with everything that planning needs in its tags.
    pub(super) fn of(shard: &ShardMeta) -> Add {
        let mut tags: BTreeMap<_, _> = [
            (TASK, shard.task.to_string()),
            (PART, shard.part.to_string()),
            (ATTEMPT, shard.attempt.to_string()),
            (ROWS, numbers(shard.row_groups.iter().map(|g| g.rows))),
            (BYTES, numbers(shard.row_groups.iter().map(|g| g.bytes))),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), Some(v)))
        .collect();
        if let Some(staging) = shard.staging {
            tags.insert(STAGING.to_owned(), Some(staging.to_string()));
        }
        if let Some(index) = shard.index.as_ref().and_then(|i| serde_json::to_string(i).ok()) {
            tags.insert(INDEX.to_owned(), Some(index));
        }
        Add {
            path: shard.path.clone(),
            partition_values: [("epoch".to_owned(), Some(shard.epoch.to_string()))].into(),
            size: i64::try_from(shard.size).unwrap_or(i64::MAX),
            modification_time: shard.modified_ms,
            data_change: true,
            stats: shard.stats.clone(),
            tags: Some(tags),
            deletion_vector: None,
        }
    }

    /// The path of its text index, relative to the table.
    pub(super) fn bundle(&self) -> Option<String> {
        let text = self.tags.as_ref()?.get(INDEX)?.as_deref()?;
        Some(serde_json::from_str::<BundleMeta>(text).ok()?.path)
    }

    /// The shard that our tags describe; `None` for a file of another writer (no tags, or tags that aren't whole). `path` is the checked
    /// path.
    pub(super) fn shard(&self, path: &str, epoch: EpochId) -> Option<ShardMeta> {
        let tags = self.tags.as_ref()?;
        let tag = |key: &str| tags.get(key).and_then(Option::as_deref);
        let list = |key: &str| tag(key)?.split(',').map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>();
        let (rows, bytes) = (list(ROWS)?, list(BYTES)?);
        if rows.len() != bytes.len() {
            return None;
        }
        let row_groups = rows.into_iter().zip(bytes).map(|(rows, bytes)| RowGroupMeta { rows, bytes }).collect();
        Some(ShardMeta {
            path: path.to_owned(),
            epoch,
            task: TaskId(tag(TASK)?.parse().ok()?),
            part: tag(PART)?.parse().ok()?,
            attempt: Attempt(tag(ATTEMPT)?.parse().ok()?),
            size: u64::try_from(self.size).ok()?,
            modified_ms: self.modification_time,
            row_groups,
            staging: tag(STAGING).and_then(|s| s.parse().ok()),
            stats: self.stats.clone(),
            // A description that another program spoiled is none: the shard is searched row by row.
            index: tag(INDEX).and_then(|text| serde_json::from_str(text).ok()).filter(bundle_path),
        })
    }
}
