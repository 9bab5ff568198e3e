//! Publishing: the bytes of a commit, and putting exactly those bytes at exactly one version.

use arrow::datatypes::{Schema, SchemaRef};
use forebay_core::ids::{DatasetName, EpochId, VersionId};
use forebay_core::shard::ShardMeta;
use forebay_core::{Error, Kind, Result};
use object_store::{ObjectStore, ObjectStoreExt, PutMode};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

use super::actions::{Add, Format, Line, MetaData, Protocol, Remove, Txn};
use super::log::{LogFiles, get};
use super::{DatasetVersion, EMPTY_EPOCHS, TableIdentity, paths};
use crate::root::Root;
use crate::types::{EPOCH, StoredSchema, delta_schema_json, to_stored};

/// How often the same bytes are tried when the store doesn't say what happened to them.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);

/// One epoch on its way into the log.
#[derive(Debug, Clone)]
pub struct EpochCommit {
    pub name: DatasetName,
    pub epoch: EpochId,
    /// Logical, with the key columns and without `epoch`.
    pub schema: SchemaRef,
    /// All shards of the epoch, in any order; none for an epoch without rows.
    pub shards: Vec<ShardMeta>,
    /// Table properties to set; those of earlier commits stay unless `replace`.
    pub properties: BTreeMap<String, String>,
    /// Drops everything that the previous version holds.
    pub replace: bool,
    /// Application id and version of the transaction, which tell dataset, epoch and attempt to anyone who reads the log.
    pub txn: (String, i64),
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
}

/// Whose commit stands at the version that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Exactly the bytes given.
    Ours,
    /// Another writer's; nothing of ours was written.
    Foreign,
}

/// The newline-delimited actions of one commit. Pure: the same arguments give the same bytes, so that they can be journaled before they are
/// put.
///
/// # Errors
/// `AlreadyExists` if the epoch is published and not replaced, `FailedPrecondition` if the schema differs from the table's, `Internal` for
/// shards that aren't of this epoch, and refused names and types as [`to_stored`].
pub fn commit_body(previous: Option<&DatasetVersion>, commit: &EpochCommit) -> Result<String> {
    let stored = to_stored(&commit.schema)?;
    check(previous, commit, &stored)?;
    let mut lines = vec![Line { commit_info: Some(commit_info(previous, commit)), ..Line::default() }];
    if previous.is_none() {
        let protocol = Protocol { min_reader_version: 1, min_writer_version: 2, reader_features: None, writer_features: None };
        lines.push(Line { protocol: Some(protocol), ..Line::default() });
    }
    if let Some(metadata) = metadata(previous, commit, &stored)? {
        lines.push(Line { meta_data: Some(metadata), ..Line::default() });
    }
    let (app_id, version) = commit.txn.clone();
    lines.push(Line { txn: Some(Txn { app_id, version, last_updated: Some(commit.now_ms) }), ..Line::default() });
    if let (Some(previous), true) = (previous, commit.replace) {
        lines.extend(previous.shards.iter().map(|s| Line { remove: Some(remove(s, commit.now_ms)), ..Line::default() }));
    }
    let mut shards: Vec<_> = commit.shards.iter().collect();
    shards.sort_by_key(|s| (s.task, s.part));
    lines.extend(shards.into_iter().map(|s| Line { add: Some(Add::of(s)), ..Line::default() }));
    let mut body = String::new();
    for line in lines {
        body.push_str(&serde_json::to_string(&line).map_err(|e| Error::internal(format!("a commit can't be written: {e}")))?);
        body.push('\n');
    }
    Ok(body)
}

fn check(previous: Option<&DatasetVersion>, commit: &EpochCommit, stored: &StoredSchema) -> Result<()> {
    if let Some(stray) = commit.shards.iter().find(|s| s.epoch != commit.epoch) {
        return Err(Error::internal(format!("the shard {} isn't of epoch {}", stray.path, commit.epoch)));
    }
    for shard in &commit.shards {
        paths::checked(&shard.path)?;
    }
    let Some(previous) = previous.filter(|_| !commit.replace) else {
        return Ok(());
    };
    if previous.epochs().contains(&commit.epoch) {
        return Err(Error::new(Kind::AlreadyExists, format!("epoch {} of `{}` is published", commit.epoch, commit.name))
            .with_remedy("a published epoch never changes; `--replace` publishes a new version without the old epochs"));
    }
    if previous.stored != *stored {
        let difference = difference(&previous.schema, &stored.logical);
        return Err(Error::failed_precondition(format!("the columns of `{}` changed: {difference}", commit.name))
            .with_remedy("`--replace` publishes a new version without the old epochs"));
    }
    Ok(())
}

fn difference(old: &Schema, new: &Schema) -> String {
    let show = |f: &arrow::datatypes::Field| format!("{} {}", f.name(), crate::types::type_name(f));
    let mut found = Vec::new();
    for field in old.fields() {
        match new.field_with_name(field.name()) {
            Err(_) => found.push(format!("without `{}`", show(field))),
            Ok(other) if other != field.as_ref() => found.push(format!("`{}` is now `{}`", show(field), show(other))),
            Ok(_) => {}
        }
    }
    found.extend(new.fields().iter().filter(|f| old.field_with_name(f.name()).is_err()).map(|f| format!("with `{}`", show(f))));
    if found.is_empty() { "another order".to_owned() } else { found.join(", ") }
}

fn commit_info(previous: Option<&DatasetVersion>, commit: &EpochCommit) -> serde_json::Value {
    let mode = if commit.replace { "Overwrite" } else { "Append" };
    let operation = if previous.is_none() { "CREATE TABLE AS SELECT" } else { "WRITE" };
    json!({
        "timestamp": commit.now_ms,
        "operation": operation,
        "operationParameters": {"mode": mode, "partitionBy": "[\"epoch\"]"},
        "isBlindAppend": !commit.replace,
        "engineInfo": concat!("forebay/", env!("CARGO_PKG_VERSION")),
        "forebay": {"epoch": commit.epoch, "txn": commit.txn.0},
        "operationMetrics": {
            "numFiles": commit.shards.len().to_string(),
            "numOutputRows": commit.shards.iter().map(ShardMeta::rows).sum::<u64>().to_string(),
            "numOutputBytes": commit.shards.iter().map(|s| s.size).sum::<u64>().to_string(),
        },
    })
}

/// The metadata action, if this commit needs one: the first does, and those that change properties or schema.
fn metadata(previous: Option<&DatasetVersion>, commit: &EpochCommit, stored: &StoredSchema) -> Result<Option<MetaData>> {
    let kept = previous.filter(|_| !commit.replace);
    let mut properties = match kept {
        Some(previous) => previous.properties.clone(),
        // Another program's checkpoint would otherwise remove old commits, and with them versions that jobs have pinned.
        None => [("delta.enableExpiredLogCleanup".to_owned(), "false".to_owned())].into(),
    };
    properties.extend(commit.properties.clone());
    if commit.shards.is_empty() {
        let mut empty: Vec<_> = kept.map(|p| p.empty_epochs().collect()).unwrap_or_default();
        empty.push(commit.epoch);
        properties.insert(EMPTY_EPOCHS.to_owned(), empty.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    }
    if kept.is_some_and(|p| p.properties == properties) {
        return Ok(None);
    }
    let table = match previous {
        Some(previous) => previous.table.clone(),
        None => TableIdentity { id: table_id(commit), created_ms: Some(commit.now_ms) },
    };
    Ok(Some(MetaData {
        id: table.id,
        name: Some(commit.name.to_string()),
        format: Format { provider: "parquet".to_owned(), options: BTreeMap::new() },
        schema_string: delta_schema_json(stored)?,
        partition_columns: vec![EPOCH.to_owned()],
        created_time: table.created_ms,
        configuration: properties.into_iter().map(|(k, v)| (k, Some(v))).collect(),
    }))
}

/// A UUID that follows from the commit, so that its bytes do too.
fn table_id(commit: &EpochCommit) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(commit.name.as_str().as_bytes()).update(&commit.now_ms.to_le_bytes()).update(commit.txn.0.as_bytes());
    for shard in &commit.shards {
        hash.update(shard.path.as_bytes()).update(&shard.modified_ms.to_le_bytes());
    }
    let mut bytes = [0; 16];
    hash.finalize_xof().fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

fn remove(shard: &ShardMeta, now_ms: i64) -> Remove {
    Remove {
        path: shard.path.clone(),
        deletion_timestamp: Some(now_ms),
        data_change: true,
        extended_file_metadata: Some(true),
        partition_values: Some([(EPOCH.to_owned(), Some(shard.epoch.to_string()))].into()),
        size: i64::try_from(shard.size).ok(),
    }
}

/// Puts `body` at `version` if nothing is there. Whatever the store answers, what then stands there decides: a put that timed out or met a
/// conflict may have landed, and one that was tried again by the client meets itself.
///
/// # Errors
/// `FailedPrecondition` if the version before isn't there, `Unavailable` if the store doesn't tell in the end (try again with the same
/// bytes), and what a store that can't be written says.
pub async fn commit_at(root: &Root, name: &DatasetName, version: VersionId, body: &str) -> Result<CommitOutcome> {
    prepare(root, name, version).await?;
    let path = paths::commit_file(name, version);
    let store = root.store();
    for attempt in 1..=TRIES {
        let put = store.put_opts(&path, body.to_owned().into(), PutMode::Create.into()).await;
        let Err(error) = put else { return Ok(CommitOutcome::Ours) };
        match get(root, &path).await {
            Ok(found) if found == body.as_bytes() => return Ok(CommitOutcome::Ours),
            Ok(_) => return Ok(CommitOutcome::Foreign),
            // Nothing is there: the put failed, or it hasn't landed yet. The same bytes again are safe in both cases.
            Err(e) if e.kind == Kind::NotFound || e.kind == Kind::Unavailable => {}
            Err(e) => return Err(e),
        }
        let failed = root.error("commit", &path, &error);
        if attempt == TRIES || matches!(failed.kind, Kind::PermissionDenied | Kind::ResourceExhausted | Kind::Unsupported) {
            return Err(failed);
        }
        tracing::warn!(error = %failed, attempt, "a commit is in doubt and tried again with the same bytes");
        tokio::time::sleep(PAUSE * attempt).await;
    }
    Err(Error::internal("a commit was tried and neither landed nor failed"))
}

/// A log has no gaps: the version before must be there. Before the first one, what an interrupted drop left of an older log is removed.
async fn prepare(root: &Root, name: &DatasetName, version: VersionId) -> Result<()> {
    if let Some(before) = version.0.checked_sub(1) {
        let path = paths::commit_file(name, VersionId(before));
        match root.store().head(&path).await {
            Ok(_) => return Ok(()),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(e) => return Err(root.error("look for the commit", &path, &e)),
        }
        // The commit itself may have been cleaned away behind a checkpoint.
        if LogFiles::list(root, name).await?.newest() >= Some(before) {
            return Ok(());
        }
        return Err(Error::failed_precondition(format!("version {version} of `{name}` can't be committed: version {before} isn't there"))
            .with_remedy("the dataset was dropped meanwhile; start again"));
    }
    let files = LogFiles::list(root, name).await?;
    if !files.has_beginning() && !files.commits.is_empty() {
        if !files.is_gone(root, name).await? {
            return Err(LogFiles::lost(root, name, 0));
        }
        super::vacuum::delete_log(root, name).await?;
        let marker = paths::drop_marker(name);
        root.store().delete(&marker).await.map_err(|e| root.error("remove", &marker, &e))?;
    }
    Ok(())
}
