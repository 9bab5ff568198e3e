//! The dispatcher's end.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use forebay_core::Result;
use futures::future::BoxFuture;
use tonic::body::Body;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::{Answer, Call, Envelope, MESSAGE_LIMIT, Outcome};
use crate::auth::Gate;
use crate::status::to_status;

/// What the control protocol asks of the rest of the system.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Answers one call. The future is dropped when the caller goes away.
    async fn call(&self, call: Call) -> Result<Answer>;
}

/// The gRPC side of a [`Control`], behind the same gate as every other call. Clones share it.
#[derive(Clone)]
pub struct ControlService {
    control: Arc<dyn Control>,
    gate: Gate,
}

impl fmt::Debug for ControlService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlService").finish_non_exhaustive()
    }
}

impl ControlService {
    pub fn new(control: Arc<dyn Control>, gate: Gate) -> Self {
        Self { control, gate }
    }

    /// Answers one request.
    pub(crate) fn respond(&self, request: http::Request<Body>) -> BoxFuture<'static, Result<http::Response<Body>, Infallible>> {
        let authorization = request.headers().get(http::header::AUTHORIZATION).map(|v| v.as_bytes());
        if let Err(error) = self.gate.check(authorization) {
            return Box::pin(std::future::ready(Ok(to_status(&error).into_http())));
        }
        let method = Method(Arc::clone(&self.control));
        Box::pin(async move {
            let codec = ProstCodec::<Envelope, Envelope>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(MESSAGE_LIMIT);
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct Method(Arc<dyn Control>);

impl tower::Service<Request<Envelope>> for Method {
    type Response = Response<Envelope>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Envelope>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Envelope>) -> Self::Future {
        let control = Arc::clone(&self.0);
        Box::pin(async move {
            let call: Call = request.get_ref().read().map_err(|e| to_status(&e))?;
            let outcome = match control.call(call).await {
                Ok(answer) => Outcome::Ok(answer),
                Err(error) => Outcome::Err(error),
            };
            Envelope::new(&outcome).map(Response::new).map_err(|e| to_status(&e))
        })
    }
}
