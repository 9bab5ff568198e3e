//! Starting and stopping an engine: the order in which things are made, and the order in which they end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::ids::WorkerName;
use forebay_core::{Error, Kind, Result};
use forebay_flight::serve::Limits;
use forebay_flight::service::{Flight, ServiceConfig};
use forebay_flight::ticket::TicketKey;
use forebay_sql::catalog::{Catalog, QueryLimits};
use forebay_sql::python::{PythonConfig, PythonPool};
use forebay_storage::journal::Journal;
use forebay_storage::owner::{LocalLock, Owner as Found, find_owner};
use forebay_storage::root::Root;
use forebay_storage::source::Allow;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::planner::EnginePlanner;
use super::system::{Reports, System};
use super::view::View;
use super::{Compute, Engine, EngineConfig};
use crate::backend::EngineBackend;
use crate::dispatcher::{Dispatcher, DispatcherConfig};
use crate::metrics::Metrics;
use crate::serve::{Reader, ServeLimits, Serving};
use crate::worker::Worker;
use crate::worker::task::Runs;

/// Streams that are open at shutdown have this long to end.
const DRAIN: Duration = Duration::from_secs(5);
/// Windows in use may always take this much: two windows of the default size for each of two streams.
const MIN_IN_USE: u64 = 1 << 30;

/// What is made before anything listens.
pub(super) struct Parts {
    engine: Engine,
    owner: Option<Owner>,
}

/// What only the owner of a root has.
struct Owner {
    dispatcher: Dispatcher,
    task: JoinHandle<Result<()>>,
    lock: Option<LocalLock>,
}

/// An engine that listens. Call [`RunningEngine::shutdown`]; dropping it only stops the tasks.
pub struct RunningEngine {
    /// `grpc://HOST:PORT`
    pub address: String,
    /// `http://HOST:PORT`
    pub http: Option<String>,
    engine: Arc<Engine>,
    owner: Option<Owner>,
    stop: CancellationToken,
    worker_stop: CancellationToken,
    worker: Option<JoinHandle<()>>,
    flight: JoinHandle<Result<()>>,
    http_task: Option<JoinHandle<()>>,
    compute: Compute,
}

impl std::fmt::Debug for RunningEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningEngine").field("address", &self.address).field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl Parts {
    pub(super) async fn start(config: &EngineConfig, root: Root, address: SocketAddr, compute: &Compute) -> Result<Self> {
        let metrics = Metrics::new().map_err(|e| Error::internal(format!("metrics: {e}")))?;
        let view = View::new(root.clone());
        let mut python = PythonConfig { processes: config.slots.max(1), ..PythonConfig::default() };
        if let Some(interpreter) = &config.python {
            python.interpreter = interpreter.into();
        }
        let python = Arc::new(PythonPool::new(python));
        let worker = WorkerName(format!("{}-{}", hostname(), std::process::id()));
        let runs = Arc::new(Runs::default());
        let planner = Arc::new(EnginePlanner::new(view.clone(), python.clone(), runs.clone(), metrics.clone()));
        let limits = ServeLimits { cache: config.cache_bytes, in_use: config.cache_bytes.max(MIN_IN_USE) };
        let reader = Reader::new(view.clone(), python.clone(), limits);
        let owner = if config.read_only { None } else { Some(own(config, &root, address, planner.clone()).await?) };
        let dispatcher = owner.as_ref().map(|o| o.dispatcher.clone());
        let serving = dispatcher.as_ref().map(|d| Serving::new(reader.clone(), d.clone(), worker.clone(), metrics.clone()));
        let reports = dispatcher.clone().map_or(Reports::Journal, Reports::Owner);
        let system = Arc::new(System::new(view.clone(), reports));
        let limits = QueryLimits { memory: usize::try_from(config.query_bytes).unwrap_or(usize::MAX), ..QueryLimits::default() };
        let catalog = Catalog::new(root, system.clone(), limits)?;
        planner.use_catalog(catalog.clone());
        let engine = Engine {
            config: config.clone(),
            reader,
            serving,
            view,
            catalog,
            system,
            python,
            allow: config.sources_allow.as_deref().map_or_else(Allow::everything, Allow::prefixes),
            metrics,
            worker,
            runs,
            compute: compute.handle()?.clone(),
            dispatcher,
        };
        Ok(Self { engine, owner })
    }

    pub(super) async fn serve(
        self,
        config: EngineConfig,
        listener: TcpListener,
        address: SocketAddr,
        compute: Compute,
    ) -> Result<RunningEngine> {
        let engine = Arc::new(self.engine);
        let (stop, worker_stop) = (CancellationToken::new(), CancellationToken::new());
        let worker = match &self.owner {
            None => None,
            Some(owner) => {
                let worker = Worker::new(
                    engine.worker().clone(),
                    engine.root().clone(),
                    owner.dispatcher.clone(),
                    engine.python().clone(),
                    engine.metrics().clone(),
                    engine.runs.clone(),
                );
                Some(compute.handle()?.spawn(worker.run(config.slots, worker_stop.clone())))
            }
        };
        let (http, http_task) = match config.http {
            None => (None, None),
            Some(http) => {
                let overview = Arc::new(super::overview::Pages(engine.clone()));
                let (bound, task) =
                    crate::http::serve(http, engine.metrics().clone(), overview, config.token.clone(), stop.clone()).await?;
                (Some(bound), Some(task))
            }
        };
        let service = Flight::new(Arc::new(EngineBackend(engine.clone())), ServiceConfig::new(TicketKey::random(), config.token.clone()));
        let (flight_stop, limits) = (stop.clone(), Limits { drain: DRAIN, ..Limits::default() });
        let flight = tokio::spawn(forebay_flight::serve::serve(listener, service, limits, async move { flight_stop.cancelled().await }));
        let (address, http) = (format!("grpc://{address}"), http.map(|h| format!("http://{h}")));
        Ok(RunningEngine { address, http, engine, owner: self.owner, stop, worker_stop, worker, flight, http_task, compute })
    }
}

/// Takes the root: its lock, its journal, and the lead.
async fn own(config: &EngineConfig, root: &Root, address: SocketAddr, planner: Arc<EnginePlanner>) -> Result<Owner> {
    let mut lock = LocalLock::acquire(root).await?;
    // Where there is no lock, the journal's fence would let us in and the owner out.
    if lock.is_none()
        && let Found::Live(owner) = find_owner(root).await?
    {
        return Err(Error::failed_precondition(format!("the root `{}` has an owner at {} already", root.url(), owner.address))
            .with_remedy("connect to it with --server, or stop it"));
    }
    let journal = Journal::open(root).await?;
    let (dispatcher, task, record) = Dispatcher::start_with(
        journal,
        root.clone(),
        planner,
        DispatcherConfig { continue_runs: config.continue_runs, ..DispatcherConfig::new(address.to_string()) },
    )
    .await?;
    if let Some(lock) = &mut lock {
        lock.announce(&record)?;
    }
    Ok(Owner { dispatcher, task, lock })
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).unwrap_or_else(|| "worker".to_owned())
}

impl RunningEngine {
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Waits until the Flight port ends by itself, which it does only on a failure.
    pub async fn failed(&mut self) -> Error {
        match (&mut self.flight).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::new(Kind::Unavailable, "the Flight port closed"),
            Err(e) => Error::internal(format!("the Flight port ended: {e}")),
        }
    }

    /// Ends in order: no new work, open streams within five seconds, then the dispatcher, which writes what it knows, then the lock.
    ///
    /// # Errors
    /// What the dispatcher could not write.
    pub async fn shutdown(mut self) -> Result<()> {
        self.worker_stop.cancel();
        self.stop.cancel();
        if !self.flight.is_finished() {
            let _ = tokio::time::timeout(DRAIN + Duration::from_secs(1), &mut self.flight).await;
        }
        if let Some(worker) = &mut self.worker {
            let _ = tokio::time::timeout(DRAIN, worker).await;
        }
        if let Some(task) = self.http_task.take() {
            task.abort();
        }
        drop(self.compute);
        let python = self.engine.python().clone();
        let _ = tokio::task::spawn_blocking(move || python.close()).await;
        let Some(owner) = self.owner.take() else { return Ok(()) };
        // Streams that did not end by now never will: what they held is accounted for here, not by the next owner.
        if let Err(error) = owner.dispatcher.worker_gone(self.engine.worker()).await {
            tracing::debug!(%error, "the worker's end could not be written");
        }
        owner.dispatcher.shutdown().await;
        let ended = owner.task.await.map_err(|e| Error::internal(format!("the dispatcher ended: {e}")))?;
        if let Some(lock) = owner.lock {
            lock.release()?;
        }
        ended
    }
}
