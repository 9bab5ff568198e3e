//! `forebay materialize`: sends the pipeline, its overrides and its Python modules, then follows the run.

use clap::Args;
use forebay_core::pipeline::{self, show_size};
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::{MaterializeProgress, MaterializeRequest};
use forebay_flight::client::Client;
use futures::future::FusedFuture as _;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::args::{Connection, epoch_range};
use super::connect::{Access, Session, Target, interrupted, target};
use super::modules;
use super::output::{Failure, Outcome, Output, count, ranges};
use super::progress::Progress;

/// How long a run may take to stop after Ctrl-C before the command leaves without its word.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// How long nothing may happen before the command looks whether there is anybody to do the work.
const LONELY: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  forebay materialize digits.toml --root ./data                     all epochs of the pipeline
  forebay materialize digits.toml --epochs 0..1                     only the first; the others can follow
  forebay materialize digits.toml --set epochs.count=5 --set steps.augment.options.strength=0.5
  forebay materialize digits.toml --resume                          go on where an interrupted run stopped
  forebay materialize digits.toml --replace                         publish a changed pipeline as a new version
  forebay materialize digits.toml --server grpc://host:7070 --detach

A pipeline that was run before and did not change is not run again. Each epoch appears as a whole or not at all; Ctrl-C keeps what
is done for --resume.";

/// Run a pipeline: its epochs become shards of a dataset
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct MaterializeArgs {
    /// The pipeline file
    #[arg(value_name = "PIPELINE.toml")]
    pipeline: PathBuf,
    /// Epochs to make, without the end; by default all of the pipeline
    #[arg(long, value_name = "A..B", value_parser = epoch_range)]
    epochs: Option<(u32, u32)>,
    /// Change a key of the file; steps go by their name
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    set: Vec<String>,
    /// Follow the run until it ends (the default)
    #[arg(long, conflicts_with = "detach")]
    wait: bool,
    /// Return as soon as the server has accepted the run
    #[arg(long)]
    detach: bool,
    /// Take up what an interrupted run has done
    #[arg(long)]
    resume: bool,
    /// Publish a changed pipeline as a new version without the old epochs
    #[arg(long)]
    replace: bool,
}

pub(super) async fn run(connection: &Connection, args: MaterializeArgs, out: &Output) -> Outcome {
    let config = connection.settings(Vec::new())?;
    if args.detach && matches!(target(&config)?, Target::Root(_)) {
        return Err(Error::bad_input("--detach with --root: the work would end with this command")
            .with_remedy("leave --detach out, or use --server")
            .into());
    }
    let request = request(&args)?;
    let session = tokio::select! {
        session = Session::open(&config, Access::Create) => session?,
        () = interrupted() => return Err(Error::new(Kind::Cancelled, "interrupted before anything began").into()),
    };
    let result = follow(&session.client, &request, out).await;
    if result.is_ok() {
        session.outlast_others().await;
    }
    let finished = session.finish().await;
    result?;
    Ok(finished?)
}

/// Reads the file and what goes with it. The file is checked here too, so that a typing mistake needs no server.
fn request(args: &MaterializeArgs) -> Result<MaterializeRequest> {
    let file = args.pipeline.display().to_string();
    let text = std::fs::read_to_string(&args.pipeline).map_err(|e| read_error(&file, &e))?;
    let parsed = pipeline::parse(&text, &file, &args.set)?;
    let folder = args.pipeline.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.canonicalize().map_err(|e| read_error(&folder.display().to_string(), &e))?;
    let base = folder
        .to_str()
        .ok_or_else(|| Error::bad_input(format!("{file}: its folder's name is not UTF-8")).with_remedy("move the pipeline"))?;
    Ok(MaterializeRequest {
        modules: modules::gather(&folder, &parsed.spec, &file)?,
        pipeline: text,
        base: base.to_owned(),
        file,
        set: args.set.clone(),
        epochs: args.epochs,
        wait: !args.detach,
        resume: args.resume,
        replace: args.replace,
    })
}

fn read_error(file: &str, error: &std::io::Error) -> Error {
    let kind = if error.kind() == std::io::ErrorKind::NotFound { Kind::NotFound } else { Kind::BadInput };
    Error::new(kind, format!("{file}: {error}")).with_remedy("name a pipeline file")
}

/// Follows the run to its end. Ctrl-C asks the server to stop it, and waits for it to say so.
async fn follow(client: &Client, request: &MaterializeRequest, out: &Output) -> Outcome {
    let started = Instant::now();
    let mut progress = Progress::new(request.wait);
    let mut last: Option<MaterializeProgress> = None;
    let mut answers = tokio::select! {
        answers = client.materialize(request) => answers?,
        () = interrupted() => return Err(Error::new(Kind::Cancelled, "interrupted before the run began").into()),
    };
    let mut lonely = std::pin::pin!(nobody_works(client).fuse());
    loop {
        let next = tokio::select! {
            next = answers.next() => next,
            nobody = &mut lonely, if !lonely.is_terminated() => {
                if nobody && last.as_ref().is_none_or(|p| p.tasks_done == 0) {
                    tracing::warn!("no worker has joined: the run begins when one does, see `forebay worker --help`");
                }
                continue;
            }
            () = interrupted() => {
                progress.stop();
                return Err(interrupt(client, answers, last.as_ref(), request).await);
            }
        };
        match next {
            Some(Ok(state)) => {
                progress.show(&state);
                let ended = state.state != "running";
                last = Some(state);
                if ended {
                    break;
                }
            }
            // The server is going, or gone. Whoever leads next goes on with the run, and the same request joins it.
            Some(Err(e)) if e.kind == Kind::Unavailable && request.wait => {
                answers = again(client, request, e).await.inspect_err(|_| progress.stop())?;
            }
            None if request.wait && last.is_some() => {
                let ended = Error::new(Kind::Unavailable, "the server ended while it ran the pipeline");
                answers = again(client, request, ended).await.inspect_err(|_| progress.stop())?;
            }
            Some(Err(e)) => {
                progress.stop();
                return Err(e.into());
            }
            None => break,
        }
    }
    progress.stop();
    let last = last.ok_or_else(|| Error::internal("the server did not say what became of the run"))?;
    tell(&last, started.elapsed(), out, request)
}

/// After a while, whether the server has no worker. A server that can't say so is not asked again.
async fn nobody_works(client: &Client) -> bool {
    tokio::time::sleep(LONELY).await;
    let Ok(answers) = client.action("forebay.workers", json!({})).await else { return false };
    let rows: Vec<_> = answers.filter_map(async |row| row.ok()).collect().await;
    rows.iter().all(|row: &serde_json::Value| row.as_array().is_some_and(Vec::is_empty))
}

async fn again(client: &Client, request: &MaterializeRequest, lost: Error) -> Outcome<BoxStream<'static, Result<MaterializeProgress>>> {
    tracing::warn!(error = %lost, "asking again");
    tokio::select! {
        // The client itself looks for another server for a while.
        answers = client.materialize(request) => {
            Ok(answers.map_err(|e| e.with_remedy(format!("go on with `{}`", resume())))?)
        }
        () = interrupted() => Err(Error::new(Kind::Cancelled, "interrupted").into()),
    }
}

async fn interrupt(
    client: &Client,
    mut answers: BoxStream<'static, Result<MaterializeProgress>>,
    last: Option<&MaterializeProgress>,
    request: &MaterializeRequest,
) -> Failure {
    let again = format!("{} is kept: go on with `{}`", kept(last), resume());
    let interrupted = |message: String| Error::new(Kind::Cancelled, message).with_remedy(again.clone()).into();
    let Some(dataset) = last.map(|p| p.dataset.clone()).or_else(|| name(request)) else { return interrupted("interrupted".to_owned()) };
    let stop = async {
        let answer: Result<Vec<_>> = match client.action("forebay.cancel", json!({ "dataset": dataset })).await {
            Ok(answers) => answers.collect::<Vec<_>>().await.into_iter().collect(),
            Err(e) => Err(e),
        };
        while answers.next().await.is_some_and(|a| a.is_ok()) {}
        answer
    };
    tokio::select! {
        stopped = stop => match stopped {
            Ok(_) => interrupted(format!("interrupted; the run of `{dataset}` is stopped")),
            Err(e) => interrupted(format!("interrupted; the run of `{dataset}` could not be stopped: {}", e.message)),
        },
        () = tokio::time::sleep(STOP_WITHIN) => interrupted(format!("interrupted; the run of `{dataset}` has not stopped yet")),
        () = super::connect::interrupted() => interrupted("interrupted twice".to_owned()),
    }
}

/// This command once more, to be typed or pasted.
fn resume() -> String {
    resume_of(std::env::args().skip(1))
}

/// All that was given, save secrets, so that the same root or server and the same settings are meant again.
fn resume_of(args: impl Iterator<Item = String>) -> String {
    let mut command = vec!["forebay".to_owned()];
    let mut args = args.filter(|arg| !matches!(arg.as_str(), "--resume" | "--detach"));
    while let Some(arg) = args.next() {
        if arg == "--token" {
            args.next();
        } else if !arg.starts_with("--token=") {
            command.push(quoted(&arg));
        }
    }
    command.push("--resume".to_owned());
    command.join(" ")
}

fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) { arg.to_owned() } else { format!("'{}'", arg.replace('\'', r"'\''")) }
}

fn name(request: &MaterializeRequest) -> Option<String> {
    pipeline::parse(&request.pipeline, &request.file, &request.set).ok().map(|p| p.spec.name.0)
}

fn kept(last: Option<&MaterializeProgress>) -> String {
    match last {
        Some(p) if p.tasks_done > 0 => format!("what is done ({} of {} tasks)", p.tasks_done, p.tasks),
        _ => "what is done".to_owned(),
    }
}

/// The result on stdout, or the run's own error.
fn tell(last: &MaterializeProgress, took: Duration, out: &Output, request: &MaterializeRequest) -> Outcome {
    if let Some(error) = &last.error {
        return Err(error.clone().into());
    }
    let failure = match last.state.as_str() {
        "failed" => Error::internal(format!("the run of `{}` failed", last.dataset)).with_remedy("see `forebay tasks --failed`"),
        "cancelled" => Error::new(Kind::Cancelled, format!("the run of `{}` was stopped", last.dataset)).with_remedy(format!(
            "{} is kept: go on with `{}`",
            kept(Some(last)),
            resume()
        )),
        "running" if request.wait => Error::new(Kind::Unavailable, format!("the server stopped while it ran `{}`", last.dataset))
            .with_remedy(format!("go on with `{}`", resume())),
        _ => return if out.json { out.json(last) } else { out.line(sentence(last, took, request)) },
    };
    Err(failure.into())
}

fn sentence(last: &MaterializeProgress, took: Duration, request: &MaterializeRequest) -> String {
    let epochs = ranges(&last.epochs);
    let noun = if last.epochs.len() == 1 { "epoch" } else { "epochs" };
    match last.state.as_str() {
        "already_materialized" => format!("{}: {noun} {epochs} already materialized, nothing read", last.dataset),
        "running" if !request.wait => format!("{}: {noun} {epochs} accepted; follow with `forebay tasks`", last.dataset),
        "done" => {
            let version = last.version.map_or(String::new(), |v| format!(", version {v}"));
            let quarantined =
                if last.quarantined > 0 { format!(", {} rows in quarantine", count(last.quarantined)) } else { String::new() };
            format!(
                "{}: {noun} {epochs} materialized{version}: {} rows, {} in {:.1} s{quarantined}",
                last.dataset,
                count(last.rows),
                show_size(last.bytes),
                took.as_secs_f64()
            )
        }
        other => format!("{}: {noun} {epochs}: {other}", last.dataset),
    }
}

#[cfg(test)]
mod tests;
