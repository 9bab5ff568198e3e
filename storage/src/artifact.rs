//! Small objects that are written once and named by something else: source snapshots, split fits, quarantined rows of a dataset; selections of
//! a job; views.
//!
//! Owns: their names, write-once, reading them back. Must not know: what is in them, except for quarantined rows, which SQL shows.

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use forebay_core::ids::{Attempt, DatasetName, EpochId, JobName, TaskId};
use forebay_core::source::BadRow;
use forebay_core::{Error, Kind, Result};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, LazyLock};

use crate::root::Root;

/// Whose object it is; this decides the folder.
#[derive(Debug, Clone, Copy)]
pub enum Of<'a> {
    /// `datasets/NAME/_forebay/`
    Dataset(&'a DatasetName),
    /// `jobs/NAME/`
    Job(&'a JobName),
    /// `views/`
    Views,
}

impl Of<'_> {
    fn folder(self) -> String {
        match self {
            Of::Dataset(name) => format!("datasets/{name}/_forebay"),
            Of::Job(name) => format!("jobs/{name}"),
            Of::Views => "views".to_owned(),
        }
    }

    /// The object's place below the root. `name` may have folders and no `.` or `..` parts.
    fn path(self, name: &str) -> Result<Path> {
        let sound = !name.is_empty() && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !sound {
            return Err(Error::bad_input(format!("`{}` can't name an object", name.escape_debug())));
        }
        Ok(Path::from(format!("{}/{name}", self.folder())))
    }
}

/// Writes an object once. The same bytes again are fine (a retry); other bytes under the same name are `AlreadyExists`.
pub async fn put_bytes(root: &Root, of: Of<'_>, name: &str, bytes: Bytes) -> Result<()> {
    let path = of.path(name)?;
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match root.store().put_opts(&path, PutPayload::from_bytes(bytes.clone()), options).await {
        Ok(_) => Ok(()),
        Err(e) => {
            // The put may have landed although it failed, and on a retry it meets itself.
            match get_bytes(root, of, name).await {
                Ok(Some(found)) if found == bytes => Ok(()),
                Ok(Some(_)) => Err(Error::new(Kind::AlreadyExists, format!("`{path}` exists with other content"))),
                _ => Err(root.error("write", &path, &e)),
            }
        }
    }
}

/// Reads an object; `None` when it isn't there.
pub async fn get_bytes(root: &Root, of: Of<'_>, name: &str) -> Result<Option<Bytes>> {
    let path = of.path(name)?;
    match root.get_whole(&path).await {
        Ok(found) => Ok(Some(found)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(root.error("read", &path, &e)),
    }
}

/// [`put_bytes`] of a value's JSON.
pub async fn put_json<T: Serialize + Sync>(root: &Root, of: Of<'_>, name: &str, value: &T) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|e| Error::internal(format!("`{name}`: {e}")))?;
    put_bytes(root, of, name, text.into()).await
}

/// Reads a value back; `None` when it isn't there, `Corrupt` when it is something else.
pub async fn get_json<T: DeserializeOwned>(root: &Root, of: Of<'_>, name: &str) -> Result<Option<T>> {
    let Some(bytes) = get_bytes(root, of, name).await? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes).map_err(|e| Error::corrupt(format!("`{}/{name}`: {e}", of.folder())))?;
    Ok(Some(value))
}

/// Names of the objects whose name starts with `prefix` (whole folders: `quarantine`), in order.
pub async fn list(root: &Root, of: Of<'_>, prefix: &str) -> Result<Vec<String>> {
    let path = of.path(prefix)?;
    let found: Vec<_> = root.list(&path).await?;
    let folder = format!("{}/", of.folder());
    let mut names: Vec<String> = found.iter().filter_map(|o| o.location.as_ref().strip_prefix(&folder).map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}

/// Removes an object; one that isn't there is fine.
pub async fn delete(root: &Root, of: Of<'_>, name: &str) -> Result<()> {
    let path = of.path(name)?;
    match root.store().delete(&path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(e) => Err(root.error("remove", &path, &e)),
    }
}

static QUARANTINE: LazyLock<SchemaRef> = LazyLock::new(|| {
    let field = |name, kind| Field::new(name, kind, false);
    Arc::new(Schema::new(vec![
        field("epoch", DataType::Int32),
        field("task", DataType::UInt32),
        field("_id", DataType::Int64),
        field("_source", DataType::Utf8),
        field("message", DataType::Utf8),
    ]))
});

/// Columns of [`read_quarantine`]: epoch, task, `_id`, `_source`, message.
pub fn quarantine_schema() -> SchemaRef {
    QUARANTINE.clone()
}

/// Writes the bad rows of one attempt and returns the object's name, for the staging entry to name; `None` when there are no rows.
pub async fn put_quarantine(
    root: &Root,
    dataset: &DatasetName,
    epoch: EpochId,
    task: TaskId,
    attempt: Attempt,
    rows: &[BadRow],
) -> Result<Option<String>> {
    if rows.is_empty() {
        return Ok(None);
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![epoch.0.cast_signed(); rows.len()])),
        Arc::new(UInt32Array::from(vec![task.0; rows.len()])),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.id))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.source))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.message))),
    ];
    let batch = RecordBatch::try_new(quarantine_schema(), columns).map_err(|e| Error::internal(format!("quarantine: {e}")))?;
    let name = format!("quarantine/epoch={epoch}/{task:06}-{attempt}.parquet", task = task.0);
    put_bytes(root, Of::Dataset(dataset), &name, to_parquet(&batch)?).await?;
    Ok(Some(name))
}

/// Reads quarantined rows back, from the named objects.
pub async fn read_quarantine(root: &Root, dataset: &DatasetName, names: &[String]) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    for name in names {
        let bytes = get_bytes(root, Of::Dataset(dataset), name).await?;
        let bytes = bytes.ok_or_else(|| Error::corrupt(format!("`datasets/{dataset}/_forebay/{name}` is missing")))?;
        batches.extend(from_parquet(bytes).map_err(|e| e.context(name))?);
    }
    Ok(batches)
}

/// One small Parquet file in memory.
pub(crate) fn to_parquet(batch: &RecordBatch) -> Result<Bytes> {
    let fail = |e: parquet::errors::ParquetError| Error::internal(format!("writing Parquet: {e}"));
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_compression(parquet::basic::Compression::ZSTD(parquet::basic::ZstdLevel::default()))
        .build();
    let mut buffer = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut buffer, batch.schema(), Some(properties)).map_err(fail)?;
    writer.write(batch).map_err(fail)?;
    writer.close().map_err(fail)?;
    Ok(buffer.into())
}

pub(crate) fn from_parquet(bytes: Bytes) -> Result<Vec<RecordBatch>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).and_then(|b| b.with_batch_size(8192).build());
    let reader = reader.map_err(|e| Error::corrupt(format!("not Parquet: {e}")))?;
    reader.collect::<Result<_, _>>().map_err(|e| Error::corrupt(format!("reading Parquet: {e}")))
}

#[cfg(test)]
mod tests;
