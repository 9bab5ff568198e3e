//! A trainer's stream of a job over `DoExchange`.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow_flight::{FlightData, FlightDescriptor};
use bytes::Bytes;
use forebay_core::{Error, Result};
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Client, failed};
use crate::api::{BatchMeta, ConsumerMessage, End, EndMessage};
use crate::decode::{Decoded, Decoder};

/// One batch of a job, whole.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Of the whole batch: `part` 0 of 1, `rows` of all parts.
    pub meta: BatchMeta,
    /// The rows in order, as they came.
    pub parts: Vec<RecordBatch>,
}

impl Batch {
    /// The batch as one; copies where it came in several parts.
    ///
    /// # Errors
    /// `Internal` when the parts do not fit together.
    pub fn record_batch(&self) -> Result<RecordBatch> {
        match self.parts.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Error::internal("a batch without rows")),
            [first, ..] => {
                concat_batches(&first.schema(), &self.parts).map_err(|e| Error::internal(format!("joining the parts of a batch: {e}")))
            }
        }
    }
}

/// What comes next on a job's stream.
#[derive(Debug, Clone)]
pub enum JobItem {
    Batch(Batch),
    /// No more batches; acknowledge what is left, then [`JobReader::close`].
    End(End),
}

/// Reads a job's batches and acknowledges them. Dropping it without [`JobReader::close`] breaks the stream.
pub struct JobReader {
    schema: Option<SchemaRef>,
    outbound: mpsc::Sender<FlightData>,
    inbound: Streaming<FlightData>,
    decoder: Decoder,
    address: Arc<str>,
    /// Parts of the batch that has not fully come.
    parts: Vec<RecordBatch>,
    ended: Option<End>,
}

impl fmt::Debug for JobReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobReader").field("address", &self.address).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens the stream of a job that [`Client::open_job`] joined. `credits`: batches that may be on their way or unacknowledged at once;
    /// each acknowledgement gives one back.
    ///
    /// # Errors
    /// The server's.
    pub async fn exchange(&self, ticket: Bytes, credits: u32) -> Result<JobReader> {
        let (outbound, messages) = mpsc::channel(16);
        let first = consumer_message(&ConsumerMessage { credits: credits.max(1), ..ConsumerMessage::default() })?;
        let first = FlightData { flight_descriptor: Some(FlightDescriptor::new_cmd(ticket)), ..first };
        outbound.send(first).await.map_err(|_| Error::internal("the stream closed before it opened"))?;
        let (address, mut service) = (self.link.address(), self.link.service());
        let request = self.link.request(ReceiverStream::new(messages));
        let inbound = service.do_exchange(request).await.map_err(|s| failed(&address, &s))?.into_inner();
        Ok(JobReader { schema: None, outbound, inbound, decoder: Decoder::trusting(), address, parts: Vec::new(), ended: None })
    }
}

fn consumer_message(message: &ConsumerMessage) -> Result<FlightData> {
    let json = serde_json::to_vec(message).map_err(|e| Error::internal(format!("writing a consumer's message: {e}")))?;
    Ok(FlightData::new().with_app_metadata(json))
}

impl JobReader {
    /// The stream's schema, once the first message came.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    /// Waits for the next batch, or the end. After the end it says the end again.
    ///
    /// # Errors
    /// The server's, or `Unavailable` when it is lost: what was not acknowledged may be lost with it.
    pub async fn next(&mut self) -> Result<JobItem> {
        if let Some(end) = self.ended {
            return Ok(JobItem::End(end));
        }
        loop {
            let message = self.inbound.message().await.map_err(|s| failed(&self.address, &s))?;
            let data = message.ok_or_else(|| Error::internal("the job's stream ended without its end message"))?;
            let app_metadata = data.app_metadata.clone();
            match self.decoder.push(data)? {
                Decoded::Schema(schema) => self.schema = Some(schema),
                Decoded::Batch(batch) => {
                    if let Some(batch) = self.part(&app_metadata, batch)? {
                        return Ok(JobItem::Batch(batch));
                    }
                }
                Decoded::Nothing if app_metadata.is_empty() => {}
                Decoded::Nothing => {
                    let EndMessage { end } = read(&app_metadata)?;
                    self.ended = Some(end);
                    return Ok(JobItem::End(end));
                }
            }
        }
    }

    /// Takes one part; gives the batch when it was the last.
    fn part(&mut self, app_metadata: &[u8], part: RecordBatch) -> Result<Option<Batch>> {
        let meta: BatchMeta = read(app_metadata)?;
        if meta.part as usize != self.parts.len() {
            return Err(Error::internal(format!("part {} of batch {} where part {} was due", meta.part, meta.batch, self.parts.len())));
        }
        self.parts.push(part);
        if meta.part + 1 < meta.parts {
            return Ok(None);
        }
        let parts = std::mem::take(&mut self.parts);
        let rows = parts.iter().map(|p| p.num_rows() as u64).sum();
        Ok(Some(Batch { meta: BatchMeta { part: 0, parts: 1, rows, ..meta }, parts }))
    }

    async fn say(&self, message: &ConsumerMessage) -> Result<()> {
        // A stream that the server ended says why on the next read.
        let _ = self.outbound.send(consumer_message(message)?).await;
        Ok(())
    }

    /// Says that the trainer took the batch, and lets another come.
    ///
    /// # Errors
    /// `Internal` when the message cannot be written.
    pub async fn ack(&self, batch: &Batch) -> Result<()> {
        self.say(&ConsumerMessage { credits: 1, ack: vec![batch.meta.batch], pass: Some(batch.meta.pass), close: false }).await
    }

    /// Lets `credits` further batches come, beyond those that acknowledgements give back.
    ///
    /// # Errors
    /// `Internal` when the message cannot be written.
    pub async fn give(&self, credits: u32) -> Result<()> {
        self.say(&ConsumerMessage { credits, ..ConsumerMessage::default() }).await
    }

    /// Leaves: waits until the server has everything that was said.
    ///
    /// # Errors
    /// The server's.
    pub async fn close(self) -> Result<()> {
        self.say(&ConsumerMessage { close: true, ..ConsumerMessage::default() }).await?;
        let Self { outbound, mut inbound, address, .. } = self;
        drop(outbound);
        // Batches that were on their way are dropped; the end is the server's status.
        while inbound.message().await.map_err(|s| failed(&address, &s))?.is_some() {}
        Ok(())
    }
}

fn read<T: serde::de::DeserializeOwned>(app_metadata: &[u8]) -> Result<T> {
    serde_json::from_slice(app_metadata).map_err(|e| Error::internal(format!("app_metadata that this client does not know: {e}")))
}
