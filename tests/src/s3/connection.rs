//! HTTP/1.1 connections, which a fault can reset.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::store::Store;

/// Accepts until the runtime ends.
pub(super) async fn accept(listener: TcpListener, store: Arc<Store>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, store.clone()))),
            // Out of descriptors, for example: connections end by themselves.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(stream: TcpStream, store: Arc<Store>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| Box::pin(store.clone().answer(request)));
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let ended = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let stream = connection.into_parts().io.into_inner();
    if ended.is_err() {
        // A reset, not an orderly end.
        let _ = stream.set_zero_linger();
    }
}
