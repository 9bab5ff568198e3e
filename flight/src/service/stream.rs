//! Message streams on their way out: a producer task, a short queue, and the HTTP body that drains it.
//!
//! The queue is the backpressure: HTTP/2 stops polling the body when the receiver's window is full, the queue fills, the producer waits.
//! Dropping the body (a client that went away) aborts the producer and with it everything that it holds.

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use http_body::Frame;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::body::Body;

use super::Shared;
use super::stats::OpenStream;
use crate::message::Message;
use crate::status::to_status;

/// Messages between producer and transport.
const QUEUE: usize = 2;

enum Item {
    Message(Message),
    /// Answered when the transport has taken everything before it.
    Barrier(oneshot::Sender<()>),
    /// The last item: what the trailers say.
    End(Result<()>),
}

/// The producer's end.
#[derive(Clone)]
pub(crate) struct Outlet {
    items: mpsc::Sender<Item>,
}

/// Room for one message, had before the message is made.
pub(crate) struct Slot<'a>(mpsc::Permit<'a, Item>);

impl Slot<'_> {
    pub(crate) fn send(self, message: Message) {
        self.0.send(Item::Message(message));
    }
}

impl Outlet {
    /// Waits for room.
    ///
    /// # Errors
    /// `Cancelled` when the client went away.
    pub(crate) async fn slot(&self) -> Result<Slot<'_>> {
        self.items.reserve().await.map(Slot).map_err(|_| gone())
    }

    pub(crate) async fn send(&self, message: Message) -> Result<()> {
        self.slot().await?.send(message);
        Ok(())
    }

    /// Waits until the transport has taken every message sent so far.
    pub(crate) async fn flushed(&self) -> Result<()> {
        let (tell, told) = oneshot::channel();
        self.items.send(Item::Barrier(tell)).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::new(Kind::Cancelled, "the client went away")
}

/// An HTTP response that carries what `produce` sends, and ends with its result.
pub(crate) fn respond<F, Fut>(shared: &Arc<Shared>, produce: F) -> http::Response<Body>
where
    F: FnOnce(Outlet) -> Fut + Send + 'static,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    let (items, queue) = mpsc::channel(QUEUE);
    let stop = shared.stop.clone();
    let task = tokio::spawn(async move {
        let produced = produce(Outlet { items: items.clone() });
        let end = tokio::select! {
            () = stop.cancelled() => Err(Error::new(Kind::Unavailable, "the server is shutting down").with_remedy("connect again")),
            end = produced => end,
        };
        if let Err(error) = &end
            && matches!(error.kind, Kind::Internal | Kind::Corrupt)
        {
            tracing::error!(%error, "a stream failed");
        }
        // Nobody listens after a client went away.
        let _ = items.send(Item::End(end)).await;
    });
    let open = OpenStream::new(&shared.stats);
    let body = MessageBody { queue, body: Vec::new().into_iter(), first: None, done: false, open, _producer: AbortOnDropHandle::new(task) };
    let mut response = http::Response::new(Body::new(body));
    response.headers_mut().insert(http::header::CONTENT_TYPE, tonic::metadata::GRPC_CONTENT_TYPE);
    response
}

struct MessageBody {
    queue: mpsc::Receiver<Item>,
    /// What is left of the IPC body of the message whose prefix went out last.
    body: std::vec::IntoIter<Bytes>,
    first: Option<Bytes>,
    done: bool,
    open: OpenStream,
    _producer: AbortOnDropHandle<()>,
}

impl MessageBody {
    fn trailers(&mut self, status: &Status) -> Frame<Bytes> {
        self.done = true;
        let mut trailers = http::HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("13"));
        }
        Frame::trailers(trailers)
    }
}

impl http_body::Body for MessageBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(part) = self.first.take().or_else(|| self.body.next()) {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        if self.done {
            return Poll::Ready(None);
        }
        loop {
            match ready!(self.queue.poll_recv(cx)) {
                Some(Item::Message(message)) => match message.prefix() {
                    Ok(prefix) => {
                        self.open.sent(prefix.len() + message.body_len());
                        self.first = Some(message.body).filter(|body| !body.is_empty());
                        self.body = message.more.into_iter();
                        return Poll::Ready(Some(Ok(Frame::data(prefix))));
                    }
                    Err(error) => return Poll::Ready(Some(Ok(self.trailers(&to_status(&error))))),
                },
                Some(Item::Barrier(tell)) => {
                    // The producer may have been told to stop meanwhile.
                    let _ = tell.send(());
                }
                Some(Item::End(Ok(()))) => return Poll::Ready(Some(Ok(self.trailers(&Status::ok(""))))),
                Some(Item::End(Err(error))) => return Poll::Ready(Some(Ok(self.trailers(&to_status(&error))))),
                // A producer that ended without a word panicked.
                None => return Poll::Ready(Some(Ok(self.trailers(&to_status(&Error::internal("the stream failed inside the server")))))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}
