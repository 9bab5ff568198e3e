//! Open indexes: kept while they are used, within a byte limit.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_core::Result;
use forebay_core::ids::DatasetName;
use forebay_core::shard::ShardMeta;
use forebay_storage::bundle::{Bundle, BundleCache};
use forebay_storage::root::Root;
use parking_lot::Mutex;

use super::build::blocking;
use super::index::ShardIndex;

/// Bytes that open indexes may hold.
const LIMIT: usize = 256 << 20;

/// Opens indexes of one root's shards. Clones share what is open.
#[derive(Debug, Clone)]
pub struct TextIndexes {
    root: Root,
    cache: Option<BundleCache>,
    open: Arc<Mutex<Open>>,
}

/// Least recently used first. Few enough for a scan: an index holds megabytes.
#[derive(Debug, Default)]
struct Open {
    indexes: VecDeque<(Key, Arc<ShardIndex>)>,
    memory: usize,
}

/// The bundle's path names its shard and its columns; its digest tells a dataset from one that was dropped and made again.
type Key = (DatasetName, String, String);

impl TextIndexes {
    /// Without a cache a local root's bundles are read where they lie, and a remote one's from the store.
    pub fn new(root: Root, cache: Option<BundleCache>) -> Self {
        Self { root, cache, open: Arc::default() }
    }

    /// The index of a shard; `None` where it has none.
    ///
    /// # Errors
    /// What the store says; `Corrupt` for a bundle that isn't what the log names.
    pub(crate) async fn get(&self, name: &DatasetName, shard: &ShardMeta) -> Result<Option<Arc<ShardIndex>>> {
        let Some(meta) = &shard.index else { return Ok(None) };
        let key = (name.clone(), meta.path.clone(), meta.digest.clone());
        if let Some(found) = self.open.lock().get(&key) {
            return Ok(Some(found));
        }
        let bundle = Bundle::open(&self.root, self.cache.as_ref(), name, meta).await?;
        let (path, rows) = (shard.path.clone(), shard.rows());
        let index = Arc::new(blocking(move || ShardIndex::open(bundle, &path, rows)).await?);
        self.open.lock().put(key, index.clone());
        Ok(Some(index))
    }
}

impl Open {
    fn get(&mut self, key: &Key) -> Option<Arc<ShardIndex>> {
        let at = self.indexes.iter().position(|(k, _)| k == key)?;
        let found = self.indexes.remove(at)?;
        let index = found.1.clone();
        self.indexes.push_back(found);
        Some(index)
    }

    fn put(&mut self, key: Key, index: Arc<ShardIndex>) {
        if self.get(&key).is_some() {
            return;
        }
        self.memory += index.memory();
        self.indexes.push_back((key, index));
        // The newest stays even if it alone is more: it is in use.
        while self.memory > LIMIT && self.indexes.len() > 1 {
            let Some((_, oldest)) = self.indexes.pop_front() else { break };
            self.memory -= oldest.memory();
        }
    }
}
