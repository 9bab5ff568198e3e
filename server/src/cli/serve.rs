//! `forebay serve`: an engine that others speak to, until Ctrl-C.

use clap::Args;
use forebay_core::{Error, Kind};
use serde_json::{Value, json};
use std::net::SocketAddr;

use super::args::Connection;
use super::connect::Interrupts;
use super::output::{Outcome, Output};
use super::settings::query_limits;
use crate::config::Config;
use crate::engine::{Engine, EngineConfig};

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7070);
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7071);

const EXAMPLES: &str = "\
Examples:
  forebay serve --root ./data
  forebay serve --root s3://bucket/forebay --listen 0.0.0.0:7070 --token \"$SECRET\"
  forebay serve --root ./data --listen 127.0.0.1:0 --json     a free port, said on stdout as JSON

What clients' pipelines may read and run is set by sources.allow and python.allow: see `forebay config --help`.
Ctrl-C ends it: streams are closed, what was granted is accounted for, and unfinished runs go on at the next start.";

/// Serve a root: dispatcher and worker in one process
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ServeArgs {
    /// Where to speak Arrow Flight [default: 127.0.0.1:7070] [env: FOREBAY_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where the console, /metrics and /healthz are [default: 127.0.0.1:7071] [env: FOREBAY_HTTP]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Listen beyond this host without a token
    #[arg(long)]
    insecure: bool,
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
    /// Bytes that queries may hold [default: 1GiB] [env: FOREBAY_MEMORY_LIMIT]
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<String>,
    /// For a program that starts it as its own engine: a free port, no HTTP, everything allowed, and the end when stdin closes
    #[arg(long, hide = true)]
    embedded: bool,
}

impl ServeArgs {
    fn flags(&self) -> Vec<(&'static str, Value)> {
        let text = |name, value: &Option<String>| Some((name, Value::from(value.clone()?)));
        let flags = [
            text("listen", &self.listen),
            text("http", &self.http),
            text("cache_limit", &self.cache_limit),
            text("memory_limit", &self.memory_limit),
            text("cache_dir", &self.cache_dir),
            text("index_cache_limit", &self.index_cache_limit),
            self.slots.map(|n| ("slots", Value::from(n))),
            self.insecure.then_some(("insecure", Value::Bool(true))),
        ];
        flags.into_iter().flatten().collect()
    }
}

pub(super) async fn run(connection: &Connection, args: ServeArgs, out: &Output) -> Outcome {
    if connection.server.is_some() {
        return Err(Error::bad_input("`serve` takes no --server").with_remedy("give --root").into());
    }
    let settings = connection.settings(args.flags())?;
    let config = if args.embedded { embedded_config(&settings)? } else { engine_config(&settings)? };
    let root = config.root.clone();
    let mut interrupts = Interrupts::listen();
    let mut running = tokio::select! {
        running = Engine::start(config) => running?,
        () = interrupts.next() => return Err(Error::new(Kind::Cancelled, "interrupted while starting").into()),
    };
    let told = if out.json {
        out.json(&json!({ "address": running.address, "http": running.http, "root": root }))
    } else {
        let console = running.http.as_ref().map_or(String::new(), |http| format!(", console at {http}"));
        out.line(format!("serving {root} at {}{console}; Ctrl-C ends it", running.address))
    };
    // A server whose stdout is closed serves on.
    if let Err(super::output::Failure::Error(e)) = told {
        tracing::warn!(error = %e, "could not say where it listens");
    }
    let failed = tokio::select! {
        failed = running.failed() => Some(failed),
        () = interrupts.next() => None,
        () = parent_gone(), if args.embedded => None,
    };
    let stopped = tokio::select! {
        stopped = running.shutdown() => stopped,
        () = interrupts.next() => Err(Error::new(Kind::Cancelled, "interrupted twice: left without closing the streams")),
    };
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(stopped?),
    }
}

/// Waits until whoever started this process closes its stdin, or dies.
async fn parent_gone() {
    let (gone, wait) = tokio::sync::oneshot::channel();
    // Not tokio's stdin: its blocked read would hold up the runtime's end.
    let watching = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = gone.send(());
    });
    match watching {
        Ok(_) => {
            let _ = wait.await;
        }
        Err(e) => {
            tracing::warn!(error = %e, "can't watch stdin");
            std::future::pending::<()>().await;
        }
    }
}

/// Settings of another program's own engine: what its user may do anyway is allowed.
fn embedded_config(config: &Config) -> forebay_core::Result<EngineConfig> {
    let mut engine = engine_config(config)?;
    engine.listen = config.address("listen").unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    engine.http = config.address("http");
    // As every embedded command, it leaves them to `--resume`.
    engine.continue_runs = false;
    engine.sources_allow = None;
    engine.python_allow = true;
    Ok(engine)
}

/// Settings of a server; it reads and runs for its clients only what it was told to.
pub(super) fn engine_config(config: &Config) -> forebay_core::Result<EngineConfig> {
    let root =
        config.text("root").ok_or_else(|| Error::bad_input("no root given").with_remedy("give --root FOLDER or URL (FOREBAY_ROOT)"))?;
    let mut engine = EngineConfig::embedded(root, false);
    engine.listen = config.address("listen").unwrap_or(LISTEN);
    engine.http = Some(config.address("http").unwrap_or(HTTP));
    engine.token = config.text("token").map(str::to_owned);
    engine.insecure = config.flag("insecure");
    engine.slots = config.number("slots").and_then(|n| usize::try_from(n).ok()).unwrap_or(engine.slots);
    engine.cache_bytes = config.number("cache_limit").unwrap_or(engine.cache_bytes);
    engine.query = query_limits(config);
    engine.cache_dir = config.text("cache_dir").map(str::to_owned);
    engine.index_cache_bytes = config.number("index_cache_limit").unwrap_or(engine.index_cache_bytes);
    engine.continue_runs = true;
    engine.sources_allow = Some(config.texts("sources.allow").unwrap_or_default());
    engine.python_allow = config.flag("python.allow");
    engine.python = config.text("python.interpreter").map(str::to_owned);
    Ok(engine)
}
