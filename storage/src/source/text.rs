//! Rows of text sources on their way to a batch: keys, where they came from, and the columns, typed when the batch is full.

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, SchemaRef};
use forebay_core::source::{BadRow, SourceSnapshot};
use forebay_core::{Error, Result};
use memchr::memchr_iter;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, OnceLock};

use super::convert::convert;
use super::input::Blob;
use super::options::Options;
use super::{SourceBatch, typename};

/// A column as the source's rows get it.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) kind: DataType,
    /// The user named the type.
    pub(super) explicit: bool,
}

impl Target {
    pub(super) fn field(&self) -> Field {
        Field::new(&self.name, plain(&self.kind), true)
    }

    /// What to do about a value that doesn't fit.
    pub(super) fn remedy(&self) -> String {
        let name = &self.name;
        match self.explicit {
            true => format!("correct the value, or the type of `{name}` in `options.types`"),
            false => format!("set `types = {{ {} = \"string\" }}` or `infer_rows = 0` in the source's options", key(name)),
        }
    }
}

/// A name as a TOML key.
fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if bare { name.to_owned() } else { format!("{name:?}") }
}

/// The type that batches have: JSON kept as it stands is text.
pub(super) fn plain(kind: &DataType) -> DataType {
    match kind {
        DataType::LargeUtf8 => DataType::Utf8,
        DataType::List(item) => DataType::List(Arc::new(Field::new("item", plain(item.data_type()), true))),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|f| Field::new(f.name(), plain(f.data_type()), true)).collect()),
        other => other.clone(),
    }
}

/// The columns that a snapshot settled.
pub(super) fn targets(snapshot: &SourceSnapshot, options: &Options) -> Result<Vec<Target>> {
    let target = |(name, kind): &(String, String)| {
        Ok(Target { name: name.clone(), kind: typename::parse(kind)?, explicit: options.types.contains_key(name) })
    };
    snapshot.columns.iter().map(target).collect()
}

/// Puts the types that the user gave in place of inferred ones; a type for a column that isn't there is an error.
pub(super) fn settle(inferred: Vec<(String, DataType)>, types: &BTreeMap<String, DataType>) -> Result<Vec<(String, String)>> {
    if let Some(missing) = types.keys().find(|name| !inferred.iter().any(|(n, _)| n == *name)) {
        let error = Error::bad_input(format!("`options.types` names the column `{missing}`, which the source doesn't have"));
        let near = forebay_core::suggest::remedy(missing, inferred.iter().map(|(n, _)| n.as_str()));
        return Err(near.map_or(error.clone(), |n| error.with_remedy(n)));
    }
    let settled = inferred.into_iter().map(|(name, kind)| {
        let kind = types.get(&name).unwrap_or(&kind);
        let written = typename::format(kind);
        (name, written)
    });
    Ok(settled.collect())
}

/// A stretch of rows from one piece of a file.
pub(super) struct Origin {
    pub(super) name: Arc<str>,
    blob: Blob,
    start: u64,
    /// Lines before `start`; counted when a bad row asks.
    lines: OnceLock<u64>,
}

impl Origin {
    pub(super) fn new(blob: &Blob, start: u64) -> Arc<Origin> {
        Arc::new(Origin { name: blob.name().into(), blob: blob.clone(), start, lines: OnceLock::new() })
    }

    /// The line in the file of a line counted from 1 at the piece's start.
    fn line(&self, line: u64) -> u64 {
        line + self.lines.get_or_init(|| {
            let mut reader = self.blob.reader(0, self.start);
            let mut buffer = vec![0; 1 << 20];
            let mut lines = 0;
            // An error here would hide the bad row, which matters more than its line.
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                lines += memchr_iter(b'\n', &buffer[..read]).count() as u64;
            }
            lines
        })
    }

    pub(super) fn bad(&self, id: i64, line: u64, what: &str) -> BadRow {
        let message = format!("`{}` line {}: {what}", self.name, self.line(line));
        BadRow { id, source: self.name.to_string(), message }
    }
}

/// The keys of the rows gathered so far.
#[derive(Default)]
pub(super) struct Keys {
    pub(super) ids: Vec<i64>,
    pub(super) lines: Vec<u64>,
    origins: Vec<(Arc<Origin>, usize)>,
}

impl Keys {
    pub(super) fn push(&mut self, origin: &Arc<Origin>, id: i64, line: u64) {
        self.ids.push(id);
        self.lines.push(line);
        match self.origins.last_mut() {
            Some((last, rows)) if Arc::ptr_eq(last, origin) => *rows += 1,
            _ => self.origins.push((origin.clone(), 1)),
        }
    }

    fn origin(&self, row: usize) -> Option<&Arc<Origin>> {
        let mut end = 0;
        self.origins.iter().find_map(|(origin, rows)| {
            end += rows;
            (row < end).then_some(origin)
        })
    }

    pub(super) fn bad(&self, row: usize, what: &str) -> Option<BadRow> {
        let origin = self.origin(row)?;
        Some(origin.bad(*self.ids.get(row)?, *self.lines.get(row)?, what))
    }

    fn sources(&self) -> StringArray {
        let names: Vec<&str> = self.origins.iter().flat_map(|(o, rows)| std::iter::repeat_n(o.name.as_ref(), *rows)).collect();
        StringArray::from_iter_values(names)
    }
}

/// A column of text under way.
#[derive(Debug)]
pub(super) struct TextColumn {
    values: Vec<u8>,
    offsets: Vec<i32>,
    valid: Vec<bool>,
}

impl Default for TextColumn {
    fn default() -> Self {
        Self { values: Vec::new(), offsets: vec![0], valid: Vec::new() }
    }
}

impl TextColumn {
    /// Where the next value's bytes go; [`Self::close`] ends it.
    pub(super) fn values(&mut self) -> &mut Vec<u8> {
        &mut self.values
    }

    /// The bytes written since the last value.
    pub(super) fn open(&self) -> &[u8] {
        let start = self.offsets.last().map_or(0, |o| usize::try_from(*o).unwrap_or(0));
        self.values.get(start..).unwrap_or_default()
    }

    /// Ends a value. The caller bounds a batch's text far below 2 GiB.
    pub(super) fn close(&mut self, valid: bool) {
        if !valid {
            let start = self.offsets.last().map_or(0, |o| usize::try_from(*o).unwrap_or(0));
            self.values.truncate(start);
        }
        self.offsets.push(i32::try_from(self.values.len()).unwrap_or(i32::MAX));
        self.valid.push(valid);
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.valid.truncate(rows);
        let end = self.offsets.last().map_or(0, |o| usize::try_from(*o).unwrap_or(0));
        self.values.truncate(end);
    }

    /// The column, and the rows that are not UTF-8 (null in it).
    pub(super) fn finish(self) -> Result<(StringArray, Vec<usize>)> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        let values = Buffer::from_vec(self.values);
        let nulls = NullBuffer::from(self.valid.clone());
        if let Ok(array) = StringArray::try_new(offsets.clone(), values.clone(), Some(nulls)) {
            return Ok((array, Vec::new()));
        }
        let mut bad = Vec::new();
        let text = offsets.windows(2).zip(&self.valid).enumerate().map(|(row, (ends, valid))| {
            let range = usize::try_from(ends[0]).ok()?..usize::try_from(ends[1]).ok()?;
            let text = std::str::from_utf8(values.get(range)?);
            if text.is_err() {
                bad.push(row);
            }
            text.ok().filter(|_| *valid)
        });
        let array: StringArray = text.collect();
        Ok((array, bad))
    }
}

/// What is wrong with a row, for the first column that has something wrong.
pub(super) type Faults = BTreeMap<usize, String>;

/// A column typed as its target, noting faults.
pub(super) fn typed(text: TextColumn, target: &Target, faults: &mut Faults) -> Result<ArrayRef> {
    let (text, not_utf8) = text.finish()?;
    for row in not_utf8 {
        let what = format!("column `{}` is not UTF-8; convert the file to UTF-8", target.name);
        faults.entry(row).or_insert(what);
    }
    let converted = convert(&text, &target.kind, target.explicit)?;
    for row in converted.bad {
        faults.entry(row).or_insert_with(|| unfit(target, text.value(row)));
    }
    Ok(converted.array)
}

pub(super) fn unfit(target: &Target, value: &str) -> String {
    format!("column `{}`: `{}` is no {}; {}", target.name, excerpt(value), typename::format(&target.kind), target.remedy())
}

/// The beginning of a value, for a message.
pub(super) fn excerpt(value: &str) -> String {
    let mut text: String = value.chars().take(64).collect();
    if text.len() < value.len() {
        text.push('…');
    }
    text.escape_debug().to_string()
}

/// Puts keys and columns together and takes the faulty rows out.
pub(super) fn assemble(
    schema: &SchemaRef,
    keys: &Keys,
    columns: Vec<ArrayRef>,
    faults: &Faults,
    mut bad: Vec<BadRow>,
) -> Result<SourceBatch> {
    let mut all: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(keys.ids.clone())), Arc::new(keys.sources())];
    all.extend(columns);
    let batch = RecordBatch::try_new(schema.clone(), all).map_err(|e| Error::internal(format!("source rows: {e}")))?;
    if faults.is_empty() {
        return Ok(SourceBatch { batch, bad });
    }
    bad.extend(faults.iter().filter_map(|(row, what)| keys.bad(*row, what)));
    bad.sort_by_key(|b| b.id);
    let keep: BooleanArray = (0..batch.num_rows()).map(|row| Some(!faults.contains_key(&row))).collect();
    let batch = filter_record_batch(&batch, &keep).map_err(|e| Error::internal(format!("source rows: {e}")))?;
    Ok(SourceBatch { batch, bad })
}
