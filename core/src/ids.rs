//! Names and numbers of things. A raw string or integer never stands for one of these in a signature.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::error::{Error, Result};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(/// One full pass over the source as stored, numbered from 0.
    EpochId(u32));
number!(/// One source chunk of one epoch to be materialized.
    TaskId(u32));
number!(/// How often a task or a window has been handed out, from 0. Part of every shard's name.
    Attempt(u32));
number!(/// One traversal by a job, numbered from 0.
    PassId(u32));
number!(/// A window of one pass, numbered from 0 (DESIGN: what is leased, read, shuffled, cached and shared).
    WindowId(u64));
number!(/// A batch of one pass, numbered from 0.
    BatchId(u64));
number!(/// Grows by one each time a job is restored or restarted.
    Incarnation(u32));
number!(/// Drawn by a consumer's process at its start: tells it from another process of the same name.
    Session(u64));
number!(/// Grows by one with every leader of a root; an entry under an older fence changes nothing.
    Fence(u64));
number!(/// A Delta version of a dataset.
    VersionId(u64));

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(/// A pipeline's named output. Build it with [`DatasetName::parse`] wherever it comes from outside.
    DatasetName);
name!(/// A named group of consumers with one plan. Build it with [`JobName::parse`].
    JobName);
name!(/// A named SELECT. Build it with [`ViewName::parse`].
    ViewName);
name!(/// One trainer process of a job, as it names itself.
    ConsumerName);
name!(/// A worker process.
    WorkerName);

/// SQL words that would need quoting everywhere, and names that mean something else here.
const RESERVED: &[&str] = &[
    "all",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "between",
    "by",
    "case",
    "cast",
    "column",
    "create",
    "cross",
    "current",
    "default",
    "delete",
    "desc",
    "distinct",
    "drop",
    "else",
    "end",
    "except",
    "exists",
    "false",
    "filter",
    "for",
    "from",
    "full",
    "group",
    "having",
    "in",
    "information_schema",
    "inner",
    "input",
    "insert",
    "intersect",
    "interval",
    "into",
    "is",
    "join",
    "lateral",
    "left",
    "like",
    "limit",
    "natural",
    "not",
    "null",
    "offset",
    "on",
    "or",
    "order",
    "outer",
    "over",
    "partition",
    "primary",
    "public",
    "right",
    "row",
    "rows",
    "select",
    "set",
    "system",
    "table",
    "then",
    "to",
    "true",
    "union",
    "unique",
    "unnest",
    "update",
    "user",
    "using",
    "values",
    "view",
    "when",
    "where",
    "window",
    "with",
];

/// Checks `[a-z][a-z0-9_]{0,62}` and the reserved words: what names a table is a folder's or an object's name too. `what` names it in errors.
fn table_name(what: &str, text: &str) -> Result<String> {
    let mut chars = text.chars();
    let head = chars.next().is_some_and(|c| c.is_ascii_lowercase());
    let tail = chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !head || !tail || text.len() > 63 {
        return Err(Error::bad_input(format!("`{}` is not a {what} name", text.escape_debug()))
            .with_remedy("use a lower-case letter, then up to 62 of a-z, 0-9 and _"));
    }
    if RESERVED.contains(&text) {
        return Err(Error::bad_input(format!("`{text}` is a reserved word and can't name a {what}")).with_remedy("choose another name"));
    }
    Ok(text.to_owned())
}

impl DatasetName {
    /// Checks `[a-z][a-z0-9_]{0,62}` and the reserved words.
    pub fn parse(text: &str) -> Result<Self> {
        table_name("dataset", text).map(Self)
    }
}

impl ViewName {
    /// Checks what a dataset's name is checked for: the two share one name space.
    pub fn parse(text: &str) -> Result<Self> {
        table_name("view", text).map(Self)
    }
}

impl JobName {
    /// Checks `[A-Za-z0-9][A-Za-z0-9_.-]{0,127}`: a job's name is a folder's name.
    pub fn parse(text: &str) -> Result<Self> {
        let head = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let tail = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        if !head || !tail || text.len() > 128 {
            return Err(Error::bad_input(format!("`{}` is not a job name", text.escape_debug()))
                .with_remedy("use a letter or digit, then up to 127 letters, digits, `_`, `.` or `-`"));
        }
        Ok(Self(text.to_owned()))
    }
}
