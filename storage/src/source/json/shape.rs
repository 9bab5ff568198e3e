//! What JSON values look like, for the types of columns.

use arrow::datatypes::{DataType, Field};
use serde_json::Value;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// Only nulls, or an empty list's item.
    Unknown,
    Bool,
    Int,
    Float,
    Text,
    List(Box<Shape>),
    Struct(Vec<(String, Shape)>),
}

impl Shape {
    pub(super) fn of(value: &Value) -> Shape {
        match value {
            Value::Null => Shape::Unknown,
            Value::Bool(_) => Shape::Bool,
            Value::Number(n) if n.is_i64() => Shape::Int,
            Value::Number(_) => Shape::Float,
            Value::String(_) => Shape::Text,
            Value::Array(items) => {
                let mut item = Shape::Unknown;
                items.iter().for_each(|i| item.merge(Shape::of(i)));
                Shape::List(Box::new(item))
            }
            Value::Object(map) => Shape::Struct(map.iter().map(|(k, v)| (k.clone(), Shape::of(v))).collect()),
        }
    }

    /// Widens to take in another value. Of two shapes that have nothing in common the first stays: rows with the other one are bad rows.
    pub(super) fn merge(&mut self, other: Shape) {
        match (&mut *self, other) {
            (_, Shape::Unknown) => {}
            (Shape::Unknown, other) => *self = other,
            (Shape::Int, Shape::Float) => *self = Shape::Float,
            (Shape::List(mine), Shape::List(theirs)) => mine.merge(*theirs),
            (Shape::Struct(mine), Shape::Struct(theirs)) => {
                for (name, shape) in theirs {
                    match mine.iter_mut().find(|(n, _)| *n == name) {
                        Some((_, known)) => known.merge(shape),
                        None => mine.push((name, shape)),
                    }
                }
            }
            _ => {}
        }
    }

    /// The column type. An object without keys is kept as JSON: a struct needs a field.
    pub(super) fn kind(&self) -> DataType {
        match self {
            Shape::Unknown | Shape::Text => DataType::Utf8,
            Shape::Bool => DataType::Boolean,
            Shape::Int => DataType::Int64,
            Shape::Float => DataType::Float64,
            Shape::List(item) => DataType::List(Arc::new(Field::new("item", item.kind(), true))),
            Shape::Struct(fields) if fields.is_empty() => DataType::LargeUtf8,
            Shape::Struct(fields) => DataType::Struct(fields.iter().map(|(n, s)| Field::new(n, s.kind(), true)).collect()),
        }
    }
}
