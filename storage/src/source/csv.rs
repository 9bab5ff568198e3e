//! Reading csv: headers, types, division at record boundaries, and rows.

use arrow::datatypes::{DataType, SchemaRef};
use forebay_core::source::{BadRow, Piece, SourceFile};
use forebay_core::{Error, Result};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use super::convert::Candidates;
use super::input::{Blob, Compression};
use super::names;
use super::options::Options;
use super::records::{Record, Records};
use super::snapshot::COMPRESSED_RANGE;
use super::stream::{Emit, Reader, Stop};
use super::text::{self, Faults, Keys, Origin, Target, TextColumn};
use super::{Limits, SourceBatch};

type Input = Records<Box<dyn Read + Send>>;

fn open(blob: &Blob, options: &Options, limits: Limits) -> Result<Input> {
    Ok(Records::new(blob.text()?, 0, &options.csv, limits.record_bytes))
}

/// Reads the header, if there is one; `None` for a file without any record. Leaves the reader at the first row.
fn header(input: &mut Input, blob: &Blob, options: &Options) -> Result<Option<Vec<String>>> {
    if !options.csv.has_header {
        return Ok(None);
    }
    let Some(record) = input.next().map_err(|e| blob.fail(&e))? else { return Ok(None) };
    if let Some(malformed) = record.malformed {
        return Err(Error::bad_input(format!("`{}`: the header can't be read: {}", blob.name(), malformed.describe())));
    }
    let text = |at| {
        let message = format!("`{}`: the name of column {} is not UTF-8", blob.name(), at + 1);
        String::from_utf8(record.value(at)).map_err(|_| Error::bad_input(message).with_remedy("convert the file to UTF-8"))
    };
    let found: Vec<String> = (0..record.len()).map(text).collect::<Result<_>>()?;
    names::renamed(found, options, blob.name()).map(Some)
}

/// Names for a file without a header: those given, or `column_1` and so on.
fn numbered(columns: usize, options: &Options, file: &str) -> Result<Vec<String>> {
    names::renamed((1..=columns).map(|n| format!("column_{n}")).collect(), options, file)
}

/// The columns' names and types, from the first `infer_rows` rows of the source. Blocking.
pub(super) fn infer(
    open_file: &dyn Fn(&SourceFile) -> Result<Blob>,
    files: &[SourceFile],
    options: &Options,
    limits: Limits,
) -> Result<Vec<(String, String)>> {
    let mut columns: Option<(Vec<String>, String)> = None;
    let mut candidates: Vec<Candidates> = Vec::new();
    let mut left = if options.infer_rows == 0 { u64::MAX } else { options.infer_rows };
    for file in files {
        if left == 0 {
            break;
        }
        let blob = open_file(file)?;
        let mut input = open(&blob, options, limits)?;
        let mut found = header(&mut input, &blob, options)?;
        let mut gathered = Gathered::default();
        let mut places: Vec<usize> = Vec::new();
        while left > 0 {
            let Some(record) = input.next().map_err(|e| blob.fail(&e))? else { break };
            let this = match found.take() {
                Some(names) => Some(names),
                None if places.is_empty() => Some(numbered(record.len(), options, blob.name())?),
                None => None,
            };
            if let Some(this) = this {
                places = agree(&mut columns, &this, &blob)?;
                candidates.resize_with(places.len(), Candidates::new);
                gathered.columns.resize_with(places.len(), TextColumn::default);
            }
            if record.malformed.is_none() && record.len() == places.len() {
                gathered.push(&record, &places, options);
                left -= 1;
            }
            if gathered.bytes > limits.batch_bytes || gathered.rows >= 1024 {
                gathered.narrow(&mut candidates)?;
            }
        }
        if let Some(names) = found {
            // A header and no rows: the names count all the same.
            agree(&mut columns, &names, &blob)?;
        }
        gathered.narrow(&mut candidates)?;
        blob.verify()?;
    }
    let Some((names, _)) = columns else {
        let what = if options.csv.has_header {
            "every file of the source is empty: there is no header"
        } else {
            "every file of the source is empty"
        };
        return Err(Error::bad_input(what).with_remedy("check the files, or the pattern in `source.uri`"));
    };
    candidates.resize_with(names.len(), Candidates::new);
    let kinds = candidates.into_iter().map(Candidates::decide);
    text::settle(names.into_iter().zip(kinds).collect(), &options.types)
}

/// Settles the source's columns by its first file; for later ones, finds them.
fn agree(columns: &mut Option<(Vec<String>, String)>, found: &[String], blob: &Blob) -> Result<Vec<usize>> {
    match columns {
        None => {
            names::check(found, blob.name())?;
            *columns = Some((found.to_vec(), blob.name().to_owned()));
            Ok((0..found.len()).collect())
        }
        Some((names, first)) => {
            let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
            names::places(&wanted, found, blob.name(), first)
        }
    }
}

/// Columns of text gathered for inference.
#[derive(Default)]
struct Gathered {
    columns: Vec<TextColumn>,
    rows: usize,
    bytes: usize,
}

impl Gathered {
    fn push(&mut self, record: &Record<'_>, places: &[usize], options: &Options) {
        for (column, place) in self.columns.iter_mut().zip(places) {
            self.bytes += append(column, record, *place, options);
        }
        self.rows += 1;
    }

    fn narrow(&mut self, candidates: &mut [Candidates]) -> Result<()> {
        for (column, candidates) in self.columns.iter_mut().zip(candidates) {
            candidates.narrow(&std::mem::take(column).finish()?.0)?;
        }
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

fn append(column: &mut TextColumn, record: &Record<'_>, place: usize, options: &Options) -> usize {
    record.append(place, column.values());
    let value = column.open();
    let bytes = value.len();
    let null = options.csv.null_values.iter().any(|n| n.as_bytes() == value);
    column.close(!null);
    bytes
}

/// Offsets at which a plain file can be cut into pieces of about `size` bytes: each the start of a record. Reads the whole file, since only
/// that tells whether a line break stands inside quotes. Blocking.
pub(super) fn cuts(blob: &Blob, options: &Options, size: u64, limits: Limits) -> Result<Vec<u64>> {
    let mut input = open(blob, options, limits)?;
    let mut cuts = Vec::new();
    let mut next = size;
    while let Some(record) = input.next().map_err(|e| blob.fail(&e))? {
        if record.offset >= next {
            cuts.push(record.offset);
            next = record.offset + size;
        }
    }
    Ok(cuts)
}

/// Reads pieces of csv files into batches.
pub(super) struct CsvReader {
    schema: SchemaRef,
    targets: Vec<Target>,
    options: Options,
    limits: Limits,
    first: String,
    keys: Keys,
    columns: Vec<TextColumn>,
    bad: Vec<BadRow>,
    bytes: usize,
}

impl CsvReader {
    pub(super) fn new(schema: SchemaRef, targets: Vec<Target>, options: Options, limits: Limits, first: String) -> Self {
        let columns = targets.iter().map(|_| TextColumn::default()).collect();
        Self { schema, targets, options, limits, first, keys: Keys::default(), columns, bad: Vec::new(), bytes: 0 }
    }

    fn places(&self, found: &[String], blob: &Blob) -> Result<Vec<usize>> {
        let wanted: Vec<&str> = self.targets.iter().map(|t| t.name.as_str()).collect();
        names::places(&wanted, found, blob.name(), &self.first)
    }

    fn row(&mut self, record: &Record<'_>, origin: &Arc<Origin>, id: i64, places: &[usize]) {
        let fault = match record.malformed {
            Some(malformed) => Some(format!("{}; mend the line", malformed.describe())),
            None if record.len() != places.len() => {
                let (has, wants) = (record.len(), places.len());
                Some(format!(
                    "the row has {has} field{}, and there are {wants} columns; mend the line, or check `delimiter` and `quote`",
                    if has == 1 { "" } else { "s" }
                ))
            }
            None => None,
        };
        if let Some(what) = fault {
            let bad = origin.bad(id, record.line, &what);
            self.bytes += bad.message.len() + bad.source.len() + 64;
            self.bad.push(bad);
            return;
        }
        self.keys.push(origin, id, record.line);
        for (column, place) in self.columns.iter_mut().zip(places) {
            self.bytes += append(column, record, *place, &self.options);
        }
        self.bytes += 16;
    }

    fn take(&mut self) -> Result<SourceBatch> {
        let mut faults = Faults::new();
        let mut columns = Vec::with_capacity(self.columns.len());
        for (column, target) in self.columns.iter_mut().zip(&self.targets) {
            columns.push(text::typed(std::mem::take(column), target, &mut faults)?);
        }
        let keys = std::mem::take(&mut self.keys);
        self.bytes = 0;
        let columns = plain_columns(columns, &self.targets)?;
        text::assemble(&self.schema, &keys, columns, &faults, std::mem::take(&mut self.bad))
    }
}

/// `json` columns are text here.
fn plain_columns(columns: Vec<arrow::array::ArrayRef>, targets: &[Target]) -> Result<Vec<arrow::array::ArrayRef>> {
    let nested = targets.iter().find(|t| matches!(t.kind, DataType::List(_) | DataType::Struct(_)));
    match nested {
        Some(target) => Err(Error::bad_input(format!("`options.types.{}`: a csv column can't be a list or a struct", target.name))
            .with_remedy("read it as \"string\" and take it apart in a step")),
        None => Ok(columns),
    }
}

impl Reader for CsvReader {
    fn read(&mut self, blob: &Blob, file: &SourceFile, piece: &Piece, emit: &mut Emit) -> Result<(), Stop> {
        let mut input = open(blob, &self.options, self.limits)?;
        let found = header(&mut input, blob, &self.options)?;
        let mut places = found.as_deref().map(|f| self.places(f, blob)).transpose()?;
        let mut start = 0;
        if let Piece::Bytes { start: from, end } = piece {
            // A piece that begins behind the header has its own reader; the first piece goes on behind the header.
            let from = (*from).max(if found.is_some() { input.offset() } else { 0 });
            input = Records::new(blob.reader(from, *end), from, &self.options.csv, self.limits.record_bytes);
            start = from;
        }
        let compressed = Compression::of(blob.name()) != Compression::None;
        let origin = Origin::new(blob, start);
        while let Some(record) = input.next().map_err(|e| blob.fail(&e))? {
            if compressed && record.offset >= COMPRESSED_RANGE as u64 {
                return Err(super::snapshot::too_long(blob.name()).into());
            }
            let places = match &places {
                Some(places) => places,
                None => places.insert(self.places(&numbered(self.targets.len(), &self.options, blob.name())?, blob)?),
            };
            // Offsets are below the file's range, which fits.
            let id = file.id_base + i64::try_from(record.offset).unwrap_or(i64::MAX);
            self.row(&record, &origin, id, places);
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

/// Refuses types that csv can't hold, before anything is read.
pub(super) fn check_types(types: &BTreeMap<String, DataType>) -> Result<()> {
    let targets: Vec<Target> = types.iter().map(|(name, kind)| Target { name: name.clone(), kind: kind.clone(), explicit: true }).collect();
    plain_columns(Vec::new(), &targets).map(|_| ())
}
