//! Tensors: fixed shape as fixed-size binary, ragged as one binary per row. Both share buffers with their logical form.
//!
//! Stored elements are little-endian; on a big-endian host the bytes would have to be swapped, which is refused rather than guessed.

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, ListArray, StructArray,
    make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Int32Type};
use forebay_core::{Error, Result};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use super::convert::{convert, own_values};
use super::{TYPE_KEY, stored_type};

/// Field metadata of a tensor column in stored form: `{"dtype": "UInt8", "shape": [224, 224, 3]}`, or `{"dtype", "dimensions"}` when
/// ragged.
pub const TENSOR_KEY: &str = "forebay.tensor";

const EXTENSION_NAME: &str = "ARROW:extension:name";
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";
const FIXED: &str = "arrow.fixed_shape_tensor";
const RAGGED: &str = "arrow.variable_shape_tensor";

/// A tensor column of `prim` elements, not nullable, row-major.
pub fn tensor_field(name: &str, prim: &DataType, shape: &[usize]) -> Field {
    let size = i32::try_from(shape.iter().product::<usize>()).unwrap_or(i32::MAX);
    let item = Field::new("item", prim.clone(), false);
    Field::new(name, DataType::FixedSizeList(Arc::new(item), size), false).with_metadata(
        [(EXTENSION_NAME.to_owned(), FIXED.to_owned()), (EXTENSION_METADATA.to_owned(), json!({"shape": shape}).to_string())].into(),
    )
}

/// Element type and shape of a logical tensor column; a fixed-size list of numbers that isn't marked as a tensor is one of one dimension.
pub fn tensor_shape(field: &Field) -> Option<(DataType, Vec<usize>)> {
    let DataType::FixedSizeList(item, size) = field.data_type() else {
        return None;
    };
    element_width(item.data_type())?;
    let size = usize::try_from(*size).ok()?;
    if field.extension_type_name() != Some(FIXED) {
        return field.extension_type_name().is_none().then(|| (item.data_type().clone(), vec![size]));
    }
    let metadata: Value = serde_json::from_str(field.extension_type_metadata()?).ok()?;
    let shape: Vec<usize> = metadata.get("shape")?.as_array()?.iter().map(|d| d.as_u64().map(|d| d as usize)).collect::<Option<_>>()?;
    (shape.iter().product::<usize>() == size).then(|| (item.data_type().clone(), shape))
}

/// Element type and dimensions of a ragged tensor column; `None` is a dimension that varies.
pub(super) fn ragged_shape(field: &Field) -> Option<(DataType, Vec<Option<u64>>)> {
    let (dtype, dimensions) = ragged_storage(field)?;
    let metadata: Option<Value> = field.extension_type_metadata().and_then(|m| serde_json::from_str(m).ok());
    let uniform = metadata.as_ref().and_then(|m| m.get("uniform_shape")).and_then(Value::as_array);
    let uniform = uniform.map(|u| u.iter().map(Value::as_u64).collect::<Vec<_>>());
    Some((dtype, uniform.filter(|u| u.len() == dimensions).unwrap_or_else(|| vec![None; dimensions])))
}

fn ragged_storage(field: &Field) -> Option<(DataType, usize)> {
    let (RAGGED, DataType::Struct(fields)) = (field.extension_type_name()?, field.data_type()) else {
        return None;
    };
    let (_, data) = fields.find("data")?;
    let (_, shape) = fields.find("shape")?;
    match (data.data_type(), shape.data_type()) {
        (DataType::List(item), DataType::FixedSizeList(_, n)) => Some((item.data_type().clone(), usize::try_from(*n).ok()?)),
        _ => None,
    }
}

pub(super) fn is_tensor(field: &Field) -> bool {
    field.extension_type_name() == Some(FIXED) || tensor_shape(field).is_some()
}

pub(super) fn is_ragged(field: &Field) -> bool {
    field.extension_type_name() == Some(RAGGED)
}

/// Bytes of a stored element; `None` for what can't be an element.
fn element_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::Float16 => Some(2),
        t if t.is_integer() || t.is_floating() => t.primitive_width(),
        _ => None,
    }
}

fn refuse_big_endian() -> Result<()> {
    if cfg!(target_endian = "big") {
        return Err(Error::unsupported("tensors are stored little-endian and this host is big-endian"));
    }
    Ok(())
}

pub(super) fn map_tensor(field: &Field) -> Result<(Field, Field)> {
    refuse_big_endian()?;
    let Some((dtype, shape)) = tensor_shape(field) else {
        return Err(Error::bad_input(format!("column `{}` is marked as a tensor and isn't one: {}", field.name(), field.data_type()))
            .with_remedy("a tensor is a fixed-size list of numbers whose length is the product of its shape"));
    };
    let width = element_width(&dtype).unwrap_or_default();
    let size = shape.iter().try_fold(width, |n, d| n.checked_mul(*d)).and_then(|n| i32::try_from(n).ok());
    let Some(size) = size.filter(|n| *n > 0) else {
        return Err(Error::unsupported(format!("column `{}`: a tensor of shape {shape:?} can't be stored", field.name()))
            .with_remedy("a stored tensor has 1 byte to 2 GiB"));
    };
    let mut description = Map::new();
    description.insert("dtype".into(), dtype.to_string().into());
    description.insert("shape".into(), shape.clone().into());
    let mut metadata: Map<String, Value> = field.extension_type_metadata().and_then(|m| serde_json::from_str(m).ok()).unwrap_or_default();
    metadata.insert("shape".into(), shape.into());
    for key in ["dim_names", "permutation"] {
        if let Some(value) = metadata.get(key) {
            description.insert(key.into(), value.clone());
        }
    }
    let count = size / i32::try_from(width).unwrap_or(1);
    let logical_type = DataType::FixedSizeList(Arc::new(Field::new("item", dtype, false)), count);
    let logical = logical_field(field, logical_type, FIXED, Value::Object(metadata));
    Ok((logical, stored_field(field, DataType::FixedSizeBinary(size), Value::Object(description))))
}

pub(super) fn map_ragged(field: &Field) -> Result<(Field, Field)> {
    refuse_big_endian()?;
    let dtype_and_dimensions =
        ragged_storage(field).filter(|(dtype, n)| element_width(dtype).is_some() && *dtype != DataType::Boolean && *n > 0);
    let Some((dtype, dimensions)) = dtype_and_dimensions else {
        return Err(Error::unsupported(format!(
            "column `{}` is marked as a ragged tensor and isn't one: {}",
            field.name(),
            field.data_type()
        ))
        .with_remedy("its storage is a struct of `data` (a list of numbers) and `shape` (a fixed-size list of int32)"));
    };
    let mut description = Map::new();
    description.insert("dtype".into(), dtype.to_string().into());
    description.insert("dimensions".into(), dimensions.into());
    let metadata: Map<String, Value> = field.extension_type_metadata().and_then(|m| serde_json::from_str(m).ok()).unwrap_or_default();
    for key in ["dim_names", "permutation", "uniform_shape"] {
        if let Some(value) = metadata.get(key) {
            description.insert(key.into(), value.clone());
        }
    }
    let logical = logical_field(field, ragged_type(&dtype, dimensions), RAGGED, Value::Object(metadata));
    Ok((logical, stored_field(field, stored_ragged_type(), Value::Object(description))))
}

fn ragged_type(dtype: &DataType, dimensions: usize) -> DataType {
    let dimensions = i32::try_from(dimensions).unwrap_or(i32::MAX);
    let data = Field::new("data", DataType::List(Arc::new(Field::new("item", dtype.clone(), false))), false);
    let shape = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Int32, false)), dimensions);
    DataType::Struct(Fields::from(vec![data, Field::new("shape", shape, false)]))
}

fn stored_ragged_type() -> DataType {
    let shape = DataType::List(Arc::new(Field::new("element", DataType::Int32, false)));
    DataType::Struct(Fields::from(vec![Field::new("data", DataType::Binary, false), Field::new("shape", shape, false)]))
}

fn logical_field(field: &Field, data_type: DataType, extension: &str, metadata: Value) -> Field {
    let mut all = field.metadata().clone();
    all.remove(TENSOR_KEY);
    all.remove(TYPE_KEY);
    all.insert(EXTENSION_NAME.to_owned(), extension.to_owned());
    all.insert(EXTENSION_METADATA.to_owned(), metadata.to_string());
    Field::new(field.name(), data_type, field.is_nullable()).with_metadata(all)
}

fn stored_field(field: &Field, data_type: DataType, description: Value) -> Field {
    let mut all = field.metadata().clone();
    all.remove(EXTENSION_NAME);
    all.remove(EXTENSION_METADATA);
    all.remove(TYPE_KEY);
    all.insert(TENSOR_KEY.to_owned(), description.to_string());
    Field::new(field.name(), data_type, field.is_nullable()).with_metadata(all)
}

/// The logical field that `forebay.tensor` describes.
pub(super) fn from_description(field: &Field, description: &str) -> Result<Field> {
    let bad = || Error::corrupt(format!("column `{}` has an unreadable {TENSOR_KEY}: {description}", field.name()));
    let description: Map<String, Value> = serde_json::from_str(description).map_err(|_| bad())?;
    let dtype = description.get("dtype").and_then(Value::as_str).ok_or_else(bad)?;
    let dtype = DataType::from_str(dtype).map_err(|_| bad())?;
    let mut metadata = description.clone();
    metadata.remove("dtype");
    metadata.remove("dimensions");
    if let Some(dimensions) = description.get("dimensions").and_then(Value::as_u64) {
        let dimensions = usize::try_from(dimensions).map_err(|_| bad())?;
        return Ok(logical_field(field, ragged_type(&dtype, dimensions), RAGGED, Value::Object(metadata)));
    }
    let shape = description.get("shape").and_then(Value::as_array).ok_or_else(bad)?;
    let size = shape.iter().try_fold(1_u64, |n, d| d.as_u64().and_then(|d| n.checked_mul(d))).ok_or_else(bad)?;
    let size = i32::try_from(size).map_err(|_| bad())?;
    let data_type = DataType::FixedSizeList(Arc::new(Field::new("item", dtype, false)), size);
    Ok(logical_field(field, data_type, FIXED, Value::Object(metadata)))
}

/// The bytes of primitive values, in their own length.
fn value_bytes(values: &ArrayRef, width: usize) -> Result<Buffer> {
    let data = values.to_data();
    let buffer = data.buffers().first().ok_or_else(|| Error::internal("a primitive array without values"))?;
    Ok(buffer.slice_with_length(data.offset() * width, data.len() * width))
}

/// Refuses nulls among the elements of rows that are there; what lies under a null tensor may be anything. `ranges` are each row's elements.
fn refuse_inner_nulls(
    values: &ArrayRef,
    ranges: impl Iterator<Item = Range<usize>>,
    rows: Option<&NullBuffer>,
    column: &str,
) -> Result<()> {
    let Some(elements) = values.nulls().filter(|n| n.null_count() > 0) else {
        return Ok(());
    };
    for (row, range) in ranges.enumerate() {
        if rows.is_none_or(|n| n.is_valid(row)) && elements.slice(range.start, range.len()).null_count() > 0 {
            return Err(Error::bad_input(format!("column `{column}`, row {row} of the batch: a tensor's elements may not be null"))
                .with_remedy("fill them before they are made a tensor"));
        }
    }
    Ok(())
}

pub(super) fn encode(array: &ArrayRef, logical: &Field, stored: &Field) -> Result<ArrayRef> {
    let column = stored.name();
    let (DataType::FixedSizeList(item, count), DataType::FixedSizeBinary(size)) = (logical.data_type(), stored.data_type()) else {
        return Err(Error::internal(format!("column `{column}` isn't a tensor")));
    };
    let Some(list) = array.as_fixed_size_list_opt().filter(|l| l.value_length() == *count && l.value_type() == *item.data_type()) else {
        return Err(Error::bad_input(format!("column `{column}` is {} where {} was expected", array.data_type(), logical.data_type())));
    };
    let length = usize::try_from(*count).unwrap_or(0);
    refuse_inner_nulls(list.values(), (0..list.len()).map(|row| row * length..(row + 1) * length), list.nulls(), column)?;
    let bytes = match list.values().as_boolean_opt() {
        Some(bits) => Buffer::from_iter(bits.values().iter().map(u8::from)),
        None => value_bytes(list.values(), element_width(item.data_type()).unwrap_or(1))?,
    };
    FixedSizeBinaryArray::try_new(*size, bytes, list.nulls().cloned())
        .map(|a| Arc::new(a) as ArrayRef)
        .map_err(|e| Error::internal(format!("column `{column}`: {e}")))
}

pub(super) fn decode(array: &ArrayRef, logical: &Field, stored: &Field) -> Result<ArrayRef> {
    let column = stored.name();
    let DataType::FixedSizeList(item, count) = logical.data_type() else {
        return Err(Error::internal(format!("column `{column}` isn't a tensor")));
    };
    let array = convert(array, stored.data_type(), column)?;
    let binary = array.as_fixed_size_binary();
    let values = elements(item.data_type(), binary.values().clone(), binary.len() * usize::try_from(*count).unwrap_or(0), column)?;
    FixedSizeListArray::try_new(Arc::clone(item), *count, values, binary.nulls().cloned())
        .map(|a| Arc::new(a) as ArrayRef)
        .map_err(|e| Error::corrupt(format!("column `{column}`: {e}")))
}

/// `len` elements that lie in `bytes`, without a copy where the bytes are aligned.
fn elements(dtype: &DataType, bytes: Buffer, len: usize, column: &str) -> Result<ArrayRef> {
    if *dtype == DataType::Boolean {
        let bits: BooleanBuffer = bytes.iter().take(len).map(|b| *b != 0).collect();
        return Ok(Arc::new(BooleanArray::new(bits, None)));
    }
    let data = arrow::array::ArrayData::builder(dtype.clone()).len(len).add_buffer(bytes).align_buffers(true).build();
    data.map(make_array).map_err(|e| Error::corrupt(format!("column `{column}`: {e}")))
}

pub(super) fn encode_ragged(array: &ArrayRef, stored: &Field) -> Result<ArrayRef> {
    let column = stored.name();
    let parts = array.as_struct_opt().and_then(|s| Some((s, s.column_by_name("data")?, s.column_by_name("shape")?)));
    let Some((tensor, data, shape)) = parts else {
        return Err(Error::bad_input(format!("column `{column}` is {} where a ragged tensor was expected", array.data_type())));
    };
    let Some(list) = data.as_list_opt::<i32>() else {
        return Err(Error::bad_input(format!("column `{column}`: `data` is {} where a list was expected", data.data_type())));
    };
    let DataType::Struct(fields) = stored.data_type() else {
        return Err(Error::internal(format!("column `{column}` isn't stored as a struct")));
    };
    let (values, offsets) = own_values(list);
    if let Some(row) = (0..list.len()).find(|&row| list.is_null(row) && tensor.is_valid(row)) {
        return Err(Error::bad_input(format!("column `{column}`, row {row} of the batch: a tensor without data that isn't null itself")));
    }
    refuse_inner_nulls(&values, offsets.windows(2).map(|o| o[0] as usize..o[1] as usize), tensor.nulls(), column)?;
    let width = element_width(values.data_type()).ok_or_else(|| stored_type::unsupported(values.data_type(), column))?;
    let too_long = || Error::new(forebay_core::Kind::ResourceExhausted, format!("column `{column}`: more than 2 GiB in one batch"));
    let bytes = value_bytes(&values, width)?;
    let scaled = offsets.iter().map(|o| i32::try_from(*o as usize * width).map_err(|_| too_long())).collect::<Result<Vec<i32>>>()?;
    // A struct's null says it all: its parts are stored as they are, empty under a null.
    let binary = BinaryArray::try_new(OffsetBuffer::new(scaled.into()), bytes, None).map_err(|e| Error::internal(e.to_string()))?;
    let shape = shape_lists(shape, tensor, column)?;
    StructArray::try_new_with_length(fields.clone(), vec![Arc::new(binary), shape], tensor.nulls().cloned(), tensor.len())
        .map(|a| Arc::new(a) as ArrayRef)
        .map_err(|e| Error::bad_input(format!("column `{column}`: {e}")))
}

/// The shapes as lists without a null in them: empty under a null tensor.
fn shape_lists(shape: &ArrayRef, tensor: &StructArray, column: &str) -> Result<ArrayRef> {
    let element = Arc::new(Field::new("element", DataType::Int32, true));
    let lists = convert(shape, &DataType::List(element), column)?;
    let lists = lists.as_list::<i32>();
    let (values, offsets) = own_values(lists);
    let values = values.as_primitive::<Int32Type>();
    let mut kept = Vec::with_capacity(values.len());
    let mut lengths = Vec::with_capacity(lists.len());
    for (row, range) in offsets.windows(2).enumerate() {
        if tensor.is_null(row) {
            lengths.push(0);
            continue;
        }
        let range = range[0] as usize..range[1] as usize;
        if lists.is_null(row) || range.clone().any(|i| values.is_null(i)) {
            return Err(Error::bad_input(format!("column `{column}`, row {row} of the batch: a tensor's shape may not be null")));
        }
        lengths.push(range.len());
        kept.extend_from_slice(&values.values()[range]);
    }
    let element = Arc::new(Field::new("element", DataType::Int32, false));
    ListArray::try_new(element, OffsetBuffer::from_lengths(lengths), Arc::new(Int32Array::from(kept)), None)
        .map(|a| Arc::new(a) as ArrayRef)
        .map_err(|e| Error::internal(format!("column `{column}`: {e}")))
}

pub(super) fn decode_ragged(array: &ArrayRef, logical: &Field) -> Result<ArrayRef> {
    let column = logical.name();
    let stored = convert(array, &stored_ragged_type(), column)?;
    let stored = stored.as_struct();
    let DataType::Struct(fields) = logical.data_type() else {
        return Err(Error::internal(format!("column `{column}` isn't a ragged tensor")));
    };
    let (DataType::List(item), shape_type) = (fields[0].data_type(), fields[1].data_type()) else {
        return Err(Error::internal(format!("column `{column}` isn't a ragged tensor")));
    };
    let width = element_width(item.data_type()).unwrap_or(1);
    let binary = stored.column(0).as_binary::<i32>();
    let (first, last) = (binary.value_offsets().first().copied().unwrap_or(0), binary.value_offsets().last().copied().unwrap_or(0));
    let bytes = binary.values().slice_with_length(first as usize, (last - first) as usize);
    let mut offsets = Vec::with_capacity(binary.len() + 1);
    for offset in binary.value_offsets() {
        let offset = (offset - first) as usize;
        if !offset.is_multiple_of(width) {
            return Err(Error::corrupt(format!(
                "column `{column}`: a tensor's bytes aren't a whole number of {} elements",
                item.data_type()
            )));
        }
        offsets.push((offset / width) as i32);
    }
    let values = elements(item.data_type(), bytes.clone(), bytes.len() / width, column)?;
    let offsets = OffsetBuffer::new(offsets.into());
    let list = ListArray::try_new(Arc::clone(item), offsets, values, None).map_err(|e| Error::corrupt(e.to_string()))?;
    let shape = null_free_shape(stored, shape_type, column)?;
    StructArray::try_new_with_length(fields.clone(), vec![Arc::new(list), shape], stored.nulls().cloned(), stored.len())
        .map(|a| Arc::new(a) as ArrayRef)
        .map_err(|e| Error::corrupt(format!("column `{column}`: {e}")))
}

/// The shapes as a fixed-size list. Under a null tensor Parquet gives back an empty shape, which no fixed-size list can hold: it becomes
/// zeros.
fn null_free_shape(stored: &StructArray, to: &DataType, column: &str) -> Result<ArrayRef> {
    let DataType::FixedSizeList(item, n) = to else {
        return Err(Error::internal(format!("column `{column}` isn't a ragged tensor")));
    };
    if stored.null_count() == 0 {
        return convert(stored.column(1), to, column);
    }
    let shapes = stored.column(1).as_list::<i32>();
    let width = usize::try_from(*n).unwrap_or(0);
    let mut values: Vec<i32> = Vec::with_capacity(stored.len() * width);
    for row in 0..stored.len() {
        if stored.is_null(row) {
            values.resize(values.len() + width, 0);
            continue;
        }
        let shape = shapes.value(row);
        if shape.len() != width {
            return Err(Error::corrupt(format!("column `{column}`: a shape of {} dimensions where {width} were expected", shape.len())));
        }
        values.extend_from_slice(shape.as_primitive::<Int32Type>().values());
    }
    let values = Arc::new(Int32Array::from(values));
    FixedSizeListArray::try_new(Arc::clone(item), *n, values, None)
        .map(|a| Arc::new(a) as ArrayRef)
        .map_err(|e| Error::corrupt(format!("column `{column}`: {e}")))
}
