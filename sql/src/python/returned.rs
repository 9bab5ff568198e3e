//! What a user's function may return, and how it is tidied: tensors get elements that cannot be null, as everywhere else.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, Result};

const EXTENSION: &str = "ARROW:extension:name";
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";
const TENSOR: &str = "arrow.fixed_shape_tensor";

/// Checks a returned batch against what the function said that it returns, and brings its columns into that order.
pub(super) fn check(batch: RecordBatch, given_rows: usize, expected: Option<&SchemaRef>) -> Result<RecordBatch> {
    if batch.column_by_name("_id").is_none() && batch.num_rows() != given_rows {
        return Err(Error::bad_input(format!("returned {} rows for {given_rows}", batch.num_rows()))
            .with_remedy("return `_id` to drop or repeat rows"));
    }
    let schema = tidy_schema(&batch.schema()).map_err(|e| e.context("returned"))?;
    let Some(expected) = expected else { return tidy(&batch, schema) };
    if let Some(extra) = schema.fields().iter().find(|f| expected.index_of(f.name()).is_err()) {
        return Err(Error::bad_input(format!("returned the column `{}`, which it did not return when it was first asked", extra.name())));
    }
    let mut columns = Vec::with_capacity(expected.fields().len());
    for field in expected.fields() {
        let Ok(index) = schema.index_of(field.name()) else {
            return Err(Error::bad_input(format!("did not return the column `{}`", field.name())));
        };
        let got = schema.field(index);
        if got.data_type() != field.data_type() || extension(got) != extension(field) {
            return Err(Error::bad_input(format!(
                "returned the column `{}` as {}, and as {} when it was first asked",
                field.name(),
                described(got),
                described(field)
            )));
        }
        columns.push(tidy_column(batch.column(index), field)?);
    }
    RecordBatch::try_new(expected.clone(), columns).map_err(|e| Error::bad_input(format!("returned a broken batch: {e}")))
}

fn extension(field: &Field) -> [Option<&String>; 2] {
    [field.metadata().get(EXTENSION), field.metadata().get(EXTENSION_METADATA)]
}

fn described(field: &Field) -> String {
    match extension(field) {
        [Some(name), Some(metadata)] => format!("{} ({name} {metadata})", field.data_type()),
        _ => field.data_type().to_string(),
    }
}

/// The schema as the rest of the system sees it. A name twice is an error.
pub(super) fn tidy_schema(schema: &Schema) -> Result<SchemaRef> {
    let mut fields: Vec<FieldRef> = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        if fields.iter().any(|f| f.name() == field.name()) {
            return Err(Error::bad_input(format!("two columns named `{}`", field.name())));
        }
        fields.push(match (is_tensor(field), field.data_type()) {
            (true, DataType::FixedSizeList(item, size)) => {
                let item = Arc::new(Field::new("item", item.data_type().clone(), false));
                Arc::new(field.as_ref().clone().with_data_type(DataType::FixedSizeList(item, *size)))
            }
            _ => field.clone(),
        });
    }
    Ok(Arc::new(Schema::new(fields)))
}

fn is_tensor(field: &Field) -> bool {
    field.metadata().get(EXTENSION).is_some_and(|name| name == TENSOR)
}

fn tidy(batch: &RecordBatch, schema: SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| tidy_column(column, field)).collect::<Result<_>>()?;
    RecordBatch::try_new(schema, columns).map_err(|e| Error::bad_input(format!("returned a broken batch: {e}")))
}

fn tidy_column(column: &ArrayRef, field: &Field) -> Result<ArrayRef> {
    let (true, DataType::FixedSizeList(item, size)) = (is_tensor(field), field.data_type()) else { return Ok(column.clone()) };
    let Some(list) = column.as_fixed_size_list_opt() else { return Ok(column.clone()) };
    if list.values().null_count() > 0 && list.null_count() == 0 {
        return Err(Error::bad_input(format!("returned nulls inside the tensors of `{}`", field.name()))
            .with_remedy("use a value such as NaN or 0, or make the whole tensor null"));
    }
    // Nulls under a null tensor are nobody's values; their slots are kept as they are.
    let values =
        arrow::array::make_array(list.values().to_data().into_builder().nulls(None).build().map_err(|e| Error::internal(e.to_string()))?);
    let tensor = FixedSizeListArray::try_new_with_length(item.clone(), *size, values, list.nulls().cloned(), list.len());
    Ok(Arc::new(tensor.map_err(|e| Error::internal(e.to_string()))?))
}
