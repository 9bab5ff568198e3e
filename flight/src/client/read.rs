//! Streams of rows, in either direction.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{FlightData, FlightDescriptor, FlightInfo, Ticket};
use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use prost::Message as _;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::link::Service;
use super::{Client, failed, location_of};
use crate::api::PutCommand;
use crate::decode::{Decoded, Decoder, schema_from_info};
use crate::encode::Encoder;

/// How often a query is asked before its server counts as gone.
const QUERY_ATTEMPTS: u32 = 4;

/// Rows from a server, of one schema.
pub struct RecordStream {
    pub schema: SchemaRef,
    pub batches: BoxStream<'static, Result<RecordBatch>>,
}

impl fmt::Debug for RecordStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStream").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl RecordStream {
    /// All batches.
    ///
    /// # Errors
    /// The first error of the stream.
    pub async fn collect(self) -> Result<Vec<RecordBatch>> {
        self.batches.try_collect().await
    }
}

impl Client {
    async fn data(&self, ticket: Bytes) -> Result<(Streaming<FlightData>, Arc<str>)> {
        let ticket = Ticket { ticket };
        self.link.call(&ticket, |mut to: Service, request| async move { to.do_get(request).await }).await
    }

    /// The rows behind a ticket. A job's end message is swallowed: use [`Client::exchange`] where it matters.
    ///
    /// # Errors
    /// The server's, at once or within the stream.
    pub async fn do_get(&self, ticket: Bytes) -> Result<RecordStream> {
        let (messages, address) = self.data(ticket).await?;
        let mut rows = Rows { messages, decoder: Decoder::trusting(), address };
        let schema = loop {
            match rows.decoded().await? {
                Some(Decoded::Schema(schema)) => break schema,
                Some(Decoded::Nothing) => {}
                Some(Decoded::Batch(_)) | None => return Err(Error::internal("the server's stream does not start with a schema")),
            }
        };
        let batches = stream::try_unfold(rows, |mut rows| async move { Ok(rows.batch().await?.map(|batch| (batch, rows))) }).boxed();
        Ok(RecordStream { schema, batches })
    }

    /// The rows of a flight's endpoints, one after the other.
    ///
    /// # Errors
    /// The server's, at once or within the stream.
    pub async fn read_info(&self, info: FlightInfo) -> Result<RecordStream> {
        let schema = Arc::new(schema_from_info(&info.schema)?);
        let client = self.clone();
        let endpoints = info.endpoint.into_iter().filter_map(|e| Some((location_of(&e), e.ticket?.ticket)));
        let batches = stream::iter(endpoints.map(Ok::<_, Error>))
            .and_then(move |(location, ticket)| {
                let client = client.clone();
                async move { Ok(client.at(location.as_deref())?.do_get(ticket).await?.batches) }
            })
            .try_flatten()
            .boxed();
        Ok(RecordStream { schema, batches })
    }

    /// A dataset's rows by path: `[name]`, `[name@v3]`, then optionally `epoch=0`.
    ///
    /// # Errors
    /// `NotFound`, or the server's.
    pub async fn read_path(&self, path: Vec<String>) -> Result<RecordStream> {
        let info = self.flight_info(FlightDescriptor::new_path(path)).await?;
        self.read_info(info).await
    }

    /// The result of a query.
    ///
    /// # Errors
    /// The server's: a query that does not plan, or fails while it runs.
    pub async fn sql(&self, query: &str) -> Result<RecordStream> {
        let command = CommandStatementQuery { query: query.to_owned(), transaction_id: None };
        let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
        let mut left = QUERY_ATTEMPTS;
        loop {
            let info = self.flight_info(descriptor.clone()).await?;
            let RecordStream { schema, mut batches } = self.read_info(info).await?;
            match batches.next().await {
                // The worker that was named is gone, or has only just come. Nothing was given out: another one is named next.
                Some(Err(error)) if error.kind == Kind::Unavailable && left > 1 => {
                    left -= 1;
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                first => return Ok(RecordStream { schema, batches: stream::iter(first).chain(batches).boxed() }),
            }
        }
    }

    /// Sends batches as a dataset. `mode` is null to create, `append` or `replace`.
    ///
    /// # Errors
    /// The batches' first error, or the server's.
    pub async fn put(
        &self,
        name: &str,
        mode: Option<&str>,
        schema: SchemaRef,
        batches: BoxStream<'static, Result<RecordBatch>>,
    ) -> Result<Value> {
        let command = PutCommand { dataset: name.to_owned(), mode: mode.map(str::to_owned) };
        let command = serde_json::to_string(&command).map_err(|e| Error::internal(format!("writing the command of a put: {e}")))?;
        let (messages, sent) = mpsc::channel(2);
        let sending = tokio::spawn(send(Encoder::new(&schema)?, FlightDescriptor::new_cmd(command), batches, messages));
        let (address, mut service) = (self.link.address(), self.link.service());
        let answered = service.do_put(self.link.request(ReceiverStream::new(sent))).await;
        let answer = match answered {
            Ok(response) => response.into_inner().message().await,
            Err(status) => Err(status),
        };
        // What stopped the sending explains the server's complaint about the short stream.
        if let Ok(Err(error)) = sending.await {
            return Err(error);
        }
        let answer = answer.map_err(|s| failed(&address, &s))?.ok_or_else(|| Error::internal("the server did not answer the put"))?;
        serde_json::from_slice(&answer.app_metadata).map_err(|e| Error::internal(format!("the answer of a put is not JSON: {e}")))
    }
}

async fn send(
    mut encoder: Encoder,
    descriptor: FlightDescriptor,
    mut batches: BoxStream<'static, Result<RecordBatch>>,
    messages: mpsc::Sender<FlightData>,
) -> Result<()> {
    // A server that stops listening has an answer; that is the error to show.
    if messages.send(encoder.schema_message().into_flight_data(Some(descriptor))).await.is_err() {
        return Ok(());
    }
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        let mut parts = encoder.plain(&batch)?;
        loop {
            let Ok(slot) = messages.reserve().await else { return Ok(()) };
            match parts.next() {
                Some(part) => slot.send(part?.into_flight_data(None)),
                None => break,
            }
        }
    }
    Ok(())
}

/// A response under decoding.
struct Rows {
    messages: Streaming<FlightData>,
    decoder: Decoder,
    address: Arc<str>,
}

impl Rows {
    async fn decoded(&mut self) -> Result<Option<Decoded>> {
        match self.messages.message().await.map_err(|s| failed(&self.address, &s))? {
            Some(data) => self.decoder.push(data).map(Some),
            None => Ok(None),
        }
    }

    async fn batch(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(decoded) = self.decoded().await? {
            if let Decoded::Batch(batch) = decoded {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}
