//! Reads the keys of a table one by one and collects every problem on the way, so that a user sees them all at once.
//!
//! Owns: type checks, unknown keys, the wording of problems. Must not know which keys there are.

use serde_json::{Map, Value};
use std::cell::RefCell;

use crate::error::{Error, Kind, Result};
use crate::suggest;

/// What is wrong at one key.
struct Problem {
    kind: Kind,
    path: String,
    what: String,
    remedy: Option<String>,
}

/// All problems of one file or command.
#[derive(Default)]
pub(crate) struct Problems(RefCell<Vec<Problem>>);

impl Problems {
    pub(crate) fn add(&self, kind: Kind, path: impl Into<String>, what: impl Into<String>, remedy: Option<String>) {
        self.0.borrow_mut().push(Problem { kind, path: path.into(), what: what.into(), remedy });
    }

    /// Wrong input, with what to do about it.
    pub(crate) fn wrong(&self, path: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Kind::BadInput, path, what, Some(remedy.into()));
    }

    /// A setting that the documentation names and that this version lacks.
    pub(crate) fn unsupported(&self, path: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Kind::Unsupported, path, format!("{} not supported by this version", what.into()), Some(remedy.into()));
    }

    /// An error of a smaller parser, put at its key.
    pub(crate) fn error(&self, path: impl Into<String>, error: Error) {
        self.add(error.kind, path, error.message, error.remedy);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// One error with a line `file: key.path: what is wrong; remedy` for each problem.
    pub(crate) fn finish(self, file: &str) -> Result<()> {
        let mut problems = self.0.into_inner();
        let line = |p: &Problem| match (file, p.path.as_str()) {
            ("", "") => p.what.clone(),
            ("", path) => format!("{path}: {}", p.what),
            (file, "") => format!("{file}: {}", p.what),
            (file, path) => format!("{file}: {path}: {}", p.what),
        };
        match problems.len() {
            0 => Ok(()),
            1 => Err(problems
                .pop()
                .map_or_else(|| Error::internal("no problem"), |p| Error { kind: p.kind, message: line(&p), remedy: p.remedy })),
            _ => {
                let kind = if problems.iter().all(|p| p.kind == Kind::Unsupported) { Kind::Unsupported } else { Kind::BadInput };
                let text = |p: &Problem| match &p.remedy {
                    Some(remedy) => format!("{}; {remedy}", line(p)),
                    None => line(p),
                };
                Err(Error::new(kind, problems.iter().map(text).collect::<Vec<_>>().join("\n")))
            }
        }
    }
}

/// The keys of one table. [`Fields::done`] reports those that nobody took.
pub(crate) struct Fields<'a> {
    path: String,
    map: Map<String, Value>,
    known: Vec<&'static str>,
    pub(crate) problems: &'a Problems,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(path: impl Into<String>, map: Map<String, Value>, problems: &'a Problems) -> Self {
        Self { path: path.into(), map, known: Vec::new(), problems }
    }

    /// Where a key of this table stands, as users write it.
    pub(crate) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a key whatever its type; null is absent.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.map.shift_remove(key).filter(|v| !v.is_null())
    }

    fn typed<T>(&mut self, key: &'static str, expected: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        let value = self.take(key)?;
        let found = read(&value);
        if found.is_none() {
            self.problems.add(Kind::BadInput, self.at(key), format!("expected {expected}, found {}", show(&value)), None);
        }
        found
    }

    pub(crate) fn string(&mut self, key: &'static str) -> Option<String> {
        self.typed(key, "text in quotes", |v| v.as_str().map(str::to_owned))
    }

    pub(crate) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A whole number in `min..=max`.
    pub(crate) fn whole(&mut self, key: &'static str, min: u64, max: u64) -> Option<u64> {
        let expected =
            if max == u64::MAX { format!("a whole number of at least {min}") } else { format!("a whole number in {min}..={max}") };
        self.typed(key, &expected, |v| v.as_u64().filter(|n| (min..=max).contains(n)))
    }

    pub(crate) fn whole32(&mut self, key: &'static str, min: u32) -> Option<u32> {
        self.whole(key, min.into(), u32::MAX.into()).and_then(|n| u32::try_from(n).ok())
    }

    /// One of a closed list of words.
    pub(crate) fn word<T: Copy>(&mut self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.string(key)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let hint = suggest::likely(&text, known.iter().copied()).map_or(String::new(), |near| format!("did you mean `{near}`? "));
            self.problems.wrong(
                self.at(key),
                format!("unknown value `{}`", text.escape_debug()),
                format!("{hint}known are {}", suggest::list(&known)),
            );
        }
        found
    }

    /// Text through a parser that says what is wrong with it.
    pub(crate) fn parsed<T>(&mut self, key: &'static str, parse: impl FnOnce(&str) -> Result<T>) -> Option<T> {
        let text = self.string(key)?;
        parse(&text).map_err(|e| self.problems.error(self.at(key), e)).ok()
    }

    /// A size: a plain number of bytes or text with a unit. At least one byte.
    pub(crate) fn size(&mut self, key: &'static str) -> Option<u64> {
        let value = self.take(key)?;
        let parsed = match &value {
            Value::Number(n) => n.as_u64().ok_or_else(|| Error::bad_input(format!("expected a number of bytes, found {}", show(&value)))),
            Value::String(text) => super::size::parse_size(text),
            other => Err(Error::bad_input(format!("expected a size such as \"128MiB\", found {}", show(other)))),
        };
        match parsed {
            Ok(0) => {
                self.problems.wrong(self.at(key), "a size of zero", "give at least one byte");
                None
            }
            Ok(bytes) => Some(bytes),
            Err(e) => {
                self.problems.error(self.at(key), e);
                None
            }
        }
    }

    /// A list of texts; one text alone counts as a list where `one` says so.
    pub(crate) fn texts(&mut self, key: &'static str, one: bool) -> Option<Vec<String>> {
        let expected = if one { "text or a list of texts" } else { "a list of texts" };
        self.typed(key, expected, |v| match v {
            Value::String(text) if one => Some(vec![text.clone()]),
            Value::Array(items) => items.iter().map(|i| i.as_str().map(str::to_owned)).collect(),
            _ => None,
        })
    }

    pub(crate) fn table(&mut self, key: &'static str) -> Option<Map<String, Value>> {
        let value = self.take(key)?;
        match value {
            Value::Object(map) => Some(map),
            other => {
                self.problems.add(Kind::BadInput, self.at(key), format!("expected a table, found {}", show(&other)), None);
                None
            }
        }
    }

    /// A table of further keys, read by `read`, which must call [`Fields::done`] itself.
    pub(crate) fn section(&mut self, key: &'static str) -> Option<Fields<'a>> {
        let map = self.table(key)?;
        Some(Fields::new(self.at(key), map, self.problems))
    }

    /// Reports the keys that were not taken.
    pub(crate) fn done(self) {
        for key in self.map.keys() {
            let remedy = suggest::remedy(key, self.known.iter().copied());
            self.problems.add(Kind::BadInput, self.at(key), "unknown key", remedy);
        }
    }
}

/// A value as it stands in a message: its type and, where short, itself.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => format!("{b}"),
        Value::Number(n) => format!("{n}"),
        Value::String(s) if s.chars().count() <= 60 => format!("\"{}\"", s.escape_debug()),
        Value::String(s) => format!("\"{}...\"", s.chars().take(57).collect::<String>().escape_debug()),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "a table".to_owned(),
    }
}
