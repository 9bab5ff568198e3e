//! Writes a small table with one column of each kind, for `python/tests/test_storage_interop.py`, which knows the values by their row
//! number.
//!
//! `cargo run -p forebay-storage --example write_sample -- ROOT` prints the table's folder; with `check` behind it, the newest version of
//! such a table is read, whoever wrote it last, and each row compared.

use arrow::array::*;
use arrow::datatypes::*;
use forebay_core::ids::{Attempt, DatasetName, EpochId, TaskId, VersionId};
use forebay_core::pipeline::{Compression, OnError, OutputSpec};
use forebay_core::{Error, Result};
use forebay_storage::delta::{EpochCommit, commit_at, commit_body, open_version};
use forebay_storage::root::Root;
use forebay_storage::shard::{ShardWriter, read_row_group};
use forebay_storage::types::tensor_field;
use std::sync::Arc;

const ROWS: i64 = 1000;
const TASKS: i64 = 3;
const EPOCHS: u32 = 2;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("_id", DataType::Int64, false),
        Field::new("_source", DataType::Utf8, false),
        Field::new("n", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("small", DataType::UInt16, false),
        Field::new("big", DataType::UInt64, true),
        Field::new("half", DataType::Float16, true),
        Field::new("flag", DataType::Boolean, true),
        Field::new("day", DataType::Date32, true),
        Field::new("seen", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("local", DataType::Timestamp(TimeUnit::Nanosecond, None), true),
        Field::new("tokens", DataType::new_list(DataType::Int32, true), true),
        tensor_field("image", &DataType::UInt8, &[4, 4, 3]),
        ragged_field(),
    ]))
}

/// A tensor whose height differs from row to row.
fn ragged_field() -> Field {
    let data = Field::new("data", DataType::List(Arc::new(Field::new("item", DataType::UInt16, false))), false);
    let shape = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Int32, false)), 2);
    let storage = DataType::Struct(vec![data, Field::new("shape", shape, false)].into());
    let extension =
        [("ARROW:extension:name", "arrow.variable_shape_tensor"), ("ARROW:extension:metadata", r#"{"uniform_shape":[null,2]}"#)];
    Field::new("scan", storage, true).with_metadata(extension.map(|(k, v)| (k.to_owned(), v.to_owned())).into())
}

fn scans(ids: &[i64]) -> Result<ArrayRef> {
    let DataType::Struct(fields) = ragged_field().data_type().clone() else {
        return Err(Error::internal("a ragged tensor is a struct"));
    };
    let mut data = ListBuilder::new(UInt16Builder::new()).with_field(Field::new("item", DataType::UInt16, false));
    let mut shape = FixedSizeListBuilder::new(Int32Builder::new(), 2).with_field(Field::new("item", DataType::Int32, false));
    for i in ids {
        let height = if i % 13 == 0 { 0 } else { i % 3 };
        data.append_value((0..height * 2).map(|k| Some((i * 50 + k) as u16)));
        shape.values().append_slice(&[height as i32, if i % 13 == 0 { 0 } else { 2 }]);
        shape.append(true);
    }
    let present: Vec<bool> = ids.iter().map(|i| i % 13 != 0).collect();
    let nulls = arrow::buffer::NullBuffer::from(present);
    let columns: Vec<ArrayRef> = vec![Arc::new(data.finish()), Arc::new(shape.finish())];
    let array = StructArray::try_new(fields, columns, Some(nulls).filter(|n| n.null_count() > 0));
    array.map(|a| Arc::new(a) as ArrayRef).map_err(|e| Error::internal(e.to_string()))
}

/// Row `i` of epoch `e`; the Python side has the same formulas.
fn batch(epoch: u32, ids: std::ops::Range<i64>) -> Result<RecordBatch> {
    let ids: Vec<i64> = ids.collect();
    let half = |i: i64| <Float16Type as ArrowPrimitiveType>::Native::from_f64(i as f64 / 2.0);
    let tokens = ids.iter().map(|i| (i % 11 != 0).then(|| (0..i % 4).map(|k| Some((i + k) as i32)).collect::<Vec<_>>()));
    let pixels = ids.iter().flat_map(|i| (0..48).map(move |k| ((i + k) % 256) as u8));
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let images = FixedSizeListArray::new(item, 48, Arc::new(UInt8Array::from_iter_values(pixels)), None);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(ids.clone())),
        Arc::new(StringArray::from_iter_values(ids.iter().map(|_| "sample.csv"))),
        Arc::new(ids.iter().map(|i| (i % 5 != 0).then_some(i * 10 + i64::from(epoch))).collect::<Int64Array>()),
        Arc::new(ids.iter().map(|i| (i % 7 != 0).then(|| format!("rów {i}"))).collect::<StringArray>()),
        Arc::new(UInt16Array::from_iter_values(ids.iter().map(|i| 65_535 - *i as u16))),
        Arc::new(UInt64Array::from_iter_values(ids.iter().map(|i| (1 << 63) + *i as u64))),
        Arc::new(Float16Array::from_iter_values(ids.iter().map(|i| half(*i)))),
        Arc::new(ids.iter().map(|i| (i % 3 != 0).then_some(i % 2 == 0)).collect::<BooleanArray>()),
        Arc::new(Date32Array::from_iter_values(ids.iter().map(|i| 19_000 + *i as i32))),
        Arc::new(TimestampMicrosecondArray::from_iter_values(ids.iter().map(|i| 1_700_000_000_000_000 + i)).with_timezone("UTC")),
        Arc::new(TimestampNanosecondArray::from_iter_values(ids.iter().map(|i| i * 1000))),
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens)),
        Arc::new(images),
        scans(&ids)?,
    ];
    RecordBatch::try_new(schema(), columns).map_err(|e| Error::internal(e.to_string()))
}

async fn write(root: &Root, name: &DatasetName) -> Result<()> {
    let output =
        OutputSpec { cut: 0, shard_size: 1 << 20, row_group_size: 4 << 20, compression: Compression::Zstd(1), on_error: OnError::Fail };
    let mut previous = None;
    for epoch in 0..EPOCHS {
        let mut shards = Vec::new();
        for task in 0..TASKS {
            let mut writer = ShardWriter::new(root, name, EpochId(epoch), TaskId(task as u32), Attempt(0), schema(), &output)?;
            writer.write(&batch(epoch, task * ROWS / TASKS..(task + 1) * ROWS / TASKS)?).await?;
            shards.extend(writer.finish().await?);
        }
        let commit = EpochCommit {
            name: name.clone(),
            epoch: EpochId(epoch),
            schema: schema(),
            shards,
            properties: [("forebay.fingerprint".to_owned(), "sample".to_owned())].into(),
            replace: false,
            txn: (format!("forebay/sample/{epoch}"), 0),
            now_ms: 1_700_000_000_000,
        };
        let body = commit_body(previous.as_deref(), &commit)?;
        commit_at(root, name, VersionId(u64::from(epoch)), &body).await?;
        previous = Some(open_version(root, name, None).await?);
    }
    println!("{}", root.table_url(name));
    Ok(())
}

async fn check(root: &Root, name: &DatasetName) -> Result<()> {
    let version = open_version(root, name, None).await?;
    for epoch in 0..EPOCHS {
        let mut seen = vec![0; ROWS as usize];
        for (shard, group, _) in version.row_groups(EpochId(epoch)) {
            for batch in read_row_group(root, &version, shard, group, None, None).await? {
                check_rows(epoch, &batch, &mut seen)?;
            }
        }
        if seen.iter().any(|n| *n != 1) {
            return Err(Error::corrupt(format!("epoch {epoch}: not every row came once")));
        }
    }
    println!("version {}: {} files, every row as written", version.version, version.shards.len());
    Ok(())
}

fn check_rows(epoch: u32, found: &RecordBatch, seen: &mut [i32]) -> Result<()> {
    let ids = found.column(0).as_primitive::<Int64Type>();
    for (row, id) in ids.values().iter().enumerate() {
        let expected = batch(epoch, *id..id + 1)?;
        if found.slice(row, 1) != expected {
            return Err(Error::corrupt(format!("epoch {epoch}, row {id}: {:?} where {expected:?} was written", found.slice(row, 1))));
        }
        seen[*id as usize] += 1;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let name = DatasetName::parse("sample")?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [url] => write(&Root::open(url, true).await?, &name).await,
        [url, "check"] => check(&Root::open(url, false).await?, &name).await,
        _ => Err(Error::bad_input("usage: write_sample ROOT [check]")),
    }
}
