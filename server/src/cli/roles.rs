//! `forebay dispatcher` and `forebay worker`: the roles of `serve` in processes of their own.

use std::time::Duration;

use clap::Args;
use forebay_core::{Error, Kind, Result};
use serde_json::{Value, json};

use super::args::Connection;
use super::connect::Interrupts;
use super::output::{Failure, Outcome, Output};
use super::serve::engine_config;
use super::settings::query_limits;
use crate::config::Config;
use crate::engine::EngineConfig;
use crate::roles::{DispatcherRole, DispatcherSettings, WorkerRole, WorkerSettings};

const LEASE: Duration = Duration::from_secs(20);

const DISPATCHER_EXAMPLES: &str = "\
Examples:
  forebay dispatcher --root s3://bucket/forebay --listen 0.0.0.0:7070 --advertise head:7070 --token \"$SECRET\"
  forebay dispatcher --root ./data --listen 127.0.0.1:7070
  forebay dispatcher --root ./data --listen 127.0.0.1:7080 --http 127.0.0.1:7081     a second one: the standby

The first one leads. Every further one on the same root stands by: it answers UNAVAILABLE with the leader's address, and leads when the leader's
heartbeat has stood still for six seconds, or at once when the leader says good-bye. Give clients and workers all addresses, separated by commas.
It serves no rows: without a worker nothing is materialized or read. Ctrl-C hands the lead over.";

const WORKER_EXAMPLES: &str = "\
Examples:
  forebay worker --dispatcher grpc://head:7070
  forebay worker --dispatcher grpc://a:7070,grpc://b:7070 --listen 0.0.0.0:7070 --advertise worker-3:7070 --token \"$SECRET\"
  forebay workers --server grpc://a:7070,grpc://b:7070            who is there
  forebay workers drain worker-3 --server grpc://a:7070           let it finish what it holds, and end

It may start before its dispatcher, and finds a new leader by itself. It learns the root from the dispatcher and has to reach the same store, with
credentials of its own environment; --root gives it another name here. Ctrl-C gives back what it holds, within five seconds.";

/// What both roles take.
#[derive(Debug, Args)]
struct RoleArgs {
    /// Where to speak Arrow Flight and the control protocol [default: 127.0.0.1:7070, a worker's: a free port] [env: FOREBAY_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where /metrics and /healthz are [default: 127.0.0.1:7071, a worker's: none] [env: FOREBAY_HTTP]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// HOST:PORT under which others reach this process [default: the address it listens at] [env: FOREBAY_ADVERTISE]
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Listen beyond this host without a token
    #[arg(long)]
    insecure: bool,
    /// Bytes that queries may hold [default: 1GiB] [env: FOREBAY_MEMORY_LIMIT]
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<String>,
}

impl RoleArgs {
    fn flags(&self) -> Vec<(&'static str, Value)> {
        let given = [("listen", &self.listen), ("http", &self.http), ("advertise", &self.advertise), ("memory_limit", &self.memory_limit)];
        let texts = given.into_iter().filter_map(|(name, value)| Some((name, Value::from(value.clone()?))));
        texts.chain(self.insecure.then_some(("insecure", Value::Bool(true)))).collect()
    }
}

/// Lead a root: hand out tasks and windows to workers of other processes
#[derive(Debug, Args)]
#[command(after_help = DISPATCHER_EXAMPLES)]
pub(super) struct DispatcherArgs {
    #[command(flatten)]
    role: RoleArgs,
    /// How long a silent worker or consumer keeps what it holds; at least 15s [default: 20s] [env: FOREBAY_LEASE]
    #[arg(long, value_name = "TIME")]
    lease: Option<String>,
}

/// Work for a dispatcher: run tasks, serve rows
#[derive(Debug, Args)]
#[command(after_help = WORKER_EXAMPLES)]
pub(super) struct WorkerArgs {
    /// Dispatchers, separated by commas: grpc://A:7070,grpc://B:7070 [env: FOREBAY_DISPATCHER]
    #[arg(long, value_name = "URLS")]
    dispatcher: Option<String>,
    #[command(flatten)]
    role: RoleArgs,
    /// Name in `forebay workers` and system tables, one per worker [default: host and process number] [env: FOREBAY_NAME]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Tasks that run at once [default: one per core] [env: FOREBAY_SLOTS]
    #[arg(long, value_name = "N")]
    slots: Option<u64>,
    /// Bytes of cached windows [default: 1GiB] [env: FOREBAY_CACHE_LIMIT]
    #[arg(long, value_name = "SIZE")]
    cache_limit: Option<String>,
    /// Folder for cached index bundles [default: the user's cache folder, for a root that is no folder] [env: FOREBAY_CACHE_DIR]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<String>,
    /// Bytes of cached index bundles [default: 4GiB] [env: FOREBAY_INDEX_CACHE_LIMIT]
    #[arg(long, value_name = "SIZE")]
    index_cache_limit: Option<String>,
}

/// `20s`, `1m`, `1500ms`.
fn time(text: &str) -> Result<Duration> {
    let refuse = || Error::bad_input(format!("--lease: `{}` is not a time", text.escape_debug())).with_remedy("write it as 20s or 1m");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
    let number: u64 = text[..digits].parse().map_err(|_| refuse())?;
    match text[digits..].trim() {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(refuse()),
    }
}

/// A role whose stdout is closed goes on.
fn told(said: Outcome) {
    if let Err(Failure::Error(e)) = said {
        tracing::warn!(error = %e, "could not say where it listens");
    }
}

pub(super) async fn dispatcher(connection: &Connection, args: DispatcherArgs, out: &Output) -> Outcome {
    if connection.server.is_some() {
        return Err(Error::bad_input("`dispatcher` takes no --server").with_remedy("give --root").into());
    }
    let mut flags = args.role.flags();
    flags.extend(args.lease.map(|lease| ("lease", Value::from(lease))));
    let config = connection.settings(flags)?;
    let engine = engine_config(&config)?;
    let term = config.text("lease").map(time).transpose()?.unwrap_or(LEASE);
    let root = engine.root.clone();
    let mut interrupts = Interrupts::listen();
    let settings = DispatcherSettings { engine, advertise: config.text("advertise").map(str::to_owned), term };
    let mut role = tokio::select! {
        role = DispatcherRole::start(settings) => role?,
        () = interrupts.next() => return Err(Error::new(Kind::Cancelled, "interrupted while starting").into()),
    };
    told(if out.json {
        out.json(&json!({ "address": role.address, "http": role.http, "root": root }))
    } else {
        out.line(format!("dispatching {root} at {}; workers join with --dispatcher {}; Ctrl-C ends it", role.address, role.address))
    });
    let failed = tokio::select! {
        failed = role.failed() => Some(failed),
        () = interrupts.next() => None,
    };
    let stopped = tokio::select! {
        stopped = role.shutdown() => stopped,
        () = interrupts.next() => Ok(()),
    };
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(stopped?),
    }
}

pub(super) async fn worker(connection: &Connection, args: WorkerArgs, out: &Output) -> Outcome {
    let mut flags = args.role.flags();
    let texts = [
        ("dispatcher", args.dispatcher),
        ("name", args.name),
        ("cache_limit", args.cache_limit),
        ("cache_dir", args.cache_dir),
        ("index_cache_limit", args.index_cache_limit),
    ];
    flags.extend(texts.into_iter().filter_map(|(name, value)| Some((name, Value::from(value?)))));
    flags.extend(args.slots.map(|n| ("slots", Value::from(n))));
    let config = connection.settings(flags)?;
    let settings = worker_settings(connection, &config)?;
    let dispatchers = settings.dispatchers.join(",");
    let mut interrupts = Interrupts::listen();
    let mut role = tokio::select! {
        role = WorkerRole::start(settings) => role?,
        () = interrupts.next() => return Err(Error::new(Kind::Cancelled, "interrupted while starting").into()),
    };
    told(if out.json {
        out.json(&json!({ "address": role.address, "http": role.http, "worker": role.name }))
    } else {
        out.line(format!("worker {} at {}, for the dispatcher at {dispatchers}; Ctrl-C ends it", role.name, role.address))
    });
    let ended = tokio::select! {
        ended = role.ended() => ended,
        () = interrupts.next() => Ok(()),
    };
    tokio::select! {
        () = role.shutdown() => {}
        () = interrupts.next() => {}
    }
    Ok(ended?)
}

fn worker_settings(connection: &Connection, config: &Config) -> Result<WorkerSettings> {
    let dispatchers = config.texts("dispatcher").filter(|d| !d.is_empty()).ok_or_else(|| {
        Error::bad_input("no dispatcher given")
            .with_remedy("give --dispatcher grpc://HOST:7070, several separated by commas (FOREBAY_DISPATCHER)")
    })?;
    let mut engine = EngineConfig::embedded(String::new(), false);
    engine.listen = config.address("listen").unwrap_or(engine.listen);
    engine.http = config.address("http");
    engine.token = config.text("token").map(str::to_owned);
    engine.insecure = config.flag("insecure");
    engine.slots = config.number("slots").and_then(|n| usize::try_from(n).ok()).unwrap_or(engine.slots);
    engine.cache_bytes = config.number("cache_limit").unwrap_or(engine.cache_bytes);
    engine.query = query_limits(config);
    engine.cache_dir = config.text("cache_dir").map(str::to_owned);
    engine.index_cache_bytes = config.number("index_cache_limit").unwrap_or(engine.index_cache_bytes);
    engine.python = config.text("python.interpreter").map(str::to_owned);
    Ok(WorkerSettings {
        engine,
        dispatchers,
        advertise: config.text("advertise").map(str::to_owned),
        name: config.text("name").map(str::to_owned),
        // Only the flag: FOREBAY_ROOT is there for clients, and may be another root.
        root: connection.root.clone(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_have_a_unit() {
        assert_eq!(super::time("20s").ok(), Some(std::time::Duration::from_secs(20)));
        assert_eq!(super::time("1m").ok(), Some(std::time::Duration::from_secs(60)));
        assert_eq!(super::time("15000ms").ok(), Some(std::time::Duration::from_secs(15)));
        for wrong in ["", "20", "s", "20h", "-1s"] {
            assert!(super::time(wrong).is_err(), "{wrong}");
        }
    }
}
