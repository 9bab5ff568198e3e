//! Small questions about a batch's key columns.

use arrow::array::{Array, AsArray, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use forebay_core::{Error, Result};

/// The `_id` column.
pub(crate) fn ids(batch: &RecordBatch) -> Result<&Int64Array> {
    batch
        .column_by_name("_id")
        .and_then(|c| c.as_primitive_opt::<Int64Type>())
        .ok_or_else(|| Error::internal("rows without an `_id` column"))
}

/// The `_part` column, where the rows have one.
pub(crate) fn parts(batch: &RecordBatch) -> Option<&Int32Array> {
    batch.column_by_name("_part").and_then(|c| c.as_primitive_opt::<Int32Type>())
}

/// A column's values as text, one per row; null where the value is.
pub(crate) fn texts(batch: &RecordBatch, column: &str) -> Result<Vec<Option<String>>> {
    let array = batch.column_by_name(column).ok_or_else(|| {
        Error::bad_input(format!("split: there is no column `{column}`")).with_remedy("name a column of the last stored step")
    })?;
    let text = arrow::compute::cast(array, &arrow::datatypes::DataType::Utf8)
        .map_err(|e| Error::bad_input(format!("split: column `{column}` can't be compared as text: {e}")))?;
    let text = text.as_string::<i32>();
    Ok((0..text.len()).map(|i| text.is_valid(i).then(|| text.value(i).to_owned())).collect())
}
