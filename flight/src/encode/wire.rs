//! The types that go over the wire: every client knows them.

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use forebay_core::{Error, Result};
use std::sync::Arc;

/// The schema that clients receive for rows of `schema`; the same `Arc` where nothing changes.
///
/// # Errors
/// `Unsupported` for a type that cannot be sent.
pub fn wire_schema(schema: &SchemaRef) -> Result<SchemaRef> {
    let mut changed = false;
    let mut fields = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let wire = wire_field(field)?;
        changed |= !Arc::ptr_eq(&wire, field);
        fields.push(wire);
    }
    if !changed {
        return Ok(Arc::clone(schema));
    }
    Ok(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

fn wire_field(field: &FieldRef) -> Result<FieldRef> {
    let wire = wire_type(field.data_type()).map_err(|e| e.context(format_args!("column `{}`", field.name())))?;
    if wire == *field.data_type() {
        return Ok(Arc::clone(field));
    }
    Ok(Arc::new(Field::new(field.name(), wire, field.is_nullable()).with_metadata(field.metadata().clone())))
}

fn wire_type(data_type: &DataType) -> Result<DataType> {
    Ok(match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => wire_type(values)?,
        DataType::RunEndEncoded(_, values) => wire_type(values.data_type())?,
        DataType::List(f) | DataType::ListView(f) => DataType::List(wire_field(f)?),
        DataType::LargeList(f) | DataType::LargeListView(f) => DataType::LargeList(wire_field(f)?),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(wire_field(f)?, *n),
        DataType::Map(f, sorted) => DataType::Map(wire_field(f)?, *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(wire_field).collect::<Result<_>>()?),
        DataType::Union(fields, _) => {
            for (_, field) in fields.iter() {
                if wire_type(field.data_type())? != *field.data_type() {
                    return Err(
                        Error::unsupported(format!("{} inside a union on the wire", field.data_type())).with_remedy("cast it in the query")
                    );
                }
            }
            data_type.clone()
        }
        other => other.clone(),
    })
}

/// The batch with its columns cast to the wire's types.
///
/// # Errors
/// `Internal` when the batch is not of the schema that `wire` was made from.
pub fn to_wire(batch: &RecordBatch, wire: &SchemaRef) -> Result<RecordBatch> {
    if batch.num_columns() != wire.fields().len() {
        return Err(Error::internal(format!("a batch has {} columns, its stream {}", batch.num_columns(), wire.fields().len())));
    }
    let columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .zip(wire.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                return Ok(Arc::clone(column));
            }
            cast(column, field.data_type()).map_err(|e| Error::internal(format!("column `{}` for the wire: {e}", field.name())))
        })
        .collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(wire), columns, &options)
        .map_err(|e| Error::internal(format!("a batch for the wire: {e}")))
}
