//! Which of train, val and test a row belongs to: pure functions of the pipeline's seed and the row, equal in every epoch, on every host
//! and for any number of workers.
//!
//! Owns: the three ways to split. Must not know: columns, batches, where a fit is stored.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::random;

/// Hash of a row's key; what [`hash_split`] and [`StratifyFit`] compare with thresholds. `part` is 0 where the dataset has none.
pub fn row_hash(seed: u64, id: i64, part: i32) -> u64 {
    random::key(&[seed, random::text_key("split"), id.cast_unsigned(), u64::from(part.cast_unsigned())])
}

/// Index of the ratio that the row's key falls to.
pub fn hash_split(seed: u64, id: i64, part: i32, ratios: &[(String, f64)]) -> usize {
    place(row_hash(seed, id, part), &thresholds(ratios))
}

/// Index of the ratio that all rows of one group value (its bytes, as stored) fall to.
pub fn group_split(seed: u64, value: &[u8], ratios: &[(String, f64)]) -> usize {
    let hash = random::key(&[seed, random::text_key("split group"), xxhash_rust::xxh3::xxh3_64(value)]);
    place(hash, &thresholds(ratios))
}

/// Exclusive upper bounds on a hash for all splits but the last, which takes the rest. Make them once for many rows.
pub fn thresholds(ratios: &[(String, f64)]) -> Vec<u64> {
    let mut sum = 0.0;
    ratios
        .iter()
        .take(ratios.len().saturating_sub(1))
        .map(|(_, ratio)| {
            sum += ratio;
            // 53 bits are all that a float holds; the conversion saturates.
            ((sum * (1u64 << 53) as f64).round() as u64).min(1 << 53).checked_shl(11).filter(|_| sum < 1.0).unwrap_or(u64::MAX)
        })
        .collect()
}

/// Index of the first threshold above the hash.
pub fn place(hash: u64, thresholds: &[u64]) -> usize {
    thresholds.iter().position(|t| hash < *t).unwrap_or(thresholds.len())
}

/// Exact ratios within each value of a column: thresholds on [`row_hash`], fitted once over all rows of the source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StratifyFit {
    /// Label -> exclusive upper bounds, as of [`thresholds`].
    pub labels: BTreeMap<String, Vec<u64>>,
    /// For labels that the fit has not seen.
    pub default: Vec<u64>,
}

impl StratifyFit {
    /// Gives each label's rows to the splits by largest remainder, in the order of their hashes.
    pub fn fit(hashes: BTreeMap<String, Vec<u64>>, ratios: &[(String, f64)]) -> Self {
        let labels = hashes.into_iter().map(|(label, hashes)| (label, cut(hashes, ratios))).collect();
        Self { labels, default: thresholds(ratios) }
    }

    /// Index of the split of a row.
    pub fn assign(&self, label: &str, hash: u64) -> usize {
        place(hash, self.labels.get(label).unwrap_or(&self.default))
    }
}

fn cut(mut hashes: Vec<u64>, ratios: &[(String, f64)]) -> Vec<u64> {
    hashes.sort_unstable();
    let counts = largest_remainder(hashes.len() as u64, ratios);
    let mut end = 0;
    counts
        .iter()
        .take(ratios.len().saturating_sub(1))
        .map(|count| {
            end += usize::try_from(*count).unwrap_or(usize::MAX);
            hashes.get(end).copied().unwrap_or(u64::MAX)
        })
        .collect()
}

/// `rows` divided by the ratios into whole numbers that sum to it: the floors, then one more for the largest fractions, ties by order.
pub fn largest_remainder(rows: u64, ratios: &[(String, f64)]) -> Vec<u64> {
    // 0.29 * 100 is 28.999999999999996: rounding to nine digits first keeps such a share whole.
    let quota: Vec<f64> = ratios.iter().map(|(_, r)| (rows as f64 * r * 1e9).round() / 1e9).collect();
    let mut counts: Vec<u64> = quota.iter().map(|q| q.floor() as u64).collect();
    let mut order: Vec<usize> = (0..ratios.len()).collect();
    order.sort_by(|a, b| (quota[*b].fract()).total_cmp(&quota[*a].fract()).then(a.cmp(b)));
    let mut left = i128::from(rows) - counts.iter().map(|c| i128::from(*c)).sum::<i128>();
    for i in order.iter().cycle().take(2 * ratios.len().max(1)) {
        if left > 0 {
            counts[*i] += 1;
            left -= 1;
        } else if left < 0 && counts[*i] > 0 {
            counts[*i] -= 1;
            left += 1;
        }
    }
    counts
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
