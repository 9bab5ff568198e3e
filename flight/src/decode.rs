//! Messages to rows, with their claims checked first.
//!
//! An IPC message says how long its buffers are and, compressed, how long they will be; arrow allocates what is said before it reads a byte.
//! [`Decoder::guarded`] walks the claims of every message and refuses those that do not add up or exceed the cap, and turns a panic
//! in the decoder into an error: what clients send is never trusted.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow::ipc::{self, MessageHeader, root_as_message};
use arrow_flight::FlightData;
use forebay_core::{Error, Kind, Result};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What one message held.
#[derive(Debug)]
pub enum Decoded {
    Schema(SchemaRef),
    Batch(RecordBatch),
    /// A dictionary (kept), or no data at all.
    Nothing,
}

/// Decodes the messages of one stream in order.
#[derive(Debug, Default)]
pub struct Decoder {
    schema: Option<SchemaRef>,
    dictionaries: HashMap<i64, ArrayRef>,
    /// Decoded bytes that one message may claim; none for a trusted server.
    cap: Option<u64>,
}

impl Decoder {
    /// For messages of a server that the user chose to trust.
    pub fn trusting() -> Self {
        Self::default()
    }

    /// For messages of anyone: at most `cap` decoded bytes per message.
    pub fn guarded(cap: u64) -> Self {
        Self { cap: Some(cap), ..Self::default() }
    }

    /// The stream's schema, once its message came.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    /// Takes the next message.
    ///
    /// # Errors
    /// `BadInput` for bytes that are not what they claim.
    pub fn push(&mut self, data: FlightData) -> Result<Decoded> {
        if data.data_header.is_empty() {
            return Ok(Decoded::Nothing);
        }
        match self.cap {
            None => self.decode(data),
            Some(cap) => {
                check_claims(&data, cap)?;
                // arrow counts panics on malformed input as bugs, not as vulnerabilities: the boundary is here. The decoder is dropped after an error.
                catch_unwind(AssertUnwindSafe(|| self.decode(data)))
                    .unwrap_or_else(|_| Err(malformed("the message is not valid Arrow IPC")))
            }
        }
    }

    fn decode(&mut self, data: FlightData) -> Result<Decoded> {
        let message = root_as_message(&data.data_header).map_err(|e| malformed(format!("message header: {e}")))?;
        let version = message.version();
        match message.header_type() {
            MessageHeader::Schema => {
                let fb = message.header_as_schema().ok_or_else(|| malformed("a schema message without a schema"))?;
                let schema: SchemaRef = Arc::new(ipc::convert::fb_to_schema(fb));
                self.dictionaries.clear();
                self.schema = Some(Arc::clone(&schema));
                Ok(Decoded::Schema(schema))
            }
            MessageHeader::DictionaryBatch => {
                let schema = self.schema.as_ref().ok_or_else(|| malformed("a dictionary before the schema"))?;
                let batch = message.header_as_dictionary_batch().ok_or_else(|| malformed("a dictionary message without one"))?;
                let body = Buffer::from(data.data_body.clone());
                read_dictionary(&body, batch, schema, &mut self.dictionaries, &version)
                    .map_err(|e| malformed(format!("dictionary: {e}")))?;
                Ok(Decoded::Nothing)
            }
            MessageHeader::RecordBatch => {
                let schema = self.schema.as_ref().ok_or_else(|| malformed("rows before the schema"))?;
                let batch = message.header_as_record_batch().ok_or_else(|| malformed("a record batch message without one"))?;
                let body = aligned(&data);
                let batch = RecordBatchDecoder::try_new(&body, batch, Arc::clone(schema), &self.dictionaries, &version)
                    .and_then(RecordBatchDecoder::read_record_batch)
                    .map_err(|e| malformed(format!("record batch: {e}")))?;
                Ok(Decoded::Batch(batch))
            }
            other => Err(malformed(format!("an IPC message of type {other:?}"))),
        }
    }
}

/// gRPC gives bytes at any address. One copy of the body here saves one per buffer later.
fn aligned(data: &FlightData) -> Buffer {
    let aligned = data.data_body.as_ptr().align_offset(64) == 0;
    if aligned { Buffer::from(data.data_body.clone()) } else { Buffer::from(data.data_body.as_ref()) }
}

fn malformed(what: impl Into<String>) -> Error {
    Error::bad_input(what).context("reading Arrow data")
}

/// A schema of more fields than this is an attack or a mistake.
const MAX_FIELDS: usize = 20_000;
/// Rows that a message may claim without any bytes behind them.
const FREE_ROWS: u64 = 1 << 20;

fn check_claims(data: &FlightData, cap: u64) -> Result<()> {
    let message = root_as_message(&data.data_header).map_err(|e| malformed(format!("message header: {e}")))?;
    let body = data.data_body.as_ref();
    match message.header_type() {
        MessageHeader::Schema => {
            let fields = message.header_as_schema().and_then(|s| s.fields()).map_or(0, |f| f.len());
            if fields > MAX_FIELDS {
                return Err(malformed(format!("a schema of {fields} columns; at most {MAX_FIELDS} are read")));
            }
            Ok(())
        }
        MessageHeader::RecordBatch => check_batch(message.header_as_record_batch(), body, cap),
        MessageHeader::DictionaryBatch => check_batch(message.header_as_dictionary_batch().and_then(|d| d.data()), body, cap),
        _ => Ok(()),
    }
}

/// Buffers lie inside the body; what they decompress to, and how many rows there are, stays below the cap.
fn check_batch(batch: Option<ipc::RecordBatch<'_>>, body: &[u8], cap: u64) -> Result<()> {
    let batch = batch.ok_or_else(|| malformed("a data message without data"))?;
    let compressed = batch.compression().is_some();
    let mut sum: u64 = 0;
    for buffer in batch.buffers().into_iter().flatten() {
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let bytes = range.and_then(|(start, len)| body.get(start..start.checked_add(len)?)).ok_or_else(|| {
            malformed(format!("a buffer of {} bytes at {} in a body of {}", buffer.length(), buffer.offset(), body.len()))
        })?;
        sum = sum.saturating_add(claimed(bytes, compressed)?);
        if sum > cap {
            return Err(
                Error::new(Kind::ResourceExhausted, format!("one message claims over {cap} bytes")).with_remedy("send smaller batches")
            );
        }
    }
    // Any other row takes a bit at least. Rows of no width (nulls, empty structs) cost the sender nothing and would cost the reader its keys.
    let most = sum.saturating_mul(8).max(FREE_ROWS).min(i32::MAX as u64);
    for rows in batch.nodes().into_iter().flatten().map(|n| n.length()).chain([batch.length()]) {
        if !u64::try_from(rows).is_ok_and(|rows| rows <= most) {
            return Err(malformed(format!("a message of {sum} bytes claims {rows} rows")));
        }
    }
    Ok(())
}

/// Bytes that a buffer decodes to: its own, or what the first 8 say when compressed (-1: stored as it is).
fn claimed(bytes: &[u8], compressed: bool) -> Result<u64> {
    if !compressed || bytes.is_empty() {
        return Ok(bytes.len() as u64);
    }
    let prefix: [u8; 8] =
        bytes.get(..8).and_then(|b| b.try_into().ok()).ok_or_else(|| malformed("a compressed buffer without its length"))?;
    match i64::from_le_bytes(prefix) {
        -1 => Ok(bytes.len() as u64 - 8),
        len => u64::try_from(len).map_err(|_| malformed(format!("a compressed buffer of {len} bytes"))),
    }
}

/// A schema as `FlightInfo` and `SchemaResult` carry it.
///
/// # Errors
/// `BadInput` when the bytes hold no schema.
pub fn schema_from_info(bytes: &[u8]) -> Result<Schema> {
    ipc::convert::try_schema_from_ipc_buffer(bytes).map_err(|e| malformed(format!("schema: {e}")))
}

#[cfg(test)]
mod tests;
