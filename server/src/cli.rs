//! The command line.
//!
//! Owns: arguments, what is printed, exit statuses, Ctrl-C. Must not know: how anything is done; every command is a client of a server
//! or of an engine in this process.

mod args;
mod connect;
mod datasets;
mod demo;
mod format;
mod jobs;
mod materialize;
mod modules;
mod output;
mod plan;
mod progress;
mod read;
mod roles;
mod search;
mod serve;
mod settings;
mod sql;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use forebay_core::{Error, Kind};

use args::Connection;
use output::{Failure, Output};

/// Exit statuses.
const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
const UNREACHABLE: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  forebay demo                                             the whole story, embedded, with data that is built in
  forebay materialize digits.toml --root ./data            run a pipeline; its epochs lie in ./data
  forebay read digits --root ./data --epochs 1 --digest    draw one pass as a trainer would
  forebay sql --root ./data \"SELECT label, count(*) FROM digits GROUP BY label\"
  forebay serve --root ./data                              let other processes and hosts do the same
  forebay dispatcher --root s3://bucket/forebay            the same over several hosts: one leads,
  forebay worker --dispatcher grpc://head:7070             the others work
  forebay datasets --server grpc://localhost:7070

Every command that needs data takes --root (embedded; goes through the root's owner if there is one) or --server.
Exit status: 0 done, 1 failed, 2 bad usage or bad input, 3 could not reach the server or the root's owner.";

/// Feeds accelerators: pipelines become epochs in object storage, trainers draw batches of them over Arrow Flight, SQL answers what they saw.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = EXAMPLES, max_term_width = 120)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the whole story on built-in data, with no service running
    Demo(demo::DemoArgs),
    /// Serve a root: dispatcher and worker in one process
    Serve(serve::ServeArgs),
    /// Lead a root: hand out tasks and windows to workers of other processes
    Dispatcher(roles::DispatcherArgs),
    /// Work for a dispatcher: run tasks, serve rows
    Worker(roles::WorkerArgs),
    /// Run a pipeline: its epochs become shards of a dataset
    Materialize(materialize::MaterializeArgs),
    /// List datasets, show or drop one, or sweep its unnamed files
    Datasets(datasets::DatasetsArgs),
    /// List a dataset's epochs
    Epochs(datasets::EpochsArgs),
    /// List jobs, show or stop one
    Jobs(jobs::JobsArgs),
    /// List tasks of materialization
    Tasks(jobs::TasksArgs),
    /// List workers, or drain one
    Workers(jobs::WorkersArgs),
    /// Draw a job's batches over Arrow Flight, as a trainer does
    Read(read::ReadArgs),
    /// Show a plan, or the rows of one of its batches
    Plan(plan::PlanArgs),
    /// Ask SQL of datasets and system tables
    Sql(sql::SqlArgs),
    /// Search a dataset's text columns, best rows first
    Search(search::SearchArgs),
    /// Build the text index of a column for the epochs that exist
    Index(search::IndexArgs),
    /// Name a question: a SELECT that SQL and jobs can read
    View(view::ViewArgs),
    /// Show the settings and where each came from
    Config(settings::ConfigArgs),
    /// Print a script that completes commands in a shell
    Completions(settings::CompletionsArgs),
}

/// Parses the arguments, runs the command, and gives the exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are "errors" with status 0. A closed pipe is none.
            let status = if e.use_stderr() { BAD_INPUT } else { 0 };
            let _ = e.print();
            return ExitCode::from(status);
        }
    };
    init_tracing(matches!(cli.command, Command::Serve(_) | Command::Dispatcher(_) | Command::Worker(_)));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return report(&Failure::from(Error::internal(format!("starting the runtime: {e}")))),
    };
    let result = runtime.block_on(run(cli));
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut Cli::command()))
}

/// Logs go to stderr; commands show errors and what Python steps print, unless `FOREBAY_LOG` says otherwise.
fn init_tracing(serving: bool) {
    // The journal's store logs its housekeeping as errors and information of its own; what fails for a user comes back as an error.
    let default = if serving { "info,slatedb=off" } else { "error,slatedb=off,python=info" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    // A second command in one process (the demo) keeps the first's subscriber.
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(|| progress::AboveBars).try_init();
}

/// Says what is wrong on stderr and gives the exit status.
fn report(failure: &Failure) -> ExitCode {
    match failure {
        // Whoever read the output has enough of it, as with `| head`.
        Failure::Pipe => ExitCode::SUCCESS,
        Failure::Error(error) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(status(error.kind))
        }
    }
}

fn status(kind: Kind) -> u8 {
    match kind {
        Kind::BadInput | Kind::NotFound | Kind::AlreadyExists | Kind::FailedPrecondition | Kind::Unsupported => BAD_INPUT,
        Kind::Unavailable => UNREACHABLE,
        Kind::Unauthenticated | Kind::PermissionDenied | Kind::ResourceExhausted | Kind::Cancelled | Kind::Corrupt | Kind::Internal => {
            FAILED
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { connection, command } = cli;
    let out = Output::new(connection.json);
    match command {
        Command::Demo(args) => Box::pin(demo::run(&connection, args, &out)).await,
        Command::Serve(args) => Box::pin(serve::run(&connection, args, &out)).await,
        Command::Dispatcher(args) => Box::pin(roles::dispatcher(&connection, args, &out)).await,
        Command::Worker(args) => Box::pin(roles::worker(&connection, args, &out)).await,
        Command::Materialize(args) => Box::pin(materialize::run(&connection, args, &out)).await,
        Command::Datasets(args) => datasets::run(&connection, args, &out).await,
        Command::Epochs(args) => datasets::epochs(&connection, args, &out).await,
        Command::Jobs(args) => jobs::run(&connection, args, &out).await,
        Command::Tasks(args) => jobs::tasks(&connection, args, &out).await,
        Command::Workers(args) => jobs::workers(&connection, args, &out).await,
        Command::Read(args) => read::run(&connection, args, &out).await,
        Command::Plan(args) => plan::run(&connection, args, &out).await,
        Command::Sql(args) => sql::run(&connection, args, &out).await,
        Command::Config(args) => settings::config(&connection, &args, &out),
        Command::Completions(args) => settings::completions(&args, &out),
        Command::Search(args) => search::search(&connection, args, &out).await,
        Command::Index(args) => search::index(&connection, args, &out).await,
        Command::View(args) => view::run(&connection, args, &out).await,
    }
}

/// The command line's definition, for completions.
fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests;
