//! Columns under construction from JSON: one parse per line, values go straight to their column. A line that turns out bad is taken back with
//! [`Node::truncate`].

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};
use forebay_core::{Error, Result};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::super::text::{self, TextColumn};
use super::super::typename;

/// A column, or a part of a nested one.
pub(super) struct Node {
    /// `a.b[]`, for messages; empty for the row itself.
    path: String,
    kind: DataType,
    valid: Vec<bool>,
    tree: Tree,
}

enum Tree {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Float(Vec<f64>),
    /// Text, and what is read as text to be cast later; `loose` takes numbers and booleans too.
    Text {
        column: TextColumn,
        loose: bool,
    },
    /// Any value as its JSON.
    Json(TextColumn),
    List {
        offsets: Vec<i32>,
        item: Box<Node>,
    },
    Struct {
        children: Vec<Node>,
        index: HashMap<String, usize>,
        seen: Vec<bool>,
    },
}

/// A finished column.
pub(super) enum Finished {
    /// To be cast to the column's type.
    Text(TextColumn),
    Array(ArrayRef),
}

impl Node {
    /// The row: an object with these keys.
    ///
    /// Text columns marked true take numbers and booleans as their text.
    pub(super) fn root(columns: impl Iterator<Item = (String, DataType, bool)>) -> Result<Node> {
        let node = |(name, kind, takes_any): (String, DataType, bool)| {
            let mut node = Node::new(name, &kind, true)?;
            if let Tree::Text { loose, .. } = &mut node.tree {
                *loose |= takes_any;
            }
            Ok(node)
        };
        let children = columns.map(node).collect::<Result<Vec<_>>>()?;
        let index = children.iter().enumerate().map(|(at, c)| (c.path.clone(), at)).collect();
        let seen = vec![false; children.len()];
        Ok(Node { path: String::new(), kind: DataType::Null, valid: Vec::new(), tree: Tree::Struct { children, index, seen } })
    }

    /// `top`: a column of its own, whose values can be cast afterwards.
    fn new(path: String, kind: &DataType, top: bool) -> Result<Node> {
        let tree = match kind {
            DataType::Boolean => Tree::Bool(Vec::new()),
            DataType::Int64 => Tree::Int(Vec::new()),
            DataType::Float64 => Tree::Float(Vec::new()),
            DataType::Utf8 => Tree::Text { column: TextColumn::default(), loose: false },
            DataType::LargeUtf8 => Tree::Json(TextColumn::default()),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt8 | DataType::UInt16 | DataType::UInt32 if top => {
                Tree::Int(Vec::new())
            }
            DataType::Float32 if top => Tree::Float(Vec::new()),
            DataType::UInt64 | DataType::Date32 | DataType::Timestamp(..) | DataType::Decimal128(..) if top => {
                Tree::Text { column: TextColumn::default(), loose: true }
            }
            DataType::List(field) => {
                Tree::List { offsets: vec![0], item: Box::new(Node::new(format!("{path}[]"), field.data_type(), false)?) }
            }
            DataType::Struct(fields) => {
                let child = |f: &Arc<Field>| Node::new(format!("{path}.{}", f.name()), f.data_type(), false);
                let children = fields.iter().map(child).collect::<Result<Vec<_>>>()?;
                let index = fields.iter().enumerate().map(|(at, f)| (f.name().clone(), at)).collect();
                let seen = vec![false; children.len()];
                Tree::Struct { children, index, seen }
            }
            other => {
                let message = format!("`options.types`: `{path}` can't be {} inside a list or a struct", typename::format(other));
                return Err(Error::bad_input(message).with_remedy("use bool, int64, float64, string or json there, and CAST in a step"));
            }
        };
        Ok(Node { path, kind: kind.clone(), valid: Vec::new(), tree })
    }

    pub(super) fn rows(&self) -> usize {
        self.valid.len()
    }

    pub(super) fn seed(&mut self) -> Seed<'_> {
        Seed(self)
    }

    /// Takes back everything from row `rows` on, also where a row was left half done.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.valid.truncate(rows);
        match &mut self.tree {
            Tree::Bool(values) => values.truncate(rows),
            Tree::Int(values) => values.truncate(rows),
            Tree::Float(values) => values.truncate(rows),
            Tree::Text { column, .. } | Tree::Json(column) => column.truncate(rows),
            Tree::List { offsets, item } => {
                offsets.truncate(rows + 1);
                item.truncate(offsets.last().map_or(0, |o| usize::try_from(*o).unwrap_or(0)));
            }
            Tree::Struct { children, .. } => children.iter_mut().for_each(|c| c.truncate(rows)),
        }
    }

    fn null(&mut self) {
        self.valid.push(false);
        match &mut self.tree {
            Tree::Bool(values) => values.push(false),
            Tree::Int(values) => values.push(0),
            Tree::Float(values) => values.push(0.0),
            Tree::Text { column, .. } | Tree::Json(column) => column.close(false),
            Tree::List { offsets, .. } => offsets.push(offsets.last().copied().unwrap_or(0)),
            Tree::Struct { children, .. } => children.iter_mut().for_each(Node::null),
        }
    }

    /// The row's columns; this node starts again empty.
    pub(super) fn finish(&mut self) -> Result<Vec<Finished>> {
        self.valid.clear();
        match &mut self.tree {
            Tree::Struct { children, .. } => children.iter_mut().map(Node::take).collect(),
            _ => Err(Error::internal("a JSON row that is no object")),
        }
    }

    fn take(&mut self) -> Result<Finished> {
        let nulls = NullBuffer::from(std::mem::take(&mut self.valid));
        let array: ArrayRef = match &mut self.tree {
            Tree::Text { column, .. } | Tree::Json(column) => return Ok(Finished::Text(std::mem::take(column))),
            Tree::Bool(values) => Arc::new(BooleanArray::new(std::mem::take(values).into(), Some(nulls))),
            Tree::Int(values) => Arc::new(Int64Array::new(std::mem::take(values).into(), Some(nulls))),
            Tree::Float(values) => Arc::new(Float64Array::new(std::mem::take(values).into(), Some(nulls))),
            Tree::List { offsets, item } => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])));
                let values = item.array()?;
                let field = Arc::new(Field::new("item", values.data_type().clone(), true));
                Arc::new(ListArray::try_new(field, offsets, values, Some(nulls)).map_err(|e| Error::internal(format!("a JSON list: {e}")))?)
            }
            Tree::Struct { children, .. } => {
                let DataType::Struct(fields) = text::plain(&self.kind) else { return Err(Error::internal("a JSON struct without fields")) };
                let columns = children.iter_mut().map(Node::array).collect::<Result<Vec<_>>>()?;
                Arc::new(StructArray::try_new(fields, columns, Some(nulls)).map_err(|e| Error::internal(format!("a JSON object: {e}")))?)
            }
        };
        Ok(Finished::Array(array))
    }

    fn array(&mut self) -> Result<ArrayRef> {
        match self.take()? {
            Finished::Array(array) => Ok(array),
            // JSON's texts are UTF-8: the parser has checked.
            Finished::Text(column) => Ok(Arc::new(column.finish()?.0)),
        }
    }

    fn unexpected<E: de::Error>(&self, found: impl fmt::Display) -> E {
        match self.path.as_str() {
            "" => E::custom(format_args!("a row must be an object, and this is {found}")),
            path => E::custom(format_args!("key `{path}`: {found} is no {}", typename::format(&self.kind))),
        }
    }

    /// Takes the text of a JSON value as a float, if it is a number that a float holds. Whole numbers beyond 2^53 would be rounded.
    fn put_float<E: de::Error>(&mut self, text: &str) -> Result<(), E> {
        let number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-').then(|| text.parse::<f64>().ok()).flatten();
        let whole = !text.contains(['.', 'e', 'E']);
        let exact = !whole || text.parse::<i64>().is_ok_and(|n| n.unsigned_abs() <= 1 << 53);
        let fits = number.filter(|n| n.is_finite() && exact);
        match (fits, &mut self.tree) {
            (Some(number), Tree::Float(values)) => {
                values.push(number);
                self.valid.push(true);
                Ok(())
            }
            _ if text == "null" => {
                self.null();
                Ok(())
            }
            // JSON's own text needs no escaping.
            _ => Err(self.unexpected(text.chars().take(64).collect::<String>())),
        }
    }

    fn put_text<E: de::Error>(&mut self, value: impl fmt::Display) -> Result<(), E> {
        match &mut self.tree {
            Tree::Text { column, loose: true } => {
                column.values().extend_from_slice(value.to_string().as_bytes());
                column.close(true);
                self.valid.push(true);
                Ok(())
            }
            _ => Err(self.unexpected(value)),
        }
    }
}

/// Reads one value into its node.
pub(super) struct Seed<'a>(&'a mut Node);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if let Tree::Json(column) = &mut self.0.tree {
            let value = <serde_json::Value as de::Deserialize>::deserialize(deserializer)?;
            if !value.is_null() {
                column.values().extend_from_slice(value.to_string().as_bytes());
            }
            column.close(!value.is_null());
            self.0.valid.push(!value.is_null());
            return Ok(());
        }
        if matches!(self.0.tree, Tree::Float(_)) {
            // serde_json's own floats may be off by a unit in the last place.
            return self.0.put_float(<&RawValue as de::Deserialize>::deserialize(deserializer)?.get());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&typename::format(&self.0.kind))
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        if self.0.path.is_empty() {
            return Err(self.0.unexpected("null"));
        }
        self.0.null();
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        match &mut self.0.tree {
            Tree::Bool(values) => {
                values.push(value);
                self.0.valid.push(true);
                Ok(())
            }
            _ => self.0.put_text(value),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        match &mut self.0.tree {
            Tree::Int(values) => values.push(value),
            _ => return self.0.put_text(value),
        }
        self.0.valid.push(true);
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => self.0.put_text(value),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        match &mut self.0.tree {
            // 2.0 is the whole number 2.
            Tree::Int(values) if value.fract() == 0.0 && value.abs() <= (1_i64 << 53) as f64 => values.push(value as i64),
            _ => return self.0.put_text(value),
        }
        self.0.valid.push(true);
        Ok(())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        match &mut self.0.tree {
            Tree::Text { column, .. } => {
                column.values().extend_from_slice(value.as_bytes());
                column.close(true);
                self.0.valid.push(true);
                Ok(())
            }
            _ => Err(self.0.unexpected(format_args!("\"{}\"", text::excerpt(value)))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Tree::List { offsets, item } = &mut self.0.tree else { return Err(self.0.unexpected("a list")) };
        while items.next_element_seed(item.seed())?.is_some() {}
        let end = i32::try_from(item.rows()).map_err(|_| de::Error::custom("a list of more than 2^31 items in one batch"))?;
        offsets.push(end);
        self.0.valid.push(true);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Tree::Struct { children, index, seen } = &mut self.0.tree else { return Err(self.0.unexpected("an object")) };
        seen.fill(false);
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let under = |key: &str| if self.0.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.0.path) };
            let Some(at) = index.get(key.as_ref()).copied() else {
                return Err(de::Error::custom(format_args!("key `{}` is not among the source's columns", under(&key))));
            };
            let (Some(child), Some(seen)) = (children.get_mut(at), seen.get_mut(at)) else {
                return Err(de::Error::custom("a key without a column"));
            };
            if std::mem::replace(seen, true) {
                return Err(de::Error::custom(format_args!("key `{}` occurs twice", under(&key))));
            }
            map.next_value_seed(child.seed())?;
        }
        for (child, seen) in children.iter_mut().zip(seen.iter()) {
            if !seen {
                child.null();
            }
        }
        self.0.valid.push(true);
        Ok(())
    }
}
