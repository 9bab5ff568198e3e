//! `forebay jobs`, `forebay tasks` and `forebay workers`.

use std::time::Duration;

use clap::{Args, Subcommand};
use forebay_core::Error;
use forebay_core::pipeline::show_size;
use forebay_flight::api::JobStatus;
use futures::TryStreamExt;
use serde_json::{Value, json};

use super::args::Connection;
use super::connect::{Access, with};
use super::output::{Outcome, Output, count};

/// How often a drain is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(300);

/// List jobs, show or stop one
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  forebay jobs --root ./data\n  forebay jobs show run1\n  forebay jobs stop run1 --server grpc://host:7070"
)]
pub(super) struct JobsArgs {
    #[command(subcommand)]
    command: Option<JobsCommand>,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// Settings, batches and consumers of one job
    Show { name: String },
    /// End a job: its consumers get no further batch
    Stop { name: String },
}

/// List tasks of materialization
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay tasks --root ./data\n  forebay tasks --failed --json")]
pub(super) struct TasksArgs {
    /// Only tasks of which an attempt failed
    #[arg(long)]
    failed: bool,
}

/// List workers
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  forebay workers --server grpc://host:7070")]
pub(super) struct WorkersArgs {
    #[command(subcommand)]
    command: Option<WorkersCommand>,
}

#[derive(Debug, Subcommand)]
enum WorkersCommand {
    /// Give a worker nothing new, and wait until it has finished what it holds and ended
    Drain {
        /// Its name, as `forebay workers` lists it
        #[arg(value_name = "NAME")]
        id: String,
    },
}

pub(super) async fn run(connection: &Connection, args: JobsArgs, out: &Output) -> Outcome {
    match args.command {
        None => {
            let jobs = with(connection, Access::Read, async |client| Ok(client.jobs(None).await?)).await?;
            if out.json { out.json(&jobs) } else { list(&jobs, out) }
        }
        Some(JobsCommand::Show { name }) => {
            let jobs = with(connection, Access::Read, async |client| Ok(client.jobs(Some(&name)).await?)).await?;
            let job = jobs.into_iter().next().ok_or_else(|| Error::not_found(format!("no job `{}`", name.escape_debug())))?;
            if out.json { out.json(&job) } else { show(&job, out) }
        }
        Some(JobsCommand::Stop { name }) => {
            let answer = with(connection, Access::Change, async |client| Ok(client.stop_job(&name).await?)).await?;
            if out.json {
                out.json(&answer)
            } else {
                out.line(format!("{name}: {}", answer.get("state").and_then(Value::as_str).unwrap_or("stopped")))
            }
        }
    }
}

fn list(jobs: &[JobStatus], out: &Output) -> Outcome {
    let rows: Vec<Vec<String>> = jobs
        .iter()
        .map(|j| {
            let pass = j.pass.map_or("-".to_owned(), |p| p.to_string());
            let counts = [j.batches, j.acknowledged, j.lost].map(count);
            [vec![j.job.clone(), j.dataset.clone(), j.state.clone(), pass], counts.to_vec(), vec![j.consumers.len().to_string()]].concat()
        })
        .collect();
    out.table(&["job", "dataset", "state", "pass", "batches", "acknowledged", "lost", "consumers"], &rows)
}

fn show(j: &JobStatus, out: &Output) -> Outcome {
    let pass = j.pass.map_or(String::new(), |p| format!(", pass {p}"));
    out.line(format!("{} of {}: {}{pass}, incarnation {}", j.job, j.dataset, j.state, j.incarnation))?;
    let states = [
        ("batches", j.batches),
        ("pending", j.pending),
        ("granted", j.granted),
        ("sent", j.sent),
        ("acknowledged", j.acknowledged),
        ("lost", j.lost),
        ("dropped", j.dropped),
    ];
    let rows: Vec<Vec<String>> = states.iter().map(|(name, n)| vec![(*name).to_owned(), count(*n)]).collect();
    out.table(&["state", "batches"], &rows)?;
    out.line(format!("consumers    {}", if j.consumers.is_empty() { "none".to_owned() } else { j.consumers.join(", ") }))?;
    if let Some(digest) = &j.digest {
        out.line(format!("digest       {digest}"))?;
    }
    let settings = j.settings.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let rows: Vec<Vec<String>> = settings.map(|(key, value)| vec![key.clone(), shown(value)]).collect();
    out.line("")?;
    out.table(&["setting", "value"], &rows)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// All answers of an action that lists things, whether they come as one array or one by one.
async fn listed(connection: &Connection, action: &str, body: Value) -> Outcome<Vec<Value>> {
    let answers: Vec<Value> =
        with(connection, Access::Read, async |client| Ok(client.action(action, body).await?.try_collect().await?)).await?;
    Ok(answers.into_iter().flat_map(|answer| if let Value::Array(items) = answer { items } else { vec![answer] }).collect())
}

fn cells(row: &Value, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| row.get(key).map_or("-".to_owned(), shown)).collect()
}

pub(super) async fn tasks(connection: &Connection, args: TasksArgs, out: &Output) -> Outcome {
    let failed = |row: &Value| row.get("failures").and_then(Value::as_u64).unwrap_or(0) > 0;
    let mut tasks = listed(connection, "forebay.tasks", json!({})).await?;
    tasks.retain(|row| !args.failed || failed(row));
    if out.json {
        return out.json(&tasks);
    }
    const KEYS: [&str; 7] = ["dataset", "epoch", "task", "state", "attempt", "worker", "failures"];
    let rows: Vec<Vec<String>> = tasks
        .iter()
        .map(|row| {
            let mut line = cells(row, &KEYS);
            let number = |key: &str| row.get(key).and_then(Value::as_u64);
            line.push(number("rows").map_or("-".to_owned(), count));
            line.push(number("bytes").map_or("-".to_owned(), show_size));
            line.push(row.get("error").and_then(error_text).unwrap_or_default());
            line
        })
        .collect();
    out.table(&["dataset", "epoch", "task", "state", "attempt", "worker", "failures", "rows", "size", "error"], &rows)
}

/// An error as text, or as the object that `forebay_core::Error` is in JSON.
fn error_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("message")?.as_str()).map(|text| text.lines().next().unwrap_or_default().to_owned())
}

pub(super) async fn workers(connection: &Connection, args: WorkersArgs, out: &Output) -> Outcome {
    if let Some(WorkersCommand::Drain { id }) = args.command {
        return drain(connection, &id, out).await;
    }
    let workers = listed(connection, "forebay.workers", json!({})).await?;
    if out.json {
        return out.json(&workers);
    }
    const KEYS: [&str; 7] = ["worker", "address", "slots", "tasks", "streams", "attached", "draining"];
    let rows: Vec<Vec<String>> = workers.iter().map(|row| cells(row, &KEYS)).collect();
    out.table(&KEYS, &rows)
}

/// Asks for the drain, then waits until the worker is gone: its tasks are done, its streams have ended with `drain`.
async fn drain(connection: &Connection, id: &str, out: &Output) -> Outcome {
    let named = |row: &Value| row.get("worker").and_then(Value::as_str) == Some(id);
    with(connection, Access::Change, async |client| {
        let list = async || -> Result<Vec<Value>, Error> {
            let answers: Vec<Value> = client.action("forebay.workers", json!({})).await?.try_collect().await?;
            Ok(answers.into_iter().flat_map(|a| if let Value::Array(rows) = a { rows } else { vec![a] }).collect())
        };
        if list().await?.iter().any(|row| named(row) && row.get("attached") == Some(&Value::Bool(true))) {
            return Err(Error::failed_precondition(format!("worker `{}` is part of a `forebay serve`", id.escape_debug()))
                .with_remedy("stop that server with Ctrl-C; it finishes what it sends")
                .into());
        }
        let _: Vec<Value> = client.action("forebay.workers", json!({ "drain": id })).await?.try_collect().await?;
        while list().await?.iter().any(named) {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
        Ok(())
    })
    .await?;
    if out.json { out.json(&json!({ "worker": id, "drained": true })) } else { out.line(format!("{id}: drained")) }
}
