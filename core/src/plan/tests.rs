#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Bitmap, PassId, Plan, PlanRowGroup, PlanSettings, Selection, Window, window_rows};
use crate::error::Kind;
use crate::ids::{BatchId, WindowId};
use crate::job::End;
use crate::pipeline::Shuffle;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) fn settings(seed: u64, pass: u32, batch_size: u64, window_bytes: u64, shuffle: Shuffle) -> PlanSettings {
    PlanSettings { seed, pass: PassId(pass), batch_size, window_bytes, shuffle, round_size: 1, end: End::Short }
}

pub(super) fn groups(rows: &[u64]) -> Vec<PlanRowGroup> {
    rows.iter().map(|rows| PlanRowGroup { rows: *rows, bytes: rows * 10 }).collect()
}

/// A batch's rows as (row group, physical row), by the steps that a worker takes.
pub(super) fn rows_of(plan: &Plan, batch: u64) -> Vec<(u32, u64)> {
    let batch = BatchId(batch);
    let window = plan.window(plan.window_of(batch));
    let flat: Vec<(u32, u64)> = window
        .pieces
        .iter()
        .flat_map(|piece| match plan.physical_rows(piece) {
            Some(rows) => rows.into_iter().map(|row| (piece.row_group, u64::from(row))).collect::<Vec<_>>(),
            None => (piece.start..piece.start + piece.len).map(|row| (piece.row_group, row)).collect(),
        })
        .collect();
    assert_eq!(flat.len() as u64, window.rows);
    let order = plan.window_order(window.id);
    let rows = plan.batch_rows(batch);
    order[rows.start as usize..rows.end as usize].iter().map(|offset| flat[*offset as usize]).collect()
}

pub(super) fn all_batches(plan: &Plan) -> Vec<Vec<(u32, u64)>> {
    (0..plan.batches()).map(|b| rows_of(plan, b)).collect()
}

/// Computed by an independent implementation of DESIGN's section on the plan. A change here changes the batches of every existing job.
#[test]
fn golden_plan() {
    let plan = Plan::new(&groups(&[5, 3, 4, 0, 6]), None, settings(7, 2, 4, 90, Shuffle::Window)).unwrap();
    assert_eq!((plan.rows(), plan.window_rows(), plan.windows(), plan.batches(), plan.batches_per_window()), (18, 8, 3, 5, 2));
    let expected: Vec<Vec<(u32, u64)>> = vec![
        vec![(2, 2), (2, 1), (1, 1), (1, 2)],
        vec![(4, 0), (2, 3), (2, 0), (1, 0)],
        vec![(4, 4), (4, 3), (0, 1), (4, 2)],
        vec![(4, 5), (0, 0), (0, 2), (4, 1)],
        vec![(0, 4), (0, 3)],
    ];
    assert_eq!(all_batches(&plan), expected);
}

#[test]
fn window_arithmetic() {
    // 1,000 rows of 100 bytes: a window of 1,000 bytes holds 10 rows, in whole rounds.
    assert_eq!(window_rows(1_000, 1_000, 100_000, 4, 1).unwrap(), 8);
    assert_eq!(window_rows(1_000, 1_000, 100_000, 4, 2).unwrap(), 8);
    assert_eq!(window_rows(1_000, 1_000, 100_000, 4, 4).unwrap(), 16);
    assert_eq!(window_rows(1_000, 1_000, 100_000, 64, 1).unwrap(), 64, "at least one round");
    assert_eq!(window_rows(1_000, 1_000, 0, 64, 2).unwrap(), 128, "no bytes: one round");
    assert_eq!(window_rows(1_000, 0, 0, 64, 1).unwrap(), 64, "no rows");
    assert_eq!(window_rows(u64::MAX, u64::MAX, 1, 3, 1).unwrap(), u64::MAX / 3 * 3, "clamped to whole rounds");
    assert_eq!(window_rows(1, 1, 1, 0, 1).unwrap_err().kind, Kind::BadInput);
    assert_eq!(window_rows(1, 1, 1, 1, 0).unwrap_err().kind, Kind::BadInput);
    assert_eq!(window_rows(1, 1, 1, u64::MAX, 2).unwrap_err().kind, Kind::BadInput);
}

#[test]
fn an_empty_epoch_has_no_batches() {
    for rows in [vec![], vec![0, 0]] {
        let plan = Plan::new(&groups(&rows), None, settings(0, 0, 8, 1 << 20, Shuffle::Window)).unwrap();
        assert_eq!((plan.rows(), plan.batches(), plan.windows()), (0, 0, 0));
        assert_eq!(plan.window(WindowId(0)), Window { id: WindowId(0), pieces: vec![], rows: 0 });
        assert!(
            plan.batches_of(WindowId(0)).is_empty() && plan.window_order(WindowId(0)).is_empty() && plan.batch_rows(BatchId(0)).is_empty()
        );
    }
}

#[test]
fn beyond_the_end_there_is_nothing() {
    let plan = Plan::new(&groups(&[5, 3]), None, settings(1, 0, 3, 30, Shuffle::Window)).unwrap();
    for far in [plan.windows(), u64::MAX] {
        assert!(plan.window(WindowId(far)).pieces.is_empty());
        assert!(plan.window_order(WindowId(far)).is_empty());
        assert!(plan.batches_of(WindowId(far)).is_empty());
    }
    assert!(plan.batch_rows(BatchId(plan.batches())).is_empty() && plan.batch_rows(BatchId(u64::MAX)).is_empty());
}

#[test]
fn drop_names_the_short_batch_and_changes_no_rows() {
    let short = Plan::new(&groups(&[5, 3]), None, settings(1, 0, 3, 30, Shuffle::Window)).unwrap();
    let drop = Plan::new(&groups(&[5, 3]), None, PlanSettings { end: End::Drop, ..*short.settings() }).unwrap();
    assert_eq!((short.batches(), short.dropped()), (3, 3..3));
    assert_eq!((drop.batches(), drop.dropped()), (3, 2..3));
    assert_eq!(all_batches(&short), all_batches(&drop));
    let even = Plan::new(&groups(&[4, 2]), None, PlanSettings { end: End::Drop, ..*short.settings() }).unwrap();
    assert_eq!((even.batches(), even.dropped()), (2, 2..2));
}

#[test]
fn a_window_that_memory_cannot_hold_is_refused() {
    let huge = [PlanRowGroup { rows: 1 << 40, bytes: 10 }];
    let error = Plan::new(&huge, None, settings(0, 0, 256, 1 << 28, Shuffle::Window)).unwrap_err();
    assert_eq!(error.kind, Kind::ResourceExhausted);
    assert!(error.remedy.unwrap().contains("window"));
    let overflow = [PlanRowGroup { rows: u64::MAX, bytes: u64::MAX }, PlanRowGroup { rows: 1, bytes: 1 }];
    assert_eq!(Plan::new(&overflow, None, settings(0, 0, 1, 1, Shuffle::None)).unwrap_err().kind, Kind::ResourceExhausted);
}

#[test]
fn a_billion_rows_in_a_hundred_thousand_row_groups_fit_in_50_mb() {
    let groups = vec![PlanRowGroup { rows: 10_000, bytes: 8 << 20 }; 100_000];
    let plan = Plan::new(&groups, None, settings(1, 0, 256, 256 << 20, Shuffle::Window)).unwrap();
    assert_eq!(plan.rows(), 1_000_000_000);
    let input = groups.capacity() * size_of::<PlanRowGroup>();
    assert!(plan.memory() + input < 50_000_000, "{} + {input} bytes", plan.memory());
    // The last batch of the last window is found without visiting the others.
    assert_eq!(rows_of(&plan, plan.batches() - 1).len() as u64, 1_000_000_000 - (plan.batches() - 1) * 256);
}

/// Passes, seeds and windows each get their own order.
#[test]
fn passes_and_seeds_differ() {
    let groups = groups(&[40; 10]);
    let mut seen = BTreeSet::new();
    for seed in 0..4 {
        for pass in 0..4 {
            let plan = Plan::new(&groups, None, settings(seed, pass, 16, 800, Shuffle::Window)).unwrap();
            assert_eq!(plan.windows(), 5);
            assert!(seen.insert(all_batches(&plan)), "seed {seed}, pass {pass}");
            let orders: BTreeSet<Vec<u32>> = (0..5).map(|w| plan.window_order(WindowId(w))).collect();
            assert_eq!(orders.len(), 5, "windows share an order");
        }
    }
}

#[test]
fn row_groups_shuffle_keeps_rows_inside_in_order() {
    let plan = Plan::new(&groups(&[4; 50]), None, settings(3, 1, 4, 1 << 20, Shuffle::RowGroups)).unwrap();
    let batches = all_batches(&plan);
    for batch in &batches {
        assert_eq!(batch.iter().map(|(_, row)| *row).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
    let order: Vec<u32> = batches.iter().map(|b| b[0].0).collect();
    assert!(!order.is_sorted());
    // `window` visits the row groups in the same order: only the rows inside windows move.
    let window = Plan::new(&groups(&[4; 50]), None, settings(3, 1, 4, 40, Shuffle::Window)).unwrap();
    assert_eq!(all_batches(&window).iter().map(|b| b[0].0).collect::<Vec<_>>(), order);
}

#[test]
fn a_selection_of_other_row_groups_is_refused() {
    let mut bitmap = Bitmap::new();
    bitmap.extend([true, false]).unwrap();
    let selection = Arc::new(Selection::from_bitmaps([bitmap]));
    for rows in [&[3][..], &[2, 1], &[]] {
        let error = Plan::new(&groups(rows), Some(selection.clone()), settings(0, 0, 1, 1, Shuffle::None)).unwrap_err();
        assert_eq!(error.kind, Kind::Corrupt);
    }
    assert_eq!(Plan::new(&groups(&[2]), Some(selection), settings(0, 0, 1, 1, Shuffle::None)).unwrap().rows(), 1);
}

fn any_shuffle() -> impl Strategy<Value = Shuffle> {
    prop_oneof![Just(Shuffle::None), Just(Shuffle::RowGroups), Just(Shuffle::Window), Just(Shuffle::Full)]
}

/// Row groups with, for each row, whether it passes a filter; bytes per row; and settings.
fn any_case() -> impl Strategy<Value = (Vec<Vec<bool>>, u64, PlanSettings)> {
    let rows =
        prop::collection::vec(prop_oneof![prop::collection::vec(any::<bool>(), 0..70), prop::collection::vec(Just(true), 0..20)], 0..12);
    (rows, 0u64..40, any::<u64>(), any::<u32>(), 1u64..40, 0u64..6_000, any_shuffle(), 1u64..4).prop_map(
        |(rows, row_bytes, seed, pass, batch_size, window_bytes, shuffle, round_size)| {
            (rows, row_bytes, PlanSettings { round_size, ..settings(seed, pass, batch_size, window_bytes, shuffle) })
        },
    )
}

fn plan_of(rows: &[Vec<bool>], row_bytes: u64, settings: PlanSettings, filter: bool) -> Plan {
    let groups: Vec<PlanRowGroup> = rows.iter().map(|r| PlanRowGroup { rows: r.len() as u64, bytes: r.len() as u64 * row_bytes }).collect();
    let selection = filter.then(|| {
        Arc::new(Selection::from_bitmaps(rows.iter().map(|r| {
            let mut bitmap = Bitmap::new();
            bitmap.extend(r.iter().copied()).unwrap();
            bitmap
        })))
    });
    Plan::new(&groups, selection, settings).unwrap()
}

proptest! {
    /// The heart of it: whatever the row groups, the window, the batch and the seed, every row that passes comes exactly once.
    #[test]
    fn every_row_exactly_once((rows, row_bytes, settings) in any_case(), filter: bool) {
        let plan = plan_of(&rows, row_bytes, settings, filter);
        let batches = all_batches(&plan);
        let seen: Vec<(u32, u64)> = batches.concat();
        let expected: BTreeSet<(u32, u64)> = rows.iter().enumerate()
            .flat_map(|(g, r)| r.iter().enumerate().filter(move |(_, p)| **p || !filter).map(move |(i, _)| (g as u32, i as u64)))
            .collect();
        prop_assert_eq!(seen.len(), expected.len());
        prop_assert_eq!(&seen.iter().copied().collect::<BTreeSet<_>>(), &expected);
        for (b, batch) in batches.iter().enumerate() {
            let last = b + 1 == batches.len();
            prop_assert!(batch.len() as u64 == settings.batch_size || (last && !batch.is_empty()), "batch {} of {}", b, batches.len());
        }
        if settings.shuffle == Shuffle::None {
            prop_assert!(seen.is_sorted(), "none is storage order");
        }
    }

    /// Windows cut the batches without gap or overlap, and agree with the batches about which is whose.
    #[test]
    fn windows_tile_the_batches((rows, row_bytes, settings) in any_case(), filter: bool) {
        let plan = plan_of(&rows, row_bytes, settings, filter);
        prop_assert_eq!(plan.window_rows() % (settings.batch_size * settings.round_size), 0);
        let mut next = 0;
        for w in 0..plan.windows() {
            let batches = plan.batches_of(WindowId(w));
            prop_assert_eq!(batches.start, next);
            prop_assert!(!batches.is_empty());
            let mut row = 0;
            for b in batches.clone() {
                prop_assert_eq!(plan.window_of(BatchId(b)), WindowId(w));
                prop_assert_eq!(plan.batch_rows(BatchId(b)).start, row);
                row = plan.batch_rows(BatchId(b)).end;
            }
            let window = plan.window(WindowId(w));
            prop_assert_eq!(row, window.rows);
            prop_assert!(window.pieces.iter().all(|p| p.len > 0));
            prop_assert_eq!(window.pieces.iter().map(|p| p.len).sum::<u64>(), window.rows);
            prop_assert!(w + 1 == plan.windows() || window.rows == plan.window_rows());
            next = batches.end;
        }
        prop_assert_eq!(next, plan.batches());
    }

    /// A batch is a function of the plan identity: made alone, in any order, and by any other instance, it is the same.
    #[test]
    fn a_batch_does_not_depend_on_what_was_asked_before((rows, row_bytes, settings) in any_case(), pick: prop::sample::Index) {
        let one = plan_of(&rows, row_bytes, settings, true);
        let two = plan_of(&rows, row_bytes, settings, true);
        prop_assume!(one.batches() > 0);
        let b = pick.index(one.batches() as usize) as u64;
        let alone = rows_of(&one, b);
        prop_assert_eq!(&alone, &all_batches(&two)[b as usize]);
    }
}

fn bucketed(seed: u64, batch_size: u64, round_size: u64, window_bytes: u64, rows: &[u64]) -> Plan {
    let settings = PlanSettings { round_size, ..settings(seed, 0, batch_size, window_bytes, Shuffle::Window) };
    Plan::new(&groups(rows), None, settings).unwrap()
}

#[test]
fn golden_buckets() {
    let plan = bucketed(7, 2, 2, 1_000, &[5, 4]);
    let lengths = [5, 1, 9, 1, 7, 3, 8, 2, 6];
    let order = plan.bucketed_order(WindowId(0), &lengths).unwrap();
    let plain = plan.window_order(WindowId(0));
    assert_eq!(order[8], plain[8], "the row that fills no round stays the last");
    let mut rounds: Vec<Vec<u64>> = order[..8].chunks(4).map(|round| round.iter().map(|row| lengths[*row as usize]).collect()).collect();
    rounds.sort();
    let mut rest: Vec<u64> = plain[..8].iter().map(|row| lengths[*row as usize]).collect();
    rest.sort_unstable();
    assert_eq!(rounds.concat(), rest);
    assert_eq!(plan.bucketed_order(WindowId(0), &lengths[1..]).unwrap_err().kind, Kind::Internal);
}

proptest! {
    /// Batches of a round have neighbouring lengths, every row comes once, and what fills no round stays as the shuffle left it.
    #[test]
    fn rounds_hold_rows_of_neighbouring_lengths(
        seed in 0u64..1_000,
        batch_size in 1u64..6,
        round_size in 1u64..5,
        window_bytes in 10u64..2_000,
        rows in prop::collection::vec(0u64..60, 1..8),
        modulus in 1u64..50,
    ) {
        let plan = bucketed(seed, batch_size, round_size, window_bytes, &rows);
        let round = (batch_size * round_size) as usize;
        for window in (0..plan.windows()).map(WindowId) {
            let plain = plan.window_order(window);
            let lengths: Vec<u64> = (0..plain.len() as u64).map(|i| (i * 7 + seed) % modulus).collect();
            let order = plan.bucketed_order(window, &lengths).unwrap();
            let full = order.len() - order.len() % round;
            prop_assert!(full == order.len() || window.0 + 1 == plan.windows(), "only the last window has a rest");
            prop_assert_eq!(&order[full..], &plain[full..]);
            prop_assert_eq!(order.iter().collect::<BTreeSet<_>>(), plain.iter().collect::<BTreeSet<_>>());
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            for rows in order[..full].chunks(round) {
                let of: Vec<u64> = rows.iter().map(|row| lengths[*row as usize]).collect();
                prop_assert!(of.is_sorted());
                ranges.push((of[0], of[of.len() - 1]));
            }
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", ranges);
            prop_assert!(plan.padding(&order[..full], &lengths) <= plan.padding(&plain[..full], &lengths));
        }
    }
}
