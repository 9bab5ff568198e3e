//! Opening and reading one source file: a local one by its raw name, a remote one by ranges. Blocking; never call it on an async thread.
//!
//! Owns: finding out that a file changed or vanished since it was snapshotted, decompression, and naming the file in every error.

use bytes::Bytes;
use forebay_core::source::SourceFile;
use forebay_core::{Error, Kind, Result};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use parquet::file::reader::{ChunkReader, Length};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use tokio::runtime::Handle;

use super::path;
use crate::root::{Root, redact, whole};

/// Bytes of one range request.
const REMOTE_CHUNK: u64 = 8 << 20;
const LOCAL_BUFFER: usize = 1 << 20;

/// The object stores that a source touches, opened once each.
#[derive(Debug, Clone)]
pub(super) struct Stores {
    handle: Handle,
    open: Arc<Mutex<HashMap<String, Arc<dyn ObjectStore>>>>,
}

impl Stores {
    /// Must be called inside a tokio runtime: blocking readers wait for remote stores through it.
    pub(super) fn new() -> Self {
        Self { handle: Handle::current(), open: Arc::default() }
    }

    /// The store of a URL and the key in it, set up as a root's store is: credentials and endpoints from the environment, timeouts, retries.
    pub(super) async fn find(&self, location: &str) -> Result<(Arc<dyn ObjectStore>, Key)> {
        let (scheme, rest) = location.split_once("://").unwrap_or(("", location));
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        let key = Key::parse(key).map_err(|e| Error::bad_input(format!("`{location}`: {e}")))?;
        let id = format!("{scheme}://{authority}");
        let known = self.open.lock().get(&id).cloned();
        if let Some(store) = known {
            return Ok((store, key));
        }
        #[cfg(test)]
        if scheme == "memory" {
            return Ok((super::tests::memory_store(authority), key));
        }
        let store = Root::open(&id, false).await.map_err(|e| e.context(format!("the source `{location}`")))?.store();
        self.open.lock().insert(id, store.clone());
        Ok((store, key))
    }
}

pub(super) fn local_stamp(meta: &Metadata) -> String {
    (i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())).to_string()
}

pub(super) fn remote_stamp(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        Some(etag) => etag.clone(),
        None => meta.last_modified.timestamp_nanos_opt().unwrap_or_else(|| meta.last_modified.timestamp_millis()).to_string(),
    }
}

pub(super) fn gone(name: &str) -> Error {
    Error::failed_precondition(format!("the source file `{name}` vanished since the source was read for its file list"))
        .with_remedy("put it back, or run the pipeline again to take the source as it is now")
}

fn changed(name: &str) -> Error {
    Error::failed_precondition(format!("the source file `{name}` changed since the source was read for its file list"))
        .with_remedy("run the pipeline again to take the source as it is now")
}

pub(super) fn io_error(name: &str, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => Kind::BadInput,
        _ => Kind::Unavailable,
    };
    Error::new(kind, format!("reading `{name}`: {error}"))
}

/// One open source file. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Blob {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    size: u64,
    stamp: String,
    modified_us: i64,
    kind: Place,
}

#[derive(Debug)]
enum Place {
    Local(File),
    Remote { store: Arc<dyn ObjectStore>, key: Key, handle: Handle, etag: Option<String> },
}

impl Blob {
    /// Opens a file of a snapshot and checks that it is still the one that was seen.
    pub(super) fn open(stores: &Stores, base: &str, file: &SourceFile) -> Result<Blob> {
        let location = path::absolute(base, &file.path);
        let name = file.path.clone();
        let (kind, modified_us) = if path::is_url(&location) {
            let (store, key) = stores.handle.block_on(stores.find(&location))?;
            let meta = stores.handle.block_on(store.head(&key)).map_err(|e| remote_error(&name, &e))?;
            if meta.size != file.size || remote_stamp(&meta) != file.stamp {
                return Err(changed(&name));
            }
            let modified = meta.last_modified.timestamp_micros();
            (Place::Remote { store, key, handle: stores.handle.clone(), etag: meta.e_tag }, modified)
        } else {
            let opened = File::open(path::to_path(&location));
            let opened = opened.map_err(|e| if e.kind() == io::ErrorKind::NotFound { gone(&name) } else { io_error(&name, &e) })?;
            let meta = opened.metadata().map_err(|e| io_error(&name, &e))?;
            (Place::Local(opened), meta.mtime() * 1_000_000 + meta.mtime_nsec() / 1000)
        };
        let blob = Blob { inner: Arc::new(Inner { name, size: file.size, stamp: file.stamp.clone(), modified_us, kind }) };
        blob.verify()?;
        Ok(blob)
    }

    pub(super) fn name(&self) -> &str {
        &self.inner.name
    }

    pub(super) fn size(&self) -> u64 {
        self.inner.size
    }

    /// When the file was last changed, in microseconds since the Unix epoch.
    pub(super) fn modified_us(&self) -> i64 {
        self.inner.modified_us
    }

    /// Errors when the file is no longer what the snapshot saw. Call it again after reading: a file may change under a reader.
    pub(super) fn verify(&self) -> Result<()> {
        let Place::Local(file) = &self.inner.kind else { return Ok(()) };
        let meta = file.metadata().map_err(|e| self.fail(&e))?;
        if meta.len() == self.inner.size && local_stamp(&meta) == self.inner.stamp { Ok(()) } else { Err(changed(self.name())) }
    }

    pub(super) fn fail(&self, error: &io::Error) -> Error {
        match error.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
            Some(inner) => inner.clone(),
            None => io_error(self.name(), error),
        }
    }

    /// Exactly these bytes; a file that has become shorter is an error.
    pub(super) fn bytes(&self, start: u64, len: u64) -> io::Result<Bytes> {
        let past =
            || io::Error::new(io::ErrorKind::UnexpectedEof, format!("bytes {start}..{} of {}", start.saturating_add(len), self.size()));
        if start.checked_add(len).is_none_or(|end| end > self.size()) {
            return Err(past());
        }
        if len == 0 {
            return Ok(Bytes::new());
        }
        match &self.inner.kind {
            Place::Local(file) => {
                let mut buffer = vec![0; usize::try_from(len).map_err(|_| past())?];
                file.read_exact_at(&mut buffer, start)?;
                Ok(buffer.into())
            }
            Place::Remote { .. } if len > REMOTE_CHUNK => {
                // One request of any size would meet the time limit of a request.
                let mut buffer = Vec::with_capacity(usize::try_from(len).map_err(|_| past())?);
                let mut at = start;
                while at < start + len {
                    let chunk = self.bytes(at, REMOTE_CHUNK.min(start + len - at))?;
                    at += chunk.len() as u64;
                    buffer.extend_from_slice(&chunk);
                }
                Ok(buffer.into())
            }
            Place::Remote { store, key, handle, etag } => {
                let options =
                    GetOptions { range: Some(GetRange::Bounded(start..start + len)), if_match: etag.clone(), ..GetOptions::default() };
                let read = whole(|| store.get_opts(key, options.clone()));
                let (_, bytes) = handle.block_on(read).map_err(|e| io::Error::other(remote_error(self.name(), &e)))?;
                if bytes.len() as u64 == len { Ok(bytes) } else { Err(io::Error::other(changed(self.name()))) }
            }
        }
    }

    /// The bytes of a range as a stream.
    pub(super) fn reader(&self, start: u64, end: u64) -> Box<dyn Read + Send> {
        let cursor = Cursor { blob: self.clone(), at: start, end: end.min(self.size()), chunk: Bytes::new() };
        match self.inner.kind {
            Place::Local(_) => Box::new(BufReader::with_capacity(LOCAL_BUFFER, cursor)),
            Place::Remote { .. } => Box::new(cursor),
        }
    }

    /// The whole file, seekable.
    pub(super) fn cursor(&self) -> Cursor {
        Cursor { blob: self.clone(), at: 0, end: self.size(), chunk: Bytes::new() }
    }

    /// The whole file, decompressed as its name says.
    pub(super) fn text(&self) -> Result<Box<dyn Read + Send>> {
        let raw = self.reader(0, self.size());
        match Compression::of(self.name()) {
            Compression::None => Ok(raw),
            Compression::Gzip => Ok(Box::new(flate2::read::MultiGzDecoder::new(raw))),
            Compression::Zstd => Ok(Box::new(zstd::stream::read::Decoder::new(raw).map_err(|e| self.fail(&e))?)),
        }
    }
}

fn remote_error(name: &str, error: &object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => gone(name),
        object_store::Error::Precondition { .. } => changed(name),
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Error::new(Kind::PermissionDenied, format!("reading `{name}`: {}", redact(&error.to_string())))
        }
        _ => Error::new(Kind::Unavailable, format!("reading `{name}`: {}", redact(&error.to_string()))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub(super) fn of(name: &str) -> Compression {
        let name = name.to_ascii_lowercase();
        match name.rsplit('.').next() {
            Some("gz" | "gzip") => Compression::Gzip,
            Some("zst" | "zstd") => Compression::Zstd,
            _ => Compression::None,
        }
    }
}

/// A position in a file. Local reads go straight through (wrap it in a buffer), remote ones fetch [`REMOTE_CHUNK`]s.
#[derive(Debug)]
pub(super) struct Cursor {
    blob: Blob,
    at: u64,
    end: u64,
    chunk: Bytes,
}

impl Read for Cursor {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.at);
        if left == 0 || out.is_empty() {
            return Ok(0);
        }
        if let Place::Local(file) = &self.blob.inner.kind {
            let want = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = file.read_at(&mut out[..want], self.at)?;
            if read == 0 {
                return Err(io::Error::other(changed(self.blob.name())));
            }
            self.at += read as u64;
            return Ok(read);
        }
        if self.chunk.is_empty() {
            self.chunk = self.blob.bytes(self.at, left.min(REMOTE_CHUNK))?;
        }
        let read = out.len().min(self.chunk.len());
        out[..read].copy_from_slice(&self.chunk.split_to(read));
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a seek out of the file"))?;
        match at.checked_sub(self.at).and_then(|by| usize::try_from(by).ok()) {
            Some(by) if by <= self.chunk.len() => drop(self.chunk.split_to(by)),
            _ => self.chunk = Bytes::new(),
        }
        self.at = at;
        Ok(at)
    }
}

impl Length for Blob {
    fn len(&self) -> u64 {
        self.size()
    }
}

impl ChunkReader for Blob {
    type T = BufReader<Cursor>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let mut cursor = self.cursor();
        cursor.at = start;
        Ok(BufReader::with_capacity(64 << 10, cursor))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        Ok(self.bytes(start, length as u64)?)
    }
}
