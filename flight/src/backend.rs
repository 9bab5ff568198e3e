//! What the Flight service asks of the rest of the system.
//!
//! Owns: the traits and plain structs between the wire and the engine. Must not know: how datasets are stored, how queries run, who grants
//! batches. Payloads are opaque JSON to this crate: it signs them into tickets and hands them back unchanged.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use forebay_core::{Error, Result};
use futures::stream::BoxStream;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

use crate::api::{BatchMeta, ConsumerMessage, End, JobPlace};
use crate::statement::{Names, Prepared, Statement, TableName};

/// A stream of record batches with the schema that all of them have.
pub struct BatchSource {
    pub schema: SchemaRef,
    pub batches: BoxStream<'static, Result<RecordBatch>>,
}

impl fmt::Debug for BatchSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchSource").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// One flight of `ListFlights`.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The descriptor's path: `[name]`.
    pub path: Vec<String>,
    pub schema: SchemaRef,
    pub rows: u64,
    pub bytes: u64,
}

/// A dataset as plain endpoints: one per entry of `groups`, in order.
#[derive(Debug, Clone)]
pub struct DatasetFlight {
    pub schema: SchemaRef,
    /// One payload per group of shards; comes back in [`Backend::read_group`].
    pub groups: Vec<Value>,
    pub rows: u64,
    pub bytes: u64,
}

/// A consumer's place in a job.
#[derive(Debug, Clone)]
pub struct JobFlight {
    pub schema: SchemaRef,
    /// Comes back in [`Backend::job_stream`].
    pub payload: Value,
    /// For the consumer's own use.
    pub place: JobPlace,
    /// Rows that the whole job delivers, where that is known beforehand.
    pub rows: Option<u64>,
}

/// A planned query; any node that shares the ticket key can run it.
#[derive(Debug, Clone)]
pub struct QueryPlan {
    pub schema: SchemaRef,
    /// Comes back in [`Backend::run_query`].
    pub payload: Value,
}

/// One batch of a job, not yet gathered: rows are copied straight from the window's chunks into the message bodies.
#[derive(Debug, Clone)]
pub struct BatchPart {
    /// The window's chunks, all of the job's schema. Batches of one window share one `Arc`: conversions are cached by it.
    pub chunks: Arc<Vec<RecordBatch>>,
    /// The batch's rows in order, as (chunk, row of that chunk).
    pub rows: Vec<(u32, u32)>,
    /// `part`, `parts` and `rows` are filled in by the encoder, per message.
    pub meta: BatchMeta,
}

/// What a job stream yields next.
#[derive(Debug)]
pub enum JobEvent {
    Batch(BatchPart),
    /// The stream ends here, with this reason; `next` is not called again.
    End(End),
}

/// One consumer's stream of a job. Dropping it frees everything it holds; dropping it before [`JobStream::finish`] means that the stream broke.
#[async_trait]
pub trait JobStream: Send + 'static {
    fn schema(&self) -> SchemaRef;

    /// The other direction of the same stream; used while `next` is pending.
    fn control(&self) -> Arc<dyn JobControl>;

    /// Waits for the next batch. Called once per credit on `DoExchange`, freely on `DoGet`. The future may be dropped.
    async fn next(&mut self) -> Result<JobEvent>;

    /// The clean end: on `DoGet` the transport took every message up to the end message; on `DoExchange` the consumer closed its side.
    async fn finish(&mut self) -> Result<()>;
}

/// Receives what the consumer says on a `DoExchange` stream, in order, one message at a time.
#[async_trait]
pub trait JobControl: Send + Sync + 'static {
    /// Credits were added to the stream's already; acknowledgements and `close` are for the implementer.
    async fn on_message(&self, message: ConsumerMessage) -> Result<()>;
}

/// What is going to be read from an endpoint.
#[derive(Debug, Clone, Copy)]
pub enum Reading<'a> {
    /// A dataset's groups of shards.
    Dataset,
    /// A stream of the job with this name.
    Job(&'a str),
    /// The query with this payload.
    Query(&'a Value),
}

/// The engine behind the service.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Every dataset that this caller may see.
    async fn list(&self) -> Result<Vec<Listing>>;

    /// `path` is `[name]` or `[name@v3]`, optionally followed by one `epoch=N`. Elements are as the client sent them: not yet checked.
    async fn dataset(&self, path: &[String]) -> Result<DatasetFlight>;

    /// The rows of one group, in storage order.
    async fn read_group(&self, payload: Value) -> Result<BatchSource>;

    /// Joins (or creates) the job that the JSON command names, as the consumer that it names.
    async fn open_job(&self, command: &str) -> Result<JobFlight>;

    /// The schema that a job command would have, without opening the job (`GetSchema`).
    async fn job_schema(&self, command: &str) -> Result<SchemaRef> {
        let _ = command;
        Err(Error::unsupported("GetSchema on a job command").with_remedy("ask GetSchema of the dataset's path, or GetFlightInfo"))
    }

    /// The stream of a job that [`Backend::open_job`] opened. `acks`: the consumer acknowledges on this stream (`DoExchange`).
    async fn job_stream(&self, payload: Value, acks: bool) -> Result<Box<dyn JobStream>>;

    /// Where the next `count` endpoints are to be read, as `host:port`; none is this same connection.
    async fn places(&self, reading: Reading<'_>, count: usize) -> Result<Vec<Option<String>>> {
        let _ = reading;
        Ok(vec![None; count])
    }

    /// Plans a statement whose parameters all have values.
    async fn query(&self, statement: &Statement) -> Result<QueryPlan>;

    /// The columns and parameters of a statement, without planning it to the end.
    async fn prepare(&self, statement: &Statement) -> Result<Prepared> {
        let _ = statement;
        Err(Error::unsupported("preparing statements"))
    }

    /// The catalog, its schemas and the kinds of tables.
    async fn names(&self) -> Result<Names> {
        Err(Error::unsupported("naming catalogs"))
    }

    /// Every table that this caller may see.
    async fn tables(&self) -> Result<Vec<TableName>> {
        Err(Error::unsupported("listing tables"))
    }

    /// The columns of one table.
    async fn columns(&self, table: &TableName) -> Result<SchemaRef> {
        let _ = table;
        Err(Error::unsupported("describing tables"))
    }

    async fn run_query(&self, payload: Value) -> Result<BatchSource>;

    /// A `forebay.*` action. The stream's items are sent as one JSON body each.
    async fn action(&self, name: &str, body: Value) -> Result<BoxStream<'static, Result<Value>>>;

    /// Creates or extends a dataset. `mode` is null, `create`, `append` or `replace`. Batches have been decoded and checked against their claims; an
    /// error in the stream means that the put must leave nothing behind, and so does dropping the future: the client went away.
    async fn put(&self, path: &[String], mode: Option<String>, source: BatchSource) -> Result<Value>;
}
