//! Footers that were read, bounded by bytes. Shards never change, so a footer is good as long as its file.

use parking_lot::Mutex;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use std::collections::{BTreeMap, HashMap};

const LIMIT_BYTES: usize = 64 << 20;

/// Which file: a name may be used again after a dataset was dropped, hence size and time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FooterKey {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) modified_ms: i64,
}

/// Least recently used goes first.
pub(crate) struct FooterCache {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<FooterKey, Entry>,
    order: BTreeMap<u64, FooterKey>,
    clock: u64,
    bytes: usize,
}

struct Entry {
    footer: ArrowReaderMetadata,
    bytes: usize,
    used: u64,
}

impl Default for FooterCache {
    fn default() -> Self {
        Self::with_limit(LIMIT_BYTES)
    }
}

impl FooterCache {
    pub(crate) fn with_limit(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    pub(crate) fn get(&self, key: &FooterKey) -> Option<ArrowReaderMetadata> {
        let state = &mut *self.state.lock();
        let entry = state.entries.get_mut(key)?;
        state.order.remove(&entry.used);
        state.clock += 1;
        entry.used = state.clock;
        state.order.insert(entry.used, key.clone());
        Some(entry.footer.clone())
    }

    /// Keeps a footer, unless it alone is larger than the cache.
    pub(crate) fn put(&self, key: FooterKey, footer: &ArrowReaderMetadata) {
        // Thrift and Arrow schemas are both held; twice the thrift's size covers them.
        let bytes = 2 * footer.metadata().memory_size() + key.path.len();
        if bytes > self.limit {
            return;
        }
        let state = &mut *self.state.lock();
        if let Some(old) = state.entries.remove(&key) {
            state.order.remove(&old.used);
            state.bytes -= old.bytes;
        }
        while state.bytes + bytes > self.limit {
            let Some((_, oldest)) = state.order.pop_first() else { break };
            if let Some(old) = state.entries.remove(&oldest) {
                state.bytes -= old.bytes;
            }
        }
        state.clock += 1;
        state.bytes += bytes;
        state.order.insert(state.clock, key.clone());
        state.entries.insert(key, Entry { footer: footer.clone(), bytes, used: state.clock });
    }

    #[cfg(test)]
    pub(crate) fn usage(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.entries.len(), state.bytes)
    }
}
