//! `forebay config` and `forebay completions`.

use clap::Args;
use clap_complete::Shell;
use forebay_sql::catalog::QueryLimits;
use serde_json::{Map, Value};
use std::time::Duration;

use super::args::Connection;
use super::output::{Outcome, Output};
use crate::config::{Config, FILE};

const EXAMPLES: &str = "\
Settings come from flags, then FOREBAY_* variables, then forebay.toml in the working directory (--config or FOREBAY_CONFIG name
another file). A forebay.toml for a server:

  root = \"s3://bucket/forebay\"
  listen = \"0.0.0.0:7070\"
  token = \"...\"
  cache_limit = \"20GiB\"
  memory_limit = \"4GiB\"                            # queries of all clients together

  [query]                                          # clients may tighten timeout and row_limit for their own sessions
  timeout = \"60s\"
  concurrent = 8
  row_limit = 10000000
  spill_limit = \"32GiB\"
  distributed = \"auto\"                             # workers share queries that read at least distributed_size; or off

  [sources]
  allow = [\"s3://bucket/raw/\", \"/srv/data/\"]     # what clients' pipelines may read

  [python]
  allow = true                                     # clients' pipelines may bring Python

Example:
  forebay config --dump";

/// Show the settings and where each came from
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ConfigArgs {
    /// Print every setting with its value and origin (the default)
    #[arg(long)]
    dump: bool,
}

/// Print a script that completes commands in a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  forebay completions bash > ~/.local/share/bash-completion/completions/forebay")]
pub(super) struct CompletionsArgs {
    shell: Shell,
}

pub(super) fn config(connection: &Connection, _args: &ConfigArgs, out: &Output) -> Outcome {
    let dump = connection.settings(Vec::new())?.dump();
    if out.json {
        let entries = dump.into_iter().map(|(key, found)| {
            let (value, origin) = found.map_or((Value::Null, Value::Null), |(value, origin)| (value, origin.into()));
            (key.name.to_owned(), serde_json::json!({ "value": value, "from": origin }))
        });
        return out.json(&Value::Object(entries.collect::<Map<_, _>>()));
    }
    let rows: Vec<Vec<String>> = dump
        .into_iter()
        .map(|(key, found)| {
            let (value, origin) =
                found.map_or(("-".to_owned(), format!("- ({} or {FILE})", key.env)), |(value, origin)| (shown(&value), origin));
            vec![key.name.to_owned(), value, origin, key.about.to_owned()]
        })
        .collect();
    out.table(&["setting", "value", "from", "meaning"], &rows)
}

/// What queries may use, from the settings.
pub(super) fn query_limits(config: &Config) -> QueryLimits {
    let default = QueryLimits::default();
    let count = |name: &str| config.number(name).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    QueryLimits {
        memory: count("memory_limit").unwrap_or(default.memory),
        spill: config.number("query.spill_limit").unwrap_or(default.spill),
        concurrent: count("query.concurrent").unwrap_or(default.concurrent),
        deadline: config.number("query.timeout").map(Duration::from_millis).or(default.deadline),
        rows: config.number("query.row_limit").or(default.rows),
        distributed: config.text("query.distributed").map_or(default.distributed, |word| word == "auto"),
        distributed_size: config.number("query.distributed_size").unwrap_or(default.distributed_size),
        ..default
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) fn completions(args: &CompletionsArgs, out: &Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::definition(), "forebay", &mut script);
    out.bytes(&script)
}
