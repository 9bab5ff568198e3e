//! The source's format and the options that each format takes.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::SourceFormat;
use super::fields::{Fields, Problems, show};

/// Formats that can be written in a file.
const FORMATS: &[(&str, SourceFormat)] = &[
    ("csv", SourceFormat::Csv),
    ("json", SourceFormat::Json),
    ("parquet", SourceFormat::Parquet),
    ("arrow", SourceFormat::Arrow),
    ("files", SourceFormat::Files),
];

/// Formats that the documentation names and this version lacks.
const LATER: &[&str] = &["delta", "webdataset", "tfrecord", "mds"];

/// Endings that tell a format, after `.gz` or `.zst` is taken off.
const ENDINGS: &[(&str, SourceFormat)] = &[
    (".csv", SourceFormat::Csv),
    (".json", SourceFormat::Json),
    (".jsonl", SourceFormat::Json),
    (".ndjson", SourceFormat::Json),
    (".parquet", SourceFormat::Parquet),
    (".arrow", SourceFormat::Arrow),
    (".feather", SourceFormat::Arrow),
];

/// Reads `format`; without it, what the endings of all URIs agree on.
pub(super) fn format(f: &mut Fields<'_>, uri: Option<&[String]>) -> Option<SourceFormat> {
    let given = f.take("format");
    match given {
        Some(Value::String(name)) if LATER.contains(&name.as_str()) => {
            f.problems.unsupported(
                f.at("format"),
                format!("\"{name}\" is"),
                "use one of \"csv\", \"json\", \"parquet\", \"arrow\" and \"files\"",
            );
            None
        }
        Some(Value::String(name)) => {
            let found = FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format);
            if found.is_none() {
                let remedy = crate::suggest::remedy(&name, FORMATS.iter().map(|(known, _)| *known).chain(LATER.iter().copied()));
                f.problems.add(crate::error::Kind::BadInput, f.at("format"), format!("unknown format `{}`", name.escape_debug()), remedy);
            }
            found
        }
        Some(other) => {
            f.problems.wrong(f.at("format"), format!("expected text in quotes, found {}", show(&other)), "write format = \"csv\"");
            None
        }
        None => {
            let mut found = uri?.iter().map(|u| ending(u));
            let first = found.next().flatten();
            let agreed = first.filter(|_| found.all(|other| other == first));
            if agreed.is_none() {
                f.problems.wrong(
                    f.at("format"),
                    "missing, and the names in `uri` don't tell it",
                    "write format = \"csv\", \"json\", \"parquet\", \"arrow\" or \"files\"",
                );
            }
            agreed
        }
    }
}

fn ending(uri: &str) -> Option<SourceFormat> {
    let name = uri.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    ENDINGS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| *format)
}

/// Checks the keys and types of `[source] options`; values stay as written.
pub(super) fn read(format: SourceFormat, mut f: Fields<'_>) -> BTreeMap<String, Value> {
    let mut options = BTreeMap::new();
    match format {
        SourceFormat::Csv => {
            put(&mut options, "has_header", f.boolean("has_header"));
            for key in ["delimiter", "quote", "escape", "comment"] {
                put(&mut options, key, character(&mut f, key));
            }
            put(&mut options, "null_values", f.texts("null_values", true));
            put(&mut options, "types", types(&mut f));
            put(&mut options, "columns", columns(&mut f, true));
            put(&mut options, "infer_rows", f.whole("infer_rows", 0, u64::MAX));
        }
        SourceFormat::Json => {
            put(&mut options, "types", types(&mut f));
            put(&mut options, "columns", columns(&mut f, false));
            put(&mut options, "infer_rows", f.whole("infer_rows", 0, u64::MAX));
        }
        SourceFormat::Parquet | SourceFormat::Arrow => put(&mut options, "columns", columns(&mut f, false)),
        SourceFormat::Files | SourceFormat::Put | SourceFormat::Sql => {}
    }
    // Source bytes that one task takes, for every format.
    put(&mut options, "task_size", f.size("task_size"));
    f.done();
    options
}

fn put(options: &mut BTreeMap<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        options.insert(key.to_owned(), value.into());
    }
}

/// One ASCII character, because the CSV reader works on bytes; empty text switches what isn't the delimiter off.
fn character(f: &mut Fields<'_>, key: &'static str) -> Option<String> {
    let text = f.string(key)?;
    if text.len() == 1 || (text.is_empty() && key != "delimiter") {
        return Some(text);
    }
    let remedy = "write it in quotes, such as \";\" or \"\\t\"";
    f.problems.wrong(f.at(key), format!("expected one ASCII character, found \"{}\"", text.escape_debug()), remedy);
    None
}

/// `types = { column = "int64" }`; the reader checks the names of the types.
fn types(f: &mut Fields<'_>) -> Option<Map<String, Value>> {
    let table = f.table("types")?;
    names(f.problems, &f.at("types"), &table, "the name of a type", "types = { column = \"int64\" }");
    Some(table)
}

/// `columns = { old = "new" }` renames; where the format has no names of its own, a list gives them in order.
fn columns(f: &mut Fields<'_>, list: bool) -> Option<Value> {
    match f.take("columns")? {
        Value::Object(table) => {
            names(f.problems, &f.at("columns"), &table, "a column's new name", "columns = { old = \"new\" }");
            Some(Value::Object(table))
        }
        Value::Array(items) if list && items.iter().all(Value::is_string) => Some(Value::Array(items)),
        other => {
            let expected = if list { "a table of new names or a list of names" } else { "a table of new names" };
            f.problems.wrong(f.at("columns"), format!("expected {expected}, found {}", show(&other)), "write columns = { old = \"new\" }");
            None
        }
    }
}

fn names(problems: &Problems, path: &str, table: &Map<String, Value>, what: &str, example: &str) {
    for (key, value) in table.iter().filter(|(_, value)| !value.is_string()) {
        problems.wrong(format!("{path}.{key}"), format!("expected {what}, found {}", show(value)), format!("write {example}"));
    }
}
