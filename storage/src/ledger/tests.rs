#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use arrow::array::{Array, AsArray};
use arrow::datatypes::UInt64Type;

use super::*;

async fn local() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path().to_str().unwrap(), true).await.unwrap();
    (dir, root)
}

fn visits(batches: std::ops::Range<u64>) -> Vec<VisitRow> {
    let row = |batch| VisitRow {
        incarnation: Incarnation(0),
        pass: PassId(1),
        epoch: EpochId(1),
        batch: BatchId(batch),
        step: (batch % 2 == 0).then_some(batch),
        consumer: Some("host-0".into()),
        worker: None,
        state: "acknowledged".into(),
        rows: 64,
        committed: batch % 3 == 0,
        at_ms: 1_700_000_000_000,
        reason: None,
        digest: Some(u64::MAX - batch),
    };
    batches.map(row).collect()
}

fn batches(found: &[RecordBatch]) -> Vec<u64> {
    found.iter().flat_map(|b| b["batch"].as_primitive::<UInt64Type>().values().to_vec()).collect()
}

#[tokio::test]
async fn visits_round_trip_in_named_files() {
    let (_dir, root) = local().await;
    let job = JobName("run1".into());
    let first = append(&root, &job, visits(0..10)).await.unwrap();
    let second = append(&root, &job, visits(10..15)).await.unwrap();
    assert_eq!(append(&root, &job, visits(0..10)).await.unwrap(), first, "a retry writes the same file");
    let orphan = append(&root, &job, visits(10..12)).await.unwrap();
    assert_ne!(orphan, second);
    let found = read_files(&root, &job, &[first.clone(), second]).await.unwrap();
    assert_eq!(batches(&found), (0..15).collect::<Vec<_>>());
    assert_eq!(found[0].schema().fields(), visits_schema().fields());
    assert_eq!(found[0]["digest"].as_primitive::<UInt64Type>().value(1), u64::MAX - 1);
    assert!(found[0]["worker"].is_null(0) && found[0]["step"].is_null(1));
    assert_eq!(batches(&read(&root, &job).await.unwrap()).len(), 17);
    assert!(read(&root, &JobName("other".into())).await.unwrap().is_empty());
    let error = read_files(&root, &job, &["ledger/nix.parquet".into()]).await.unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt);
}

#[tokio::test]
async fn files_are_bounded() {
    let (dir, root) = local().await;
    let job = JobName("run1".into());
    let many = MAX_FILE_ROWS as u64 + 5;
    assert_eq!(append(&root, &job, visits(0..many)).await.unwrap_err().kind, Kind::ResourceExhausted);
    assert_eq!(append(&root, &job, vec![]).await.unwrap_err().kind, Kind::BadInput);
    let names = append_all(&root, &job, visits(0..many)).await.unwrap();
    assert_eq!(names.len(), 2);
    let size = std::fs::metadata(dir.path().join("jobs/run1").join(&names[0])).unwrap().len();
    assert!(size < 4 << 20, "{size}");
    assert_eq!(batches(&read_files(&root, &job, &names).await.unwrap()), (0..many).collect::<Vec<_>>());
}
