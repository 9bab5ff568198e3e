//! `forebay search` and `forebay index`.

use clap::Args;
use forebay_core::pipeline::show_size;
use forebay_core::text::{Language, Tokenizer};
use forebay_core::{Error, Result, suggest};
use forebay_flight::api::{DatasetDetail, IndexProgress, IndexRequest};
use futures::StreamExt;
use std::time::Instant;

use super::args::{Connection, epoch_range};
use super::connect::{Access, with};
use super::format::{Format, Writer};
use super::output::{Outcome, Output, count};
use super::progress::Indexed;
use super::sql::write;

const SEARCH_EXAMPLES: &str = "\
Examples:
  forebay search photos \"red car\" --root ./data            both words
  forebay search photos 'red OR blue'                      one of them
  forebay search photos 'car -truck'                       the first without the second
  forebay search photos '\"red car\" title:beach'            a phrase; a word in one column
  forebay search photos 'photo* colour~'                   words that begin so; words within one edit (~2: two)
  forebay search photos@v3 sunset --epochs 0..1 --limit 20 --columns caption,label --json

The best rows come first, ranked by BM25 over all shards. The columns to search are those of the pipeline's [index] text, or of
`forebay index`. In SQL the same is search(photos, 'red car', 20) in FROM, and text_match(caption, 'red car') as a filter.";

const INDEX_EXAMPLES: &str = "\
Examples:
  forebay index photos caption --root ./data
  forebay index articles body --tokenizer \"stemmed(english)\"
  forebay index articles body --rebuild                    when an index was damaged

Readers see the finished index at once, as a new version of the dataset with the same rows. Run again after an interruption, it goes on
where it stopped. New epochs are indexed as they are materialized.

Tokenizers: default (words in lower case), raw (the whole value as one word), cjk (Chinese, Japanese and Korean too), stemmed(LANGUAGE)
(words cut to their stems).";

/// Search a dataset's text columns, best rows first
#[derive(Debug, Args)]
#[command(after_help = SEARCH_EXAMPLES)]
pub(super) struct SearchArgs {
    /// NAME or NAME@v3
    dataset: String,
    /// Words, "phrases", column:word, AND OR NOT -word ( ), begin*, near~
    #[arg(allow_hyphen_values = true)]
    query: String,
    /// Rows to find
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// Epochs to search, without the end; by default all
    #[arg(long, value_name = "A..B", value_parser = epoch_range)]
    epochs: Option<(u32, u32)>,
    /// Columns to show; by default those that can be searched
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    columns: Vec<String>,
    /// How rows are written [default: table]
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// Build the text index of a column for the epochs that exist
#[derive(Debug, Args)]
#[command(after_help = INDEX_EXAMPLES)]
pub(super) struct IndexArgs {
    dataset: String,
    /// A text column of the stored rows
    column: String,
    /// How its text becomes words [default: what the column has, else default]
    #[arg(long, value_name = "NAME", value_parser = tokenizer)]
    tokenizer: Option<String>,
    /// Build also what is there already
    #[arg(long)]
    rebuild: bool,
}

fn tokenizer(text: &str) -> Result<String> {
    let languages: Vec<&str> = Language::ALL.iter().map(|(word, _)| *word).collect();
    let parsed: Result<Tokenizer> = text.parse();
    parsed.map(|t| t.to_string()).map_err(|e| match text.starts_with("stemmed") {
        true => e.with_remedy(format!("languages are {}", suggest::list(&languages))),
        false => e,
    })
}

pub(super) async fn search(connection: &Connection, args: SearchArgs, out: &Output) -> Outcome {
    let format = match (args.format, out.json) {
        (Some(format), true) if format != Format::Json => {
            return Err(Error::bad_input(format!("--json and --format {format} contradict each other"))
                .with_remedy("give one of them")
                .into());
        }
        (Some(format), _) => format,
        (None, true) => Format::Json,
        (None, false) => Format::Table,
    };
    with(connection, Access::Read, async |client| {
        let (name, version) = match args.dataset.split_once("@v") {
            None => (args.dataset.as_str(), None),
            Some((name, version)) => {
                let number = version.parse().map_err(|_| {
                    Error::bad_input(format!("`{}` does not name a version", args.dataset.escape_debug()))
                        .with_remedy("write it as NAME@v3")
                })?;
                (name, Some(number))
            }
        };
        let detail = client.dataset(name, version).await?;
        let rows = client.sql(&query(&detail, &args)?).await?;
        write(rows, Writer::new(format, std::io::stdout(), false)?).await
    })
    .await
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The SELECT that answers a search.
fn query(detail: &DatasetDetail, args: &SearchArgs) -> Result<String> {
    let name = &detail.summary.name;
    let known = |c: &str| detail.columns.iter().any(|k| k.name == c);
    let shown: Vec<String> = match args.columns.as_slice() {
        [] => detail.columns.iter().filter(|c| c.text_index.is_some()).map(|c| c.name.clone()).collect(),
        given => {
            if let Some(wrong) = given.iter().find(|c| !known(c)) {
                let error = Error::bad_input(format!("--columns: `{name}` has no column `{}`", wrong.escape_debug()));
                let near = suggest::remedy(wrong, detail.columns.iter().map(|c| c.name.as_str()));
                return Err(error.with_remedy(near.unwrap_or_default()));
            }
            given.iter().filter(|c| !matches!(c.as_str(), "_id" | "_part")).cloned().collect()
        }
    };
    let key = if known("_part") { "_id, _part" } else { "_id" };
    let columns: String = shown.iter().map(|c| format!(", {}", quoted(c))).collect();
    let epochs = args.epochs.map_or(String::new(), |(from, to)| format!(" WHERE epoch >= {from} AND epoch < {to}"));
    let text = args.query.replace('\'', "''");
    Ok(format!(
        "SELECT _score, epoch, {key}{columns} FROM search({}, '{text}', {}){epochs} ORDER BY _score DESC, epoch, {key}",
        quoted(&args.dataset),
        args.limit
    ))
}

pub(super) async fn index(connection: &Connection, args: IndexArgs, out: &Output) -> Outcome {
    let request = IndexRequest { dataset: args.dataset, column: args.column, tokenizer: args.tokenizer, rebuild: args.rebuild };
    let started = Instant::now();
    let bar = Indexed::new();
    let last = with(connection, Access::Change, async |client| {
        let mut answers = client.index(&request).await?;
        let mut last: Option<IndexProgress> = None;
        while let Some(answer) = answers.next().await {
            let state = answer?;
            bar.show(&state);
            last = Some(state);
        }
        Ok(last.filter(|l| l.state != "running").ok_or_else(|| {
            Error::new(forebay_core::Kind::Unavailable, "the server ended while it built the index")
                .with_remedy("run the same command again")
        })?)
    })
    .await;
    bar.stop();
    tell(&last?, started.elapsed(), out)
}

fn tell(last: &IndexProgress, elapsed: std::time::Duration, out: &Output) -> Outcome {
    if out.json {
        return out.json(last);
    }
    let version = last.version.map_or(String::new(), |v| format!(" (version {v})"));
    let (dataset, column) = (&last.dataset, &last.column);
    if last.state == "already_indexed" {
        return out.line(format!("{dataset}: `{column}` is indexed already{version}: {} rows", count(last.rows)));
    }
    out.line(format!(
        "{dataset}: `{column}` indexed{version}: {} rows in {} shards, {} of index in {:.1} s",
        count(last.rows),
        count(last.shards),
        show_size(last.bytes),
        elapsed.as_secs_f64()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail() -> DatasetDetail {
        let json = serde_json::json!({"name": "photos", "description": "", "version": 3, "epochs": [0], "rows": 1, "bytes": 1, "shards": 1,
            "fingerprint": "", "epochs_detail": [], "files": [], "table": "", "pipeline": null, "columns": [
                {"name": "_id", "type": "int64", "nullable": false}, {"name": "label", "type": "int64", "nullable": true},
                {"name": "Caption", "type": "string", "nullable": true, "text_index": "default"}]});
        serde_json::from_value(json).unwrap_or_else(|e| unreachable!("{e}"))
    }

    fn args(columns: &[&str], epochs: Option<(u32, u32)>) -> SearchArgs {
        let columns = columns.iter().map(|c| (*c).to_owned()).collect();
        SearchArgs { dataset: "photos@v3".into(), query: "it's red".into(), limit: 5, epochs, columns, format: None }
    }

    #[test]
    fn a_search_is_one_select() {
        assert_eq!(
            query(&detail(), &args(&[], Some((0, 2)))).ok().as_deref(),
            Some(
                "SELECT _score, epoch, _id, \"Caption\" FROM search(\"photos@v3\", 'it''s red', 5) WHERE epoch >= 0 AND epoch < 2 ORDER BY _score DESC, epoch, _id"
            )
        );
        assert!(query(&detail(), &args(&["label", "_id"], None)).is_ok_and(|q| q.starts_with("SELECT _score, epoch, _id, \"label\" FROM")));
        let error = query(&detail(), &args(&["labl"], None)).unwrap_or_else(|e| e.to_string());
        assert!(error.contains("no column `labl`") && error.contains("did you mean `label`?"), "{error}");
    }

    #[test]
    fn tokenizers_are_checked_where_they_are_typed() {
        assert_eq!(tokenizer("stemmed(german)").ok().as_deref(), Some("stemmed(german)"));
        assert!(tokenizer("stemmed(x)").is_err_and(|e| e.to_string().contains("`english`")));
    }
}
