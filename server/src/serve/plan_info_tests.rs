#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::fixture::{Fixture, ROOMY, Shape, dataset, settings};
use super::{epoch_of_pass, parse_shuffle, rows_of, step_batches, taken_at};
use crate::serve::pass::PassPlan;
use arrow::array::{ArrayRef, RecordBatch, StringArray, TimestampMillisecondArray, UInt32Array, UInt64Array};
use forebay_core::Kind;
use forebay_core::digest::{batch_digest, hex};
use forebay_core::ids::{EpochId, PassId};
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn steps_are_rounds_of_the_fixed_map() {
    assert_eq!(step_batches(0, None, 10).unwrap(), 0..1);
    assert_eq!(step_batches(3, Some(4), 14).unwrap(), 12..14);
    assert_eq!(step_batches(3, Some(0), 14).unwrap(), 3..4);
    let error = step_batches(4, Some(4), 14).unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.message.contains("4 steps, and no step 4"));
    assert!(step_batches(u64::MAX, Some(7), 14).is_err());
}

#[test]
fn passes_go_round_the_epochs() {
    let epochs = [EpochId(0), EpochId(2), EpochId(3)];
    let of = |pass| epoch_of_pass(&epochs, PassId(pass), &dataset()).unwrap();
    assert_eq!([of(0), of(1), of(2), of(3), of(7)], [0, 2, 3, 0, 2].map(EpochId));
    assert_eq!(epoch_of_pass(&[], PassId(0), &dataset()).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn a_wrong_shuffle_names_the_nearest() {
    let error = parse_shuffle("windwo").unwrap_err();
    assert!(error.to_string().contains("`windwo`") && error.to_string().contains("window"), "{error}");
}

/// (incarnation, pass, batch, consumer, state, at)
type Visit = (u32, u32, u64, Option<&'static str>, &'static str, i64);

fn visits(rows: &[Visit]) -> Vec<RecordBatch> {
    let column = |name: &'static str, column: ArrayRef| (name, column);
    let columns = vec![
        column("incarnation", Arc::new(UInt32Array::from_iter_values(rows.iter().map(|r| r.0)))),
        column("pass", Arc::new(UInt32Array::from_iter_values(rows.iter().map(|r| r.1)))),
        column("batch", Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.2)))),
        column("consumer", Arc::new(rows.iter().map(|r| r.3).collect::<StringArray>())),
        column("state", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.4)))),
        column("at", Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|r| r.5)).with_timezone("UTC"))),
    ];
    vec![RecordBatch::try_from_iter(columns).unwrap()]
}

#[test]
fn dynamic_steps_come_from_the_visits() {
    let rows = visits(&[
        (1, 0, 5, Some("a"), "acknowledged", 30),
        (1, 0, 4, Some("a"), "acknowledged", 20),
        (1, 0, 7, Some("b"), "acknowledged", 10),
        (1, 0, 6, Some("a"), "lost", 25),
        (1, 0, 9, None, "dropped", 5),
        (1, 1, 1, Some("a"), "acknowledged", 40),
        (0, 0, 2, Some("a"), "acknowledged", 1),
    ]);
    assert_eq!(taken_at(&rows, PassId(0), 0, Some("a")).unwrap(), 4);
    assert_eq!(taken_at(&rows, PassId(0), 1, Some("a")).unwrap(), 5);
    assert_eq!(taken_at(&rows, PassId(0), 0, Some("b")).unwrap(), 7);
    assert_eq!(taken_at(&rows, PassId(1), 0, None).unwrap(), 1, "one consumer need not be named");
    let error = taken_at(&rows, PassId(0), 0, None).unwrap_err();
    assert!(error.to_string().contains("a, b"), "{error}");
    let error = taken_at(&rows, PassId(0), 2, Some("a")).unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.message.contains("2 steps so far"), "{error}");
}

/// What `plan` says of a batch is what a consumer of the same plan gets.
#[tokio::test]
async fn the_rows_of_batches_are_told_without_delivering_them() {
    let fixture = Fixture::new(Shape { parts: true, ..Shape::default() }).await;
    let reader = fixture.reader(ROOMY);
    let pass = Arc::new(PassPlan::new(fixture.version.clone(), EpochId(0), PassId(1), &settings(), None).unwrap());
    let asked: Vec<u64> = (0..pass.plan.batches()).rev().collect();
    let told = rows_of(&reader, &pass, None, &asked).await.unwrap();
    assert_eq!(told.iter().map(|b| b.batch).collect::<Vec<_>>(), asked);
    let mut seen = BTreeSet::new();
    for batch in &told {
        assert_eq!(batch.digest, hex(batch_digest(&batch.ids, Some(&batch.parts))));
        assert_eq!(batch.window, batch.batch / pass.plan.batches_per_window());
        seen.extend(batch.ids.iter().copied().zip(batch.parts.iter().copied()));
    }
    assert_eq!(seen.len(), 2 * 557);
    assert!(rows_of(&reader, &pass, None, &[]).await.unwrap().is_empty());
    assert_eq!(reader.usage().pinned_bytes, 0);
}
