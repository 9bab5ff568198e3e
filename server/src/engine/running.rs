//! Starting and stopping an engine: the order in which things are made, and the order in which they end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::ids::WorkerName;
use forebay_core::{Error, Kind, Result};
use forebay_flight::serve::Limits;
use forebay_flight::service::{Flight, ServiceConfig};
use forebay_flight::ticket::TicketKey;
use forebay_storage::journal::Journal;
use forebay_storage::owner::{LocalLock, Owner as Found, find_owner};
use forebay_storage::root::Root;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::base::{Base, Part};
use super::{Compute, Engine, EngineConfig};
use crate::backend::EngineBackend;
use crate::dispatcher::{Dispatcher, DispatcherConfig};
use crate::metrics::Metrics;
use crate::roles::DRAIN;
use crate::worker::Worker;

/// Tasks that are given up at shutdown have this long to say so.
const TASKS: Duration = Duration::from_secs(1);

/// What is made before anything listens.
pub(super) struct Parts {
    engine: Engine,
    owner: Option<Owner>,
}

/// What only the owner of a root has.
pub(crate) struct Owner {
    pub(crate) dispatcher: Dispatcher,
    /// Ends when the lead does.
    pub(crate) task: JoinHandle<Result<()>>,
    /// Signs the root's tickets, whoever leads.
    pub(crate) secret: [u8; 32],
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

impl RunningEngine {
    /// Whether anybody uses the root through this process: a run that goes on, or a consumer, who may be between two passes.
    pub(crate) async fn is_in_use(&self) -> bool {
        let Some(owner) = &self.owner else { return false };
        let used = owner.dispatcher.look(|state, _| {
            let running = state.datasets.values().filter_map(|dataset| dataset.run.as_ref()).any(|run| run.is_running());
            running || state.jobs.values().any(|job| !job.consumers.is_empty())
        });
        used.await.unwrap_or(false)
    }
}

impl Parts {
    pub(super) async fn start(config: &EngineConfig, root: Root, address: SocketAddr, compute: &Compute) -> Result<Self> {
        let metrics = Metrics::new().map_err(|e| Error::internal(format!("metrics: {e}")))?;
        let worker = WorkerName(format!("{}-{}", hostname(), std::process::id()));
        let base = Base::new(config, root, metrics);
        let owner = if config.read_only { None } else { Some(own(config, &base, address).await?) };
        let dispatcher = owner.as_ref().map(|o| o.dispatcher.clone());
        let engine = base.engine(config, compute, worker, dispatcher, Part::Whole)?;
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
        engine.metrics().leading.set(i64::from(self.owner.is_some()));
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
        // Tickets outlive the process that made them, unless it only reads.
        let key = self.owner.as_ref().map_or_else(TicketKey::random, |owner| TicketKey::derive(&owner.secret));
        let service = Flight::new(Arc::new(EngineBackend(engine.clone())), ServiceConfig::new(key, config.token.clone()));
        let (flight_stop, limits) = (stop.clone(), Limits { drain: DRAIN, ..Limits::default() });
        let flight = tokio::spawn(forebay_flight::serve::serve(listener, service, limits, async move { flight_stop.cancelled().await }));
        let (address, http) = (format!("grpc://{address}"), http.map(|h| format!("http://{h}")));
        Ok(RunningEngine { address, http, engine, owner: self.owner, stop, worker_stop, worker, flight, http_task, compute })
    }
}

/// Takes the root: its lock, its journal, and the lead.
async fn own(config: &EngineConfig, base: &Base, address: SocketAddr) -> Result<Owner> {
    let lock = LocalLock::acquire(&base.root).await?;
    // Where there is no lock, the journal's fence would let us in and the owner out.
    if lock.is_none()
        && let Found::Live(owner) = find_owner(&base.root).await?
    {
        return Err(Error::failed_precondition(format!("the root `{}` has an owner at {} already", base.root.url(), owner.address))
            .with_remedy("connect to it with --server, or stop it"));
    }
    let settings = DispatcherConfig { continue_runs: config.continue_runs, ..DispatcherConfig::new(address.to_string()) };
    Owner::lead(lock, base, settings).await
}

impl Owner {
    /// Opens the journal, which fences whoever led before, and begins to lead.
    pub(crate) async fn lead(mut lock: Option<LocalLock>, base: &Base, settings: DispatcherConfig) -> Result<Self> {
        let journal = Journal::open(&base.root).await?;
        // Two that took over at once: the later opening leads, and its lock has to be the one that newcomers find.
        if lock.as_ref().is_some_and(|lock| !lock.is_current()) {
            lock = LocalLock::take_over(&base.root).await?;
        }
        let secret = journal.secret(TicketKey::random_secret()).await?;
        let (dispatcher, task, record) = Dispatcher::start_with(journal, base.root.clone(), base.planner.clone(), settings).await?;
        if let Some(lock) = &mut lock {
            lock.announce(&record)?;
        }
        Ok(Self { dispatcher, task, secret, lock })
    }

    /// Ends the lead properly.
    ///
    /// # Errors
    /// What the dispatcher could not write.
    pub(crate) async fn end(self) -> Result<()> {
        self.dispatcher.shutdown().await;
        let ended = self.task.await.map_err(|e| Error::internal(format!("the dispatcher ended: {e}")))?;
        if let Some(lock) = self.lock {
            lock.release()?;
        }
        ended
    }
}

pub(crate) fn hostname() -> String {
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

    /// Ends in order, within five seconds: no new work, open streams, then the dispatcher, which writes what it knows, then the lock.
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
            let _ = tokio::time::timeout(TASKS, worker).await;
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
        owner.end().await
    }
}
