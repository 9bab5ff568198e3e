//! Digests that prove which rows a consumer saw.
//!
//! Owns: the digest of a batch, of a job, and their text form, exactly as `app_metadata` shows them. Any client can recompute them from `_id` and
//! `_part`. Must not know: how rows are read or who received them.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

#[cfg(test)]
mod tests;

/// XXH3-64 (seed 0) over each row's `_id` (i64, little-endian), followed by its `_part` (i32, little-endian) where the dataset has one.
///
/// `parts`, when given, has as many items as `ids`; rows beyond the shorter of the two are not digested.
pub fn batch_digest(ids: &[i64], parts: Option<&[i32]>) -> u64 {
    match parts {
        None => {
            let mut bytes = Vec::with_capacity(ids.len() * 8);
            for id in ids {
                bytes.extend_from_slice(&id.to_le_bytes());
            }
            xxh3_64(&bytes)
        }
        Some(parts) => {
            let mut bytes = Vec::with_capacity(ids.len() * 12);
            for (id, part) in ids.iter().zip(parts) {
                bytes.extend_from_slice(&id.to_le_bytes());
                bytes.extend_from_slice(&part.to_le_bytes());
            }
            xxh3_64(&bytes)
        }
    }
}

/// A job's digest: XXH3-64 over (pass, batch, digest), each u64 little-endian, of its acknowledged, non-padding batches in the order of
/// (pass, batch), each once. Batches may be pushed in any order; of a batch pushed twice the first counts. Holds 24 bytes per batch.
#[derive(Debug, Clone, Default)]
pub struct JobDigest {
    batches: Vec<(u64, u64, u64)>,
    unordered: bool,
}

impl JobDigest {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, pass: u64, batch: u64, digest: u64) {
        if self.batches.last().is_some_and(|(p, b, _)| (*p, *b) >= (pass, batch)) {
            self.unordered = true;
        }
        self.batches.push((pass, batch, digest));
    }

    pub fn finish(mut self) -> u64 {
        if self.unordered {
            // A stable sort, so that the first push of a batch is the one that stays.
            self.batches.sort_by_key(|(pass, batch, _)| (*pass, *batch));
            self.batches.dedup_by_key(|(pass, batch, _)| (*pass, *batch));
        }
        let mut hash = Xxh3::new();
        for (pass, batch, digest) in &self.batches {
            hash.update(&pass.to_le_bytes());
            hash.update(&batch.to_le_bytes());
            hash.update(&digest.to_le_bytes());
        }
        hash.digest()
    }
}

/// XXH3-64 over byte strings in order, each with its length before it (u64, little-endian).
#[derive(Clone, Default)]
pub struct BytesDigest(Xxh3);

impl std::fmt::Debug for BytesDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BytesDigest({})", hex(self.finish()))
    }
}

impl BytesDigest {
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// 16 lower-case hex digits.
pub fn hex(digest: u64) -> String {
    format!("{digest:016x}")
}

/// Reads what [`hex`] wrote; `None` for anything else.
pub fn from_hex(text: &str) -> Option<u64> {
    if text.len() != 16 || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}
