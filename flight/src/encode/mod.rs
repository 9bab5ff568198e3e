//! Rows to messages: gathers rows straight from a window's chunks into final IPC bodies.
//!
//! Owns: the wire's types, cutting by measured bytes, the gather, the message headers. A fixed-width column costs one copy; nothing builds
//! an intermediate `RecordBatch` (only unions and their like do, through arrow's own writer).
//!
//! Types on the wire are those that every client knows: views, list views, run-end encodings and dictionaries are sent as their plain
//! values. [`wire_schema`] says what arrives.

mod body;
mod gather;
mod header;
mod measure;
mod wire;

use arrow::array::{ArrayData, ArrayRef, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use bytes::Bytes;
use forebay_core::{Error, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::api::BatchMeta;
use crate::message::{MAX_MESSAGE, Message, too_large};
use body::Pool;
pub use wire::{to_wire, wire_schema};

/// Body bytes that a message aims at: far larger ones were measured slower in clients, smaller ones cost calls.
pub const TARGET: usize = 2 << 20;

/// A batch of a job up to this many body bytes is one message: its consumer would have to put the parts together again, which costs more than
/// what larger messages are slower by. Measured with pyarrow: no difference up to here, a third slower at 40 MiB.
pub const WHOLE: usize = 10 << 20;

/// Consecutive rows of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) chunk: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// Chunks of rows made ready for gathering: of wire types, taken apart into buffers.
pub struct Prepared {
    /// Per column, per chunk.
    columns: Vec<Vec<ArrayData>>,
    /// For columns that only arrow's own writer knows.
    batches: Vec<RecordBatch>,
    rows: Vec<usize>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// Encodes rows of one schema; keeps the conversion of the last window.
pub struct Encoder {
    schema: SchemaRef,
    target: usize,
    whole: usize,
    direct: bool,
    /// Some column's type differs on the wire.
    converts: bool,
    last: Option<(Arc<Vec<RecordBatch>>, Arc<Prepared>)>,
    pool: Pool,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("schema", &self.schema).field("target", &self.target).finish_non_exhaustive()
    }
}

impl Encoder {
    /// For rows of `schema`, which may have types that are converted for the wire.
    ///
    /// # Errors
    /// `Unsupported` for a type that cannot be sent.
    pub fn new(schema: &SchemaRef) -> Result<Self> {
        let wire = wire_schema(schema)?;
        let direct = wire.fields().iter().all(|f| gather::supports(f.data_type()));
        Ok(Self { converts: wire != *schema, schema: wire, target: TARGET, whole: WHOLE, direct, last: None, pool: Pool::default() })
    }

    /// Aims at other than [`TARGET`] bytes, and leaves nothing whole that is larger.
    #[must_use]
    pub fn with_target(mut self, bytes: usize) -> Self {
        (self.target, self.whole) = (bytes.max(1), bytes.max(1));
        self
    }

    /// The schema on the wire.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The message that starts a stream.
    pub fn schema_message(&self) -> Message {
        let mut tracker = DictionaryTracker::new(false);
        let data = IpcDataGenerator {}.schema_to_bytes_with_dictionary_tracker(&self.schema, &mut tracker, &IpcWriteOptions::default());
        Message { header: Bytes::from(data.ipc_message), ..Message::default() }
    }

    /// Converts and takes apart the chunks, or finds them done when they are the last ones again.
    ///
    /// # Errors
    /// `Internal` when a chunk is not of the encoder's schema.
    pub fn prepare(&mut self, chunks: &Arc<Vec<RecordBatch>>) -> Result<Arc<Prepared>> {
        if let Some(prepared) = self.prepared(chunks) {
            return Ok(prepared);
        }
        let prepared = prepare(&self.schema, self.converts, chunks)?;
        Ok(self.keep(chunks, prepared))
    }

    /// As [`Encoder::prepare`]; a conversion of a whole window runs beside the async threads.
    ///
    /// # Errors
    /// As [`Encoder::prepare`].
    pub async fn prepare_beside(&mut self, chunks: &Arc<Vec<RecordBatch>>) -> Result<Arc<Prepared>> {
        if !self.converts || self.prepared(chunks).is_some() {
            return self.prepare(chunks);
        }
        let (schema, of) = (Arc::clone(&self.schema), Arc::clone(chunks));
        let converted = tokio::task::spawn_blocking(move || prepare(&schema, true, &of));
        let prepared = converted.await.map_err(|e| Error::internal(format!("converting a window: {e}")))??;
        Ok(self.keep(chunks, prepared))
    }

    fn prepared(&self, chunks: &Arc<Vec<RecordBatch>>) -> Option<Arc<Prepared>> {
        self.last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, chunks)).map(|(_, prepared)| Arc::clone(prepared))
    }

    fn keep(&mut self, chunks: &Arc<Vec<RecordBatch>>, prepared: Prepared) -> Arc<Prepared> {
        let prepared = Arc::new(prepared);
        self.last = Some((Arc::clone(chunks), Arc::clone(&prepared)));
        prepared
    }

    /// Lets go of the last window.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Runs of the rows, checked against the chunks.
    fn runs(prepared: &Prepared, rows: &[(u32, u32)]) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::with_capacity(rows.len());
        for &(chunk, row) in rows {
            let (chunk, row) = (chunk as usize, row as usize);
            if prepared.rows.get(chunk).is_none_or(|&n| row >= n) {
                return Err(Error::internal(format!("row {row} of chunk {chunk} does not exist")));
            }
            gather::push_run(&mut runs, Run { chunk, start: row, len: 1 });
        }
        Ok(runs)
    }

    /// Where to cut a batch that is too large for one message, so that each has about the target's bytes: ranges of `rows`, one at least.
    ///
    /// # Errors
    /// `Internal` for a row outside the chunks.
    pub fn cut(&self, prepared: &Prepared, rows: &[(u32, u32)]) -> Result<Vec<Range<usize>>> {
        let runs = Self::runs(prepared, rows)?;
        if !rows.is_empty() && measure::bytes(prepared, &runs) <= self.whole {
            return Ok(std::iter::once(0..rows.len()).collect());
        }
        if let Some(bits) = measure::fixed_row_bits(&self.schema) {
            return Ok(measure::even_cuts(rows.len(), bits, self.target));
        }
        Ok(measure::cuts(prepared, &runs, rows.len(), self.target))
    }

    /// One message of exactly these rows, whatever their size.
    ///
    /// # Errors
    /// `Internal` for a row outside the chunks, `ResourceExhausted` where 32-bit offsets overflow.
    pub fn gather(&mut self, prepared: &Prepared, rows: &[(u32, u32)]) -> Result<Message> {
        if !self.direct {
            return self.interleave(prepared, rows);
        }
        let runs = Self::runs(prepared, rows)?;
        self.gather_runs(prepared, &runs, rows.len())
    }

    fn gather_runs(&mut self, prepared: &Prepared, runs: &[Run], rows: usize) -> Result<Message> {
        let bytes = measure::bytes(prepared, runs);
        if bytes > MAX_MESSAGE {
            // Before it is gathered: columns that share their values are copied into one body.
            return Err(too_large(bytes));
        }
        // What is shared needs no room; it is nearly everything where it is anything.
        let room =
            if runs.iter().all(|run| measure::row_bytes(prepared, *run) >= 2 * body::SHARED) { bytes.min(body::SHARED) } else { bytes };
        let mut out = body::Body::new(self.pool.take(room + 128 * prepared.columns.len() + 64));
        for (column, field) in prepared.columns.iter().zip(self.schema.fields()) {
            let chunks: Vec<&ArrayData> = column.iter().collect();
            gather::column(&chunks, runs, rows, &mut out).map_err(|e| e.context(format_args!("column `{}`", field.name())))?;
        }
        let header = header::record_batch(rows, &out);
        let (body, more) = out.into_parts(&self.pool);
        Ok(Message { header, app_metadata: Bytes::new(), body, more })
    }

    /// Types that the gather does not know: arrow's interleave and writer.
    fn interleave(&self, prepared: &Prepared, rows: &[(u32, u32)]) -> Result<Message> {
        Self::runs(prepared, rows)?;
        let batches: Vec<&RecordBatch> = prepared.batches.iter().collect();
        let indices: Vec<(usize, usize)> = rows.iter().map(|&(c, r)| (c as usize, r as usize)).collect();
        let batch = if batches.is_empty() {
            RecordBatch::new_empty(Arc::clone(&self.schema))
        } else {
            interleave_record_batch(&batches, &indices).map_err(|e| Error::internal(format!("gathering rows: {e}")))?
        };
        let mut tracker = DictionaryTracker::new(false);
        let (_, data) = IpcDataGenerator {}
            .encode(&batch, &mut tracker, &IpcWriteOptions::default(), &mut Default::default())
            .map_err(|e| Error::internal(format!("encoding rows: {e}")))?;
        Ok(Message { header: data.ipc_message.into(), app_metadata: Bytes::new(), body: data.arrow_data.into(), more: Vec::new() })
    }

    /// The messages of one whole batch in order, for streams without a job.
    ///
    /// # Errors
    /// As [`Encoder::prepare`] and [`Encoder::gather`].
    pub fn plain(&mut self, batch: &RecordBatch) -> Result<PlainMessages<'_>> {
        let prepared = prepare(&self.schema, self.converts, std::slice::from_ref(batch))?;
        let total = batch.num_rows();
        Ok(PlainMessages { encoder: self, prepared, at: 0, total })
    }
}

fn prepare(schema: &SchemaRef, converts: bool, chunks: &[RecordBatch]) -> Result<Prepared> {
    let mut batches = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let batch = if converts { to_wire(chunk, schema)? } else { chunk.clone() };
        check_columns(schema, batch.columns())?;
        batches.push(batch);
    }
    let rows = batches.iter().map(RecordBatch::num_rows).collect();
    let columns = (0..schema.fields().len()).map(|column| batches.iter().map(|batch| batch.column(column).to_data()).collect()).collect();
    Ok(Prepared { columns, batches, rows })
}

fn check_columns(schema: &SchemaRef, columns: &[ArrayRef]) -> Result<()> {
    let fields = schema.fields();
    if columns.len() != fields.len() {
        return Err(Error::internal(format!("a chunk has {} columns, its stream {}", columns.len(), fields.len())));
    }
    for (column, field) in columns.iter().zip(fields) {
        if column.data_type() != field.data_type() {
            return Err(Error::internal(format!(
                "column `{}` of a chunk is {}, its stream says {}",
                field.name(),
                column.data_type(),
                field.data_type()
            )));
        }
    }
    Ok(())
}

/// Messages of one batch, made one at a time.
#[derive(Debug)]
pub struct PlainMessages<'a> {
    encoder: &'a mut Encoder,
    prepared: Prepared,
    at: usize,
    total: usize,
}

impl PlainMessages<'_> {
    fn message(&mut self) -> Result<Message> {
        let run = measure::head(&self.prepared, &self.encoder.schema, self.at, self.total, self.encoder.target);
        self.at += run.len;
        if self.encoder.direct {
            let runs: &[Run] = if run.len == 0 { &[] } else { std::slice::from_ref(&run) };
            return self.encoder.gather_runs(&self.prepared, runs, run.len);
        }
        let row = |i: usize| u32::try_from(i).map_err(|_| Error::internal("a batch of over 2^32 rows"));
        let rows: Vec<(u32, u32)> = (run.start..run.start + run.len).map(|i| Ok((0, row(i)?))).collect::<Result<_>>()?;
        self.encoder.interleave(&self.prepared, &rows)
    }
}

impl Iterator for PlainMessages<'_> {
    type Item = Result<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.total).then(|| self.message())
    }
}

/// `app_metadata` of part `part` of a batch.
///
/// # Errors
/// `Internal` when it cannot be written as JSON.
pub fn part_metadata(meta: &BatchMeta, part: usize, parts: usize, rows: usize) -> Result<Bytes> {
    let count = |n: usize| u32::try_from(n).map_err(|_| Error::internal(format!("a batch in {n} parts")));
    let meta = BatchMeta { part: count(part)?, parts: count(parts)?, rows: rows as u64, ..meta.clone() };
    serde_json::to_vec(&meta).map(Bytes::from).map_err(|e| Error::internal(format!("writing app_metadata: {e}")))
}

#[cfg(test)]
mod tests;
