//! Digests of the batches of a window, 8 bytes each: places come in runs.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Place in the window and digest, in order of places. Written as pairs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Digests {
    runs: Vec<(u32, u32)>,
    values: Vec<u64>,
}

impl Digests {
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The run that holds `at` or comes before it, and how many values come before that run.
    fn find(&self, at: u32) -> (usize, usize) {
        let after = self.runs.partition_point(|r| r.0 <= at);
        let index = after.saturating_sub(1);
        (index, self.runs[..index].iter().map(|(from, to)| (to - from) as usize).sum())
    }

    pub fn get(&self, at: u32) -> Option<u64> {
        let (index, before) = self.find(at);
        let (from, to) = *self.runs.get(index)?;
        (from..to).contains(&at).then(|| self.values[before + (at - from) as usize])
    }

    pub(super) fn set(&mut self, at: u32, digest: u64) {
        let (index, before) = self.find(at);
        let Some((from, to)) = self.runs.get(index).copied() else {
            self.runs.push((at, at + 1));
            self.values.push(digest);
            return;
        };
        if at < from {
            self.values.insert(before, digest);
            self.runs.insert(index, (at, at + 1));
            self.join(index);
            return;
        }
        let place = before + (at.min(to) - from) as usize;
        if at < to {
            self.values[place] = digest;
            return;
        }
        self.values.insert(place, digest);
        if at == to {
            self.runs[index].1 += 1;
            self.join(index);
        } else {
            self.runs.insert(index + 1, (at, at + 1));
            self.join(index + 1);
        }
    }

    fn join(&mut self, index: usize) {
        if let Some(next) = self.runs.get(index + 1).copied()
            && self.runs[index].1 == next.0
        {
            self.runs[index].1 = next.1;
            self.runs.remove(index + 1);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.runs.iter().flat_map(|(from, to)| *from..*to).zip(self.values.iter().copied())
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.runs.capacity() * size_of::<(u32, u32)>() + self.values.capacity() * size_of::<u64>()
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
