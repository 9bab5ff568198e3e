//! The client: typed calls for everything that commands and tools need.
//!
//! Errors are the server's own; one that could not be reached is `Unavailable` and names the address.

mod job;
mod read;

use arrow::datatypes::SchemaRef;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Criteria, Empty, FlightDescriptor, FlightInfo};
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
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::api::{
    AckRequest, DatasetDetail, DatasetSummary, DatasetsRequest, EpochInfo, JobRequest, JobStatus, MaterializeProgress, MaterializeRequest,
    PlanInfo, PlanRequest,
};
use crate::decode::schema_from_info;
use crate::status::from_status;
pub use job::{Batch, JobItem, JobReader};
pub use read::RecordStream;

/// Receive windows: the receiver's windows set the speed of a stream. Bounded memory per stream, enough for a fast link.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// HTTP/2 frames that the server may send: its default of 16 KiB costs a system call each.
const FRAME: u32 = 256 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to one server. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    inner: FlightServiceClient<Channel>,
    address: Arc<str>,
    token: Option<MetadataValue<Ascii>>,
}

/// A job that this consumer has joined.
#[derive(Debug, Clone)]
pub struct OpenedJob {
    pub schema: SchemaRef,
    /// For [`Client::exchange`] or [`Client::do_get`].
    pub ticket: Bytes,
    /// Rows that the job delivers, where known.
    pub rows: Option<u64>,
}

impl Client {
    /// Connects to the first of the addresses that answers: `grpc://host:port`, `http://host:port` or `host:port`.
    ///
    /// # Errors
    /// `BadInput` for an address or token that is none, `Unavailable` when nobody answers.
    pub async fn connect(addresses: &[String], token: Option<String>) -> Result<Self> {
        let token = token.map(|token| bearer(&token)).transpose()?;
        if addresses.is_empty() {
            return Err(Error::bad_input("no server address").with_remedy("give --server grpc://host:port"));
        }
        let mut failed = Vec::new();
        for address in addresses {
            let endpoint = endpoint(address)?;
            match endpoint.connect().await {
                Ok(channel) => {
                    let inner =
                        FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX);
                    return Ok(Self { inner, address: Arc::from(address.as_str()), token });
                }
                Err(e) => failed.push(format!("{address}: {}", root_cause(&e))),
            }
        }
        Err(Error::new(Kind::Unavailable, format!("no server answers at {}", failed.join("; ")))
            .with_remedy("start one with `forebay serve`, or check --server"))
    }

    /// The address that answered.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// The error behind a failed call.
    fn failed(&self, status: Status) -> Error {
        failed(&self.address, &status)
    }

    /// Runs an action; one JSON value per answer.
    ///
    /// # Errors
    /// The server's, at once or within the stream.
    pub async fn action(&self, name: &str, body: Value) -> Result<BoxStream<'static, Result<Value>>> {
        let action = Action::new(name, body.to_string());
        let answers = self.inner.clone().do_action(self.request(action)).await.map_err(|s| self.failed(s))?.into_inner();
        let (name, address) = (name.to_owned(), Arc::clone(&self.address));
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

    /// Starts a materialization; with `wait` the stream ends when it does.
    ///
    /// # Errors
    /// The server's. A run that fails ends with a progress of state `failed`.
    pub async fn materialize(&self, request: &MaterializeRequest) -> Result<BoxStream<'static, Result<MaterializeProgress>>> {
        self.typed("forebay.materialize", request).await
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
        let actions = self.inner.clone().list_actions(self.request(Empty {})).await.map_err(|s| self.failed(s))?.into_inner();
        actions.map_ok(|a| (a.r#type, a.description)).map_err(|s| self.failed(s)).try_collect().await
    }

    /// What `ListFlights` says of paths that begin with `prefix`.
    ///
    /// # Errors
    /// The server's.
    pub async fn flights(&self, prefix: &str) -> Result<Vec<FlightInfo>> {
        let criteria = Criteria { expression: Bytes::copy_from_slice(prefix.as_bytes()) };
        let flights = self.inner.clone().list_flights(self.request(criteria)).await.map_err(|s| self.failed(s))?.into_inner();
        flights.map_err(|s| self.failed(s)).try_collect().await
    }

    /// `GetFlightInfo`.
    ///
    /// # Errors
    /// The server's.
    pub async fn flight_info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo> {
        Ok(self.inner.clone().get_flight_info(self.request(descriptor)).await.map_err(|s| self.failed(s))?.into_inner())
    }

    /// Opens (or joins) a job by its JSON command.
    ///
    /// # Errors
    /// The server's: unknown settings, settings that differ, a finished job.
    pub async fn open_job(&self, job: &str) -> Result<OpenedJob> {
        let info = self.flight_info(FlightDescriptor::new_cmd(job.to_owned())).await?;
        let schema = Arc::new(schema_from_info(&info.schema)?);
        let ticket = info
            .endpoint
            .into_iter()
            .next()
            .and_then(|e| e.ticket)
            .ok_or_else(|| Error::internal("the server gave no ticket for the job"))?;
        Ok(OpenedJob { schema, ticket: ticket.ticket, rows: u64::try_from(info.total_records).ok() })
    }

    /// A heartbeat: whether the server answers and takes the token.
    ///
    /// # Errors
    /// `Unavailable` or `Unauthenticated`.
    pub async fn ping(&self) -> Result<()> {
        self.inner.clone().list_actions(self.request(Empty {})).await.map(|_| ()).map_err(|s| self.failed(s))
    }

    /// Ends the session on the server's side.
    ///
    /// # Errors
    /// The server's.
    pub async fn close(&self) -> Result<()> {
        let action = Action::new("CloseSession", json!({}).to_string());
        self.inner.clone().do_action(self.request(action)).await.map(|_| ()).map_err(|s| self.failed(s))
    }
}

fn read_answer<T: DeserializeOwned>(name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| {
        Error::internal(format!("an answer of `{name}` that this client does not know: {e}"))
            .with_remedy("use client and server of one version")
    })
}

fn bearer(token: &str) -> Result<MetadataValue<Ascii>> {
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
        // A server that vanished without a word ends its streams within about a minute.
        .http2_keep_alive_interval(Duration::from_secs(40))
        .keep_alive_timeout(Duration::from_secs(20))
        .http2_max_header_list_size(64 << 10))
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A status that came from the transport, not from the server, means that the server is not there.
fn failed(address: &str, status: &Status) -> Error {
    if let Some(source) = status.source() {
        return Error::new(Kind::Unavailable, format!("lost the server at {address}: {}", root_cause(source)));
    }
    let error = from_status(status);
    if error.kind == Kind::Unavailable { error.context(address) } else { error }
}
