//! Measures the wire by itself: a window of images in memory, gathered and sent as a job, without an engine behind it.
//!
//! `wire_bench serve [PORT]` serves the same rows on two ports: PORT with our own framing, PORT+1 through prost (one more copy). Any Flight
//! client can read `{"dataset":"images"}` from either. `wire_bench read ADDRESS [ROUNDS]` is such a client. `FOREBAY_TOKEN` guards the first.

use arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, Result as ActionResult, SchemaResult, Ticket,
};
use async_trait::async_trait;
use forebay_core::{Error, Result};
use forebay_flight::api::{BatchMeta, ConsumerMessage, End};
use forebay_flight::backend::{BatchPart, BatchSource, DatasetFlight, JobControl, JobEvent, JobFlight, JobStream, Listing, QueryPlan};
use forebay_flight::encode::{Encoder, part_metadata};
use forebay_flight::message::Message;
use forebay_flight::statement::Statement;
use forebay_flight::ticket::TicketKey;
use forebay_flight::{Backend, Client, Flight, Limits, ServiceConfig, serve};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming};

const IMAGE: i32 = 224 * 224 * 3;
const ROWS: usize = 8192;
const CHUNK: usize = 64;
/// Chunks in memory; the rest of the rows repeat them, so that the example fits into a small machine.
const CHUNKS: usize = 28;
const BATCH: usize = 64;

/// One window, repeated until all rows have been sent.
#[derive(Clone)]
struct Window {
    chunks: Arc<Vec<RecordBatch>>,
}

impl Window {
    fn new() -> Result<Self> {
        let item = Arc::new(Field::new("item", DataType::UInt8, false));
        let chunks = (0..CHUNKS).map(|chunk| {
            let bytes: Vec<u8> = (0..CHUNK * IMAGE as usize).map(|i| (i * 31 + chunk) as u8).collect();
            let images = FixedSizeListArray::try_new(Arc::clone(&item), IMAGE, Arc::new(UInt8Array::from(bytes)), None)?;
            let labels = Int64Array::from_iter_values((0..CHUNK).map(|i| (chunk * CHUNK + i) as i64));
            RecordBatch::try_from_iter([("image", Arc::new(images) as ArrayRef), ("label", Arc::new(labels) as ArrayRef)])
        });
        let chunks = chunks.collect::<Result<_, _>>().map_err(|e| Error::internal(e.to_string()))?;
        Ok(Self { chunks: Arc::new(chunks) })
    }

    fn schema(&self) -> SchemaRef {
        self.chunks[0].schema()
    }

    fn batch(&self, batch: usize) -> BatchPart {
        let total = CHUNK * CHUNKS;
        let rows = (0..BATCH).map(|i| ((batch * BATCH + i) * 7919) % total).map(|row| ((row / CHUNK) as u32, (row % CHUNK) as u32));
        let (batch, job) = (batch as u64, "bench".to_owned());
        let meta = BatchMeta {
            job,
            pass: 0,
            epoch: 0,
            step: None,
            batch,
            part: 0,
            parts: 0,
            window: 0,
            rows: 0,
            digest: String::new(),
            padding: false,
        };
        BatchPart { chunks: Arc::clone(&self.chunks), rows: rows.collect(), meta }
    }
}

struct Stream {
    window: Window,
    at: usize,
}

struct Deaf;

#[async_trait]
impl JobControl for Deaf {
    async fn on_message(&self, _: ConsumerMessage) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl JobStream for Stream {
    fn schema(&self) -> SchemaRef {
        self.window.schema()
    }

    fn control(&self) -> Arc<dyn JobControl> {
        Arc::new(Deaf)
    }

    async fn next(&mut self) -> Result<JobEvent> {
        if self.at == ROWS / BATCH {
            return Ok(JobEvent::End(End::Job));
        }
        self.at += 1;
        Ok(JobEvent::Batch(self.window.batch(self.at - 1)))
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

fn nothing<T>() -> Result<T> {
    Err(Error::unsupported("this example serves one job"))
}

#[async_trait]
impl Backend for Window {
    async fn list(&self) -> Result<Vec<Listing>> {
        Ok(Vec::new())
    }

    async fn dataset(&self, _: &[String]) -> Result<DatasetFlight> {
        let groups = vec![Value::Null];
        Ok(DatasetFlight { schema: self.schema(), groups, rows: (CHUNK * CHUNKS) as u64, bytes: 0 })
    }

    async fn read_group(&self, _: Value) -> Result<BatchSource> {
        let chunks: Vec<Result<RecordBatch>> = self.chunks.iter().cloned().map(Ok).collect();
        Ok(BatchSource { schema: self.schema(), batches: stream::iter(chunks).boxed() })
    }

    async fn open_job(&self, _: &str) -> Result<JobFlight> {
        Ok(JobFlight { schema: self.schema(), payload: Value::Null, place: Default::default(), rows: Some(ROWS as u64) })
    }

    async fn job_stream(&self, _: Value, _: bool) -> Result<Box<dyn JobStream>> {
        Ok(Box::new(Stream { window: self.clone(), at: 0 }))
    }

    async fn query(&self, _: &Statement) -> Result<QueryPlan> {
        nothing()
    }

    async fn run_query(&self, _: Value) -> Result<BatchSource> {
        nothing()
    }

    async fn action(&self, _: &str, _: Value) -> Result<BoxStream<'static, Result<Value>>> {
        nothing()
    }

    async fn put(&self, _: &[String], _: Option<String>, source: BatchSource) -> Result<Value> {
        let rows: usize = source.batches.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) }).await?;
        Ok(Value::from(rows))
    }
}

/// The same messages through prost's encoder.
struct Prost(Window);

type Answers<T> = BoxStream<'static, Result<T, Status>>;

fn no<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("this example serves one job"))
}

#[tonic::async_trait]
impl FlightService for Prost {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<ActionResult>;
    type ListActionsStream = Answers<ActionType>;

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Result<Response<Self::HandshakeStream>, Status> {
        no()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        no()
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        let info = FlightInfo::new().try_with_schema(&self.0.schema()).map_err(|e| Status::internal(e.to_string()))?;
        let info = info.with_descriptor(request.into_inner());
        Ok(Response::new(info.with_endpoint(FlightEndpoint::new().with_ticket(Ticket::new("bench")))))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        no()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        no()
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let (send, sent) = tokio::sync::mpsc::channel(2);
        let window = self.0.clone();
        tokio::spawn(async move {
            let mut encoder = Encoder::new(&window.schema())?;
            let _ = send.send(Ok(encoder.schema_message().into_flight_data(None))).await;
            for batch in 0..ROWS / BATCH {
                let part = window.batch(batch);
                let prepared = encoder.prepare(&part.chunks)?;
                let cuts = encoder.cut(&prepared, &part.rows)?;
                for (number, cut) in cuts.iter().enumerate() {
                    let rows = &part.rows[cut.clone()];
                    let app_metadata = part_metadata(&part.meta, number, cuts.len(), rows.len())?;
                    let message = Message { app_metadata, ..encoder.gather(&prepared, rows)? };
                    if send.send(Ok(message.into_flight_data(None))).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Ok::<(), Error>(())
        });
        Ok(Response::new(tokio_stream::wrappers::ReceiverStream::new(sent).boxed()))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        no()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        no()
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        no()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        no()
    }
}

async fn run_server(port: u16) -> Result<()> {
    let window = Window::new()?;
    let failed = |e: std::io::Error| Error::internal(e.to_string());
    let ours = TcpListener::bind(("127.0.0.1", port)).await.map_err(failed)?;
    let prost = TcpListener::bind(("127.0.0.1", port + 1)).await.map_err(failed)?;
    let prost = tonic::transport::server::TcpIncoming::from(prost).with_nodelay(Some(true));
    let service = FlightServiceServer::new(Prost(window.clone()));
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(prost));
    println!("own framing: grpc://127.0.0.1:{port}  prost: grpc://127.0.0.1:{}", port + 1);
    let flight = Flight::new(Arc::new(window), ServiceConfig::new(TicketKey::random(), std::env::var("FOREBAY_TOKEN").ok()));
    serve(ours, flight, Limits::default(), std::future::pending()).await
}

async fn run_client(address: String, rounds: usize) -> Result<()> {
    let client = Client::connect(&[address], std::env::var("FOREBAY_TOKEN").ok()).await?;
    for _ in 0..rounds {
        let start = Instant::now();
        let job = client.open_job("{\"dataset\":\"images\"}").await?;
        let mut stream = client.do_get(job.ticket).await?.batches;
        let (mut rows, mut bytes) = (0, 0);
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            rows += batch.num_rows();
            bytes += batch.num_rows() * (IMAGE as usize + 8);
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{rows} rows, {:.2} GB/s", bytes as f64 / seconds / 1e9);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| args.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    match (args.first().map(String::as_str), args.get(1)) {
        (Some("serve"), _) => run_server(number(1, 7170) as u16).await,
        (Some("read"), Some(address)) => run_client(address.clone(), number(2, 3)).await,
        _ => Err(Error::bad_input("usage: wire_bench serve [PORT] | wire_bench read ADDRESS [ROUNDS]")),
    }
}
