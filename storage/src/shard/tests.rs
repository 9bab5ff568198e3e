#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use arrow::array::*;
use arrow::datatypes::*;
use forebay_core::Kind;
use forebay_core::ids::{Attempt, DatasetName, EpochId, TaskId, VersionId};
use forebay_core::pipeline::{Compression, OnError, OutputSpec};
use forebay_core::shard::ShardMeta;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;

use super::*;
use crate::delta::{CommitOutcome, DatasetVersion, EpochCommit, commit_at, commit_body, open_version};
use crate::root::Root;
use crate::types::tensor_field;

#[path = "property_tests.rs"]
mod property_tests;

pub(crate) fn name() -> DatasetName {
    DatasetName::parse("digits").unwrap()
}

pub(crate) fn output(shard_size: u64, compression: Compression) -> OutputSpec {
    OutputSpec { cut: 0, shard_size, row_group_size: 4 << 20, compression, on_error: OnError::Fail }
}

/// `_id`, `_source`, a label with nulls and an image of 64 x 64 bytes.
pub(crate) fn rows(from: i64, count: usize) -> RecordBatch {
    let ids = Int64Array::from_iter_values(from..from + count as i64);
    let sources = StringArray::from_iter_values((0..count).map(|_| "digits.csv"));
    let labels: UInt8Array = (0..count).map(|i| (i % 7 != 3).then_some((i % 10) as u8)).collect();
    let pattern: Vec<u8> = (0..4096 + 256).map(|i| (i * 31 % 251) as u8).collect();
    let images: Vec<_> = (from..from + count as i64).map(|id| &pattern[(id % 256) as usize..][..4096]).collect();
    let pixels = UInt8Array::from(images.concat());
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let schema = Schema::new(vec![
        Field::new("_id", DataType::Int64, false),
        Field::new("_source", DataType::Utf8, false),
        Field::new("label", DataType::UInt8, true),
        tensor_field("image", &DataType::UInt8, &[64, 64]),
    ]);
    let images = FixedSizeListArray::new(item, 4096, Arc::new(pixels), None);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids), Arc::new(sources), Arc::new(labels), Arc::new(images)]).unwrap()
}

pub(crate) async fn write(root: &Root, epoch: u32, task: u32, batches: &[RecordBatch], output: &OutputSpec) -> Vec<ShardMeta> {
    let schema = batches[0].schema();
    let mut writer = ShardWriter::new(root, &name(), EpochId(epoch), TaskId(task), Attempt(0), schema, output).unwrap();
    for batch in batches {
        writer.write(batch).await.unwrap();
    }
    writer.finish().await.unwrap()
}

pub(crate) fn epoch_commit(epoch: u32, schema: SchemaRef, shards: Vec<ShardMeta>) -> EpochCommit {
    EpochCommit {
        name: name(),
        epoch: EpochId(epoch),
        schema,
        shards,
        properties: [("forebay.fingerprint".to_owned(), "abc".to_owned())].into(),
        replace: false,
        txn: (format!("forebay/digits/{epoch}"), 0),
        now_ms: 1_700_000_000_000 + i64::from(epoch),
    }
}

pub(crate) async fn publish(root: &Root, commit: &EpochCommit) -> Arc<DatasetVersion> {
    let previous = match open_version(root, &commit.name, None).await {
        Ok(previous) => Some(previous),
        Err(e) if e.kind == Kind::NotFound => None,
        Err(e) => panic!("{e}"),
    };
    let version = VersionId(previous.as_ref().map_or(0, |p| p.version.0 + 1));
    let body = commit_body(previous.as_deref(), commit).unwrap();
    assert_eq!(commit_at(root, &commit.name, version, &body).await.unwrap(), CommitOutcome::Ours);
    open_version(root, &commit.name, None).await.unwrap()
}

pub(crate) async fn read_all(root: &Root, version: &DatasetVersion, epoch: u32, columns: Option<&[String]>) -> RecordBatch {
    let mut batches = Vec::new();
    for (shard, group, _) in version.row_groups(EpochId(epoch)) {
        batches.extend(read_row_group(root, version, shard, group, columns, None).await.unwrap());
    }
    arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap()
}

#[tokio::test]
async fn rows_come_back_from_shards_cut_by_bytes() {
    let root = Root::open("memory://", true).await.unwrap();
    // 16 MiB of images in odd batches: row groups of 4 MiB (the least), shards of two.
    let batches: Vec<_> = (0..8).map(|i| rows(i * 500, 500)).collect();
    let shards = write(&root, 0, 3, &batches, &output(8_000_000, Compression::None)).await;
    assert_eq!(
        shards.iter().map(|s| s.path.as_str()).collect::<Vec<_>>(),
        ["epoch=0/000003-000-0.parquet", "epoch=0/000003-001-0.parquet"]
    );
    assert_eq!(shards.iter().map(ShardMeta::rows).sum::<u64>(), 4000);
    for group in shards.iter().flat_map(|s| &s.row_groups) {
        assert!(group.bytes < 4_400_000, "{group:?}");
    }
    assert!(shards[0].row_groups[0].bytes > 4_000_000 && shards[0].row_groups.len() == 2);
    let all = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
    let version = publish(&root, &epoch_commit(0, batches[0].schema(), shards.clone())).await;
    assert_eq!(version.shards, shards);
    assert_eq!(read_all(&root, &version, 0, None).await, all);
    let columns = ["label".to_owned(), "_id".to_owned()];
    assert_eq!(read_all(&root, &version, 0, Some(&columns)).await, all.project(&[2, 0]).unwrap());
    let some = read_row_group(&root, &version, 0, 1, None, Some(10..13)).await.unwrap();
    let first = usize::try_from(shards[0].row_groups[0].rows).unwrap();
    assert_eq!(some, [all.slice(first + 10, 3)]);
    let none = read_row_group(&root, &version, 0, 1, Some(&[]), Some(0..7)).await.unwrap();
    assert_eq!(none.iter().map(RecordBatch::num_rows).sum::<usize>(), 7);
    assert!(read_row_group(&root, &version, 0, 1, None, Some(5..5)).await.unwrap().iter().all(|b| b.num_rows() == 0));
}

#[tokio::test]
async fn every_compression_reads_back() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(19)] {
        let root = Root::open("memory://", true).await.unwrap();
        let batch = rows(0, 50);
        let shards = write(&root, 0, 0, std::slice::from_ref(&batch), &output(1 << 20, compression)).await;
        let version = publish(&root, &epoch_commit(0, batch.schema(), shards)).await;
        assert_eq!(read_all(&root, &version, 0, None).await, batch, "{compression:?}");
    }
    let bad = Encoderless::new(Compression::Zstd(99));
    assert_eq!(bad.0.unwrap_err().kind, Kind::BadInput);
}

struct Encoderless(forebay_core::Result<()>);

impl Encoderless {
    fn new(compression: Compression) -> Self {
        let schema = crate::types::to_stored(rows(0, 1).schema_ref()).unwrap();
        let first = ShardName { epoch: EpochId(0), task: TaskId(0), part: 0, attempt: Attempt(0), generation: 0 };
        Self(encode::Encoder::new(schema, &output(1, compression), first).map(|_| ()))
    }
}

#[tokio::test]
async fn no_rows_give_no_shards_and_one_row_gives_one() {
    let root = Root::open("memory://", true).await.unwrap();
    assert!(write(&root, 0, 0, &[rows(0, 0)], &output(1, Compression::None)).await.is_empty());
    assert!(root.store().list(None).try_collect::<Vec<_>>().await.unwrap().is_empty());
    let shards = write(&root, 0, 0, &[rows(0, 1)], &output(1, Compression::None)).await;
    assert_eq!((shards.len(), shards[0].rows()), (1, 1));
}

#[tokio::test]
async fn a_row_of_100_megabytes_works_between_small_ones() {
    let root = Root::open("memory://", true).await.unwrap();
    let big = vec![7_u8; 100 << 20];
    let blobs = BinaryArray::from(vec![Some(b"a".as_slice()), Some(&big), None, Some(b"b")]);
    let schema = Schema::new(vec![Field::new("_id", DataType::Int64, false), Field::new("blob", DataType::Binary, true)]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(vec![0, 1, 2, 3])), Arc::new(blobs)]).unwrap();
    let shards = write(&root, 0, 0, std::slice::from_ref(&batch), &output(128 << 20, Compression::None)).await;
    let groups: Vec<_> = shards.iter().flat_map(|s| &s.row_groups).map(|g| g.rows).collect();
    assert_eq!(groups, [2, 2], "the large row ends its row group");
    let version = publish(&root, &epoch_commit(0, batch.schema(), shards)).await;
    assert_eq!(read_all(&root, &version, 0, None).await, batch);
}

#[tokio::test]
async fn views_and_dictionaries_are_measured_by_their_values() {
    let texts: Vec<String> = (0..200).map(|i| i.to_string().repeat(100_000)[..100_000].to_owned()).collect();
    let view: ArrayRef = Arc::new(StringViewArray::from_iter_values(&texts));
    let same: ArrayRef = Arc::new(std::iter::repeat_n(texts[0].as_str(), 200).collect::<DictionaryArray<Int8Type>>());
    for array in [view, same] {
        let root = Root::open("memory://", true).await.unwrap();
        let schema = Schema::new(vec![Field::new("text", array.data_type().clone(), true)]);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![array]).unwrap();
        let shards = write(&root, 0, 0, &[batch], &output(1 << 30, Compression::None)).await;
        assert_eq!(shards[0].row_groups.iter().map(|g| g.rows).collect::<Vec<_>>(), [42, 42, 42, 42, 32]);
    }
}

#[tokio::test]
async fn tensors_are_plain_fixed_length_values_without_statistics() {
    let root = Root::open("memory://", true).await.unwrap();
    let shards = write(&root, 0, 0, &[rows(0, 2000)], &output(1 << 30, Compression::Zstd(1))).await;
    let footer = footer(&root, &name(), &shards[0]).await.unwrap();
    let group = footer.row_group(0);
    let image = group.columns().iter().find(|c| c.column_path().string() == "image").unwrap();
    assert_eq!(image.column_type(), parquet::basic::Type::FIXED_LEN_BYTE_ARRAY);
    assert!(image.statistics().is_none() && image.dictionary_page_offset().is_none());
    let id = group.columns().iter().find(|c| c.column_path().string() == "_id").unwrap();
    assert!(id.statistics().is_some_and(|s| s.null_count_opt() == Some(0)));
    let keys: Vec<_> = footer.file_metadata().key_value_metadata().unwrap().iter().map(|k| k.key.as_str()).collect();
    assert!(keys.contains(&"ARROW:schema") && keys.contains(&"forebay.schema"), "{keys:?}");
}

#[tokio::test]
async fn statistics_are_those_of_delta() {
    let root = Root::open("memory://", true).await.unwrap();
    let schema = Schema::new(vec![
        Field::new("_id", DataType::Int64, false),
        Field::new("f", DataType::Float64, true),
        Field::new("nan", DataType::Float32, true),
        Field::new("s", DataType::Utf8, true),
        Field::new("long", DataType::Utf8, true),
        Field::new("d", DataType::Date32, true),
        Field::new("none", DataType::Int32, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![5, 7, 9])),
        Arc::new(Float64Array::from(vec![Some(-0.5), None, Some(2.0)])),
        Arc::new(Float32Array::from(vec![1.0, f32::NAN, 2.0])),
        Arc::new(StringArray::from(vec!["b", "a", "c"])),
        Arc::new(StringArray::from(vec!["x".repeat(100), "y".to_owned(), "z".to_owned()])),
        Arc::new(Date32Array::from(vec![0, 1, 20_000])),
        Arc::new(Int32Array::from(vec![None, None, None])),
    ];
    let batch = RecordBatch::try_new(Arc::new(schema), columns).unwrap();
    let shards = write(&root, 0, 0, &[batch.slice(0, 2), batch.slice(2, 1)], &output(1 << 30, Compression::None)).await;
    let stats: serde_json::Value = serde_json::from_str(shards[0].stats.as_deref().unwrap()).unwrap();
    assert_eq!(
        stats,
        serde_json::json!({
            "numRecords": 3,
            "minValues": {"_id": 5, "f": -0.5, "s": "a", "d": "1970-01-01"},
            "maxValues": {"_id": 9, "f": 2.0, "s": "c", "d": "2024-10-04"},
            "nullCount": {"_id": 0, "f": 1, "nan": 0, "s": 0, "long": 0, "d": 0, "none": 3},
        })
    );
}

#[tokio::test]
async fn a_taken_name_is_never_overwritten() {
    let root = Root::open("memory://", true).await.unwrap();
    let first = write(&root, 0, 0, &[rows(0, 5)], &output(1 << 30, Compression::None)).await;
    let second = write(&root, 0, 0, &[rows(100, 5)], &output(1 << 30, Compression::None)).await;
    assert_eq!(first[0].path, "epoch=0/000000-000-0.parquet");
    assert_eq!(second[0].path, "epoch=0/000000-000-0-1.parquet");
    let version = publish(&root, &epoch_commit(0, rows(0, 1).schema(), first)).await;
    assert_eq!(read_all(&root, &version, 0, None).await, rows(0, 5));
}

#[tokio::test]
async fn an_abandoned_writer_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path().to_str().unwrap(), true).await.unwrap();
    let batch = rows(0, 6000);
    let new = || {
        ShardWriter::new(&root, &name(), EpochId(0), TaskId(0), Attempt(0), batch.schema(), &output(6_000_000, Compression::None)).unwrap()
    };
    let mut writer = new();
    writer.write(&batch).await.unwrap();
    assert_eq!(writer.rows_written(), 6000);
    writer.abort().await;
    assert!(root.store().list(None).try_collect::<Vec<_>>().await.unwrap().is_empty());
    // A writer that is only dropped (its task was cancelled) leaves no name that a reader or a listing sees beyond the closed shards.
    let mut writer = new();
    writer.write(&batch).await.unwrap();
    drop(writer);
    for object in root.store().list(None).try_collect::<Vec<_>>().await.unwrap() {
        assert!(object.size > 6_000_000, "{object:?}");
    }
}

#[tokio::test]
async fn a_bad_value_fails_the_write_and_names_its_column() {
    let root = Root::open("memory://", true).await.unwrap();
    let schema = Arc::new(Schema::new(vec![Field::new("at", DataType::Timestamp(TimeUnit::Nanosecond, None), true)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(TimestampNanosecondArray::from(vec![1]))]).unwrap();
    let mut writer = ShardWriter::new(&root, &name(), EpochId(0), TaskId(0), Attempt(0), schema, &output(1, Compression::None)).unwrap();
    let error = writer.write(&batch).await.unwrap_err();
    assert!(error.kind == Kind::BadInput && error.message.contains("`at`"), "{error}");
}

#[tokio::test]
async fn damaged_and_missing_files_are_named() {
    let root = Root::open("memory://", true).await.unwrap();
    let shards = write(&root, 0, 0, &[rows(0, 100)], &output(1 << 30, Compression::None)).await;
    let version = publish(&root, &epoch_commit(0, rows(0, 1).schema(), shards.clone())).await;
    let path = Path::from("datasets/digits").join("epoch=0").join("000000-000-0.parquet");
    let bytes = root.store().get(&path).await.unwrap().bytes().await.unwrap();
    let read = |root: Root| {
        let version = Arc::clone(&version);
        async move { read_row_group(&root, &version, 0, 0, None, None).await }
    };
    root.store().put(&path, bytes.slice(..bytes.len() - 10).into()).await.unwrap();
    let cut = read(root.clone()).await.unwrap_err();
    assert!(cut.message.contains("000000-000-0.parquet"), "{cut}");
    let mut noise = bytes.to_vec();
    noise.iter_mut().take(bytes.len() - 8).for_each(|b| *b = 0xAA);
    root.store().put(&path, noise.into()).await.unwrap();
    let damaged = read(root.clone()).await.unwrap_err();
    assert!(damaged.kind == Kind::Corrupt && damaged.message.contains("000000-000-0.parquet"), "{damaged}");
    root.store().delete(&path).await.unwrap();
    let gone = read(root.clone()).await.unwrap_err();
    assert!(gone.kind == Kind::NotFound && gone.message.contains("000000-000-0.parquet"), "{gone}");
    let unknown = read_row_group(&root, &version, 0, 0, Some(&["labl".to_owned()]), None).await.unwrap_err();
    assert!(unknown.kind == Kind::BadInput && unknown.to_string().contains("label"), "{unknown}");
}

#[tokio::test]
async fn files_that_changed_places_are_named() {
    let root = Root::open("memory://", true).await.unwrap();
    let mut shards = write(&root, 0, 0, &[rows(1000, 100)], &output(1 << 30, Compression::None)).await;
    shards.extend(write(&root, 0, 1, &[rows(1100, 100)], &output(1 << 30, Compression::None)).await);
    let version = publish(&root, &epoch_commit(0, rows(0, 1).schema(), shards.clone())).await;
    let paths = ["000000-000-0.parquet", "000001-000-0.parquet"].map(|file| Path::from("datasets/digits").join("epoch=0").join(file));
    assert_eq!(shards[0].size, shards[1].size, "neither length nor row counts tell them apart");
    root.store().copy(&paths[1], &paths[0]).await.unwrap();
    let moved = read_row_group(&root, &version, 0, 0, None, None).await.unwrap_err();
    assert!(moved.kind == Kind::Corrupt && moved.message.contains("000000-000-0.parquet"), "{moved}");
    assert!(moved.message.contains("epoch=0/000001-000"), "{moved}");
    assert_eq!(read_row_group(&root, &version, 1, 0, None, None).await.unwrap()[0].num_rows(), 100, "the copied one is where it was");
}

#[tokio::test]
async fn footers_are_read_once_and_the_cache_stays_within_its_bytes() {
    let root = Root::open("memory://", true).await.unwrap();
    let shards = write(&root, 0, 0, &[rows(0, 10)], &output(1 << 30, Compression::None)).await;
    let loaded = load_footer(&root, &name(), &shards[0]).await.unwrap();
    root.store().delete(&shard_path(&name(), &shards[0].path)).await.unwrap();
    load_footer(&root, &name(), &shards[0]).await.unwrap();
    let one = 2 * loaded.metadata().memory_size() + 10;
    let cache = FooterCache::with_limit(3 * one);
    let key = |i: u32| footer::FooterKey { path: format!("{i:010}"), size: 1, modified_ms: 1 };
    for i in 0..10 {
        cache.put(key(i), &loaded);
        assert!(cache.get(&key(0)).is_some(), "the one in use was evicted");
    }
    assert_eq!(cache.usage(), (3, 3 * one));
    assert!(cache.get(&key(1)).is_none() && cache.get(&key(9)).is_some());
    let tiny = FooterCache::with_limit(one - 1);
    tiny.put(key(0), &loaded);
    assert_eq!(tiny.usage(), (0, 0));
}

#[tokio::test]
async fn a_full_disk_and_a_lost_byte_are_seen_before_the_shard_is_described() {
    // A folder where the shard's name should go stands for a store that can't take it.
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path().to_str().unwrap(), true).await.unwrap();
    std::fs::create_dir_all(folder.path().join("datasets/digits")).unwrap();
    std::fs::write(folder.path().join("datasets/digits/epoch=0"), "").unwrap();
    let batch = rows(0, 5);
    let mut writer =
        ShardWriter::new(&root, &name(), EpochId(0), TaskId(0), Attempt(0), batch.schema(), &output(1 << 30, Compression::None)).unwrap();
    writer.write(&batch).await.unwrap();
    let error = writer.finish().await.unwrap_err();
    assert!(error.message.contains("000000-000-0.parquet"), "{error}");
}
