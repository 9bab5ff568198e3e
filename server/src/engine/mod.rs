//! One process's engine: a root, its journal and dispatcher where it owns the root, a worker, the Flight service and the HTTP port.
//!
//! Owns: what is started in which order, and what is stopped when. `serve` and every embedded command start the same engine; an embedded one
//! listens on a loopback port, so that other commands on the same root go through it.

pub(crate) mod admin;
pub(crate) mod base;
mod commits;
mod index;
mod jobs;
mod names;
mod overview;
mod planner;
mod prepare;
mod put;
mod query;
pub(crate) mod running;
mod runs;
mod stage;
mod system;
mod view;
mod views;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_core::dispatch::{State, Volatile};
use forebay_core::ids::WorkerName;
use forebay_core::{Error, Result};
use forebay_sql::catalog::{Catalog, QueryLimits};
use forebay_sql::python::PythonPool;
use forebay_storage::root::Root;
use forebay_storage::source::Allow;
use tokio::net::TcpListener;

pub(crate) use overview::overview;
pub(crate) use prepare::property;
pub use running::RunningEngine;
pub use view::View;

use crate::dispatcher::Dispatcher;
use crate::metrics::Metrics;
use crate::roles::Registry;
use crate::serve::{Reader, Serving};
use crate::worker::task::Runs;
use running::Parts;
use system::System;

/// Bytes of cached index bundles, unless a setting says otherwise.
const INDEX_CACHE: u64 = 4 << 30;

/// Settings of an engine: plain data, resolved from flags, environment and `forebay.toml`.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// URL or path of the root.
    pub root: String,
    /// Flight address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Console, metrics and health; none for embedded commands.
    pub http: Option<SocketAddr>,
    /// Every call must carry it; none leaves the port open to whoever reaches it.
    pub token: Option<String>,
    /// Start on a non-loopback address without a token.
    pub insecure: bool,
    /// Opens nothing for writing: no journal, no worker.
    pub read_only: bool,
    /// Go on by itself with runs that a dead owner left; embedded commands leave them to `--resume`.
    pub continue_runs: bool,
    /// Tasks that run at once; by default one per core.
    pub slots: usize,
    /// Bytes of cached windows.
    pub cache_bytes: u64,
    /// What queries may use.
    pub query: QueryLimits,
    /// Folder of cached index bundles; none: the user's cache folder, for a root that is no folder itself.
    pub cache_dir: Option<String>,
    /// Bytes of cached index bundles.
    pub index_cache_bytes: u64,
    /// URL prefixes that clients' pipelines may read; none: everything (embedded).
    pub sources_allow: Option<Vec<String>>,
    /// Whether clients' pipelines may bring Python.
    pub python_allow: bool,
    /// Interpreter of Python steps.
    pub python: Option<String>,
}

impl EngineConfig {
    /// The settings of an embedded command: loopback, a free port, everything allowed that its user may do anyway.
    pub fn embedded(root: impl Into<String>, read_only: bool) -> Self {
        Self {
            root: root.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            http: None,
            token: None,
            insecure: false,
            read_only,
            continue_runs: false,
            slots: std::thread::available_parallelism().map_or(2, usize::from),
            cache_bytes: 1 << 30,
            query: QueryLimits::default(),
            cache_dir: None,
            index_cache_bytes: INDEX_CACHE,
            sources_allow: None,
            python_allow: true,
            python: None,
        }
    }
}

/// What everything in the process shares.
pub struct Engine {
    config: EngineConfig,
    view: View,
    catalog: Catalog,
    system: Arc<System>,
    python: Arc<PythonPool>,
    allow: Allow,
    metrics: Metrics,
    worker: WorkerName,
    runs: Arc<Runs>,
    indexing: index::Indexing,
    puts: put::Puts,
    names: names::Names,
    staging: query::Staging,
    /// Workers of other processes, where this one leads some.
    registry: Option<Arc<Registry>>,
    reader: Arc<Reader>,
    /// None where this process only reads.
    serving: Option<Arc<Serving>>,
    /// Threads of the worker, for steps that run outside a task.
    compute: tokio::runtime::Handle,
    /// None where this process only reads.
    dispatcher: Option<Dispatcher>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("root", &self.view.root().url()).field("read_only", &self.config.read_only).finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub(crate) fn root(&self) -> &Root {
        self.view.root()
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn python(&self) -> &Arc<PythonPool> {
        &self.python
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn system(&self) -> &System {
        &self.system
    }

    pub(crate) fn allow(&self) -> &Allow {
        &self.allow
    }

    pub(crate) fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.registry.as_deref()
    }

    pub(crate) fn runs(&self) -> &Arc<Runs> {
        &self.runs
    }

    pub(crate) fn indexing(&self) -> &index::Indexing {
        &self.indexing
    }

    pub(crate) fn names(&self) -> &names::Names {
        &self.names
    }

    pub(crate) fn staging(&self) -> &query::Staging {
        &self.staging
    }

    /// The worker's threads.
    pub(crate) fn compute(&self) -> &tokio::runtime::Handle {
        &self.compute
    }

    pub(crate) fn serving(&self) -> Result<&Arc<Serving>> {
        self.serving.as_ref().ok_or_else(only_reads)
    }

    pub(crate) fn worker(&self) -> &WorkerName {
        &self.worker
    }

    /// The dispatcher, where this process owns the root.
    pub(crate) fn dispatcher(&self) -> Result<&Dispatcher> {
        self.dispatcher.as_ref().ok_or_else(only_reads)
    }

    /// The dispatcher's durable state, live or folded from the journal.
    pub(crate) async fn state(&self) -> Result<(Arc<State>, Volatile)> {
        self.system.state().await
    }

    /// Starts everything that one process runs. The port is bound before the root is touched, so that a port in use costs nothing.
    ///
    /// # Errors
    /// `BadInput` for an open port without a token, `FailedPrecondition` for a port in use or a root that has an owner.
    pub async fn start(config: EngineConfig) -> Result<RunningEngine> {
        check_open_port(&config)?;
        let listener = TcpListener::bind(config.listen).await.map_err(|e| {
            Error::failed_precondition(format!("can't listen on {}: {e}", config.listen))
                .with_remedy("choose another address with --listen")
        })?;
        let address = listener.local_addr().map_err(|e| Error::internal(format!("the port has no address: {e}")))?;
        let root = Root::open(&config.root, !config.read_only).await?;
        let compute = Compute::start(config.slots)?;
        let started = Parts::start(&config, root, address, &compute).await?;
        started.serve(config, listener, address, compute).await
    }
}

fn only_reads() -> Error {
    Error::failed_precondition("this process only reads the root").with_remedy("use a server, or a command that may write")
}

/// Beyond loopback, whoever reaches the port could read and write everything: that needs a token, or a plain word that it is meant.
pub(crate) fn check_open_port(config: &EngineConfig) -> Result<()> {
    let open = !config.listen.ip().is_loopback() || config.http.is_some_and(|http| !http.ip().is_loopback());
    if open && config.token.is_none() && !config.insecure {
        return Err(Error::bad_input(format!("{} is reachable from other hosts, and no token protects it", config.listen))
            .with_remedy("give --token (or FOREBAY_TOKEN), or say --insecure if everyone may read and write"));
    }
    Ok(())
}

/// Threads for steps, apart from those that answer calls: a decode that takes a second delays no heartbeat.
#[derive(Debug)]
pub(crate) struct Compute {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Compute {
    pub(crate) fn start(slots: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(slots.max(1))
            .thread_name("forebay-compute")
            .thread_stack_size(8 << 20)
            .enable_all()
            .build()
            .map_err(|e| Error::internal(format!("no threads could be started: {e}")))?;
        Ok(Self { runtime: Some(runtime) })
    }

    pub(crate) fn handle(&self) -> Result<&tokio::runtime::Handle> {
        self.runtime.as_ref().map(tokio::runtime::Runtime::handle).ok_or_else(|| Error::internal("the compute threads have stopped"))
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        // A runtime must not wait for its threads inside an async context.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
