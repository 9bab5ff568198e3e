//! `--set key.path=value`: changes to the file's tables before they are read.

use serde_json::{Map, Value};

use super::fields::{Problems, show};
use super::parse::to_json;
use crate::suggest;

/// Applies the overrides in order. Where the path meets a list of tables, the segment is an entry's `name` or its number.
pub(super) fn apply(root: &mut Map<String, Value>, set: &[String], problems: &Problems) {
    for item in set {
        let path = format!("--set {}", item.escape_debug());
        let Some((key, text)) = item.split_once('=') else {
            problems.wrong(path, "no `=`", "write --set key.path=value");
            continue;
        };
        let segments: Vec<&str> = key.trim().split('.').map(str::trim).collect();
        if segments.iter().any(|s| s.is_empty()) {
            problems.wrong(path, "an empty part in the key", "write --set key.path=value");
            continue;
        }
        if let Err((what, remedy)) = assign(root, &segments, value(text)) {
            problems.add(crate::error::Kind::BadInput, path, what, remedy);
        }
    }
}

/// A TOML value where the text is one, else the text itself: `0.5`, `true`, `[1, 2]`, `data/*.csv`.
fn value(text: &str) -> Value {
    let parsed = toml::from_str::<toml::Table>(&format!("v = {text}")).ok();
    match parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("v")) {
        Some(value) => to_json(value),
        None => Value::String(text.to_owned()),
    }
}

type Refusal = (String, Option<String>);

fn assign(map: &mut Map<String, Value>, segments: &[&str], value: Value) -> Result<(), Refusal> {
    match segments {
        [] => Ok(()),
        [last] => {
            map.insert((*last).to_owned(), value);
            Ok(())
        }
        [head, rest @ ..] => match map.entry((*head).to_owned()).or_insert_with(|| Value::Object(Map::new())) {
            Value::Object(inner) => assign(inner, rest, value),
            Value::Array(entries) => assign_entry(entries, head, rest, value),
            other => Err((format!("`{head}` is {} and has no keys", show(other)), None)),
        },
    }
}

fn assign_entry(entries: &mut [Value], list: &str, segments: &[&str], value: Value) -> Result<(), Refusal> {
    let [wanted, rest @ ..] = segments else { return Ok(()) };
    let names: Vec<String> = entries.iter().map(|e| e.get("name").and_then(Value::as_str).unwrap_or_default().to_owned()).collect();
    let by_number = || wanted.parse::<usize>().ok().filter(|i| *i < entries.len());
    let Some(index) = names.iter().position(|n| n == wanted).or_else(by_number) else {
        return Err((format!("`{list}` has no entry `{wanted}`"), suggest::remedy(wanted, names.iter().map(String::as_str))));
    };
    match (&mut entries[index], rest) {
        (entry, []) => {
            *entry = value;
            Ok(())
        }
        (Value::Object(inner), rest) => assign(inner, rest, value),
        (other, _) => Err((format!("`{list}.{wanted}` is {} and has no keys", show(other)), None)),
    }
}
