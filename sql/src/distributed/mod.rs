//! Queries on several workers: a plan is cut into stages whose tasks run on the workers of a cluster, by datafusion-distributed.
//!
//! Owns: which queries are divided, which worker reads which shards, what a worker accepts, and what happens when one is lost. Must not know: Flight,
//! how workers are found, how they are told apart from strangers ([`Peers`] does). The only module that knows datafusion-distributed and gRPC.
//!
//! - `plan` decides whether a query is worth dividing, and plans it.
//! - `place` gives each shard to a worker, the same one in every query, and tasks to the workers that have their shards.
//! - `codec` writes a scan as the name of a dataset, its pinned version and row groups; a worker opens them from its own root, and nothing else: there is
//!   no URL in it, and a worker's session has no object stores.
//! - `service` is a worker's end. It runs on the threads of queries, within their memory pool.
//! - `attempts` runs the query again on the workers that are left, and at last here, as long as nobody has seen a row of it.

mod attempts;
mod codec;
mod place;
mod plan;
mod service;

use std::fmt;

/// A connection to another process.
pub use datafusion_distributed::grpc::BoxCloneSyncChannel as PeerChannel;
use forebay_core::Result;
use url::Url;

pub(crate) use attempts::{Attempts, Verdict};
pub(crate) use plan::divided;
pub use service::{PlanBody, PlanService};

/// Who else can run parts of a query.
pub trait Peers: fmt::Debug + Send + Sync + 'static {
    /// Addresses (`http://host:port`) of the workers that may be there now, this process among them where it is one. Answers at once.
    fn workers(&self) -> Vec<Url>;

    /// This process among them.
    fn me(&self) -> Option<Url>;

    /// A connection to one of them, with the proof that this process belongs to the cluster; made when it is first used.
    fn connect(&self, worker: &Url) -> Result<PeerChannel>;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
