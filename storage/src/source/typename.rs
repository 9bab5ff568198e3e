//! The names of column types that users write in `types` and that a snapshot keeps: `int64`, `list<string>`, `struct<a: float64>`.

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use forebay_core::{Error, Result, suggest};
use std::sync::Arc;

/// Field metadata that marks a text column which keeps JSON as it stands.
pub(super) const JSON: &str = "json";

const SIMPLE: &[(&str, DataType)] = &[
    ("bool", DataType::Boolean),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
    ("string", DataType::Utf8),
    ("date", DataType::Date32),
    ("timestamp", DataType::Timestamp(TimeUnit::Microsecond, None)),
    // Other names that people try.
    ("boolean", DataType::Boolean),
    ("int", DataType::Int64),
    ("integer", DataType::Int32),
    ("bigint", DataType::Int64),
    ("long", DataType::Int64),
    ("short", DataType::Int16),
    ("float", DataType::Float32),
    ("double", DataType::Float64),
    ("str", DataType::Utf8),
    ("text", DataType::Utf8),
    ("utf8", DataType::Utf8),
    ("varchar", DataType::Utf8),
    ("date32", DataType::Date32),
    ("datetime", DataType::Timestamp(TimeUnit::Microsecond, None)),
];

fn utc() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// Writes a type so that [`parse`] reads it again.
pub(super) fn format(kind: &DataType) -> String {
    match kind {
        // JSON as it stands: `LargeUtf8` is used for nothing else in text sources.
        DataType::LargeUtf8 => JSON.to_owned(),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => "timestamp_utc".to_owned(),
        DataType::Decimal128(precision, scale) => format!("decimal({precision},{scale})"),
        DataType::List(item) => format!("list<{}>", format(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<String> = fields.iter().map(|f| format!("{}: {}", quote(f.name()), format(f.data_type()))).collect();
            format!("struct<{}>", fields.join(", "))
        }
        other => SIMPLE.iter().find(|(_, k)| k == other).map_or_else(|| other.to_string(), |(name, _)| (*name).to_owned()),
    }
}

fn quote(name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if plain { name.to_owned() } else { serde_json::Value::String(name.to_owned()).to_string() }
}

/// Reads a type's name; an unknown one names the nearest.
pub(super) fn parse(text: &str) -> Result<DataType> {
    let mut parser = Parser { rest: text.trim(), whole: text };
    let kind = parser.kind(0)?;
    if parser.rest.is_empty() { Ok(kind) } else { Err(parser.unexpected()) }
}

struct Parser<'a> {
    rest: &'a str,
    whole: &'a str,
}

impl Parser<'_> {
    fn kind(&mut self, depth: usize) -> Result<DataType> {
        if depth > 64 {
            return Err(Error::bad_input(format!("the type `{}` is nested too deeply", self.whole)));
        }
        let word = self.word();
        match word.to_ascii_lowercase().as_str() {
            "timestamp_utc" | "timestamptz" => Ok(utc()),
            JSON => Ok(DataType::LargeUtf8),
            "list" => {
                self.expect("<")?;
                let item = self.kind(depth + 1)?;
                self.expect(">")?;
                Ok(DataType::List(Arc::new(Field::new("item", item, true))))
            }
            "struct" => self.fields(depth),
            "decimal" => self.decimal(),
            name => SIMPLE.iter().find(|(n, _)| *n == name).map(|(_, k)| k.clone()).ok_or_else(|| unknown(name)),
        }
    }

    fn fields(&mut self, depth: usize) -> Result<DataType> {
        self.expect("<")?;
        let mut fields = Vec::new();
        while !self.eat(">") {
            if !fields.is_empty() {
                self.expect(",")?;
            }
            let name = self.name()?;
            self.expect(":")?;
            fields.push(Field::new(name, self.kind(depth + 1)?, true));
        }
        Ok(DataType::Struct(Fields::from(fields)))
    }

    fn decimal(&mut self) -> Result<DataType> {
        self.expect("(")?;
        let precision: Option<u8> = self.word().parse().ok().filter(|p| (1..=38).contains(p));
        self.expect(",")?;
        let scale: Option<i8> = self.word().parse().ok().filter(|s| *s >= 0);
        self.expect(")")?;
        match (precision, scale) {
            (Some(precision), Some(scale)) if scale as u8 <= precision => Ok(DataType::Decimal128(precision, scale)),
            _ => Err(Error::bad_input(format!("`{}` is not a decimal type", self.whole))
                .with_remedy("write decimal(precision,scale) with a precision up to 38")),
        }
    }

    fn name(&mut self) -> Result<String> {
        self.rest = self.rest.trim_start();
        if !self.rest.starts_with('"') {
            return Ok(self.word().to_owned());
        }
        let mut stream = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let name = stream.next().and_then(Result::ok);
        let used = stream.byte_offset();
        let name = name.ok_or_else(|| self.unexpected())?;
        self.rest = &self.rest[used..];
        Ok(name)
    }

    fn word(&mut self) -> &str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> Error {
        let at = self.rest.trim_start().chars().next().map_or_else(|| "its end".to_owned(), |c| format!("`{c}`"));
        Error::bad_input(format!("the type `{}` can't be read at {at}", self.whole))
            .with_remedy("write it such as `int64`, `list<string>` or `struct<a: float64>`")
    }
}

fn unknown(name: &str) -> Error {
    // Aliases are understood and not advertised.
    let known = SIMPLE.iter().take(14).map(|(n, _)| *n).chain(["timestamp_utc", "decimal(10,2)", "json", "list<string>"]);
    let error = Error::bad_input(format!("`{}` is not a type", name.escape_debug()));
    match suggest::remedy(name, known) {
        Some(remedy) => error.with_remedy(remedy),
        None => error,
    }
}
