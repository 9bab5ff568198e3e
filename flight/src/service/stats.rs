//! What the service counts; the binary's metrics read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the service was made.
#[derive(Debug, Default)]
pub struct Stats {
    /// Calls of any kind, refused ones included.
    pub calls: AtomicU64,
    /// Calls without the token.
    pub refused: AtomicU64,
    /// `DoGet` and `DoExchange` streams open now.
    pub streams: AtomicU64,
    /// Messages handed to the transport on those streams.
    pub messages: AtomicU64,
    /// Bytes of those messages.
    pub bytes: AtomicU64,
}

/// Counts one open stream until it is dropped.
pub(crate) struct OpenStream(Arc<Stats>);

impl OpenStream {
    pub(crate) fn new(stats: &Arc<Stats>) -> Self {
        stats.streams.fetch_add(1, Relaxed);
        Self(Arc::clone(stats))
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.0.messages.fetch_add(1, Relaxed);
        self.0.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}
