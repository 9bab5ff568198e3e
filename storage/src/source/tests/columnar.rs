use arrow::array::{ArrayRef, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array, StringArray, UInt8Array};
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use forebay_core::pipeline::SourceFormat::{Arrow, Parquet, Put};
use forebay_core::source::Piece;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::json;

use super::*;

fn batch(from: i64, rows: i64) -> RecordBatch {
    let n: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + rows));
    let t: ArrayRef = Arc::new(StringArray::from_iter((from..from + rows).map(|v| (v % 3 != 0).then(|| format!("row {v}")))));
    RecordBatch::try_from_iter_with_nullable([("n", n, false), ("t", t, true)]).unwrap()
}

fn parquet(batches: &[RecordBatch], group: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group)).build();
    let mut writer = ArrowWriter::try_new(&mut bytes, batches[0].schema(), Some(properties)).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.close().unwrap();
    bytes
}

fn ipc_file(batches: &[RecordBatch], compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn ipc_stream(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

#[tokio::test]
async fn every_columnar_form_gives_the_same_rows() {
    let batches = [batch(0, 100), batch(100, 1), batch(101, 50)];
    let forms = [
        (Parquet, "a.parquet", parquet(&batches, 40)),
        (Arrow, "a.arrow", ipc_file(&batches, None)),
        (Arrow, "a.feather", ipc_file(&batches, Some(CompressionType::LZ4_FRAME))),
        (Arrow, "a.ipc", ipc_file(&batches, Some(CompressionType::ZSTD))),
        (Arrow, "a.arrows", ipc_stream(&batches)),
        (Put, "a.parquet", parquet(&batches, 40)),
        (Put, "a.arrow", ipc_file(&batches, None)),
    ];
    for (format, name, bytes) in forms {
        let rows = source(&spec(format, &[name]), &[(name, &bytes)]).await.unwrap();
        assert_eq!(rows.ids(), (0..151).collect::<Vec<_>>(), "{name}");
        let all = rows.all();
        assert_eq!(all["n"].as_primitive::<Int64Type>().values().to_vec(), rows.ids());
        assert_eq!(rows.texts("t")[..3], [None, Some("row 1".into()), Some("row 2".into())]);
        assert!(rows.texts("_source").iter().all(|s| s.as_deref() == Some(name)));
    }
}

#[tokio::test]
async fn large_files_divide_by_row_groups_and_batches_are_bounded() {
    let batches: Vec<RecordBatch> = (0..20).map(|n| batch(n * 100, 100)).collect();
    for (format, name, bytes) in [(Parquet, "a.parquet", parquet(&batches, 100)), (Arrow, "a.arrow", ipc_file(&batches, None))] {
        let dir = folder(&[(name, &bytes)]);
        let spec = with(spec(format, &[name]), "task_size", json!(4000));
        let snapshot = take(&spec, dir.path()).await.unwrap();
        assert!(snapshot.tasks.len() > 3, "{name}: {} tasks", snapshot.tasks.len());
        assert!(snapshot.tasks.iter().all(|t| matches!(t.pieces.as_slice(), [(0, Piece::Rows { .. })])));
        let limits = Limits { batch_rows: 30, ..Limits::default() };
        let rows = read_with(&spec, &snapshot, limits).await.unwrap();
        assert_eq!(rows.ids(), (0..2000).collect::<Vec<_>>(), "{name}");
        assert!(rows.batches.iter().all(|b| b.num_rows() <= 38), "{name}");
    }
}

#[tokio::test]
async fn many_small_files_make_few_batches() {
    for (format, end) in [(Parquet, "parquet"), (Arrow, "arrow"), (Arrow, "arrows")] {
        let contents: Vec<(String, Vec<u8>)> = (0..40)
            .map(|n| {
                let batches = [batch(n * 3, 2), batch(n * 3 + 2, 1)];
                let bytes = match end {
                    "parquet" => parquet(&batches, 2),
                    "arrow" => ipc_file(&batches, None),
                    _ => ipc_stream(&batches),
                };
                (format!("{n:02}.{end}"), bytes)
            })
            .collect();
        let files: Vec<(&str, &[u8])> = contents.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
        let dir = folder(&files);
        let spec = spec(format, &[&format!("*.{end}")]);
        let taken = take(&spec, dir.path()).await.unwrap();
        let rows = read(&spec, &taken).await.unwrap();
        assert_eq!(rows.batches.len(), 1, "{end}");
        assert_eq!(rows.ids(), (0..120).collect::<Vec<_>>());
        assert_eq!(rows.all()["n"].as_primitive::<Int64Type>().values().to_vec(), rows.ids());
        assert_eq!(rows.texts("_source")[119].as_deref(), Some(format!("39.{end}").as_str()));
        let rows = read_with(&spec, &taken, Limits { batch_rows: 7, ..Limits::default() }).await.unwrap();
        assert!(rows.batches.iter().all(|b| b.num_rows() <= 7) && rows.batches.len() < 30, "{}", rows.batches.len());
        assert_eq!(rows.ids(), (0..120).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_row_of_100_mb() {
    let big = "y".repeat(100 << 20);
    let t: ArrayRef = Arc::new(StringArray::from(vec!["a", &big, "b"]));
    let batch = RecordBatch::try_from_iter([("t", t)]).unwrap();
    for (format, name, bytes) in
        [(Parquet, "a.parquet", parquet(std::slice::from_ref(&batch), 10)), (Arrow, "a.arrow", ipc_file(&[batch], None))]
    {
        let rows = source(&spec(format, &[name]), &[(name, &bytes)]).await.unwrap();
        let lengths: Vec<usize> = rows.texts("t").iter().map(|t| t.as_ref().unwrap().len()).collect();
        assert_eq!(lengths, [1, 100 << 20, 1]);
    }
}

#[tokio::test]
async fn extension_types_and_dictionaries_survive() {
    let metadata = HashMap::from([
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), "{\"shape\":[2,2]}".to_owned()),
    ]);
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let tensor = FixedSizeListArray::new(item.clone(), 4, Arc::new(UInt8Array::from_iter_values(0..8)), None);
    let tensor_field = Field::new("image", DataType::FixedSizeList(item, 4), false).with_metadata(metadata.clone());
    let labels: DictionaryArray<Int32Type> = vec!["x", "y"].into_iter().collect();
    let labels_field = Field::new("label", labels.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![tensor_field, labels_field]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(tensor), Arc::new(labels)]).unwrap();
    for (format, name, bytes) in [
        (Parquet, "a.parquet", parquet(std::slice::from_ref(&batch), 10)),
        (Arrow, "a.arrow", ipc_file(std::slice::from_ref(&batch), None)),
    ] {
        let rows = source(&spec(format, &[name]), &[(name, &bytes)]).await.unwrap();
        assert_eq!(rows.schema.field_with_name("image").unwrap().metadata(), &metadata, "{name}");
        assert_eq!(rows.all()["image"].as_ref(), batch["image"].as_ref());
        assert_eq!(rows.texts("label"), some(&["x", "y"]));
    }
}

#[tokio::test]
async fn zero_rows_and_files_without_rows() {
    let empty = batch(0, 0);
    for (format, name, bytes) in [
        (Parquet, "a.parquet", parquet(std::slice::from_ref(&empty), 10)),
        (Arrow, "a.arrow", ipc_file(std::slice::from_ref(&empty), None)),
        (Arrow, "a.arrows", ipc_stream(std::slice::from_ref(&empty))),
    ] {
        let rows = source(&spec(format, &[name]), &[(name, &bytes)]).await.unwrap();
        assert_eq!((rows.all().num_rows(), rows.all().num_columns()), (0, 4), "{name}");
        assert_says(&source(&spec(format, &[name]), &[(name, b"")]).await.unwrap_err(), &[name, "is empty"]);
    }
}

#[tokio::test]
async fn files_must_have_the_same_columns() {
    let other: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let t: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let other = RecordBatch::try_from_iter([("t", t.clone()), ("n", other)]).unwrap();
    let (a, b) = (parquet(&[batch(0, 2)], 10), parquet(&[other], 10));
    let error = source(&spec(Parquet, &["*.parquet"]), &[("a.parquet", &a), ("b.parquet", &b)]).await.unwrap_err();
    assert_says(&error, &["`b.parquet`", "column `n` is Int32", "`a.parquet` Int64"]);
    // The same columns in another order are fine.
    let n: ArrayRef = Arc::new(Int64Array::from(vec![7]));
    let b = parquet(&[RecordBatch::try_from_iter([("t", t), ("n", n)]).unwrap()], 10);
    let rows = source(&spec(Parquet, &["*.parquet"]), &[("a.parquet", &a), ("b.parquet", &b)]).await.unwrap();
    assert_eq!((rows.texts("n"), rows.ids()), (some(&["0", "1", "7"]), vec![0, 1, 2]));
}

#[tokio::test]
async fn reserved_and_renamed_columns() {
    let n: ArrayRef = Arc::new(Int64Array::from(vec![7]));
    let bytes = parquet(&[RecordBatch::try_from_iter([("_id", n.clone()), ("split", n)]).unwrap()], 10);
    let error = source(&spec(Parquet, &["a.parquet"]), &[("a.parquet", &bytes)]).await.unwrap_err();
    assert_says(&error, &["a.parquet", "`_id` is reserved", "options.columns"]);
    let renamed = with(spec(Parquet, &["a.parquet"]), "columns", json!({"_id": "key", "split": "part"}));
    assert_eq!(source(&renamed, &[("a.parquet", &bytes)]).await.unwrap().texts("key"), some(&["7"]));
    let list = with(spec(Parquet, &["a.parquet"]), "columns", json!(["a"]));
    assert_says(&source(&list, &[("a.parquet", &bytes)]).await.unwrap_err(), &["columns", "for csv"]);
}

#[tokio::test]
async fn damaged_files_are_named() {
    let batches = [batch(0, 1000)];
    for (format, name, bytes) in [
        (Parquet, "a.parquet", parquet(&batches, 100)),
        (Arrow, "a.arrow", ipc_file(&batches, None)),
        (Arrow, "a.arrows", ipc_stream(&batches)),
    ] {
        for cut in [bytes.len() - 1, bytes.len() / 2, 20, 5] {
            let cut_off = source(&spec(format, &[name]), &[(name, &bytes[..cut])]).await;
            match cut_off {
                // A stream whose end marker is cut off by whole words has all its rows.
                Ok(rows) if name == "a.arrows" => assert_eq!(rows.ids().len(), 1000),
                Ok(_) => panic!("{name} cut to {cut} bytes was read"),
                Err(error) => assert_says(&error, &[name]),
            }
        }
        assert_says(&source(&spec(format, &[name]), &[(name, b"just some text, longer than a footer")]).await.unwrap_err(), &[name]);
    }
}

/// Every single-byte damage gives an error or rows; nothing hangs, aborts or allocates without bound.
#[tokio::test]
async fn flipped_bytes_never_break_the_process() {
    let small = [batch(0, 20)];
    let forms = [
        (Arrow, "a.arrow", ipc_file(&small, Some(CompressionType::LZ4_FRAME))),
        (Arrow, "a.arrows", ipc_stream(&small)),
        (Parquet, "a.parquet", parquet(&small, 10)),
    ];
    for (format, name, bytes) in forms {
        for at in (0..bytes.len()).step_by(bytes.len() / 60) {
            let mut damaged = bytes.clone();
            damaged[at] = !damaged[at];
            if let Err(error) = source(&spec(format, &[name]), &[(name, &damaged)]).await {
                assert!(!error.message.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_claim_of_a_terabyte_is_refused() {
    let bytes = ipc_file(&[batch(0, 2000)], Some(CompressionType::LZ4_FRAME));
    // Compressed buffers begin with their claimed length: 2,000 Int64 are 16,000 bytes.
    let claim = 16_000_i64.to_le_bytes();
    let at = bytes.windows(8).position(|w| w == claim).unwrap();
    let mut bad = bytes.clone();
    bad[at..at + 8].copy_from_slice(&(1_i64 << 40).to_le_bytes());
    assert_says(&source(&spec(Arrow, &["a.arrow"]), &[("a.arrow", &bad)]).await.unwrap_err(), &["a.arrow", "claims more than"]);
}

/// Files as pyarrow 26 writes them; they must stay readable.
#[tokio::test]
async fn files_written_by_pyarrow() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    for (format, name) in [
        (Arrow, "pyarrow.arrow"),
        (Arrow, "pyarrow.arrows"),
        (Arrow, "pyarrow_zstd.arrow"),
        (Arrow, "pyarrow_lz4.feather"),
        (Parquet, "pyarrow.parquet"),
    ] {
        let spec = with(spec(format, &[name]), "task_size", json!(100));
        let taken = take(&spec, &data).await.unwrap();
        let rows = read(&spec, &taken).await.unwrap();
        assert_eq!(rows.ids(), [0, 1, 2, 3, 4], "{name}");
        assert_eq!(rows.texts("i"), some(&["0", "1", "2", "3", "4"]));
        assert_eq!(rows.texts("u")[4].as_deref(), Some("9223372036854775808"));
        assert_eq!(rows.texts("s"), vec![Some("a".into()), None, Some("é".into()), Some("日本".into()), Some(String::new())]);
        assert_eq!(rows.texts("d"), vec![Some("x".into()), Some("y".into()), Some("x".into()), None, Some("y".into())], "{name}");
        assert_eq!(rows.texts("c")[0].as_deref(), Some("1.25"));
        assert_eq!(rows.all()["l"].as_list::<i32>().value(4).as_primitive::<Int64Type>().values().to_vec(), [4, 5, 6]);
        if name != "pyarrow_lz4.feather" {
            let image = rows.schema.field_with_name("img").unwrap();
            assert_eq!(image.metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor", "{name}");
        }
    }
}
