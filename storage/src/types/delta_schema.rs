//! The schema as the Delta log writes it, and back.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use forebay_core::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use super::names::EPOCH;
use super::stored_type::unsupported;
use super::tensor;
use super::{StoredSchema, TENSOR_KEY, TYPE_KEY, to_stored};

/// The `schemaString` of a dataset: the partition column `epoch`, then the stored columns.
///
/// # Errors
/// `Internal` if a stored type has no Delta type, which [`to_stored`] rules out.
pub fn delta_schema_json(schema: &StoredSchema) -> Result<String> {
    let mut fields = vec![json!({"name": EPOCH, "type": "integer", "nullable": true, "metadata": {}})];
    for field in schema.stored.fields() {
        fields.push(delta_field(field, field.name())?);
    }
    Ok(json!({"type": "struct", "fields": fields}).to_string())
}

fn delta_field(field: &Field, column: &str) -> Result<Value> {
    let mut metadata: Vec<_> = field.metadata().iter().collect();
    metadata.sort();
    let metadata: Map<String, Value> = metadata.into_iter().map(|(k, v)| (k.clone(), Value::String(v.clone()))).collect();
    Ok(json!({"name": field.name(), "type": delta_type(field.data_type(), column)?, "nullable": field.is_nullable(), "metadata": metadata}))
}

pub(super) fn delta_type(data_type: &DataType, column: &str) -> Result<Value> {
    let name = match data_type {
        DataType::Boolean => "boolean",
        DataType::Int8 => "byte",
        DataType::Int16 => "short",
        DataType::Int32 => "integer",
        DataType::Int64 => "long",
        DataType::Float32 => "float",
        DataType::Float64 => "double",
        DataType::Utf8 | DataType::LargeUtf8 => "string",
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => "binary",
        DataType::Date32 => "date",
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => "timestamp",
        DataType::Decimal128(p, s) => return Ok(Value::String(format!("decimal({p},{s})"))),
        DataType::List(f) | DataType::LargeList(f) => {
            return Ok(json!({"type": "array", "elementType": delta_type(f.data_type(), column)?, "containsNull": f.is_nullable()}));
        }
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|f| delta_field(f, column)).collect::<Result<Vec<_>>>()?;
            return Ok(json!({"type": "struct", "fields": fields}));
        }
        DataType::Map(entries, _) => {
            let DataType::Struct(kv) = entries.data_type() else { return Err(unsupported(data_type, column)) };
            let [key, value] = kv.as_ref() else { return Err(unsupported(data_type, column)) };
            return Ok(json!({"type": "map", "keyType": delta_type(key.data_type(), column)?,
                "valueType": delta_type(value.data_type(), column)?, "valueContainsNull": value.is_nullable()}));
        }
        _ => return Err(unsupported(data_type, column)),
    };
    Ok(Value::String(name.to_owned()))
}

/// The logical type that a Delta type stands for when no metadata says otherwise.
pub(super) fn arrow_type(delta: &Value, column: &str) -> Result<DataType> {
    let unknown = || Error::unsupported(format!("column `{column}` has the Delta type {delta}, which isn't known here"));
    if let Some(name) = delta.as_str() {
        return primitive(name).ok_or_else(unknown);
    }
    let part = |key: &str| delta.get(key).ok_or_else(unknown);
    let flag = |key: &str| delta.get(key).and_then(Value::as_bool).unwrap_or(true);
    match part("type")?.as_str() {
        Some("array") => Ok(DataType::List(Arc::new(Field::new("item", arrow_type(part("elementType")?, column)?, flag("containsNull"))))),
        Some("struct") => {
            let fields = part("fields")?.as_array().ok_or_else(unknown)?;
            let fields = fields.iter().map(|f| plain_field(f).map(|(field, _)| field)).collect::<Result<Vec<_>>>()?;
            Ok(DataType::Struct(fields.into()))
        }
        Some("map") => {
            let key = Field::new("keys", arrow_type(part("keyType")?, column)?, false);
            let value = Field::new("values", arrow_type(part("valueType")?, column)?, flag("valueContainsNull"));
            let entries = Field::new("entries", DataType::Struct(vec![key, value].into()), false);
            Ok(DataType::Map(Arc::new(entries), false))
        }
        _ => Err(unknown()),
    }
}

fn primitive(name: &str) -> Option<DataType> {
    Some(match name {
        "boolean" => DataType::Boolean,
        "byte" => DataType::Int8,
        "short" => DataType::Int16,
        "integer" => DataType::Int32,
        "long" => DataType::Int64,
        "float" => DataType::Float32,
        "double" => DataType::Float64,
        "string" => DataType::Utf8,
        "binary" => DataType::Binary,
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        _ => {
            let (p, s) = name.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
            DataType::Decimal128(p.trim().parse().ok()?, s.trim().parse().ok()?)
        }
    })
}

fn plain_field(delta: &Value) -> Result<(Field, HashMap<String, String>)> {
    let name = delta.get("name").and_then(Value::as_str).ok_or_else(|| Error::corrupt("a column of the Delta schema has no name"))?;
    let data_type = arrow_type(delta.get("type").unwrap_or(&Value::Null), name)?;
    let nullable = delta.get("nullable").and_then(Value::as_bool).unwrap_or(true);
    let metadata = delta.get("metadata").and_then(Value::as_object);
    // Other writers may turn our text into JSON values; as text they mean the same.
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let metadata = metadata.map(|m| m.iter().map(|(k, v)| (k.clone(), text(v))).collect()).unwrap_or_default();
    Ok((Field::new(name, data_type, nullable), metadata))
}

/// Reads a `schemaString` back, without the partition column.
///
/// # Errors
/// `Corrupt` for what isn't a Delta schema or a description that can't be read, `Unsupported` for types unknown here.
pub fn stored_from_delta(schema_string: &str) -> Result<StoredSchema> {
    let json: Value = serde_json::from_str(schema_string).map_err(|e| Error::corrupt(format!("the Delta schema isn't JSON: {e}")))?;
    let fields = json.get("fields").and_then(Value::as_array).ok_or_else(|| Error::corrupt("the Delta schema has no fields"))?;
    let mut logical = Vec::with_capacity(fields.len());
    for delta in fields {
        let (field, mut metadata) = plain_field(delta)?;
        if field.name() == EPOCH {
            continue;
        }
        let (tensor, original) = (metadata.remove(TENSOR_KEY), metadata.remove(TYPE_KEY));
        let field = field.with_metadata(metadata);
        logical.push(match (tensor, original) {
            (Some(description), _) => tensor::from_description(&field, &description)?,
            (None, Some(original)) => {
                let data_type = DataType::from_str(&original)
                    .map_err(|e| Error::corrupt(format!("column `{}` has an unreadable {TYPE_KEY} `{original}`: {e}", field.name())))?;
                field.with_data_type(data_type)
            }
            (None, None) => field,
        });
    }
    to_stored(&Schema::new(logical))
}
