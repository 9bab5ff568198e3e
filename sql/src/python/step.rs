//! One function of a pipeline, callable on batches.

use std::sync::{Arc, OnceLock};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, Kind, Result};
use serde_json::{Map, Value};

use super::module_set::ModuleSet;
use super::pool::{PythonPool, Seat};
use super::process::Refusal;
use super::returned;
use super::wire::{self, Request};

/// `module:function` with its options. Calls may run at the same time; each takes a process of the pool.
#[derive(Debug)]
pub struct PythonStep {
    pool: PythonPool,
    set: Arc<ModuleSet>,
    id: u64,
    module: String,
    function: String,
    options: Map<String, Value>,
    output: OnceLock<SchemaRef>,
}

impl PythonStep {
    pub(super) fn new(pool: PythonPool, set: Arc<ModuleSet>, id: u64, module: &str, function: &str, options: Map<String, Value>) -> Self {
        Self { pool, set, id, module: module.to_owned(), function: function.to_owned(), options, output: OnceLock::new() }
    }

    /// Imports the function in one process, for its errors.
    pub(super) async fn import(&self) -> Result<()> {
        let seat = self.seat().await?;
        seat.done();
        Ok(())
    }

    /// What the function returns for batches of `input`: as its attribute `output_schema` says (a `pyarrow.Schema`, or a function from the input's
    /// to it), else as a call with no rows shows, else a call with two made-up ones. Later calls must return the same.
    pub async fn output_schema(&self, input: &Schema) -> Result<SchemaRef> {
        let body = wire::encode(input, None)?;
        let body = self.ask(&Request::Schema { step: self.id }, body).await.map_err(|e| {
            e.context(format!("{self} could not be asked what it returns"))
                .with_remedy(format!("correct it, or declare it in the module: {}.output_schema = pyarrow.schema([...])", self.function))
        })?;
        let (schema, _) = wire::decode(body)?;
        let schema = returned::tidy_schema(&schema).map_err(|e| e.context(format!("{self} returned")))?;
        let _ = self.output.set(schema.clone());
        Ok(schema)
    }

    /// Calls the function on one batch, which holds `_id` and `_source`. Without `_id` in what it returns the row count must be unchanged.
    /// Every error names the function and the rows.
    pub async fn call(&self, batch: RecordBatch, seed: u64, epoch: u32) -> Result<RecordBatch> {
        let what = format!("{self} on {}", rows(&batch));
        self.try_call(&batch, seed, epoch).await.map_err(|e| e.context(what))
    }

    async fn try_call(&self, batch: &RecordBatch, seed: u64, epoch: u32) -> Result<RecordBatch> {
        let given = batch.clone();
        let body = blocking(move || wire::encode(&given.schema(), Some(&given))).await?;
        let body = self.ask(&Request::Call { step: self.id, seed, epoch }, body).await?;
        let expected = self.output.get().cloned();
        let given_rows = batch.num_rows();
        blocking(move || match wire::decode(body)? {
            (_, Some(result)) => returned::check(result, given_rows, expected.as_ref()),
            (schema, None) => returned::check(RecordBatch::new_empty(schema), given_rows, expected.as_ref()),
        })
        .await
    }

    async fn ask(&self, request: &Request<'_>, body: Vec<u8>) -> Result<Vec<u8>> {
        let mut seat = self.seat().await?;
        let answer = exchange(&mut seat, request, &body).await?;
        seat.done();
        answer
    }

    /// A process that has imported the function.
    async fn seat(&self) -> Result<Seat> {
        let mut seat = self.pool.seat(&self.set).await?;
        let loaded = seat.process.as_ref().is_some_and(|p| p.loaded.contains(&self.id));
        if !loaded {
            let request = Request::Load { step: self.id, module: &self.module, function: &self.function, options: &self.options };
            match exchange(&mut seat, &request, &[]).await.map_err(|e| e.context(format!("importing `{}`", self.module)))? {
                Ok(_) => {}
                Err(error) => {
                    seat.done();
                    return Err(error.context(format!("{self} cannot be used")));
                }
            }
            if let Some(process) = &mut seat.process {
                process.loaded.push(self.id);
            }
        }
        Ok(seat)
    }
}

impl std::fmt::Display for PythonStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.module, self.function)
    }
}

/// One request. The outer error took the process with it; the inner one is the function's, and the process goes on.
async fn exchange(seat: &mut Seat, request: &Request<'_>, body: &[u8]) -> Result<Result<Vec<u8>>> {
    let Some(process) = &mut seat.process else { return Err(Error::internal("a seat without a process")) };
    match process.ask(request, body).await {
        Ok(body) => Ok(Ok(body)),
        Err(Refusal::Raised(answer)) => {
            let kind = if answer.memory { Kind::ResourceExhausted } else { Kind::BadInput };
            Ok(Err(Error::new(kind, format!("{}{}", answer.error, process.said()))))
        }
        Err(Refusal::Died(error)) => {
            seat.process = None;
            Err(error)
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::internal(e.to_string()))?
}

/// `rows _id 17 to 42`, for messages.
fn rows(batch: &RecordBatch) -> String {
    let ids = batch.column_by_name("_id").and_then(|ids| ids.as_primitive_opt::<Int64Type>());
    match ids.filter(|ids| !ids.is_empty()).map(|ids| (ids.value(0), ids.value(ids.len() - 1))) {
        Some((first, last)) if first == last => format!("the row _id {first}"),
        Some((first, last)) => format!("rows _id {first} to {last}"),
        None => format!("{} rows", batch.num_rows()),
    }
}
