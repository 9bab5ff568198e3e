//! From a replayed log to a version that can be planned and read.

use forebay_core::ids::{Attempt, DatasetName, EpochId, TaskId, VersionId};
use forebay_core::shard::{RowGroupMeta, ShardMeta};
use forebay_core::{Error, Result};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::actions::{Add, Protocol};
use super::log::{LogFiles, replay};
use super::{DatasetVersion, TableIdentity, paths};
use crate::root::Root;
use crate::shard::load_footer;
use crate::types::{EPOCH, stored_from_delta};

/// Footers read at once for files of other writers.
const CONCURRENCY: usize = 8;

/// The names of the datasets that exist, sorted. Folders without a log are none.
///
/// # Errors
/// Failures of the store.
pub async fn list_datasets(root: &Root) -> Result<Vec<DatasetName>> {
    let folder = Path::from("datasets");
    let listed = crate::root::listing::list_folder(root.store().as_ref(), &folder).await.map_err(|e| root.error("list", &folder, &e))?;
    // Collected, because a borrowing closure inside the stream would keep this future from being `Send` for callers that box it.
    let names: Vec<_> = listed.common_prefixes.iter().filter_map(Path::filename).filter_map(|n| DatasetName::parse(n).ok()).collect();
    let found = futures::stream::iter(names).map(|name| async move {
        let gone = LogFiles::list(root, &name).await?.is_gone(root, &name).await?;
        Ok::<_, Error>((!gone).then_some(name))
    });
    let mut names: Vec<_> = found.buffered(CONCURRENCY).try_collect::<Vec<_>>().await?.into_iter().flatten().collect();
    names.sort();
    Ok(names)
}

/// Opens a version, the newest for `None`. Files that another writer added are taken up after ours, in the order of their paths, by their
/// footers; what can't be read rightly is refused.
///
/// # Errors
/// `NotFound` for a dataset or version that doesn't exist, `Unsupported` for a log that needs features unknown here, `Corrupt` for one that
/// can't be trusted; each names the file.
pub async fn open_version(root: &Root, name: &DatasetName, version: Option<VersionId>) -> Result<Arc<DatasetVersion>> {
    let files = LogFiles::list(root, name).await?;
    let Some(newest) = files.newest() else {
        if !files.is_gone(root, name).await? {
            return Err(LogFiles::lost(root, name, 0));
        }
        return Err(Error::not_found(format!("there is no dataset `{name}`")).with_remedy("`forebay datasets` lists those that exist"));
    };
    let version = version.map_or(newest, |v| v.0);
    let replayed = replay(root, name, &files, version).await?;
    let broken = |what: &str| Error::corrupt(format!("the log of `{name}` has no {what} at version {version}"));
    check_protocol(name, replayed.protocol.as_ref().ok_or_else(|| broken("protocol"))?)?;
    let metadata = replayed.metadata.ok_or_else(|| broken("metadata"))?;
    if metadata.partition_columns != [EPOCH] {
        return Err(Error::unsupported(format!("`{name}` is partitioned by {:?} and not by `epoch`", metadata.partition_columns))
            .with_remedy("another program changed the table; restore an older version"));
    }
    let stored = stored_from_delta(&metadata.schema_string).map_err(|e| e.context(format!("the schema of `{name}`")))?;
    let shards = shards(root, name, replayed.adds.into_values()).await?;
    Ok(Arc::new(DatasetVersion {
        name: name.clone(),
        version: VersionId(version),
        schema: Arc::clone(&stored.logical),
        stored,
        shards,
        properties: metadata.configuration.into_iter().filter_map(|(k, v)| Some((k, v?))).collect(),
        table: TableIdentity { id: metadata.id, created_ms: metadata.created_time },
    }))
}

fn check_protocol(name: &DatasetName, protocol: &Protocol) -> Result<()> {
    let features = protocol.reader_features.clone().unwrap_or_default();
    if protocol.min_reader_version <= 1 || (protocol.min_reader_version == 3 && features.is_empty()) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "`{name}` needs Delta reader version {} with the features {features:?}, which another program turned on",
        protocol.min_reader_version
    ))
    .with_remedy("open an older version, or materialize the dataset again"))
}

async fn shards(root: &Root, name: &DatasetName, adds: impl Iterator<Item = Add>) -> Result<Vec<ShardMeta>> {
    let mut ours = Vec::new();
    let mut foreign = Vec::new();
    for add in adds {
        let path = paths::checked(&add.path).map_err(|e| e.context(format!("dataset `{name}`")))?;
        if add.deletion_vector.is_some() {
            return Err(Error::unsupported(format!("`{name}`: the file `{path}` has a deletion vector, written by another program"))
                .with_remedy("open an older version, or rewrite the table without deletion vectors"));
        }
        let epoch = add.partition_values.get(EPOCH).and_then(Option::as_deref).and_then(|e| e.parse().ok()).map(EpochId);
        let epoch = epoch.ok_or_else(|| Error::corrupt(format!("`{name}`: the file `{path}` belongs to no epoch")))?;
        match add.shard(&path, epoch) {
            Some(shard) => ours.push(shard),
            None => foreign.push(foreign_shard(&add, path, epoch)),
        }
    }
    if !foreign.is_empty() {
        tracing::warn!(dataset = %name, files = foreign.len(), "files of another writer are read by their footers");
        ours.extend(adopt(root, name, &ours, foreign).await?);
    }
    ours.sort_by(|a, b| (a.epoch, a.task, a.part, &a.path).cmp(&(b.epoch, b.task, b.part, &b.path)));
    Ok(ours)
}

fn foreign_shard(add: &Add, path: String, epoch: EpochId) -> ShardMeta {
    ShardMeta {
        path,
        epoch,
        task: TaskId(0),
        part: 0,
        attempt: Attempt(0),
        size: u64::try_from(add.size).unwrap_or(0),
        modified_ms: add.modification_time,
        row_groups: Vec::new(),
        staging: None,
        stats: add.stats.clone(),
        index: None,
    }
}

/// Gives files of other writers task numbers behind ours and their row groups from their footers. The same version gives the same order
/// anywhere.
async fn adopt(root: &Root, name: &DatasetName, ours: &[ShardMeta], mut foreign: Vec<ShardMeta>) -> Result<Vec<ShardMeta>> {
    foreign.sort_by(|a, b| (a.epoch, &a.path).cmp(&(b.epoch, &b.path)));
    let mut next: BTreeMap<EpochId, u32> = BTreeMap::new();
    for shard in ours {
        let next = next.entry(shard.epoch).or_default();
        *next = (*next).max(shard.task.0.saturating_add(1));
    }
    for shard in &mut foreign {
        let next = next.entry(shard.epoch).or_default();
        shard.task = TaskId(*next);
        *next = next.saturating_add(1);
    }
    let read = futures::stream::iter(foreign).map(|mut shard| async move {
        let footer = load_footer(root, name, &shard).await.map_err(|e| e.context(format!("`{name}`: a file of another writer")))?;
        let number = |n: i64| u64::try_from(n).unwrap_or(0);
        let groups = footer.metadata().row_groups().iter();
        shard.row_groups = groups.map(|g| RowGroupMeta { rows: number(g.num_rows()), bytes: number(g.total_byte_size()) }).collect();
        Ok::<_, Error>(shard)
    });
    read.buffered(CONCURRENCY).try_collect().await
}
