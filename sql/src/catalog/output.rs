//! The columns of an answer: without view types, which not every client reads, and with the extension types that the plan knows.

use std::sync::Arc;

use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use forebay_core::{Error, Result};

/// The schema of an answer whose batches have the `physical` schema.
pub(super) fn plain_schema(logical: &Schema, physical: &Schema) -> SchemaRef {
    let fields = physical.fields().iter().enumerate().map(|(index, field)| {
        // The two agree but for metadata, which an alias gives only to the logical one.
        let known = logical.fields().get(index).filter(|l| l.data_type() == field.data_type());
        let data_type = match field.data_type() {
            DataType::Utf8View => DataType::Utf8,
            DataType::BinaryView => DataType::Binary,
            other => other.clone(),
        };
        Field::new(field.name(), data_type, field.is_nullable()).with_metadata(known.unwrap_or(field).metadata().clone())
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A batch in that schema.
pub(super) fn plain(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns =
        batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
            if column.data_type() == field.data_type() { Ok(column.clone()) } else { cast(column, field.data_type()) }
        });
    let columns = columns.collect::<Result<Vec<_>, _>>().map_err(|e| Error::internal(e.to_string()))?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(|e| Error::internal(e.to_string()))
}
