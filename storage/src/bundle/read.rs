//! Reading a bundle: two ranged reads to open it, then whatever bytes are asked for.

use bytes::Bytes;
use forebay_core::ids::DatasetName;
use forebay_core::text::BundleMeta;
use forebay_core::{Error, Result};
use object_store::path::Path;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::runtime::Handle;

use super::cache::BundleCache;
use super::{TAIL, Table, digest};
use crate::root::{Root, io_error};
use crate::shard::{blocking, shard_path};

/// The end of the object that the first read takes: tail and table nearly always, the hot bytes of a small bundle too.
const FIRST_READ: u64 = 32 << 10;

/// An opened bundle: table and hot bytes are in memory.
#[derive(Debug)]
pub struct Bundle {
    table: Table,
    /// One piece per range of the table, in its order.
    hot: Vec<Bytes>,
    source: Arc<Source>,
}

/// Where the rest of the bytes comes from.
#[derive(Debug)]
enum Source {
    /// The root's own folder, or the cache. The open file outlives its name.
    File {
        file: File,
        place: String,
    },
    Store {
        root: Root,
        path: Path,
        runtime: Handle,
    },
}

impl Source {
    /// Must not be called on a thread that drives async work.
    fn read(&self, range: Range<u64>) -> Result<Bytes> {
        match self {
            Self::File { file, place } => {
                let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(|_| Error::corrupt("a range beyond memory"))?];
                file.read_exact_at(&mut bytes, range.start).map_err(|e| io_error("read the index bundle", place, &e))?;
                Ok(bytes.into())
            }
            Self::Store { root, path, runtime } => {
                runtime.block_on(root.get_range(path, range)).map_err(|e| root.error("read the index bundle", path, &e))
            }
        }
    }
}

impl Bundle {
    /// Opens a shard's bundle: from the root where it is a local folder, else from the cache, else from the store; a bundle that had to be read from
    /// the store is put into the cache behind the caller's back.
    ///
    /// # Errors
    /// `NotFound` when the object is gone, `Corrupt` when it is not what the log names.
    pub async fn open(root: &Root, cache: Option<&BundleCache>, name: &DatasetName, meta: &BundleMeta) -> Result<Self> {
        let path = shard_path(name, &meta.path);
        if meta.size < TAIL as u64 {
            return Err(Error::corrupt(format!("{}: {} bytes are no index bundle", root.place(&path), meta.size)));
        }
        if let Some(cache) = cache
            && let Some(file) = cache.get(root, &path, meta).await
        {
            match Self::from_file(file, format!("the cached copy of {path}"), meta.size).await {
                Ok(bundle) => return Ok(bundle),
                // What a crash or a full disk left of a copy is as good as none.
                Err(error) => {
                    tracing::warn!(%error, "a cached index bundle is dropped");
                    cache.forget(root, &path, meta).await;
                }
            }
        }
        if cache.is_none()
            && let Some(folder) = root.local_path()
        {
            let (file, place) = (folder.join(path.as_ref()), root.place(&path));
            let shown = place.clone();
            let file = blocking(move || File::open(file).map_err(|e| io_error("open the index bundle", &shown, &e))).await?;
            return Self::from_file(file, place, meta.size).await;
        }
        let bundle = Self::from_store(root, path.clone(), meta.size).await?;
        if let Some(cache) = cache {
            cache.fill(root.clone(), path, meta.clone());
        }
        Ok(bundle)
    }

    async fn from_file(file: File, place: String, size: u64) -> Result<Self> {
        blocking(move || {
            let length = file.metadata().map_err(|e| io_error("open the index bundle", &place, &e))?.len();
            if length != size {
                return Err(Error::corrupt(format!("{place}: it has {length} bytes where the log says {size}")));
            }
            let source = Source::File { file, place: place.clone() };
            let from = size.saturating_sub(FIRST_READ);
            let end = source.read(from..size)?;
            let whole = |range: Range<u64>| if range.is_empty() { Ok(Bytes::new()) } else { source.read(range) };
            let opened = End::new(end, from, size).and_then(|end| {
                let table = end.table(whole)?;
                let hot = end.hot(&table, whole)?;
                Ok((table, hot))
            });
            let (table, hot) = opened.map_err(|e| e.context(&place))?;
            Self::new(table, hot, source).map_err(|e| e.context(&place))
        })
        .await
    }

    async fn from_store(root: &Root, path: Path, size: u64) -> Result<Self> {
        let place = root.place(&path);
        let from = size.saturating_sub(FIRST_READ);
        let get = async |range: Range<u64>| root.get_range(&path, range).await.map_err(|e| root.error("open the index bundle", &path, &e));
        let end = End::new(get(from..size).await?, from, size).map_err(|e| e.context(&place))?;
        let missing = end.missing_table();
        let front = if missing.is_empty() { Bytes::new() } else { get(missing).await? };
        let table = end.table(|_| Ok(front.clone())).map_err(|e| e.context(&place))?;
        let missing = end.missing_hot(&table);
        let front = if missing.is_empty() { Bytes::new() } else { get(missing).await? };
        let hot = end.hot(&table, |_| Ok(front.clone()))?;
        let source = Source::Store { root: root.clone(), path: path.clone(), runtime: Handle::current() };
        Self::new(table, hot, source).map_err(|e| e.context(&place))
    }

    fn new(table: Table, hot: Bytes, source: Source) -> Result<Self> {
        if digest(&hot) != table.hot_digest {
            return Err(Error::corrupt("its hot bytes are damaged").with_remedy("build the index again: forebay index DATASET --rebuild"));
        }
        let mut pieces = Vec::with_capacity(table.ranges.len());
        let mut at = 0;
        for (_, from, to) in &table.ranges {
            let length = usize::try_from(to - from).map_err(|_| Error::corrupt("a range beyond memory"))?;
            pieces.push(hot.slice(at..at + length));
            at += length;
        }
        Ok(Self { table, hot: pieces, source: Arc::new(source) })
    }

    /// What its maker said about it.
    pub fn about(&self) -> &serde_json::Value {
        &self.table.about
    }

    /// Length of a file in it.
    pub fn length(&self, file: &str) -> Option<u64> {
        self.table.files.get(file).map(|(from, to)| to - from)
    }

    /// Bytes that it holds in memory.
    pub fn memory(&self) -> usize {
        self.hot.iter().map(Bytes::len).sum::<usize>() + 64 * self.table.ranges.len() + 128 * self.table.files.len()
    }

    /// Bytes of one of its files. What is not hot is read from disk or from the store, on the calling thread: it must be one that may block.
    ///
    /// # Errors
    /// `Internal` for a file or bytes that aren't there, what disk and store say.
    pub fn read(&self, file: &str, range: Range<u64>) -> Result<Bytes> {
        let outside = || Error::internal(format!("the bundle has no bytes {range:?} of {file}"));
        let (start, end) = *self.table.files.get(file).ok_or_else(outside)?;
        if range.start > range.end || range.end > end - start {
            return Err(outside());
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let covers = |(name, from, to): &(String, u64, u64)| name == file && *from <= range.start && range.end <= *to;
        if let Some(i) = self.table.ranges.iter().position(covers) {
            let from = self.table.ranges[i].1;
            return Ok(self.hot[i].slice((range.start - from) as usize..(range.end - from) as usize));
        }
        self.source.read(start + range.start..start + range.end)
    }
}

/// The object's end as the first read brought it.
struct End {
    bytes: Bytes,
    /// Where in the object it begins.
    from: u64,
    table: Range<u64>,
}

impl End {
    fn new(bytes: Bytes, from: u64, size: u64) -> Result<Self> {
        let tail = bytes.get(bytes.len().saturating_sub(TAIL)..).unwrap_or_default();
        let table = Table::place(tail, size)?;
        Ok(Self { bytes, from, table })
    }

    /// What of the table lies before the end that was read.
    fn missing_table(&self) -> Range<u64> {
        self.table.start.min(self.from)..self.from.min(self.table.end)
    }

    /// The hot bytes before it.
    fn missing_hot(&self, table: &Table) -> Range<u64> {
        table.hot.0.min(self.from)..self.from.min(table.hot.1).max(table.hot.0.min(self.from))
    }

    /// A range of the object whose front is given where it wasn't read.
    fn join(&self, range: Range<u64>, front: &Bytes) -> Result<Bytes> {
        let short = || Error::corrupt("it ends early");
        if range.start >= self.from {
            let (a, b) = ((range.start - self.from) as usize, (range.end - self.from) as usize);
            return if b <= self.bytes.len() { Ok(self.bytes.slice(a..b)) } else { Err(short()) };
        }
        let mut bytes = front.to_vec();
        if range.end > self.from {
            bytes.extend_from_slice(self.bytes.get(..(range.end - self.from) as usize).ok_or_else(short)?);
        }
        if bytes.len() as u64 == range.end - range.start { Ok(bytes.into()) } else { Err(short()) }
    }

    fn table(&self, front: impl FnOnce(Range<u64>) -> Result<Bytes>) -> Result<Table> {
        let bytes = self.join(self.table.clone(), &front(self.missing_table())?)?;
        let tail = self.bytes.get(self.bytes.len().saturating_sub(TAIL)..).unwrap_or_default();
        Table::decode(&bytes, tail, self.table.start)
    }

    fn hot(&self, table: &Table, front: impl FnOnce(Range<u64>) -> Result<Bytes>) -> Result<Bytes> {
        self.join(table.hot.0..table.hot.1, &front(self.missing_hot(table))?)
    }
}

/// Size, digest and maker's words of the bundle at a path relative to the table, read as a whole; `None` when there is none, or not a whole one.
///
/// # Errors
/// Failures of the store.
pub async fn inspect(root: &Root, name: &DatasetName, path: &str) -> Result<Option<(u64, String, serde_json::Value)>> {
    let path = shard_path(name, path);
    let bytes = match root.get_whole(&path).await {
        Ok(bytes) => bytes,
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        Err(e) => return Err(root.error("read the index bundle", &path, &e)),
    };
    let size = bytes.len() as u64;
    let read = || {
        let end = End::new(bytes.clone(), 0, size)?;
        let table = end.table(|_| Ok(Bytes::new()))?;
        let hot = end.hot(&table, |_| Ok(Bytes::new()))?;
        if digest(&hot) == table.hot_digest { Ok(table.about) } else { Err(Error::corrupt("its hot bytes are damaged")) }
    };
    // One that is damaged is made again by whoever asks.
    Ok(read().ok().map(|about| (size, digest(&bytes), about)))
}
