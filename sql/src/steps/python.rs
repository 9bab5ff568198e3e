//! One Python step: the user's function per slice of a batch, with the key taken off its shoulders.
//!
//! A function that returns `_id` may drop and repeat rows; one that doesn't keeps their number. Either way the keys are put back here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, Result};

use super::bisect::bisect;
use super::keys::{self, is_key};
use super::{ID, PART, SOURCE, StepOutput};
use crate::python::{PythonPool, PythonStep};

/// Rows per call where the step doesn't say.
const BATCH_ROWS: u64 = 1_024;

/// The function as the pipeline names it.
pub(super) struct Call<'a> {
    pub module: &'a str,
    pub function: &'a str,
    pub options: &'a BTreeMap<String, serde_json::Value>,
    pub batch_size: Option<u64>,
}

#[derive(Debug)]
pub(super) struct PyStep {
    name: String,
    function: Arc<PythonStep>,
    output: SchemaRef,
    returns_id: bool,
    rows_per_call: usize,
}

impl PyStep {
    pub(super) async fn compile(
        name: &str,
        call: Call<'_>,
        input: SchemaRef,
        modules: &BTreeMap<String, String>,
        pool: Option<&PythonPool>,
    ) -> Result<Self> {
        let Some(pool) = pool else {
            return Err(Error::new(forebay_core::Kind::PermissionDenied, "this server runs no Python")
                .with_remedy("set `python.allow = true` in its forebay.toml"));
        };
        let rows = call.batch_size.unwrap_or(BATCH_ROWS);
        let rows_per_call = usize::try_from(rows).unwrap_or(usize::MAX);
        if rows_per_call == 0 {
            return Err(Error::bad_input("batch_size is 0").with_remedy("give it at least 1 row"));
        }
        let function = pool.load(modules.clone(), call.module, call.function, call.options.clone()).await?;
        let returned = function.output_schema(&input).await?;
        let (output, returns_id) = with_keys(&returned, input.index_of(PART).is_ok())?;
        Ok(Self { name: name.to_owned(), function: Arc::new(function), output, returns_id, rows_per_call })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn output(&self) -> &SchemaRef {
        &self.output
    }

    pub(super) fn returns_id(&self) -> bool {
        self.returns_id
    }

    pub(super) async fn run(&self, seed: u64, epoch: u32, batch: RecordBatch, max_bad: usize) -> Result<StepOutput> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(StepOutput { batch: RecordBatch::new_empty(self.output.clone()), bad: vec![] });
        }
        let slices = (0..rows).step_by(self.rows_per_call).map(|start| batch.slice(start, self.rows_per_call.min(rows - start))).collect();
        let mut output = bisect(&self.name, slices, &self.output, max_bad, |slice| async move {
            let returned = self.function.call(slice.clone(), seed, epoch).await?;
            self.rekeyed(&slice, &returned)
        })
        .await?;
        if self.returns_id {
            output.batch = keys::renumbered(output.batch)?;
        }
        Ok(output)
    }

    /// What the function returned, with the keys of the rows that it was given.
    fn rekeyed(&self, given: &RecordBatch, returned: &RecordBatch) -> Result<RecordBatch> {
        if !self.returns_id {
            if returned.num_rows() != given.num_rows() {
                return Err(Error::bad_input(format!("the function returned {} rows for {}", returned.num_rows(), given.num_rows()))
                    .with_remedy("return `_id` to drop or repeat rows"));
            }
            return self.assembled(|name| given.column_by_name(name).cloned(), returned);
        }
        let ids =
            returned.column_by_name(ID).map(|ids| cast(ids, &DataType::Int64)).transpose().map_err(|e| Error::bad_input(e.to_string()))?;
        let Some(ids) = ids.as_ref().and_then(|ids| ids.as_primitive_opt::<Int64Type>()).filter(|ids| !ids.iter().any(|i| i.is_none()))
        else {
            return Err(Error::bad_input("the function returned no `_id`, or nulls in it"));
        };
        let given_ids = keys::ids(given)?;
        let sources = given.column_by_name(SOURCE).and_then(|s| s.as_string_opt::<i32>());
        let Some(sources) = sources else { return Err(Error::internal("a batch without `_source`")) };
        let source_of: HashMap<i64, &str> = given_ids.values().iter().copied().zip(sources.iter().flatten()).collect();
        if let Some(id) = ids.values().iter().find(|id| !source_of.contains_key(id)) {
            return Err(Error::bad_input(format!("the function returned the `_id` {id}, which it was not given")));
        }
        // Stable: rows of one `_id` stay in the order in which they were returned.
        let mut order: Vec<u32> = (0..u32::try_from(ids.len()).unwrap_or(u32::MAX)).collect();
        order.sort_by_key(|row| ids.value(*row as usize));
        let order = UInt32Array::from(order);
        let sorted = take_record_batch(returned, &order).map_err(|e| Error::internal(e.to_string()))?;
        let ids = order.values().iter().map(|row| ids.value(*row as usize)).collect::<arrow::array::Int64Array>();
        let sources = StringArray::from_iter_values(ids.values().iter().map(|id| source_of.get(id).copied().unwrap_or_default()));
        let (parts, ids, sources): (ArrayRef, ArrayRef, ArrayRef) = (keys::number_parts(&ids), Arc::new(ids), Arc::new(sources));
        let key = |name: &str| match name {
            ID => Some(ids.clone()),
            PART => Some(parts.clone()),
            _ => Some(sources.clone()),
        };
        self.assembled(key, &sorted)
    }

    fn assembled(&self, key: impl Fn(&str) -> Option<ArrayRef>, returned: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(self.output.fields().len());
        for field in self.output.fields() {
            let column = if is_key(field.name()) { key(field.name()) } else { returned.column_by_name(field.name()).cloned() };
            let Some(column) = column else {
                return Err(Error::bad_input(format!("the function did not return the column `{}`", field.name())));
            };
            if column.data_type() != field.data_type() {
                return Err(Error::bad_input(format!(
                    "the function returned the column `{}` as {}, and as {} when it was first asked",
                    field.name(),
                    column.data_type(),
                    field.data_type()
                )));
            }
            columns.push(column);
        }
        RecordBatch::try_new(self.output.clone(), columns).map_err(|e| Error::bad_input(e.to_string()))
    }
}

/// The step's columns, given what the function returns, and whether it returns `_id`.
fn with_keys(returned: &Schema, had_part: bool) -> Result<(SchemaRef, bool)> {
    let returns_id = returned.index_of(ID).is_ok();
    let own = returned.fields().iter().filter(|f| !is_key(f.name()));
    keys::check_names(own.clone().map(|f| f.name().as_str()))?;
    let mut fields = keys::key_fields(had_part || returns_id);
    fields.extend(own.cloned());
    Ok((Arc::new(Schema::new(fields)), returns_id))
}
