//! Sources: which files there are, which rows they hold under which ids, and reading the rows of one task.
//!
//! Owns: listing and snapshotting, id ranges, cutting a source into tasks, the readers of each format, bad rows. Must not know: SQL, where rows go,
//! what a user does about a bad row.
//!
//! Rows of a task come in `_id` order. The same snapshot and task give the same rows and ids on every host; how a file is divided into tasks never
//! changes an id. Text is read as text and cast safely, so a cell that doesn't fit its column's type is a [`BadRow`], never another value.

mod convert;
mod csv;
mod files;
mod input;
mod ipc;
mod json;
mod list;
mod names;
mod options;
mod parquet;
mod path;
mod records;
mod snapshot;
mod stream;
mod text;
mod typename;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_core::pipeline::{SourceFormat, SourceSpec};
use forebay_core::source::{SourceSnapshot, TaskSpec};
use forebay_core::{Error, Result};
use futures::stream::BoxStream;
use std::sync::Arc;

pub use forebay_core::source::BadRow;
pub use options::DEFAULT_INFER_ROWS;
pub use path::Allow;
pub use snapshot::DEFAULT_TASK_SIZE;

use input::{Blob, Stores};
use options::Options;

/// Rows of a task, and those that could not be read.
#[derive(Debug, Clone)]
pub struct SourceBatch {
    /// Columns of [`source_schema`]; about 8 MiB, or one row that is larger.
    pub batch: RecordBatch,
    /// In `_id` order; their ids do not occur in `batch`.
    pub bad: Vec<BadRow>,
}

/// How large things may get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) task_files: usize,
    pub(crate) batch_bytes: usize,
    pub(crate) batch_rows: usize,
    /// Bytes of one csv record or json line.
    pub(crate) record_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { task_files: 4096, batch_bytes: 8 << 20, batch_rows: 16_384, record_bytes: 1 << 30 }
    }
}

/// Lists the source's files as they are now, gives each its range of ids and cuts the source into tasks.
///
/// `base` is the pipeline's folder, an absolute path or a URL. Files that `previous` (the dataset's last snapshot) knows with the same size and
/// stamp keep their ids; all others get new ones. `allow` is asked before anything is touched, with absolute paths for local files and links'
/// targets, and URLs for the rest. Errors: `BadInput` for a pattern that matches nothing, naming it, and for files that can't be read;
/// `PermissionDenied` where `allow` says no.
pub async fn snapshot(
    spec: &SourceSpec,
    base: &str,
    previous: Option<&SourceSnapshot>,
    allow: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<SourceSnapshot> {
    snapshot::take(spec, base, previous, allow, Limits::default()).await
}

/// Whether a source that is read in the same way as when `previous` was taken still has the same files. Lists them and opens none.
///
/// # Errors
/// As [`snapshot`], for patterns that match nothing and for what `allow` refuses.
pub async fn unchanged(
    spec: &SourceSpec,
    base: &str,
    previous: &SourceSnapshot,
    allow: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<bool> {
    snapshot::unchanged(spec, base, previous, allow).await
}

/// The columns that [`read_task`] yields: `_id` (Int64), `_source` (Utf8), then the source's own.
pub async fn source_schema(spec: &SourceSpec, snapshot: &SourceSnapshot) -> Result<SchemaRef> {
    let stores = Stores::new();
    let (spec, snapshot) = (spec.clone(), snapshot.clone());
    let read = tokio::task::spawn_blocking(move || schema(&spec, &snapshot, &stores)).await;
    read.map_err(|e| Error::internal(format!("reading the source's schema: {e}")))?
}

/// The columns of a source that is a query with these columns: the same as [`source_schema`] tells of its staged answer.
///
/// # Errors
/// `BadInput` for a name that no column can have.
pub fn query_columns(columns: &Schema) -> Result<SchemaRef> {
    let named: Vec<String> = columns.fields().iter().map(|f| f.name().clone()).collect();
    names::check(&named, "source.sql")
        .map_err(|e| e.with_remedy("name it with AS, or leave it out: SELECT * EXCLUDE (epoch, _id, _source)"))?;
    Ok(with_key(columns.fields().iter().map(|f| f.as_ref().clone()).collect()))
}

/// A snapshot of files that we staged, as a process finds them that may reach the same root under another name. Others stay as they are.
#[must_use]
pub fn under_root(mut snapshot: SourceSnapshot, format: SourceFormat, table_url: &str) -> SourceSnapshot {
    let private = "/_forebay/";
    if let Some(at) = snapshot.base.rfind(private).filter(|_| format.is_staged()) {
        snapshot.base = format!("{}{}", path::base_location(table_url).unwrap_or_else(|_| table_url.to_owned()), &snapshot.base[at..]);
    }
    snapshot
}

/// Reads a task's rows. Nothing is read before the first poll; dropping the stream ends the reading. A file that changed or vanished since the
/// snapshot ends it with an error that names the file.
pub fn read_task(spec: &SourceSpec, snapshot: Arc<SourceSnapshot>, task: &TaskSpec) -> BoxStream<'static, Result<SourceBatch>> {
    stream::read_task(spec.clone(), snapshot, task.clone(), Limits::default())
}

/// Blocking.
fn schema(spec: &SourceSpec, snapshot: &SourceSnapshot, stores: &Stores) -> Result<SchemaRef> {
    let options = Options::parse(spec)?;
    let first = |what: &str| snapshot.files.first().ok_or_else(|| Error::internal(format!("a {what} source without files")));
    let own: Vec<Field> = match spec.format {
        SourceFormat::Csv | SourceFormat::Json => text::targets(snapshot, &options)?.iter().map(text::Target::field).collect(),
        SourceFormat::Files => files::fields(),
        SourceFormat::Parquet | SourceFormat::Arrow | SourceFormat::Put | SourceFormat::Sql => {
            let blob = Blob::open(stores, &snapshot.base, first("columnar")?)?;
            names::rename(columnar_schema(&blob)?, &options, blob.name())?.iter().map(|f| f.as_ref().clone()).collect()
        }
    };
    Ok(with_key(own))
}

/// Whether a file's bytes begin as Parquet's do; a staged put may be either.
fn is_parquet(blob: &Blob) -> Result<bool> {
    let start = blob.bytes(0, blob.size().min(4)).map_err(|e| blob.fail(&e))?;
    Ok(start.as_ref() == b"PAR1")
}

fn columnar_schema(blob: &Blob) -> Result<SchemaRef> {
    if is_parquet(blob)? { parquet::schema(blob) } else { ipc::schema(blob) }
}

fn with_key(own: Vec<Field>) -> SchemaRef {
    let mut fields = vec![Field::new("_id", DataType::Int64, false), Field::new("_source", DataType::Utf8, false)];
    fields.extend(own);
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests;
