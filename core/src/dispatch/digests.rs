//! Digests of the batches of a window, 8 bytes each and a little for every 64 places.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const PLACES: u32 = 64;
/// A chunk's memory grows by so many digests: batches are sent in blocks.
const GROWTH: usize = 8;

/// Place in the window and digest, in order of places. Written as pairs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Digests(Vec<Chunk>);

/// The digests of 64 places.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chunk {
    /// Its first place, divided by 64.
    number: u32,
    /// Which of the places have a digest, from the lowest bit on.
    there: u64,
    values: Vec<u64>,
}

impl Chunk {
    /// Where the digest of a place is among the values, or would be.
    fn index(&self, bit: u64) -> usize {
        (self.there & (bit - 1)).count_ones() as usize
    }
}

fn place(at: u32) -> (u32, u64) {
    (at / PLACES, 1 << (at % PLACES))
}

impl Digests {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, at: u32) -> Option<u64> {
        let (number, bit) = place(at);
        let chunk = &self.0[self.0.binary_search_by_key(&number, |c| c.number).ok()?];
        (chunk.there & bit != 0).then(|| chunk.values[chunk.index(bit)])
    }

    pub(super) fn set(&mut self, at: u32, digest: u64) {
        let (number, bit) = place(at);
        let found = self.0.binary_search_by_key(&number, |c| c.number);
        if let Err(index) = found {
            if self.0.len() == self.0.capacity() {
                self.0.reserve_exact(1 + self.0.len() / 8);
            }
            self.0.insert(index, Chunk { number, there: 0, values: Vec::new() });
        }
        let (Ok(index) | Err(index)) = found;
        let chunk = &mut self.0[index];
        let index = chunk.index(bit);
        if chunk.there & bit != 0 {
            chunk.values[index] = digest;
            return;
        }
        if chunk.values.len() == chunk.values.capacity() {
            chunk.values.reserve_exact(GROWTH);
        }
        chunk.values.insert(index, digest);
        chunk.there |= bit;
    }

    /// Forgets the digests of places `[from, to)`.
    pub(super) fn forget(&mut self, from: u32, to: u32) {
        self.0.retain_mut(|chunk| {
            let first = chunk.number * PLACES;
            if first >= to || first.saturating_add(PLACES) <= from {
                return true;
            }
            if from <= first && to - first >= PLACES {
                return false;
            }
            let mut bits = chunk.there;
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits ^= bit;
                if (from..to).contains(&(first + bit.trailing_zeros())) {
                    chunk.values.remove(chunk.index(bit));
                    chunk.there ^= bit;
                }
            }
            chunk.values.shrink_to_fit();
            chunk.there != 0
        });
        self.0.shrink_to(self.0.len() + self.0.len() / 8);
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let places = |c: &Chunk| {
            let (first, there) = (c.number * PLACES, c.there);
            (0..PLACES).filter(move |i| there & (1 << i) != 0).map(move |i| first + i)
        };
        self.0.iter().flat_map(move |c| places(c).zip(c.values.iter().copied()))
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.0.capacity() * size_of::<Chunk>() + self.0.iter().map(|c| c.values.capacity() * size_of::<u64>()).sum::<usize>()
    }
}

impl FromIterator<(u32, u64)> for Digests {
    fn from_iter<T: IntoIterator<Item = (u32, u64)>>(pairs: T) -> Self {
        let mut digests = Self::default();
        for (at, digest) in pairs {
            digests.set(at, digest);
        }
        digests
    }
}

impl Serialize for Digests {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Digests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<(u32, u64)>::deserialize(deserializer)?.into_iter().collect())
    }
}
