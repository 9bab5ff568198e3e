//! Reading Arrow IPC, files and streams.
//!
//! Before anything is decoded, every message is checked against the file's size, and what compressed bodies claim to hold against a limit: the decoder
//! allocates what a file claims.

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{FileReader, StreamReader};
use arrow::ipc::{Block, MessageHeader, RecordBatch as BatchHeader, root_as_footer, root_as_message};
use forebay_core::source::{Piece, SourceFile};
use forebay_core::{Error, Result};
use std::io::BufReader;

use super::input::Blob;
use super::parquet::ColumnarReader;
use super::stream::{Emit, Stop};

const MAGIC: &[u8] = b"ARROW1";
const CONTINUATION: [u8; 4] = [0xFF; 4];
/// Most bytes of one message's metadata.
const MAX_METADATA: u64 = 256 << 20;
/// Most bytes that one compressed record batch may hold when decompressed.
const MAX_INFLATED: u64 = 4 << 30;

fn broken(blob: &Blob, what: impl std::fmt::Display) -> Error {
    Error::bad_input(format!("`{}` can't be read as Arrow: {what}", blob.name()))
        .with_remedy("check that the file is whole and is Arrow IPC")
}

fn is_file(blob: &Blob) -> Result<bool> {
    let start = blob.bytes(0, blob.size().min(6)).map_err(|e| blob.fail(&e))?;
    Ok(start.as_ref() == MAGIC)
}

pub(super) fn schema(blob: &Blob) -> Result<SchemaRef> {
    if is_file(blob)? {
        batches(blob)?;
        return Ok(open_file(blob)?.schema());
    }
    stream_batches(blob)?;
    Ok(open_stream(blob)?.schema())
}

fn open_file(blob: &Blob) -> Result<FileReader<BufReader<super::input::Cursor>>> {
    FileReader::try_new(BufReader::with_capacity(1 << 20, blob.cursor()), None).map_err(|e| broken(blob, e))
}

fn open_stream(blob: &Blob) -> Result<StreamReader<BufReader<super::input::Cursor>>> {
    StreamReader::try_new(BufReader::with_capacity(1 << 20, blob.cursor()), None).map_err(|e| broken(blob, e))
}

/// (rows, bytes) of each record batch, checked, and whether the file can be read from any of them (an IPC file).
pub(super) fn shape(blob: &Blob) -> Result<(Vec<(u64, u64)>, bool)> {
    if is_file(blob)? { Ok((batches(blob)?, true)) } else { Ok((stream_batches(blob)?, false)) }
}

fn batches(blob: &Blob) -> Result<Vec<(u64, u64)>> {
    let size = blob.size();
    let tail = blob.bytes(size.saturating_sub(10), size.min(10)).map_err(|e| blob.fail(&e))?;
    let length = match tail.split_first_chunk::<4>() {
        Some((length, magic)) if magic == MAGIC => u64::from(u32::from_le_bytes(*length)),
        _ => return Err(broken(blob, "it doesn't end as an IPC file does (is it cut off?)")),
    };
    let start =
        size.checked_sub(length + 10).filter(|_| length <= MAX_METADATA).ok_or_else(|| broken(blob, "its footer is longer than it is"))?;
    let footer = blob.bytes(start, length).map_err(|e| blob.fail(&e))?;
    let footer = root_as_footer(&footer).map_err(|e| broken(blob, e))?;
    for block in footer.dictionaries().into_iter().flatten() {
        let (at, metadata, body) = place(blob, block)?;
        check_message(blob, at, metadata, body)?;
    }
    let blocks = footer.recordBatches().into_iter().flatten();
    blocks
        .map(|block| {
            let (at, metadata, body) = place(blob, block)?;
            let rows = check_message(blob, at, metadata, body)?;
            Ok((rows.ok_or_else(|| broken(blob, "its footer names something that is no record batch"))?, body))
        })
        .collect()
}

/// Offset, metadata and body length of a block.
fn place(blob: &Blob, block: &Block) -> Result<(u64, u64, u64)> {
    let number = |n: i64| u64::try_from(n).map_err(|_| broken(blob, "a negative size in its footer"));
    Ok((number(block.offset())?, number(i64::from(block.metaDataLength()))?, number(block.bodyLength())?))
}

fn stream_batches(blob: &Blob) -> Result<Vec<(u64, u64)>> {
    let mut batches = Vec::new();
    let mut at = 0;
    // A stream may end without its end marker, but not inside a message.
    while at < blob.size() {
        let Some((prefix, length)) = prefix(blob, at)? else { return Ok(batches) };
        let metadata = prefix + length;
        let body = body_length(blob, at + prefix, length)?;
        if let Some(rows) = check_message(blob, at, metadata, body)? {
            batches.push((rows, body));
        }
        at = at.saturating_add(metadata).saturating_add(body);
    }
    Ok(batches)
}

/// Length of a message's prefix and metadata; `None` at the end marker.
fn prefix(blob: &Blob, at: u64) -> Result<Option<(u64, u64)>> {
    let cut = || broken(blob, format!("it is cut off at byte {at}"));
    let head = blob.bytes(at, 8.min(blob.size() - at)).map_err(|e| blob.fail(&e))?;
    let (first, rest) = head.split_first_chunk::<4>().ok_or_else(cut)?;
    // Streams before Arrow 0.15 have no continuation marker.
    let (prefix, length) = if *first == CONTINUATION { (8, *rest.first_chunk::<4>().ok_or_else(cut)?) } else { (4, *first) };
    match u64::from(u32::from_le_bytes(length)) {
        0 => Ok(None),
        length if length <= MAX_METADATA => Ok(Some((prefix, length))),
        _ => Err(broken(blob, format!("there is no Arrow message at byte {at}"))),
    }
}

fn body_length(blob: &Blob, at: u64, length: u64) -> Result<u64> {
    let bytes = blob.bytes(at, length).map_err(|_| broken(blob, format!("it is cut off at byte {at}")))?;
    let message = root_as_message(&bytes).map_err(|e| broken(blob, e))?;
    u64::try_from(message.bodyLength()).map_err(|_| broken(blob, "a negative body length"))
}

/// Checks a message that begins at `at`, and tells the rows of a record batch.
fn check_message(blob: &Blob, at: u64, metadata: u64, body: u64) -> Result<Option<u64>> {
    let end = at.checked_add(metadata).and_then(|e| e.checked_add(body));
    if end.is_none_or(|end| end > blob.size()) || metadata > MAX_METADATA {
        return Err(broken(blob, format!("the message at byte {at} goes beyond the file's end (is it cut off?)")));
    }
    let Some((prefix, length)) = prefix(blob, at)? else { return Err(broken(blob, format!("there is no message at byte {at}"))) };
    if prefix + length > metadata {
        return Err(broken(blob, format!("the message at byte {at} is longer than its footer says")));
    }
    let bytes = blob.bytes(at + prefix, length).map_err(|e| blob.fail(&e))?;
    let message = root_as_message(&bytes).map_err(|e| broken(blob, e))?;
    let start = at + metadata;
    match message.header_type() {
        MessageHeader::RecordBatch => {
            let header = message.header_as_record_batch().ok_or_else(|| broken(blob, "a record batch without a header"))?;
            check_inflated(blob, header, start, body)?;
            let rows = u64::try_from(header.length()).map_err(|_| broken(blob, "a negative number of rows"))?;
            Ok(Some(rows))
        }
        MessageHeader::DictionaryBatch => {
            let header = message.header_as_dictionary_batch().and_then(|d| d.data());
            check_inflated(blob, header.ok_or_else(|| broken(blob, "a dictionary without data"))?, start, body)?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Sums what a compressed body's buffers claim to hold.
fn check_inflated(blob: &Blob, header: BatchHeader<'_>, start: u64, body: u64) -> Result<()> {
    let mut total = 0_u64;
    for buffer in header.buffers().into_iter().flatten() {
        let wrong = || broken(blob, "a buffer lies outside its message");
        let (offset, length) = (u64::try_from(buffer.offset()).map_err(|_| wrong())?, u64::try_from(buffer.length()).map_err(|_| wrong())?);
        if offset.checked_add(length).is_none_or(|end| end > body) {
            return Err(wrong());
        }
        if header.compression().is_none() || length == 0 {
            continue;
        }
        let claim = blob.bytes(start + offset, 8.min(length)).map_err(|e| blob.fail(&e))?;
        let claim = claim.first_chunk::<8>().map(|c| i64::from_le_bytes(*c)).ok_or_else(wrong)?;
        // -1: this buffer is not compressed.
        total = total.saturating_add(u64::try_from(claim).unwrap_or(length));
        if total > MAX_INFLATED {
            return Err(broken(blob, format!("a record batch claims more than {MAX_INFLATED} bytes")));
        }
    }
    Ok(())
}

/// Reads a piece: the record batches that begin in its rows.
pub(super) fn read(columnar: &mut ColumnarReader, blob: &Blob, file: &SourceFile, piece: &Piece, emit: &mut Emit) -> Result<(), Stop> {
    let (shape, seekable) = shape(blob)?;
    let (from, to) = match piece {
        Piece::Rows { start, end } => (*start, *end),
        _ => (0, u64::MAX),
    };
    let mut row = 0;
    if !seekable {
        let reader = open_stream(blob)?;
        let places = columnar.places(&reader.schema(), blob)?;
        for batch in reader {
            let batch = batch.map_err(|e| broken(blob, e))?;
            columnar.send(&batch, &places, file, row, emit)?;
            row += batch.num_rows() as u64;
        }
        return Ok(());
    }
    let mut reader = open_file(blob)?;
    let places = columnar.places(&reader.schema(), blob)?;
    for (index, (rows, _)) in shape.iter().enumerate() {
        let begin = row;
        row += rows;
        if begin < from || begin >= to || *rows == 0 {
            continue;
        }
        reader.set_index(index).map_err(|e| broken(blob, e))?;
        let Some(batch) = reader.next() else { return Err(broken(blob, "it has fewer record batches than its footer says").into()) };
        let batch = batch.map_err(|e| broken(blob, e))?;
        columnar.send(&batch, &places, file, begin, emit)?;
    }
    Ok(())
}
