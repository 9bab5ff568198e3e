//! Steps: a pipeline's SQL and Python transformations, compiled once and run batch by batch.
//!
//! Owns: what a step is allowed to be, the row key through every step, keyed random draws, and finding the rows that fail alone. Every batch
//! in and out begins with `_id`, then `_part` once some step may have multiplied rows, then `_source`, and is in key order. Must not know:
//! tasks, shards, jobs.
//!
//! - [`CompiledSteps::compile`] checks every step against the columns before it; all problems are found before any row is read.
//! - [`CompiledSteps::run`] takes one batch through a range of steps. The rows that come out depend on the rows that go in, on the seed and on
//!   the epoch (behind the cut: the pass), never on how rows were batched, except that all rows of one `_id` must come in one batch.

mod bisect;
mod keys;
mod parse;
mod plan;
mod python;
mod rows;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_core::pipeline::{StepKind, StepSpec};
use forebay_core::source::BadRow;
use forebay_core::{Error, Kind, Result};

use crate::python::PythonPool;
use plan::SqlStep;
use python::PyStep;

/// What every SQL step reads.
pub(crate) const INPUT: &str = "input";
pub(crate) const ID: &str = "_id";
pub(crate) const PART: &str = "_part";
pub(crate) const SOURCE: &str = "_source";
/// The key columns, in the order in which they stand in front.
pub(crate) const KEYS: [&str; 3] = [ID, PART, SOURCE];

/// Rows whose images are decoded at the same time.
const DECODED_ROWS: usize = 64;

/// Rows out of a run, and the rows that failed.
#[derive(Debug, Clone)]
pub struct StepOutput {
    pub batch: RecordBatch,
    /// In key order; each message names the step.
    pub bad: Vec<BadRow>,
}

/// A pipeline's steps, checked and ready to run. Cheap to share; runs may overlap.
#[derive(Debug)]
pub struct CompiledSteps {
    /// `schemas[i]` is what step i reads; the last is what the last step yields.
    schemas: Vec<SchemaRef>,
    steps: Vec<Compiled>,
}

#[derive(Debug)]
enum Compiled {
    Sql(Arc<SqlStep>),
    Python(PyStep),
}

impl Compiled {
    fn name(&self) -> &str {
        match self {
            Self::Sql(step) => step.name(),
            Self::Python(step) => step.name(),
        }
    }
}

impl CompiledSteps {
    /// Checks and plans all steps over `input` (`_id`, perhaps `_part`, `_source`, then the source's columns). `modules` holds the text of every
    /// Python module that a step names; `python` may be absent when no step is Python. Errors name the step and its key, `steps[1].sql`.
    pub async fn compile(
        steps: &[StepSpec],
        input: SchemaRef,
        modules: &BTreeMap<String, String>,
        python: Option<&PythonPool>,
    ) -> Result<Self> {
        let mut schemas = vec![keys::checked_input(input)?];
        let mut compiled = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let schema = schemas.last().cloned().ok_or_else(|| Error::internal("no schema"))?;
            let (made, key) = match &step.kind {
                StepKind::Sql { query } => (SqlStep::compile(&step.name, query, schema).await.map(|s| Compiled::Sql(Arc::new(s))), "sql"),
                StepKind::Python { module, function, options, batch_size } => {
                    let call = python::Call { module, function, options, batch_size: *batch_size };
                    (PyStep::compile(&step.name, call, schema, modules, python).await.map(Compiled::Python), "python")
                }
            };
            let made = made.map_err(|e| e.context(format!("steps[{index}].{key} (step `{}`)", step.name)))?;
            schemas.push(match &made {
                Compiled::Sql(step) => step.output().clone(),
                Compiled::Python(step) => step.output().clone(),
            });
            compiled.push(made);
        }
        Ok(Self { schemas, steps: compiled })
    }

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The columns after the first `upto` steps, keys first; 0 is the input. Beyond the last step: what the last yields.
    pub fn output_schema(&self, upto: usize) -> SchemaRef {
        let last = self.schemas.len() - 1;
        self.schemas[upto.min(last)].clone()
    }

    /// Whether rows may carry `_part` after the first `upto` steps.
    pub fn has_part(&self, upto: usize) -> bool {
        self.output_schema(upto).index_of(PART).is_ok()
    }

    /// Steps behind the cut run while serving a plan that counts stored rows, so each must keep the row count.
    pub fn check_behind_cut(&self, cut: usize) -> Result<()> {
        for (index, step) in self.steps.iter().enumerate().skip(cut) {
            let (problem, key) = match step {
                Compiled::Sql(step) if step.effect().multiplies => ("unnests", "sql"),
                Compiled::Sql(step) if step.effect().drops => ("filters", "sql"),
                Compiled::Python(step) if step.returns_id() => ("returns `_id`, and so may drop or repeat rows", "python"),
                _ => continue,
            };
            return Err(Error::bad_input(format!(
                "steps[{index}].{key} (step `{}`) {problem}, but stands behind the cut, where every stored row is served once",
                step.name()
            ))
            .with_remedy("move it before the cut, or set `output.cut` to this step or a later one"));
        }
        Ok(())
    }

    /// Takes one batch through the steps of `range`. Rows that fail alone are put aside with their message; a batch fails as a whole only when
    /// something beside its rows is wrong.
    pub async fn run(&self, range: Range<usize>, seed: u64, epoch: u32, batch: RecordBatch) -> Result<StepOutput> {
        self.run_until(range, seed, epoch, batch, usize::MAX).await
    }

    /// As [`CompiledSteps::run`], but stops looking for bad rows once there are more than `max_bad`: then `batch` is incomplete, and the caller
    /// is expected to fail. `max_bad = 0` finds the first bad row in logarithmically many tries.
    pub async fn run_until(&self, range: Range<usize>, seed: u64, epoch: u32, batch: RecordBatch, max_bad: usize) -> Result<StepOutput> {
        let Some(steps) = self.steps.get(range.clone()) else {
            return Err(Error::internal(format!("steps {range:?} of {}", self.steps.len())));
        };
        let mut batch = keys::conform(batch, &self.output_schema(range.start))?;
        let mut bad = Vec::new();
        for segment in steps.chunk_by(|a, b| matches!((a, b), (Compiled::Sql(_), Compiled::Sql(_)))) {
            let output = segment_output(segment, seed, epoch, batch, max_bad.saturating_sub(bad.len())).await?;
            batch = output.batch;
            bad.extend(output.bad);
            if bad.len() > max_bad {
                break;
            }
        }
        bad.sort_by_key(|row| row.id);
        Ok(StepOutput { batch, bad })
    }
}

/// Neighbouring SQL steps, or one Python step. A segment that decodes images takes few rows at a time through all of its steps, so that what is
/// held decoded is a slice's and not a batch's.
async fn segment_output(segment: &[Compiled], seed: u64, epoch: u32, batch: RecordBatch, max_bad: usize) -> Result<StepOutput> {
    let decodes = segment.iter().any(|s| matches!(s, Compiled::Sql(step) if step.decodes()));
    if !decodes || batch.num_rows() <= DECODED_ROWS {
        return chain(segment, seed, epoch, batch, max_bad).await;
    }
    let (mut done, mut bad) = (Vec::new(), Vec::new());
    for slice in keys::slices(&batch, DECODED_ROWS)? {
        let output = chain(segment, seed, epoch, slice, max_bad.saturating_sub(bad.len())).await?;
        done.push(output.batch);
        bad.extend(output.bad);
        if bad.len() > max_bad {
            break;
        }
    }
    let Some(schema) = done.last().map(RecordBatch::schema) else { return Err(Error::internal("a batch without slices")) };
    // After a stop the last slice may have ended in an earlier step; the caller fails anyway.
    done.retain(|b| b.schema() == schema);
    let batch = concat_batches(&schema, &done).map_err(|e| Error::new(Kind::ResourceExhausted, e.to_string()))?;
    Ok(StepOutput { batch, bad })
}

async fn chain(steps: &[Compiled], seed: u64, epoch: u32, mut batch: RecordBatch, max_bad: usize) -> Result<StepOutput> {
    let mut bad = Vec::new();
    for step in steps {
        let left = max_bad.saturating_sub(bad.len());
        let output = match step {
            Compiled::Sql(step) => step.clone().run(seed, epoch, batch, left).await,
            Compiled::Python(step) => step.run(seed, epoch, batch, left).await,
        };
        let output = output.map_err(|e| e.context(format!("step `{}`", step.name())))?;
        batch = output.batch;
        bad.extend(output.bad);
        if bad.len() > max_bad {
            break;
        }
    }
    Ok(StepOutput { batch, bad })
}

/// The `_id` column of a batch, for tests elsewhere in this crate.
#[cfg(test)]
pub(crate) fn ids_of(batch: &RecordBatch) -> Vec<i64> {
    keys::ids(batch).map(|ids| ids.values().to_vec()).unwrap_or_default()
}
