//! What commands print on stdout: text for people or JSON, never a panic on a closed pipe.

use arrow::datatypes::Field;
use forebay_core::Error;
use serde::Serialize;
use std::io::{self, Write as _};

/// Why a command ends early.
#[derive(Debug)]
pub(super) enum Failure {
    Error(Error),
    /// Nobody reads stdout any more.
    Pipe,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Error(Error::internal(format!("writing the output: {error}"))),
        }
    }
}

pub(super) type Outcome<T = ()> = Result<T, Failure>;

/// Stdout.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) json: bool,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(super) fn line(&self, text: impl AsRef<str>) -> Outcome {
        self.bytes(format!("{}\n", text.as_ref()).as_bytes())
    }

    pub(super) fn bytes(&self, bytes: &[u8]) -> Outcome {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// One JSON value on one line.
    pub(super) fn json(&self, value: &impl Serialize) -> Outcome {
        let text = serde_json::to_string(value).map_err(|e| Error::internal(format!("writing JSON: {e}")))?;
        self.line(text)
    }

    /// Columns under their heads; numbers to the right.
    pub(super) fn table(&self, heads: &[&str], rows: &[Vec<String>]) -> Outcome {
        self.line(table(heads, rows))
    }
}

/// A plain table without lines, as other tools can cut it.
pub(super) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let numeric = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty() && *cell != "-").peekable();
        cells.peek().is_some() && cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
    };
    let right: Vec<bool> = (0..heads.len()).map(numeric).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).zip(&right).map(
            |((cell, width), right)| {
                if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            },
        );
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(heads.to_vec())];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

/// A count with thousands set apart: `1,797`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// Numbers in ranges: `0..3, 5`.
pub(super) fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end == *n => *end = n.saturating_add(1),
            _ => runs.push((*n, n.saturating_add(1))),
        }
    }
    let shown = runs.iter().map(|(from, to)| if to - from == 1 { from.to_string() } else { format!("{from}..{to}") });
    shown.collect::<Vec<_>>().join(", ")
}

/// A column as users know it: `image uint8[8,8]`.
pub(super) fn column(field: &Field) -> String {
    format!("{} {}", field.name(), forebay_storage::types::type_name(field))
}
