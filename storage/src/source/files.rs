//! Reading files as rows: path, size, mtime, content, label.

use arrow::array::{ArrayRef, BinaryBuilder, Int64Array, RecordBatch, StringArray, StringBuilder, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use forebay_core::source::{Piece, SourceFile};
use forebay_core::{Error, Result};
use std::sync::Arc;

use super::input::Blob;
use super::stream::{Emit, Reader, Stop};
use super::{Limits, SourceBatch};

/// Arrow's binary columns count bytes in 31 bits.
const LARGEST: u64 = i32::MAX as u64;

pub(super) fn fields() -> Vec<Field> {
    vec![
        Field::new("path", DataType::Utf8, false),
        Field::new("size", DataType::Int64, false),
        Field::new("mtime", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false),
        Field::new("content", DataType::Binary, false),
        Field::new("label", DataType::Utf8, true),
    ]
}

/// Refuses what can't be a row, when the source is snapshotted rather than hours later.
pub(super) fn check_size(name: &str, size: u64) -> Result<()> {
    if size <= LARGEST {
        return Ok(());
    }
    Err(Error::bad_input(format!("`{name}` has {size} bytes; a file that is read as one row may have up to {LARGEST}"))
        .with_remedy("leave it out of the pattern in `source.uri`"))
}

pub(super) struct FilesReader {
    schema: SchemaRef,
    limits: Limits,
    /// The label of files that lie in the base itself: its own name.
    base: Option<String>,
    gathered: Gathered,
}

#[derive(Default)]
struct Gathered {
    ids: Vec<i64>,
    paths: Vec<String>,
    sizes: Vec<i64>,
    mtimes: Vec<i64>,
    content: BinaryBuilder,
    labels: StringBuilder,
    bytes: usize,
}

impl FilesReader {
    pub(super) fn new(schema: SchemaRef, limits: Limits, base: &str) -> Self {
        let base = base.trim_end_matches('/').rsplit('/').next().filter(|n| !n.is_empty()).map(str::to_owned);
        Self { schema, limits, base, gathered: Gathered::default() }
    }

    fn take(&mut self) -> Result<SourceBatch> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let paths: ArrayRef = Arc::new(StringArray::from(gathered.paths));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(gathered.ids)),
            paths.clone(),
            paths,
            Arc::new(Int64Array::from(gathered.sizes)),
            Arc::new(TimestampMicrosecondArray::from(gathered.mtimes).with_timezone("UTC")),
            Arc::new(gathered.content.finish()),
            Arc::new(gathered.labels.finish()),
        ];
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(|e| Error::internal(format!("files as rows: {e}")))?;
        Ok(SourceBatch { batch, bad: Vec::new() })
    }
}

impl Reader for FilesReader {
    fn read(&mut self, blob: &Blob, file: &SourceFile, _: &Piece, emit: &mut Emit) -> Result<(), Stop> {
        check_size(&file.path, file.size)?;
        let content = blob.bytes(0, blob.size()).map_err(|e| blob.fail(&e))?;
        let full = |bytes: usize| bytes > self.limits.batch_bytes;
        if !self.gathered.ids.is_empty() && (full(self.gathered.bytes + content.len()) || self.gathered.ids.len() >= self.limits.batch_rows)
        {
            emit.send(self.take()?)?;
        }
        let rows = &mut self.gathered;
        rows.ids.push(file.id_base);
        rows.paths.push(file.path.clone());
        rows.sizes.push(i64::try_from(file.size).unwrap_or(i64::MAX));
        rows.mtimes.push(blob.modified_us());
        rows.bytes += content.len() + file.path.len();
        rows.content.append_value(&content);
        let folder = file.path.rsplit('/').nth(1).filter(|n| !n.is_empty());
        rows.labels.append_option(folder.or(self.base.as_deref()));
        Ok(())
    }

    fn finish(&mut self, emit: &mut Emit) -> Result<(), Stop> {
        if self.gathered.ids.is_empty() { Ok(()) } else { emit.send(self.take()?) }
    }
}
