//! Among whom queries are divided: the workers that are registered, as a leader and as a worker know them.

use std::fmt;
use std::sync::Arc;

use forebay_core::{Error, Result};
use forebay_flight::peer;
use forebay_flight::ticket::TicketKey;
use forebay_sql::distributed::{PeerChannel, Peers};
use url::Url;

use super::link::WorkerLink;
use super::registry::Registry;

enum Known {
    /// A leader, which takes no part itself.
    Registered(Arc<Registry>),
    /// A worker and where it is reached.
    Told(Arc<WorkerLink>, Url),
}

/// The workers of one root.
pub(super) struct Workers {
    known: Known,
    key: TicketKey,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("workers", &self.workers()).finish_non_exhaustive()
    }
}

/// `host:port` as a URL; none for what can't be one.
fn url(address: &str) -> Option<Url> {
    Url::parse(&format!("http://{address}")).ok()
}

impl Workers {
    pub(super) fn of_leader(registry: Arc<Registry>, key: TicketKey) -> Arc<Self> {
        Arc::new(Self { known: Known::Registered(registry), key })
    }

    /// # Errors
    /// `BadInput` for an address that is none.
    pub(super) fn of_worker(link: Arc<WorkerLink>, address: &str, key: TicketKey) -> Result<Arc<Self>> {
        let me = url(address).ok_or_else(|| Error::bad_input(format!("`{address}` is not an address")))?;
        Ok(Arc::new(Self { known: Known::Told(link, me), key }))
    }
}

impl Peers for Workers {
    fn workers(&self) -> Vec<Url> {
        let addresses = match &self.known {
            Known::Registered(registry) => registry.addresses(),
            Known::Told(link, _) => link.workers(),
        };
        addresses.iter().filter_map(|address| url(address)).collect()
    }

    fn me(&self) -> Option<Url> {
        match &self.known {
            Known::Registered(_) => None,
            Known::Told(_, me) => Some(me.clone()),
        }
    }

    fn connect(&self, worker: &Url) -> Result<PeerChannel> {
        peer::connect(worker.as_str().trim_end_matches('/'), self.key.clone())
    }
}
