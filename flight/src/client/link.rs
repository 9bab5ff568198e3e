//! The connection under a client: which server answers now, and how another one is found.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_flight::Empty;
use arrow_flight::flight_service_client::FlightServiceClient;
use forebay_core::{Error, Kind, Result};
use parking_lot::{Mutex, RwLock};
use std::error::Error as _;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::{bearer, endpoint, failed, root_cause};
use crate::status::{is_elsewhere, leader_of};

/// The generated client.
pub(super) type Service = FlightServiceClient<Channel>;

/// How long one address may take to say that it leads: a process that stands still accepts connections too.
const PROBE: Duration = Duration::from_secs(3);
/// Pause between two rounds over the addresses.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone)]
struct Connection {
    service: Service,
    address: Arc<str>,
}

/// What the clones of a client share.
#[derive(Debug)]
pub(super) struct Link {
    addresses: Vec<String>,
    token: Option<MetadataValue<Ascii>>,
    patience: Duration,
    current: RwLock<Connection>,
    /// Links to places that endpoints named.
    places: Mutex<BTreeMap<String, Arc<Link>>>,
}

fn service(channel: Channel) -> Service {
    FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
}

fn with_token<T>(token: Option<&MetadataValue<Ascii>>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", token.clone());
    }
    request
}

impl Link {
    pub(super) async fn connect(addresses: &[String], token: Option<String>, patience: Duration) -> Result<Self> {
        let token = token.map(|token| bearer(&token)).transpose()?;
        if addresses.is_empty() {
            return Err(Error::bad_input("no server address").with_remedy("give --server grpc://host:port"));
        }
        for address in addresses {
            endpoint(address)?;
        }
        let current = RwLock::new(find(addresses, token.as_ref(), None, Instant::now() + patience).await?);
        Ok(Self { addresses: addresses.to_vec(), token, patience, current, places: Mutex::default() })
    }

    pub(super) async fn another(&self) -> Result<Self> {
        let hint = Some(self.address().to_string());
        let current = RwLock::new(find(&self.addresses, self.token.as_ref(), hint, Instant::now() + self.patience).await?);
        Ok(Self {
            addresses: self.addresses.clone(),
            token: self.token.clone(),
            patience: self.patience,
            current,
            places: Mutex::default(),
        })
    }

    /// A link to one place, which is asked once: who gets no answer asks the leader for another place.
    pub(super) fn place(&self, location: &str) -> Result<Arc<Self>> {
        let mut places = self.places.lock();
        if let Some(known) = places.get(location) {
            return Ok(Arc::clone(known));
        }
        let connection = Connection { service: service(endpoint(location)?.connect_lazy()), address: Arc::from(location) };
        let link = Arc::new(Self {
            addresses: vec![location.to_owned()],
            token: self.token.clone(),
            patience: Duration::ZERO,
            current: RwLock::new(connection),
            places: Mutex::default(),
        });
        places.insert(location.to_owned(), Arc::clone(&link));
        Ok(link)
    }

    pub(super) fn address(&self) -> Arc<str> {
        Arc::clone(&self.current.read().address)
    }

    /// The server of this moment, for streams, which are not repeated.
    pub(super) fn service(&self) -> Service {
        self.current.read().service.clone()
    }

    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        with_token(self.token.as_ref(), message)
    }

    /// A call that may be made again, by whoever leads by then. Gives the answer and the address that gave it.
    ///
    /// # Errors
    /// The server's, or `Unavailable` when nobody led for as long as the link is patient.
    pub(super) async fn call<M: Clone, T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        message: &M,
        call: impl Fn(Service, Request<M>) -> F,
    ) -> Result<(T, Arc<str>)> {
        let end = Instant::now() + self.patience;
        loop {
            let connection = self.current.read().clone();
            match call(connection.service.clone(), self.request(message.clone())).await {
                Ok(answer) => return Ok((answer.into_inner(), connection.address)),
                Err(status)
                    if (is_elsewhere(&status) || status.code() == Code::Unavailable || status.source().is_some())
                        && Instant::now() < end =>
                {
                    let found = find(&self.addresses, self.token.as_ref(), leader_of(&status), end).await?;
                    *self.current.write() = found;
                }
                Err(status) => return Err(failed(&connection.address, &status)),
            }
        }
    }
}

/// What one address said.
enum Found {
    Leader(Connection),
    /// Somebody else leads, perhaps this one.
    Elsewhere(Option<String>, String),
}

/// Looks for the leader among the addresses, and where standbys point to, until `end`; at least once.
async fn find(addresses: &[String], token: Option<&MetadataValue<Ascii>>, mut hint: Option<String>, end: Instant) -> Result<Connection> {
    loop {
        let mut reasons = Vec::new();
        let mut asked: Vec<String> = Vec::new();
        let mut todo: Vec<String> = addresses.iter().rev().cloned().collect();
        loop {
            // Where a standby points to comes first, once per round.
            let address = match hint.take() {
                Some(named) if !asked.contains(&named) => named,
                _ => match todo.pop() {
                    Some(next) if asked.contains(&next) => continue,
                    Some(next) => next,
                    None => break,
                },
            };
            match probe(&address, token).await {
                Found::Leader(connection) => return Ok(connection),
                Found::Elsewhere(leader, why) => {
                    reasons.push(format!("{address}: {why}"));
                    hint = leader;
                }
            }
            asked.push(address);
        }
        if Instant::now() >= end {
            return Err(Error::new(Kind::Unavailable, format!("no server answers at {}", reasons.join("; ")))
                .with_remedy("start one with `forebay serve` or `forebay dispatcher`, or check --server"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn probe(address: &str, token: Option<&MetadataValue<Ascii>>) -> Found {
    let nobody = |why: String| Found::Elsewhere(None, why);
    let endpoint = match endpoint(address) {
        Ok(endpoint) => endpoint,
        // A standby named what is no address.
        Err(error) => return nobody(error.to_string()),
    };
    let asked = tokio::time::timeout(PROBE, async {
        let connected = endpoint.connect().await.map_err(|e| root_cause(&e))?;
        let service = service(connected);
        let answer = service.clone().list_actions(with_token(token, Empty {})).await.map(|_| ());
        Ok::<_, String>((Connection { service, address: Arc::from(address) }, answer))
    });
    match asked.await {
        Err(_) => nobody(format!("no answer within {} s", PROBE.as_secs())),
        Ok(Err(why)) => nobody(why),
        Ok(Ok((_, Err(status)))) if is_elsewhere(&status) => Found::Elsewhere(leader_of(&status), status.message().to_owned()),
        Ok(Ok((_, Err(status)))) if status.source().is_some() => nobody(failed(address, &status).message),
        // Whatever else it says, a missing token for one, it says again to the call itself.
        Ok(Ok((connection, _))) => Found::Leader(connection),
    }
}
