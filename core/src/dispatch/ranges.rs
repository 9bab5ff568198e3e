//! A set of numbers as ranges: which batches of a pass are acknowledged. It costs memory per hole, not per batch.

use serde::{Deserialize, Serialize};

/// Ranges `[from, to)` in order, apart from each other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// `[0, to)`.
    pub fn up_to(to: u64) -> Self {
        Self(if to > 0 { vec![(0, to)] } else { Vec::new() })
    }

    pub fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|r| r.1 < from);
        let last = self.0.partition_point(|r| r.0 <= to);
        let joined = self.0[first..last].iter().fold((from, to), |sum, r| (sum.0.min(r.0), sum.1.max(r.1)));
        self.0.splice(first..last, [joined]);
    }

    pub fn contains(&self, n: u64) -> bool {
        self.end_of(n).is_some()
    }

    /// The end of the range that `n` is in.
    pub fn end_of(&self, n: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|r| r.1 <= n)).filter(|r| r.0 <= n).map(|r| r.1)
    }

    /// Whether all of `[from, to)` is in the set.
    pub fn covers(&self, from: u64, to: u64) -> bool {
        from >= to || self.end_of(from).is_some_and(|end| end >= to)
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// How many ranges there are.
    pub fn parts(&self) -> usize {
        self.0.len()
    }
}
