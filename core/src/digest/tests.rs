#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;

/// Values computed with Python's `xxhash.xxh3_64_intdigest` over `struct.pack` of the same rows.
#[test]
fn known_values() {
    assert_eq!(batch_digest(&[], None), 0x2d06_8005_38d3_94c2);
    assert_eq!(batch_digest(&[1, 2, 3], None), 0x7c68_b490_6e7e_a780);
    assert_eq!(batch_digest(&[1, -5], Some(&[0, 7])), 0x59ca_2569_fafa_c2e8);
    let ids: Vec<i64> = (0..300).collect();
    assert_eq!(batch_digest(&ids, None), 0xd095_03d9_521d_89e8);
    let mut job = JobDigest::new();
    job.push(0, 0, 11);
    job.push(0, 1, 22);
    assert_eq!(job.finish(), 0x3ccb_fb3b_e9cc_9b56);
    assert_eq!(JobDigest::new().finish(), 0x2d06_8005_38d3_94c2);
}

#[test]
fn text_form() {
    assert_eq!(hex(0xab), "00000000000000ab");
    assert_eq!(from_hex("00000000000000ab"), Some(0xab));
    for bad in ["", "ab", "+0000000000000ab", "00000000000000ag", "000000000000000ab"] {
        assert_eq!(from_hex(bad), None, "{bad}");
    }
}

proptest! {
    /// However acknowledgements arrive, and however often, the job's digest is that of the batches in order.
    #[test]
    fn order_and_repeats_do_not_matter(
        batches in prop::collection::btree_map((0u64..3, 0u64..20), any::<u64>(), 0..30),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let batches: Vec<_> = batches.into_iter().collect();
        let mut ordered = JobDigest::new();
        for ((pass, batch), digest) in &batches {
            ordered.push(*pass, *batch, *digest);
        }
        let mut mixed = JobDigest::new();
        if !batches.is_empty() {
            for pick in &picks {
                let ((pass, batch), digest) = batches[pick.index(batches.len())];
                mixed.push(pass, batch, digest);
            }
        }
        for ((pass, batch), digest) in batches.iter().rev() {
            mixed.push(*pass, *batch, *digest);
        }
        prop_assert_eq!(mixed.finish(), ordered.finish());
    }

    #[test]
    fn hex_round_trip(digest: u64) {
        prop_assert_eq!(from_hex(&hex(digest)), Some(digest));
    }

    /// Swapping two different rows, or changing one, changes the digest.
    #[test]
    fn rows_and_their_order_matter(mut ids in prop::collection::vec(any::<i64>(), 2..40), at in any::<prop::sample::Index>()) {
        let before = batch_digest(&ids, None);
        let at = at.index(ids.len() - 1);
        if ids[at] != ids[at + 1] {
            ids.swap(at, at + 1);
            prop_assert_ne!(batch_digest(&ids, None), before);
        }
        let parts = vec![0; ids.len()];
        prop_assert_ne!(batch_digest(&ids, Some(&parts)), batch_digest(&ids, None));
    }
}
