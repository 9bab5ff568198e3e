//! Which rows of an epoch pass a job's filter: a bitmap per row group, found once when a pass starts and pinned to its version.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{Error, Result};

#[cfg(test)]
#[path = "selection_tests.rs"]
mod tests;

const MAGIC: &[u8; 8] = b"FBSEL\x01\0\0";
/// Magic, number of row groups, checksum.
const FRAME: usize = 8 + 4 + 8;

/// One row group's rows while they are being judged, in row order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bitmap {
    rows: u32,
    count: u32,
    words: Vec<u64>,
}

impl Bitmap {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the next row's verdict. Fails beyond 2^32-1 rows in one row group.
    pub fn push(&mut self, passes: bool) -> Result<()> {
        let rows = self.rows.checked_add(1).ok_or_else(too_many_rows)?;
        if self.rows.is_multiple_of(64) {
            self.words.push(0);
        }
        if passes {
            if let Some(word) = self.words.last_mut() {
                *word |= 1 << (self.rows % 64);
            }
            self.count += 1;
        }
        self.rows = rows;
        Ok(())
    }

    pub fn extend(&mut self, verdicts: impl IntoIterator<Item = bool>) -> Result<()> {
        verdicts.into_iter().try_for_each(|passes| self.push(passes))
    }

    pub fn rows(&self) -> u64 {
        u64::from(self.rows)
    }
}

fn too_many_rows() -> Error {
    Error::bad_input("a row group has more than 4,294,967,295 rows and can't be filtered")
        .with_remedy("materialize it with smaller row groups")
}

/// The words stay only where they say something: a group of which no row or every row passes is two numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    rows: u32,
    count: u32,
    words: Option<Box<[u64]>>,
}

/// The rows that pass, per row group in (task, part, row group) order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    groups: Vec<Group>,
    total: u64,
}

impl Selection {
    pub fn from_bitmaps(bitmaps: impl IntoIterator<Item = Bitmap>) -> Self {
        let groups: Vec<Group> = bitmaps
            .into_iter()
            .map(|b| {
                let mixed = b.count > 0 && b.count < b.rows;
                Group { rows: b.rows, count: b.count, words: mixed.then(|| b.words.into_boxed_slice()) }
            })
            .collect();
        let total = groups.iter().map(|g| u64::from(g.count)).sum();
        Self { groups, total }
    }

    /// Number of row groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Rows that pass, over all row groups.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Rows of row group `group` that pass; 0 beyond the last group.
    pub fn count(&self, group: usize) -> u64 {
        self.groups.get(group).map_or(0, |g| u64::from(g.count))
    }

    /// All rows of row group `group`, passing or not; 0 beyond the last group.
    pub fn group_rows(&self, group: usize) -> u64 {
        self.groups.get(group).map_or(0, |g| u64::from(g.rows))
    }

    /// The physical row of the `k`-th passing row of `group`; `None` beyond the last.
    pub fn nth(&self, group: usize, k: u64) -> Option<u32> {
        self.rows(group, k, 1).first().copied()
    }

    /// Physical row offsets inside `group` of its passing rows `start .. start + len`, ascending; fewer when it has fewer.
    pub fn rows(&self, group: usize, start: u64, len: u64) -> Vec<u32> {
        let Some(g) = self.groups.get(group) else { return Vec::new() };
        let start = start.min(u64::from(g.count)) as u32;
        let len = len.min(u64::from(g.count - start)) as u32;
        let Some(words) = &g.words else { return (start..start + len).collect() };
        let mut rows = Vec::with_capacity(len as usize);
        let mut before = 0u32;
        for (i, word) in words.iter().enumerate() {
            let base = i as u32 * 64;
            let ones = word.count_ones();
            if before + ones > start {
                let mut word = *word;
                let mut k = before;
                while word != 0 {
                    if rows.len() == len as usize {
                        return rows;
                    }
                    if k >= start {
                        rows.push(base + word.trailing_zeros());
                    }
                    word &= word - 1;
                    k += 1;
                }
            }
            before += ones;
        }
        rows
    }

    /// A key of the whole content: equal selections have equal keys.
    pub fn key(&self) -> u64 {
        let mut hash = Xxh3::new();
        for group in &self.groups {
            hash.update(&group.rows.to_le_bytes());
            hash.update(&group.count.to_le_bytes());
            for word in group.words.iter().flat_map(|w| w.iter()) {
                hash.update(&word.to_le_bytes());
            }
        }
        hash.digest()
    }

    /// Bytes held in memory.
    pub fn memory(&self) -> usize {
        let words: usize = self.groups.iter().filter_map(|g| g.words.as_ref()).map(|w| w.len() * 8).sum();
        self.groups.capacity() * size_of::<Group>() + words
    }

    /// Little-endian: magic, number of groups (u32), per group rows and count (u32 each) and, where some but not all pass, its 64-bit words
    /// (row r is bit r mod 64 of word r div 64); at the end XXH3-64 of everything before.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FRAME + self.memory());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(self.groups.len() as u32).to_le_bytes());
        for group in &self.groups {
            bytes.extend_from_slice(&group.rows.to_le_bytes());
            bytes.extend_from_slice(&group.count.to_le_bytes());
            for word in group.words.iter().flat_map(|w| w.iter()) {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        let sum = xxh3_64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads what [`Selection::to_bytes`] wrote; `Corrupt` for anything else. Allocates no more than the input's own size.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let corrupt =
            |what: &str| Error::corrupt(format!("stored selection: {what}")).with_remedy("start the job again under another name");
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or_else(|| corrupt("too short"))?;
        if bytes.len() < FRAME || !body.starts_with(MAGIC) {
            return Err(corrupt("not a selection, or of another version"));
        }
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err(corrupt("checksum differs"));
        }
        let mut rest = &body[MAGIC.len()..];
        let groups = take_u32(&mut rest).ok_or_else(|| corrupt("too short"))?;
        if rest.len() / 8 < groups as usize {
            return Err(corrupt("too short for its row groups"));
        }
        let mut out = Vec::with_capacity(groups as usize);
        let mut total = 0;
        for _ in 0..groups {
            let group = take_group(&mut rest).ok_or_else(|| corrupt("a row group's bitmap and its count differ"))?;
            total += u64::from(group.count);
            out.push(group);
        }
        if !rest.is_empty() {
            return Err(corrupt("bytes left over"));
        }
        Ok(Self { groups: out, total })
    }
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (head, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    Some(u32::from_le_bytes(*head))
}

fn take_group(rest: &mut &[u8]) -> Option<Group> {
    let rows = take_u32(rest)?;
    let count = take_u32(rest)?;
    if count > rows {
        return None;
    }
    if count == 0 || count == rows {
        return Some(Group { rows, count, words: None });
    }
    let (head, tail) = rest.split_at_checked((rows as usize).div_ceil(64) * 8)?;
    *rest = tail;
    let words: Box<[u64]> = head.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
    let ones: u32 = words.iter().map(|w| w.count_ones()).sum();
    let beyond = words.last().is_some_and(|w| rows % 64 != 0 && *w >> (rows % 64) != 0);
    (ones == count && !beyond).then_some(Group { rows, count, words: Some(words) })
}
