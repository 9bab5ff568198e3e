//! Reading JSON lines: types, division at line breaks, and rows. Each line is parsed once, straight into the columns.

mod builder;
mod shape;

use arrow::array::Array;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, SchemaRef};
use forebay_core::source::{BadRow, Piece, SourceFile};
use forebay_core::{Error, Result};
use serde::de::DeserializeSeed;
use std::io::Read;

use super::input::{Blob, Compression};
use super::names;
use super::options::{Names, Options};
use super::records::Lines;
use super::snapshot::COMPRESSED_RANGE;
use super::stream::{Emit, Reader, Stop};
use super::text::{self, Faults, Keys, Origin, Target};
use super::{Limits, SourceBatch};
use builder::{Finished, Node};
use shape::Shape;

/// The columns' names and types, from the first `infer_rows` rows of the source. Blocking.
pub(super) fn infer(
    open_file: &dyn Fn(&SourceFile) -> Result<Blob>,
    files: &[SourceFile],
    options: &Options,
    limits: Limits,
) -> Result<Vec<(String, String)>> {
    let mut shape = Shape::Struct(Vec::new());
    let mut left = if options.infer_rows == 0 { u64::MAX } else { options.infer_rows };
    let mut named = String::new();
    for file in files {
        if left == 0 {
            break;
        }
        let blob = open_file(file)?;
        let mut lines = Lines::new(blob.text()?, 0, limits.record_bytes);
        let mut first = true;
        while left > 0 {
            let Some(line) = lines.next().map_err(|e| blob.fail(&e))? else { break };
            if std::mem::take(&mut first) {
                refuse_array(line.data, &blob)?;
            }
            // A line that can't be read decides nothing; reading it says what is wrong.
            if let Ok(value) = serde_json::from_slice::<serde_json::Value>(line.data)
                && value.is_object()
            {
                shape.merge(Shape::of(&value));
                left -= 1;
            }
            if named.is_empty() {
                named = blob.name().to_owned();
            }
        }
        blob.verify()?;
    }
    let Shape::Struct(keys) = shape else { return Err(Error::internal("the shape of JSON rows")) };
    let (found, kinds): (Vec<String>, Vec<DataType>) = keys.into_iter().map(|(name, shape)| (name, shape.kind())).unzip();
    if found.is_empty() && options.types.is_empty() {
        return Err(Error::bad_input("no row of the source has a key, so it has no columns")
            .with_remedy("check the files, or name the columns with `options.types`"));
    }
    let names = names::renamed(found, options, &named)?;
    names::check(&names, &named)?;
    let mut inferred: Vec<(String, DataType)> = names.into_iter().zip(kinds).collect();
    // JSON rows may lack a key that the user knows of.
    let missing: Vec<_> = options.types.iter().filter(|(n, _)| !inferred.iter().any(|(i, _)| i == *n)).collect();
    names::check(&missing.iter().map(|(n, _)| (*n).clone()).collect::<Vec<_>>(), "options.types")?;
    inferred.extend(missing.into_iter().map(|(n, k)| (n.clone(), k.clone())));
    text::settle(inferred, &options.types)
}

fn refuse_array(line: &[u8], blob: &Blob) -> Result<()> {
    if line.trim_ascii_start().first() != Some(&b'[') {
        return Ok(());
    }
    let message = format!("`{}` is a JSON array, and the format `json` is one object a line", blob.name());
    Err(Error::bad_input(message).with_remedy("convert it, for example with `jq -c '.[]'`"))
}

/// Offsets at which a plain file can be cut into pieces of about `size` bytes: behind line breaks, which stand in no JSON text. Blocking.
pub(super) fn cuts(blob: &Blob, size: u64) -> Result<Vec<u64>> {
    let mut cuts = Vec::new();
    let mut from = size;
    while from < blob.size() {
        let mut reader = blob.reader(from - 1, blob.size());
        let mut at = from - 1;
        let mut buffer = vec![0; 64 << 10];
        let cut = loop {
            let read = reader.read(&mut buffer).map_err(|e| blob.fail(&e))?;
            if read == 0 {
                break blob.size();
            }
            if let Some(found) = memchr::memchr(b'\n', &buffer[..read]) {
                break at + found as u64 + 1;
            }
            at += read as u64;
        };
        if cut >= blob.size() {
            break;
        }
        cuts.push(cut);
        from = cut + size;
    }
    Ok(cuts)
}

/// Reads pieces of JSON lines files into batches.
pub(super) struct JsonReader {
    schema: SchemaRef,
    targets: Vec<Target>,
    limits: Limits,
    infer_rows: u64,
    keys: Keys,
    root: Node,
    bad: Vec<BadRow>,
    bytes: usize,
}

impl JsonReader {
    pub(super) fn new(schema: SchemaRef, targets: Vec<Target>, options: Options, limits: Limits) -> Result<Self> {
        let in_file = |name: &str| match &options.names {
            Names::Renamed(map) => map.iter().find(|(_, new)| *new == name).map_or_else(|| name.to_owned(), |(old, _)| old.clone()),
            _ => name.to_owned(),
        };
        let columns = targets.iter().map(|t| (in_file(&t.name), t.kind.clone(), t.explicit));
        let root = Node::root(columns)?;
        let infer_rows = options.infer_rows;
        Ok(Self { schema, targets, limits, infer_rows, keys: Keys::default(), root, bad: Vec::new(), bytes: 0 })
    }

    /// Why a line is no row; `None` when it was taken.
    fn row(&mut self, line: &[u8]) -> Option<String> {
        let rows = self.root.rows();
        let mut parser = serde_json::Deserializer::from_slice(line);
        let read = self.root.seed().deserialize(&mut parser).and_then(|()| parser.end());
        let error = read.err()?;
        self.root.truncate(rows);
        let what = error.to_string();
        // serde_json counts lines of its own input, which is always this one.
        let what = what.split_once(" at line 1 column ").map_or(what.clone(), |(what, column)| format!("{what} (at byte {column})"));
        if error.is_eof() {
            return Some(format!("{what}: the object is cut off; mend the line"));
        }
        if error.is_data() {
            let rows = self.infer_rows;
            let seen = if rows == 0 {
                String::new()
            } else {
                format!("; types come from the first {rows} rows: set `infer_rows = 0`, or name the type in `options.types`")
            };
            return Some(format!("{what}{seen}"));
        }
        Some(format!("{what}; mend the line"))
    }

    fn take(&mut self) -> Result<SourceBatch> {
        let mut faults = Faults::new();
        let mut columns = Vec::with_capacity(self.targets.len());
        for (finished, target) in self.root.finish()?.into_iter().zip(&self.targets) {
            columns.push(match finished {
                Finished::Text(text) => text::typed(text, target, &mut faults)?,
                Finished::Array(array) if array.data_type() == &text::plain(&target.kind) => array,
                Finished::Array(array) => narrow(&array, target, &mut faults)?,
            });
        }
        let keys = std::mem::take(&mut self.keys);
        self.bytes = 0;
        text::assemble(&self.schema, &keys, columns, &faults, std::mem::take(&mut self.bad))
    }
}

/// Whole numbers and floats in a narrower type.
fn narrow(array: &arrow::array::ArrayRef, target: &Target, faults: &mut Faults) -> Result<arrow::array::ArrayRef> {
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let fail = |e: arrow::error::ArrowError| Error::bad_input(format!("`options.types.{}`: {e}", target.name));
    let cast = cast_with_options(array, &target.kind, &options).map_err(fail)?;
    for row in (0..array.len()).filter(|row| array.is_valid(*row) && cast.is_null(*row)) {
        let value = arrow::util::display::array_value_to_string(array, row).unwrap_or_default();
        faults.entry(row).or_insert_with(|| text::unfit(target, &value));
    }
    Ok(cast)
}

impl Reader for JsonReader {
    fn read(&mut self, blob: &Blob, file: &SourceFile, piece: &Piece, emit: &mut Emit) -> Result<(), Stop> {
        let (input, start) = match piece {
            Piece::Bytes { start, end } => (blob.reader(*start, *end), *start),
            _ => (blob.text()?, 0),
        };
        let compressed = Compression::of(blob.name()) != Compression::None;
        let mut lines = Lines::new(input, start, self.limits.record_bytes);
        let origin = Origin::new(blob, start);
        while let Some(line) = lines.next().map_err(|e| blob.fail(&e))? {
            if line.offset == 0 {
                refuse_array(line.data, blob)?;
            }
            if compressed && line.offset >= COMPRESSED_RANGE as u64 {
                return Err(super::snapshot::too_long(blob.name()).into());
            }
            let id = file.id_base + i64::try_from(line.offset).unwrap_or(i64::MAX);
            let number = line.line;
            self.bytes += line.data.len() + 16;
            match self.row(line.data) {
                None => self.keys.push(&origin, id, number),
                Some(what) => self.bad.push(origin.bad(id, number, &what)),
            }
            if self.bytes >= self.limits.batch_bytes || self.keys.ids.len() >= self.limits.batch_rows {
                emit.send(self.take()?)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, emit: &mut Emit) -> Result<(), Stop> {
        if self.keys.ids.is_empty() && self.bad.is_empty() {
            return Ok(());
        }
        emit.send(self.take()?)
    }
}
