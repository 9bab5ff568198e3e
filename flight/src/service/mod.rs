//! The Flight service: one gate in front of every call, then the call.
//!
//! `DoGet` and `DoExchange` are answered with bodies of our own framing, so that gathered bytes reach HTTP/2 without another copy; the rest
//! goes through arrow-flight's generated server. Owns no data: everything comes through [`Backend`].

mod command;
pub(crate) mod door;
mod exchange;
mod get;
mod put;
mod rpc;
mod running;
mod sql;
mod stats;
mod stream;

use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_core::{Error, Kind, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::convert::Infallible;
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::auth::Gate;
use crate::backend::Backend;
use crate::status::{from_status, to_status};
use crate::ticket::TicketKey;
pub use door::Door;
use rpc::Rpc;
use running::Running;
pub use stats::Stats;

/// What a service is made with.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Asked of every call; `None` lets everyone in.
    pub token: Option<String>,
    /// Signs tickets; the same on every node of a root.
    pub key: TicketKey,
    /// How long tickets are good for.
    pub ticket_term: Duration,
    /// How long a token from `Handshake` is good for.
    pub session_term: Duration,
    /// Bytes of one incoming message, but for `DoPut`.
    pub request_limit: usize,
    /// Bytes of one incoming `DoPut` message, and of what it may decode to: other clients send a whole batch as one.
    pub put_limit: usize,
}

impl ServiceConfig {
    /// Defaults around a key and a token.
    pub fn new(key: TicketKey, token: Option<String>) -> Self {
        Self {
            token,
            key,
            ticket_term: Duration::from_secs(3600),
            session_term: Duration::from_secs(12 * 3600),
            request_limit: 8 << 20,
            put_limit: 256 << 20,
        }
    }
}

/// What all calls share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) gate: Gate,
    pub(crate) config: ServiceConfig,
    pub(crate) stats: Arc<Stats>,
    /// Queries that can be cancelled here.
    pub(crate) running: Arc<Running>,
    /// Ends every stream: the drain is over.
    pub(crate) stop: CancellationToken,
}

/// The service of one node; clones share everything.
#[derive(Clone)]
pub struct Flight {
    shared: Arc<Shared>,
    rpc: FlightServiceServer<Rpc>,
    put: FlightServiceServer<Rpc>,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

const SERVICE: &str = "/arrow.flight.protocol.FlightService/";

impl Flight {
    pub fn new(backend: Arc<dyn Backend>, config: ServiceConfig) -> Self {
        let gate = Gate::new(config.token.as_deref(), config.key.clone());
        let (request_limit, put_limit) = (config.request_limit, config.put_limit);
        let shared =
            Arc::new(Shared { backend, gate, config, stats: Arc::default(), running: Arc::default(), stop: CancellationToken::new() });
        let rpc = Rpc { shared: Arc::clone(&shared) };
        let server = |limit| FlightServiceServer::new(rpc.clone()).max_decoding_message_size(limit).max_encoding_message_size(usize::MAX);
        Self { rpc: server(request_limit), put: server(put_limit), shared }
    }

    /// Cancelling it ends every stream with `Unavailable`.
    pub fn stop_token(&self) -> CancellationToken {
        self.shared.stop.clone()
    }

    /// What has been counted so far; lives on after the service.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.shared.stats)
    }

    fn admit(&self, method: &str, request: &http::Request<Body>) -> Result<()> {
        // Handshake is where a client without a token gets one; it checks its own credentials.
        if method == "Handshake" {
            return Ok(());
        }
        self.shared.gate.check(request.headers().get(http::header::AUTHORIZATION).map(|v| v.as_bytes()))
    }
}

/// The error behind a message that did not come: a connection that broke is the client's going away, not a fault of ours.
fn inbound_error(status: &Status) -> Error {
    let error = from_status(status);
    if status.code() == Code::OutOfRange {
        return error.with_remedy("send batches of fewer rows");
    }
    if status.source().is_some() { Error::new(Kind::Cancelled, format!("the client went away: {}", error.message)) } else { error }
}

/// Answers a call that panics with a status; without it the panic would take the connection's other streams along.
async fn contained(call: impl Future<Output = Result<http::Response<Body>, Infallible>>) -> Result<http::Response<Body>, Infallible> {
    AssertUnwindSafe(call)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Ok(to_status(&Error::internal("the call failed inside the server")).into_http()))
}

impl NamedService for Flight {
    const NAME: &'static str = "arrow.flight.protocol.FlightService";
}

impl tower::Service<http::Request<Body>> for Flight {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().strip_prefix(SERVICE).unwrap_or_default().to_owned();
        self.shared.stats.calls.fetch_add(1, Relaxed);
        if let Err(error) = self.admit(&method, &request) {
            self.shared.stats.refused.fetch_add(1, Relaxed);
            return Box::pin(std::future::ready(Ok(to_status(&error).into_http())));
        }
        match method.as_str() {
            "DoGet" => {
                let shared = Arc::clone(&self.shared);
                Box::pin(contained(async move { Ok(get::respond(shared, request).await) }))
            }
            "DoExchange" => Box::pin(std::future::ready(Ok(exchange::respond(Arc::clone(&self.shared), request)))),
            "DoPut" => Box::pin(contained(self.put.call(request))),
            _ => Box::pin(contained(self.rpc.call(request))),
        }
    }
}
