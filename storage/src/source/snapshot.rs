//! Taking a snapshot: files in path order, id ranges, tasks, inferred columns.

use arrow::datatypes::SchemaRef;
use forebay_core::ids::TaskId;
use forebay_core::pipeline::{SourceFormat, SourceSpec};
use forebay_core::source::{Piece, SourceFile, SourceSnapshot, TaskSpec};
use forebay_core::{Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::input::{Blob, Compression, Stores};
use super::list::{self, AllowFn, Files};
use super::options::Options;
use super::{Limits, csv, files, ipc, json, parquet, path};

/// Source bytes of one task, unless `options.task_size` says otherwise.
pub const DEFAULT_TASK_SIZE: u64 = 64 << 20;
/// Length of a compressed text file's id range: the most bytes it may hold.
pub(super) const COMPRESSED_RANGE: i64 = 1 << 36;
/// Files whose shape is read at the same time.
const PARALLEL: usize = 8;

pub(super) fn too_long(name: &str) -> Error {
    Error::bad_input(format!("`{name}` holds more than {COMPRESSED_RANGE} bytes of text"))
        .with_remedy("divide it, or store it uncompressed")
}

/// What only a file's content tells.
struct Shape {
    id_range: i64,
    /// (piece, bytes to read for it); none for a file without rows.
    pieces: Vec<(Piece, u64)>,
    schema: Option<SchemaRef>,
}

pub(super) async fn take(
    spec: &SourceSpec,
    base: &str,
    previous: Option<&SourceSnapshot>,
    allow: AllowFn<'_>,
    limits: Limits,
) -> Result<SourceSnapshot> {
    let options = Options::parse(spec)?;
    if spec.format == SourceFormat::Csv {
        csv::check_types(&options.types)?;
    }
    let stores = Stores::new();
    let base = path::base_location(base)?;
    let found = find(spec, &base, &stores, allow).await?;
    // Path order is the order of the names that users see.
    let named: BTreeMap<String, _> = found.into_iter().map(|(location, file)| (path::relative(&base, &location), file)).collect();
    let mut all: Vec<SourceFile> =
        named.into_iter().map(|(path, f)| SourceFile { path, size: f.size, stamp: f.stamp, id_base: 0, id_range: 0 }).collect();
    let work = Arc::new(Work { format: spec.format, options: options.clone(), stores: stores.clone(), base: base.clone(), limits });
    let shapes: Vec<Shape> = stream::iter(all.clone()).map(|file| shape(work.clone(), file)).buffered(PARALLEL).try_collect().await?;
    agree(&work, &all, &shapes)?;
    let next_id = assign(&mut all, &shapes, previous)?;
    let tasks = tasks(&all, &shapes, options.task_size.unwrap_or(DEFAULT_TASK_SIZE), limits.task_files)?;
    let columns = infer(work, all.clone()).await?;
    Ok(SourceSnapshot { base, files: all, tasks, columns, next_id, query: None })
}

/// Whether the source still has exactly the files of `previous`: names, sizes and stamps, without opening any.
pub(super) async fn unchanged(spec: &SourceSpec, base: &str, previous: &SourceSnapshot, allow: AllowFn<'_>) -> Result<bool> {
    let base = path::base_location(base)?;
    if base != previous.base {
        return Ok(false);
    }
    let found = find(spec, &base, &Stores::new(), allow).await?;
    let now: BTreeMap<String, (u64, String)> =
        found.into_iter().map(|(location, file)| (path::relative(&base, &location), (file.size, file.stamp))).collect();
    let before = previous.files.iter().map(|f| (f.path.clone(), (f.size, f.stamp.clone()))).collect();
    Ok(now == before)
}

/// Every URI must match something.
async fn find(spec: &SourceSpec, base: &str, stores: &Stores, allow: AllowFn<'_>) -> Result<Files> {
    let mut found = Files::new();
    for uri in &spec.uri {
        let location = path::resolve(base, uri)?;
        let files = list::list(&location, spec.format, stores, allow).await?;
        if files.is_empty() {
            let message = format!("`source.uri`: no file matches `{uri}` (looked in `{base}`)");
            return Err(Error::bad_input(message).with_remedy("check the pattern; it is relative to the pipeline file's folder"));
        }
        found.extend(files);
    }
    if found.is_empty() {
        return Err(Error::bad_input("`source.uri` names nothing").with_remedy("name a file, a folder or a pattern such as `data/*.csv`"));
    }
    Ok(found)
}

struct Work {
    format: SourceFormat,
    options: Options,
    stores: Stores,
    base: String,
    limits: Limits,
}

impl Work {
    fn open(&self, file: &SourceFile) -> Result<Blob> {
        Blob::open(&self.stores, &self.base, file)
    }

    fn task_size(&self) -> u64 {
        self.options.task_size.unwrap_or(DEFAULT_TASK_SIZE)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::corrupt(format!("a source file broke its reader: {e}")).with_remedy("look for a damaged file")),
    }
}

async fn shape(work: Arc<Work>, file: SourceFile) -> Result<Shape> {
    let whole = |id_range| Shape { id_range, pieces: vec![(Piece::Whole, file.size)], schema: None };
    match work.format {
        SourceFormat::Files => {
            files::check_size(&file.path, file.size)?;
            Ok(whole(1))
        }
        SourceFormat::Csv | SourceFormat::Json => {
            if Compression::of(&file.path) != Compression::None {
                return Ok(whole(COMPRESSED_RANGE));
            }
            let id_range = i64::try_from(file.size).map_err(|_| Error::internal("a file's size"))?;
            if file.size <= work.task_size().saturating_mul(3) / 2 {
                let pieces = if file.size == 0 { Vec::new() } else { vec![(Piece::Whole, file.size)] };
                return Ok(Shape { id_range, pieces, schema: None });
            }
            blocking(move || Ok(Shape { id_range, pieces: cut(&work, &file)?, schema: None })).await
        }
        SourceFormat::Parquet | SourceFormat::Arrow | SourceFormat::Put | SourceFormat::Sql => {
            blocking(move || columnar(&work, &file)).await
        }
    }
}

fn cut(work: &Work, file: &SourceFile) -> Result<Vec<(Piece, u64)>> {
    let blob = work.open(file)?;
    let cuts = match work.format {
        SourceFormat::Json => json::cuts(&blob, work.task_size())?,
        _ => csv::cuts(&blob, &work.options, work.task_size(), work.limits)?,
    };
    blob.verify()?;
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain(std::iter::once(file.size));
    Ok(starts.zip(ends).map(|(start, end)| (Piece::Bytes { start, end }, end - start)).collect())
}

fn columnar(work: &Work, file: &SourceFile) -> Result<Shape> {
    let blob = work.open(file)?;
    if file.size == 0 {
        return Err(Error::bad_input(format!("`{}` is empty", file.path)).with_remedy("leave it out of the pattern in `source.uri`"));
    }
    let (parts, divisible, schema) = if super::is_parquet(&blob)? {
        let (groups, schema) = parquet::shape(&blob)?;
        (groups, true, schema)
    } else {
        let (batches, divisible) = ipc::shape(&blob)?;
        (batches, divisible, ipc::schema(&blob)?)
    };
    blob.verify()?;
    let rows = parts.iter().try_fold(0_u64, |sum, (rows, _)| sum.checked_add(*rows)).and_then(|rows| i64::try_from(rows).ok());
    let id_range = rows.ok_or_else(|| Error::bad_input(format!("`{}` claims too many rows", file.path)))?;
    let pieces = if divisible { divide(&parts, work.task_size()) } else { vec![(Piece::Whole, file.size)] };
    Ok(Shape { id_range, pieces: if id_range == 0 { Vec::new() } else { pieces }, schema: Some(schema) })
}

/// Runs of row groups of about `size` bytes.
fn divide(parts: &[(u64, u64)], size: u64) -> Vec<(Piece, u64)> {
    let mut pieces = Vec::new();
    let (mut start, mut row, mut bytes) = (0, 0, 0_u64);
    for (rows, part) in parts {
        if bytes > 0 && bytes.saturating_add(*part) > size {
            pieces.push((Piece::Rows { start, end: row }, bytes));
            (start, bytes) = (row, 0);
        }
        row += rows;
        bytes = bytes.saturating_add((*part).max(1));
    }
    if row > start {
        pieces.push((Piece::Rows { start, end: row }, bytes));
    }
    if let [(piece, _)] = pieces.as_mut_slice() {
        *piece = Piece::Whole;
    }
    pieces
}

/// All columnar files have the first one's columns.
fn agree(work: &Work, all: &[SourceFile], shapes: &[Shape]) -> Result<()> {
    let mut schemas = all.iter().zip(shapes).filter_map(|(file, shape)| shape.schema.as_ref().map(|s| (file, s)));
    let Some((first, schema)) = schemas.next() else { return Ok(()) };
    let own: Vec<_> = super::names::rename(schema.clone(), &work.options, &first.path)?.iter().cloned().collect();
    for (file, schema) in schemas {
        parquet::columns_agree(&own, schema, &work.options, &file.path, &first.path)?;
    }
    Ok(())
}

/// Gives each file its range of ids: a known file keeps its own, every other one gets ids that were never used.
fn assign(all: &mut [SourceFile], shapes: &[Shape], previous: Option<&SourceSnapshot>) -> Result<i64> {
    let known: HashMap<&str, &SourceFile> = previous.into_iter().flat_map(|p| &p.files).map(|f| (f.path.as_str(), f)).collect();
    let used = known.values().map(|f| f.id_base.saturating_add(f.id_range)).max().unwrap_or(0);
    let mut next = previous.map_or(0, |p| p.next_id).max(used);
    for (file, shape) in all.iter_mut().zip(shapes) {
        file.id_range = shape.id_range;
        match known.get(file.path.as_str()) {
            Some(old) if old.size == file.size && old.stamp == file.stamp && old.id_range == file.id_range => file.id_base = old.id_base,
            _ => {
                file.id_base = next;
                let end = next.checked_add(file.id_range);
                next = end.ok_or_else(|| {
                    Error::bad_input("the source has more rows than there are ids").with_remedy("divide it into several datasets")
                })?;
            }
        }
    }
    Ok(next)
}

/// Tasks take files in the order of their ids, so that a dataset's rows are stored in key order; for a source's first snapshot that is path order.
fn tasks(all: &[SourceFile], shapes: &[Shape], size: u64, most: usize) -> Result<Vec<TaskSpec>> {
    let mut order: Vec<(usize, &Shape)> = shapes.iter().enumerate().collect();
    order.sort_by_key(|(index, _)| all.get(*index).map(|f| (f.id_base, f.id_range)));
    let mut tasks = Vec::new();
    let mut pieces = Vec::new();
    let mut bytes = 0_u64;
    let mut close = |pieces: &mut Vec<(u32, Piece)>| -> Result<()> {
        if !pieces.is_empty() {
            let task = TaskId(
                u32::try_from(tasks.len())
                    .map_err(|_| Error::bad_input("the source has too many tasks").with_remedy("raise `task_size`"))?,
            );
            tasks.push(TaskSpec { task, pieces: std::mem::take(pieces) });
        }
        Ok(())
    };
    for (index, shape) in order {
        let index = u32::try_from(index).map_err(|_| Error::bad_input("the source has more than 2^32 files"))?;
        for (piece, cost) in &shape.pieces {
            if bytes.saturating_add(*cost) > size || pieces.len() >= most {
                close(&mut pieces)?;
                bytes = 0;
            }
            pieces.push((index, piece.clone()));
            bytes = bytes.saturating_add(*cost);
        }
    }
    close(&mut pieces)?;
    Ok(tasks)
}

async fn infer(work: Arc<Work>, all: Vec<SourceFile>) -> Result<Vec<(String, String)>> {
    match work.format {
        SourceFormat::Csv => blocking(move || csv::infer(&|f| work.open(f), &all, &work.options, work.limits)).await,
        SourceFormat::Json => blocking(move || json::infer(&|f| work.open(f), &all, &work.options, work.limits)).await,
        _ => Ok(Vec::new()),
    }
}
