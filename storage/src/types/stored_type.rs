//! Which Arrow type holds a value: the logical one without engine artefacts, and the stored one that Delta has.

use arrow::datatypes::{DataType, Field, TimeUnit};
use forebay_core::{Error, Result};
use std::sync::Arc;

/// Names that nested fields have in logical form, whatever the engine called them.
const LIST_ITEM: &str = "item";
/// ... and in stored form, where Parquet and Delta fix them.
const PARQUET_ELEMENT: &str = "element";

/// Views, dictionaries and engine-made field names become what a user means.
pub(super) fn normalise(data_type: &DataType, column: &str) -> Result<DataType> {
    Ok(match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => normalise(values, column)?,
        DataType::List(f) | DataType::ListView(f) => DataType::List(nested(f, LIST_ITEM, column, normalise)?),
        DataType::LargeList(f) | DataType::LargeListView(f) => DataType::LargeList(nested(f, LIST_ITEM, column, normalise)?),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(nested(f, LIST_ITEM, column, normalise)?, *n),
        DataType::Struct(fields) if fields.is_empty() => return Err(unsupported(data_type, column)),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|f| nested(f, f.name(), column, normalise)).collect::<Result<Vec<_>>>()?.into())
        }
        DataType::Map(entries, sorted) => map(entries, *sorted, ["entries", "keys", "values"], column, normalise)?,
        other => other.clone(),
    })
}

/// The type that Delta has and that holds every value of a (normalised) logical type.
pub(super) fn widen(data_type: &DataType, column: &str) -> Result<DataType> {
    Ok(match data_type {
        DataType::Null => DataType::Boolean,
        DataType::UInt8 => DataType::Int16,
        DataType::UInt16 | DataType::Time32(_) => DataType::Int32,
        DataType::UInt32 | DataType::Time64(_) | DataType::Duration(_) => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Float16 => DataType::Float32,
        DataType::Date64 => DataType::Date32,
        DataType::Timestamp(_, _) => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) if *s >= 0 => DataType::Decimal128(*p, *s),
        DataType::Decimal128(_, s) if *s >= 0 => data_type.clone(),
        DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Date32
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Binary
        | DataType::LargeBinary => data_type.clone(),
        DataType::FixedSizeBinary(n) if *n > 0 => data_type.clone(),
        DataType::List(f) | DataType::FixedSizeList(f, _) => DataType::List(nested(f, PARQUET_ELEMENT, column, widen)?),
        DataType::LargeList(f) => DataType::LargeList(nested(f, PARQUET_ELEMENT, column, widen)?),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|f| nested(f, f.name(), column, widen)).collect::<Result<Vec<_>>>()?.into())
        }
        DataType::Map(entries, sorted) => map(entries, *sorted, ["key_value", "key", "value"], column, widen)?,
        _ => return Err(unsupported(data_type, column)),
    })
}

type Change = fn(&DataType, &str) -> Result<DataType>;

fn nested(field: &Field, name: &str, column: &str, change: Change) -> Result<Arc<Field>> {
    // Delta has no place for an extension type below the top level, and one that came back as bare storage would be a silent change.
    if let Some(extension) = field.extension_type_name() {
        return Err(Error::unsupported(format!("column `{column}` holds `{extension}` inside another type, which can't be stored"))
            .with_remedy("make it a column of its own"));
    }
    let data_type = change(field.data_type(), column)?;
    let nullable = field.is_nullable() || field.data_type() == &DataType::Null;
    Ok(Arc::new(Field::new(name, data_type, nullable)))
}

fn map(entries: &Field, sorted: bool, names: [&str; 3], column: &str, change: Change) -> Result<DataType> {
    let DataType::Struct(kv) = entries.data_type() else {
        return Err(Error::internal(format!("column `{column}` is a map without entries")));
    };
    let [key, value] = kv.as_ref() else {
        return Err(Error::internal(format!("column `{column}` is a map whose entries aren't key and value")));
    };
    let key = Arc::new(nested(key, names[1], column, change)?.as_ref().clone().with_nullable(false));
    let value = nested(value, names[2], column, change)?;
    let entries = Field::new(names[0], DataType::Struct(vec![key, value].into()), false);
    Ok(DataType::Map(Arc::new(entries), sorted))
}

pub(super) fn unsupported(data_type: &DataType, column: &str) -> Error {
    Error::unsupported(format!("column `{column}` has type {data_type}, which can't be stored"))
        .with_remedy(format!("convert it, for example `CAST(\"{column}\" AS VARCHAR) AS \"{column}\"`"))
}
