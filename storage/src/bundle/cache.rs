//! Whole bundles on local disk, within a byte limit.
//!
//! The folder may be shared by several processes and survives them: the files themselves are the record, a file's time of change is when it was
//! last used, and who needs room removes the oldest. A copy gets its name only when it is whole, and an open file outlives its name, so that
//! nobody ever reads half of one.

use forebay_core::text::BundleMeta;
use forebay_core::{Error, Result};
use object_store::path::Path as StorePath;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;

use super::short;
use super::write::check_whole;
use crate::root::{Root, io_error};
use crate::shard::blocking;

/// Ending of whole copies.
const WHOLE: &str = "bundle";
/// Ending of copies in the making.
const PARTIAL: &str = "partial";
/// A copy in the making that is older belongs to a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Bundles fetched at the same time.
const FETCHES: usize = 2;

/// A folder of whole bundles. Clones share it.
#[derive(Debug, Clone)]
pub struct BundleCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    limit: u64,
    /// Names that are being fetched by this process.
    fetching: Mutex<HashSet<String>>,
    /// Making room and taking a name happen one after the other.
    room: Mutex<()>,
    turns: Semaphore,
}

/// Where bundles are cached unless a setting says otherwise: `forebay` in the user's cache folder, else in the system's temporary one.
pub fn default_cache_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    base.map_or_else(|| std::env::temp_dir().join("forebay-cache"), |base| base.join("forebay"))
}

impl BundleCache {
    /// Uses `folder/bundles`, which is made, up to `limit` bytes.
    ///
    /// # Errors
    /// What the file system says of a folder that can't be made or written.
    pub fn new(folder: &Path, limit: u64) -> Result<Self> {
        let folder = folder.join("bundles");
        let shown = folder.display().to_string();
        let failed = |e: &std::io::Error| io_error("use the cache folder", &shown, e).with_remedy("choose another with --cache-dir");
        std::fs::create_dir_all(&folder).map_err(|e| failed(&e))?;
        let inner = Inner { folder, limit, fetching: Mutex::default(), room: Mutex::default(), turns: Semaphore::new(FETCHES) };
        let cache = Self(Arc::new(inner));
        cache.0.make_room(0).map_err(|e| failed(&e))?;
        Ok(cache)
    }

    /// The copy of a bundle, if there is one.
    pub(super) async fn get(&self, root: &Root, path: &StorePath, meta: &BundleMeta) -> Option<File> {
        let place = self.0.place(&key(root, path, meta));
        let opened = blocking(move || {
            let Ok(file) = File::open(place) else { return Ok(None) };
            // Failing to say that it was used costs at most an early eviction.
            let _ = file.set_modified(SystemTime::now());
            Ok(Some(file))
        });
        opened.await.ok().flatten()
    }

    pub(super) async fn forget(&self, root: &Root, path: &StorePath, meta: &BundleMeta) {
        let place = self.0.place(&key(root, path, meta));
        let _ = blocking(move || std::fs::remove_file(&place).map_err(|e| io_error("remove", &place.display().to_string(), &e))).await;
    }

    /// Fetches a bundle behind the caller's back, unless somebody is at it. What goes wrong is logged: the store still has the bundle.
    pub(super) fn fill(&self, root: Root, path: StorePath, meta: BundleMeta) {
        let cache = self.clone();
        tokio::spawn(async move {
            if let Err(error) = cache.fetch(&root, &path, &meta).await {
                tracing::warn!(%error, "an index bundle could not be cached");
            }
        });
    }

    /// Fetches a bundle and keeps it; one that is larger than the limit or there already is left alone.
    ///
    /// # Errors
    /// What store and disk say, `Corrupt` for bytes that aren't what the log names.
    pub async fn fetch(&self, root: &Root, path: &StorePath, meta: &BundleMeta) -> Result<()> {
        let key = key(root, path, meta);
        if meta.size > self.0.limit || !self.0.fetching.lock().insert(key.clone()) {
            return Ok(());
        }
        let fetched = self.fetch_now(root, path, meta, &key).await;
        self.0.fetching.lock().remove(&key);
        fetched
    }

    async fn fetch_now(&self, root: &Root, path: &StorePath, meta: &BundleMeta, key: &str) -> Result<()> {
        let _turn = self.0.turns.acquire().await.map_err(|_| Error::internal("the cache has ended"))?;
        let place = self.0.place(key);
        if place.exists() {
            return Ok(());
        }
        let bytes = root.get_whole(path).await.map_err(|e| root.error("read the index bundle", path, &e))?;
        check_whole(&bytes, meta)?;
        let (inner, partial) = (self.0.clone(), self.0.folder.join(format!("{key}.{}.{PARTIAL}", uuid::Uuid::new_v4().simple())));
        blocking(move || {
            let shown = partial.display().to_string();
            let _guard = inner.room.lock();
            let kept = inner.make_room(bytes.len() as u64).and_then(|()| {
                let mut file = File::create(&partial)?;
                file.write_all(&bytes)?;
                // Before it has its name: a copy that a power failure cut short must not have one.
                file.sync_data()?;
                std::fs::rename(&partial, &place)
            });
            kept.map_err(|e| {
                let _ = std::fs::remove_file(&partial);
                io_error("cache", &shown, &e)
            })
        })
        .await
    }

    /// Bytes of whole copies.
    pub fn used(&self) -> u64 {
        self.0.copies().map_or(0, |copies| copies.iter().map(|c| c.1).sum())
    }
}

/// The name of a copy: the root too, because the folder may serve several.
fn key(root: &Root, path: &StorePath, meta: &BundleMeta) -> String {
    let mut hash = blake3::Hasher::new();
    for text in [root.url(), path.as_ref(), &meta.digest, &meta.size.to_string()] {
        hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    short(&hash.finalize())
}

impl Inner {
    fn place(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.{WHOLE}"))
    }

    /// The whole copies: last use, bytes, place.
    fn copies(&self) -> std::io::Result<Vec<(SystemTime, u64, PathBuf)>> {
        let mut copies = Vec::new();
        for entry in std::fs::read_dir(&self.folder)?.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let (path, used) = (entry.path(), meta.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            let ending = path.extension().and_then(|e| e.to_str());
            if ending == Some(PARTIAL) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = std::fs::remove_file(&path);
            }
            if ending == Some(WHOLE) {
                copies.push((used, meta.len(), path));
            }
        }
        Ok(copies)
    }

    /// Removes the copies that were used longest ago until `bytes` more fit. Other processes' copies count as much as ours.
    fn make_room(&self, bytes: u64) -> std::io::Result<()> {
        let mut copies = self.copies()?;
        copies.sort();
        let mut used: u64 = copies.iter().map(|c| c.1).sum();
        for (_, size, path) in copies {
            if used.saturating_add(bytes) <= self.limit {
                break;
            }
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
            used = used.saturating_sub(size);
        }
        Ok(())
    }
}
