//! Our log through the library that Spark's, Polars' and DuckDB's readers resemble most, and the library's checkpoints through ours.

use deltalake_core::{DeltaTable, DeltaTableBuilder};
use forebay_core::ids::VersionId;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use std::collections::BTreeSet;
use url::Url;

use super::super::{open_version, paths};
use super::{epoch_rows, publish_epoch};
use crate::root::Root;
use crate::shard::tests::{name, read_all};

pub(super) async fn library(root: &Root, version: Option<u64>) -> DeltaTable {
    let builder = DeltaTableBuilder::from_url(Url::from_directory_path(root.table_url(&name())).unwrap()).unwrap();
    match version {
        Some(version) => builder.with_version(version).load().await.unwrap(),
        None => builder.load().await.unwrap(),
    }
}

async fn three_epochs() -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path().to_str().unwrap(), true).await.unwrap();
    for epoch in 0..3 {
        publish_epoch(&root, epoch).await;
    }
    (folder, root)
}

#[tokio::test]
async fn the_library_sees_the_files_of_each_version() {
    let (_folder, root) = three_epochs().await;
    for version in 0..3 {
        let ours = open_version(&root, &name(), Some(VersionId(version))).await.unwrap();
        let theirs = library(&root, Some(version)).await;
        let uris: BTreeSet<_> = theirs.get_file_uris().unwrap().map(|u| u.rsplit_once("/epoch=").unwrap().1.to_owned()).collect();
        assert_eq!(uris, ours.shards.iter().map(|s| s.path.strip_prefix("epoch=").unwrap().to_owned()).collect());
        let snapshot = theirs.snapshot().unwrap();
        assert_eq!(snapshot.metadata().partition_columns(), &["epoch".to_owned()]);
        assert_eq!(snapshot.protocol().min_reader_version(), 1);
    }
}

#[tokio::test]
async fn a_checkpoint_of_the_library_keeps_what_plans_are_made_of() {
    let (_folder, root) = three_epochs().await;
    let before = open_version(&root, &name(), None).await.unwrap();
    deltalake_core::checkpoints::create_checkpoint(&library(&root, None).await, None).await.unwrap();
    for version in 0..3 {
        root.store().delete(&paths::commit_file(&name(), VersionId(version))).await.unwrap();
    }
    let after = open_version(&root, &name(), None).await.unwrap();
    assert_eq!(after.shards, before.shards);
    assert_eq!((&after.schema, &after.properties), (&before.schema, &before.properties));
    publish_epoch(&root, 3).await;
    let next = open_version(&root, &name(), None).await.unwrap();
    assert_eq!(next.version, VersionId(3));
    assert_eq!(read_all(&root, &next, 0, None).await, epoch_rows(0));
    let gone = open_version(&root, &name(), Some(VersionId(1))).await.unwrap_err();
    assert_eq!(gone.kind, forebay_core::Kind::NotFound);
}

#[tokio::test]
async fn a_damaged_checkpoint_is_named() {
    let (_folder, root) = three_epochs().await;
    let path = Path::from("datasets/digits/_delta_log/00000000000000000001.checkpoint.parquet");
    root.store().put(&path, "not parquet".into()).await.unwrap();
    let error = open_version(&root, &name(), None).await.unwrap_err();
    assert!(error.kind == forebay_core::Kind::Corrupt && error.message.contains("checkpoint.parquet"), "{error}");
}
