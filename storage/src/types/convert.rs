//! Values between a logical and a stored type, exactly: what can't be held is an error that names the column and a row.
//!
//! Arrow's own cast does the leaves that can't lose anything. Timestamps and nesting are done here, because a cast would truncate
//! nanoseconds silently and would need a time zone database to change the name of a zone.

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryBuilder, FixedSizeListArray, GenericListArray, MapArray, NullArray, OffsetSizeTrait,
    PrimitiveArray, StructArray, new_null_array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Field, Fields, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow::util::display::FormatOptions;
use forebay_core::{Error, Result};
use std::sync::Arc;

/// Converts a column to a type of the same meaning. Gives back the same buffers where only names or nothing changes.
pub(super) fn convert(array: &ArrayRef, to: &DataType, column: &str) -> Result<ArrayRef> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    match (array.data_type(), to) {
        (DataType::Null, _) => Ok(new_null_array(to, array.len())),
        (_, DataType::Null) => all_null(array, column),
        (DataType::Dictionary(_, values), _) => {
            let values = cast(array, values, column)?;
            convert(&values, to, column)
        }
        (DataType::Timestamp(_, _), DataType::Timestamp(_, _)) => timestamps(array, to, column),
        (DataType::Date64, DataType::Date32) => {
            exact(array.as_primitive::<arrow::datatypes::Date64Type>().iter(), 86_400_000, "whole days", column)?;
            cast(array, to, column)
        }
        (DataType::ListView(f) | DataType::LargeListView(f), DataType::List(_) | DataType::LargeList(_)) => {
            let plain = match to {
                DataType::LargeList(_) => DataType::LargeList(Arc::clone(f)),
                _ => DataType::List(Arc::clone(f)),
            };
            convert(&cast(array, &plain, column)?, to, column)
        }
        (DataType::List(_), DataType::List(item)) => list(array.as_list::<i32>(), item, column),
        (DataType::LargeList(_), DataType::LargeList(item)) => list(array.as_list::<i64>(), item, column),
        (DataType::List(f), DataType::LargeList(_)) => convert(&cast(array, &DataType::LargeList(Arc::clone(f)), column)?, to, column),
        (DataType::LargeList(f), DataType::List(_)) => convert(&cast(array, &DataType::List(Arc::clone(f)), column)?, to, column),
        (DataType::FixedSizeList(f, _), DataType::List(_)) => convert(&cast(array, &DataType::List(Arc::clone(f)), column)?, to, column),
        (DataType::List(_), DataType::FixedSizeList(item, _)) => {
            let inner = convert(array, &DataType::List(Arc::clone(item)), column)?;
            cast(&inner, to, column)
        }
        (DataType::FixedSizeList(_, n), DataType::FixedSizeList(item, m)) if n == m => {
            let list = array.as_fixed_size_list();
            let values = convert(list.values(), item.data_type(), column)?;
            FixedSizeListArray::try_new(Arc::clone(item), *n, values, list.nulls().cloned()).map(to_ref).map_err(|e| misfit(column, &e))
        }
        (DataType::Struct(_), DataType::Struct(fields)) => structs(array.as_struct(), fields, column).map(to_ref),
        (DataType::Map(_, _), DataType::Map(entries, sorted)) => map(array.as_map(), entries, *sorted, column),
        (DataType::Binary, DataType::FixedSizeBinary(size)) => fixed_size(array, *size, column),
        _ => cast(array, to, column),
    }
}

fn to_ref<A: Array + 'static>(array: A) -> ArrayRef {
    Arc::new(array)
}

fn misfit(column: &str, error: &dyn std::fmt::Display) -> Error {
    Error::bad_input(format!("column `{column}`: {error}"))
}

fn cast(array: &ArrayRef, to: &DataType, column: &str) -> Result<ArrayRef> {
    // Not "safe": an overflow is an error here, never a null.
    let options = CastOptions { safe: false, format_options: FormatOptions::default() };
    cast_with_options(array, to, &options).map_err(|e| misfit(column, &e))
}

fn all_null(array: &ArrayRef, column: &str) -> Result<ArrayRef> {
    if array.logical_null_count() == array.len() {
        Ok(Arc::new(NullArray::new(array.len())))
    } else {
        Err(Error::bad_input(format!("column `{column}` is of type Null and has values")))
    }
}

fn exact(values: impl Iterator<Item = Option<i64>>, unit: i64, what: &str, column: &str) -> Result<()> {
    for (row, value) in values.enumerate() {
        if let Some(value) = value
            && value % unit != 0
        {
            return Err(Error::bad_input(format!("column `{column}`, row {row} of the batch: {value} can't be stored exactly as {what}"))
                .with_remedy(format!("round it, for example `date_trunc('microsecond', \"{column}\") AS \"{column}\"`")));
        }
    }
    Ok(())
}

/// Changes unit (exactly) and zone name (the instant stays; a value without a zone counts as UTC both ways).
fn timestamps(array: &ArrayRef, to: &DataType, column: &str) -> Result<ArrayRef> {
    let (DataType::Timestamp(from_unit, _), DataType::Timestamp(to_unit, zone)) = (array.data_type(), to) else {
        return cast(array, to, column);
    };
    let values: PrimitiveArray<Int64Type> = match from_unit {
        TimeUnit::Second => array.as_primitive::<TimestampSecondType>().reinterpret_cast(),
        TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().reinterpret_cast(),
        TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().reinterpret_cast(),
        TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().reinterpret_cast(),
    };
    let (from, to_per_second) = (per_second(*from_unit), per_second(*to_unit));
    let values = if to_per_second > from {
        let factor = to_per_second / from;
        let overflow = |v: i64| misfit(column, &format!("the time {v} is out of range"));
        values.try_unary::<_, Int64Type, Error>(|v| v.checked_mul(factor).ok_or_else(|| overflow(v)))?
    } else if to_per_second < from {
        let divisor = from / to_per_second;
        exact(values.iter(), divisor, "microseconds", column)?;
        values.unary(|v| v / divisor)
    } else {
        values
    };
    let zone = zone.clone();
    Ok(match to_unit {
        TimeUnit::Second => Arc::new(values.reinterpret_cast::<TimestampSecondType>().with_timezone_opt(zone)),
        TimeUnit::Millisecond => Arc::new(values.reinterpret_cast::<TimestampMillisecondType>().with_timezone_opt(zone)),
        TimeUnit::Microsecond => Arc::new(values.reinterpret_cast::<TimestampMicrosecondType>().with_timezone_opt(zone)),
        TimeUnit::Nanosecond => Arc::new(values.reinterpret_cast::<TimestampNanosecondType>().with_timezone_opt(zone)),
    })
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn list<O: OffsetSizeTrait>(array: &GenericListArray<O>, item: &Arc<Field>, column: &str) -> Result<ArrayRef> {
    // A slice keeps its neighbours' values behind it: only its own may be looked at, or a bad row would condemn all slices of its batch.
    let (values, offsets) = own_values(array);
    let values = convert(&values, item.data_type(), column)?;
    GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, array.nulls().cloned()).map(to_ref).map_err(|e| misfit(column, &e))
}

/// A list's values and offsets without what lies before and behind the rows of its slice.
pub(super) fn own_values<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> (ArrayRef, OffsetBuffer<O>) {
    let offsets = array.value_offsets();
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return (array.values().slice(0, 0), OffsetBuffer::new_empty());
    };
    if first.as_usize() == 0 && last.as_usize() == array.values().len() {
        return (Arc::clone(array.values()), array.offsets().clone());
    }
    let values = array.values().slice(first.as_usize(), (last - first).as_usize());
    let moved: ScalarBuffer<O> = offsets.iter().map(|&o| o - first).collect();
    (values, OffsetBuffer::new(moved))
}

fn structs(array: &StructArray, fields: &Fields, column: &str) -> Result<StructArray> {
    let mut columns = Vec::with_capacity(fields.len());
    for field in fields {
        let inner = array.column_by_name(field.name()).ok_or_else(|| misfit(column, &format!("field `{}` is missing", field.name())))?;
        columns.push(convert(inner, field.data_type(), column)?);
    }
    StructArray::try_new_with_length(fields.clone(), columns, array.nulls().cloned(), array.len()).map_err(|e| misfit(column, &e))
}

fn map(array: &MapArray, entries: &Arc<Field>, sorted: bool, column: &str) -> Result<ArrayRef> {
    let DataType::Struct(fields) = entries.data_type() else {
        return Err(misfit(column, &"a map without entries"));
    };
    // By position: the names of a map's key and value differ between engines.
    let mut columns = Vec::with_capacity(fields.len());
    for (field, inner) in fields.iter().zip(array.entries().columns()) {
        columns.push(convert(inner, field.data_type(), column)?);
    }
    let inner = array.entries();
    let inner = StructArray::try_new_with_length(fields.clone(), columns, inner.nulls().cloned(), inner.len());
    let inner = inner.map_err(|e| misfit(column, &e))?;
    MapArray::try_new(Arc::clone(entries), array.offsets().clone(), inner, array.nulls().cloned(), sorted)
        .map(to_ref)
        .map_err(|e| misfit(column, &e))
}

/// Binary values that another writer stored without their fixed length.
fn fixed_size(array: &ArrayRef, size: i32, column: &str) -> Result<ArrayRef> {
    let binary = array.as_binary::<i32>();
    let mut builder = FixedSizeBinaryBuilder::with_capacity(binary.len(), size);
    for (row, value) in binary.iter().enumerate() {
        match value {
            Some(value) => builder
                .append_value(value)
                .map_err(|_| misfit(column, &format!("row {row} of the batch has {} bytes where {size} were expected", value.len())))?,
            None => builder.append_null(),
        }
    }
    Ok(Arc::new(builder.finish()))
}
