//! The engine as the Flight service sees it.
//!
//! Owns: what payloads are put into tickets, and which action calls what. Must not know: how messages are encoded, how tickets are signed.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Int32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use forebay_core::ids::{DatasetName, EpochId, VersionId};
use forebay_core::{Error, Result};
use forebay_flight::api::MaterializeRequest;
use forebay_flight::backend::{Backend, BatchSource, DatasetFlight, JobFlight, JobStream, Listing, QueryPlan};
use forebay_flight::statement::{Names, Prepared, Statement, TableName};
use forebay_sql::catalog::{CATALOG, KINDS, Request, SCHEMAS, TableEntry};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::shard;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::{Engine, admin};

/// Stored bytes behind one endpoint of a dataset: enough to keep a stream busy, few enough for parallel readers.
const GROUP_BYTES: u64 = 256 << 20;
/// Row groups decoded ahead of a plain reader.
const AHEAD: usize = 2;
/// The column that tells a dataset's epochs apart; Delta's partition column.
const EPOCH: &str = "epoch";

/// Some shards of one version, in storage order.
#[derive(Debug, Serialize, Deserialize)]
struct Group {
    dataset: DatasetName,
    version: VersionId,
    shards: Vec<usize>,
}

/// A statement as the catalog is asked it.
fn request(statement: &Statement) -> Result<Request> {
    let session = &statement.session;
    let deadline = session.timeout.map(Duration::try_from_secs_f64).transpose();
    let mut request = Request::new(statement.sql.clone());
    request.parameters = statement.parameters()?;
    request.schema.clone_from(&session.schema);
    request.deadline = deadline.map_err(|e| Error::bad_input(format!("a session's timeout: {e}")))?;
    request.rows = session.row_limit;
    Ok(request)
}

/// The schema of a dataset as plain readers and SQL see it: its columns, then `epoch`.
pub(crate) fn with_epoch(schema: &Schema) -> SchemaRef {
    let mut fields = schema.fields().to_vec();
    fields.push(Arc::new(Field::new(EPOCH, DataType::Int32, false)));
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn rows(version: &DatasetVersion) -> (u64, u64) {
    (version.shards.iter().map(|s| s.rows()).sum(), version.shards.iter().map(|s| s.size).sum())
}

/// `[name]`, `[name@v3]`, each perhaps followed by `epoch=N`.
struct Path {
    name: String,
    version: Option<VersionId>,
    epoch: Option<EpochId>,
}

impl Path {
    fn parse(path: &[String]) -> Result<Self> {
        let wrong = |what: String| Error::bad_input(what).with_remedy("use [name], [name@v3] or [name, epoch=0]");
        let (name, epoch) = match path {
            [name] => (name, None),
            [name, epoch] => {
                let number = epoch.strip_prefix("epoch=").and_then(|n| n.parse().ok());
                (name, Some(EpochId(number.ok_or_else(|| wrong(format!("`{}` is not an epoch", epoch.escape_debug())))?)))
            }
            _ => return Err(wrong(format!("a dataset's path has one or two elements, not {}", path.len()))),
        };
        let (name, version) = match name.split_once("@v") {
            None => (name.clone(), None),
            Some((name, version)) => {
                let number = version.parse().map_err(|_| wrong(format!("`@v{}` is not a version", version.escape_debug())))?;
                (name.to_owned(), Some(VersionId(number)))
            }
        };
        Ok(Self { name, version, epoch })
    }
}

/// One engine behind the Flight port.
#[derive(Debug, Clone)]
pub(crate) struct EngineBackend(pub(crate) Arc<Engine>);

impl EngineBackend {
    fn read_shards(&self, version: Arc<DatasetVersion>, shards: Vec<usize>) -> BatchSource {
        let schema = with_epoch(&version.schema);
        let groups: Vec<(usize, usize)> = shards
            .into_iter()
            .filter_map(|shard| version.shards.get(shard).map(|meta| (shard, meta.row_groups.len())))
            .flat_map(|(shard, groups)| (0..groups).map(move |group| (shard, group)))
            .collect();
        let (root, out) = (self.0.root().clone(), schema.clone());
        let batches = stream::iter(groups)
            .map(move |(shard, group)| {
                let (root, version, out) = (root.clone(), version.clone(), out.clone());
                async move {
                    let epoch = version.shards[shard].epoch;
                    let read = shard::read_row_group(&root, &version, shard, group, None, None).await?;
                    read.into_iter().map(|batch| add_epoch(batch, epoch, &out)).collect::<Result<Vec<_>>>()
                }
            })
            .buffered(AHEAD)
            .map_ok(|batches| stream::iter(batches.into_iter().map(Ok)))
            .try_flatten()
            .boxed();
        BatchSource { schema, batches }
    }
}

fn add_epoch(batch: RecordBatch, epoch: EpochId, schema: &SchemaRef) -> Result<RecordBatch> {
    let number = i32::try_from(epoch.0).unwrap_or(i32::MAX);
    let mut columns = batch.columns().to_vec();
    columns.push(Arc::new(Int32Array::from(vec![number; batch.num_rows()])));
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|e| Error::internal(format!("a shard's rows are not of its dataset's schema: {e}")))
}

#[async_trait]
impl Backend for EngineBackend {
    async fn list(&self) -> Result<Vec<Listing>> {
        let listing = |v: &Arc<DatasetVersion>| {
            let (rows, bytes) = rows(v);
            Listing { path: vec![v.name.0.clone()], schema: with_epoch(&v.schema), rows, bytes }
        };
        Ok(self.0.view().all().await?.iter().map(listing).collect())
    }

    async fn dataset(&self, path: &[String]) -> Result<DatasetFlight> {
        let path = Path::parse(path)?;
        let version = self.0.known(&path.name, path.version).await?;
        if let Some(epoch) = path.epoch
            && !version.epochs().contains(&epoch)
        {
            return Err(Error::not_found(format!("dataset `{}` has no epoch {epoch}", version.name))
                .with_remedy(format!("it has {}", version.epochs().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))));
        }
        let (mut groups, mut open, mut size, mut rows, mut bytes) = (Vec::new(), Vec::new(), 0, 0, 0);
        for (index, shard) in version.shards.iter().enumerate().filter(|(_, s)| path.epoch.is_none_or(|e| e == s.epoch)) {
            if size > 0 && size + shard.size > GROUP_BYTES {
                groups.push(std::mem::take(&mut open));
                size = 0;
            }
            open.push(index);
            size += shard.size;
            rows += shard.rows();
            bytes += shard.size;
        }
        // A dataset without rows still has one endpoint, whose stream says its schema.
        groups.push(open);
        let payload = |shards| {
            serde_json::to_value(Group { dataset: version.name.clone(), version: version.version, shards })
                .map_err(|e| Error::internal(format!("a ticket could not be made: {e}")))
        };
        Ok(DatasetFlight {
            schema: with_epoch(&version.schema),
            groups: groups.into_iter().map(payload).collect::<Result<_>>()?,
            rows,
            bytes,
        })
    }

    async fn read_group(&self, payload: Value) -> Result<BatchSource> {
        let group: Group = ticket(payload)?;
        let version = self.0.view().version(&group.dataset, Some(group.version)).await?;
        Ok(self.read_shards(version, group.shards))
    }

    async fn open_job(&self, command: &str) -> Result<JobFlight> {
        self.0.open_job(command).await
    }

    async fn job_schema(&self, command: &str) -> Result<SchemaRef> {
        self.0.job_schema(command).await
    }

    async fn job_stream(&self, payload: Value, acks: bool) -> Result<Box<dyn JobStream>> {
        self.0.job_stream(payload, acks).await
    }

    async fn query(&self, statement: &Statement) -> Result<QueryPlan> {
        self.0.metrics().queries.inc();
        let schema = self.0.catalog().answer(&request(statement)?).await?;
        let payload = serde_json::to_value(statement).map_err(|e| Error::internal(format!("a ticket could not be made: {e}")))?;
        Ok(QueryPlan { schema, payload })
    }

    async fn run_query(&self, payload: Value) -> Result<BatchSource> {
        let statement: Statement = ticket(payload)?;
        let running = self.0.catalog().ask(&request(&statement)?).await?;
        Ok(BatchSource { schema: running.schema, batches: running.stream })
    }

    async fn prepare(&self, statement: &Statement) -> Result<Prepared> {
        let known = self.0.catalog().prepare(&request(statement)?).await?;
        Ok(Prepared { schema: known.schema, parameters: known.parameters })
    }

    async fn names(&self) -> Result<Names> {
        let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Ok(Names { catalog: CATALOG.to_owned(), schemas: own(&SCHEMAS), kinds: own(&KINDS) })
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        let tables = self.0.catalog().tables().await?;
        let named = |t: TableEntry| TableName { schema: t.schema.to_owned(), name: t.name, kind: t.kind.to_owned() };
        Ok(tables.into_iter().map(named).collect())
    }

    async fn columns(&self, table: &TableName) -> Result<SchemaRef> {
        self.0.catalog().columns(&table.schema, &table.name).await
    }

    async fn action(&self, name: &str, body: Value) -> Result<BoxStream<'static, Result<Value>>> {
        let engine = &self.0;
        let one = |value: Value| stream::iter([Ok(value)]).boxed();
        Ok(match name {
            "forebay.materialize" => {
                let request: MaterializeRequest = admin::body(name, body)?;
                engine.clone().materialize(request).await?
            }
            "forebay.datasets" => one(engine.datasets(admin::body(name, body)?).await?),
            "forebay.views" => one(engine.views(admin::body(name, body)?).await?),
            "forebay.index" => engine.clone().index(admin::body(name, body)?).await?,
            "forebay.plan" => one(engine.plan(admin::body(name, body)?).await?),
            "forebay.job.status" => one(engine.job_status(admin::body(name, body)?).await?),
            "forebay.job.stop" => one(engine.job_stop(admin::body(name, body)?).await?),
            "forebay.job.ack" => one(engine.job_ack(admin::body(name, body)?).await?),
            "forebay.job.report" => one(engine.job_report(admin::body(name, body)?).await?),
            "forebay.job.leave" => one(engine.job_leave(admin::body(name, body)?).await?),
            "forebay.job.commit" => one(admin::json_of(&engine.job_commit(admin::body(name, body)?).await?)?),
            "forebay.job.restore" => one(engine.job_restore(admin::body(name, body)?).await?),
            "forebay.tasks" => one(engine.tasks(body.get("failed").and_then(Value::as_bool).unwrap_or_default()).await?),
            "forebay.workers" => one(engine.workers(admin::body(name, body)?).await?),
            "forebay.cancel" => one(engine.cancel(admin::body(name, body)?).await?),
            other => {
                return Err(
                    Error::unsupported(format!("there is no action `{}`", other.escape_debug())).with_remedy("ListActions names them")
                );
            }
        })
    }

    async fn put(&self, path: &[String], mode: Option<String>, source: BatchSource) -> Result<Value> {
        self.0.put(path, mode.as_deref(), source).await
    }
}

impl EngineBackend {
    /// Whether a planned query reads rows of datasets, and not only what the system tables say.
    pub(crate) async fn reads_datasets(&self, payload: &Value) -> Result<bool> {
        let statement: Statement = ticket(payload.clone())?;
        self.0.catalog().reads_datasets(&request(&statement)?).await
    }
}

fn ticket<T: serde::de::DeserializeOwned>(payload: Value) -> Result<T> {
    serde_json::from_value(payload).map_err(|e| Error::bad_input(format!("the ticket is not for this call: {e}")))
}
