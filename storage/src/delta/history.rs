//! The versions of a dataset, for `system.versions`.

use forebay_core::ids::{DatasetName, EpochId, VersionId};
use forebay_core::{Error, Result};
use futures::{StreamExt, TryStreamExt};

use super::actions::Line;
use super::log::{LogFiles, read_commit};
use crate::root::Root;
use crate::types::EPOCH;

const CONCURRENCY: usize = 16;

/// What one commit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionInfo {
    pub version: VersionId,
    /// Milliseconds since the Unix epoch, as the writer wrote it.
    pub at_ms: Option<i64>,
    /// `WRITE`, `OPTIMIZE` and so on, as the writer wrote it.
    pub operation: String,
    /// The program that wrote it.
    pub engine: Option<String>,
    /// The epochs whose shards it added.
    pub epochs: Vec<EpochId>,
    pub shards_added: u64,
    pub shards_removed: u64,
    pub bytes_added: u64,
}

/// The commits that are still there, oldest first.
///
/// # Errors
/// `NotFound` for a dataset that doesn't exist, `Corrupt` for a commit that can't be read.
pub async fn versions(root: &Root, name: &DatasetName) -> Result<Vec<VersionInfo>> {
    let files = LogFiles::list(root, name).await?;
    if files.newest().is_none() {
        return Err(Error::not_found(format!("there is no dataset `{name}`")));
    }
    let commits = futures::stream::iter(files.commits).map(|v| async move {
        let lines = read_commit(root, name, VersionId(v)).await?;
        Ok::<_, Error>(info(VersionId(v), &lines))
    });
    commits.buffered(CONCURRENCY).try_collect().await
}

fn info(version: VersionId, lines: &[Line]) -> VersionInfo {
    let commit = lines.iter().find_map(|l| l.commit_info.as_ref());
    let text = |key: &str| commit.and_then(|c| c.get(key)).and_then(|v| v.as_str()).map(str::to_owned);
    let adds = || lines.iter().filter_map(|l| l.add.as_ref());
    let mut epochs: Vec<_> = adds().filter_map(|a| a.partition_values.get(EPOCH)?.as_deref()?.parse().ok().map(EpochId)).collect();
    epochs.extend(commit.and_then(|c| c.get("forebay")?.get("epoch")?.as_u64()).and_then(|e| u32::try_from(e).ok()).map(EpochId));
    epochs.sort();
    epochs.dedup();
    VersionInfo {
        version,
        at_ms: commit.and_then(|c| c.get("timestamp")).and_then(serde_json::Value::as_i64),
        operation: text("operation").unwrap_or_else(|| "UNKNOWN".to_owned()),
        engine: text("engineInfo"),
        epochs,
        shards_added: adds().count() as u64,
        shards_removed: lines.iter().filter(|l| l.remove.is_some()).count() as u64,
        bytes_added: adds().map(|a| u64::try_from(a.size).unwrap_or(0)).sum(),
    }
}
