//! `DoGet`: a ticket's rows. Datasets and queries are plain batches; a job's stream ends with its end message.

use arrow_flight::Ticket;
use forebay_core::{Error, Result};
use futures::StreamExt;
use std::sync::Arc;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Streaming};
use tonic_prost::ProstDecoder;

use super::running::Entry;
use super::stream::{self, Outlet};
use super::{Shared, sql};
use crate::api::EndMessage;
use crate::backend::{BatchPart, BatchSource, JobEvent, JobStream};
use crate::encode::{Encoder, part_metadata};
use crate::message::Message;
use crate::status::{from_status, to_status};
use crate::ticket::Claim;

/// Answers one `DoGet`.
pub(crate) async fn respond(shared: Arc<Shared>, request: http::Request<Body>) -> http::Response<Body> {
    match open(&shared, request).await {
        Ok(Opened::Plain(source)) => stream::respond(&shared, move |outlet| send_plain(source, outlet)),
        Ok(Opened::Query(source, entry)) => stream::respond(&shared, move |outlet| entry.run(send_plain(source, outlet))),
        Ok(Opened::Job(job)) => stream::respond(&shared, move |outlet| send_job(job, outlet)),
        Err(error) => to_status(&error).into_http(),
    }
}

enum Opened {
    Plain(BatchSource),
    Query(BatchSource, Entry),
    Job(Box<dyn JobStream>),
}

async fn open(shared: &Shared, request: http::Request<Body>) -> Result<Opened> {
    let decoder = ProstDecoder::<Ticket>::new(BufferSettings::default());
    let mut inbound = Streaming::new_request(decoder, request.into_body(), None, Some(shared.config.request_limit));
    let ticket = inbound.message().await.map_err(|s| from_status(&s))?.ok_or_else(|| Error::bad_input("DoGet without a ticket"))?;
    let backend = &shared.backend;
    Ok(match shared.config.key.open(&ticket.ticket)? {
        Claim::Group(payload) => Opened::Plain(backend.read_group(payload).await?),
        Claim::Query { id, payload } => {
            let entry = shared.running.begin(&id)?;
            Opened::Query(backend.run_query(payload).await?, entry)
        }
        Claim::Command(command) => Opened::Plain(sql::rows(shared, &command).await?),
        Claim::Job(payload) => Opened::Job(backend.job_stream(payload, false).await?),
        Claim::Session | Claim::Member => return Err(Error::bad_input("a token is not a ticket")),
        Claim::Options(_) => return Err(Error::bad_input("a session's cookie is not a ticket")),
        Claim::Prepared(_) => {
            return Err(Error::bad_input("a statement's handle is not a ticket").with_remedy("call GetFlightInfo with the handle"));
        }
    })
}

async fn send_plain(mut source: BatchSource, outlet: Outlet) -> Result<()> {
    let mut encoder = Encoder::new(&source.schema)?;
    outlet.send(encoder.schema_message()).await?;
    while let Some(batch) = source.batches.next().await {
        let batch = batch?;
        let mut messages = encoder.plain(&batch)?;
        loop {
            let slot = outlet.slot().await?;
            match messages.next() {
                Some(message) => slot.send(message?),
                None => break,
            }
        }
    }
    Ok(())
}

async fn send_job(mut job: Box<dyn JobStream>, outlet: Outlet) -> Result<()> {
    let mut encoder = Encoder::new(&job.schema())?;
    outlet.send(encoder.schema_message()).await?;
    loop {
        // Room first: a batch is asked for, and so counted as sent, only when it can go.
        drop(outlet.slot().await?);
        match job.next().await? {
            JobEvent::Batch(part) => send_batch(&mut encoder, &part, &outlet).await?,
            JobEvent::End(end) => {
                encoder.forget();
                outlet.send(end_message(EndMessage { end })?).await?;
                outlet.flushed().await?;
                return job.finish().await;
            }
        }
    }
}

/// Sends one batch in as many messages as its bytes need, each made when there is room for it.
pub(crate) async fn send_batch(encoder: &mut Encoder, part: &BatchPart, outlet: &Outlet) -> Result<()> {
    let prepared = encoder.prepare_beside(&part.chunks).await?;
    let cuts = encoder.cut(&prepared, &part.rows)?;
    let parts = cuts.len();
    for (number, cut) in cuts.into_iter().enumerate() {
        let slot = outlet.slot().await?;
        let rows = &part.rows[cut];
        let app_metadata = part_metadata(&part.meta, number, parts, rows.len())?;
        slot.send(Message { app_metadata, ..encoder.gather(&prepared, rows)? });
    }
    Ok(())
}

/// The metadata-only message that ends a stream.
pub(crate) fn end_message(end: EndMessage) -> Result<Message> {
    let json = serde_json::to_vec(&end).map_err(|e| Error::internal(format!("writing the end message: {e}")))?;
    Ok(Message::metadata(json))
}
