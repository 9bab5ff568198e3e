//! Settings from flags, environment and `forebay.toml`, in that order of precedence.
//!
//! Owns: which settings there are, where each value came from, and the refusal of unknown or ill-typed ones. Must not know: what a
//! setting does.

use forebay_core::pipeline::{parse_duration_ms, parse_size};
use forebay_core::{Error, Kind, Result, suggest};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

/// The configuration file in the working directory, unless `--config` or `FOREBAY_CONFIG` names another.
pub const FILE: &str = "forebay.toml";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    /// In the environment: separated by commas.
    Texts,
    Flag,
    Count,
    Size,
    /// Kept in milliseconds.
    Time,
    Address,
    /// One of these.
    Word(&'static [&'static str]),
}

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// As in `forebay.toml`; a dot is a table.
    pub name: &'static str,
    pub env: &'static str,
    kind: Type,
    pub about: &'static str,
}

const fn key(name: &'static str, env: &'static str, kind: Type, about: &'static str) -> Key {
    Key { name, env, kind, about }
}

/// Every setting there is.
pub const KEYS: &[Key] = &[
    key("root", "FOREBAY_ROOT", Type::Text, "path or URL of the root to run embedded, or to serve"),
    key("server", "FOREBAY_SERVER", Type::Texts, "addresses of the server that commands speak to"),
    key("token", "FOREBAY_TOKEN", Type::Text, "secret that every call to a server carries"),
    key("listen", "FOREBAY_LISTEN", Type::Address, "where `serve`, `dispatcher` and `worker` speak Arrow Flight"),
    key("http", "FOREBAY_HTTP", Type::Address, "where `serve`, `dispatcher` and `worker` have their console, metrics and health"),
    key("dispatcher", "FOREBAY_DISPATCHER", Type::Texts, "addresses of the dispatchers that a worker works for"),
    key("advertise", "FOREBAY_ADVERTISE", Type::Text, "HOST:PORT under which others reach this dispatcher or worker"),
    key("name", "FOREBAY_NAME", Type::Text, "a worker's name; by default its host and process number"),
    key("lease", "FOREBAY_LEASE", Type::Text, "how long a silent worker or consumer keeps what it holds, at least 15s"),
    key("cache_dir", "FOREBAY_CACHE_DIR", Type::Text, "folder for cached index bundles; windows are cached in memory"),
    key("insecure", "FOREBAY_INSECURE", Type::Flag, "listen beyond this host without a token"),
    key("slots", "FOREBAY_SLOTS", Type::Count, "tasks that run at once; by default one per core"),
    key("cache_limit", "FOREBAY_CACHE_LIMIT", Type::Size, "bytes of cached windows"),
    key("index_cache_limit", "FOREBAY_INDEX_CACHE_LIMIT", Type::Size, "bytes of index bundles cached on disk; by default 4GiB"),
    key("memory_limit", "FOREBAY_MEMORY_LIMIT", Type::Size, "bytes that all queries together may hold; by default 1GiB"),
    key("query.spill_limit", "FOREBAY_QUERY_SPILL_LIMIT", Type::Size, "bytes that all queries together may spill to disk; by default 8GiB"),
    key("query.concurrent", "FOREBAY_QUERY_CONCURRENT", Type::Count, "queries that run at once, others wait; by default 16"),
    key("query.timeout", "FOREBAY_QUERY_TIMEOUT", Type::Time, "time from a query's start to its last row; by default 10m"),
    key("query.row_limit", "FOREBAY_QUERY_ROW_LIMIT", Type::Count, "rows of one answer; by default no limit"),
    key("query.distributed", "FOREBAY_QUERY_DISTRIBUTED", Type::Word(&["auto", "off"]), "whether workers share queries; by default auto"),
    key(
        "query.distributed_size",
        "FOREBAY_QUERY_DISTRIBUTED_SIZE",
        Type::Size,
        "bytes that a query reads at least to be shared; by default 64MiB",
    ),
    key("sources.allow", "FOREBAY_SOURCES_ALLOW", Type::Texts, "URL prefixes that a server reads for its clients' pipelines"),
    key("python.allow", "FOREBAY_PYTHON_ALLOW", Type::Flag, "whether a server runs its clients' Python steps"),
    key("python.interpreter", "FOREBAY_PYTHON", Type::Text, "interpreter of Python steps"),
];

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag,
    Environment(&'static str),
    File(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => f.write_str(name),
            Self::File(name) => f.write_str(name),
        }
    }
}

/// The settings that were given, each once, checked for its type.
#[derive(Debug, Clone, Default)]
pub struct Config {
    found: BTreeMap<&'static str, (Value, Origin)>,
}

impl Config {
    /// Reads the layers. `flags` are (key, value) of those given; `file` must exist if it was named, else [`FILE`] is read where present.
    pub fn load(flags: &[(&'static str, Value)], env: impl Fn(&str) -> Option<String>, file: Option<&str>) -> Result<Self> {
        let mut config = Self::default();
        let named = file.map(str::to_owned).or_else(|| env("FOREBAY_CONFIG").filter(|name| !name.is_empty()));
        let path = named.clone().unwrap_or_else(|| FILE.to_owned());
        match std::fs::read_to_string(Path::new(&path)) {
            Ok(text) => config.read_file(&path, &text)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && named.is_none() => {}
            Err(e) => return Err(Error::bad_input(format!("{path}: {e}")).with_remedy("check --config and FOREBAY_CONFIG")),
        }
        for key in KEYS {
            if let Some(text) = env(key.env).filter(|text| !text.is_empty()) {
                let value = from_text(key, &text).map_err(|e| e.context(key.env))?;
                config.put(key, value, Origin::Environment(key.env)).map_err(|e| e.context(key.env))?;
            }
        }
        for (name, value) in flags {
            let key = find(name).ok_or_else(|| Error::internal(format!("no setting `{name}`")))?;
            config.put(key, value.clone(), Origin::Flag).map_err(|e| e.context(format_args!("--{}", name.replace(['_', '.'], "-"))))?;
        }
        Ok(config)
    }

    /// All problems of the file are reported at once.
    fn read_file(&mut self, path: &str, text: &str) -> Result<()> {
        let table: toml::Table = toml::from_str(text)
            .map_err(|e| Error::bad_input(format!("{path}: {}", e.to_string().trim())).with_remedy("the file has to be TOML"))?;
        let value = serde_json::to_value(table).map_err(|e| Error::bad_input(format!("{path}: {e}")))?;
        let mut leaves = Vec::new();
        flatten("", value, &mut leaves);
        let mut problems = Vec::new();
        for (name, value) in leaves {
            let put = match find(&name) {
                Some(key) => self.put(key, value, Origin::File(path.to_owned())),
                None => {
                    let error = Error::bad_input("unknown key");
                    Err(match suggest::remedy(&name, KEYS.iter().map(|k| k.name)) {
                        Some(remedy) => error.with_remedy(remedy),
                        None => error,
                    })
                }
            };
            problems.extend(put.err().map(|e| e.context(&name).context(path)));
        }
        match problems.len() {
            0 => Ok(()),
            1 => Err(problems.remove(0)),
            _ => Err(Error::bad_input(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))),
        }
    }

    fn put(&mut self, key: &'static Key, value: Value, origin: Origin) -> Result<()> {
        let value = checked(key, value)?;
        self.found.insert(key.name, (value, origin));
        Ok(())
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.found.get(name).map(|(value, _)| value)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub fn texts(&self, name: &str) -> Option<Vec<String>> {
        self.get(name)?.as_array().map(|items| items.iter().filter_map(|i| i.as_str().map(str::to_owned)).collect())
    }

    pub fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A count, a size in bytes, or a time in milliseconds.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    pub fn address(&self, name: &str) -> Option<SocketAddr> {
        self.text(name)?.parse().ok()
    }

    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.found.get(name).map(|(_, origin)| origin)
    }

    /// Every setting with its value and origin where given; the token's text is hidden.
    pub fn dump(&self) -> Vec<(&'static Key, Option<(Value, String)>)> {
        KEYS.iter()
            .map(|key| {
                let shown = self.found.get(key.name).map(|(value, origin)| {
                    let value = if key.name == "token" { Value::from("(hidden)") } else { value.clone() };
                    (value, origin.to_string())
                });
                (key, shown)
            })
            .collect()
    }
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Tables become dotted names; a list or a value is a leaf.
fn flatten(path: &str, value: Value, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                flatten(&if path.is_empty() { key } else { format!("{path}.{key}") }, inner, leaves);
            }
        }
        other => leaves.push((path.to_owned(), other)),
    }
}

/// A value of the environment, where everything is text.
fn from_text(key: &Key, text: &str) -> Result<Value> {
    Ok(match key.kind {
        Type::Text | Type::Size | Type::Time | Type::Address | Type::Word(_) => Value::from(text),
        Type::Texts => text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(Value::from).collect(),
        Type::Flag => match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Value::Bool(true),
            "0" | "false" | "no" | "off" => Value::Bool(false),
            _ => return Err(Error::bad_input(format!("`{}` is not true or false", text.escape_debug())).with_remedy("use true or false")),
        },
        Type::Count => text.parse::<u64>().map(Value::from).unwrap_or_else(|_| Value::from(text)),
    })
}

/// The value in its checked form: sizes in bytes, lists as lists.
fn checked(key: &Key, value: Value) -> Result<Value> {
    let refuse = |expected: &str| Error::new(Kind::BadInput, format!("expected {expected}, found {value}"));
    match key.kind {
        Type::Text if value.as_str().is_some_and(|t| !t.is_empty()) => Ok(value),
        Type::Text => Err(refuse("text")),
        Type::Word(words) if value.as_str().is_some_and(|t| words.contains(&t)) => Ok(value),
        Type::Word(words) => Err(refuse(&suggest::list(words))),
        Type::Texts => match &value {
            Value::String(text) => Ok(text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(Value::from).collect()),
            Value::Array(items) if items.iter().all(Value::is_string) => Ok(value),
            _ => Err(refuse("a list of texts")),
        },
        Type::Flag if value.is_boolean() => Ok(value),
        Type::Flag => Err(refuse("true or false")),
        Type::Count if value.as_u64().is_some_and(|n| n > 0) => Ok(value),
        Type::Count => Err(refuse("a whole number of at least 1")),
        Type::Size => match &value {
            Value::String(text) => parse_size(text).map(Value::from),
            Value::Number(n) if n.is_u64() => Ok(value),
            _ => Err(refuse("a size such as \"4GiB\"")),
        },
        Type::Time => match &value {
            Value::String(text) => {
                parse_duration_ms(text).and_then(|ms| if ms > 0 { Ok(Value::from(ms)) } else { Err(refuse("more than 0s")) })
            }
            _ => Err(refuse("a time such as \"60s\"")),
        },
        Type::Address if value.as_str().is_some_and(|t| t.parse::<SocketAddr>().is_ok()) => Ok(value),
        Type::Address => Err(refuse("an address such as \"127.0.0.1:7070\"").with_remedy("give an IP address and a port")),
    }
}

#[cfg(test)]
mod tests;
