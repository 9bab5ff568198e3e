#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Bitmap, Selection};
use crate::error::Kind;
use proptest::prelude::*;

fn selection(groups: &[Vec<bool>]) -> Selection {
    Selection::from_bitmaps(groups.iter().map(|rows| {
        let mut bitmap = Bitmap::new();
        bitmap.extend(rows.iter().copied()).unwrap();
        assert_eq!(bitmap.rows(), rows.len() as u64);
        bitmap
    }))
}

/// The stored form of a version-1 selection: these bytes must stay readable.
#[test]
fn stored_form_is_pinned() {
    let stored = selection(&[vec![true, false, true], vec![], vec![true; 70], vec![false; 5]]).to_bytes();
    let hex: String = stored.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        "464253454c01000004000000030000000200000005000000000000000000000000000000460000004600000005000000000000005d67d211ce0bc410"
    );
}

#[test]
fn damage_is_found() {
    let good = selection(&[vec![true, false, true], vec![true; 70]]).to_bytes();
    assert!(Selection::from_bytes(&good).is_ok());
    for cut in 0..good.len() {
        assert_eq!(Selection::from_bytes(&good[..cut]).unwrap_err().kind, Kind::Corrupt);
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 4;
        assert_eq!(Selection::from_bytes(&bad).unwrap_err().kind, Kind::Corrupt, "byte {at}");
    }
}

/// Bytes with a right checksum and wrong content: counts that differ from the bitmap, bits beyond the rows, a million groups in no bytes.
#[test]
fn a_wrong_claim_under_a_right_checksum_is_found() {
    let frame = |body: &[u32], words: &[u64]| {
        let mut bytes = b"FBSEL\x01\0\0".to_vec();
        bytes.extend(body.iter().flat_map(|v| v.to_le_bytes()));
        bytes.extend(words.iter().flat_map(|v| v.to_le_bytes()));
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    };
    assert!(Selection::from_bytes(&frame(&[1, 3, 2], &[0b101])).is_ok());
    for bad in [
        frame(&[1, 3, 2], &[0b1]),
        frame(&[1, 3, 2], &[0b1001]),
        frame(&[1, 3, 4], &[]),
        frame(&[1_000_000], &[]),
        frame(&[1, 3, 2], &[5, 0]),
    ] {
        assert_eq!(Selection::from_bytes(&bad).unwrap_err().kind, Kind::Corrupt);
    }
}

#[test]
fn other_rows_have_another_key() {
    let keys = [vec![vec![true, false]], vec![vec![false, true]], vec![vec![true], vec![false]], vec![vec![true, true]], vec![]];
    let keys: std::collections::BTreeSet<u64> = keys.iter().map(|groups| selection(groups).key()).collect();
    assert_eq!(keys.len(), 5);
}

proptest! {
    #[test]
    fn it_answers_as_a_list_of_rows_would(groups in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.3), 0..200), 0..6), start in 0u64..80, len in 0u64..80) {
        let selection = selection(&groups);
        prop_assert_eq!(selection.groups(), groups.len());
        let mut total = 0;
        for (g, rows) in groups.iter().enumerate() {
            let passing: Vec<u32> = rows.iter().enumerate().filter(|(_, p)| **p).map(|(i, _)| i as u32).collect();
            total += passing.len() as u64;
            prop_assert_eq!(selection.count(g), passing.len() as u64);
            prop_assert_eq!(selection.group_rows(g), rows.len() as u64);
            prop_assert_eq!(selection.nth(g, start), passing.get(start as usize).copied());
            let from = (start as usize).min(passing.len());
            let to = (from + len as usize).min(passing.len());
            prop_assert_eq!(&selection.rows(g, start, len), &passing[from..to]);
        }
        prop_assert_eq!(selection.total(), total);
        prop_assert_eq!(selection.count(groups.len()), 0);
        prop_assert!(selection.rows(groups.len(), 0, 5).is_empty());
        prop_assert_eq!(Selection::from_bytes(&selection.to_bytes()).unwrap().key(), selection.key());
        prop_assert_eq!(&Selection::from_bytes(&selection.to_bytes()).unwrap(), &selection);
    }
}
