//! What changed between two pipelines of one name, for the refusal that asks for `--replace`.

use serde_json::Value;
use std::collections::BTreeMap;

use super::{PipelineSpec, canonical};
use crate::source::SourceSnapshot;

/// How many files a message names before it counts the rest.
const NAMED_FILES: usize = 3;
/// How much of a long value a message shows.
const SHOWN: usize = 120;

/// The changed settings in the file's words, as `steps.augment.options.strength: 0.3 -> 0.5`; only what is in the fingerprint.
pub fn difference(old: &PipelineSpec, new: &PipelineSpec) -> Vec<String> {
    let (before, after) = (leaves(old), leaves(new));
    let mut lines = Vec::new();
    for (key, value) in &before {
        match after.get(key) {
            Some(other) if other == value => {}
            Some(other) => lines.push(changed(key, value, other)),
            None => lines.push(format!("{key}: {} -> (absent)", shown(value))),
        }
    }
    for (key, value) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
        lines.push(format!("{key}: (absent) -> {}", shown(value)));
    }
    let order = |spec: &PipelineSpec| spec.steps.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
    let (before, after) = (order(old), order(new));
    if before != after {
        lines.push(format!("steps: {} -> {}", before.join(", "), after.join(", ")));
    }
    lines
}

/// The Python modules whose text changed, as `module augment: changed`.
pub fn code_difference(old: &[(String, String)], new: &[(String, String)]) -> Vec<String> {
    let before: BTreeMap<_, _> = old.iter().map(|(m, t)| (m, t)).collect();
    let after: BTreeMap<_, _> = new.iter().map(|(m, t)| (m, t)).collect();
    let mut lines = Vec::new();
    for (module, text) in &before {
        match after.get(module) {
            None => lines.push(format!("module {module}: removed")),
            Some(other) if other != text => lines.push(format!("module {module}: changed")),
            Some(_) => {}
        }
    }
    lines.extend(after.keys().filter(|m| !before.contains_key(*m)).map(|m| format!("module {m}: added")));
    lines
}

/// The source's files that came, went or changed, as `source: 2 files added (a.csv, b.csv)`.
pub fn snapshot_difference(old: &SourceSnapshot, new: &SourceSnapshot) -> Vec<String> {
    let stamps = |s: &SourceSnapshot| s.files.iter().map(|f| (f.path.clone(), (f.size, f.stamp.clone()))).collect::<BTreeMap<_, _>>();
    let (before, after) = (stamps(old), stamps(new));
    let missing =
        |a: &BTreeMap<String, _>, b: &BTreeMap<String, _>| -> Vec<String> { a.keys().filter(|p| !b.contains_key(*p)).cloned().collect() };
    let changed =
        before.iter().filter(|(path, stamp)| after.get(*path).is_some_and(|other| other != *stamp)).map(|(path, _)| path.clone()).collect();
    [("added", missing(&after, &before)), ("removed", missing(&before, &after)), ("changed", changed)]
        .into_iter()
        .filter(|(_, files)| !files.is_empty())
        .map(|(what, files)| {
            let more = files.len().saturating_sub(NAMED_FILES);
            let named = files[..files.len() - more].join(", ");
            let noun = if files.len() == 1 { "file" } else { "files" };
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("source: {} {noun} {what} ({named}{rest})", files.len())
        })
        .collect()
}

/// Dotted key -> value, with steps under their names. The order of steps is compared apart.
fn leaves(spec: &PipelineSpec) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut root = canonical::value(spec);
    let steps = root.as_object_mut().and_then(|map| map.remove("steps"));
    flatten("", root, &mut found);
    for mut step in steps.as_ref().and_then(Value::as_array).into_iter().flatten().cloned() {
        let name = step.as_object_mut().and_then(|map| map.remove("name"));
        flatten(&format!("steps.{}", name.as_ref().and_then(Value::as_str).unwrap_or_default()), step, &mut found);
    }
    found
}

fn flatten(path: &str, value: Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, inner) in map {
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                flatten(&path, inner, found);
            }
        }
        Value::Object(_) => {}
        other => {
            found.insert(path.to_owned(), other);
        }
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN).chain("...".chars()).collect() }
}

/// Two long texts are shown from where they begin to differ, or both would be cut before it.
fn changed(key: &str, old: &Value, new: &Value) -> String {
    let (a, b) = (old.to_string(), new.to_string());
    let common = a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count();
    if a.chars().count().max(b.chars().count()) <= SHOWN || common < SHOWN / 2 {
        return format!("{key}: {} -> {}", shown(old), shown(new));
    }
    let from = common - 20;
    let part = |text: &str| {
        let tail: String = text.chars().skip(from).take(SHOWN).collect();
        let more = if text.chars().count() > from + SHOWN { "..." } else { "" };
        format!("...{tail}{more}")
    };
    format!("{key}: {} -> {}", part(&a), part(&b))
}
