//! The spec in the words of the file, with defaults filled in: the base of the fingerprint and of the shown differences.
//!
//! What this yields for an old spec must never change, or every dataset would look changed: a key that a later version adds is left out
//! where it has its default.

use serde_json::{Map, Value, json};

use super::{OnError, PipelineSpec, SplitBy, StepKind};

pub(super) fn value(spec: &PipelineSpec) -> Value {
    let mut root = Map::new();
    root.insert("epochs".into(), json!({ "seed": spec.epochs.seed, "shuffle": spec.epochs.shuffle }));
    let mut output = json!({
        "compression": spec.output.compression.to_string(),
        "cut": cut(spec),
        "row_group_size": spec.output.row_group_size,
        "shard_size": spec.output.shard_size,
    });
    match spec.output.on_error {
        OnError::Fail => output["on_error"] = "fail".into(),
        OnError::Quarantine { max_errors } => {
            output["on_error"] = "quarantine".into();
            output["max_errors"] = max_errors.into();
        }
    }
    root.insert("output".into(), output);
    root.insert("source".into(), source(&spec.source));
    if let Some(split) = &spec.split {
        // A list, because the order of the ratios decides who gets which hash range.
        let mut section = json!({ "ratios": split.ratios.iter().map(|(name, ratio)| json!([name, ratio])).collect::<Vec<_>>() });
        match &split.by {
            SplitBy::Key => {}
            SplitBy::Stratify { column } => section["stratify"] = column.as_str().into(),
            SplitBy::Group { column } => section["group"] = column.as_str().into(),
        }
        root.insert("split".into(), section);
    }
    root.insert("steps".into(), spec.steps.iter().map(step).collect());
    sorted(Value::Object(root))
}

/// The cut as users write it.
pub(super) fn cut(spec: &PipelineSpec) -> &str {
    spec.output.cut.checked_sub(1).and_then(|i| spec.steps.get(i)).map_or("source", |s| s.name.as_str())
}

fn source(source: &super::SourceSpec) -> Value {
    match &source.sql {
        Some(query) => json!({ "options": source.options, "sql": query }),
        None => json!({ "format": source.format, "options": source.options, "uri": source.uri }),
    }
}

fn step(step: &super::StepSpec) -> Value {
    match &step.kind {
        StepKind::Sql { query } => json!({ "name": step.name, "sql": query }),
        StepKind::Python { module, function, options, batch_size } => {
            let mut value = json!({ "name": step.name, "options": options, "python": format!("{module}:{function}") });
            if let Some(rows) = batch_size {
                value["batch_size"] = (*rows).into();
            }
            value
        }
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().map(|(k, v)| (k, sorted(v))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}
