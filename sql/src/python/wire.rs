//! Frames and batches on the streams of a Python process.
//!
//! A frame is: u32 length of the header, JSON header, u64 length of the body, body. Lengths are little-endian. A body is an Arrow IPC stream
//! of at most one batch, or empty.

use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest body that is read back: what one Arrow column of bytes can address.
const MAX_BODY: u64 = i32::MAX as u64;
const MAX_HEADER: u32 = 1 << 20;

/// What the process is asked.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Request<'a> {
    Load { step: u64, module: &'a str, function: &'a str, options: &'a Map<String, Value> },
    Schema { step: u64 },
    Call { step: u64, seed: u64, epoch: u32 },
}

/// The header of an answer.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub ok: bool,
    #[serde(default)]
    pub error: String,
    /// The function met the memory limit.
    #[serde(default)]
    pub memory: bool,
}

pub(super) async fn write_frame(to: &mut (impl AsyncWrite + Unpin), request: &Request<'_>, body: &[u8]) -> std::io::Result<()> {
    let header = serde_json::to_vec(request)?;
    to.write_u32_le(u32::try_from(header.len()).map_err(std::io::Error::other)?).await?;
    to.write_all(&header).await?;
    to.write_u64_le(body.len() as u64).await?;
    to.write_all(body).await?;
    to.flush().await
}

pub(super) async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(Answer, Vec<u8>)> {
    let length = from.read_u32_le().await?;
    if length > MAX_HEADER {
        return Err(std::io::Error::other(format!("a header of {length} bytes")));
    }
    let header = read_bytes(from, u64::from(length)).await?;
    let answer = serde_json::from_slice(&header)?;
    let length = from.read_u64_le().await?;
    if length > MAX_BODY {
        return Err(std::io::Error::other(format!("{length} bytes in one batch; the limit is 2 GiB")));
    }
    Ok((answer, read_bytes(from, length).await?))
}

/// Grows with what arrives, not with what is claimed.
async fn read_bytes(from: &mut (impl AsyncRead + Unpin), length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

pub(super) fn encode(schema: &Schema, batch: Option<&RecordBatch>) -> Result<Vec<u8>> {
    let write = || {
        let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
        if let Some(batch) = batch {
            writer.write(batch)?;
        }
        writer.into_inner()
    };
    write().map_err(|e| Error::new(Kind::ResourceExhausted, format!("a batch could not be sent to Python: {e}")))
}

/// The batch of a body, or its schema alone when the stream holds none. Columns share the body's buffer where it is aligned.
pub(super) fn decode(body: Vec<u8>) -> Result<(SchemaRef, Option<RecordBatch>)> {
    let broken = |e: &dyn std::fmt::Display| Error::internal(format!("the Python process sent a broken Arrow stream: {e}"));
    let mut buffer = Buffer::from_vec(body);
    let mut decoder = StreamDecoder::new();
    let mut batch = None;
    while !buffer.is_empty() {
        match decoder.decode(&mut buffer).map_err(|e| broken(&e))? {
            Some(_) if batch.is_some() => return Err(broken(&"two batches")),
            Some(one) => batch = Some(one),
            None => break,
        }
    }
    match decoder.schema() {
        Some(schema) => Ok((schema, batch)),
        None => Err(broken(&"no schema")),
    }
}
