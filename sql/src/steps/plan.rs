//! One SQL step: planned once per (seed, epoch), run per batch.
//!
//! The physical plan's leaf finds the batch in the task context, so one plan serves all batches, also at the same time.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::memory::{MemoryCatalogProvider, MemoryCatalogProviderList, MemorySchemaProvider};
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, Session, TableProvider};
use datafusion::common::Result as DfResult;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, TableType};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, common};
use datafusion::sql::parser::Statement as DfStatement;
use forebay_core::{Error, Result};
use parking_lot::Mutex;

use super::bisect::bisect;
use super::keys::{self, is_key};
use super::parse::{ParsedStep, parse};
use super::rows::{Draws, Effect, carry, check};
use super::{INPUT, KEYS, PART, StepOutput};
use crate::functions::step_functions;
use crate::guard::{caught, on_big_stack, to_error};
use crate::session::{self, Room};

/// Plans kept per step. A worker runs a few epochs and passes at a time; a plan is cheap to make again.
const PLANS: usize = 8;

/// Evaluating recurses once per operator. Up to this many are safe on the small stack of a thread for blocking work, in debug builds too.
const SHALLOW: usize = 200;

/// The session that all steps are planned in: immutable, with an empty catalog.
static SESSION: LazyLock<Result<SessionState>> = LazyLock::new(|| {
    let runtime = session::runtime(Room { memory: None, spill: 0 }).map_err(to_error)?;
    Ok(session::state(session::config(1), runtime, step_functions()))
});

/// A compiled SQL step.
pub(super) struct SqlStep {
    name: String,
    statement: ParsedStep,
    input: SchemaRef,
    output: SchemaRef,
    effect: Effect,
    /// Most recently used last.
    plans: Mutex<Vec<(RunKey, Arc<Prepared>)>>,
}

/// Seed and epoch.
type RunKey = (u64, u32);

impl fmt::Debug for SqlStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStep").field("name", &self.name).field("effect", &self.effect).finish_non_exhaustive()
    }
}

/// A physical plan and how its columns become the step's.
#[derive(Debug)]
struct Prepared {
    plan: Arc<dyn ExecutionPlan>,
    /// For each output column, the plan's column; `None` is `_part`, counted anew.
    columns: Vec<Option<usize>>,
    output: SchemaRef,
    effect: Effect,
}

impl SqlStep {
    pub(super) async fn compile(name: &str, query: &str, input: SchemaRef) -> Result<Self> {
        let (text, step, schema) = (query.to_owned(), name.to_owned(), input.clone());
        let (statement, prepared) = on_big_stack(move || {
            let statement = parse(&text)?;
            let prepared = prepare(&statement, schema, Draws { seed: 0, epoch: 0, step: &step })?;
            Ok((statement, prepared))
        })
        .await?;
        let (output, effect) = (prepared.output.clone(), prepared.effect);
        let plans = Mutex::new(vec![((0, 0), Arc::new(prepared))]);
        Ok(Self { name: name.to_owned(), statement, input, output, effect, plans })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn output(&self) -> &SchemaRef {
        &self.output
    }

    pub(super) fn decodes(&self) -> bool {
        self.statement.decodes
    }

    pub(super) fn effect(&self) -> Effect {
        self.effect
    }

    /// Evaluates the batch on a thread for blocking work: decoding an image is not for an async thread.
    pub(super) async fn run(self: Arc<Self>, seed: u64, epoch: u32, batch: RecordBatch, max_bad: usize) -> Result<StepOutput> {
        let prepared = self.prepared(seed, epoch).await?;
        let mut output = bisect(&self.name, vec![batch], &self.output, max_bad, |batch| {
            let prepared = prepared.clone();
            let deep = self.statement.operators > SHALLOW;
            async move {
                if deep {
                    return on_big_stack(move || prepared.run(batch)).await;
                }
                tokio::task::spawn_blocking(move || caught(|| prepared.run(batch)))
                    .await
                    .map_err(|e| Error::internal(format!("a step's thread went away: {e}")))?
            }
        })
        .await?;
        if self.effect.multiplies {
            output.batch = keys::renumbered(output.batch)?;
        }
        Ok(output)
    }

    async fn prepared(self: &Arc<Self>, seed: u64, epoch: u32) -> Result<Arc<Prepared>> {
        let key = (seed, epoch);
        if let Some(found) = self.cached(key) {
            return Ok(found);
        }
        let step = self.clone();
        let made = on_big_stack(move || {
            let draws = Draws { seed, epoch, step: &step.name };
            prepare(&step.statement, step.input.clone(), draws).map(Arc::new)
        })
        .await?;
        if made.output != self.output {
            return Err(Error::bad_input("the types of this step's columns depend on `epoch()` or `seed()`")
                .with_remedy("use them as values, not where a literal decides a type"));
        }
        let mut plans = self.plans.lock();
        if plans.len() >= PLANS {
            plans.remove(0);
        }
        plans.push((key, made.clone()));
        Ok(made)
    }

    fn cached(&self, key: RunKey) -> Option<Arc<Prepared>> {
        let mut plans = self.plans.lock();
        let place = plans.iter().position(|(k, _)| *k == key)?;
        let entry = plans.remove(place);
        let found = entry.1.clone();
        plans.push(entry);
        Some(found)
    }
}

/// Text to physical plan. Runs on a big stack; nothing in it waits.
fn prepare(statement: &ParsedStep, input: SchemaRef, draws: Draws<'_>) -> Result<Prepared> {
    let state = SESSION.as_ref().map_err(Clone::clone)?;
    let state = with_input(state.clone(), input)?;
    let statement = DfStatement::Statement(Box::new(statement.statement.clone()));
    let plan = futures::executor::block_on(state.statement_to_plan(statement)).map_err(to_error)?;
    let effect = check(&plan, false)?;
    let selected = plan.schema().clone();
    let plan = carry(plan, draws)?;
    let optimized = state.optimize(&plan).map_err(to_error)?;
    check(&optimized, true)?;
    let physical = futures::executor::block_on(state.query_planner().create_physical_plan(&optimized, &state)).map_err(to_error)?;
    if physical.properties().partitioning.partition_count() != 1 {
        return Err(Error::internal("a step was planned in several partitions"));
    }
    let (output, columns) = output(&optimized, selected.as_arrow(), effect)?;
    Ok(Prepared { plan: physical, columns, output, effect })
}

/// The step's columns: keys first, then its own as `selected`. Whether one may be null is taken from there: in the optimized plan that can hang
/// on which branch of a CASE the epoch chose.
fn output(plan: &LogicalPlan, selected: &Schema, effect: Effect) -> Result<(SchemaRef, Vec<Option<usize>>)> {
    let schema = plan.schema().as_arrow();
    keys::check_names(schema.fields().iter().map(|f| f.name().as_str()).filter(|n| !is_key(n)))?;
    let place = |name: &str| schema.fields().iter().position(|f| f.name() == name);
    let with_part = effect.multiplies || place(PART).is_some();
    let mut fields = keys::key_fields(with_part);
    let mut columns = Vec::with_capacity(schema.fields().len() + 1);
    for name in KEYS {
        match (name == PART, place(name)) {
            (true, _) if effect.multiplies => columns.push(None),
            (true, None) => {}
            (_, Some(index)) => columns.push(Some(index)),
            (false, None) => return Err(Error::internal(format!("a step lost `{name}`"))),
        }
    }
    for (index, field) in schema.fields().iter().enumerate().filter(|(_, f)| !is_key(f.name())) {
        let nullable = selected.field_with_name(field.name()).map_or(true, Field::is_nullable);
        fields.push(stored_type(field, nullable)?);
        columns.push(Some(index));
    }
    Ok((Arc::new(Schema::new(fields)), columns))
}

/// A column's field without views, which only live inside of queries.
fn stored_type(field: &FieldRef, nullable: bool) -> Result<FieldRef> {
    let data_type = match field.data_type() {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Null => {
            return Err(Error::bad_input(format!("the column `{}` is always null and has no type", field.name()))
                .with_remedy("cast it, for example CAST(NULL AS INT)"));
        }
        other => other.clone(),
    };
    Ok(Arc::new(Field::new(field.name(), data_type, nullable).with_metadata(field.metadata().clone())))
}

impl Prepared {
    /// One batch in, one batch out. Blocks.
    fn run(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let state = SESSION.as_ref().map_err(Clone::clone)?;
        // A fresh copy of the plan's nodes: each execution adds to a node's metrics, and would do so for as long as the pipeline runs.
        let plan = reset_plan_states(self.plan.clone()).map_err(to_error)?;
        let config = state.config().clone().with_extension(Arc::new(Current(batch)));
        let context = TaskContext::default().with_session_config(config).with_runtime(state.runtime_env().clone());
        let stream = plan.execute(0, Arc::new(context)).map_err(to_error)?;
        let schema = stream.schema();
        let batches = futures::executor::block_on(common::collect(stream)).map_err(to_error)?;
        let whole = match batches.as_slice() {
            [one] => one.clone(),
            many => concat_batches(&schema, many).map_err(|e| Error::new(forebay_core::Kind::ResourceExhausted, e.to_string()))?,
        };
        self.arrange(&whole)
    }

    fn arrange(&self, made: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for (place, field) in self.columns.iter().zip(self.output.fields()) {
            let column = match place {
                None => keys::number_parts(keys::ids(made)?),
                Some(index) => made.column(*index).clone(),
            };
            let fits = column.data_type() == field.data_type();
            columns.push(if fits { column } else { cast(&column, field.data_type()).map_err(|e| Error::bad_input(e.to_string()))? });
        }
        RecordBatch::try_new(self.output.clone(), columns).map_err(|e| Error::internal(e.to_string()))
    }
}

fn with_input(mut state: SessionState, schema: SchemaRef) -> Result<SessionState> {
    let tables = MemorySchemaProvider::new();
    tables.register_table(INPUT.to_owned(), Arc::new(InputTable { schema })).map_err(to_error)?;
    let catalog = MemoryCatalogProvider::new();
    let names = state.config_options().catalog.clone();
    catalog.register_schema(&names.default_schema, Arc::new(tables)).map_err(to_error)?;
    let list = MemoryCatalogProviderList::new();
    list.register_catalog(names.default_catalog, Arc::new(catalog));
    state.register_catalog_list(Arc::new(list));
    Ok(state)
}

/// The batch that a run is about, found by the plan's leaf.
struct Current(RecordBatch);

#[derive(Debug)]
struct InputTable {
    schema: SchemaRef,
}

#[async_trait]
impl TableProvider for InputTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let leaf: Arc<dyn PartitionStream> = Arc::new(Leaf { schema: self.schema.clone() });
        Ok(Arc::new(StreamingTableExec::try_new(self.schema.clone(), vec![leaf], projection, None, false, limit)?))
    }
}

#[derive(Debug)]
struct Leaf {
    schema: SchemaRef,
}

impl PartitionStream for Leaf {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = context.session_config().get_extension::<Current>().map(|c| c.0.clone()).into_iter().collect();
        match MemoryStream::try_new(batches, self.schema.clone(), None) {
            Ok(stream) => Box::pin(stream),
            Err(error) => {
                let failed = futures::stream::once(async move { Err(error) });
                Box::pin(datafusion::physical_plan::stream::RecordBatchStreamAdapter::new(self.schema.clone(), failed))
            }
        }
    }
}
