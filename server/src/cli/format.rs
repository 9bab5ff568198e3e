//! Rows as table, CSV, JSON lines, Parquet or Arrow.

use arrow::array::{ArrayRef, BinaryArray, FixedSizeBinaryArray, LargeBinaryArray, RecordBatch, StringArray, cast::AsArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;
use forebay_core::Error;
use parquet::arrow::ArrowWriter;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::output::{Failure, Outcome};

/// Rows of a table that are laid out together: widths are known only for what is held.
const TABLE_ROWS: usize = 10_000;
/// Characters of a nested or binary value in a table.
const CELL: usize = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people; long values are cut
    Table,
    Csv,
    /// One JSON object per row and line
    Json,
    Parquet,
    /// An Arrow file with -o, else an Arrow stream
    Arrow,
}

impl Format {
    /// What a file's name says.
    pub(super) fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "json" | "jsonl" | "ndjson" => Some(Self::Json),
            "parquet" => Some(Self::Parquet),
            "arrow" | "feather" => Some(Self::Arrow),
            "txt" => Some(Self::Table),
            _ => None,
        }
    }

    pub(super) fn is_binary(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |v| v.get_name()))
    }
}

/// Where rows go; text is flushed after every batch, because somebody may be waiting for it.
enum Sink<W: Write + Send> {
    Table { out: W, held: Vec<RecordBatch>, rows: usize, printed: bool },
    Csv { out: W, head: bool },
    Json { out: W },
    Parquet(Box<Option<ArrowWriter<W>>>, Option<W>),
    Stream(Option<arrow::ipc::writer::StreamWriter<W>>, Option<W>),
    File(Option<arrow::ipc::writer::FileWriter<W>>, Option<W>),
}

/// Writes batches of one schema.
pub(super) struct Writer<W: Write + Send> {
    sink: Sink<W>,
    schema: SchemaRef,
}

impl<W: Write + Send> Writer<W> {
    /// `file`: the output is a whole file, not a pipe.
    pub(super) fn new(format: Format, out: W, file: bool) -> Outcome<Self> {
        let sink = match format {
            Format::Table => Sink::Table { out, held: Vec::new(), rows: 0, printed: false },
            Format::Csv => Sink::Csv { out, head: true },
            Format::Json => Sink::Json { out },
            Format::Parquet => Sink::Parquet(Box::new(None), Some(out)),
            Format::Arrow if file => Sink::File(None, Some(out)),
            Format::Arrow => Sink::Stream(None, Some(out)),
        };
        Ok(Self { sink, schema: Arc::new(Schema::empty()) })
    }

    /// Takes the schema; it is written even if no row follows.
    pub(super) fn start(&mut self, schema: &SchemaRef) -> Outcome {
        self.schema = Arc::clone(schema);
        match &mut self.sink {
            Sink::Parquet(writer, out) => {
                if let Some(out) = out.take() {
                    **writer = Some(ArrowWriter::try_new(out, Arc::clone(schema), None).map_err(|e| failed(e.into()))?);
                }
            }
            Sink::Stream(writer, out) => {
                if let Some(out) = out.take() {
                    *writer = Some(arrow::ipc::writer::StreamWriter::try_new(out, schema).map_err(failed)?);
                }
            }
            Sink::File(writer, out) => {
                if let Some(out) = out.take() {
                    *writer = Some(arrow::ipc::writer::FileWriter::try_new(out, schema).map_err(failed)?);
                }
            }
            Sink::Table { .. } | Sink::Csv { .. } | Sink::Json { .. } => {}
        }
        Ok(())
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Outcome {
        match &mut self.sink {
            Sink::Table { out, held, rows, printed } => {
                // What is held is already cut to what is shown: a batch of images costs its texts, not its pixels.
                held.push(cells(batch, Cut::Short)?);
                *rows += batch.num_rows();
                if *rows >= TABLE_ROWS {
                    print_table(out, held)?;
                    *rows = 0;
                    *printed = true;
                }
                Ok(())
            }
            Sink::Csv { out, head } => {
                let batch = cells(batch, Cut::Nested)?;
                arrow::csv::WriterBuilder::new().with_header(*head).build(&mut *out).write(&batch).map_err(failed)?;
                *head = false;
                Ok(out.flush()?)
            }
            Sink::Json { out } => {
                let mut writer =
                    arrow::json::WriterBuilder::new().with_explicit_nulls(true).build::<_, arrow::json::writer::LineDelimited>(&mut *out);
                writer.write(batch).map_err(failed)?;
                writer.finish().map_err(failed)?;
                drop(writer);
                Ok(out.flush()?)
            }
            Sink::Parquet(writer, _) => writer.as_mut().as_mut().map_or(Ok(()), |w| w.write(batch).map_err(|e| failed(e.into()))),
            Sink::Stream(writer, _) => writer.as_mut().map_or(Ok(()), |w| w.write(batch).map_err(failed)),
            Sink::File(writer, _) => writer.as_mut().map_or(Ok(()), |w| w.write(batch).map_err(failed)),
        }
    }

    pub(super) fn finish(self) -> Outcome {
        match self.sink {
            Sink::Table { mut out, mut held, printed, .. } => {
                if held.is_empty() && !printed {
                    held.push(cells(&RecordBatch::new_empty(self.schema), Cut::Short)?);
                }
                print_table(&mut out, &mut held)?;
                Ok(out.flush()?)
            }
            Sink::Csv { mut out, head } => {
                if head {
                    let names: Vec<&str> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
                    let mut writer = csv::Writer::from_writer(&mut out);
                    writer.write_record(names).map_err(io::Error::from)?;
                    writer.flush()?;
                }
                Ok(out.flush()?)
            }
            Sink::Json { mut out } => Ok(out.flush()?),
            Sink::Parquet(writer, _) => match *writer {
                Some(writer) => Ok(writer.into_inner().map_err(|e| failed(e.into()))?.flush()?),
                None => Ok(()),
            },
            Sink::Stream(Some(writer), _) => Ok(writer.into_inner().map_err(failed)?.flush()?),
            Sink::File(Some(writer), _) => Ok(writer.into_inner().map_err(failed)?.flush()?),
            Sink::Stream(None, _) | Sink::File(None, _) => Ok(()),
        }
    }
}

fn failed(error: ArrowError) -> Failure {
    match error {
        ArrowError::IoError(_, e) => e.into(),
        // The CSV writer wraps it in a text.
        other if other.to_string().contains("Broken pipe") => Failure::Pipe,
        other => Error::internal(format!("writing rows: {other}")).into(),
    }
}

fn print_table<W: Write>(out: &mut W, held: &mut Vec<RecordBatch>) -> Outcome {
    if !held.is_empty() {
        let table = arrow::util::pretty::pretty_format_batches(held).map_err(failed)?;
        writeln!(out, "{table}")?;
        held.clear();
    }
    Ok(())
}

/// How values that are no plain ones become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Everything becomes text of a width that a terminal can show.
    Short,
    /// Only nested and binary values become text, whole: CSV has no other way to hold them.
    Nested,
}

/// The batch with texts where `cut` wants them.
pub(super) fn cells(batch: &RecordBatch, cut: Cut) -> Outcome<RecordBatch> {
    let mut fields = Vec::with_capacity(batch.num_columns());
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(batch.num_columns());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if special(field.data_type()) || cut == Cut::Short {
            fields.push(Field::new(field.name(), DataType::Utf8, true));
            columns.push(Arc::new(texts(field, column, cut)?));
        } else {
            fields.push(field.as_ref().clone());
            columns.push(Arc::clone(column));
        }
    }
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).map_err(failed)
}

fn special(data_type: &DataType) -> bool {
    data_type.is_nested()
        || matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

fn texts(field: &Field, column: &ArrayRef, cut: Cut) -> Outcome<StringArray> {
    if cut == Cut::Short && forebay_storage::types::tensor_shape(field).is_some() {
        let name = forebay_storage::types::type_name(field);
        return Ok((0..column.len()).map(|row| (!column.is_null(row)).then(|| name.clone())).collect());
    }
    if let (Cut::Short, Some(lengths)) = (cut, binary_lengths(column)) {
        return Ok(lengths.map(|length| length.map(|n| format!("{n} bytes"))).collect());
    }
    let options = FormatOptions::default().with_null("");
    let formatter = ArrayFormatter::try_new(column, &options).map_err(failed)?;
    let text = |row: usize| {
        let text = formatter.value(row).try_to_string().map_err(failed)?;
        Ok::<_, Failure>(if cut == Cut::Short && special(field.data_type()) { shorten(text) } else { text })
    };
    (0..column.len()).map(|row| if column.is_null(row) { Ok(None) } else { text(row).map(Some) }).collect()
}

fn binary_lengths(column: &ArrayRef) -> Option<Box<dyn Iterator<Item = Option<usize>> + '_>> {
    Some(match column.data_type() {
        DataType::Binary => {
            let array: &BinaryArray = column.as_binary();
            Box::new(array.iter().map(|v| v.map(<[u8]>::len)))
        }
        DataType::LargeBinary => {
            let array: &LargeBinaryArray = column.as_binary();
            Box::new(array.iter().map(|v| v.map(<[u8]>::len)))
        }
        DataType::FixedSizeBinary(_) => {
            let array: &FixedSizeBinaryArray = column.as_fixed_size_binary();
            Box::new(array.iter().map(|v| v.map(<[u8]>::len)))
        }
        _ => return None,
    })
}

fn shorten(text: String) -> String {
    if text.chars().count() <= CELL { text } else { text.chars().take(CELL - 3).chain("...".chars()).collect() }
}

#[cfg(test)]
mod tests;
