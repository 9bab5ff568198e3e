//! Making a bundle: files on local disk become one object.

use bytes::Bytes;
use forebay_core::ids::DatasetName;
use forebay_core::shard::ShardMeta;
use forebay_core::text::{BundleMeta, TextColumns};
use forebay_core::{Error, Result};
use object_store::ObjectStoreExt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use super::{BUNDLES, Table, digest, short};
use crate::root::{Root, io_error};
use crate::shard::{Upload, blocking, shard_path};

/// Bytes copied at once.
const PIECE: usize = 1 << 20;

/// A range of one file that opening the index touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotRange {
    pub file: String,
    pub bytes: Range<u64>,
}

/// The name of a shard's bundle, relative to the table. It follows from the shard and from what is indexed, so that work that was cut short is
/// found again; the shard's size and time are in it because a shard's name can be used again after its attempt was swept.
pub fn bundle_name(shard: &ShardMeta, columns: &TextColumns, format: &str) -> String {
    let mut hash = blake3::Hasher::new();
    let mut put = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    };
    put(format);
    put(&shard.path);
    put(&shard.size.to_string());
    put(&shard.modified_ms.to_string());
    for (column, tokenizer) in columns {
        put(column);
        put(&tokenizer.to_string());
    }
    let stem = shard.path.rsplit('/').next().unwrap_or_default();
    let stem: String =
        stem.trim_end_matches(".parquet").chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).take(64).collect();
    let mut key = short(&hash.finalize());
    key.truncate(16);
    format!("{BUNDLES}epoch={}/{stem}-{key}.idx", shard.epoch)
}

/// Puts files into a bundle, one after the other, in a local file.
#[derive(Debug)]
pub struct BundleWriter {
    file: File,
    place: String,
    table: Table,
    hash: blake3::Hasher,
    at: u64,
}

impl BundleWriter {
    /// Writes to a new file at `path`.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(path: &Path, about: serde_json::Value) -> Result<Self> {
        let place = path.display().to_string();
        let file = File::options().read(true).write(true).create_new(true).open(path).map_err(|e| io_error("write", &place, &e))?;
        let table = Table { files: Default::default(), hot: (0, 0), hot_digest: String::new(), ranges: Vec::new(), about };
        Ok(Self { file, place, table, hash: blake3::Hasher::new(), at: 0 })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| io_error("write", &self.place, &e))?;
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Adds a file.
    ///
    /// # Errors
    /// What the file system says; `Internal` for a name twice.
    pub fn add(&mut self, name: &str, path: &Path) -> Result<()> {
        let shown = path.display().to_string();
        let failed = |e: &std::io::Error| io_error("read", &shown, e);
        let mut from = File::open(path).map_err(|e| failed(&e))?;
        let (start, mut piece) = (self.at, vec![0; PIECE]);
        loop {
            match from.read(&mut piece).map_err(|e| failed(&e))? {
                0 => break,
                length => self.push(&piece[..length])?,
            }
        }
        match self.table.files.insert(name.to_owned(), (start, self.at)) {
            None => Ok(()),
            Some(_) => Err(Error::internal(format!("a bundle has the file {name} twice"))),
        }
    }

    /// Adds the hot bytes, the table and the tail. Touching ranges of one file become one. Gives size and digest of the whole.
    ///
    /// # Errors
    /// What the file system says; `Internal` for a range of a file that isn't there.
    pub fn finish(mut self, hot: Vec<HotRange>) -> Result<(u64, String)> {
        let ranges = merged(hot);
        let mut bytes = Vec::new();
        for range in &ranges {
            let outside = || Error::internal(format!("{} has no bytes {:?}", range.file, range.bytes));
            let (start, end) = *self.table.files.get(&range.file).ok_or_else(outside)?;
            if range.bytes.start > range.bytes.end || range.bytes.end > end - start {
                return Err(outside());
            }
            let from = bytes.len();
            bytes.resize(from + usize::try_from(range.bytes.end - range.bytes.start).map_err(|_| outside())?, 0);
            let read = self.file.seek(SeekFrom::Start(start + range.bytes.start)).and_then(|_| self.file.read_exact(&mut bytes[from..]));
            read.map_err(|e| io_error("read", &self.place, &e))?;
        }
        self.file.seek(SeekFrom::End(0)).map_err(|e| io_error("write", &self.place, &e))?;
        self.table.hot = (self.at, self.at + bytes.len() as u64);
        self.table.hot_digest = digest(&bytes);
        self.table.ranges = ranges.into_iter().map(|r| (r.file, r.bytes.start, r.bytes.end)).collect();
        self.push(&bytes)?;
        let end = self.table.encode()?;
        self.push(&end)?;
        Ok((self.at, short(&self.hash.finalize())))
    }
}

/// Sorted, and without overlaps.
fn merged(mut hot: Vec<HotRange>) -> Vec<HotRange> {
    hot.retain(|r| !r.bytes.is_empty());
    hot.sort_by(|a, b| (&a.file, a.bytes.start).cmp(&(&b.file, b.bytes.start)));
    let mut merged: Vec<HotRange> = Vec::new();
    for range in hot {
        match merged.last_mut() {
            Some(last) if last.file == range.file && range.bytes.start <= last.bytes.end => {
                last.bytes.end = last.bytes.end.max(range.bytes.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Puts a finished bundle under its name, unless exactly it is there already.
///
/// # Errors
/// Failures of the store, `Corrupt` when what is there is not what was written.
pub async fn put_bundle(root: &Root, name: &DatasetName, file: &Path, meta: &BundleMeta) -> Result<()> {
    let path = shard_path(name, &meta.path);
    // What another attempt left under this name may be cut short or of other bytes: a name that no version names is free.
    match root.store().delete(&path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
        Err(e) => return Err(root.error("replace the index bundle", &path, &e)),
    }
    let mut upload = Upload::new(root.clone(), path);
    let mut at = 0;
    loop {
        let (file, place) = (file.to_owned(), file.display().to_string());
        let piece = blocking(move || {
            let mut piece = Vec::new();
            let read = File::open(&file).and_then(|mut f| {
                f.seek(SeekFrom::Start(at))?;
                f.take(8 * PIECE as u64).read_to_end(&mut piece)
            });
            read.map_err(|e| io_error("read", &place, &e))?;
            Ok(piece)
        })
        .await?;
        if piece.is_empty() {
            break;
        }
        at += piece.len() as u64;
        upload.push(piece).await?;
    }
    upload.finish().await
}

/// Whether the object that a name leads to is whole: its size, and a digest over all of it.
pub(super) fn check_whole(bytes: &Bytes, meta: &BundleMeta) -> Result<()> {
    if bytes.len() as u64 == meta.size && digest(bytes) == meta.digest {
        return Ok(());
    }
    Err(Error::corrupt(format!("{} is not what the log names: {} bytes where {} were written", meta.path, bytes.len(), meta.size)))
}
