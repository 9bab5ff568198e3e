//! Finds the leader, registers, and keeps the worker's lease alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Result};
use forebay_flight::control::{Answer, Ask, ControlClient, Missed, Registered, WorkerAddress};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::link::{Connected, WorkerLink};

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(2);
/// How long a leader may take to answer one: one that stands still accepts connections too.
const ANSWER: Duration = Duration::from_secs(4);
/// How long one address may take to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// Pause between two rounds over the addresses.
const PAUSE: Duration = Duration::from_millis(250);
/// Least time between two heartbeats that doubts cause.
const AGAIN: Duration = Duration::from_millis(100);

/// What a worker says of itself when it registers.
#[derive(Debug, Clone)]
pub(super) struct Introduction {
    /// Where dispatchers may be.
    pub(super) dispatchers: Vec<String>,
    pub(super) token: Option<String>,
    /// Where this worker is reached.
    pub(super) address: String,
    pub(super) slots: u32,
}

/// The session of one worker.
pub(super) struct Session {
    pub(super) link: Arc<WorkerLink>,
    pub(super) me: Introduction,
    /// What the first leader said; all later ones lead the same root.
    pub(super) registered: watch::Sender<Option<Registered>>,
}

/// Why a leader is left.
enum Parting {
    /// Look for another, this one first if it was named.
    Elsewhere(Option<String>),
    /// It refuses this worker for good.
    Refused(Error),
}

impl Session {
    /// Runs until `stop`, or until a leader refuses the worker for good.
    ///
    /// # Errors
    /// The refusal: another process took the worker's name, the token is wrong, the root is another one.
    pub(super) async fn run(self, stop: CancellationToken) -> Result<()> {
        tokio::select! {
            refused = self.forever() => Err(refused),
            () = stop.cancelled() => Ok(()),
        }
    }

    async fn forever(&self) -> Error {
        let mut hint = None;
        loop {
            let (client, registered, sent) = match self.find(hint.take()).await {
                Ok(found) => found,
                Err(refused) => return refused,
            };
            if let Err(refused) = self.accept(&registered) {
                return refused;
            }
            let term = Duration::from_millis(registered.term_ms);
            tracing::info!(worker = %self.link.worker(), dispatcher = client.address(), "registered");
            self.link.renew(sent, term);
            self.link.lead(Some(Connected { client: client.clone(), gone: CancellationToken::new() }));
            let parting = self.beat(&client, term).await;
            self.link.lead(None);
            match parting {
                Parting::Elsewhere(leader) => hint = leader,
                Parting::Refused(error) => return error,
            }
        }
    }

    /// The root and its secret stay what they were.
    fn accept(&self, new: &Registered) -> Result<()> {
        let first = self.registered.borrow().as_ref().map(|r| (r.root.clone(), r.secret == new.secret));
        match first {
            None => {
                self.registered.send_replace(Some(new.clone()));
                Ok(())
            }
            Some((root, true)) if root == new.root => Ok(()),
            Some((root, _)) => Err(Error::failed_precondition(format!(
                "a dispatcher leads `{}` and not `{root}`, for which this worker started",
                new.root
            ))
            .with_remedy("name dispatchers of one root with --dispatcher")),
        }
    }

    /// Heartbeats until something is wrong with the leader.
    async fn beat(&self, client: &ControlClient, term: Duration) -> Parting {
        loop {
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                () = self.link.doubted() => tokio::time::sleep(AGAIN).await,
            }
            // The lease counts from here: the dispatcher's begins later.
            let sent = Instant::now();
            let message = self.link.message(Ask::Beat(self.link.beat()));
            match tokio::time::timeout(ANSWER, client.call(&message)).await {
                Ok(Ok(Answer::Told(told))) => {
                    self.link.renew(sent, term);
                    self.link.told(told);
                }
                // It forgot this worker, as a new leader at the same address does: register again, there first.
                Ok(Ok(_)) => return Parting::Elsewhere(Some(client.address().to_owned())),
                Ok(Err(Missed::Elsewhere { leader, error })) => {
                    tracing::warn!(%error, "looking for another dispatcher");
                    return Parting::Elsewhere(leader);
                }
                Ok(Err(Missed::Refused(error))) if error.kind == Kind::Internal => {
                    tracing::warn!(%error, "a heartbeat failed");
                }
                Ok(Err(Missed::Refused(error))) => return Parting::Refused(error),
                Err(_) => {
                    tracing::warn!(dispatcher = client.address(), "no answer to a heartbeat: looking for another dispatcher");
                    return Parting::Elsewhere(None);
                }
            }
        }
    }

    /// Registers with the first address that leads, over and over.
    async fn find(&self, mut hint: Option<String>) -> Result<(ControlClient, Registered, Instant)> {
        let mut warned = false;
        loop {
            let mut reasons = Vec::new();
            let mut todo: Vec<String> = self.me.dispatchers.iter().rev().cloned().collect();
            let mut asked: Vec<String> = Vec::new();
            loop {
                let address = match hint.take() {
                    Some(named) if !asked.contains(&named) => named,
                    _ => match todo.pop() {
                        Some(next) if asked.contains(&next) => continue,
                        Some(next) => next,
                        None => break,
                    },
                };
                match self.register(&address).await {
                    Ok(found) => return Ok(found),
                    Err(Missed::Refused(error)) => return Err(error),
                    Err(Missed::Elsewhere { leader, error }) => {
                        hint = leader;
                        reasons.push(error.message);
                    }
                }
                asked.push(address);
            }
            if !warned {
                tracing::warn!("no dispatcher leads yet, waiting: {}", reasons.join("; "));
                warned = true;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn register(&self, address: &str) -> Result<(ControlClient, Registered, Instant), Missed> {
        let elsewhere = |error: Error| match error.kind {
            Kind::BadInput => Missed::Refused(error),
            _ => Missed::Elsewhere { leader: None, error },
        };
        let client = ControlClient::connect(address, self.me.token.as_deref(), CONNECT).await.map_err(elsewhere)?;
        let me = WorkerAddress { address: self.me.address.clone(), slots: self.me.slots, draining: self.link.is_draining() };
        let (sent, message) = (Instant::now(), self.link.message(Ask::Register(me)));
        let silent = |_| {
            let error = Error::new(Kind::Unavailable, format!("the dispatcher at {address} does not answer"));
            Missed::Elsewhere { leader: None, error }
        };
        match tokio::time::timeout(ANSWER, client.call(&message)).await.map_err(silent)?? {
            Answer::Registered(registered) => Ok((client, registered, sent)),
            other => Err(Missed::Refused(Error::internal(format!("the dispatcher answered something else: {other:?}")))),
        }
    }
}
