//! `forebay worker`: registers, runs tasks, serves rows.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::ids::WorkerName;
use forebay_core::{Error, Kind, Result};
use forebay_flight::control::Registered;
use forebay_flight::peer::{Guarded, PeerService};
use forebay_flight::serve::{Limits, serve_door};
use forebay_flight::service::{Door, Flight, ServiceConfig};
use forebay_flight::ticket::TicketKey;
use forebay_storage::root::Root;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::backend::WorkerBackend;
use super::link::WorkerLink;
use super::peers::Workers;
use super::session::{Introduction, Session};
use super::{DRAIN, bind};
use crate::backend::EngineBackend;
use crate::dispatcher::Dispatcher;
use crate::engine::base::{Base, Part};
use crate::engine::running::hostname;
use crate::engine::{Compute, EngineConfig, check_open_port};
use crate::http::Overview;
use crate::metrics::Metrics;
use crate::worker::Worker;

/// How often a draining worker looks whether it is done.
const LOOK: Duration = Duration::from_millis(200);
/// How long the dispatcher may take to hear that the worker goes.
const WORD: Duration = Duration::from_millis(500);
/// Tasks that are given up at shutdown have this long to say so.
const TASKS: Duration = Duration::from_secs(1);

/// Settings of a worker process: plain data.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Its `root` is the dispatcher's unless it is given.
    pub engine: EngineConfig,
    /// Where dispatchers may be.
    pub dispatchers: Vec<String>,
    /// As others reach this process; the bound address unless given.
    pub advertise: Option<String>,
    /// Made of the host and the process unless given.
    pub name: Option<String>,
    /// The root as this host reaches it, where that differs from the dispatcher's word for it.
    pub root: Option<String>,
}

/// A worker process. Call [`WorkerRole::shutdown`].
pub struct WorkerRole {
    /// `grpc://HOST:PORT`
    pub address: String,
    /// `http://HOST:PORT`
    pub http: Option<String>,
    pub name: String,
    link: Arc<WorkerLink>,
    stop: CancellationToken,
    worker_stop: CancellationToken,
    session_stop: CancellationToken,
    life: JoinHandle<Result<()>>,
    session: JoinHandle<Result<()>>,
    flight: JoinHandle<Result<()>>,
    http_task: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for WorkerRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerRole").field("name", &self.name).field("address", &self.address).finish_non_exhaustive()
    }
}

struct Pages(Arc<WorkerLink>);

#[async_trait]
impl Overview for Pages {
    async fn ready(&self) -> Result<()> {
        match self.0.leader_address() {
            Some(_) => Ok(()),
            None => Err(unregistered()),
        }
    }

    async fn overview(&self) -> Result<Value> {
        let (beat, draining) = (self.0.beat(), self.0.is_draining());
        Ok(json!({ "role": "worker", "worker": self.0.worker(), "dispatcher": self.0.leader_address(), "draining": draining,
            "tasks": beat.tasks.len(), "streams": beat.streams.len(), "datasets": [], "jobs": [] }))
    }
}

fn unregistered() -> Error {
    Error::new(Kind::Unavailable, "this worker is not registered with a dispatcher at the moment").with_remedy("ask the dispatcher")
}

impl WorkerRole {
    /// Binds the port and looks for its dispatcher; it works as soon as there is one.
    ///
    /// # Errors
    /// `BadInput` for an open port without a token or an address that is none, `FailedPrecondition` for a port in use.
    pub async fn start(settings: WorkerSettings) -> Result<Self> {
        let config = &settings.engine;
        check_open_port(config)?;
        let (listener, address) = bind(config.listen, settings.advertise.as_deref()).await?;
        let name = settings.name.clone().unwrap_or_else(|| format!("{}-{}", hostname(), std::process::id()));
        let link = WorkerLink::new(WorkerName(name.clone()), uuid::Uuid::new_v4().simple().to_string());
        let metrics = Metrics::new().map_err(|e| Error::internal(format!("metrics: {e}")))?;
        let [stop, worker_stop, session_stop] = std::array::from_fn(|_| CancellationToken::new());
        let (http, http_task) = match config.http {
            None => (None, None),
            Some(http) => {
                let pages = Arc::new(Pages(link.clone()));
                let (bound, task) = crate::http::serve(http, metrics.clone(), pages, config.token.clone(), stop.clone()).await?;
                (Some(format!("http://{bound}")), Some(task))
            }
        };
        let door = Door::closed(unregistered(), None);
        let (closing, limits) = (stop.clone(), Limits { drain: DRAIN, ..Limits::default() });
        let flight = tokio::spawn(serve_door(listener, door.clone(), limits, async move { closing.cancelled().await }));
        let registered = watch::Sender::new(None);
        let slots = u32::try_from(config.slots).unwrap_or(u32::MAX);
        let me = Introduction { dispatchers: settings.dispatchers.clone(), token: config.token.clone(), address: address.clone(), slots };
        let life = Life {
            settings: settings.clone(),
            link: link.clone(),
            registered: registered.subscribe(),
            metrics,
            door,
            address: address.clone(),
        };
        let session = tokio::spawn(Session { link: link.clone(), me, registered }.run(session_stop.clone()));
        let life = tokio::spawn(life.run(worker_stop.clone()));
        let address = format!("grpc://{address}");
        Ok(Self { address, http, name, link, stop, worker_stop, session_stop, life, session, flight, http_task })
    }

    /// Waits until the process has nothing more to do: `Ok` after a drain, the reason where it can't go on.
    ///
    /// # Errors
    /// Why it can't go on.
    pub async fn ended(&mut self) -> Result<()> {
        let ended = tokio::select! {
            ended = &mut self.life => ended,
            ended = &mut self.session => ended,
            ended = &mut self.flight => ended.map(|r| r.and(Err(Error::new(Kind::Unavailable, "the Flight port closed")))),
        };
        ended.map_err(|e| Error::internal(format!("the worker ended: {e}")))?
    }

    /// Ends within five seconds: nothing new, streams end with `drain` where their consumers listen, tasks are given back, and the dispatcher
    /// hears that the worker is gone.
    pub async fn shutdown(mut self) {
        self.link.drain(WORD).await;
        self.worker_stop.cancel();
        self.stop.cancel();
        if !self.flight.is_finished() {
            let _ = tokio::time::timeout(DRAIN, &mut self.flight).await;
        }
        if !self.life.is_finished() {
            let _ = tokio::time::timeout(TASKS, &mut self.life).await;
        }
        self.link.leave(WORD).await;
        self.session_stop.cancel();
        if let Some(task) = self.http_task.take() {
            task.abort();
        }
    }
}

/// The work, from the first registration on.
struct Life {
    settings: WorkerSettings,
    link: Arc<WorkerLink>,
    registered: watch::Receiver<Option<Registered>>,
    metrics: Metrics,
    door: Door,
    /// Where others reach this worker.
    address: String,
}

impl Life {
    /// Ends with `stop`, or when a drain has nothing left to wait for.
    async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let registered = tokio::select! {
            registered = self.registered.wait_for(Option::is_some) => registered.ok().and_then(|r| r.clone()),
            () = stop.cancelled() => return Ok(()),
        };
        // The session ended first, and says why.
        let Some(registered) = registered else { return std::future::pending().await };
        let url = self.settings.root.clone().unwrap_or_else(|| registered.root.clone());
        let root = Root::open(&url, false).await.map_err(|e| {
            e.context(format!("the root of the dispatcher, `{url}`, can't be opened here"))
                .with_remedy("mount or reach it on this host too, and give --root where it has another name here")
        })?;
        let mut config = self.settings.engine.clone();
        config.root = url;
        let compute = Compute::start(config.slots)?;
        let dispatcher = Dispatcher::remote(self.link.clone());
        let base = Base::following(&config, root, self.metrics.clone());
        let engine = Arc::new(base.engine(&config, &compute, self.link.worker().clone(), Some(dispatcher.clone()), Part::Working)?);
        let backend = WorkerBackend { engine: EngineBackend(engine.clone()), dispatchers: self.settings.dispatchers.clone() };
        let key = TicketKey::derive(&registered.secret);
        let peers = Workers::of_worker(self.link.clone(), &self.address, key.clone())?;
        let parts = Guarded::new(PeerService::new(engine.catalog().use_peers(peers)?), key.clone());
        self.door.open(Flight::new(Arc::new(backend), ServiceConfig::new(key, config.token.clone())), None, Some(parts));
        let worker = Worker::new(
            self.link.worker().clone(),
            engine.root().clone(),
            dispatcher,
            engine.python().clone(),
            self.metrics.clone(),
            engine.runs().clone(),
        );
        let mut working = compute.handle()?.spawn(worker.run(config.slots, stop.clone()));
        tokio::select! {
            ended = &mut working => return ended.map_err(|e| Error::internal(format!("the worker ended: {e}"))),
            () = drained(&self.link) => tracing::info!("drained: nothing is left to do here"),
        }
        stop.cancel();
        // It takes nothing any more; what it holds was looked at above.
        let _ = tokio::time::timeout(TASKS, working).await;
        Ok(())
    }
}

/// Waits until the worker was asked to drain and holds nothing, at two looks in a row: a task may be on its way between them.
async fn drained(link: &WorkerLink) {
    let mut idle = 0;
    while idle < 2 {
        tokio::time::sleep(LOOK).await;
        idle = if link.is_draining() && link.is_idle() { idle + 1 } else { 0 };
    }
}
