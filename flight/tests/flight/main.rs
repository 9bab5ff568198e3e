//! The service and the client over real connections. The engine behind them is a double that records what it was told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_debug_implementations, unreachable_pub)]

mod access;
mod backend;
mod jobs;
mod rows;
mod sql;

use backend::Double;
use forebay_core::Result;
use forebay_flight::ticket::TicketKey;
use forebay_flight::{Client, Flight, Limits, ServiceConfig, Stats, serve};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server on a port of its own.
pub struct Running {
    pub address: String,
    pub double: Arc<Double>,
    pub key: TicketKey,
    pub stats: Arc<Stats>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<()>>,
}

impl Running {
    pub async fn start(double: Double, change: impl FnOnce(&mut ServiceConfig)) -> Self {
        let double = Arc::new(double);
        let key = TicketKey::random();
        let mut config = ServiceConfig::new(key.clone(), None);
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("grpc://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let limits = Limits { drain: Duration::from_millis(300), ..Limits::default() };
        let flight = Flight::new(double.clone(), config);
        let stats = flight.stats();
        let serving = tokio::spawn(serve(listener, flight, limits, async move {
            let _ = stopped.await;
        }));
        Self { address, double, key, stats, stop, serving }
    }

    pub async fn open(double: Double) -> Self {
        Self::start(double, |_| ()).await
    }

    pub async fn client(&self) -> Client {
        Client::connect(std::slice::from_ref(&self.address), None).await.unwrap()
    }

    /// arrow-flight's generated client, with the windows of a plain one.
    pub async fn raw(&self) -> arrow_flight::flight_service_client::FlightServiceClient<tonic::transport::Channel> {
        let endpoint = tonic::transport::Endpoint::from_shared(self.address.replace("grpc://", "http://")).unwrap();
        let endpoint = endpoint.initial_stream_window_size(64 << 10).initial_connection_window_size(64 << 10);
        let channel = endpoint.connect().await.unwrap();
        arrow_flight::flight_service_client::FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX)
    }

    pub async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        tokio::time::timeout(Duration::from_secs(5), self.serving).await.expect("the server drains").unwrap()
    }
}

/// Waits for something that another task does.
pub async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..500 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within 5 s");
}
