//! The typed options of each source format, and the errors for wrong ones.

use arrow::datatypes::DataType;
use forebay_core::pipeline::{SourceFormat, SourceSpec};
use forebay_core::{Error, Result, suggest};
use serde_json::Value;
use std::collections::BTreeMap;

use super::typename;

/// Rows whose values decide the types of csv and json columns, unless told otherwise.
pub const DEFAULT_INFER_ROWS: u64 = 10_000;

/// How columns get other names than the file gives them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Names {
    #[default]
    AsInFile,
    /// All names, in the file's order.
    List(Vec<String>),
    /// Old name to new name; others stay.
    Renamed(BTreeMap<String, String>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    pub(super) csv: CsvOptions,
    pub(super) names: Names,
    /// Types that the user gave; they are not inferred.
    pub(super) types: BTreeMap<String, DataType>,
    /// 0: all rows.
    pub(super) infer_rows: u64,
    /// Source bytes of one task.
    pub(super) task_size: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CsvOptions {
    pub(super) has_header: bool,
    pub(super) delimiter: u8,
    pub(super) quote: Option<u8>,
    pub(super) escape: Option<u8>,
    pub(super) comment: Option<u8>,
    pub(super) null_values: Vec<String>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self { has_header: true, delimiter: b',', quote: Some(b'"'), escape: None, comment: None, null_values: vec![String::new()] }
    }
}

impl Options {
    pub(super) fn parse(spec: &SourceSpec) -> Result<Options> {
        let known: &[&str] = match spec.format {
            SourceFormat::Csv => {
                &["has_header", "delimiter", "quote", "escape", "comment", "null_values", "types", "columns", "infer_rows", "task_size"]
            }
            SourceFormat::Json => &["types", "columns", "infer_rows", "task_size"],
            SourceFormat::Parquet | SourceFormat::Arrow | SourceFormat::Put => &["columns", "task_size"],
            SourceFormat::Files | SourceFormat::Sql => &["task_size"],
        };
        let mut options = Options {
            csv: CsvOptions::default(),
            names: Names::AsInFile,
            types: BTreeMap::new(),
            infer_rows: DEFAULT_INFER_ROWS,
            task_size: None,
        };
        for (key, value) in &spec.options {
            if !known.contains(&key.as_str()) {
                let error = Error::bad_input(format!("unknown option `source.options.{}`", key.escape_debug()));
                return Err(match suggest::remedy(key, known.iter().copied()) {
                    Some(remedy) => error.with_remedy(remedy),
                    None => error,
                });
            }
            options.set(key, value)?;
        }
        options.csv.check()?;
        if spec.format != SourceFormat::Csv && matches!(options.names, Names::List(_)) {
            return Err(wrong("columns", "a list of names is for csv", "write columns = { old = \"new\" }"));
        }
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<()> {
        match key {
            "has_header" => {
                self.csv.has_header = value.as_bool().ok_or_else(|| wrong(key, "expected true or false", "write has_header = true"))?;
            }
            "delimiter" => self.csv.delimiter = character(key, value)?.ok_or_else(|| wrong(key, "is empty", "write delimiter = \";\""))?,
            "quote" => self.csv.quote = character(key, value)?,
            "escape" => self.csv.escape = character(key, value)?,
            "comment" => self.csv.comment = character(key, value)?,
            "null_values" => self.csv.null_values = texts(key, value)?,
            "columns" => self.names = names(value)?,
            "types" => self.types = types(value)?,
            "infer_rows" => self.infer_rows = whole(key, value)?,
            "task_size" => self.task_size = Some(whole(key, value)?.max(1)),
            // Every known key is above.
            _ => return Err(wrong(key, "is not read", "remove it")),
        }
        Ok(())
    }
}

impl CsvOptions {
    fn check(&self) -> Result<()> {
        let mut used: Vec<(&str, u8)> = vec![("delimiter", self.delimiter)];
        used.extend([("quote", self.quote), ("comment", self.comment)].into_iter().filter_map(|(k, v)| v.map(|v| (k, v))));
        for (at, (key, byte)) in used.iter().enumerate() {
            if matches!(byte, b'\n' | b'\r') {
                return Err(wrong(key, "can't be a line break", "choose another character"));
            }
            if let Some((other, _)) = used[..at].iter().find(|(_, b)| b == byte) {
                return Err(wrong(key, &format!("is the same character as `{other}`"), "choose another character"));
            }
        }
        Ok(())
    }
}

fn wrong(key: &str, what: &str, remedy: &str) -> Error {
    Error::bad_input(format!("`source.options.{key}`: {what}")).with_remedy(remedy)
}

/// One ASCII character; an empty text switches it off.
fn character(key: &str, value: &Value) -> Result<Option<u8>> {
    match value.as_str().map(str::as_bytes) {
        Some([]) => Ok(None),
        Some([byte]) if byte.is_ascii() => Ok(Some(*byte)),
        _ => Err(wrong(key, "expected one ASCII character in quotes", "write it such as \";\" or \"\\t\"")),
    }
}

fn texts(key: &str, value: &Value) -> Result<Vec<String>> {
    let fail = || wrong(key, "expected a list of texts", &format!("write {key} = [\"\", \"NA\"]"));
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(items) => items.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(fail)).collect(),
        _ => Err(fail()),
    }
}

fn whole(key: &str, value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| wrong(key, "expected a whole number, 0 or more", &format!("write {key} = 10000")))
}

fn names(value: &Value) -> Result<Names> {
    let fail = || wrong("columns", "expected names", "write columns = [\"a\", \"b\"] or columns = { old = \"new\" }");
    match value {
        Value::Array(_) => Ok(Names::List(texts("columns", value).map_err(|_| fail())?)),
        Value::Object(map) => {
            let pairs = map.iter().map(|(old, new)| new.as_str().map(|new| (old.clone(), new.to_owned())).ok_or_else(fail));
            Ok(Names::Renamed(pairs.collect::<Result<_>>()?))
        }
        _ => Err(fail()),
    }
}

fn types(value: &Value) -> Result<BTreeMap<String, DataType>> {
    let map = value.as_object().ok_or_else(|| wrong("types", "expected a table", "write types = { zip = \"string\" }"))?;
    let mut types = BTreeMap::new();
    for (column, name) in map {
        let key = format!("types.{column}");
        let name = name.as_str().ok_or_else(|| wrong(&key, "expected the name of a type", "write it such as \"string\" or \"int64\""))?;
        let kind = typename::parse(name).map_err(|e| e.context(format!("`source.options.{key}`")))?;
        types.insert(column.clone(), kind);
    }
    Ok(types)
}
