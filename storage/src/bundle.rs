//! Text index bundles: the files of one shard's index in one object, opened with two ranged reads.
//!
//! Owns: the layout of the object, reading any byte of any file in it, the cache of whole bundles on local disk. Must not know: what the files
//! mean, what a query is.
//!
//! Layout, from the front: the files; the *hot* bytes, copies of all ranges that opening the index touches; the table (JSON: names, ranges,
//! digests, and what the maker says about the shard); a tail of [`TAIL`] bytes that says where the table is. The first read takes the object's
//! end with tail and table, the second the hot bytes (none where the first had them); from then on only what a query needs is read.

mod cache;
mod read;
mod write;

pub use cache::{BundleCache, default_cache_dir};
pub use read::{Bundle, inspect};
pub use write::{BundleWriter, HotRange, bundle_name, put_bundle};

use forebay_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Prefix of bundles' paths, relative to a dataset's table.
pub use crate::delta::BUNDLES;

const MAGIC: &[u8; 8] = b"FBTXT\0\0\x01";
/// Length of the table (u64), its digest (16 bytes of BLAKE3), the magic with the version of the layout.
const TAIL: usize = 8 + 16 + 8;
/// A table is a few kilobytes; a longer one is not ours.
const MAX_TABLE: u64 = 16 << 20;

/// What the end of a bundle says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Table {
    /// File name -> first byte and the one behind its last.
    files: BTreeMap<String, (u64, u64)>,
    /// The hot bytes: where they lie in the object, and their digest.
    hot: (u64, u64),
    hot_digest: String,
    /// Which ranges of which file the hot bytes are, in order: (file, from, to).
    ranges: Vec<(String, u64, u64)>,
    /// What the maker wants to know when it opens the bundle.
    about: serde_json::Value,
}

fn digest(bytes: &[u8]) -> String {
    short(&blake3::hash(bytes))
}

fn short(hash: &blake3::Hash) -> String {
    let mut hex = hash.to_hex().to_string();
    hex.truncate(32);
    hex
}

impl Table {
    /// Table and tail as they stand at the object's end.
    fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self).map_err(|e| Error::internal(format!("a bundle's table can't be written: {e}")))?;
        let (length, hash) = (bytes.len() as u64, blake3::hash(&bytes));
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&hash.as_bytes()[..16]);
        bytes.extend_from_slice(MAGIC);
        Ok(bytes)
    }

    /// Where the table lies in an object of `size` bytes, by its tail.
    fn place(tail: &[u8], size: u64) -> Result<Range<u64>> {
        let refuse = |what: &str| Err(Error::corrupt(format!("it is not an index bundle: {what}")));
        let (Some(magic), Some(length)) = (tail.get(TAIL - 8..TAIL), tail.first_chunk::<8>()) else { return refuse("it is too short") };
        if magic[..5] != MAGIC[..5] {
            return refuse("its end is something else");
        }
        if magic != MAGIC {
            return Err(Error::unsupported("it was written by a newer version").with_remedy("build the index again, or use that version"));
        }
        let length = u64::from_le_bytes(*length);
        let end = size.saturating_sub(TAIL as u64);
        if length > MAX_TABLE || length > end {
            return refuse("its table is longer than itself");
        }
        Ok(end - length..end)
    }

    /// Reads the table and checks that everything it names is inside the object.
    fn decode(table: &[u8], tail: &[u8], end: u64) -> Result<Self> {
        let corrupt = |what: String| Error::corrupt(format!("its table is damaged: {what}"));
        if tail.get(8..24) != Some(&blake3::hash(table).as_bytes()[..16]) {
            return Err(corrupt("the digest differs".into()));
        }
        let found: Self = serde_json::from_slice(table).map_err(|e| corrupt(e.to_string()))?;
        let inside = |from: u64, to: u64, end: u64| from <= to && to <= end;
        let files = found.files.values().all(|(from, to)| inside(*from, *to, end));
        let ranges = found
            .ranges
            .iter()
            .all(|(file, from, to)| found.files.get(file).is_some_and(|(a, b)| inside(*from, *to, b.saturating_sub(*a))));
        let covered = found.ranges.iter().fold(0u64, |sum, (_, from, to)| sum.saturating_add(to.saturating_sub(*from)));
        if !files || !ranges || !inside(found.hot.0, found.hot.1, end) || covered != found.hot.1 - found.hot.0 {
            return Err(corrupt("it names bytes outside of the object".into()));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
