//! The HTTP port: health, readiness, Prometheus metrics and a small console page over the same JSON that scripts read.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use forebay_core::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

const CONSOLE: &str = include_str!("console.html");

/// What the pages ask of the engine.
#[async_trait::async_trait]
pub(crate) trait Overview: Send + Sync + 'static {
    /// Ready means: the root answers and, where this process owns it, the dispatcher takes requests.
    async fn ready(&self) -> Result<()>;
    async fn overview(&self) -> Result<serde_json::Value>;
}

#[derive(Clone)]
struct Shared {
    metrics: Metrics,
    overview: Arc<dyn Overview>,
    /// Pages that show data ask for the same bearer token as Flight calls; health and metrics do not.
    token: Option<Arc<str>>,
}

/// Serves until `stop`.
pub(crate) async fn serve(
    address: SocketAddr,
    metrics: Metrics,
    overview: Arc<dyn Overview>,
    token: Option<String>,
    stop: CancellationToken,
) -> Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await.map_err(|e| {
        Error::failed_precondition(format!("can't listen for HTTP on {address}: {e}")).with_remedy("choose another port with --http")
    })?;
    let bound = listener.local_addr().map_err(|e| Error::internal(format!("the HTTP port has no address: {e}")))?;
    let shared = Shared { metrics, overview, token: token.map(Arc::from) };
    let app = Router::new()
        .route("/", get(|| async { Html(CONSOLE) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_text))
        .route("/api/v1/overview", get(overview_json))
        .with_state(shared);
    let task = tokio::spawn(async move {
        let done = axum::serve(listener, app).with_graceful_shutdown(async move { stop.cancelled().await }).await;
        if let Err(error) = done {
            tracing::error!(%error, "the HTTP port stopped");
        }
    });
    Ok((bound, task))
}

async fn ready(State(shared): State<Shared>) -> impl IntoResponse {
    match shared.overview.ready().await {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn metrics_text(State(shared): State<Shared>) -> impl IntoResponse {
    ([("content-type", "text/plain; version=0.0.4")], shared.metrics.text())
}

async fn overview_json(State(shared): State<Shared>, headers: axum::http::HeaderMap) -> axum::response::Response {
    if let Some(token) = &shared.token {
        let given = headers.get("authorization").and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !forebay_flight::auth::bearer_matches(given, token) {
            return (StatusCode::UNAUTHORIZED, "send the server's token as `Authorization: Bearer`\n").into_response();
        }
    }
    match shared.overview.overview().await {
        Ok(value) => axum::Json(value).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
