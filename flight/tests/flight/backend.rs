//! An engine that holds one dataset in memory, and records what it was told.

use arrow::array::*;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use forebay_core::{Error, Result};
use forebay_flight::Backend;
use forebay_flight::api::{BatchMeta, ConsumerMessage, End};
use forebay_flight::backend::*;
use forebay_flight::statement::{Names, Prepared, Statement, TableName};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub struct Told {
    /// Batches that job streams were asked for.
    pub asked: AtomicU64,
    pub finished: AtomicU64,
    pub dropped: AtomicU64,
    pub messages: Mutex<Vec<ConsumerMessage>>,
    pub put: Mutex<Vec<Put>>,
    pub statements: Mutex<Vec<Statement>>,
    /// Endless queries that are being read.
    pub endless: AtomicU64,
}

/// Path, mode and rows of one put.
pub type Put = (Vec<String>, Option<String>, RecordBatch);

pub struct Double {
    pub chunks: Arc<Vec<RecordBatch>>,
    pub batch_size: usize,
    pub batches: u64,
    /// The job stream fails after this many.
    pub fails_after: Option<u64>,
    pub panics: bool,
    pub told: Arc<Told>,
}

/// Rows with an id, a view column (converted on the wire) and a tensor of `width` bytes.
pub fn chunk(first: i64, rows: usize, width: i32) -> RecordBatch {
    let ids = Int64Array::from_iter_values(first..first + rows as i64);
    let words: StringViewArray = (0..rows).map(|i| (i % 3 != 0).then(|| format!("word {i} that is too long to be inlined"))).collect();
    let mut bytes = Vec::with_capacity(rows * width as usize);
    for row in 0..rows {
        bytes.resize(bytes.len() + width as usize, (row as i64 + first) as u8);
    }
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let tensor = FixedSizeListArray::new(item.clone(), width, Arc::new(UInt8Array::from(bytes)), None);
    let metadata = [("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned())].into();
    let schema = Schema::new(vec![
        Field::new("_id", DataType::Int64, false),
        Field::new("word", DataType::Utf8View, true),
        Field::new("image", DataType::FixedSizeList(item, width), false).with_metadata(metadata),
    ]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids), Arc::new(words), Arc::new(tensor)]).unwrap()
}

impl Double {
    pub fn new(rows: usize, width: i32, batch_size: usize) -> Self {
        let chunks = Arc::new(vec![chunk(0, rows, width), chunk(rows as i64, rows, width)]);
        let batches = (2 * rows / batch_size) as u64;
        Self { chunks, batch_size, batches, fails_after: None, panics: false, told: Arc::default() }
    }

    pub fn schema(&self) -> SchemaRef {
        self.chunks[0].schema()
    }

    fn order(&self) -> Order {
        Order { batch_size: self.batch_size as u64, total: (2 * self.chunks[0].num_rows()) as u64 }
    }

    pub fn ids(&self, batch: u64) -> Vec<i64> {
        self.order()
            .rows(batch)
            .iter()
            .map(|&(c, r)| self.chunks[c as usize]["_id"].as_primitive::<arrow::datatypes::Int64Type>().value(r as usize))
            .collect()
    }

    fn source(&self, chunk: usize) -> BatchSource {
        let batch = self.chunks[chunk].clone();
        BatchSource { schema: self.schema(), batches: stream::once(async { Ok(batch) }).boxed() }
    }
}

/// Rows of a batch: from both chunks, in a scattered order.
struct Order {
    batch_size: u64,
    total: u64,
}

impl Order {
    fn rows(&self, batch: u64) -> Vec<(u32, u32)> {
        (0..self.batch_size)
            .map(|i| {
                let row = ((batch * self.batch_size + i) * 7919) % self.total;
                ((row % 2) as u32, (row / 2) as u32)
            })
            .collect()
    }
}

struct Stream {
    schema: SchemaRef,
    chunks: Arc<Vec<RecordBatch>>,
    order: Order,
    batches: u64,
    at: u64,
    fails_after: Option<u64>,
    panics: bool,
    told: Arc<Told>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.told.dropped.fetch_add(1, SeqCst);
    }
}

/// A query that only ends when it is dropped.
struct Endless(Arc<Told>);

impl Endless {
    fn new(told: &Arc<Told>) -> Self {
        told.endless.fetch_add(1, SeqCst);
        Self(told.clone())
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.endless.fetch_sub(1, SeqCst);
    }
}

struct Control(Arc<Told>);

#[async_trait]
impl JobControl for Control {
    async fn on_message(&self, message: ConsumerMessage) -> Result<()> {
        self.0.messages.lock().unwrap().push(message);
        Ok(())
    }
}

#[async_trait]
impl JobStream for Stream {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn control(&self) -> Arc<dyn JobControl> {
        Arc::new(Control(self.told.clone()))
    }

    async fn next(&mut self) -> Result<JobEvent> {
        assert!(!self.panics, "a planted panic");
        if self.fails_after == Some(self.at) {
            return Err(Error::corrupt("a shard is not what the log says").with_remedy("restore it"));
        }
        if self.at == self.batches {
            return Ok(JobEvent::End(End::Job));
        }
        let rows = self.order.rows(self.at);
        self.told.asked.fetch_add(1, SeqCst);
        let (batch, job) = (self.at, "run1".to_owned());
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
            digest: format!("{batch:016x}"),
            padding: false,
        };
        self.at += 1;
        Ok(JobEvent::Batch(BatchPart { chunks: self.chunks.clone(), rows, meta }))
    }

    async fn finish(&mut self) -> Result<()> {
        self.told.finished.fetch_add(1, SeqCst);
        Ok(())
    }
}

#[async_trait]
impl Backend for Double {
    async fn list(&self) -> Result<Vec<Listing>> {
        let listing = |name: &str| Listing { path: vec![name.to_owned()], schema: self.schema(), rows: 7, bytes: 9 };
        Ok(vec![listing("digits"), listing("words")])
    }

    async fn dataset(&self, path: &[String]) -> Result<DatasetFlight> {
        if path[0] != "digits" {
            return Err(Error::not_found(format!("no dataset `{}`", path[0])).with_remedy("see `forebay datasets`"));
        }
        let groups = (0..self.chunks.len()).map(|chunk| json!({ "chunk": chunk })).collect();
        Ok(DatasetFlight { schema: self.schema(), groups, rows: 2 * self.chunks[0].num_rows() as u64, bytes: 1000 })
    }

    async fn read_group(&self, payload: Value) -> Result<BatchSource> {
        Ok(self.source(payload["chunk"].as_u64().unwrap() as usize))
    }

    async fn open_job(&self, command: &str) -> Result<JobFlight> {
        let command: Value = serde_json::from_str(command).map_err(|e| Error::bad_input(e.to_string()))?;
        if command["dataset"] != "digits" {
            return Err(Error::not_found("no such dataset"));
        }
        Ok(JobFlight {
            schema: self.schema(),
            payload: json!({"job": "run1"}),
            place: Default::default(),
            rows: Some(self.batches * self.batch_size as u64),
        })
    }

    async fn job_stream(&self, payload: Value, _acks: bool) -> Result<Box<dyn JobStream>> {
        assert_eq!(payload["job"], "run1");
        Ok(Box::new(Stream {
            schema: self.schema(),
            chunks: self.chunks.clone(),
            order: self.order(),
            batches: self.batches,
            at: 0,
            fails_after: self.fails_after,
            panics: self.panics,
            told: self.told.clone(),
        }))
    }

    async fn query(&self, statement: &Statement) -> Result<QueryPlan> {
        if statement.sql == "SELEC" {
            return Err(Error::bad_input("SQL: expected a statement"));
        }
        self.told.statements.lock().unwrap().push(statement.clone());
        Ok(QueryPlan { schema: self.schema(), payload: json!(statement.sql) })
    }

    async fn prepare(&self, statement: &Statement) -> Result<Prepared> {
        if statement.sql == "SELEC" {
            return Err(Error::bad_input("SQL: expected a statement"));
        }
        let parameters = statement.sql.matches('?').enumerate().map(|(i, _)| Field::new(format!("${}", i + 1), DataType::Int64, true));
        Ok(Prepared { schema: self.schema(), parameters: Arc::new(Schema::new(parameters.collect::<Vec<_>>())) })
    }

    async fn names(&self) -> Result<Names> {
        let all = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Ok(Names { catalog: "forebay".to_owned(), schemas: all(&["public", "system"]), kinds: all(&["VIEW", "BASE TABLE"]) })
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        let table = |schema: &str, name: &str, kind: &str| TableName { schema: schema.into(), name: name.into(), kind: kind.into() };
        let public = ["words", "my_words", "myxwords", "dropped"].map(|name| table("public", name, "BASE TABLE"));
        Ok(public.into_iter().chain([table("system", "workers", "VIEW")]).collect())
    }

    async fn columns(&self, table: &TableName) -> Result<SchemaRef> {
        if table.name == "dropped" {
            return Err(Error::not_found("no such table"));
        }
        Ok(self.schema())
    }

    async fn run_query(&self, payload: Value) -> Result<BatchSource> {
        if payload == "SELECT nothing" {
            return Ok(BatchSource { schema: self.schema(), batches: stream::empty().boxed() });
        }
        if payload == "SELECT endless" {
            let guard = Endless::new(&self.told);
            let batch = self.chunks[0].clone();
            let rows = stream::repeat(()).map(move |()| {
                let _held = &guard;
                Ok(batch.clone())
            });
            return Ok(BatchSource { schema: self.schema(), batches: rows.boxed() });
        }
        if payload == "SELECT late_error" {
            let rows = self.source(0).batches;
            let error = stream::once(async { Err(Error::bad_input("division by zero")) });
            return Ok(BatchSource { schema: self.schema(), batches: rows.chain(error).boxed() });
        }
        Ok(self.source(1))
    }

    async fn action(&self, name: &str, body: Value) -> Result<BoxStream<'static, Result<Value>>> {
        match name {
            "forebay.echo" => Ok(stream::iter([Ok(body.clone()), Ok(json!({ "again": body }))]).boxed()),
            "forebay.panics" => panic!("a planted panic"),
            "forebay.fails" => Ok(stream::iter([Ok(json!(1)), Err(Error::failed_precondition("late"))]).boxed()),
            _ => Err(Error::unsupported(format!("the action `{name}`"))),
        }
    }

    async fn put(&self, path: &[String], mode: Option<String>, source: BatchSource) -> Result<Value> {
        let schema = source.schema.clone();
        let batches: Vec<RecordBatch> = source.batches.try_collect().await?;
        let rows = concat_batches(&schema, &batches).unwrap();
        let answer = json!({ "rows": rows.num_rows() });
        self.told.put.lock().unwrap().push((path.to_vec(), mode, rows));
        Ok(answer)
    }
}
