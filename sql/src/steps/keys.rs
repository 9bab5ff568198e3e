//! The key columns of a batch, and the rules for column names.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use forebay_core::{Error, Result};

use super::{ID, KEYS, PART, SOURCE};

/// Names that mean something in every dataset.
const RESERVED: [&str; 3] = ["_score", "epoch", "split"];

pub(super) fn id_field() -> FieldRef {
    Arc::new(Field::new(ID, DataType::Int64, false))
}

pub(super) fn part_field() -> FieldRef {
    Arc::new(Field::new(PART, DataType::Int32, false))
}

pub(super) fn source_field() -> FieldRef {
    Arc::new(Field::new(SOURCE, DataType::Utf8, false))
}

/// The fields that a step's output begins with.
pub(super) fn key_fields(with_part: bool) -> Vec<FieldRef> {
    let mut fields = vec![id_field()];
    if with_part {
        fields.push(part_field());
    }
    fields.push(source_field());
    fields
}

pub(super) fn is_key(name: &str) -> bool {
    KEYS.contains(&name)
}

/// The source's schema with its keys in their exact types and in front.
pub(super) fn checked_input(input: SchemaRef) -> Result<SchemaRef> {
    let type_of = |name: &str| input.field_with_name(name).ok().map(|f| f.data_type().clone());
    if type_of(ID) != Some(DataType::Int64) || type_of(SOURCE) != Some(DataType::Utf8) {
        return Err(Error::internal("a source's rows need `_id` (Int64) and `_source` (Utf8)"));
    }
    let with_part = match type_of(PART) {
        None => false,
        Some(DataType::Int32) => true,
        Some(other) => return Err(Error::internal(format!("a source's `_part` is {other}, not Int32"))),
    };
    let mut fields = key_fields(with_part);
    fields.extend(input.fields().iter().filter(|f| !is_key(f.name())).cloned());
    Ok(Arc::new(Schema::new_with_metadata(fields, input.metadata().clone())))
}

/// A batch with the columns of `schema`, found by name. A missing column or another type is an error.
pub(super) fn conform(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if batch.schema_ref() == schema {
        return Ok(batch);
    }
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let Some(column) = batch.column_by_name(field.name()) else {
            return Err(Error::internal(format!("a batch without the column `{}`", field.name())));
        };
        if column.data_type() != field.data_type() {
            return Err(Error::internal(format!("the column `{}` is {}, not {}", field.name(), column.data_type(), field.data_type())));
        }
        columns.push(column.clone());
    }
    RecordBatch::try_new(schema.clone(), columns).map_err(|e| Error::internal(e.to_string()))
}

/// Checks the names of a step's own columns: present, distinct without regard to case, free of what the table format refuses, not reserved.
pub(super) fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        let lower = name.to_lowercase();
        if is_key(&lower) || RESERVED.contains(&lower.as_str()) {
            return Err(Error::bad_input(format!("the column name `{name}` is reserved")).with_remedy("give it another name with AS"));
        }
        if name.is_empty() || name.contains([' ', ',', ';', '{', '}', '(', ')', '\n', '\t', '=']) {
            return Err(Error::bad_input(format!("a column is named `{}`, which the table format refuses", name.escape_debug()))
                .with_remedy("give it a name with AS, of letters, digits and _"));
        }
        if !seen.insert(lower) {
            return Err(Error::bad_input(format!("two columns are named `{name}` (names differ by more than case)"))
                .with_remedy("give one another name with AS"));
        }
    }
    Ok(())
}

/// `_part` counted anew from 0 within each run of equal `_id`. Rows of one `_id` are neighbours in any batch in key order.
pub(super) fn number_parts(ids: &Int64Array) -> ArrayRef {
    let mut last = None;
    let mut part = 0;
    let parts = ids.values().iter().map(|id| {
        part = if last == Some(*id) { part + 1 } else { 0 };
        last = Some(*id);
        part
    });
    Arc::new(Int32Array::from_iter_values(parts))
}

/// The batch with [`number_parts`] as its `_part`: pieces that were numbered one by one are numbered as a whole.
pub(super) fn renumbered(batch: RecordBatch) -> Result<RecordBatch> {
    let Ok(place) = batch.schema_ref().index_of(PART) else { return Ok(batch) };
    let parts = number_parts(ids(&batch)?);
    let mut columns = batch.columns().to_vec();
    if let Some(column) = columns.get_mut(place) {
        *column = parts;
    }
    RecordBatch::try_new(batch.schema(), columns).map_err(|e| Error::internal(e.to_string()))
}

pub(super) fn ids(batch: &RecordBatch) -> Result<&Int64Array> {
    let column = batch.column_by_name(ID).and_then(|c| c.as_primitive_opt::<Int64Type>());
    column.filter(|c| c.null_count() == 0).ok_or_else(|| Error::internal("a batch without `_id`"))
}

/// The batch in slices of about `rows` rows; rows of one `_id` stay together, because their parts are numbered together.
pub(super) fn slices(batch: &RecordBatch, rows: usize) -> Result<Vec<RecordBatch>> {
    let ids = ids(batch)?.values();
    let mut cuts = vec![0];
    let mut start = 0;
    for row in 1..ids.len() {
        if row - start >= rows && ids[row] != ids[row - 1] {
            cuts.push(row);
            start = row;
        }
    }
    cuts.push(ids.len());
    Ok(cuts.windows(2).map(|w| batch.slice(w[0], w[1] - w[0])).collect())
}

/// Key and file of one row, for messages.
pub(super) fn describe(batch: &RecordBatch, row: usize) -> (i64, Option<i32>, String) {
    let id = ids(batch).map_or(-1, |ids| if row < ids.len() { ids.value(row) } else { -1 });
    let part = batch.column_by_name(PART).and_then(|c| c.as_primitive_opt::<arrow::datatypes::Int32Type>());
    let part = part.filter(|p| row < p.len()).map(|p| p.value(row));
    let source = batch.column_by_name(SOURCE).and_then(|c| c.as_string_opt::<i32>()).filter(|s| row < s.len()).map(|s| s.value(row));
    (id, part, source.unwrap_or_default().to_owned())
}
