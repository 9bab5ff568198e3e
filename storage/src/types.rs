//! The two faces of a column: *logical*, as users, SQL and Flight see it, and *stored*, as Parquet and Delta hold it.
//!
//! Owns: the mapping between them, the Delta schema JSON, which names and types are refused. Must not know: files, logs, object stores.
//!
//! - A fixed-shape tensor is `arrow.fixed_shape_tensor` over a fixed-size list in logical form and a fixed-size binary in stored form (same
//!   bytes, little-endian, row-major), because Parquet pays levels per element of a list. Field metadata `forebay.tensor` keeps type and
//!   shape.
//! - A ragged tensor (`arrow.variable_shape_tensor`) keeps its elements as one binary value per row for the same reason.
//! - Types that Delta lacks are stored wider; field metadata `forebay.type` keeps the original in Arrow's notation.
//! - Views and dictionaries are how an engine holds values, not what a user means: they become plain values.

mod convert;
mod delta_schema;
mod names;
mod stored_type;
mod tensor;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use forebay_core::{Error, Result};
use std::sync::Arc;

pub use delta_schema::{delta_schema_json, stored_from_delta};
pub use names::{EPOCH, ID, PART, SOURCE, SPLIT, check_user_columns};
pub use tensor::{TENSOR_KEY, tensor_field, tensor_shape};

/// Field metadata that keeps the original of a widened type, in Arrow's notation (`UInt8`, `Timestamp(ns)`).
pub const TYPE_KEY: &str = "forebay.type";

/// The number of a column in the file that it was read from; in another file it would name another column.
const PARQUET_FIELD_ID: &str = "PARQUET:field_id";

/// A dataset's schema in both forms; field `i` of one is field `i` of the other.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSchema {
    /// What users see.
    pub logical: SchemaRef,
    /// What Parquet holds.
    pub stored: SchemaRef,
    forms: Vec<Form>,
}

/// How a column gets from one form to the other.
#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// Identical, or a change of representation that [`convert::convert`] does in either direction.
    Values,
    Tensor,
    Ragged,
}

/// Maps a logical schema to its stored form.
///
/// # Errors
/// Refused or duplicate column names (with `AS` as the remedy) and types that can't be stored, named with their column.
pub fn to_stored(schema: &Schema) -> Result<StoredSchema> {
    names::check_stored_columns(schema)?;
    let mut logical = Vec::with_capacity(schema.fields().len());
    let mut stored = Vec::with_capacity(schema.fields().len());
    let mut forms = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let (l, s, form) = map_field(field)?;
        logical.push(l);
        stored.push(s);
        forms.push(form);
    }
    Ok(StoredSchema { logical: Arc::new(Schema::new(logical)), stored: Arc::new(Schema::new(stored)), forms })
}

fn map_field(field: &Field) -> Result<(Field, Field, Form)> {
    if tensor::is_ragged(field) {
        let (logical, stored) = tensor::map_ragged(field)?;
        return Ok((logical, stored, Form::Ragged));
    }
    if tensor::is_tensor(field) {
        let (logical, stored) = tensor::map_tensor(field)?;
        return Ok((logical, stored, Form::Tensor));
    }
    let logical_type = stored_type::normalise(field.data_type(), field.name())?;
    let stored_type = stored_type::widen(&logical_type, field.name())?;
    let mut metadata = field.metadata().clone();
    for ours in [TYPE_KEY, TENSOR_KEY, PARQUET_FIELD_ID] {
        metadata.remove(ours);
    }
    let nullable = field.is_nullable() || logical_type == DataType::Null;
    let logical = Field::new(field.name(), logical_type, nullable).with_metadata(metadata.clone());
    let delta = delta_schema::delta_type(&stored_type, field.name())?;
    if delta_schema::arrow_type(&delta, field.name())? != *logical.data_type() {
        metadata.insert(TYPE_KEY.to_owned(), logical.data_type().to_string());
    }
    let stored = Field::new(field.name(), stored_type, nullable).with_metadata(metadata);
    Ok((logical, stored, Form::Values))
}

/// Turns a logical batch (or one whose columns are views or dictionaries of its types) into its stored form. Columns are matched by
/// position.
///
/// # Errors
/// A value that the stored type can't hold exactly (nanoseconds), a null inside a tensor, a batch that isn't of this schema.
pub fn encode(batch: &RecordBatch, schema: &StoredSchema) -> Result<RecordBatch> {
    if batch.num_columns() != schema.forms.len() {
        return Err(Error::internal(format!("a batch of {} columns for a schema of {}", batch.num_columns(), schema.forms.len())));
    }
    let mut columns = Vec::with_capacity(batch.num_columns());
    for (i, form) in schema.forms.iter().enumerate() {
        let (logical, stored) = (schema.logical.field(i), schema.stored.field(i));
        let given = batch.schema_ref().field(i).name();
        if given != logical.name() {
            return Err(Error::internal(format!("column {i} is `{given}` where `{}` was expected", logical.name())));
        }
        let column = batch.column(i);
        columns.push(match form {
            Form::Values => convert::convert(column, stored.data_type(), stored.name())?,
            Form::Tensor => tensor::encode(column, logical, stored)?,
            Form::Ragged => tensor::encode_ragged(column, stored)?,
        });
    }
    build(Arc::clone(&schema.stored), columns, batch.num_rows())
}

/// Turns stored columns into logical ones, matched by name, so that a projection gives a projection, in the schema's order. Tensors share
/// the batch's buffers. A column of `schema` that the file lacks is left out here; the reader fills it in.
///
/// # Errors
/// Stored bytes that aren't of the logged type, named with their column.
pub fn decode(batch: RecordBatch, schema: &StoredSchema) -> Result<RecordBatch> {
    let mut fields = Vec::with_capacity(batch.num_columns());
    let mut columns = Vec::with_capacity(batch.num_columns());
    for (i, stored) in schema.stored.fields().iter().enumerate() {
        if let Some(column) = batch.column_by_name(stored.name()) {
            fields.push(Arc::clone(&schema.logical.fields()[i]));
            columns.push(schema.decode_column(i, column)?);
        }
    }
    build(Arc::new(Schema::new(fields)), columns, batch.num_rows())
}

impl StoredSchema {
    /// Index of a column by its exact name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.logical.fields().iter().position(|f| f.name() == name)
    }

    /// The logical schema of these columns, in the order asked for; all of them for `None`.
    ///
    /// # Errors
    /// `BadInput` for an unknown column, with the known ones.
    pub fn project(&self, columns: Option<&[String]>) -> Result<(Vec<usize>, SchemaRef)> {
        let Some(columns) = columns else {
            return Ok(((0..self.forms.len()).collect(), Arc::clone(&self.logical)));
        };
        let indices = columns.iter().map(|c| self.index_of(c).ok_or_else(|| self.unknown(c))).collect::<Result<Vec<_>>>()?;
        let fields: Vec<_> = indices.iter().map(|&i| Arc::clone(&self.logical.fields()[i])).collect();
        Ok((indices, Arc::new(Schema::new(fields))))
    }

    fn unknown(&self, column: &str) -> Error {
        let known: Vec<_> = self.logical.fields().iter().map(|f| f.name().as_str()).collect();
        Error::bad_input(format!("there is no column `{column}`")).with_remedy(format!("the columns are {}", known.join(", ")))
    }

    /// One stored column in its logical form; `i` counts in this schema.
    pub(crate) fn decode_column(&self, i: usize, column: &ArrayRef) -> Result<ArrayRef> {
        let (logical, stored) = (self.logical.field(i), self.stored.field(i));
        let decoded = match self.forms[i] {
            Form::Values => convert::convert(column, logical.data_type(), logical.name()),
            Form::Tensor => tensor::decode(column, logical, stored),
            Form::Ragged => tensor::decode_ragged(column, logical),
        };
        decoded.map_err(|e| Error { kind: forebay_core::Kind::Corrupt, ..e })
    }

    /// What a file that lacks column `i` (a later writer added it) holds there: nulls.
    pub(crate) fn missing_column(&self, i: usize, rows: usize) -> Result<ArrayRef> {
        let field = self.logical.field(i);
        if field.is_nullable() {
            Ok(new_null_array(field.data_type(), rows))
        } else {
            Err(Error::corrupt(format!("column `{}` is missing and may not be null", field.name())))
        }
    }
}

fn build(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    for (field, column) in schema.fields().iter().zip(&columns) {
        if !field.is_nullable() && column.null_count() > 0 {
            return Err(Error::bad_input(format!(
                "column `{}` may not be null, and {} of {rows} rows are",
                field.name(),
                column.null_count()
            )));
        }
    }
    RecordBatch::try_new_with_options(schema, columns, &RecordBatchOptions::new().with_row_count(Some(rows)))
        .map_err(|e| Error::internal(format!("columns don't fit their schema: {e}")))
}

/// A type as users read it: `int64`, `string`, `uint8[224,224,3]`, `list<int32>`.
pub fn type_name(field: &Field) -> String {
    if let Some((dtype, shape)) = tensor_shape(field) {
        let shape: Vec<_> = shape.iter().map(ToString::to_string).collect();
        return format!("{}[{}]", plain_name(&dtype), shape.join(","));
    }
    if let Some((dtype, dimensions)) = tensor::ragged_shape(field) {
        let shape: Vec<_> = dimensions.iter().map(|d| d.map_or_else(|| "?".to_owned(), |d| d.to_string())).collect();
        return format!("{}[{}]", plain_name(&dtype), shape.join(","));
    }
    plain_name(field.data_type())
}

fn plain_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::Utf8View => "string".to_owned(),
        DataType::LargeUtf8 => "large_string".to_owned(),
        DataType::BinaryView => "binary".to_owned(),
        DataType::LargeBinary => "large_binary".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        DataType::Timestamp(unit, Some(tz)) => format!("timestamp[{}, {tz}]", unit_name(*unit)),
        DataType::Timestamp(unit, None) => format!("timestamp[{}]", unit_name(*unit)),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("time[{}]", unit_name(*unit)),
        DataType::Duration(unit) => format!("duration[{}]", unit_name(*unit)),
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) | DataType::Decimal128(p, s) | DataType::Decimal256(p, s) => {
            format!("decimal({p},{s})")
        }
        DataType::FixedSizeBinary(n) => format!("fixed_size_binary[{n}]"),
        DataType::List(f) | DataType::ListView(f) => format!("list<{}>", type_name(f)),
        DataType::LargeList(f) | DataType::LargeListView(f) => format!("large_list<{}>", type_name(f)),
        DataType::FixedSizeList(f, n) => format!("{}[{n}]", type_name(f)),
        DataType::Dictionary(_, v) => plain_name(v),
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields.iter().map(|f| format!("{}: {}", f.name(), type_name(f))).collect();
            format!("struct<{}>", fields.join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(kv) if kv.len() == 2 => format!("map<{}, {}>", type_name(&kv[0]), type_name(&kv[1])),
            _ => "map".to_owned(),
        },
        other => other.to_string().to_ascii_lowercase(),
    }
}

fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

#[cfg(test)]
mod tests;
