//! What a port answers with at the moment: a process keeps its port while it becomes the leader, stops being it, or looks for its dispatcher.
//!
//! While the door is closed every call is answered UNAVAILABLE, before its token is looked at, and the trailer `forebay-leader` names the address
//! to ask instead, empty where it is not known.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_core::{Error, Result};
use futures::future::BoxFuture;
use parking_lot::RwLock;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use super::Flight;
use crate::control::ControlService;
use crate::peer::{Guarded, refusal};
use crate::status::to_elsewhere_status;

enum Now {
    Open { flight: Box<Flight>, control: Option<ControlService>, peers: Option<Guarded> },
    Closed { error: Error, leader: Option<String> },
}

/// A port's services; clones share them.
#[derive(Clone)]
pub struct Door(Arc<RwLock<Now>>);

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*self.0.read() {
            Now::Open { .. } => "Door(open)",
            Now::Closed { .. } => "Door(closed)",
        })
    }
}

impl Door {
    /// A door that answers nothing yet. `error` should be `Unavailable`.
    pub fn closed(error: Error, leader: Option<String>) -> Self {
        Self(Arc::new(RwLock::new(Now::Closed { error, leader })))
    }

    /// Lets calls in. `peers` answers the parts of queries that other processes of the root send.
    pub fn open(&self, flight: Flight, control: Option<ControlService>, peers: Option<Guarded>) {
        self.replace(Now::Open { flight: Box::new(flight), control, peers });
    }

    /// Refuses calls from now on, and ends the streams that are open.
    pub fn close(&self, error: Error, leader: Option<String>) {
        self.replace(Now::Closed { error, leader });
    }

    fn replace(&self, next: Now) {
        let before = std::mem::replace(&mut *self.0.write(), next);
        if let Now::Open { flight, .. } = before {
            flight.stop_token().cancel();
        }
    }

    /// Ends the streams that are open, and refuses new ones.
    pub(crate) fn end_streams(&self) {
        if let Now::Open { flight, .. } = &*self.0.read() {
            flight.stop_token().cancel();
        }
    }

    /// The services of this moment, or the refusal.
    fn now(&self) -> Result<Services, Box<http::Response<Body>>> {
        match &*self.0.read() {
            Now::Open { flight, control, peers } => Ok((Flight::clone(flight), control.clone(), peers.clone())),
            Now::Closed { error, leader } => Err(Box::new(to_elsewhere_status(error, leader.as_deref()).into_http())),
        }
    }
}

/// What an open door leads to.
type Services = (Flight, Option<ControlService>, Option<Guarded>);

type Answering = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

fn at_once(response: http::Response<Body>) -> Answering {
    Box::pin(std::future::ready(Ok(response)))
}

/// Flight behind the door.
#[derive(Clone)]
pub(crate) struct FlightDoor(pub(crate) Door);

impl NamedService for FlightDoor {
    const NAME: &'static str = "arrow.flight.protocol.FlightService";
}

impl Service<http::Request<Body>> for FlightDoor {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answering {
        match self.0.now() {
            Ok((mut flight, ..)) => flight.call(request),
            Err(refusal) => at_once(*refusal),
        }
    }
}

/// The control protocol behind the door.
#[derive(Clone)]
pub(crate) struct ControlDoor(pub(crate) Door);

impl NamedService for ControlDoor {
    const NAME: &'static str = "forebay.control.v1.Control";
}

impl Service<http::Request<Body>> for ControlDoor {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answering {
        match self.0.now() {
            Err(refusal) => at_once(*refusal),
            Ok((_, Some(control), _)) => control.respond(request),
            Ok((_, None, _)) => {
                let error = Error::failed_precondition("this process takes no workers")
                    .with_remedy("name a `forebay dispatcher` with --dispatcher; `forebay serve` is its own worker");
                at_once(crate::status::to_status(&error).into_http())
            }
        }
    }
}

/// Parts of queries behind the door.
#[derive(Clone)]
pub(crate) struct PeerDoor(pub(crate) Door);

impl NamedService for PeerDoor {
    // The name that datafusion-distributed's protocol has.
    const NAME: &'static str = "worker.WorkerService";
}

impl Service<http::Request<Body>> for PeerDoor {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answering {
        match self.0.now() {
            Err(refusal) => at_once(*refusal),
            Ok((.., Some(peers))) => peers.respond(request),
            Ok((.., None)) => refusal(&Error::failed_precondition("this process takes no parts of queries").with_remedy("workers do")),
        }
    }
}
