//! `DoPut`: a client's own batches become a dataset. Batches are decoded as the backend asks for them: that is the bound.

use arrow::array::RecordBatch;
use arrow_flight::sql::Any;
use arrow_flight::{FlightData, FlightDescriptor, PutResult};
use forebay_core::{Error, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde_json::Value;
use std::sync::Arc;
use tonic::Streaming;

use super::command::{self, Command};
use super::{Shared, inbound_error, sql};
use crate::api::PutCommand;
use crate::backend::BatchSource;
use crate::decode::{Decoded, Decoder};

/// Messages up to here are decoded where they arrive; larger ones would hold up other streams.
const INLINE: usize = 256 << 10;
const MODES: &[&str] = &["create", "append", "replace"];

/// Takes one put; the answer is the backend's JSON.
pub(crate) async fn run(shared: &Arc<Shared>, mut inbound: Streaming<FlightData>) -> Result<PutResult> {
    let first = inbound.message().await.map_err(|s| inbound_error(&s))?.ok_or_else(|| Error::bad_input("DoPut without a message"))?;
    let target = target(first.flight_descriptor.as_ref(), &first.app_metadata)?;
    let mut reader = Reader { inbound, decoder: Decoder::guarded(shared.config.put_limit as u64) };
    let schema = match reader.decode(first).await? {
        Decoded::Schema(schema) => schema,
        _ => return Err(Error::bad_input("DoPut's first message is not the schema")),
    };
    let (path, mode) = match target {
        Target::Dataset(path, mode) => (path, mode),
        Target::Sql(any) => return sql::put(shared, any, schema, reader).await,
    };
    let source = BatchSource { schema, batches: reader.batches() };
    let answer = shared.backend.put(&path, mode, source).await?;
    let json = serde_json::to_vec(&answer).map_err(|e| Error::internal(format!("writing the answer of a put: {e}")))?;
    Ok(PutResult { app_metadata: json.into() })
}

/// What a put is for.
enum Target {
    /// A dataset, and what to do where it exists.
    Dataset(Vec<String>, Option<String>),
    /// A Flight SQL command that takes rows.
    Sql(Any),
}

/// What the first message names.
fn target(descriptor: Option<&FlightDescriptor>, app_metadata: &[u8]) -> Result<Target> {
    let missing = || {
        Error::bad_input("DoPut without a dataset")
            .with_remedy("use the path [name], or the command {\"dataset\":\"name\",\"mode\":\"append\"}")
    };
    let descriptor = descriptor.ok_or_else(missing)?;
    let (path, mut mode) = match command::parse(descriptor)? {
        Command::Path([name]) => (vec![name.clone()], None),
        Command::Path(_) => return Err(missing()),
        Command::Job(json) => {
            let command: PutCommand = serde_json::from_str(json).map_err(|e| Error::bad_input(format!("DoPut's command: {e}")))?;
            (vec![command.dataset], command.mode)
        }
        Command::Sql(any) => {
            sql::puttable(&any)?;
            return Ok(Target::Sql(any));
        }
    };
    if !app_metadata.is_empty() {
        let metadata: Value =
            serde_json::from_slice(app_metadata).map_err(|e| Error::bad_input(format!("DoPut's app_metadata is not JSON: {e}")))?;
        match &metadata["mode"] {
            Value::Null => {}
            Value::String(text) => mode = Some(text.clone()),
            other => return Err(Error::bad_input(format!("DoPut's mode is {other}")).with_remedy("use \"append\" or \"replace\"")),
        }
    }
    if let Some(mode) = &mode
        && !MODES.contains(&mode.as_str())
    {
        return Err(
            Error::bad_input(format!("unknown mode `{}`", mode.escape_debug())).with_remedy("use `append` or `replace`, or none to create")
        );
    }
    Ok(Target::Dataset(path, mode))
}

/// The rows of a put, decoded one message at a time.
pub(crate) struct Reader {
    inbound: Streaming<FlightData>,
    decoder: Decoder,
}

impl Reader {
    async fn decode(&mut self, data: FlightData) -> Result<Decoded> {
        if data.data_body.len() <= INLINE {
            return self.decoder.push(data);
        }
        let mut decoder = std::mem::take(&mut self.decoder);
        let (decoder, decoded) = tokio::task::spawn_blocking(move || {
            let decoded = decoder.push(data);
            (decoder, decoded)
        })
        .await
        .map_err(|e| Error::internal(format!("decoding a message: {e}")))?;
        self.decoder = decoder;
        decoded
    }

    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(data) = self.inbound.message().await.map_err(|s| inbound_error(&s))? {
            match self.decode(data).await? {
                Decoded::Batch(batch) => return Ok(Some(batch)),
                Decoded::Schema(_) => return Err(Error::bad_input("DoPut with two schemas")),
                Decoded::Nothing => {}
            }
        }
        Ok(None)
    }

    /// The rest of the stream; ends at the first error.
    pub(crate) fn batches(self) -> BoxStream<'static, Result<RecordBatch>> {
        stream::try_unfold(self, |mut reader| async move { Ok(reader.next().await?.map(|batch| (batch, reader))) }).boxed()
    }
}
