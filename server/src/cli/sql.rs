//! `forebay sql`.

use clap::Args;
use forebay_core::{Error, Kind};
use futures::StreamExt;
use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use super::args::Connection;
use super::connect::{Access, with};
use super::format::{Format, Writer};
use super::output::{Outcome, Output};

const EXAMPLES: &str = "\
Examples:
  forebay sql \"SELECT label, count(*) FROM digits WHERE epoch = 0 GROUP BY label\" --root ./data
  forebay sql 'SELECT count(*) FROM \"digits@v0\"'                       an older version
  forebay sql \"SELECT * FROM system.losses\" --format json             one JSON object per row
  forebay sql \"SELECT * FROM digits\" -o digits.parquet                the format follows the file's name
  echo \"SELECT 1\" | forebay sql -

Text: FROM search(photos, 'red car', 20) ranks, WHERE text_match(caption, 'red car') filters; see `forebay search --help`.
Tables: each dataset by name, with epoch, _id, _source and split beside its columns, each view, and system.datasets, views, versions,
epochs, shards, pipelines, tasks, workers, jobs, consumers, visits, losses and quarantine.";

/// Ask SQL of datasets and system tables
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SqlArgs {
    /// One SELECT or EXPLAIN; `-` reads it from stdin
    query: String,
    /// How rows are written [default: table, or what the output file's name says]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn run(connection: &Connection, args: SqlArgs, out: &Output) -> Outcome {
    let format = format(args.format, args.output.as_deref(), out.json)?;
    if format.is_binary() && args.output.is_none() && std::io::stdout().is_terminal() {
        return Err(Error::bad_input(format!("{format} is not for a terminal")).with_remedy("give -o FILE, or pipe it").into());
    }
    let query = if args.query == "-" { std::io::read_to_string(std::io::stdin())? } else { args.query };
    with(connection, Access::Read, async |client| {
        let rows = client.sql(&query).await?;
        match &args.output {
            None => write(rows, Writer::new(format, std::io::stdout(), false)?).await,
            Some(path) => {
                // A failed query leaves what was there before.
                let partial = partial(path);
                let file = BufWriter::new(File::create(&partial).map_err(|e| file_error(&partial, &e))?);
                let written = write(rows, Writer::new(format, file, true)?).await;
                match written {
                    Ok(()) => Ok(std::fs::rename(&partial, path).map_err(|e| file_error(path, &e))?),
                    Err(e) => {
                        let _ = std::fs::remove_file(&partial);
                        Err(e)
                    }
                }
            }
        }
    })
    .await
}

/// What is asked for, else what the file's name says.
fn format(asked: Option<Format>, output: Option<&Path>, json: bool) -> Result<Format, Error> {
    match (asked, output) {
        (Some(format), _) if json && format != Format::Json => {
            Err(Error::bad_input(format!("--json and --format {format} contradict each other")).with_remedy("give one of them"))
        }
        (Some(format), _) => Ok(format),
        (None, _) if json => Ok(Format::Json),
        (None, Some(path)) => Format::of(path).ok_or_else(|| {
            Error::bad_input(format!("the name {} does not say in which format to write", path.display()))
                .with_remedy("give --format, or a name that ends in .csv, .json, .jsonl, .parquet, .arrow or .txt")
        }),
        (None, None) => Ok(Format::Table),
    }
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

fn file_error(path: &Path, error: &std::io::Error) -> Error {
    let kind = if error.kind() == std::io::ErrorKind::StorageFull { Kind::ResourceExhausted } else { Kind::BadInput };
    Error::new(kind, format!("{}: {error}", path.display())).with_remedy("choose another -o FILE")
}

/// Rows are written as they come; a slow reader of stdout slows the query down, not this process's memory up.
pub(super) async fn write<W: Write + Send>(rows: forebay_flight::client::RecordStream, mut writer: Writer<W>) -> Outcome {
    let mut batches = rows.batches;
    writer.start(&rows.schema)?;
    while let Some(batch) = batches.next().await {
        writer.write(&batch?)?;
    }
    writer.finish()
}
