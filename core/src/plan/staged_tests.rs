#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::tests::{all_batches, groups, rows_of, settings};
use super::{Blocks, Plan, PlanRowGroup, PlanSettings, staged_window_rows};
use crate::error::Kind;
use crate::pipeline::Shuffle;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Computed by hand from the rule: windows of 8 rows; blocks {5, 3}, {4, 0, 6}, {2}.
#[test]
fn golden_staged_plan() {
    let groups = groups(&[5, 3, 4, 0, 6, 2]);
    let plan = Plan::staged(&groups, 8, settings(7, 2, 4, 90, Shuffle::None), true).unwrap();
    assert_eq!((plan.rows(), plan.window_rows(), plan.windows(), plan.batches(), plan.batches_per_window()), (20, 8, 3, 5, 2));
    let rows: Vec<(u32, u64)> = all_batches(&plan).concat();
    let expected: Vec<(u32, u64)> =
        [(0, 5), (1, 3), (2, 4), (4, 6), (5, 2)].into_iter().flat_map(|(group, rows)| (0..rows).map(move |row| (group, row))).collect();
    assert_eq!(rows, expected);
}

/// Computed by an independent implementation of the rule; a change here changes the batches of every existing job.
#[test]
fn golden_shuffled_staged_plan() {
    let plan = Plan::staged(&groups(&[5, 3, 4, 0, 6, 2]), 8, settings(7, 2, 4, 90, Shuffle::Window), true).unwrap();
    let expected: Vec<Vec<(u32, u64)>> = vec![
        vec![(1, 0), (0, 4), (0, 1), (0, 2)],
        vec![(1, 2), (1, 1), (0, 3), (0, 0)],
        vec![(2, 3), (2, 2), (4, 2), (2, 1)],
        vec![(4, 0), (4, 1), (4, 3), (2, 0)],
        vec![(5, 0), (5, 1), (4, 4), (4, 5)],
    ];
    assert_eq!(all_batches(&plan), expected);
}

#[test]
fn the_first_task_sets_the_window() {
    let first = [PlanRowGroup { rows: 100, bytes: 1_000 }, PlanRowGroup { rows: 100, bytes: 3_000 }];
    let of = |batch_size, window_bytes| staged_window_rows(&first, &settings(0, 0, batch_size, window_bytes, Shuffle::Window));
    assert_eq!(of(4, 1_000).unwrap(), 48);
    assert_eq!(of(4, 1).unwrap(), 4);
    // Whatever the epoch turns out to be, a window's rows have 32 bits.
    assert_eq!(of(7, u64::MAX).unwrap(), u64::from(u32::MAX) / 7 * 7);
    let huge = PlanSettings { round_size: 1 << 20, ..settings(0, 0, 1 << 20, 1, Shuffle::Window) };
    assert_eq!(staged_window_rows(&first, &huge).unwrap_err().kind, Kind::ResourceExhausted);
    assert_eq!(staged_window_rows(&[], &settings(0, 0, 8, 1_000, Shuffle::Window)).unwrap(), 8);
}

#[test]
fn a_window_is_open_when_its_rows_are_in_full_blocks() {
    let mut blocks = Blocks::default();
    let pushed: Vec<(bool, u64)> =
        [5, 2, 1, 9, 8].into_iter().map(|rows| (blocks.push(rows, 8).unwrap(), blocks.whole_windows(8))).collect();
    assert_eq!(pushed, [(false, 0), (false, 0), (true, 8), (true, 16), (true, 24)]);
}

#[test]
fn an_epoch_without_rows_has_no_batch() {
    for groups in [groups(&[]), groups(&[0, 0])] {
        let plan = Plan::staged(&groups, 8, settings(1, 0, 4, 90, Shuffle::Window), true).unwrap();
        assert_eq!((plan.rows(), plan.windows(), plan.batches()), (0, 0, 0));
    }
}

proptest! {
    /// Any growth history is the replay: what is open while the epoch is written are the first windows of the published epoch's plan, row for row, and
    /// grants may follow what the journal counts.
    #[test]
    fn growing_changes_nothing(
        rows in proptest::collection::vec(0_u64..40, 0..40),
        batch_size in 1_u64..9,
        rounds in 1_u64..6,
        seed: u64,
        pass in 0_u32..3,
        shuffle in prop_oneof![Just(Shuffle::None), Just(Shuffle::RowGroups), Just(Shuffle::Window)],
        cuts in proptest::collection::vec(0_usize..41, 0..6),
    ) {
        let (groups, window_rows) = (groups(&rows), batch_size * rounds);
        let of = |known: usize, complete| Plan::staged(&groups[..known], window_rows, settings(seed, pass, batch_size, 1, shuffle), complete).unwrap();
        let whole = of(groups.len(), true);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(groups.len())).collect();
        cuts.sort_unstable();
        let (mut blocks, mut counted) = (Blocks::default(), 0);
        for known in cuts {
            for group in &groups[counted..known] {
                blocks.push(group.rows, window_rows).unwrap();
            }
            counted = known;
            let part = of(known, false);
            prop_assert_eq!(part.rows(), blocks.whole_windows(window_rows));
            prop_assert_eq!(part.rows() % window_rows, 0);
            prop_assert!(part.windows() <= whole.windows());
            for batch in 0..part.batches() {
                prop_assert_eq!(rows_of(&part, batch), rows_of(&whole, batch));
            }
            for window in (0..part.windows()).map(crate::ids::WindowId) {
                prop_assert_eq!(part.window(window), whole.window(window));
            }
        }
    }

    /// Every row is in one batch, and a row group is no further from its staged place than about a window.
    #[test]
    fn every_row_once_and_near_its_place(rows in proptest::collection::vec(0_u64..40, 0..40), window in 1_u64..100, seed: u64) {
        let groups = groups(&rows);
        let plan = Plan::staged(&groups, window, settings(seed, 0, 1, 1, Shuffle::RowGroups), true).unwrap();
        let all: Vec<(u32, u64)> = all_batches(&plan).concat();
        let expected: BTreeSet<(u32, u64)> = (0_u32..).zip(&rows).flat_map(|(g, rows)| (0..*rows).map(move |row| (g, row))).collect();
        prop_assert_eq!(all.len(), expected.len());
        prop_assert_eq!(all.iter().copied().collect::<BTreeSet<_>>(), expected);
        let starts: Vec<u64> = rows.iter().scan(0, |sum, rows| { let start = *sum; *sum += rows; Some(start) }).collect();
        let largest = rows.iter().copied().max().unwrap_or(0);
        for (position, (group, row)) in (0_u64..).zip(all) {
            prop_assert!(position.abs_diff(starts[group as usize] + row) < window + largest);
        }
    }
}
