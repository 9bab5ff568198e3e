//! `forebay view`.

use clap::{Args, Subcommand};
use forebay_core::pipeline::show_size;
use forebay_flight::api::{ViewInfo, ViewsRequest};

use super::args::Connection;
use super::connect::{Access, with};
use super::output::{Outcome, Output, count};

const EXAMPLES: &str = "\
Examples:
  forebay view create hard \"SELECT image, label FROM digits WHERE label IN (3, 5, 8)\" --root ./data
  forebay read hard --root ./data                      train on it: the rows that pass, with all that a job promises
  forebay sql \"SELECT label, count(*) FROM hard GROUP BY label\" --root ./data
  forebay view list                                    all views, with their share of the rows when they were made
  forebay view show hard                               what it is and costs now
  forebay view drop hard                               the rows stay where they are

SELECT columns FROM dataset WHERE condition can be read as a job; anything else (joins, aggregates, computed columns) by SQL only. A job
keeps what its view was when the job began.";

/// Name a question: list, show, create and drop views
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ViewArgs {
    #[command(subcommand)]
    command: Option<ViewCommand>,
}

#[derive(Debug, Subcommand)]
enum ViewCommand {
    /// All views, with what they cost when they were made
    List,
    /// What one view is, and what it costs now: a selection is evaluated, a query is run
    Show { name: String },
    /// Give a SELECT a name
    Create {
        /// As for datasets: a lower-case letter, then up to 62 of a-z, 0-9 and _
        name: String,
        /// One SELECT; `-` reads it from stdin
        query: String,
    },
    /// Forget a view; no row is touched, and jobs that began with it go on
    Drop { name: String },
}

pub(super) async fn run(connection: &Connection, args: ViewArgs, out: &Output) -> Outcome {
    let (access, request) = match args.command {
        None | Some(ViewCommand::List) => return list(connection, out).await,
        Some(ViewCommand::Show { name }) => (Access::Read, ViewsRequest::Show { name }),
        Some(ViewCommand::Create { name, query }) => {
            let sql = if query == "-" { std::io::read_to_string(std::io::stdin())? } else { query };
            (Access::Change, ViewsRequest::Create { name, sql })
        }
        Some(ViewCommand::Drop { name }) => (Access::Change, ViewsRequest::Drop { name }),
    };
    let view = with(connection, access, async |client| Ok(client.view(&request).await?)).await?;
    match request {
        _ if out.json => out.json(&view),
        ViewsRequest::Drop { .. } => out.line(format!("{}: dropped", view.name)),
        _ => show(&view, out),
    }
}

async fn list(connection: &Connection, out: &Output) -> Outcome {
    let views = with(connection, Access::Read, async |client| Ok(client.views().await?)).await?;
    if out.json {
        return out.json(&views);
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows: Vec<Vec<String>> = views
        .iter()
        .map(|view| {
            let cost = view.cost.as_ref();
            vec![
                view.name.clone(),
                view.kind.clone(),
                view.reads.join(", "),
                or_dash(cost.and_then(|c| c.selected).map(count)),
                or_dash(view.share.map(percent)),
                or_dash(cost.map(|c| show_size(c.bytes))),
                one_line(&view.sql),
            ]
        })
        .collect();
    out.table(&["name", "kind", "reads", "rows", "share", "size", "sql"], &rows)
}

fn show(view: &ViewInfo, out: &Output) -> Outcome {
    out.line(format!("{}: {}", view.name, one_line(&view.sql)))?;
    match (&view.dataset, &view.error) {
        (Some(dataset), _) => {
            let version = view.version.map_or("its newest version".to_owned(), |v| format!("version {v}"));
            out.line(format!("job      rows of {dataset}, {version}: forebay read {}", view.name))?;
        }
        (None, Some(why)) => out.line(format!("job      none: {why}"))?,
        (None, None) => {}
    }
    if let Some(cost) = &view.cost {
        let what = if cost.version.is_some() { "" } else { " scanned" };
        let selected = match (cost.selected, view.share) {
            (Some(selected), Some(share)) => format!("{} of {} ({})", count(selected), count(cost.rows), percent(share)),
            (Some(selected), None) => format!("{} of {}{what}", count(selected), count(cost.rows)),
            (None, _) => format!("{}{what}", count(cost.rows)),
        };
        out.line(format!("rows     {selected}"))?;
        let kept = cost.selection_bytes.map(|bytes| format!(", and {} for the selection", show_size(bytes))).unwrap_or_default();
        out.line(format!("size     {} in the row groups{kept}", show_size(cost.bytes)))?;
    }
    let columns: Vec<String> = view.columns.iter().map(|c| format!("{} {}", c.name, c.r#type)).collect();
    out.line(format!("columns  {}", columns.join(", ")))?;
    let epochs = view.cost.as_ref().map(|cost| cost.epochs.as_slice()).unwrap_or_default();
    if epochs.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let rows: Vec<Vec<String>> = epochs.iter().map(|e| vec![e.epoch.to_string(), count(e.rows), count(e.selected)]).collect();
    out.table(&["epoch", "rows", "selected"], &rows)
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

fn one_line(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}
