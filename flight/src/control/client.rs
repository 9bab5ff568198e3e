//! The worker's end: one connection to one dispatcher.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use http::uri::PathAndQuery;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::{Answer, Call, Envelope, MESSAGE_LIMIT, Outcome, PATH};
use crate::client::{bearer, control_endpoint, failed};
use crate::status::leader_of;

/// A connection to one dispatcher. Clones share it.
#[derive(Debug, Clone)]
pub struct ControlClient {
    channel: Channel,
    address: Arc<str>,
    token: Option<MetadataValue<Ascii>>,
}

/// Why a call has no answer.
#[derive(Debug)]
pub enum Missed {
    /// Nobody answered, or a standby did; it may have said who leads.
    Elsewhere { leader: Option<String>, error: Error },
    /// The dispatcher refused.
    Refused(Error),
}

impl ControlClient {
    /// Connects to one address.
    ///
    /// # Errors
    /// `BadInput` for an address or a token that is none, `Unavailable` when nobody answers within `limit`.
    pub async fn connect(address: &str, token: Option<&str>, limit: Duration) -> Result<Self> {
        let token = token.map(bearer).transpose()?;
        let endpoint = control_endpoint(address, limit)?;
        let nobody = |why: String| Error::new(Kind::Unavailable, format!("no dispatcher answers at {address}: {why}"));
        let connected = tokio::time::timeout(limit, endpoint.connect()).await.map_err(|_| nobody(format!("not within {limit:?}")))?;
        let channel = connected.map_err(|e| nobody(crate::client::root_cause(&e)))?;
        Ok(Self { channel, address: Arc::from(address), token })
    }

    /// The address that answered.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// One call, with no deadline of its own.
    ///
    /// # Errors
    /// See [`Missed`].
    pub async fn call(&self, call: &Call) -> Result<Answer, Missed> {
        let envelope = Envelope::new(call).map_err(Missed::Refused)?;
        let mut request = Request::new(envelope);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let lost = |why: String| Missed::Elsewhere {
            leader: None,
            error: Error::new(Kind::Unavailable, format!("lost the dispatcher at {}: {why}", self.address)),
        };
        grpc.ready().await.map_err(|e| lost(crate::client::root_cause(&e)))?;
        let codec = ProstCodec::<Envelope, Envelope>::default();
        match grpc.unary(request, PathAndQuery::from_static(PATH), codec).await {
            Ok(answer) => match answer.get_ref().read().map_err(Missed::Refused)? {
                Outcome::Ok(answer) => Ok(answer),
                Outcome::Err(error) if error.kind == Kind::Unavailable => Err(Missed::Elsewhere { leader: None, error }),
                Outcome::Err(error) => Err(Missed::Refused(error)),
            },
            Err(status) => {
                if status.code() == tonic::Code::Unimplemented {
                    return Err(Missed::Refused(
                        Error::unsupported(format!("the server at {} takes no workers", self.address))
                            .with_remedy("`forebay serve` works alone: start `forebay dispatcher` on the root instead"),
                    ));
                }
                let error = failed(&self.address, &status);
                // A server that ended its streams says `Unavailable`, a broken connection has a source: both mean another address.
                match error.kind {
                    Kind::Unavailable | Kind::Cancelled => Err(Missed::Elsewhere { leader: leader_of(&status), error }),
                    _ => Err(Missed::Refused(error)),
                }
            }
        }
    }
}
