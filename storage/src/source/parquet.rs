//! Reading Parquet: schema, row groups, rows. Also what Parquet and Arrow files share: keys by row position, and the check of columns.

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, SchemaRef};
use forebay_core::source::{Piece, SourceFile};
use forebay_core::{Error, Result};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::ParquetMetaData;
use std::sync::Arc;

use super::input::Blob;
use super::options::Options;
use super::stream::{Emit, Reader, Stop};
use super::{Limits, SourceBatch, names};

fn broken(blob: &Blob, error: &dyn std::fmt::Display) -> Error {
    Error::bad_input(format!("`{}` can't be read as Parquet: {error}", blob.name()))
        .with_remedy("check that the file is whole and is Parquet")
}

fn open(blob: &Blob) -> Result<ParquetRecordBatchReaderBuilder<Blob>> {
    ParquetRecordBatchReaderBuilder::try_new(blob.clone()).map_err(|e| broken(blob, &e))
}

pub(super) fn schema(blob: &Blob) -> Result<SchemaRef> {
    Ok(open(blob)?.schema().clone())
}

/// What a footer tells: (rows, stored bytes) of each row group, and the columns.
pub(super) fn shape(blob: &Blob) -> Result<(Vec<(u64, u64)>, SchemaRef)> {
    let opened = open(blob)?;
    let groups = groups(opened.metadata()).map_err(|e| broken(blob, &e))?;
    Ok((groups, opened.schema().clone()))
}

fn groups(metadata: &ParquetMetaData) -> Result<Vec<(u64, u64)>, &'static str> {
    let number = |n: i64| u64::try_from(n).map_err(|_| "a negative size in its footer");
    metadata.row_groups().iter().map(|g| Ok((number(g.num_rows())?, number(g.compressed_size())?))).collect()
}

/// Reads pieces of columnar files.
pub(super) struct ColumnarReader {
    schema: SchemaRef,
    options: Options,
    limits: Limits,
    first: String,
    /// Small batches that wait to be put together, so that many small files don't make many small batches.
    pending: Vec<RecordBatch>,
    pending_bytes: usize,
}

impl ColumnarReader {
    pub(super) fn new(schema: SchemaRef, options: Options, limits: Limits, first: String) -> Self {
        Self { schema, options, limits, first, pending: Vec::new(), pending_bytes: 0 }
    }

    fn own(&self) -> &[Arc<Field>] {
        self.schema.fields().get(2..).unwrap_or_default()
    }

    /// Where a file has the source's columns.
    pub(super) fn places(&self, file: &SchemaRef, blob: &Blob) -> Result<Vec<usize>> {
        columns_agree(self.own(), file, &self.options, blob.name(), &self.first)
    }

    /// Adds keys to rows that begin at `row` of a file and hands them on in bounded batches.
    pub(super) fn send(&mut self, batch: &RecordBatch, places: &[usize], file: &SourceFile, row: u64, emit: &mut Emit) -> Result<(), Stop> {
        let mut start = 0;
        let average = (batch.get_array_memory_size() / batch.num_rows().max(1)).max(1);
        while start < batch.num_rows() {
            let length = self.fitting(batch.num_rows() - start, average);
            let part = self.keyed(&batch.slice(start, length), places, file, row + start as u64)?;
            self.gather(part, average * length, emit)?;
            start += length;
        }
        Ok(())
    }

    fn gather(&mut self, batch: RecordBatch, bytes: usize, emit: &mut Emit) -> Result<(), Stop> {
        let rows: usize = self.pending.iter().map(RecordBatch::num_rows).sum();
        if rows + batch.num_rows() > self.limits.batch_rows || self.pending_bytes + bytes > self.limits.batch_bytes {
            self.flush(emit)?;
        }
        let large = batch.num_rows() * 2 >= self.limits.batch_rows || bytes * 2 >= self.limits.batch_bytes;
        if large && self.pending.is_empty() {
            return emit.send(SourceBatch { batch, bad: Vec::new() });
        }
        self.pending.push(batch);
        self.pending_bytes += bytes;
        Ok(())
    }

    fn flush(&mut self, emit: &mut Emit) -> Result<(), Stop> {
        self.pending_bytes = 0;
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let batch = concat_batches(&self.schema, &pending).map_err(|e| Error::internal(format!("putting source rows together: {e}")))?;
        emit.send(SourceBatch { batch, bad: Vec::new() })
    }

    /// How many of the rows that are left fit a batch, by their average size.
    fn fitting(&self, left: usize, average: usize) -> usize {
        let fits = (self.limits.batch_bytes / average).clamp(1, self.limits.batch_rows);
        // A rest that is nearly a batch goes along rather than on its own.
        if left <= fits + fits / 4 { left } else { fits }
    }

    fn keyed(&self, batch: &RecordBatch, places: &[usize], file: &SourceFile, row: u64) -> Result<RecordBatch> {
        let base = file.id_base + i64::try_from(row).unwrap_or(i64::MAX);
        let rows = i64::try_from(batch.num_rows()).unwrap_or(i64::MAX);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(base..base + rows)),
            Arc::new(StringArray::from_iter_values(std::iter::repeat_n(file.path.as_str(), batch.num_rows()))),
        ];
        columns.extend(places.iter().map(|at| batch.column(*at).clone()));
        RecordBatch::try_new(self.schema.clone(), columns).map_err(|e| {
            Error::bad_input(format!("`{}` doesn't fit the columns of `{}`: {e}", file.path, self.first))
                .with_remedy("give all files of a source the same columns and types")
        })
    }
}

/// Finds the source's columns in a file and checks that they have the same types.
pub(super) fn columns_agree(own: &[Arc<Field>], schema: &SchemaRef, options: &Options, file: &str, first: &str) -> Result<Vec<usize>> {
    let fields = names::rename(schema.clone(), options, file)?;
    let found: Vec<String> = fields.iter().map(|f| f.name().clone()).collect();
    let wanted: Vec<&str> = own.iter().map(|f| f.name().as_str()).collect();
    let places = names::places(&wanted, &found, file, first)?;
    for (field, place) in own.iter().zip(&places) {
        let here = &fields[*place];
        if here.data_type() != field.data_type() || here.metadata() != field.metadata() {
            let what = format!("`{file}`: the column `{}` is {} and in `{first}` {}", field.name(), here.data_type(), field.data_type());
            return Err(Error::bad_input(what).with_remedy("give all files of a source the same types, or make them two pipelines"));
        }
    }
    Ok(places)
}

impl Reader for ColumnarReader {
    fn read(&mut self, blob: &Blob, file: &SourceFile, piece: &Piece, emit: &mut Emit) -> Result<(), Stop> {
        let opened = ArrowReaderMetadata::load(blob, ArrowReaderOptions::default()).map_err(|e| broken(blob, &e))?;
        let places = self.places(opened.schema(), blob)?;
        let groups = groups(opened.metadata()).map_err(|e| broken(blob, &e))?;
        let (from, to) = match piece {
            Piece::Rows { start, end } => (*start, *end),
            _ => (0, u64::MAX),
        };
        let mut row = 0;
        for (index, (rows, _)) in groups.iter().enumerate() {
            let begin = row;
            row += rows;
            if begin < from || begin >= to || *rows == 0 {
                continue;
            }
            self.group(blob, &opened, (index, begin), &places, file, emit)?;
        }
        Ok(())
    }

    fn finish(&mut self, emit: &mut Emit) -> Result<(), Stop> {
        self.flush(emit)
    }
}

impl ColumnarReader {
    /// `group`: its index, and the row of the file that it begins with.
    fn group(
        &mut self,
        blob: &Blob,
        opened: &ArrowReaderMetadata,
        group: (usize, u64),
        places: &[usize],
        file: &SourceFile,
        emit: &mut Emit,
    ) -> Result<(), Stop> {
        let (index, mut row) = group;
        let meta = opened.metadata().row_group(index);
        let average = (meta.total_byte_size() / meta.num_rows().max(1)).max(1);
        let rows = (self.limits.batch_bytes as i64 / average).clamp(1, self.limits.batch_rows as i64);
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(blob.clone(), opened.clone());
        let built = reader.with_row_groups(vec![index]).with_batch_size(usize::try_from(rows).unwrap_or(1)).build();
        for batch in built.map_err(|e| broken(blob, &e))? {
            let batch = batch.map_err(|e| broken(blob, &e))?;
            self.send(&batch, places, file, row, emit)?;
            row += batch.num_rows() as u64;
        }
        Ok(())
    }
}
