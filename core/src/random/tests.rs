#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Rng, call_key, draw, key, mix64, shuffle, text_key};
use proptest::prelude::*;
use std::collections::HashSet;

/// Computed by an independent implementation; the splitmix64 values are its published test vector.
#[test]
fn golden_values() {
    assert_eq!([mix64(0), mix64(1), mix64(u64::MAX)], [0, 0x5692_161d_100b_05e5, 0xb4d0_55fc_f2cb_bd7b]);
    let mut rng = Rng::new(0);
    assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    let mut rng = Rng::new(42);
    assert_eq!((0..10).map(|_| rng.below(10)).collect::<Vec<_>>(), [7, 1, 2, 3, 0, 8, 2, 8, 3, 6]);
    let mut rng = Rng::new(7);
    let n = (1 << 63) + 1;
    assert_eq!([rng.below(n), rng.below(n), rng.below(n)], [3595544800446187243, 8308050873407804673, 2300599727732774152]);
    let mut rng = Rng::new(1);
    assert_eq!([rng.unit_f64(), rng.unit_f64()], [0.5665615751722809, 0.7457817572627011]);
    let mut items: Vec<u32> = (0..10).collect();
    shuffle(&mut Rng::new(3), &mut items);
    assert_eq!(items, [5, 7, 2, 8, 3, 9, 0, 4, 6, 1]);
}

#[test]
fn golden_keys() {
    assert_eq!(key(&[]), 0x12c6_e781_74ea_b2f9);
    assert_eq!(key(&[0]), 0x59a2_4328_2efd_2c65);
    assert_eq!(key(&[0, 0]), 0x09c3_f3fc_f092_0581);
    assert_eq!(key(&[1, 2, 3]), 0xc416_8296_3e0f_469f);
    assert_eq!([text_key(""), text_key("augment")], [0x2d06_8005_38d3_94c2, 0x3582_5859_01ce_ffc3]);
    let call = call_key(42, 1, "augment", 0);
    assert_eq!(call, 0x75aa_8d0e_d94f_95ec);
    let draws = [draw(call, 0, 0), draw(call, 1, 0), draw(call, -1, -1), draw(call, 0, 1)];
    assert_eq!(draws, [0x75dc_d6d2_bffa_71a6, 0x383c_1545_7175_5f40, 0xdd4d_6e0b_f0ee_6486, 0xea8d_d86d_1407_50cf]);
}

/// Every part of the key changes the draws, and neighbours do not collide.
#[test]
fn draws_depend_on_every_part_of_the_key() {
    let mut seen = HashSet::new();
    for seed in 0..3 {
        for epoch in 0..3 {
            for step in ["a", "b"] {
                for ordinal in 0..3 {
                    let call = call_key(seed, epoch, step, ordinal);
                    for id in -5..5 {
                        for part in -1..3 {
                            assert!(
                                seen.insert(draw(call, id, part)),
                                "seed {seed} epoch {epoch} step {step} call {ordinal} id {id} part {part}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Chi-squared over the draws of consecutive ids, which is how datasets number their rows.
#[test]
fn draws_of_consecutive_ids_are_uniform() {
    let call = call_key(1, 0, "step", 0);
    for shift in [0, 28, 56] {
        let mut bins = [0u32; 256];
        for id in 0..256_000 {
            bins[((draw(call, id, 0) >> shift) & 255) as usize] += 1;
        }
        let chi2: f64 = bins.iter().map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0).sum();
        // 255 degrees of freedom: mean 255, deviation 22.6; five deviations either way.
        assert!((142.0..368.0).contains(&chi2), "bits from {shift}: {chi2}");
    }
}

#[test]
fn below_nothing_is_zero() {
    let mut rng = Rng::new(9);
    assert_eq!([rng.below(0), rng.below(1)], [0, 0]);
}

/// All 24 orders of four items come up equally often.
#[test]
fn all_orders_are_equally_likely() {
    let mut counts = std::collections::HashMap::new();
    for seed in 0..24_000u64 {
        let mut items = [0, 1, 2, 3];
        shuffle(&mut Rng::new(key(&[seed])), &mut items);
        *counts.entry(items).or_insert(0u32) += 1;
    }
    assert_eq!(counts.len(), 24);
    let chi2: f64 = counts.values().map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0).sum();
    assert!(chi2 < 57.0, "{chi2}");
}

proptest! {
    #[test]
    fn below_stays_below(seed: u64, n in 1u64..) {
        let mut rng = Rng::new(seed);
        for _ in 0..20 {
            prop_assert!(rng.below(n) < n);
        }
    }

    #[test]
    fn shuffling_keeps_every_item(seed: u64, len in 0usize..300) {
        let mut items: Vec<usize> = (0..len).collect();
        shuffle(&mut Rng::new(seed), &mut items);
        items.sort_unstable();
        prop_assert_eq!(items, (0..len).collect::<Vec<_>>());
    }
}
