//! A worker's end: takes the parts of plans that others send, and runs them on the threads of queries.
//!
//! Who may call is the business of whoever puts the service on a port. What comes in can do no more than a query of this process: its tables are
//! scans of this root at pinned versions, there are no object stores, and it shares the queries' memory pool and spill space.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use datafusion::error::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::ScalarUDF;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, DistributedExt, GetWorkerInfoRequest, LocalWorkerContext, Worker, WorkerChannel, WorkerQueryContext,
};
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use forebay_storage::root::Root;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::codegen::{Service, http};
use url::Url;

use super::Peers;
use super::codec::ScanCodec;
use crate::guard::from_error;

/// Body of a request or response on the service.
pub type PlanBody = tonic::body::Body;

/// How long a worker may take to say that it is there.
const PING: Duration = Duration::from_secs(1);

/// What a process needs to send and to take parts of plans. Clones share it.
#[derive(Clone)]
pub struct PlanService {
    inner: Arc<Inner>,
}

struct Inner {
    worker: Worker,
    codec: Arc<dyn PhysicalExtensionCodec>,
    channels: Channels,
    me: OnceLock<Url>,
    threads: Handle,
}

impl fmt::Debug for PlanService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanService").field("me", &self.inner.me.get()).finish_non_exhaustive()
    }
}

/// Connections to peers, each kept for further queries.
#[derive(Clone)]
pub(super) struct Channels {
    peers: Arc<dyn Peers>,
    open: Arc<Mutex<BTreeMap<Url, BoxCloneSyncChannel>>>,
}

impl Channels {
    fn get(&self, url: &Url) -> Result<BoxCloneSyncChannel, DataFusionError> {
        let mut open = self.open.lock();
        if let Some(channel) = open.get(url) {
            return Ok(channel.clone());
        }
        let channel = self.peers.connect(url).map_err(from_error)?;
        let known = self.peers.workers();
        open.retain(|url, _| known.contains(url));
        open.insert(url.clone(), channel.clone());
        Ok(channel)
    }
}

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>, DataFusionError> {
        Ok(create_worker_client(self.get(url)?))
    }
}

impl PlanService {
    pub(crate) fn new(
        root: Root,
        peers: Arc<dyn Peers>,
        runtime: Arc<RuntimeEnv>,
        functions: Vec<Arc<ScalarUDF>>,
        partitions: usize,
        threads: Handle,
    ) -> Self {
        let codec: Arc<dyn PhysicalExtensionCodec> = Arc::new(ScanCodec::new(root));
        let channels = Channels { peers: peers.clone(), open: Arc::default() };
        let (known, reach, room) = (codec.clone(), channels.clone(), runtime.clone());
        let worker = Worker::from_session_builder(move |query: WorkerQueryContext| {
            let (known, reach, room, functions) = (known.clone(), reach.clone(), room.clone(), functions.clone());
            async move { Ok::<_, DataFusionError>(session(query, known, reach, room, functions, partitions)) }
        });
        let me = OnceLock::new();
        if let Some(url) = peers.me() {
            let _ = me.set(url);
        }
        Self { inner: Arc::new(Inner { worker: worker.with_runtime_env(runtime), codec, channels, me, threads }) }
    }

    pub(super) fn me(&self) -> Option<&Url> {
        self.inner.me.get()
    }

    pub(super) fn codec(&self) -> Arc<dyn PhysicalExtensionCodec> {
        self.inner.codec.clone()
    }

    pub(super) fn channels(&self) -> Channels {
        self.inner.channels.clone()
    }

    /// Where this process is a worker: its own parts of its own queries don't go through a port.
    pub(super) fn local(&self) -> Option<LocalWorkerContext> {
        self.me().map(|url| self.inner.worker.to_local_worker_context(url.clone()))
    }

    /// The workers that may be there.
    pub(crate) fn workers(&self) -> Vec<Url> {
        self.inner.channels.peers.workers()
    }

    /// Those of them that answer.
    pub(super) async fn alive(&self, workers: &[Url]) -> Vec<Url> {
        let asked = workers.iter().map(|url| async move {
            if Some(url) == self.me() {
                return Some(url.clone());
            }
            let mut client = create_worker_client(self.inner.channels.get(url).ok()?);
            let answer = tokio::time::timeout(PING, client.get_worker_info(GetWorkerInfoRequest {})).await;
            matches!(answer, Ok(Ok(_))).then(|| url.clone())
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }
}

/// The session of a part: what is in its plan is found in it by name, and nothing else is there.
fn session(
    query: WorkerQueryContext,
    codec: Arc<dyn PhysicalExtensionCodec>,
    channels: Channels,
    runtime: Arc<RuntimeEnv>,
    functions: Vec<Arc<ScalarUDF>>,
    partitions: usize,
) -> SessionState {
    let mut state = query
        .builder
        .with_scalar_functions(functions)
        .with_runtime_env(runtime)
        .with_distributed_user_codec_arc(codec)
        .with_distributed_channel_resolver(channels)
        .build();
    state.config_mut().options_mut().execution.target_partitions = partitions.max(1);
    state
}

impl Service<http::Request<PlanBody>> for PlanService {
    type Response = http::Response<PlanBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<PlanBody>) -> Self::Future {
        let mut server = self.inner.worker.clone().into_worker_server();
        // What is spawned on the way runs where this runs: on threads that may be busy for long.
        let answer = self.inner.threads.spawn(async move { server.call(request).await });
        let answer = Stop(answer);
        Box::pin(async move { Ok(answer.await.unwrap_or_else(|| tonic::Status::unavailable("queries are shutting down").into_http())) })
    }
}

/// Work that ends with whoever waits for it.
struct Stop(tokio::task::JoinHandle<Result<http::Response<PlanBody>, Infallible>>);

impl Future for Stop {
    type Output = Option<http::Response<PlanBody>>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0).poll(context).map(|done| done.ok().and_then(Result::ok))
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
