//! Processes of one root among themselves: parts of queries travel between them by a protocol that this crate doesn't know.
//!
//! Owns: the proof that a caller belongs to the root, and the limits of these connections. Must not know: what is said on them.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use forebay_core::{Error, Result};
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::{Service, ServiceExt};

use crate::auth::Gate;
use crate::client::control_endpoint;
use crate::status::to_status;
use crate::ticket::{Claim, TicketKey};

/// How long a peer may take to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a proof is good for, on hosts whose clocks differ by less.
const TERM: Duration = Duration::from_secs(600);

/// A connection to a peer.
pub type PeerChannel = tower::util::BoxCloneSyncService<http::Request<Body>, http::Response<Body>, tonic::transport::Error>;
/// What answers peers.
pub type PeerService = tower::util::BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;

/// A connection to the peer at `host:port`, made when it is first used; each request carries the proof. A peer that stands still ends its streams
/// within ten seconds.
///
/// # Errors
/// `BadInput` for what is no address.
pub fn connect(address: &str, key: TicketKey) -> Result<PeerChannel> {
    let channel: Channel = control_endpoint(address, CONNECT)?.connect_lazy();
    let proven = channel.map_request(move |mut request: http::Request<Body>| {
        if let Some(proof) = proof(&key) {
            request.headers_mut().insert(AUTHORIZATION, proof);
        }
        request
    });
    Ok(PeerChannel::new(proven))
}

/// Without one the peer refuses, which says what is wrong.
fn proof(key: &TicketKey) -> Option<http::HeaderValue> {
    let signed = key.sign(&Claim::Member, TERM).ok()?;
    let mut value = http::HeaderValue::from_bytes(&[b"Bearer ", signed.as_ref()].concat()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A [`PeerService`] that answers nobody else. Clones share it.
#[derive(Clone)]
pub struct Guarded {
    service: PeerService,
    gate: Gate,
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

impl Guarded {
    pub fn new(service: PeerService, key: TicketKey) -> Self {
        Self { service, gate: Gate::new(None, key) }
    }

    pub(crate) fn respond(mut self, request: http::Request<Body>) -> BoxFuture<'static, Result<http::Response<Body>, Infallible>> {
        let authorization = request.headers().get(AUTHORIZATION).map(|v| v.as_bytes());
        match self.gate.check_member(authorization) {
            Ok(()) => self.service.call(request),
            Err(error) => refusal(&error),
        }
    }
}

pub(crate) fn refusal(error: &Error) -> BoxFuture<'static, Result<http::Response<Body>, Infallible>> {
    Box::pin(std::future::ready(Ok(to_status(error).into_http())))
}
