//! Queries that are being read from this node, so that others can cancel them.
//!
//! Nothing here is needed to run a query: a node that doesn't know of one just can't cancel it.

use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Cancelled queries that are remembered, so that their tickets are refused.
const REMEMBERED: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Running {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the query's id: what stops its streams, and how many there are.
    open: HashMap<String, (CancellationToken, usize)>,
    cancelled: VecDeque<String>,
}

fn cancelled() -> Error {
    Error::new(Kind::Cancelled, "the query was cancelled")
}

impl Running {
    /// Counts one stream of the query until the entry is dropped.
    ///
    /// # Errors
    /// `Cancelled` for a query that was cancelled before.
    pub(crate) fn begin(self: &Arc<Self>, id: &str) -> Result<Entry> {
        let mut inner = self.inner.lock();
        if inner.cancelled.iter().any(|known| known == id) {
            return Err(cancelled());
        }
        let (token, streams) = inner.open.entry(id.to_owned()).or_default();
        *streams += 1;
        Ok(Entry { token: token.clone(), id: id.to_owned(), of: Arc::clone(self) })
    }

    /// Stops the query's streams, and refuses later ones. True where one was open.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        let mut inner = self.inner.lock();
        if !inner.cancelled.iter().any(|known| known == id) {
            if inner.cancelled.len() >= REMEMBERED {
                inner.cancelled.pop_front();
            }
            inner.cancelled.push_back(id.to_owned());
        }
        match inner.open.get(id) {
            Some((token, _)) => {
                token.cancel();
                true
            }
            None => false,
        }
    }

    /// Whether one of the query's streams is open here.
    pub(crate) fn is_open(&self, id: &str) -> bool {
        self.inner.lock().open.contains_key(id)
    }
}

/// One stream of a query.
#[derive(Debug)]
pub(crate) struct Entry {
    token: CancellationToken,
    id: String,
    of: Arc<Running>,
}

impl Entry {
    /// The stream's work, or the end of it when the query is cancelled.
    pub(crate) async fn run(self, work: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::select! {
            () = self.token.cancelled() => Err(cancelled()),
            done = work => done,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut inner = self.of.inner.lock();
        if let Some((_, streams)) = inner.open.get_mut(&self.id) {
            *streams -= 1;
            if *streams == 0 {
                inner.open.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_cancelled_query_ends_and_stays_ended() {
        let running = Arc::new(Running::default());
        let entry = running.begin("a").unwrap();
        let other = running.begin("b").unwrap();
        let work = tokio::spawn(entry.run(std::future::pending()));
        assert!(running.cancel("a") && !running.cancel("c"));
        assert_eq!(work.await.unwrap().unwrap_err().kind, Kind::Cancelled);
        assert!(!running.is_open("a") && running.is_open("b"));
        assert_eq!(running.begin("a").unwrap_err().kind, Kind::Cancelled);
        assert_eq!(running.begin("c").unwrap_err().kind, Kind::Cancelled);
        other.run(async { Ok(()) }).await.unwrap();
        assert!(!running.is_open("b"));
        for n in 0..2 * REMEMBERED {
            running.cancel(&n.to_string());
        }
        assert!(running.inner.lock().cancelled.len() <= REMEMBERED);
    }
}
