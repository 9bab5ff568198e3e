//! How stored rows become what a consumer gets: which columns are read, which steps run behind the cut, which columns go out.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, FieldRef, Int32Type, Int64Type, Schema, SchemaRef};
use forebay_core::ids::PassId;
use forebay_core::pipeline::PipelineSpec;
use forebay_core::{Error, Result, suggest};
use forebay_sql::python::PythonPool;
use forebay_sql::steps::CompiledSteps;
use forebay_storage::delta::DatasetVersion;

/// Column that is stored beside what the steps yield.
const SPLIT: &str = "split";

/// Key columns of a chunk's rows.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) ids: Int64Array,
    pub(crate) parts: Option<Int32Array>,
    /// With `bucket_by`: what its rows are ordered by.
    pub(crate) lengths: Option<Vec<u64>>,
}

/// A consumer's view of a version. Shared by all windows of a pass.
#[derive(Debug)]
pub(crate) struct Served {
    /// What the consumer gets.
    pub(crate) schema: SchemaRef,
    /// What a window holds: the consumer's columns, or the stored ones where steps stand behind the cut.
    pub(crate) chunk_schema: SchemaRef,
    /// What is read of the stored columns; null: all.
    pub(crate) read: Option<Arc<[String]>>,
    /// The steps behind the cut; null where there are none, or none of their columns is wanted.
    pub(crate) behind: Option<CompiledSteps>,
    has_part: bool,
    /// The stored column whose lengths put rows together.
    pub(crate) bucket_by: Option<String>,
}

impl Served {
    /// `columns` and `bucket_by` as in the job's settings: null is all, and none.
    ///
    /// # Errors
    /// `BadInput` for a column that does not exist, or has no length; what compiling the steps behind the cut says.
    pub(crate) async fn new(
        version: &DatasetVersion,
        columns: Option<&[String]>,
        bucket_by: Option<&str>,
        python: &PythonPool,
    ) -> Result<Self> {
        check_bucket(version, bucket_by)?;
        let behind = compile(version, python).await?;
        let full = match &behind {
            Some(steps) => with_split(&steps.output_schema(steps.len()), &version.schema),
            None => Arc::clone(&version.schema),
        };
        let schema = project(&full, columns, version)?;
        let has_part = version.has_part();
        let read = match (&behind, columns) {
            (None, Some(columns)) => Some(read_columns(columns, bucket_by, has_part)),
            // Steps see whole rows: draws and results must not depend on what a consumer takes.
            _ => None,
        };
        let chunk_schema = Arc::clone(if behind.is_some() { &version.schema } else { &schema });
        Ok(Self { schema, chunk_schema, read, behind, has_part, bucket_by: bucket_by.map(str::to_owned) })
    }

    /// Only the row keys, as they are stored: for asking which rows a batch has. No step runs.
    pub(crate) fn keys_only(version: &DatasetVersion, bucket_by: Option<&str>) -> Result<Self> {
        check_bucket(version, bucket_by)?;
        let has_part = version.has_part();
        let keys = read_columns(&[], None, has_part);
        let schema = project(&version.schema, Some(&keys), version)?;
        let read = Some(read_columns(&[], bucket_by, has_part));
        Ok(Self { chunk_schema: Arc::clone(&schema), schema, read, behind: None, has_part, bucket_by: bucket_by.map(str::to_owned) })
    }

    /// Stored rows as a window holds them, and their keys.
    pub(crate) fn chunk(&self, stored: RecordBatch) -> Result<(RecordBatch, Keys)> {
        let mut keys = self.keys(&stored)?;
        if let Some(name) = &self.bucket_by {
            let column = stored.column_by_name(name).ok_or_else(|| Error::corrupt(format!("the stored rows have no column `{name}`")))?;
            keys.lengths = Some(lengths(column)?);
        }
        Ok((select(&stored, &self.chunk_schema)?, keys))
    }

    /// What the consumer gets for whole stored rows: the steps behind the cut, then its columns. `seed` is the job's, `pass` stands for the epoch.
    ///
    /// # Errors
    /// `BadInput` naming the row on which a step failed.
    pub(crate) async fn make(&self, seed: u64, pass: PassId, stored: RecordBatch) -> Result<RecordBatch> {
        let Some(steps) = &self.behind else { return select(&stored, &self.schema) };
        let input = without_split(&stored)?;
        let before = self.keys(&input)?;
        let output = steps.run_until(0..steps.len(), seed, pass.0, input, 0).await?;
        if let Some(bad) = output.bad.first() {
            return Err(Error::bad_input(format!("row _id {} ({}) failed behind the cut: {}", bad.id, bad.source, bad.message))
                .with_remedy("mend the step, or move it before the cut, where `on_error` decides about bad rows"));
        }
        let after = self.keys(&output.batch)?;
        if before.ids != after.ids || before.parts != after.parts {
            return Err(Error::internal(format!(
                "the steps behind the cut returned {} rows for {}, or in another order",
                after.ids.len(),
                before.ids.len()
            )));
        }
        select(&put_split_back(output.batch, &stored)?, &self.schema)
    }

    fn keys(&self, batch: &RecordBatch) -> Result<Keys> {
        let ids = batch.column_by_name("_id").and_then(|c| c.as_primitive_opt::<Int64Type>()).filter(|c| c.null_count() == 0);
        let ids = ids.ok_or_else(|| Error::corrupt("stored rows without a whole `_id` column"))?.clone();
        if !self.has_part {
            return Ok(Keys { ids, parts: None, lengths: None });
        }
        let parts = batch.column_by_name("_part").and_then(|c| c.as_primitive_opt::<Int32Type>()).filter(|c| c.null_count() == 0);
        let parts = parts.ok_or_else(|| Error::corrupt("stored rows without a whole `_part` column"))?.clone();
        Ok(Keys { ids, parts: Some(parts), lengths: None })
    }
}

/// The columns of `schema`, by name, in its order.
fn select(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let column = batch
            .column_by_name(field.name())
            .ok_or_else(|| Error::corrupt(format!("the stored rows have no column `{}`, which their version names", field.name())))?;
        columns.push(Arc::clone(column));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|e| Error::corrupt(format!("stored rows are not what their version says: {e}")))
}

/// The key columns are read even where they are not wanted: the digest is made of them.
fn read_columns(columns: &[String], bucket_by: Option<&str>, has_part: bool) -> Arc<[String]> {
    let keys = ["_id"].into_iter().chain(has_part.then_some("_part"));
    let mut read: Vec<String> = keys.map(str::to_owned).collect();
    for column in columns {
        if !read.contains(column) {
            read.push(column.clone());
        }
    }
    if let Some(name) = bucket_by.filter(|name| read.iter().all(|read| read != name)) {
        read.push(name.to_owned());
    }
    read.into()
}

/// Whether rows can be put together by a stored column.
fn check_bucket(version: &DatasetVersion, bucket_by: Option<&str>) -> Result<()> {
    let Some(name) = bucket_by else { return Ok(()) };
    let Some((_, field)) = version.schema.fields().find(name) else {
        return Err(unknown_column(&version.schema, name, version).context("bucket_by"));
    };
    let of = field.data_type();
    if of.is_integer() || of.is_list() || of.is_string() || of.is_binary() {
        return Ok(());
    }
    Err(Error::bad_input(format!("bucket_by: column `{name}` of dataset `{}` is {of}", version.name))
        .with_remedy("name a stored list, string or binary column, whose length counts, or an integer column, whose value does"))
}

/// Lengths of lists, strings (in bytes) and binaries; values of integers. Null counts as 0, and so does what is negative.
fn lengths(column: &ArrayRef) -> Result<Vec<u64>> {
    let failed = |e| Error::internal(format!("measuring the bucket column: {e}"));
    let counted = if column.data_type().is_integer() { Arc::clone(column) } else { length(column).map_err(failed)? };
    let counted = cast(&counted, &DataType::Int64).map_err(failed)?;
    let counted = counted.as_primitive::<Int64Type>();
    Ok(counted.iter().map(|n| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)).collect())
}

fn project(full: &SchemaRef, columns: Option<&[String]>, version: &DatasetVersion) -> Result<SchemaRef> {
    let Some(columns) = columns else { return Ok(Arc::clone(full)) };
    let mut fields: Vec<FieldRef> = Vec::with_capacity(columns.len());
    for name in columns {
        let Some((_, field)) = full.fields().find(name) else {
            return Err(unknown_column(full, name, version));
        };
        fields.push(Arc::clone(field));
    }
    Ok(Arc::new(Schema::new_with_metadata(fields, full.metadata().clone())))
}

fn unknown_column(full: &SchemaRef, name: &str, version: &DatasetVersion) -> Error {
    let error = Error::bad_input(format!("columns: dataset `{}` has no column `{}`", version.name, name.escape_debug()));
    if name == "epoch" {
        return error.with_remedy("each message's app_metadata names the epoch");
    }
    let known: Vec<&str> = full.fields().iter().map(|f| f.name().as_str()).collect();
    match suggest::remedy(name, known.iter().copied()) {
        Some(remedy) => error.with_remedy(remedy),
        None => error.with_remedy(format!("it has {}", suggest::list(&known))),
    }
}

/// The steps behind the cut, over the stored columns.
async fn compile(version: &DatasetVersion, python: &PythonPool) -> Result<Option<CompiledSteps>> {
    let Some(json) = version.properties.get("forebay.pipeline") else { return Ok(None) };
    let unreadable = |what: &str, e: serde_json::Error| {
        Error::corrupt(format!("dataset `{}` version {}: its {what} can't be read: {e}", version.name, version.version))
    };
    let spec: PipelineSpec = serde_json::from_str(json).map_err(|e| unreadable("pipeline", e))?;
    let steps = spec.steps.get(spec.output.cut..).unwrap_or_default();
    if steps.is_empty() {
        return Ok(None);
    }
    let code: BTreeMap<String, String> = match version.properties.get("forebay.code") {
        Some(json) => serde_json::from_str(json).map_err(|e| unreadable("code", e))?,
        None => BTreeMap::new(),
    };
    let input = drop_split(&version.schema);
    let compiled = CompiledSteps::compile(steps, input, &code, Some(python)).await?;
    compiled.check_behind_cut(0)?;
    Ok(Some(compiled))
}

fn drop_split(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<FieldRef> = schema.fields().iter().filter(|f| f.name() != SPLIT).cloned().collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn with_split(output: &SchemaRef, stored: &SchemaRef) -> SchemaRef {
    let Some((_, split)) = stored.fields().find(SPLIT) else { return Arc::clone(output) };
    let fields: Vec<FieldRef> = output.fields().iter().cloned().chain([Arc::clone(split)]).collect();
    Arc::new(Schema::new_with_metadata(fields, output.metadata().clone()))
}

fn without_split(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = batch.schema();
    let keep: Vec<usize> = (0..schema.fields().len()).filter(|i| schema.field(*i).name() != SPLIT).collect();
    batch.project(&keep).map_err(|e| Error::internal(format!("taking stored columns: {e}")))
}

fn put_split_back(output: RecordBatch, stored: &RecordBatch) -> Result<RecordBatch> {
    let Some(split) = stored.column_by_name(SPLIT) else { return Ok(output) };
    let schema = with_split(&output.schema(), &stored.schema());
    let columns = output.columns().iter().cloned().chain([Arc::clone(split)]).collect();
    RecordBatch::try_new(schema, columns).map_err(|e| Error::internal(format!("joining the split to the steps' rows: {e}")))
}
