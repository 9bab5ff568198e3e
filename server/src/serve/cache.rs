//! What is in memory of stored rows: decoded items under a byte budget, each loaded once however many ask for it.
//!
//! Owns: which items stay, which go, and when a reader has to wait for room. Must not know: what the items are.
//!
//! - A *pinned* item is in use and cannot go. All items that a reader needs are pinned at once, so that two readers never hold half each and wait
//!   for the other half; a reader that alone needs more than the limit gets it while nobody else has anything.
//! - An item that nobody pins stays while the budget allows, least recently used first out. One that is larger than the budget is used and dropped.

use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OnceCell};

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;

/// Bytes that the cache may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of items that nobody uses.
    pub(crate) idle: u64,
    /// Of items in use: beyond it readers wait.
    pub(crate) pinned: u64,
    /// How long a reader waits for room before it gives up.
    pub(crate) patience: Duration,
}

/// Whether a reader waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Wait,
    /// Reading ahead: only into room that is there.
    IfRoom,
}

struct Entry<V> {
    cell: Arc<OnceCell<Arc<V>>>,
    /// An estimate until the item is loaded.
    bytes: u64,
    pins: u32,
    /// Place in `idle`; meaningless while pinned.
    tick: u64,
}

struct Inner<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// Unpinned entries, oldest first.
    idle: BTreeMap<u64, K>,
    idle_bytes: u64,
    pinned_bytes: u64,
    tick: u64,
    /// Hashes of keys that went for want of room, oldest first: loading one of them again is worth a number in the metrics.
    evicted: (HashSet<u64>, VecDeque<u64>),
}

/// Evicted keys that are remembered.
const REMEMBERED: usize = 1 << 16;

/// Decoded rows in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub items: usize,
    /// Of items that nobody uses.
    pub idle_bytes: u64,
    /// Of items in use, and of what their readers need beside them.
    pub pinned_bytes: u64,
}

/// See the module's head.
pub(crate) struct Cache<K, V> {
    limits: Limits,
    inner: Mutex<Inner<K, V>>,
    freed: Notify,
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<K: Eq + Hash + Clone, V> Cache<K, V> {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let inner =
            Inner { entries: HashMap::new(), idle: BTreeMap::new(), idle_bytes: 0, pinned_bytes: 0, tick: 0, evicted: Default::default() };
        Arc::new(Self { limits, inner: Mutex::new(inner), freed: Notify::new() })
    }

    pub(crate) fn usage(&self) -> Usage {
        let inner = self.inner.lock();
        Usage { items: inner.entries.len(), idle_bytes: inner.idle_bytes, pinned_bytes: inner.pinned_bytes }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Pins all of `wanted`, given as keys with estimated bytes, and `extra` bytes that the reader needs beside them. `None` when there is no room and
    /// the reader does not wait; `ResourceExhausted` when it waited in vain.
    pub(crate) async fn pin(self: &Arc<Self>, wanted: &[(K, u64)], extra: u64, admission: Admission) -> Result<Option<Pins<K, V>>> {
        let waiting = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                // Registered before looking, so that what is freed in between is not missed.
                freed.as_mut().enable();
                if let Some(pins) = self.try_pin(wanted, extra) {
                    return Some(pins);
                }
                if admission == Admission::IfRoom {
                    return None;
                }
                freed.await;
            }
        };
        match tokio::time::timeout(self.limits.patience, waiting).await {
            Ok(pins) => Ok(pins),
            Err(_) => Err(self.exhausted(wanted.iter().map(|(_, bytes)| bytes).sum::<u64>() + extra)),
        }
    }

    fn exhausted(&self, bytes: u64) -> Error {
        let pinned = self.usage().pinned_bytes;
        Error::new(
            Kind::ResourceExhausted,
            format!(
                "no memory for a window of {bytes} bytes within {} s: other streams hold {pinned} of the {} bytes that windows in use may take",
                self.limits.patience.as_secs(),
                self.limits.pinned
            ),
        )
        .with_remedy("close streams that nobody reads, set a smaller `window`, or raise --memory-limit")
    }

    fn try_pin(self: &Arc<Self>, wanted: &[(K, u64)], extra: u64) -> Option<Pins<K, V>> {
        let mut inner = self.inner.lock();
        let is_new = |inner: &Inner<K, V>, key: &K| inner.entries.get(key).is_none_or(|e| e.pins == 0);
        let needed: u64 = wanted
            .iter()
            .filter(|(key, _)| is_new(&inner, key))
            .map(|(key, estimate)| inner.entries.get(key).map_or(*estimate, |e| e.bytes))
            .fold(extra, u64::saturating_add);
        if inner.pinned_bytes > 0 && needed > 0 && inner.pinned_bytes.saturating_add(needed) > self.limits.pinned {
            return None;
        }
        for (key, estimate) in wanted {
            inner.pin(key, *estimate);
        }
        inner.pinned_bytes += extra;
        Some(Pins { cache: Arc::clone(self), keys: wanted.iter().map(|(key, _)| key.clone()).collect(), extra })
    }
}

impl<K: Eq + Hash + Clone, V> Inner<K, V> {
    fn pin(&mut self, key: &K, estimate: u64) {
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry { cell: Arc::default(), bytes: estimate, pins: 0, tick: 0 });
        if entry.pins == 0 {
            if self.idle.remove(&entry.tick).is_some() {
                self.idle_bytes -= entry.bytes;
            }
            self.pinned_bytes += entry.bytes;
        }
        entry.pins += 1;
    }

    fn unpin(&mut self, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.pins -= 1;
        if entry.pins > 0 {
            return;
        }
        self.pinned_bytes -= entry.bytes;
        if entry.cell.get().is_none() {
            self.entries.remove(key);
            return;
        }
        self.tick += 1;
        entry.tick = self.tick;
        self.idle.insert(self.tick, key.clone());
        self.idle_bytes += entry.bytes;
    }

    /// The true size of a loaded, pinned item.
    fn set_bytes(&mut self, key: &K, bytes: u64) {
        if let Some(entry) = self.entries.get_mut(key) {
            self.pinned_bytes = self.pinned_bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
    }

    /// Takes idle items out, oldest first, until the budget holds. They are dropped by the caller, outside the lock.
    fn trim(&mut self, budget: u64) -> Vec<Entry<V>> {
        let mut out = Vec::new();
        while self.idle_bytes > budget {
            let Some((_, key)) = self.idle.pop_first() else { break };
            if let Some(entry) = self.entries.remove(&key) {
                self.idle_bytes -= entry.bytes;
                out.push(entry);
                self.remember(hash(&key));
            }
        }
        out
    }

    fn remember(&mut self, key: u64) {
        let (known, order) = &mut self.evicted;
        if known.insert(key) {
            order.push_back(key);
        }
        if order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
    }
}

/// Items that a reader uses. Dropping it lets them go.
pub(crate) struct Pins<K: Eq + Hash + Clone, V> {
    cache: Arc<Cache<K, V>>,
    keys: Vec<K>,
    extra: u64,
}

impl<K: Eq + Hash + Clone, V> fmt::Debug for Pins<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pins").field("items", &self.keys.len()).field("extra", &self.extra).finish()
    }
}

fn hash<K: Hash>(key: &K) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl<K: Eq + Hash + Clone, V> Pins<K, V> {
    /// Whether the `at`-th pinned item was here before and had to go, as far as that is remembered.
    pub(crate) fn was_evicted(&self, at: usize) -> bool {
        self.keys.get(at).is_some_and(|key| self.cache.inner.lock().evicted.0.contains(&hash(key)))
    }

    /// The `at`-th pinned item, loaded by `load` unless somebody did or is about to; `load` also tells its true bytes.
    pub(crate) async fn get<F>(&self, at: usize, load: F) -> Result<Arc<V>>
    where
        F: Future<Output = Result<(V, u64)>>,
    {
        let key = self.keys.get(at).ok_or_else(|| Error::internal("an item that is not pinned was asked for"))?;
        let cell = self.cache.inner.lock().entries.get(key).map(|e| Arc::clone(&e.cell));
        let cell = cell.ok_or_else(|| Error::internal("a pinned item is gone"))?;
        let item = cell
            .get_or_try_init(|| async {
                let (value, bytes) = load.await?;
                self.cache.inner.lock().set_bytes(key, bytes);
                Ok(Arc::new(value))
            })
            .await?;
        Ok(Arc::clone(item))
    }
}

impl<K: Eq + Hash + Clone, V> Cache<K, V> {
    fn release(&self, keys: &[K], extra: u64) {
        let gone = {
            let mut inner = self.inner.lock();
            for key in keys {
                inner.unpin(key);
            }
            inner.pinned_bytes -= extra;
            inner.trim(self.limits.idle)
        };
        drop(gone);
        self.freed.notify_waiters();
    }
}

impl<K: Eq + Hash + Clone, V> Drop for Pins<K, V> {
    fn drop(&mut self) {
        self.cache.release(&self.keys, self.extra);
    }
}
