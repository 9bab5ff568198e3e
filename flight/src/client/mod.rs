//! The client: typed calls for everything that commands and tools need.
//!
//! Errors are the server's own; one that could not be reached is `Unavailable` and names the address. A client of several addresses follows the
//! leader among them: see [`Client::connect_within`].

mod job;
mod link;
mod read;

use arrow::datatypes::SchemaRef;
use arrow_flight::{Action, Criteria, Empty, FlightDescriptor, FlightEndpoint, FlightInfo};
use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Endpoint;

use crate::api::{
    AckRequest, DatasetDetail, DatasetSummary, DatasetsRequest, EpochInfo, IndexProgress, IndexRequest, JobPlace, JobRequest, JobStatus,
    MaterializeProgress, MaterializeRequest, PlanInfo, PlanRequest, ViewInfo, ViewsRequest,
};
use crate::decode::schema_from_info;
use crate::status::from_status;
pub use job::{Batch, JobItem, JobReader};
use link::{Link, Service};
pub use read::RecordStream;

/// Receive windows: the receiver's windows set the speed of a stream. Bounded memory per stream, enough for a fast link.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// HTTP/2 frames that the server may send: its default of 16 KiB costs a system call each.
const FRAME: u32 = 256 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to one server, the leader where there are several. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    link: Arc<Link>,
}

/// A job that this consumer has joined.
#[derive(Debug, Clone)]
pub struct OpenedJob {
    pub schema: SchemaRef,
    /// For [`Client::exchange`] or [`Client::do_get`], at [`Client::at`] the location.
    pub ticket: Bytes,
    /// Where the ticket is to be used; none: at the same server.
    pub location: Option<String>,
    /// Rows that the job delivers, where known.
    pub rows: Option<u64>,
    /// The consumer's place in the job.
    pub place: JobPlace,
}

impl Client {
    /// Connects to the first of the addresses that answers: `grpc://host:port`, `http://host:port` or `host:port`.
    ///
    /// # Errors
    /// `BadInput` for an address or token that is none, `Unavailable` when nobody answers.
    pub async fn connect(addresses: &[String], token: Option<String>) -> Result<Self> {
        Self::connect_within(addresses, token, Duration::ZERO).await
    }

    /// As [`Client::connect`], for servers that may be about to start or to change: for as long as `patience`, connecting and every later call
    /// that can be repeated wait for a leader among the addresses and those that standbys name.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_within(addresses: &[String], token: Option<String>, patience: Duration) -> Result<Self> {
        Ok(Self { link: Arc::new(Link::connect(addresses, token, patience).await?) })
    }

    /// Another connection to the same servers: streams of one connection share the task that does all framing.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn another(&self) -> Result<Self> {
        Ok(Self { link: Arc::new(self.link.another().await?) })
    }

    /// A client of the place that an endpoint names, or this one. It connects with its first call.
    ///
    /// # Errors
    /// `BadInput` for a location that is no address.
    pub fn at(&self, location: Option<&str>) -> Result<Self> {
        match location {
            Some(location) => Ok(Self { link: self.link.place(location)? }),
            None => Ok(self.clone()),
        }
    }

    /// The address that answers now.
    pub fn address(&self) -> String {
        self.link.address().to_string()
    }

    /// Runs an action; one JSON value per answer.
    ///
    /// # Errors
    /// The server's, at once or within the stream.
    pub async fn action(&self, name: &str, body: Value) -> Result<BoxStream<'static, Result<Value>>> {
        let action = Action::new(name, body.to_string());
        let call = |mut to: Service, request| async move { to.do_action(request).await };
        let (answers, address) = self.link.call(&action, call).await?;
        let name = name.to_owned();
        let values = answers.map(move |answer| {
            let answer = answer.map_err(|s| failed(&address, &s))?;
            serde_json::from_slice(&answer.body).map_err(|e| Error::internal(format!("the answer of `{name}` is not JSON: {e}")))
        });
        Ok(values.boxed())
    }

    async fn typed<T: DeserializeOwned + Send + 'static>(
        &self,
        name: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<BoxStream<'static, Result<T>>> {
        let body = serde_json::to_value(body).map_err(|e| Error::internal(format!("writing the body of `{name}`: {e}")))?;
        let answers = self.action(name, body).await?;
        let name = name.to_owned();
        Ok(answers.and_then(move |value| std::future::ready(read_answer(&name, value))).boxed())
    }

    /// All answers of an action; lists may come as one array or one answer each.
    async fn all<T: DeserializeOwned>(&self, name: &str, body: &(impl Serialize + Sync)) -> Result<Vec<T>> {
        let answers: Vec<Value> = self.typed(name, body).await?.try_collect().await?;
        let flat = answers.into_iter().flat_map(|value| match value {
            Value::Array(items) => items,
            one => vec![one],
        });
        flat.map(|value| read_answer(name, value)).collect()
    }

    async fn one<T: DeserializeOwned>(&self, name: &str, body: &(impl Serialize + Sync)) -> Result<T> {
        let mut answers = self.typed::<Value>(name, body).await?;
        let first = answers.try_next().await?.ok_or_else(|| Error::internal(format!("`{name}` gave no answer")))?;
        // The trailers may still say that it failed.
        while answers.try_next().await?.is_some() {}
        read_answer(name, first)
    }

    /// Every dataset.
    ///
    /// # Errors
    /// The server's.
    pub async fn datasets(&self) -> Result<Vec<DatasetSummary>> {
        self.all("forebay.datasets", &DatasetsRequest::List).await
    }

    /// One dataset, at its newest version or a given one.
    ///
    /// # Errors
    /// `NotFound`, or the server's.
    pub async fn dataset(&self, name: &str, version: Option<u64>) -> Result<DatasetDetail> {
        self.one("forebay.datasets", &DatasetsRequest::Show { name: name.to_owned(), version }).await
    }

    /// The epochs of a dataset's newest version.
    ///
    /// # Errors
    /// `NotFound`, or the server's.
    pub async fn epochs(&self, name: &str) -> Result<Vec<EpochInfo>> {
        self.all("forebay.datasets", &DatasetsRequest::Epochs { name: name.to_owned() }).await
    }

    /// Every view, with its cost as it was when it was created.
    ///
    /// # Errors
    /// The server's.
    pub async fn views(&self) -> Result<Vec<ViewInfo>> {
        self.all("forebay.views", &ViewsRequest::List).await
    }

    /// Shows, creates or drops a view.
    ///
    /// # Errors
    /// The server's: `BadInput` for text that is no view, `AlreadyExists`, `NotFound`.
    pub async fn view(&self, request: &ViewsRequest) -> Result<ViewInfo> {
        self.one("forebay.views", request).await
    }

    /// Starts a materialization; with `wait` the stream ends when it does.
    ///
    /// # Errors
    /// The server's. A run that fails ends with a progress of state `failed`.
    pub async fn materialize(&self, request: &MaterializeRequest) -> Result<BoxStream<'static, Result<MaterializeProgress>>> {
        self.typed("forebay.materialize", request).await
    }

    /// Indexes a text column; the stream ends when it is done.
    ///
    /// # Errors
    /// The server's.
    pub async fn index(&self, request: &IndexRequest) -> Result<BoxStream<'static, Result<IndexProgress>>> {
        self.typed("forebay.index", request).await
    }

    /// The plan of a dataset or job.
    ///
    /// # Errors
    /// The server's.
    pub async fn plan(&self, request: &PlanRequest) -> Result<PlanInfo> {
        self.one("forebay.plan", request).await
    }

    /// One job's state, or all.
    ///
    /// # Errors
    /// `NotFound`, or the server's.
    pub async fn jobs(&self, job: Option<&str>) -> Result<Vec<JobStatus>> {
        self.all("forebay.job.status", &JobRequest { job: job.map(str::to_owned) }).await
    }

    /// Ends a job.
    ///
    /// # Errors
    /// `NotFound`, or the server's.
    pub async fn stop_job(&self, job: &str) -> Result<Value> {
        self.one("forebay.job.stop", &JobRequest { job: Some(job.to_owned()) }).await
    }

    /// Acknowledges batches outside of a `DoExchange`.
    ///
    /// # Errors
    /// The server's.
    pub async fn acknowledge(&self, request: &AckRequest) -> Result<Value> {
        self.one("forebay.job.ack", request).await
    }

    /// What `ListActions` says: name and description.
    ///
    /// # Errors
    /// The server's.
    pub async fn actions(&self) -> Result<Vec<(String, String)>> {
        let (actions, address) =
            self.link.call(&Empty {}, |mut to: Service, request| async move { to.list_actions(request).await }).await?;
        actions.map_ok(|a| (a.r#type, a.description)).map_err(|s| failed(&address, &s)).try_collect().await
    }

    /// What `ListFlights` says of paths that begin with `prefix`.
    ///
    /// # Errors
    /// The server's.
    pub async fn flights(&self, prefix: &str) -> Result<Vec<FlightInfo>> {
        let criteria = Criteria { expression: Bytes::copy_from_slice(prefix.as_bytes()) };
        let (flights, address) =
            self.link.call(&criteria, |mut to: Service, request| async move { to.list_flights(request).await }).await?;
        flights.map_err(|s| failed(&address, &s)).try_collect().await
    }

    /// `GetFlightInfo`.
    ///
    /// # Errors
    /// The server's.
    pub async fn flight_info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo> {
        Ok(self.link.call(&descriptor, |mut to: Service, request| async move { to.get_flight_info(request).await }).await?.0)
    }

    /// Opens (or joins) a job by its JSON command.
    ///
    /// # Errors
    /// The server's: unknown settings, settings that differ, a finished job.
    pub async fn open_job(&self, job: &str) -> Result<OpenedJob> {
        let info = self.flight_info(FlightDescriptor::new_cmd(job.to_owned())).await?;
        let schema = Arc::new(schema_from_info(&info.schema)?);
        let endpoint = info.endpoint.into_iter().next().ok_or_else(|| Error::internal("the server gave no endpoint for the job"))?;
        let location = location_of(&endpoint);
        let ticket = endpoint.ticket.ok_or_else(|| Error::internal("the server gave no ticket for the job"))?;
        let place = serde_json::from_slice(&info.app_metadata)
            .map_err(|e| Error::internal(format!("the server did not say the consumer's place in the job: {e}")))?;
        Ok(OpenedJob { schema, ticket: ticket.ticket, location, rows: u64::try_from(info.total_records).ok(), place })
    }

    /// A heartbeat: whether the server answers and takes the token.
    ///
    /// # Errors
    /// `Unavailable` or `Unauthenticated`.
    pub async fn ping(&self) -> Result<()> {
        self.link.call(&Empty {}, |mut to: Service, request| async move { to.list_actions(request).await }).await.map(|_| ())
    }

    /// Ends the session on the server's side.
    ///
    /// # Errors
    /// The server's.
    pub async fn close(&self) -> Result<()> {
        let action = Action::new("CloseSession", json!({}).to_string());
        self.link.call(&action, |mut to: Service, request| async move { to.do_action(request).await }).await.map(|_| ())
    }
}

fn read_answer<T: DeserializeOwned>(name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| {
        Error::internal(format!("an answer of `{name}` that this client does not know: {e}"))
            .with_remedy("use client and server of one version")
    })
}

/// The first location of an endpoint that names a server; none: the one that was asked.
pub(crate) fn location_of(endpoint: &FlightEndpoint) -> Option<String> {
    // Flight's word for "on this same connection" is a location too.
    endpoint.location.iter().map(|l| l.uri.clone()).find(|uri| !uri.is_empty() && !uri.starts_with("arrow-flight-reuse-connection:"))
}

pub(crate) fn bearer(token: &str) -> Result<MetadataValue<Ascii>> {
    let mut value: MetadataValue<Ascii> = format!("Bearer {token}")
        .parse()
        .map_err(|_| Error::bad_input("the token holds characters that a header cannot carry").with_remedy("use printable ASCII"))?;
    // Keeps it out of debug output.
    value.set_sensitive(true);
    Ok(value)
}

fn endpoint(address: &str) -> Result<Endpoint> {
    let refused = |why: &str| Error::bad_input(format!("`{address}` is not a server address: {why}")).with_remedy("use grpc://host:port");
    let authority = match address.split_once("://") {
        None => address,
        Some(("grpc" | "grpc+tcp" | "http", rest)) => rest,
        Some((scheme, _)) => return Err(refused(&format!("the scheme `{scheme}` is not supported"))),
    };
    let endpoint = Endpoint::from_shared(format!("http://{authority}")).map_err(|e| refused(&e.to_string()))?;
    if endpoint.uri().port().is_none() {
        return Err(refused("it names no port"));
    }
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        // A server that vanished without a word, or stands still, ends its streams within about half a minute.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(15))
        .http2_max_header_list_size(64 << 10))
}

/// As [`endpoint`], for short messages that are to notice a dead peer soon.
pub(crate) fn control_endpoint(address: &str, limit: Duration) -> Result<Endpoint> {
    Ok(endpoint(address)?
        .connect_timeout(limit)
        .http2_keep_alive_interval(Duration::from_secs(3))
        .keep_alive_timeout(Duration::from_secs(6)))
}

pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A status that came from the transport, not from the server, means that the server is not there.
pub(crate) fn failed(address: &str, status: &Status) -> Error {
    if let Some(source) = status.source() {
        return Error::new(Kind::Unavailable, format!("lost the server at {address}: {}", root_cause(source)));
    }
    let error = from_status(status);
    if error.kind == Kind::Unavailable { error.context(address) } else { error }
}
