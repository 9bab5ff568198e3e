//! `forebay datasets` and `forebay epochs`.

use clap::{Args, Subcommand};
use forebay_core::Result;
use forebay_core::pipeline::{parse_duration_ms, show_size};
use forebay_flight::api::{DatasetDetail, DatasetsRequest, EpochInfo};
use futures::TryStreamExt;
use serde_json::Value;

use super::args::Connection;
use super::connect::{Access, with};
use super::output::{Outcome, Output, count, ranges};

const EXAMPLES: &str = "\
Examples:
  forebay datasets --root ./data                       all datasets
  forebay datasets show digits --root ./data           columns, epochs and files
  forebay datasets show digits --json                  with the file list of the version, for Parquet-only readers
  forebay datasets vacuum digits --dry-run             what a sweep would remove
  forebay datasets drop digits                         remove it, with all its versions";

/// List datasets, show or drop one, or sweep its unnamed files
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DatasetsArgs {
    #[command(subcommand)]
    command: Option<DatasetsCommand>,
}

#[derive(Debug, Subcommand)]
enum DatasetsCommand {
    /// Columns, epochs and files of one dataset
    Show {
        name: String,
        /// A version other than the newest
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// Remove a dataset with all its versions
    Drop { name: String },
    /// Remove files that the newest version does not name: older versions can't be read any more
    Vacuum {
        name: String,
        /// Younger files stay
        #[arg(long, value_name = "SPAN", default_value = "7d", value_parser = parse_duration_ms)]
        older_than: u64,
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

/// List a dataset's epochs
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  forebay epochs digits --root ./data")]
pub(super) struct EpochsArgs {
    dataset: String,
}

pub(super) async fn run(connection: &Connection, args: DatasetsArgs, out: &Output) -> Outcome {
    match args.command {
        None => list(connection, out).await,
        Some(DatasetsCommand::Show { name, version }) => {
            let detail = with(connection, Access::Read, async |client| Ok(client.dataset(&name, version).await?)).await?;
            if out.json { out.json(&detail) } else { show(&detail, out) }
        }
        Some(DatasetsCommand::Drop { name }) => {
            let answer = act(connection, &DatasetsRequest::Drop { name: name.clone() }).await?;
            if out.json { out.json(&answer) } else { dropped(&name, &answer, out) }
        }
        Some(DatasetsCommand::Vacuum { name, older_than, dry_run }) => {
            let request = DatasetsRequest::Vacuum { name: name.clone(), older_than_s: Some(older_than / 1000), dry_run };
            let answer = act(connection, &request).await?;
            if out.json { out.json(&answer) } else { vacuumed(&name, &answer, dry_run, out) }
        }
    }
}

fn dropped(name: &str, answer: &Value, out: &Output) -> Outcome {
    out.line(format!("{name}: dropped"))?;
    let views: Vec<&str> = answer["views"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match views.as_slice() {
        [] => Ok(()),
        views => {
            let (s, answer) = if views.len() == 1 { ("", "answers") } else { ("s", "answer") };
            out.line(format!("the view{s} {} {answer} nothing until there is a dataset `{name}` again", views.join(", ")))
        }
    }
}

/// One action that changes a root.
async fn act(connection: &Connection, request: &DatasetsRequest) -> Outcome<Value> {
    let body = serde_json::to_value(request).map_err(|e| forebay_core::Error::internal(format!("writing the request: {e}")))?;
    with(connection, Access::Change, async |client| {
        let answers: Vec<Value> = client.action("forebay.datasets", body).await?.try_collect().await?;
        Ok(answers.into_iter().next().unwrap_or(Value::Null))
    })
    .await
}

async fn list(connection: &Connection, out: &Output) -> Outcome {
    let datasets = with(connection, Access::Read, async |client| Ok(client.datasets().await?)).await?;
    if out.json {
        return out.json(&datasets);
    }
    let rows: Vec<Vec<String>> = datasets
        .iter()
        .map(|d| {
            vec![
                d.name.clone(),
                d.version.to_string(),
                ranges(&d.epochs),
                count(d.rows),
                show_size(d.bytes),
                count(d.shards),
                d.description.clone(),
            ]
        })
        .collect();
    out.table(&["name", "version", "epochs", "rows", "size", "shards", "description"], &rows)
}

fn show(detail: &DatasetDetail, out: &Output) -> Outcome {
    let s = &detail.summary;
    out.line(format!("{} (version {}): {} rows, {}, {} shards", s.name, s.version, count(s.rows), show_size(s.bytes), count(s.shards)))?;
    if !s.description.is_empty() {
        out.line(&s.description)?;
    }
    out.line(format!("table        {}", detail.table))?;
    if !detail.fingerprint.is_empty() {
        out.line(format!("fingerprint  {}", detail.fingerprint))?;
    }
    out.line("")?;
    let columns: Vec<Vec<String>> = detail
        .columns
        .iter()
        .map(|c| {
            let index = c.text_index.as_ref().map_or(String::new(), |tokenizer| format!("text index, {tokenizer}"));
            vec![c.name.clone(), c.r#type.clone(), if c.nullable { "null allowed".to_owned() } else { String::new() }, index]
        })
        .collect();
    out.table(&["column", "type", "", ""], &columns)?;
    out.line("")?;
    epoch_table(&detail.epochs_detail, out)?;
    out.line("")?;
    let files: Vec<Vec<String>> = detail.files.iter().map(|f| vec![f.path.clone(), count(f.rows), show_size(f.bytes)]).collect();
    out.table(&["file", "rows", "size"], &files)
}

fn epoch_table(epochs: &[EpochInfo], out: &Output) -> Outcome {
    let rows: Vec<Vec<String>> =
        epochs.iter().map(|e| vec![e.epoch.to_string(), count(e.rows), show_size(e.bytes), count(e.shards), count(e.row_groups)]).collect();
    out.table(&["epoch", "rows", "size", "shards", "row groups"], &rows)
}

fn vacuumed(name: &str, answer: &Value, dry_run: bool, out: &Output) -> Outcome {
    let files = answer.as_array().or_else(|| answer.as_object().and_then(|o| o.values().find_map(Value::as_array)));
    let files: Vec<&str> = files.into_iter().flatten().filter_map(Value::as_str).collect();
    let verb = if dry_run { "would be removed" } else { "removed" };
    out.line(format!("{name}: {} files {verb}", files.len()))?;
    files.iter().try_for_each(|file| out.line(format!("  {file}")))
}

pub(super) async fn epochs(connection: &Connection, args: EpochsArgs, out: &Output) -> Outcome {
    let epochs: Result<Vec<EpochInfo>> = with(connection, Access::Read, async |client| Ok(client.epochs(&args.dataset).await)).await?;
    let epochs = epochs?;
    if out.json { out.json(&epochs) } else { epoch_table(&epochs, out) }
}
