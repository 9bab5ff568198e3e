//! From TOML text to a checked [`PipelineSpec`]: every problem of the file is collected and reported at its key.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::fields::{Fields, Problems, show};
use super::{
    DEFAULT_COMPRESSION, DEFAULT_MAX_ERRORS, DEFAULT_ROW_GROUP_SIZE, DEFAULT_SHARD_SIZE, EpochsSpec, IndexSpec, OnError, OutputSpec,
    PipelineSpec, Shuffle, SourceFormat, SourceSpec, SplitBy, SplitSpec, StepKind, StepSpec, canonical, options, overrides, size, validate,
};
use crate::error::{Error, Kind, Result};
use crate::ids::DatasetName;

/// A pipeline that holds together, and the text of it that goes into the fingerprint.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedPipeline {
    pub spec: PipelineSpec,
    /// Stable JSON of what decides the stored rows: not name, description, epoch count or index.
    pub canonical: String,
}

/// Reads a pipeline file. `file` is its name as the user typed it, shown before each problem; `set` holds `key.path=value` overrides.
pub fn parse(toml_text: &str, file: &str, set: &[String]) -> Result<ParsedPipeline> {
    let table = toml::from_str::<toml::Table>(toml_text).map_err(|e| syntax(toml_text, file, &e))?;
    let Value::Object(mut root) = to_json(toml::Value::Table(table)) else {
        return Err(Error::internal("a TOML document that is not a table"));
    };
    let problems = Problems::default();
    overrides::apply(&mut root, set, &problems);
    let spec = read(root, &problems);
    problems.finish(file)?;
    let spec = spec.ok_or_else(|| Error::internal(format!("{file}: an incomplete pipeline without a problem")))?;
    let canonical = spec.canonical();
    Ok(ParsedPipeline { spec, canonical })
}

impl PipelineSpec {
    /// Stable JSON of what is in the fingerprint, in the words of the file: defaults filled in, sizes in bytes, keys sorted.
    pub fn canonical(&self) -> String {
        canonical::value(self).to_string()
    }
}

fn syntax(text: &str, file: &str, error: &toml::de::Error) -> Error {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = &text.as_bytes()[..start];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    let file = if file.is_empty() { "pipeline" } else { file };
    Error::bad_input(format!("{file}:{line}:{column}: {}", error.message().trim())).with_remedy("the file has to be TOML")
}

pub(super) fn to_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(s) => Value::String(s),
        toml::Value::Integer(n) => n.into(),
        // JSON has no NaN or infinity; as text they meet the type checks of their key.
        toml::Value::Float(x) => serde_json::Number::from_f64(x).map_or_else(|| Value::String(x.to_string()), Value::Number),
        toml::Value::Boolean(b) => Value::Bool(b),
        toml::Value::Datetime(d) => Value::String(d.to_string()),
        toml::Value::Array(items) => Value::Array(items.into_iter().map(to_json).collect()),
        toml::Value::Table(table) => Value::Object(table.into_iter().map(|(k, v)| (k, to_json(v))).collect()),
    }
}

fn read(root: Map<String, Value>, problems: &Problems) -> Option<PipelineSpec> {
    let mut top = Fields::new("", root, problems);
    let name = top.parsed("name", DatasetName::parse);
    if name.is_none() && problems.is_empty() {
        problems.wrong("name", "missing", "name the dataset that the pipeline makes, such as name = \"digits\"");
    }
    let description = top.string("description").unwrap_or_default();
    let source = match top.section("source") {
        Some(section) => source(section),
        None => {
            problems.wrong("source", "missing", "say what to read: [source] with uri = \"data/*.csv\" and format = \"csv\"");
            None
        }
    };
    let (steps, known_steps) = steps(top.take("steps"), problems);
    let epochs = epochs(top.section("epochs"), problems);
    let output = output(top.section("output"), &steps, known_steps, problems);
    let index = index(top.section("index"));
    let split = top.section("split").and_then(split);
    top.done();
    if !problems.is_empty() {
        return None;
    }
    let spec = PipelineSpec { name: name?, description, source: source?, steps, epochs, output, index, split };
    validate::check(&spec, problems);
    Some(spec)
}

fn source(mut f: Fields<'_>) -> Option<SourceSpec> {
    if let Some(query) = f.string("sql") {
        return query_source(f, query);
    }
    let uri = f.texts("uri", true);
    let format = options::format(&mut f, uri.as_deref());
    let table = f.section("options");
    let options = match (format, table) {
        (Some(format), Some(table)) => options::read(format, table),
        (None, Some(_)) | (_, None) => BTreeMap::new(),
    };
    match uri.as_deref() {
        None if f.problems.is_empty() => f.problems.wrong(f.at("uri"), "missing", "give a path, a glob, a URL or a list of them"),
        Some([]) => f.problems.wrong(f.at("uri"), "an empty list", "give at least one path, glob or URL"),
        Some(uris) if uris.iter().any(|u| u.trim().is_empty()) => {
            f.problems.wrong(f.at("uri"), "empty text", "give a path, a glob or a URL")
        }
        _ => {}
    }
    f.done();
    Some(SourceSpec { uri: uri?, format: format.unwrap_or(SourceFormat::Files), options, sql: None })
}

/// A source that is a query: it has no files, and so nothing that says where they are and how they are read.
fn query_source(mut f: Fields<'_>, query: String) -> Option<SourceSpec> {
    if query.trim().is_empty() {
        f.problems.wrong(f.at("sql"), "empty", "write a SELECT over datasets");
    }
    for key in ["uri", "format"] {
        if f.take(key).is_some() {
            f.problems.wrong(f.at(key), "the source has `sql` as well", "give `uri` and `format`, or `sql`");
        }
    }
    let options = f.section("options").map(|table| options::read(SourceFormat::Sql, table)).unwrap_or_default();
    f.done();
    Some(SourceSpec { uri: Vec::new(), format: SourceFormat::Sql, options, sql: Some(query) })
}

/// The steps, and whether the list is whole, so that `cut` can be looked up in it.
fn steps(value: Option<Value>, problems: &Problems) -> (Vec<StepSpec>, bool) {
    let items = match value {
        None => return (Vec::new(), true),
        Some(Value::Array(items)) => items,
        Some(other) => {
            problems.wrong("steps", format!("expected a list of tables, found {}", show(&other)), "write each step as [[steps]]");
            return (Vec::new(), false);
        }
    };
    let count = items.len();
    let mut steps: Vec<StepSpec> = Vec::with_capacity(count);
    for (i, item) in items.into_iter().enumerate() {
        let Value::Object(map) = item else {
            problems.wrong(format!("steps.{i}"), format!("expected a table, found {}", show(&item)), "write each step as [[steps]]");
            continue;
        };
        if let Some(step) = step(i, map, problems) {
            if steps.iter().any(|s| s.name == step.name) {
                problems.wrong(format!("steps.{}.name", step.name), "two steps have this name", "give each step a name of its own");
            }
            steps.push(step);
        }
    }
    let whole = steps.len() == count;
    (steps, whole)
}

fn step(index: usize, map: Map<String, Value>, problems: &Problems) -> Option<StepSpec> {
    let label =
        map.get("name").and_then(Value::as_str).filter(|n| validate::step_name(n).is_ok()).map_or_else(|| index.to_string(), str::to_owned);
    let named = map.contains_key("name");
    let does_something = ["sql", "python"].iter().any(|key| map.contains_key(*key));
    let mut f = Fields::new(format!("steps.{label}"), map, problems);
    let name = f.parsed("name", validate::step_name);
    if !named {
        problems.wrong(f.at("name"), "missing", "name the step; random draws and `cut` refer to it");
    }
    let sql = f.string("sql");
    let python = f.parsed("python", validate::python_target);
    if f.take("exec").is_some() {
        problems.unsupported(f.at("exec"), "an `exec` step is", "use `sql` or `python`");
        return None;
    }
    let kind = match (sql, python) {
        (Some(_), Some(_)) => {
            problems.wrong(f.at("sql"), "the step has `python` as well", "give a step one of the two");
            f.take("options");
            f.take("batch_size");
            None
        }
        (Some(query), None) => {
            if query.trim().is_empty() {
                problems.wrong(f.at("sql"), "empty", "write a SELECT over `input`");
            }
            for key in ["options", "batch_size"] {
                if f.take(key).is_some() {
                    problems.wrong(f.at(key), "an `sql` step takes none", "remove it");
                }
            }
            Some(StepKind::Sql { query })
        }
        (None, Some((module, function))) => {
            let options = f.table("options").unwrap_or_default().into_iter().collect();
            Some(StepKind::Python { module, function, options, batch_size: f.whole("batch_size", 1, u32::MAX.into()) })
        }
        (None, None) => {
            f.take("options");
            f.take("batch_size");
            if !does_something {
                problems.wrong(
                    f.at("sql"),
                    "the step does nothing",
                    "give it `sql` = \"SELECT ... FROM input\" or `python` = \"module:function\"",
                );
            }
            None
        }
    };
    f.done();
    Some(StepSpec { name: name?, kind: kind? })
}

fn epochs(section: Option<Fields<'_>>, problems: &Problems) -> EpochsSpec {
    let mut spec = EpochsSpec { count: 1, seed: 0, shuffle: Shuffle::Window };
    let Some(mut f) = section else { return spec };
    spec.count = f.whole32("count", 1).unwrap_or(spec.count);
    // TOML's integers are signed 64-bit.
    spec.seed = f.whole("seed", 0, i64::MAX as u64).unwrap_or(spec.seed);
    spec.shuffle = f.word("shuffle", crate::job::SHUFFLES).unwrap_or(spec.shuffle);
    if spec.shuffle == Shuffle::Full {
        problems.unsupported(f.at("shuffle"), "\"full\" is", "use \"window\"; a job can widen its `window`");
    }
    f.done();
    spec
}

fn output(section: Option<Fields<'_>>, steps: &[StepSpec], known_steps: bool, problems: &Problems) -> OutputSpec {
    let mut spec = OutputSpec {
        cut: steps.len(),
        shard_size: DEFAULT_SHARD_SIZE,
        row_group_size: DEFAULT_ROW_GROUP_SIZE,
        compression: DEFAULT_COMPRESSION,
        on_error: OnError::Fail,
    };
    let Some(mut f) = section else { return spec };
    if let Some(cut) = f.string("cut") {
        match steps.iter().position(|s| s.name == cut) {
            _ if cut == "source" => spec.cut = 0,
            Some(i) => spec.cut = i + 1,
            None if known_steps => {
                let names = steps.iter().map(|s| s.name.as_str()).chain(["source"]);
                let remedy = crate::suggest::remedy(&cut, names);
                problems.add(Kind::BadInput, f.at("cut"), format!("no step is named `{}`", cut.escape_debug()), remedy);
            }
            None => {}
        }
    }
    spec.shard_size = f.size("shard_size").unwrap_or(spec.shard_size);
    spec.row_group_size = f.size("row_group_size").unwrap_or(spec.row_group_size.min(spec.shard_size));
    spec.compression = f.parsed("compression", size::parse_compression).unwrap_or(spec.compression);
    let quarantine = f.word("on_error", &[("fail", false), ("quarantine", true)]).unwrap_or(false);
    let max_errors = f.whole("max_errors", 0, u64::MAX);
    match (quarantine, max_errors) {
        (true, limit) => spec.on_error = OnError::Quarantine { max_errors: limit.unwrap_or(DEFAULT_MAX_ERRORS) },
        (false, Some(_)) => problems.wrong(f.at("max_errors"), "it belongs to on_error = \"quarantine\"", "set `on_error`, or remove it"),
        (false, None) => {}
    }
    f.done();
    spec
}

fn index(section: Option<Fields<'_>>) -> IndexSpec {
    let Some(mut f) = section else { return IndexSpec::default() };
    let found = f.texts("text", true);
    if found.is_none() && f.problems.is_empty() {
        f.problems.wrong(f.at("text"), "missing", "name the columns to search: text = [\"caption\"]");
    }
    let text = found.unwrap_or_default();
    for (i, column) in text.iter().enumerate() {
        if text[..i].contains(column) {
            f.problems.wrong(f.at("text"), format!("`{}` is there twice", column.escape_debug()), "name each column once");
        } else if column.is_empty() {
            f.problems.wrong(f.at("text"), "an empty name", "name a column of the stored rows");
        }
    }
    let mut tokenizers = BTreeMap::new();
    for (column, value) in f.table("tokenizers").unwrap_or_default() {
        let at = f.at(&format!("tokenizers.{column}"));
        if !text.contains(&column) {
            let remedy = crate::suggest::remedy(&column, text.iter().map(String::as_str));
            f.problems.add(Kind::BadInput, at, "no column of that name in `text`", remedy);
            continue;
        }
        match value.as_str().map(str::parse) {
            Some(Ok(tokenizer)) => {
                tokenizers.insert(column, tokenizer);
            }
            Some(Err(e)) => f.problems.error(at, e),
            None => f.problems.wrong(at, format!("expected text in quotes, found {}", show(&value)), "write it as \"stemmed(english)\""),
        }
    }
    f.done();
    IndexSpec { text, tokenizers }
}

fn split(mut f: Fields<'_>) -> Option<SplitSpec> {
    let ratios = f.table("ratios");
    if ratios.is_none() {
        f.problems.wrong(f.at("ratios"), "missing", "write ratios = { train = 0.8, val = 0.1, test = 0.1 }");
    }
    let ratios = validate::ratios(ratios.unwrap_or_default(), &f.at("ratios"), f.problems);
    let (stratify, group) = (f.string("stratify"), f.string("group"));
    let by = match (stratify, group) {
        (Some(_), Some(_)) => {
            f.problems.wrong(f.at("group"), "the split has `stratify` as well", "give one of the two");
            None
        }
        (Some(column), None) => Some(SplitBy::Stratify { column }),
        (None, Some(column)) => Some(SplitBy::Group { column }),
        (None, None) => Some(SplitBy::Key),
    };
    f.done();
    Some(SplitSpec { ratios: ratios?, by: by? })
}
