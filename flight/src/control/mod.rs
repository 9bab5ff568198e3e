//! The control protocol: what workers ask of and report to their dispatcher, on the same port as Flight.
//!
//! Owns: the messages, their versioned envelope, and the two ends of the one gRPC method that carries them. Must not know: what an answer is made
//! of, who leads, when to try again.
//!
//! One unary method, `/forebay.control.v1.Control/Call`. A message is JSON in an [`Envelope`] that names its version, so that a worker and a
//! dispatcher of different versions can say so. Calls that wait (for a task, for a grant) are answered when there is something; the caller ends
//! them by dropping the call.

mod client;
mod message;
mod service;

use bytes::Bytes;
use forebay_core::{Error, Result};
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use client::{ControlClient, Missed};
pub use message::{Answer, Ask, Beat, Call, GrantedMessage, LeaseRef, Outcome, Registered, Running, StreamRef, Told, WorkerAddress};
pub use service::{Control, ControlService};

/// Version of the messages; a peer of another one is refused with both numbers.
pub const CONTROL_VERSION: u32 = 1;
/// Bytes of one message: a task's shards with their statistics, or a run's code.
const MESSAGE_LIMIT: usize = 64 << 20;
const PATH: &str = "/forebay.control.v1.Control/Call";

/// What goes over the wire, in both directions.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Envelope {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(bytes = "bytes", tag = "2")]
    body: Bytes,
}

impl Envelope {
    fn new(message: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(message).map_err(|e| Error::internal(format!("writing a control message: {e}")))?;
        Ok(Self { version: CONTROL_VERSION, body: body.into() })
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T> {
        if self.version != CONTROL_VERSION {
            let (theirs, ours) = (self.version, CONTROL_VERSION);
            return Err(Error::failed_precondition(format!(
                "the peer speaks version {theirs} of the control protocol, this process {ours}"
            ))
            .with_remedy("run dispatchers and workers of one version"));
        }
        serde_json::from_slice(&self.body).map_err(|e| Error::bad_input(format!("a control message that can't be read: {e}")))
    }
}

#[cfg(test)]
mod tests;
