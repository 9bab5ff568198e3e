//! `DoExchange`: a trainer's stream of a job. Credits and acknowledgements come up, batches go down.
//!
//! The first message names the job (a ticket, or the JSON command, in its descriptor); every message may carry a
//! [`ConsumerMessage`]. After the end message the stream stays open for the last acknowledgements until the consumer closes its side.

use arrow_flight::{FlightData, FlightDescriptor};
use forebay_core::{Error, Result};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Streaming};
use tonic_prost::ProstDecoder;

use super::Shared;
use super::command::{self, Command};
use super::get::{end_message, send_batch};
use super::stream::{self, Outlet};
use crate::api::{ConsumerMessage, EndMessage};
use crate::backend::{JobControl, JobEvent, JobStream};
use crate::encode::Encoder;
use crate::ticket::{Claim, looks_like_ticket};

/// Credits that may stand open; more would only be a number.
const MAX_CREDITS: usize = 1 << 16;

/// Answers one `DoExchange`. The response starts at once: some clients wait for its headers before they write.
pub(crate) fn respond(shared: Arc<Shared>, request: http::Request<Body>) -> http::Response<Body> {
    let decoder = ProstDecoder::<FlightData>::new(BufferSettings::default());
    let inbound = Streaming::new_request(decoder, request.into_body(), None, Some(shared.config.request_limit));
    let of = Arc::clone(&shared);
    stream::respond(&of, move |outlet| run(shared, inbound, outlet))
}

async fn run(shared: Arc<Shared>, mut inbound: Streaming<FlightData>, outlet: Outlet) -> Result<()> {
    let first = receive(&mut inbound).await?.ok_or_else(|| Error::bad_input("DoExchange without a message"))?;
    let mut job = open(&shared, first.flight_descriptor.as_ref()).await?;
    let control = job.control();
    let credits = Semaphore::new(0);
    take_message(&first, &credits, control.as_ref()).await?;

    let mut ended = false;
    {
        let listening = listen(&mut inbound, &credits, control.as_ref());
        tokio::pin!(listening);
        tokio::select! {
            // What the consumer says is heard first: an acknowledgement is not to wait behind a batch.
            biased;
            closed = &mut listening => closed?,
            sent = send(job.as_mut(), &credits, &outlet) => {
                sent?;
                ended = true;
            }
        }
        if ended {
            // The last acknowledgements come after the end message.
            listening.await?;
        }
    }
    job.finish().await
}

async fn receive(inbound: &mut Streaming<FlightData>) -> Result<Option<FlightData>> {
    inbound.message().await.map_err(|status| super::inbound_error(&status))
}

async fn open(shared: &Shared, descriptor: Option<&FlightDescriptor>) -> Result<Box<dyn JobStream>> {
    let descriptor = descriptor.ok_or_else(|| {
        Error::bad_input("DoExchange without a descriptor")
            .with_remedy("put the job's ticket or its JSON command into the descriptor's command")
    })?;
    let payload = if looks_like_ticket(&descriptor.cmd) {
        match shared.config.key.open(&descriptor.cmd)? {
            Claim::Job(payload) => payload,
            _ => return Err(Error::bad_input("DoExchange takes the ticket of a job").with_remedy("read datasets and queries with DoGet")),
        }
    } else {
        match command::parse(descriptor)? {
            Command::Job(json) => shared.backend.open_job(json).await?.payload,
            _ => return Err(Error::unsupported("DoExchange on anything but a job").with_remedy("read datasets and queries with DoGet")),
        }
    };
    shared.backend.job_stream(payload, true).await
}

/// Takes the consumer's messages until it closes its side; a consumer that just closes is told to the job as `close`.
async fn listen(inbound: &mut Streaming<FlightData>, credits: &Semaphore, control: &dyn JobControl) -> Result<()> {
    while let Some(data) = receive(inbound).await? {
        if take_message(&data, credits, control).await? {
            return Ok(());
        }
    }
    control.on_message(ConsumerMessage { close: true, ..ConsumerMessage::default() }).await
}

/// True when the message closes the stream.
async fn take_message(data: &FlightData, credits: &Semaphore, control: &dyn JobControl) -> Result<bool> {
    if data.app_metadata.is_empty() {
        return Ok(false);
    }
    let message: ConsumerMessage = serde_json::from_slice(&data.app_metadata).map_err(|e| {
        Error::bad_input(format!("a consumer's message is not what it should be: {e}"))
            .with_remedy("send {\"credits\":N,\"ack\":[..],\"pass\":P}")
    })?;
    let room = MAX_CREDITS.saturating_sub(credits.available_permits());
    credits.add_permits(room.min(message.credits as usize));
    let close = message.close;
    control.on_message(message).await?;
    Ok(close)
}

/// Sends one batch per credit, then the end message.
async fn send(job: &mut dyn JobStream, credits: &Semaphore, outlet: &Outlet) -> Result<()> {
    let mut encoder = Encoder::new(&job.schema())?;
    outlet.send(encoder.schema_message()).await?;
    loop {
        credits.acquire().await.map_err(|_| Error::internal("credits were closed"))?.forget();
        drop(outlet.slot().await?);
        match job.next().await? {
            JobEvent::Batch(part) => send_batch(&mut encoder, &part, outlet).await?,
            JobEvent::End(end) => return outlet.send(end_message(EndMessage { end })?).await,
        }
    }
}
