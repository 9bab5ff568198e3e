#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use forebay_core::Kind;
use forebay_core::ids::{DatasetName, EpochId, TaskId, VersionId};
use forebay_core::pipeline::Compression;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::root::Root;
use crate::shard::tests::{epoch_commit, name, output, publish, read_all, rows, write};

#[path = "faults_tests.rs"]
mod faults_tests;
#[path = "property_tests.rs"]
mod property_tests;

pub(super) async fn memory() -> Root {
    Root::open("memory://", true).await.unwrap()
}

/// Publishes an epoch of two tasks with `rows(epoch * 1000 + task * 100, 40)` each; tasks are written in the wrong order.
pub(super) async fn publish_epoch(root: &Root, epoch: u32) -> Arc<DatasetVersion> {
    let mut shards = Vec::new();
    for task in [1, 0] {
        shards.extend(write(root, epoch, task, &[batch(epoch, task)], &output(1 << 30, Compression::Zstd(1))).await);
    }
    publish(root, &epoch_commit(epoch, batch(0, 0).schema(), shards)).await
}

pub(super) fn batch(epoch: u32, task: u32) -> RecordBatch {
    rows(i64::from(epoch * 1000 + task * 100), 40)
}

pub(super) fn epoch_rows(epoch: u32) -> RecordBatch {
    arrow::compute::concat_batches(&batch(0, 0).schema(), &[batch(epoch, 0), batch(epoch, 1)]).unwrap()
}

async fn put_commit(root: &Root, version: u64, lines: &[serde_json::Value]) {
    let body: String = lines.iter().map(|l| format!("{l}\n")).collect();
    root.store().put(&paths::commit_file(&name(), VersionId(version)), body.into()).await.unwrap();
}

/// An add action without tags, as another program writes it; `epoch` is none for a file that belongs to no partition.
fn foreign_add(path: &str, epoch: Option<u32>, size: u64) -> serde_json::Value {
    let partition: serde_json::Map<_, _> = epoch.map(|e| ("epoch".to_owned(), e.to_string().into())).into_iter().collect();
    serde_json::json!({"add": {"path": path, "partitionValues": partition, "size": size, "modificationTime": 1, "dataChange": true}})
}

#[tokio::test]
async fn versions_are_read_back_each_with_what_it_had() {
    let root = memory().await;
    assert!(list_datasets(&root).await.unwrap().is_empty());
    let missing = open_version(&root, &name(), None).await.unwrap_err();
    assert!(missing.kind == Kind::NotFound && missing.message.contains("`digits`"));
    let first = publish_epoch(&root, 0).await;
    let second = publish_epoch(&root, 1).await;
    assert_eq!((first.version, second.version), (VersionId(0), VersionId(1)));
    assert_eq!(first.epochs(), [EpochId(0)]);
    assert_eq!(second.epochs(), [EpochId(0), EpochId(1)]);
    assert_eq!(second.shards.iter().map(|s| (s.epoch.0, s.task.0)).collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(read_all(&root, &second, 1, None).await, epoch_rows(1));
    assert_eq!(read_all(&root, &second, 0, None).await, epoch_rows(0));
    assert_eq!(second.rows(EpochId(1)), 80);
    assert!(!second.has_part());
    assert_eq!(second.properties["forebay.fingerprint"], "abc");
    let old = open_version(&root, &name(), Some(VersionId(0))).await.unwrap();
    assert_eq!(old.shards, first.shards);
    let beyond = open_version(&root, &name(), Some(VersionId(7))).await.unwrap_err();
    assert!(beyond.kind == Kind::NotFound && beyond.to_string().contains("newest version is 1"), "{beyond}");
    assert_eq!(list_datasets(&root).await.unwrap(), [name()]);
    let history = versions(&root, &name()).await.unwrap();
    assert_eq!(
        history.iter().map(|v| (v.version.0, v.epochs.clone(), v.shards_added)).collect::<Vec<_>>(),
        [(0, vec![EpochId(0)], 2), (1, vec![EpochId(1)], 2)]
    );
    assert_eq!(history[0].operation, "CREATE TABLE AS SELECT");
}

#[tokio::test]
async fn planning_needs_no_footers() {
    let root = memory().await;
    let mut shards = write(&root, 0, 0, &[rows(0, 3000)], &output(1 << 30, Compression::None)).await;
    shards[0].staging = Some(4);
    publish(&root, &epoch_commit(0, rows(0, 1).schema(), shards.clone())).await;
    root.store().delete(&crate::shard::shard_path(&name(), &shards[0].path)).await.unwrap();
    let version = open_version(&root, &name(), None).await.unwrap();
    assert_eq!(version.shards, shards);
    let groups: Vec<_> = version.row_groups(EpochId(0)).into_iter().map(|(s, g, meta)| (s, g, meta.rows)).collect();
    assert_eq!(groups.iter().map(|g| (g.0, g.1)).collect::<Vec<_>>(), [(0, 0), (0, 1), (0, 2)]);
    assert_eq!(groups.iter().map(|g| g.2).sum::<u64>(), 3000);
}

#[tokio::test]
async fn a_body_is_the_same_bytes_each_time_and_says_what_it_is() {
    let root = memory().await;
    let shards = write(&root, 0, 0, &[rows(0, 3)], &output(1 << 30, Compression::None)).await;
    let commit = epoch_commit(0, rows(0, 1).schema(), shards);
    let body = commit_body(None, &commit).unwrap();
    assert_eq!(body, commit_body(None, &commit).unwrap());
    let lines: Vec<serde_json::Value> = body.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let keys: Vec<_> = lines.iter().map(|l| l.as_object().unwrap().keys().next().unwrap().as_str()).collect();
    assert_eq!(keys, ["commitInfo", "protocol", "metaData", "txn", "add"]);
    assert_eq!(lines[1]["protocol"], serde_json::json!({"minReaderVersion": 1, "minWriterVersion": 2}));
    assert_eq!(lines[2]["metaData"]["partitionColumns"], serde_json::json!(["epoch"]));
    assert_eq!(lines[4]["add"]["partitionValues"], serde_json::json!({"epoch": "0"}));
    assert_eq!(lines[4]["add"]["tags"]["forebay.rows"], "3");
}

#[tokio::test]
async fn an_epoch_without_rows_is_an_epoch() {
    let root = memory().await;
    let schema = rows(0, 1).schema();
    let version = publish(&root, &epoch_commit(0, Arc::clone(&schema), vec![])).await;
    assert_eq!((version.epochs(), version.rows(EpochId(0))), (vec![EpochId(0)], 0));
    publish_epoch(&root, 1).await;
    let version = publish(&root, &epoch_commit(2, schema, vec![])).await;
    assert_eq!(version.epochs(), [EpochId(0), EpochId(1), EpochId(2)]);
}

#[tokio::test]
async fn a_published_epoch_and_other_columns_are_refused_and_replace_starts_anew() {
    let root = memory().await;
    let version = publish_epoch(&root, 0).await;
    let again = commit_body(Some(&version), &epoch_commit(0, batch(0, 0).schema(), vec![])).unwrap_err();
    assert_eq!(again.kind, Kind::AlreadyExists);
    let other = Arc::new(Schema::new(vec![Field::new("_id", DataType::Int64, false), Field::new("label", DataType::Utf8, true)]));
    let error = commit_body(Some(&version), &epoch_commit(1, Arc::clone(&other), vec![])).unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
    assert!(
        error.message.contains("`label uint8` is now `label string`") && error.message.contains("without `image uint8[64,64]`"),
        "{error}"
    );
    let replace = EpochCommit {
        replace: true,
        properties: [("forebay.fingerprint".to_owned(), "new".to_owned())].into(),
        ..epoch_commit(0, Arc::clone(&other), vec![])
    };
    let replaced = publish(&root, &replace).await;
    assert_eq!((replaced.version, replaced.schema.as_ref()), (VersionId(1), other.as_ref()));
    assert_eq!(replaced.properties["forebay.fingerprint"], "new");
    assert!(replaced.shards.is_empty());
    let old = open_version(&root, &name(), Some(VersionId(0))).await.unwrap();
    assert_eq!(read_all(&root, &old, 0, None).await, epoch_rows(0));
}

#[tokio::test]
async fn paths_that_lead_out_of_the_table_are_refused() {
    for path in [
        "/etc/passwd",
        "../other/x.parquet",
        "epoch=0/../../x",
        "s3://bucket/x",
        "file:///etc/passwd",
        "a//b",
        "./x",
        "epoch=0\\x",
        "%2e%2e/x",
        "%2Fetc/passwd",
        "epoch=0/%252e%252e/x",
        "_delta_log/x",
        "_forebay/secret",
        "",
        "x%00",
    ] {
        let error = paths::checked(path).unwrap_err();
        assert_eq!(error.kind, Kind::Corrupt, "{path}");
    }
    assert_eq!(paths::checked("epoch=0/part%20a.parquet").unwrap(), "epoch=0/part a.parquet");
    let root = memory().await;
    publish_epoch(&root, 0).await;
    let add = foreign_add("../../secret.parquet", Some(1), 1);
    put_commit(&root, 1, &[add]).await;
    let error = open_version(&root, &name(), None).await.unwrap_err();
    assert!(error.kind == Kind::Corrupt && error.message.contains("secret.parquet"), "{error}");
    open_version(&root, &name(), Some(VersionId(0))).await.unwrap();
}

#[tokio::test]
async fn files_of_another_writer_come_after_ours_by_their_footers() {
    let root = memory().await;
    publish_epoch(&root, 0).await;
    let shards = write(&root, 0, 9, &[rows(5000, 20)], &output(1 << 30, Compression::None)).await;
    let copy = "epoch=0/part-0 of 1.zstd.parquet";
    root.store().rename(&crate::shard::shard_path(&name(), &shards[0].path), &crate::shard::shard_path(&name(), copy)).await.unwrap();
    let add = foreign_add(&copy.replace(' ', "%20"), Some(0), shards[0].size);
    put_commit(&root, 1, &[add]).await;
    let version = open_version(&root, &name(), None).await.unwrap();
    let last = version.shards.last().unwrap();
    assert_eq!((last.path.as_str(), last.task, last.rows()), (copy, TaskId(2), 20));
    let all = read_all(&root, &version, 0, None).await;
    assert_eq!(all.slice(80, 20), rows(5000, 20));
}

#[tokio::test]
async fn what_cannot_be_read_rightly_is_refused_with_the_reason() {
    let root = memory().await;
    publish_epoch(&root, 0).await;
    let refuse = |lines: Vec<serde_json::Value>| {
        let root = root.clone();
        async move {
            put_commit(&root, 1, &lines).await;
            open_version(&root, &name(), None).await.unwrap_err()
        }
    };
    let protocol = serde_json::json!({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"], "writerFeatures": []}});
    let error = refuse(vec![protocol]).await;
    assert!(error.kind == Kind::Unsupported && error.message.contains("deletionVectors"), "{error}");
    let mut add = foreign_add("epoch=0/x.parquet", Some(0), 1);
    add["add"]["deletionVector"] = serde_json::json!({"storageType": "u"});
    let error = refuse(vec![add]).await;
    assert!(error.kind == Kind::Unsupported && error.message.contains("epoch=0/x.parquet"), "{error}");
    let add =
        serde_json::json!({"add": {"path": "x.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": true}});
    let error = refuse(vec![add]).await;
    assert!(error.message.contains("x.parquet") && error.message.contains("no epoch"), "{error}");
    let missing = foreign_add("epoch=0/gone.parquet", Some(0), 100);
    let error = refuse(vec![missing]).await;
    assert!(error.message.contains("epoch=0/gone.parquet"), "{error}");
    root.store().put(&paths::commit_file(&name(), VersionId(1)), "{not json\n".into()).await.unwrap();
    let error = open_version(&root, &name(), None).await.unwrap_err();
    assert!(
        error.kind == Kind::Corrupt && error.message.contains("00000000000000000001.json") && error.message.contains("line 1"),
        "{error}"
    );
    root.store().delete(&paths::commit_file(&name(), VersionId(1))).await.unwrap();
    put_commit(&root, 2, &[]).await;
    let error = open_version(&root, &name(), None).await.unwrap_err();
    assert!(error.kind == Kind::Corrupt && error.message.contains("lacks commit 1"), "{error}");
}

#[tokio::test]
async fn a_dropped_dataset_is_gone_and_one_half_dropped_too() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path().to_str().unwrap(), true).await.unwrap();
    assert!(list_datasets(&root).await.unwrap().is_empty());
    let nothing = drop_dataset(&root, &name()).await.unwrap_err();
    assert_eq!(nothing.kind, Kind::NotFound);
    publish_epoch(&root, 0).await;
    publish_epoch(&root, 1).await;
    let swept = drop_dataset(&root, &name()).await.unwrap();
    assert_eq!(swept.paths.len(), 6);
    assert!(list_datasets(&root).await.unwrap().is_empty());
    assert!(!folder.path().join("datasets/digits").exists());
    assert_eq!(open_version(&root, &name(), None).await.unwrap_err().kind, Kind::NotFound);
    // Killed after the log's beginning was removed: it doesn't exist, can't be seen, and can be made again.
    publish_epoch(&root, 0).await;
    publish_epoch(&root, 1).await;
    let first = paths::commit_file(&name(), VersionId(0));
    let bytes = root.store().get(&first).await.unwrap().bytes().await.unwrap();
    root.store().put(&paths::drop_marker(&name()), "".into()).await.unwrap();
    root.store().delete(&first).await.unwrap();
    assert!(list_datasets(&root).await.unwrap().is_empty());
    assert_eq!(open_version(&root, &name(), None).await.unwrap_err().kind, Kind::NotFound);
    let again = publish_epoch(&root, 0).await;
    assert_eq!((again.version, again.epochs()), (VersionId(0), vec![EpochId(0)]));
    assert_eq!(read_all(&root, &again, 0, None).await, epoch_rows(0));
    // Nobody dropped it: the beginning of the log was lost, and nothing may be written in its place.
    publish_epoch(&root, 1).await;
    root.store().delete(&first).await.unwrap();
    assert_eq!(list_datasets(&root).await.unwrap(), [name()]);
    let body = commit_body(None, &epoch_commit(0, rows(0, 1).schema(), Vec::new())).unwrap();
    for error in [open_version(&root, &name(), None).await.unwrap_err(), commit_at(&root, &name(), VersionId(0), &body).await.unwrap_err()]
    {
        assert!(error.kind == Kind::Corrupt && error.to_string().contains("00000000000000000000.json"), "{error}");
    }
    root.store().put(&first, bytes.into()).await.unwrap();
    assert_eq!(open_version(&root, &name(), None).await.unwrap().version, VersionId(1));
    root.store().delete(&first).await.unwrap();
    drop_dataset(&root, &name()).await.unwrap();
    assert!(list_datasets(&root).await.unwrap().is_empty());
}

#[tokio::test]
async fn vacuum_takes_only_what_is_unused_old_and_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path().to_str().unwrap(), true).await.unwrap();
    publish_epoch(&root, 0).await;
    let replace = EpochCommit { replace: true, now_ms: 1, ..epoch_commit(0, batch(0, 0).schema(), vec![]) };
    publish(&root, &replace).await;
    publish_epoch(&root, 1).await;
    let staged = write(&root, 2, 0, &[rows(0, 1)], &output(1 << 30, Compression::None)).await;
    let orphan = write(&root, 3, 0, &[rows(0, 1)], &output(1 << 30, Compression::None)).await;
    let private = Path::from("datasets/digits/_forebay/snapshot.json");
    root.store().put(&private, "{}".into()).await.unwrap();
    std::fs::write(folder.path().join("datasets/digits/epoch=1/x.parquet#123"), "half").unwrap();
    let keep: HashSet<_> = staged.iter().map(|s| s.path.clone()).collect();
    let young = vacuum(&root, &name(), Duration::from_secs(3600), false, &keep).await.unwrap();
    assert!(young.paths.is_empty(), "{young:?}");
    let expected = ["epoch=0/000000-000-0.parquet", "epoch=0/000001-000-0.parquet", "epoch=1/x.parquet#123", orphan[0].path.as_str()];
    let dry = vacuum(&root, &name(), Duration::ZERO, true, &keep).await.unwrap();
    assert_eq!(dry.paths, expected);
    assert!(root.store().head(&crate::shard::shard_path(&name(), &orphan[0].path)).await.is_ok());
    assert_eq!(vacuum(&root, &name(), Duration::ZERO, false, &keep).await.unwrap(), dry);
    let version = open_version(&root, &name(), None).await.unwrap();
    assert_eq!(read_all(&root, &version, 1, None).await, epoch_rows(1));
    assert!(root.store().head(&private).await.is_ok());
    assert!(root.store().head(&crate::shard::shard_path(&name(), &staged[0].path)).await.is_ok());
    let left: Vec<_> = root.store().list(None).try_collect().await.unwrap();
    assert_eq!(left.len(), 3 + 2 + 1 + 1);
}

#[tokio::test]
async fn a_replaced_epoch_stays_readable_until_its_removal_is_old() {
    let root = memory().await;
    publish_epoch(&root, 0).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    let replace = EpochCommit { replace: true, now_ms: now + 10_000, ..epoch_commit(0, batch(0, 0).schema(), vec![]) };
    publish(&root, &replace).await;
    assert!(vacuum(&root, &name(), Duration::ZERO, false, &HashSet::new()).await.unwrap().paths.is_empty());
}

#[tokio::test]
async fn many_versions_are_put_together_in_order() {
    let root = memory().await;
    for epoch in 0..40 {
        let shards = write(&root, epoch, 0, &[rows(i64::from(epoch), 1)], &output(1 << 30, Compression::None)).await;
        let previous = if epoch == 0 { None } else { Some(open_version(&root, &name(), None).await.unwrap()) };
        let body = commit_body(previous.as_deref(), &epoch_commit(epoch, rows(0, 1).schema(), shards)).unwrap();
        commit_at(&root, &name(), VersionId(u64::from(epoch)), &body).await.unwrap();
    }
    let version = open_version(&root, &name(), Some(VersionId(33))).await.unwrap();
    assert_eq!(version.epochs(), (0..34).map(EpochId).collect::<Vec<_>>());
}

#[tokio::test]
async fn two_datasets_do_not_meet() {
    let root = memory().await;
    publish_epoch(&root, 0).await;
    let other = DatasetName::parse("digits2").unwrap();
    assert_eq!(open_version(&root, &other, None).await.unwrap_err().kind, Kind::NotFound);
    root.store().put(&Path::from("datasets/empty/x"), "".into()).await.unwrap();
    root.store().put(&Path::from("datasets/Not A Name/_delta_log/00000000000000000000.json"), "".into()).await.unwrap();
    assert_eq!(list_datasets(&root).await.unwrap(), [name()]);
}

/// Callers hold these futures across threads and call them from traits: it is enough that this compiles.
#[async_trait::async_trait]
trait CalledFromTraits {
    async fn everything(&self, root: &Root, name: &DatasetName) -> forebay_core::Result<()>;
}

struct Caller;

#[async_trait::async_trait]
impl CalledFromTraits for Caller {
    async fn everything(&self, root: &Root, name: &DatasetName) -> forebay_core::Result<()> {
        list_datasets(root).await?;
        let version = open_version(root, name, None).await?;
        versions(root, name).await?;
        commit_at(root, name, version.version, "").await?;
        crate::shard::read_row_group(root, &version, 0, 0, None, None).await?;
        crate::shard::footer(root, name, &version.shards[0]).await?;
        let output = output(1, Compression::None);
        let schema = Arc::clone(&version.schema);
        let attempt = forebay_core::ids::Attempt(0);
        let mut writer = crate::shard::ShardWriter::new(root, name, EpochId(0), TaskId(0), attempt, schema, &output)?;
        writer.write(&rows(0, 1)).await?;
        writer.finish().await?;
        vacuum(root, name, Duration::ZERO, true, &HashSet::new()).await?;
        drop_dataset(root, name).await?;
        Root::open("memory://", true).await.map(drop)
    }
}

#[tokio::test]
async fn callable_from_traits() {
    let root = memory().await;
    assert_eq!(Caller.everything(&root, &name()).await.unwrap_err().kind, Kind::NotFound);
}

#[tokio::test]
async fn a_damaged_checkpoint_is_named() {
    let root = memory().await;
    for epoch in 0..3 {
        publish_epoch(&root, epoch).await;
    }
    let path = Path::from("datasets/digits/_delta_log/00000000000000000001.checkpoint.parquet");
    root.store().put(&path, "not parquet".into()).await.unwrap();
    let error = open_version(&root, &name(), None).await.unwrap_err();
    assert!(error.kind == Kind::Corrupt && error.message.contains("checkpoint.parquet"), "{error}");
}

/// What staged rows are read as before anything is published: tensors whose makers said that items may be null, among others.
#[tokio::test]
async fn an_unpublished_version_has_the_columns_of_the_published_one() {
    let root = Root::open("memory://", true).await.unwrap();
    let pair = DataType::FixedSizeList(Arc::new(Field::new("element", DataType::Float32, true)), 2);
    let more = [Field::new("pair", pair, true), Field::new("day", DataType::Date32, true), Field::new("n", DataType::UInt16, true)];
    let fields = rows(0, 1).schema().fields().iter().map(|f| f.as_ref().clone()).chain(more).collect::<Vec<_>>();
    let given = Arc::new(Schema::new(fields));
    let published = publish(&root, &epoch_commit(0, Arc::clone(&given), Vec::new())).await;
    let coming = DatasetVersion::unpublished(name(), given, Default::default()).unwrap();
    assert_eq!(coming.schema, published.schema);
    assert_eq!(coming.stored, published.stored);
}
