#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

fn ratios(values: &[f64]) -> Vec<(String, f64)> {
    values.iter().enumerate().map(|(i, r)| (format!("s{i}"), *r)).collect()
}

/// Stored rows carry their split: these values may never change.
#[test]
fn the_assignment_is_pinned() {
    let r = ratios(&[0.8, 0.1, 0.1]);
    let by_key: String = (0..40).map(|id| char::from(b'0' + hash_split(42, id, 0, &r) as u8)).collect();
    let by_group: String = (0..40u8).map(|v| char::from(b'0' + group_split(42, &[v], &r) as u8)).collect();
    assert_eq!(by_key, PINNED_BY_KEY);
    assert_eq!(by_group, PINNED_BY_GROUP);
}

const PINNED_BY_KEY: &str = "0022000100000000200022200000000000000100";
const PINNED_BY_GROUP: &str = "0000000100002220000000010201002000000000";

#[test]
fn hashing_comes_near_the_ratios() {
    let r = ratios(&[0.7, 0.2, 0.1]);
    let mut counts = [0u32; 3];
    for id in 0..100_000 {
        counts[hash_split(1, id, 0, &r)] += 1;
    }
    for (count, ratio) in counts.iter().zip([0.7, 0.2, 0.1]) {
        let share = f64::from(*count) / 100_000.0;
        assert!((share - ratio).abs() < 0.01, "{share} for {ratio}");
    }
}

#[test]
fn thresholds_end_where_the_ratios_do() {
    assert_eq!(thresholds(&ratios(&[1.0])), Vec::<u64>::new());
    assert_eq!(thresholds(&ratios(&[0.5, 0.5])), [1 << 63]);
    assert_eq!(place(u64::MAX, &thresholds(&ratios(&[0.5, 0.5]))), 1);
    assert_eq!(thresholds(&ratios(&[1.0, 1e-9])), [u64::MAX]);
}

#[test]
fn largest_remainder_of_known_cases() {
    assert_eq!(largest_remainder(10, &ratios(&[0.8, 0.1, 0.1])), [8, 1, 1]);
    assert_eq!(largest_remainder(7, &ratios(&[0.8, 0.1, 0.1])), [5, 1, 1]);
    assert_eq!(largest_remainder(1, &ratios(&[0.5, 0.5])), [1, 0]);
    assert_eq!(largest_remainder(100, &ratios(&[0.29, 0.71])), [29, 71]);
    assert_eq!(largest_remainder(0, &ratios(&[0.5, 0.5])), [0, 0]);
}

proptest! {
    #[test]
    fn largest_remainder_sums_and_is_within_one(rows in 0u64..1_000_000, weights in prop::collection::vec(1u32..100, 1..6)) {
        let total: u32 = weights.iter().sum();
        let r = ratios(&weights.iter().map(|w| f64::from(*w) / f64::from(total)).collect::<Vec<_>>());
        let counts = largest_remainder(rows, &r);
        prop_assert_eq!(counts.iter().sum::<u64>(), rows);
        for (count, (_, ratio)) in counts.iter().zip(&r) {
            prop_assert!((*count as f64 - rows as f64 * ratio).abs() < 1.0 + 1e-6);
        }
    }

    #[test]
    fn a_fit_gives_each_label_its_exact_shares(seed in any::<u64>(), sizes in prop::collection::vec(0usize..200, 1..5), weights in prop::collection::vec(1u32..20, 1..4)) {
        let total: u32 = weights.iter().sum();
        let r = ratios(&weights.iter().map(|w| f64::from(*w) / f64::from(total)).collect::<Vec<_>>());
        let mut rows = Vec::new();
        for (label, size) in sizes.iter().enumerate() {
            rows.extend((0..*size).map(|i| (label.to_string(), row_hash(seed, (label * 1000 + i) as i64, 0))));
        }
        let mut hashes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        // The order in which workers report rows must not matter.
        for (label, hash) in rows.iter().rev() {
            hashes.entry(label.clone()).or_default().push(*hash);
        }
        let fit = StratifyFit::fit(hashes, &r);
        let stored: StratifyFit = serde_json::from_str(&serde_json::to_string(&fit).unwrap()).unwrap();
        for (label, size) in sizes.iter().enumerate() {
            let mut counts = vec![0u64; r.len()];
            for (_, hash) in rows.iter().filter(|(l, _)| *l == label.to_string()) {
                counts[stored.assign(&label.to_string(), *hash)] += 1;
            }
            prop_assert_eq!(counts, largest_remainder(*size as u64, &r));
        }
    }

    #[test]
    fn a_group_stays_together_and_every_row_has_a_split(seed in any::<u64>(), value in prop::collection::vec(any::<u8>(), 0..40), id in any::<i64>(), part in any::<i32>()) {
        let r = ratios(&[0.5, 0.25, 0.25]);
        prop_assert_eq!(group_split(seed, &value, &r), group_split(seed, &value, &r));
        prop_assert!(hash_split(seed, id, part, &r) < 3);
        prop_assert_eq!(StratifyFit::fit(BTreeMap::new(), &r).assign("new", row_hash(seed, id, part)), hash_split(seed, id, part, &r));
    }
}
