//! Reading one row group: the bytes of the columns asked for in one request, decoded on a blocking thread.

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use bytes::{Buf, Bytes};
use forebay_core::ids::DatasetName;
use forebay_core::shard::ShardMeta;
use forebay_core::{Error, Kind, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection};
use parquet::arrow::async_reader::MetadataFetch;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use std::ops::Range;
use std::sync::Arc;

use super::blocking;
use super::encode::PLACE_KEY;
use super::footer::FooterKey;
use super::name::{ShardName, shard_path};
use crate::delta::DatasetVersion;
use crate::root::Root;
use crate::types::StoredSchema;

/// Most footers fit; one request then reads length and footer.
const FOOTER_GUESS: usize = 64 << 10;
/// A foreign file's row group may be huge; its batches aren't.
const BATCH_BYTES: u64 = 64 << 20;

/// Reads rows of one row group in logical types, usually as one batch. `shard` counts in [`DatasetVersion::shards`], `row_group` in that
/// shard, `rows` in that row group (all of it for `None`); `columns` keeps its order (all of them for `None`).
///
/// # Errors
/// `BadInput` for an unknown column or rows outside the row group, `NotFound` when the file is gone (vacuumed or dropped), `Corrupt` when
/// its bytes aren't what the log says.
pub async fn read_row_group(
    root: &Root,
    version: &DatasetVersion,
    shard: usize,
    row_group: usize,
    columns: Option<&[String]>,
    rows: Option<Range<u64>>,
) -> Result<Vec<RecordBatch>> {
    let meta = version.shards.get(shard).ok_or_else(|| Error::internal(format!("{} has no shard {shard}", version.name)))?;
    read_group(root, &version.name, &version.stored, meta, row_group, columns, rows.into()).await
}

/// As [`read_row_group`], only the rows in `rows`: ascending ranges, counted in the row group. The others are skipped while decoding.
///
/// # Errors
/// As [`read_row_group`].
pub async fn read_selected(
    root: &Root,
    version: &DatasetVersion,
    shard: usize,
    row_group: usize,
    columns: Option<&[String]>,
    rows: Vec<Range<u64>>,
) -> Result<Vec<RecordBatch>> {
    let meta = version.shards.get(shard).ok_or_else(|| Error::internal(format!("{} has no shard {shard}", version.name)))?;
    read_group(root, &version.name, &version.stored, meta, row_group, columns, Rows::Some(rows)).await
}

/// As [`read_row_group`], of a shard that no version names yet; `stored` is how its columns are stored.
///
/// # Errors
/// As [`read_row_group`].
pub async fn read_unnamed(
    root: &Root,
    name: &DatasetName,
    stored: &StoredSchema,
    shard: &ShardMeta,
    row_group: usize,
    columns: &[String],
) -> Result<Vec<RecordBatch>> {
    read_group(root, name, stored, shard, row_group, Some(columns), Rows::All).await
}

/// Which rows of a row group.
enum Rows {
    All,
    One(Range<u64>),
    Some(Vec<Range<u64>>),
}

impl From<Option<Range<u64>>> for Rows {
    fn from(rows: Option<Range<u64>>) -> Self {
        rows.map_or(Rows::All, Rows::One)
    }
}

async fn read_group(
    root: &Root,
    name: &DatasetName,
    stored: &StoredSchema,
    meta: &ShardMeta,
    row_group: usize,
    columns: Option<&[String]>,
    rows: Rows,
) -> Result<Vec<RecordBatch>> {
    let path = shard_path(name, &meta.path);
    let (indices, schema) = stored.project(columns)?;
    let footer = load_footer(root, name, meta).await?;
    let expected = meta.row_groups.get(row_group).map(|g| g.rows);
    let found = footer.metadata().row_groups().get(row_group).and_then(|g| u64::try_from(g.num_rows()).ok());
    let (Some(expected), Some(found)) = (expected, found) else {
        return Err(Error::internal(format!("{} has no row group {row_group}", root.place(&path))));
    };
    if expected != found {
        return Err(Error::corrupt(format!("{}: row group {row_group} has {found} rows where the log says {expected}", root.place(&path))));
    }
    let rows = match rows {
        Rows::All => std::iter::once(0..found).collect(),
        Rows::One(rows) => vec![rows],
        Rows::Some(rows) => rows,
    };
    let mut before = 0;
    for range in &rows {
        if range.start > range.end || range.end > found || range.start < before {
            return Err(Error::bad_input(format!("rows {}..{} of a row group of {found}", range.start, range.end)));
        }
        before = range.end;
    }
    let plan = ReadPlan::new(&footer, stored, &indices, row_group);
    let chunks = fetch(root, &path, &plan.ranges).await?;
    let stored = stored.clone();
    let place = root.place(&path);
    blocking(move || plan.decode(footer, chunks, &stored, &schema, rows).map_err(|e| e.context(place))).await
}

/// The footer of a shard, for those who plan by its statistics.
///
/// # Errors
/// As [`read_row_group`].
pub async fn footer(root: &Root, name: &DatasetName, shard: &ShardMeta) -> Result<Arc<ParquetMetaData>> {
    Ok(Arc::clone(load_footer(root, name, shard).await?.metadata()))
}

pub(crate) async fn load_footer(root: &Root, name: &DatasetName, shard: &ShardMeta) -> Result<ArrowReaderMetadata> {
    let path = shard_path(name, &shard.path);
    let key = FooterKey { path: path.to_string(), size: shard.size, modified_ms: shard.modified_ms };
    if let Some(footer) = root.footers().get(&key) {
        return Ok(footer);
    }
    let fetch = FooterFetch { root, path: &path };
    let loaded = ParquetMetaDataReader::new().with_prefetch_hint(Some(FOOTER_GUESS)).load_and_finish(fetch, shard.size).await;
    let metadata = loaded.map_err(|e| footer_error(root, &path, e))?;
    check_place(shard, &metadata).map_err(|e| e.context(root.place(&path)))?;
    let footer = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
        .map_err(|e| Error::corrupt(format!("{}: its schema can't be read: {e}", root.place(&path))))?;
    root.footers().put(key, &footer);
    Ok(footer)
}

/// A shard of ours says which rows it holds: one that was renamed, or restored under a wrong name, would pass for another's otherwise.
fn check_place(shard: &ShardMeta, metadata: &ParquetMetaData) -> Result<()> {
    let ShardMeta { epoch, task, part, attempt, .. } = *shard;
    let stem = ShardName { epoch, task, part, attempt, generation: 0 }.stem();
    if !shard.path.strip_prefix(&stem).is_some_and(|rest| rest.starts_with('-')) {
        // Of another writer, which numbers nothing.
        return Ok(());
    }
    let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
    match pairs.filter(|pair| pair.key == PLACE_KEY).find_map(|pair| pair.value.as_deref()) {
        Some(found) if found != stem => Err(Error::corrupt(format!("the file holds the rows of `{found}`"))
            .with_remedy("another file was put in its place: restore the right one, or materialize the dataset again with --replace")),
        _ => Ok(()),
    }
}

fn footer_error(root: &Root, path: &Path, error: ParquetError) -> Error {
    if let ParquetError::External(inner) = &error
        && let Some(error) = inner.downcast_ref::<Error>()
    {
        return error.clone();
    }
    Error::corrupt(format!("{} isn't a readable Parquet file: {error}", root.place(path)))
}

/// What it means that the bytes of a shard up to `end` could not be read: stores don't agree on what to say of a file that ends before them.
async fn unread(root: &Root, path: &Path, end: u64, doing: &str, error: &object_store::Error) -> Error {
    let failed = root.error(doing, path, error);
    if failed.kind == Kind::NotFound {
        return failed;
    }
    match root.store().head(path).await {
        Ok(found) if found.size < end => {
            Error::corrupt(format!("{} has {} bytes where the log says at least {end}", root.place(path), found.size))
        }
        _ => failed,
    }
}

struct FooterFetch<'a> {
    root: &'a Root,
    path: &'a Path,
}

impl MetadataFetch for FooterFetch<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        let (root, path) = (self.root, self.path);
        async move {
            match root.get_range(path, range.clone()).await {
                Ok(bytes) => Ok(bytes),
                Err(e) => Err(ParquetError::External(Box::new(unread(root, path, range.end, "read the footer of", &e).await))),
            }
        }
        .boxed()
    }
}

/// Which bytes of a file hold the columns asked for, and where each of them ends up.
struct ReadPlan {
    row_group: usize,
    ranges: Vec<Range<u64>>,
    mask: ProjectionMask,
    /// Per column asked for: its index in the dataset's schema.
    indices: Vec<usize>,
    batch_rows: usize,
}

impl ReadPlan {
    fn new(footer: &ArrowReaderMetadata, stored: &StoredSchema, indices: &[usize], row_group: usize) -> Self {
        let file = footer.parquet_schema();
        let names: Vec<&str> = indices.iter().map(|&i| stored.stored.field(i).name().as_str()).collect();
        let roots: Vec<usize> =
            file.root_schema().get_fields().iter().enumerate().filter(|(_, f)| names.contains(&f.name())).map(|(i, _)| i).collect();
        let mask = ProjectionMask::roots(file, roots);
        let group = footer.metadata().row_group(row_group);
        let mut ranges = Vec::new();
        let mut bytes = 0_u64;
        for (leaf, column) in group.columns().iter().enumerate() {
            if mask.leaf_included(leaf) {
                let (start, length) = column.byte_range();
                ranges.push(start..start + length);
                bytes += u64::try_from(column.uncompressed_size()).unwrap_or(0);
            }
        }
        let rows = u64::try_from(group.num_rows()).unwrap_or(0).max(1);
        let batch_rows = if bytes <= BATCH_BYTES { rows } else { (u128::from(rows) * u128::from(BATCH_BYTES) / u128::from(bytes)) as u64 };
        Self { row_group, ranges, mask, indices: indices.to_vec(), batch_rows: usize::try_from(batch_rows.max(1)).unwrap_or(usize::MAX) }
    }

    fn decode(
        self,
        footer: ArrowReaderMetadata,
        chunks: Chunks,
        stored: &StoredSchema,
        schema: &SchemaRef,
        rows: Vec<Range<u64>>,
    ) -> Result<Vec<RecordBatch>> {
        let to_usize = |n: u64| usize::try_from(n).map_err(|_| Error::internal("a row number beyond this host's memory"));
        let corrupt = |e: &dyn std::fmt::Display| Error::corrupt(format!("row group {}: {e}", self.row_group));
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(chunks, footer)
            .with_row_groups(vec![self.row_group])
            .with_projection(self.mask)
            .with_batch_size(self.batch_rows);
        let wanted: u64 = rows.iter().map(|r| r.end - r.start).sum();
        match rows.as_slice() {
            [rows] => {
                builder = builder.with_limit(to_usize(wanted)?);
                if rows.start > 0 {
                    builder = builder.with_offset(to_usize(rows.start)?);
                }
            }
            ranges => {
                let ranges = ranges.iter().map(|r| Ok(to_usize(r.start)?..to_usize(r.end)?)).collect::<Result<Vec<_>>>()?;
                let all = builder.metadata().row_group(self.row_group).num_rows();
                let all = to_usize(u64::try_from(all).unwrap_or(0))?;
                builder = builder.with_row_selection(RowSelection::from_consecutive_ranges(ranges.into_iter(), all));
            }
        }
        let mut batches = Vec::new();
        let mut seen = 0;
        for batch in builder.build().map_err(|e| corrupt(&e))? {
            let batch = batch.map_err(|e| corrupt(&e))?;
            seen += batch.num_rows() as u64;
            let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.indices.len());
            for &i in &self.indices {
                columns.push(match batch.column_by_name(stored.stored.field(i).name()) {
                    Some(column) => stored.decode_column(i, column)?,
                    None => stored.missing_column(i, batch.num_rows())?,
                });
            }
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            batches.push(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(|e| corrupt(&e))?);
        }
        if seen != wanted {
            return Err(corrupt(&format!("{seen} rows came out where {wanted} were asked for")));
        }
        Ok(batches)
    }
}

/// The parts of a file that were fetched.
struct Chunks {
    parts: Vec<(u64, Bytes)>,
    size: u64,
}

async fn fetch(root: &Root, path: &Path, ranges: &[Range<u64>]) -> Result<Chunks> {
    let size = ranges.iter().map(|r| r.end).max().unwrap_or(0);
    let parts = match root.get_ranges(path, ranges).await {
        Ok(parts) => parts,
        Err(e) => {
            let error = unread(root, path, size, "read the shard", &e).await;
            return Err(match error.kind {
                Kind::NotFound => error.with_remedy("its version was vacuumed or its dataset dropped; open the dataset again"),
                _ => error,
            });
        }
    };
    Ok(Chunks { parts: ranges.iter().map(|r| r.start).zip(parts).collect(), size })
}

impl Chunks {
    fn from(&self, start: u64) -> parquet::errors::Result<Bytes> {
        for (offset, bytes) in &self.parts {
            if let Some(skip) = start.checked_sub(*offset)
                && skip < bytes.len() as u64
            {
                return Ok(bytes.slice(skip as usize..));
            }
        }
        Err(ParquetError::EOF(format!("byte {start} wasn't fetched")))
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Chunks {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} weren't all fetched")));
        }
        Ok(bytes.slice(..length))
    }
}
