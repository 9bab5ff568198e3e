//! The Flight service of each role: an engine's, minus what the role leaves to others.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use forebay_core::{Error, Result};
use forebay_flight::backend::{Backend, BatchSource, DatasetFlight, JobFlight, JobStream, Listing, QueryPlan, Reading};
use forebay_flight::statement::{Names, Prepared, Statement, TableName};
use futures::stream::BoxStream;
use serde_json::Value;

use super::registry::Registry;
use crate::backend::EngineBackend;

/// The leader: answers everything but rows, for which it names workers.
pub(super) struct LeaderBackend {
    pub(super) engine: EngineBackend,
    pub(super) registry: Arc<Registry>,
}

fn not_here(what: &str) -> Error {
    Error::failed_precondition(format!("a dispatcher serves no {what}"))
        .with_remedy("use the ticket at the location that its endpoint names, as Flight clients do")
}

#[async_trait]
impl Backend for LeaderBackend {
    async fn list(&self) -> Result<Vec<Listing>> {
        self.engine.list().await
    }

    async fn dataset(&self, path: &[String]) -> Result<DatasetFlight> {
        self.engine.dataset(path).await
    }

    async fn read_group(&self, _: Value) -> Result<BatchSource> {
        Err(not_here("rows"))
    }

    async fn open_job(&self, command: &str) -> Result<JobFlight> {
        self.engine.open_job(command).await
    }

    async fn job_schema(&self, command: &str) -> Result<SchemaRef> {
        self.engine.job_schema(command).await
    }

    async fn job_stream(&self, _: Value, _: bool) -> Result<Box<dyn JobStream>> {
        Err(not_here("streams of jobs"))
    }

    async fn places(&self, reading: Reading<'_>, count: usize) -> Result<Vec<Option<String>>> {
        // The system tables are the dispatcher's own, and no rows of anybody's data.
        if let Reading::Query(payload) = reading
            && !self.engine.reads_datasets(payload).await?
        {
            return Ok(vec![None; count]);
        }
        // Ranks of a fixed map go where its windows are, so that few workers read each of them.
        let among = if let Reading::Job(name) = reading { self.engine.0.dispatcher()?.map_workers(name).await? } else { Vec::new() };
        Ok(self.registry.choose(count, &among).await?.into_iter().map(Some).collect())
    }

    async fn query(&self, statement: &Statement) -> Result<QueryPlan> {
        self.engine.query(statement).await
    }

    async fn prepare(&self, statement: &Statement) -> Result<Prepared> {
        self.engine.prepare(statement).await
    }

    async fn names(&self) -> Result<Names> {
        self.engine.names().await
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        self.engine.tables().await
    }

    async fn columns(&self, table: &TableName) -> Result<SchemaRef> {
        self.engine.columns(table).await
    }

    async fn run_query(&self, payload: Value) -> Result<BatchSource> {
        if self.engine.reads_datasets(&payload).await? {
            return Err(not_here("rows"));
        }
        self.engine.run_query(payload).await
    }

    async fn action(&self, name: &str, body: Value) -> Result<BoxStream<'static, Result<Value>>> {
        self.engine.action(name, body).await
    }

    async fn put(&self, path: &[String], mode: Option<String>, source: BatchSource) -> Result<Value> {
        self.engine.put(path, mode, source).await
    }
}

/// A worker: rows for those whom the dispatcher sent, and nothing else.
pub(super) struct WorkerBackend {
    pub(super) engine: EngineBackend,
    pub(super) dispatchers: Vec<String>,
}

impl WorkerBackend {
    fn elsewhere(&self) -> Error {
        Error::failed_precondition("this is a worker; it serves the rows of tickets and nothing else")
            .with_remedy(format!("ask the dispatcher: {}", self.dispatchers.join(", ")))
    }
}

#[async_trait]
impl Backend for WorkerBackend {
    async fn list(&self) -> Result<Vec<Listing>> {
        Err(self.elsewhere())
    }

    async fn dataset(&self, _: &[String]) -> Result<DatasetFlight> {
        Err(self.elsewhere())
    }

    async fn read_group(&self, payload: Value) -> Result<BatchSource> {
        self.engine.read_group(payload).await
    }

    async fn open_job(&self, _: &str) -> Result<JobFlight> {
        Err(self.elsewhere())
    }

    async fn job_stream(&self, payload: Value, acks: bool) -> Result<Box<dyn JobStream>> {
        self.engine.job_stream(payload, acks).await
    }

    async fn query(&self, _: &Statement) -> Result<QueryPlan> {
        Err(self.elsewhere())
    }

    async fn prepare(&self, _: &Statement) -> Result<Prepared> {
        Err(self.elsewhere())
    }

    async fn names(&self) -> Result<Names> {
        Err(self.elsewhere())
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        Err(self.elsewhere())
    }

    async fn columns(&self, _: &TableName) -> Result<SchemaRef> {
        Err(self.elsewhere())
    }

    async fn run_query(&self, payload: Value) -> Result<BatchSource> {
        self.engine.run_query(payload).await
    }

    async fn action(&self, _: &str, _: Value) -> Result<BoxStream<'static, Result<Value>>> {
        Err(self.elsewhere())
    }

    async fn put(&self, _: &[String], _: Option<String>, _: BatchSource) -> Result<Value> {
        Err(self.elsewhere())
    }
}
