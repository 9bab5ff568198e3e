//! An S3 endpoint over HTTP: s3s-fs on a folder, with the promises that it lacks and the faults that real stores show.
//!
//! Owns: conditional writes that are atomic per key, the faults, the connections. Must not know: Forebay.
//!
//! s3s-fs looks whether a key exists and then writes it, so that two racing creates both win; it renames an object into place before it stores its
//! ETag; it answers HEAD of a folder as if it were an object; a listing fails where a folder is deleted under it; a bucket comes with its first object.
//! `store` takes care of all five.

mod connection;
mod faults;
mod store;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

pub use faults::{Fault, Faults, Rule};
use store::Store;

/// What a store does about `If-None-Match` and `If-Match` on writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conditions {
    /// One of several racing writers wins.
    #[default]
    Atomic,
    /// They are looked at and then the object is written: what s3s-fs does by itself.
    Racing,
    /// They are accepted and ignored.
    Ignored,
}

/// Settings of an endpoint: plain data.
#[derive(Debug, Clone)]
pub struct Options {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Holds a folder per bucket, and s3s-fs's own files beside them. It must exist.
    pub folder: PathBuf,
    /// Access key and secret key; without them every request has to be unsigned.
    pub keys: Option<(String, String)>,
    /// With it, `BUCKET.DOMAIN` as host addresses a bucket; paths do in any case.
    pub domain: Option<String>,
    pub conditions: Conditions,
    pub faults: Faults,
}

impl Options {
    /// A reliable endpoint on a free port of this host.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { listen, folder: folder.into(), keys: None, domain: None, conditions: Conditions::Atomic, faults: Faults::none() }
    }

    #[must_use]
    pub fn keys(mut self, access: &str, secret: &str) -> Self {
        self.keys = Some((access.to_owned(), secret.to_owned()));
        self
    }
}

/// A running endpoint, on threads of its own; it ends when dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    folder: PathBuf,
    store: Arc<Store>,
    runtime: Option<Runtime>,
}

impl Endpoint {
    /// Starts to listen.
    ///
    /// # Errors
    /// A port in use, a folder that is none, a domain that is none.
    pub fn start(options: Options) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("s3").enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(options.listen)).context("the endpoint's port")?;
        let address = listener.local_addr()?;
        let folder = options.folder.clone();
        let store = Arc::new(Store::new(options)?);
        runtime.spawn(connection::accept(listener, store.clone()));
        Ok(Self { address, folder, store, runtime: Some(runtime) })
    }

    /// Makes a bucket, unless it is there.
    ///
    /// # Errors
    /// A folder that can't be made.
    pub fn bucket(&self, name: &str) -> Result<()> {
        std::fs::create_dir_all(self.folder.join(name)).with_context(|| format!("the bucket {name}"))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://HOST:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next requests that fit the rule get its fault, before any drawn one.
    pub fn inject(&self, rule: Rule) {
        self.store.faults().inject(rule);
    }

    /// No more faults from here on.
    pub fn relent(&self) {
        self.store.faults().relent();
    }

    /// How often each kind of fault was shown, by its name.
    pub fn shown(&self) -> BTreeMap<&'static str, u64> {
        self.store.faults().shown()
    }

    /// Requests that were answered or broken so far.
    pub fn requests(&self) -> u64 {
        self.store.faults().requests()
    }

    /// Waits until the process is told to end.
    ///
    /// # Errors
    /// Signals that can't be listened for.
    pub fn wait(&self) -> Result<()> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        runtime.block_on(async {
            let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            tokio::select! {
                _ = term.recv() => Ok(()),
                ended = tokio::signal::ctrl_c() => Ok(ended?),
            }
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not `shutdown_timeout`: it may be dropped where blocking is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// Between being asked and answering, for [`Fault::Slow`] where nothing else is said.
pub(crate) const SLOW: Duration = Duration::from_millis(400);
