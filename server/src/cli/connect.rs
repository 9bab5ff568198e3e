//! From `--server`, `--root` and their like to a client: of a server, of the root's owner, or of an engine started in this process.

use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Result};
use forebay_flight::client::Client;
use forebay_storage::owner::{Owner, find_owner};
use forebay_storage::root::Root;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::args::Connection;
use super::output::{Failure, Outcome};
use super::settings::query_limits;
use crate::config::{Config, Origin};
use crate::engine::{Engine, EngineConfig, RunningEngine};

/// What a command does to a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// The journal is never opened for writing, and a root that isn't there is an error.
    Read,
    /// The root has to be there.
    Change,
    Create,
}

/// How long a command waits for a server, or for the next leader: longer than a takeover.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often two embedded commands that start at once may race for a root.
const RACES: usize = 3;
/// For the loser of a race to see what became of it.
const RACE_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    Server(Vec<String>),
    Root(String),
}

/// A client, and the engine in this process that answers it if there is no other.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    engine: Option<RunningEngine>,
}

/// Where a command goes. A flag beats the environment, which beats the file, whichever of the two settings it gives.
pub(super) fn target(config: &Config) -> Result<Target> {
    let rank = |name: &str| config.origin(name).map(|origin| matches!(origin, Origin::File(_)) as u8 + (*origin != Origin::Flag) as u8);
    match (rank("server"), rank("root")) {
        (Some(server), Some(root)) if server == root => {
            Err(Error::bad_input("both a server and a root are set").with_remedy("give --server or --root"))
        }
        (Some(server), root) if root.is_none_or(|root| server < root) => Ok(Target::Server(config.texts("server").unwrap_or_default())),
        (_, Some(_)) => Ok(Target::Root(config.text("root").unwrap_or_default().to_owned())),
        _ => Err(Error::bad_input("no root and no server given")
            .with_remedy("give --root FOLDER to work embedded (FOREBAY_ROOT), or --server grpc://HOST:PORT (FOREBAY_SERVER)")),
    }
}

impl Session {
    pub(super) async fn open(config: &Config, access: Access) -> Result<Self> {
        let token = config.text("token").map(str::to_owned);
        match target(config)? {
            Target::Server(addresses) => Ok(Self { client: patiently(&addresses, token).await?, engine: None }),
            Target::Root(url) => Self::at_root(config, &url, access, token).await,
        }
    }

    async fn at_root(config: &Config, url: &str, access: Access, token: Option<String>) -> Result<Self> {
        let root = Root::open(url, access == Access::Create).await?;
        for race in 1..=RACES {
            if let Owner::Live(owner) = find_owner(&root).await? {
                match answering(&owner.address, token.clone()).await {
                    Ok(client) => return Ok(Self { client, engine: None }),
                    // It ended between the look and the call: its port still took the connection, or its lock is not free yet.
                    Err(e) if race < RACES && e.kind == Kind::Unavailable => {
                        tracing::debug!(error = %e, "the owner went away");
                        tokio::time::sleep(RACE_PAUSE).await;
                        continue;
                    }
                    Err(e) => return Err(e),
                }
            }
            match Engine::start(embedded(config, url, access)).await {
                Ok(engine) => {
                    let client = Client::connect(std::slice::from_ref(&engine.address), None).await?;
                    return Ok(Self { client, engine: Some(engine) });
                }
                // Another command became the owner between the look and the start.
                Err(e) if race < RACES && matches!(e.kind, Kind::Unavailable | Kind::FailedPrecondition) => {
                    tracing::debug!(error = %e, "lost the race for the root");
                }
                Err(e) => return Err(e),
            }
        }
        Err(Error::new(Kind::Unavailable, format!("the owner of `{url}` keeps changing")).with_remedy("try again"))
    }

    /// Other commands and trainers may have found this process as the root's owner: they go on until they are done, or somebody interrupts.
    pub(super) async fn outlast_others(&self) {
        let Some(engine) = &self.engine else { return };
        let mut interrupts = Interrupts::listen();
        let (begun, mut told) = (Instant::now(), false);
        while engine.is_in_use().await {
            // What this command itself did may take a moment to end.
            if !told && begun.elapsed() > Duration::from_secs(1) {
                use std::io::Write as _;
                told = true;
                let _ = writeln!(
                    std::io::stderr(),
                    "others use this root through this process, which ends when they are done; Ctrl-C ends it now"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
                () = interrupts.next() => return,
            }
        }
    }

    /// Stops the engine in this process, if there is one.
    pub(super) async fn finish(self) -> Result<()> {
        match self.engine {
            Some(engine) => engine.shutdown().await,
            None => Ok(()),
        }
    }
}

/// A server may be about to start, and a standby about to lead.
async fn patiently(addresses: &[String], token: Option<String>) -> Result<Client> {
    let connecting = Client::connect_within(addresses, token, PATIENCE);
    tokio::pin!(connecting);
    tokio::select! {
        client = &mut connecting => return client,
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "waiting for a server at {}; Ctrl-C ends it", addresses.join(", "));
    }
    connecting.await
}

/// A client whose server answers calls: a connection alone may be one that the kernel of a killed process took.
async fn answering(address: &str, token: Option<String>) -> Result<Client> {
    let client = Client::connect(&[address.to_owned()], token).await?;
    client.datasets().await?;
    Ok(client)
}

fn embedded(config: &Config, url: &str, access: Access) -> EngineConfig {
    let mut engine = EngineConfig::embedded(url, access == Access::Read);
    engine.slots = config.number("slots").and_then(|n| usize::try_from(n).ok()).unwrap_or(engine.slots);
    engine.cache_bytes = config.number("cache_limit").unwrap_or(engine.cache_bytes);
    engine.query = query_limits(config);
    engine.cache_dir = config.text("cache_dir").map(str::to_owned);
    engine.index_cache_bytes = config.number("index_cache_limit").unwrap_or(engine.index_cache_bytes);
    engine.python = config.text("python.interpreter").map(str::to_owned);
    engine
}

/// Runs a command's body with a client; Ctrl-C drops the body. However it ends, the engine in this process is stopped properly.
pub(super) async fn with<T>(connection: &Connection, access: Access, body: impl AsyncFnOnce(&Client) -> Outcome<T>) -> Outcome<T> {
    with_interrupt(connection, access, async |client| {
        tokio::select! {
            result = body(client) => result,
            () = interrupted() => Err(cancelled()),
        }
    })
    .await
}

/// The same for a body that sees to Ctrl-C itself.
pub(super) async fn with_interrupt<T>(
    connection: &Connection,
    access: Access,
    body: impl AsyncFnOnce(&Client) -> Outcome<T>,
) -> Outcome<T> {
    let config = connection.settings(Vec::new())?;
    let session = tokio::select! {
        // Boxed: starting an engine is a large future, and every command would carry it.
        session = Box::pin(Session::open(&config, access)) => session?,
        () = interrupted() => return Err(cancelled()),
    };
    let result = Box::pin(body(&session.client)).await;
    if result.is_ok() {
        session.outlast_others().await;
    }
    let finished = Box::pin(session.finish()).await;
    let value = result?;
    finished?;
    Ok(value)
}

fn cancelled() -> Failure {
    Error::new(Kind::Cancelled, "interrupted").into()
}

/// Ctrl-C or a polite request to end.
pub(super) async fn interrupted() {
    Interrupts::listen().next().await;
}

/// Listens for Ctrl-C and SIGTERM from its making on: one that comes while nobody waits is not lost.
pub(super) struct Interrupts {
    signals: Vec<Signal>,
}

impl Interrupts {
    pub(super) fn listen() -> Self {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
        Self { signals: kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect() }
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        if self.signals.is_empty() {
            return std::future::pending().await;
        }
        let each = self.signals.iter_mut().map(|signal| Box::pin(signal.recv()));
        futures::future::select_all(each).await;
    }
}
