//! The gRPC server around the service: limits of the transport, and the drain at the end.

use forebay_core::{Error, Kind, Result};
use std::future::Future;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};

use crate::service::Flight;
use crate::service::door::{ControlDoor, Door, FlightDoor, PeerDoor};

/// Limits of the transport.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Streams that one connection may have open.
    pub streams: u32,
    /// Bytes of one request's headers.
    pub headers: u32,
    /// The server pings a silent client this often; below the idle limits of load balancers.
    pub keepalive: Duration,
    /// HTTP/2 receive window per stream, in bytes: bounds how fast a `DoPut` can be over a slow link.
    pub stream_window: u32,
    /// HTTP/2 receive window per connection, in bytes.
    pub connection_window: u32,
    /// HTTP/2 frames that clients may send, in bytes: the protocol's default of 16 KiB costs a system call each.
    pub frame: u32,
    /// Streams that are open at shutdown have this long to end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 1024,
            headers: 32 << 10,
            keepalive: Duration::from_secs(40),
            stream_window: 8 << 20,
            connection_window: 16 << 20,
            frame: 256 << 10,
            drain: Duration::from_secs(5),
        }
    }
}

/// Serves until `shutdown`, then lets open streams end within the drain time.
///
/// # Errors
/// `Unavailable` when the transport fails.
pub async fn serve(listener: TcpListener, service: Flight, limits: Limits, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    let stop = service.stop_token();
    let router = builder(&limits).add_service(service);
    run(router, listener, limits.drain, shutdown, move || stop.cancel()).await
}

/// As [`serve`], with whatever the door answers with, and the control protocol and parts of queries beside Flight.
///
/// # Errors
/// `Unavailable` when the transport fails.
pub async fn serve_door(listener: TcpListener, door: Door, limits: Limits, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    let router =
        builder(&limits).add_service(FlightDoor(door.clone())).add_service(ControlDoor(door.clone())).add_service(PeerDoor(door.clone()));
    run(router, listener, limits.drain, shutdown, move || door.end_streams()).await
}

fn builder(limits: &Limits) -> Server {
    Server::builder()
        .max_concurrent_streams(limits.streams)
        .http2_max_header_list_size(limits.headers)
        .http2_keepalive_interval(Some(limits.keepalive))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .initial_stream_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window)
        .max_frame_size(limits.frame)
}

async fn run(
    router: Router,
    listener: TcpListener,
    drain_time: Duration,
    shutdown: impl Future<Output = ()> + Send,
    end_streams: impl Fn(),
) -> Result<()> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let (drain, draining) = tokio::sync::oneshot::channel();
    let serving = router.serve_with_incoming_shutdown(incoming, async move {
        shutdown.await;
        // The deadline below starts now.
        let _ = drain.send(());
    });
    let deadline = async move {
        match draining.await {
            Ok(()) => tokio::time::sleep(drain_time).await,
            // The server ended by itself.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        () = deadline => {
            // What is still open ends with a status rather than with a broken connection; then the connections are left to themselves.
            end_streams();
            tokio::time::timeout(Duration::from_secs(1), &mut serving).await.unwrap_or(Ok(()))
        }
    };
    end_streams();
    served.map_err(|e| Error::new(Kind::Unavailable, format!("the server failed: {e}")))
}
