//! The calls with small answers, on arrow-flight's generated server. The token was checked before any of them runs.

use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, BasicAuth, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, Result as ActionResult, SchemaAsIpc, SchemaResult, Ticket,
};
use bytes::Bytes;
use forebay_core::{Error, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use prost_types::Timestamp;
use serde_json::Value;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::{Request, Response, Status, Streaming};

use super::command::{self, Command};
use super::{Shared, put, sql};
use crate::backend::Reading;
use crate::encode::wire_schema;
use crate::status::{from_status, to_status};
use crate::ticket::Claim;

/// Actions and what they do, as `ListActions` says.
const ACTIONS: &[(&str, &str)] = &[
    ("forebay.materialize", "run a pipeline; answers with progress"),
    ("forebay.cancel", "end a run; what it staged stays"),
    ("forebay.datasets", "list, show, drop or vacuum datasets"),
    ("forebay.views", "list, show, create or drop views"),
    ("forebay.index", "index a text column of a dataset; answers with progress"),
    ("forebay.plan", "the plan of a dataset or job, or the rows of one step"),
    ("forebay.job.status", "the state of one job, or of all"),
    ("forebay.job.ack", "acknowledge batches"),
    ("forebay.job.report", "say what was received before a stream broke"),
    ("forebay.job.leave", "take part in a job no more"),
    ("forebay.job.commit", "commit what a job's consumers have taken"),
    ("forebay.job.restore", "take a job back to a commit"),
    ("forebay.job.stop", "end a job"),
    ("forebay.workers", "list or drain workers"),
    ("forebay.tasks", "list tasks"),
];

#[derive(Clone)]
pub(crate) struct Rpc {
    pub(crate) shared: Arc<Shared>,
}

type Answers<T> = BoxStream<'static, Result<T, Status>>;

fn one<T: Send + 'static>(item: T) -> Response<Answers<T>> {
    Response::new(stream::once(std::future::ready(Ok(item))).boxed())
}

fn count(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Shared {
    /// An endpoint at a place, or on this same connection: a location that the client could not reach is worse than none.
    pub(crate) fn endpoint(&self, claim: &Claim, place: Option<String>) -> Result<FlightEndpoint> {
        let term = self.config.ticket_term;
        let mut endpoint = FlightEndpoint::new().with_ticket(Ticket::new(self.config.key.sign(claim, term)?));
        if let Some(place) = place {
            endpoint = endpoint.with_location(format!("grpc+tcp://{place}"));
        }
        let expires = (SystemTime::now() + term).duration_since(UNIX_EPOCH).unwrap_or_default();
        endpoint.expiration_time = Some(Timestamp { seconds: count(expires.as_secs()), nanos: 0 });
        Ok(endpoint)
    }
}

/// A flight without endpoints; its schema is the one that the stream will have.
pub(crate) fn flight_info(descriptor: FlightDescriptor, schema: &SchemaRef, rows: Option<u64>, bytes: Option<u64>) -> Result<FlightInfo> {
    let info = FlightInfo::new()
        .with_descriptor(descriptor)
        .with_total_records(rows.map_or(-1, count))
        .with_total_bytes(bytes.map_or(-1, count))
        .try_with_schema(&*wire_schema(schema)?);
    info.map_err(|e| Error::internal(format!("writing a schema: {e}")))
}

impl Rpc {
    async fn info(&self, request: Request<FlightDescriptor>) -> Result<FlightInfo> {
        let backend = &self.shared.backend;
        let (metadata, _, descriptor) = request.into_parts();
        match command::parse(&descriptor)? {
            Command::Path(path) => {
                let flight = backend.dataset(path).await?;
                let mut info = flight_info(descriptor, &flight.schema, Some(flight.rows), Some(flight.bytes))?.with_ordered(true);
                let places = backend.places(Reading::Dataset, flight.groups.len()).await?;
                for (group, place) in flight.groups.into_iter().zip(places) {
                    info = info.with_endpoint(self.shared.endpoint(&Claim::Group(group), place)?);
                }
                Ok(info)
            }
            Command::Job(json) => {
                let flight = backend.open_job(json).await?;
                let place = backend.places(Reading::Job(&flight.place.job), 1).await?.into_iter().next().flatten();
                let endpoint = self.shared.endpoint(&Claim::Job(flight.payload), place)?;
                let about = serde_json::to_vec(&flight.place).map_err(|e| Error::internal(format!("writing a consumer's place: {e}")))?;
                Ok(flight_info(descriptor, &flight.schema, flight.rows, None)?.with_endpoint(endpoint).with_app_metadata(about))
            }
            Command::Sql(any) => {
                let session = sql::session::of(&self.shared, &metadata)?;
                sql::info(&self.shared, any, descriptor, session).await
            }
        }
    }

    async fn schema(&self, request: &Request<FlightDescriptor>) -> Result<SchemaResult> {
        let backend = &self.shared.backend;
        let schema = match command::parse(request.get_ref())? {
            Command::Path(path) => backend.dataset(path).await?.schema,
            Command::Job(json) => backend.job_schema(json).await?,
            Command::Sql(any) => sql::schema(&self.shared, any, sql::session::of(&self.shared, request.metadata())?).await?,
        };
        let schema = wire_schema(&schema)?;
        SchemaAsIpc::new(&schema, &IpcWriteOptions::default()).try_into().map_err(|e| Error::internal(format!("writing a schema: {e}")))
    }

    async fn list(&self, criteria: &Criteria) -> Result<Vec<FlightInfo>> {
        // Criteria are bytes of the server's choice: here the beginning of a name.
        let flights = self.shared.backend.list().await?;
        flights
            .into_iter()
            .filter(|f| f.path.first().is_some_and(|name| name.as_bytes().starts_with(&criteria.expression)))
            .map(|f| flight_info(FlightDescriptor::new_path(f.path), &f.schema, Some(f.rows), Some(f.bytes)))
            .collect()
    }

    async fn action(&self, request: Request<Action>) -> Result<Response<Answers<ActionResult>>> {
        let (metadata, _, action) = request.into_parts();
        let name = action.r#type.as_str();
        if name.starts_with("forebay.") {
            let body = parse_body(name, &action.body)?;
            let answers = self.shared.backend.action(name, body).await?;
            return Ok(Response::new(answers.map_err(|e| to_status(&e)).and_then(|v| std::future::ready(write_body(&v))).boxed()));
        }
        let Some(answer) = sql::actions::run(&self.shared, &metadata, name, &action.body).await? else {
            return Err(Error::unsupported(format!("the action `{}`", name.escape_debug())).with_remedy("ListActions names what there is"));
        };
        let mut response = Response::new(stream::iter(answer.results.into_iter().map(Ok)).boxed());
        if let Some(cookie) = answer.cookie {
            response.metadata_mut().insert("set-cookie", cookie);
        }
        Ok(response)
    }

    async fn session(&self, request: Request<Streaming<HandshakeRequest>>) -> Result<Bytes> {
        let shared = &self.shared;
        if !shared.gate.closed() {
            return Err(Error::unsupported("Handshake").with_remedy("this server asks for no token: call without one"));
        }
        let (metadata, _, mut messages) = request.into_parts();
        let header = metadata.get("authorization").map(|v| v.as_bytes().to_vec());
        if header.is_some() {
            return shared.gate.session(header.as_deref(), None, shared.config.session_term);
        }
        let first = messages.message().await.map_err(|s| from_status(&s))?.unwrap_or_default();
        let basic = BasicAuth::decode(first.payload).map_err(|_| Error::bad_input("Handshake: the payload is not BasicAuth"))?;
        shared.gate.session(None, Some((&basic.username, &basic.password)), shared.config.session_term)
    }
}

fn parse_body(name: &str, body: &[u8]) -> Result<Value> {
    if body.trim_ascii().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_json::from_slice(body).map_err(|e| Error::bad_input(format!("the body of `{name}` is not JSON: {e}")))
}

fn write_body(value: &Value) -> Result<ActionResult, Status> {
    serde_json::to_vec(value).map(ActionResult::new).map_err(|e| to_status(&Error::internal(format!("writing an answer: {e}"))))
}

#[tonic::async_trait]
impl FlightService for Rpc {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<ActionResult>;
    type ListActionsStream = Answers<ActionType>;

    async fn handshake(&self, request: Request<Streaming<HandshakeRequest>>) -> Result<Response<Self::HandshakeStream>, Status> {
        let session = self.session(request).await.map_err(|e| to_status(&e))?;
        let bearer = [b"Bearer ", session.as_ref()].concat();
        let header =
            tonic::metadata::MetadataValue::try_from(bearer).map_err(|e| to_status(&Error::internal(format!("a session token: {e}"))))?;
        let mut response = one(HandshakeResponse { protocol_version: 0, payload: session });
        response.metadata_mut().insert("authorization", header);
        Ok(response)
    }

    async fn list_flights(&self, request: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        let flights = self.list(request.get_ref()).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(stream::iter(flights.into_iter().map(Ok)).boxed()))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        self.info(request).await.map(Response::new).map_err(|e| to_status(&e))
    }

    async fn poll_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        // Planning is quick: the first poll is complete.
        let info = self.info(request).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(PollInfo { info: Some(info), flight_descriptor: None, progress: Some(1.0), expiration_time: None }))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        self.schema(&request).await.map(Response::new).map_err(|e| to_status(&e))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(Status::internal("DoGet is answered before it comes here"))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        put::run(&self.shared, request.into_inner()).await.map(one).map_err(|e| to_status(&e))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(Status::internal("DoExchange is answered before it comes here"))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        self.action(request).await.map_err(|e| to_status(&e))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let actions = ACTIONS
            .iter()
            .chain(sql::actions::ACTIONS)
            .map(|(name, what)| Ok(ActionType { r#type: (*name).to_owned(), description: (*what).to_owned() }));
        Ok(Response::new(stream::iter(actions).boxed()))
    }
}
