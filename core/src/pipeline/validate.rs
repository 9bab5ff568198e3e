//! Checks of single values and between parts of a pipeline.

use serde_json::{Map, Value};

use super::fields::{Problems, show};
use super::{OnError, PipelineSpec, StepKind};
use crate::error::{Error, Result};
use crate::suggest;

/// How far the ratios of a split may be from 1, for thirds written with a few digits.
const RATIO_TOLERANCE: f64 = 1e-6;
const MAX_NAME: usize = 63;

/// `[A-Za-z_][A-Za-z0-9_-]{0,62}`, and not `source`, which `cut` means otherwise.
pub(super) fn step_name(name: &str) -> Result<String> {
    let head = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let tail = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if !head || !tail || name.len() > MAX_NAME {
        return Err(Error::bad_input(format!("`{}` is not a step name", name.escape_debug()))
            .with_remedy("use a letter, then up to 62 letters, digits, `_` or `-`"));
    }
    if name == "source" {
        return Err(
            Error::bad_input("`source` can't name a step").with_remedy("choose another name; `cut` = \"source\" means the source rows")
        );
    }
    Ok(name.to_owned())
}

/// `module:function`, where the module may have dots.
pub(super) fn python_target(text: &str) -> Result<(String, String)> {
    let identifier = |s: &str| s.starts_with(|c: char| c.is_alphabetic() || c == '_') && s.chars().all(|c| c.is_alphanumeric() || c == '_');
    match text.split_once(':') {
        Some((module, _)) if module.ends_with(".py") => Err(Error::bad_input(format!("`{}` names a file", text.escape_debug()))
            .with_remedy(format!("write the module without `.py`: \"{}\"", text.replacen(".py:", ":", 1)))),
        Some((module, function)) if module.split('.').all(identifier) && identifier(function) => {
            Ok((module.to_owned(), function.to_owned()))
        }
        _ => Err(Error::bad_input(format!("`{}` is not `module:function`", text.escape_debug()))
            .with_remedy("write python = \"augment:jitter\" for `def jitter(batch)` in augment.py beside this file")),
    }
}

/// The ratios in file order; `None` after a problem.
pub(super) fn ratios(table: Map<String, Value>, path: &str, problems: &Problems) -> Option<Vec<(String, f64)>> {
    let mut ratios = Vec::with_capacity(table.len());
    let mut good = true;
    for (name, value) in table {
        if name.trim().is_empty() || name.len() > MAX_NAME {
            problems.wrong(format!("{path}.\"{}\"", name.escape_debug()), "not a name for a split", "use 1 to 63 characters");
            good = false;
        }
        match value.as_f64().filter(|r| *r > 0.0 && *r <= 1.0) {
            Some(ratio) => ratios.push((name, ratio)),
            None => {
                problems.wrong(
                    format!("{path}.{name}"),
                    format!("expected a number above 0 and up to 1, found {}", show(&value)),
                    "the ratios sum to 1",
                );
                good = false;
            }
        }
    }
    let sum: f64 = ratios.iter().map(|(_, r)| r).sum();
    if good && !ratios.is_empty() && (sum - 1.0).abs() > RATIO_TOLERANCE {
        let rounded = (sum * 1e9).round() / 1e9;
        problems.wrong(path, format!("the ratios sum to {rounded}"), "make them sum to 1");
        good = false;
    }
    (good && !ratios.is_empty()).then_some(ratios)
}

/// Rules between the parts of a spec whose parts are well-formed.
pub(super) fn check(spec: &PipelineSpec, problems: &Problems) {
    if spec.output.row_group_size > spec.output.shard_size {
        problems.wrong(
            "output.row_group_size",
            format!("{} bytes is more than a whole shard of {}", spec.output.row_group_size, spec.output.shard_size),
            "make it at most `shard_size`",
        );
    }
    if let OnError::Quarantine { max_errors: 0 } = spec.output.on_error {
        problems.wrong("output.max_errors", "0 allows no bad row", "give at least 1, or on_error = \"fail\"");
    }
}

impl PipelineSpec {
    /// The step's place in the list; the error names the nearest step.
    pub fn step_index(&self, name: &str) -> Result<usize> {
        self.steps.iter().position(|s| s.name == name).ok_or_else(|| {
            let error = Error::not_found(format!("no step is named `{}`", name.escape_debug()));
            match suggest::remedy(name, self.steps.iter().map(|s| s.name.as_str())) {
                Some(remedy) => error.with_remedy(remedy),
                None => error,
            }
        })
    }

    /// The Python modules that the steps name, each once, in step order.
    pub fn python_modules(&self) -> Vec<&str> {
        let mut modules = Vec::new();
        for step in &self.steps {
            if let StepKind::Python { module, .. } = &step.kind
                && !modules.contains(&module.as_str())
            {
                modules.push(module.as_str());
            }
        }
        modules
    }
}
