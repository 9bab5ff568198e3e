//! `forebay dispatcher`: a standby, the leader, and a standby again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::ids::WorkerName;
use forebay_core::{Error, Kind, Result};
use forebay_flight::auth::Gate;
use forebay_flight::control::ControlService;
use forebay_flight::serve::{Limits, serve_door};
use forebay_flight::service::{Door, Flight, ServiceConfig};
use forebay_flight::ticket::TicketKey;
use forebay_storage::owner::{LocalLock, Sight, Standby};
use forebay_storage::root::Root;
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::backend::LeaderBackend;
use super::control::LeaderControl;
use super::peers::Workers;
use super::registry::Registry;
use super::{DRAIN, bind};
use crate::backend::EngineBackend;
use crate::dispatcher::DispatcherConfig;
use crate::engine::base::{Base, Part};
use crate::engine::running::Owner;
use crate::engine::{Compute, Engine, EngineConfig, check_open_port};
use crate::http::Overview;
use crate::metrics::Metrics;

/// How often a standby looks at the leader's heartbeat.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a lead that could not begin.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest lease: a takeover has to fit into it.
const SHORTEST: Duration = Duration::from_secs(15);

/// Settings of a dispatcher process: plain data.
#[derive(Debug, Clone)]
pub struct DispatcherSettings {
    pub engine: EngineConfig,
    /// As others reach this process; the bound address unless given.
    pub advertise: Option<String>,
    /// Length of every lease.
    pub term: Duration,
}

/// A dispatcher process. Call [`DispatcherRole::shutdown`].
pub struct DispatcherRole {
    /// `grpc://HOST:PORT`
    pub address: String,
    /// `http://HOST:PORT`
    pub http: Option<String>,
    stop: CancellationToken,
    life: JoinHandle<Result<()>>,
    flight: JoinHandle<Result<()>>,
    http_task: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for DispatcherRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatcherRole").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What the process is at the moment, for its HTTP port.
#[derive(Default)]
struct Now(RwLock<Phase>);

#[derive(Clone, Default)]
enum Phase {
    #[default]
    Starting,
    Standby(Option<String>),
    Leading(Arc<Engine>),
}

#[async_trait]
impl Overview for Now {
    async fn ready(&self) -> Result<()> {
        let phase = self.0.read().clone();
        match phase {
            Phase::Leading(engine) => engine.state().await.map(|_| ()),
            Phase::Standby(leader) => Err(standby(leader.as_deref())),
            Phase::Starting => Err(standby(None)),
        }
    }

    async fn overview(&self) -> Result<Value> {
        let phase = self.0.read().clone();
        match phase {
            Phase::Leading(engine) => {
                let workers = engine.workers(Default::default()).await?;
                let mut all = crate::engine::overview(&engine).await?;
                if let Some(all) = all.as_object_mut() {
                    all.insert("role".to_owned(), json!("leader"));
                    all.insert("workers".to_owned(), workers);
                }
                Ok(all)
            }
            Phase::Standby(leader) => Ok(json!({ "role": "standby", "leader": leader, "datasets": [], "jobs": [] })),
            Phase::Starting => Ok(json!({ "role": "standby", "leader": null, "datasets": [], "jobs": [] })),
        }
    }
}

/// What a standby answers.
fn standby(leader: Option<&str>) -> Error {
    let error = Error::new(
        Kind::Unavailable,
        match leader {
            Some(leader) => format!("this dispatcher is a standby; the leader is {leader}"),
            None => "this dispatcher is a standby; no leader is known at the moment".to_owned(),
        },
    );
    error.with_remedy("name all dispatchers, separated by commas: clients and workers find the leader among them")
}

impl DispatcherRole {
    /// Binds the port and begins as a standby; it leads as soon as nobody else does.
    ///
    /// # Errors
    /// `BadInput` for an open port without a token, a lease that is too short or a root that is none, `FailedPrecondition` for a port in use.
    pub async fn start(settings: DispatcherSettings) -> Result<Self> {
        let config = &settings.engine;
        check_open_port(config)?;
        if settings.term < SHORTEST {
            return Err(Error::bad_input(format!("--lease: {:?} is shorter than a change of leader may take", settings.term))
                .with_remedy("give at least 15s"));
        }
        let (listener, address) = bind(config.listen, settings.advertise.as_deref()).await?;
        let root = Root::open(&config.root, true).await?;
        let metrics = Metrics::new().map_err(|e| Error::internal(format!("metrics: {e}")))?;
        let (stop, now) = (CancellationToken::new(), Arc::new(Now::default()));
        let door = Door::closed(standby(None), None);
        let (http, http_task) = match config.http {
            None => (None, None),
            Some(http) => {
                let (bound, task) = crate::http::serve(http, metrics.clone(), now.clone(), config.token.clone(), stop.clone()).await?;
                (Some(format!("http://{bound}")), Some(task))
            }
        };
        let (closing, limits) = (stop.clone(), Limits { drain: DRAIN, ..Limits::default() });
        let flight = tokio::spawn(serve_door(listener, door.clone(), limits, async move { closing.cancelled().await }));
        let life = Life { compute: Compute::start(config.slots)?, root, address: address.clone(), metrics, door, now, settings };
        let life = tokio::spawn(life.run(stop.clone()));
        Ok(Self { address: format!("grpc://{address}"), http, stop, life, flight, http_task })
    }

    /// Waits until the process can't go on.
    pub async fn failed(&mut self) -> Error {
        let ended = tokio::select! {
            ended = &mut self.life => ended,
            ended = &mut self.flight => ended,
        };
        match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::new(Kind::Unavailable, "the dispatcher ended"),
            Err(e) => Error::internal(format!("the dispatcher ended: {e}")),
        }
    }

    /// Ends within five seconds: streams of progress first, then the lead, so that a standby takes it at once.
    ///
    /// # Errors
    /// What could not be written.
    pub async fn shutdown(mut self) -> Result<()> {
        self.stop.cancel();
        if !self.flight.is_finished() {
            let _ = tokio::time::timeout(DRAIN + Duration::from_secs(1), &mut self.flight).await;
        }
        if let Some(task) = self.http_task.take() {
            task.abort();
        }
        if self.life.is_finished() {
            return Ok(());
        }
        match tokio::time::timeout(DRAIN, self.life).await {
            Ok(ended) => ended.map_err(|e| Error::internal(format!("the dispatcher ended: {e}")))?,
            Err(_) => Err(Error::internal("the dispatcher did not end in time")),
        }
    }
}

/// The process from start to end.
struct Life {
    settings: DispatcherSettings,
    root: Root,
    address: String,
    metrics: Metrics,
    compute: Compute,
    door: Door,
    now: Arc<Now>,
}

impl Life {
    async fn run(self, stop: CancellationToken) -> Result<()> {
        loop {
            let lock = tokio::select! {
                lock = self.wait() => lock,
                () = stop.cancelled() => return Ok(()),
            };
            match self.lead(lock, &stop).await {
                Ok(()) => return Ok(()),
                // Another process opened the journal: what this one had not made durable was told to nobody.
                Err(error) => tracing::warn!(%error, "this dispatcher does not lead any more, and stands by"),
            }
            self.stand_by(None);
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    fn stand_by(&self, leader: Option<String>) {
        // Its own old heartbeat is no leader to send anybody to.
        let leader = leader.filter(|l| *l != self.address).map(|l| format!("grpc://{l}"));
        self.metrics.leading.set(0);
        self.door.close(standby(leader.as_deref()), leader.clone());
        *self.now.0.write() = Phase::Standby(leader);
    }

    /// Stands by until the lead is free.
    async fn wait(&self) -> Option<LocalLock> {
        let mut view = Standby::new(self.root.clone());
        let mut told: Option<Option<String>> = None;
        loop {
            match view.look().await {
                Ok(Sight::Free(lock)) => return lock,
                Ok(Sight::Led(record)) => {
                    let leader = record.map(|r| bare(&r.address).to_owned());
                    if told.as_ref() != Some(&leader) {
                        tracing::info!(leader = leader.as_deref().unwrap_or("unknown"), "standing by");
                        self.stand_by(leader.clone());
                        told = Some(leader);
                    }
                }
                Err(error) => tracing::warn!(%error, "the leader's heartbeat could not be read"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Leads until `stop`, or until another process does.
    async fn lead(&self, lock: Option<LocalLock>, stop: &CancellationToken) -> Result<()> {
        let config = &self.settings.engine;
        let base = Base::new(config, self.root.clone(), self.metrics.clone());
        let dispatcher = DispatcherConfig {
            term: self.settings.term,
            workers_died: false,
            continue_runs: true,
            ..DispatcherConfig::new(self.address.clone())
        };
        let mut owner = Owner::lead(lock, &base, dispatcher).await?;
        let registry = Arc::new(Registry::new(self.settings.term));
        let part = Part::Leading(registry.clone());
        let engine = base.engine(config, &self.compute, WorkerName("dispatcher".to_owned()), Some(owner.dispatcher.clone()), part)?;
        let engine = Arc::new(engine);
        let key = TicketKey::derive(&owner.secret);
        // A leader takes no parts itself, so nothing of this is put on its port.
        engine.catalog().use_peers(Workers::of_leader(registry.clone(), key.clone()))?;
        let backend = LeaderBackend { engine: EngineBackend(engine.clone()), registry: registry.clone() };
        let flight = Flight::new(Arc::new(backend), ServiceConfig::new(key.clone(), config.token.clone()));
        let control = LeaderControl::new(&owner.dispatcher, registry, self.root.url().to_owned(), owner.secret);
        let control = ControlService::new(Arc::new(control), Gate::new(config.token.as_deref(), key));
        self.door.open(flight, Some(control), None);
        *self.now.0.write() = Phase::Leading(engine);
        self.metrics.leading.set(1);
        tracing::info!(address = %self.address, "this dispatcher leads");
        tokio::select! {
            ended = &mut owner.task => match ended {
                Ok(Err(error)) => Err(error),
                Ok(Ok(())) => Err(Error::internal("the lead ended without a reason")),
                Err(e) => Err(Error::internal(format!("the lead ended: {e}"))),
            },
            () = stop.cancelled() => {
                // Streams of progress end by themselves or with the port; the workers find the next leader.
                self.door.close(standby(None), None);
                owner.end().await
            }
        }
    }
}

/// `host:port` of an address with or without a scheme.
fn bare(address: &str) -> &str {
    address.split_once("://").map_or(address, |(_, rest)| rest).trim_end_matches('/')
}
