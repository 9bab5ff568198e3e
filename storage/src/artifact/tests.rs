#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use arrow::array::AsArray;
use forebay_core::source::SourceSnapshot;

use super::*;

async fn local() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path().to_str().unwrap(), true).await.unwrap();
    (dir, root)
}

#[tokio::test]
async fn objects_are_written_once() {
    let (dir, root) = local().await;
    let name = DatasetName("digits".into());
    let of = Of::Dataset(&name);
    assert_eq!(get_bytes(&root, of, "split/x").await.unwrap(), None);
    put_bytes(&root, of, "split/x", "one".into()).await.unwrap();
    put_bytes(&root, of, "split/x", "one".into()).await.unwrap();
    let error = put_bytes(&root, of, "split/x", "two".into()).await.unwrap_err();
    assert_eq!(error.kind, Kind::AlreadyExists);
    assert_eq!(get_bytes(&root, of, "split/x").await.unwrap(), Some("one".into()));
    assert!(dir.path().join("datasets/digits/_forebay/split/x").exists());
    put_bytes(&root, of, "split/w", "w".into()).await.unwrap();
    put_bytes(&root, of, "splitter", "w".into()).await.unwrap();
    assert_eq!(list(&root, of, "split").await.unwrap(), ["split/w", "split/x"]);
    delete(&root, of, "split/x").await.unwrap();
    delete(&root, of, "split/x").await.unwrap();
    assert_eq!(get_bytes(&root, of, "split/x").await.unwrap(), None);
    for bad in ["", "../x", "a//b", "a/./b", "/a"] {
        assert_eq!(put_bytes(&root, of, bad, "x".into()).await.unwrap_err().kind, Kind::BadInput, "{bad}");
    }
}

#[tokio::test]
async fn json_round_trips_and_other_bytes_are_corrupt() {
    let (_dir, root) = local().await;
    let name = JobName("run1".into());
    let of = Of::Job(&name);
    let snapshot = SourceSnapshot { base: "/x".into(), files: vec![], tasks: vec![], columns: vec![], next_id: 3, query: None };
    put_json(&root, of, "s.json", &snapshot).await.unwrap();
    assert_eq!(get_json(&root, of, "s.json").await.unwrap(), Some(snapshot));
    put_bytes(&root, of, "t.json", "{".into()).await.unwrap();
    let error = get_json::<SourceSnapshot>(&root, of, "t.json").await.unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt);
    assert!(error.to_string().contains("t.json"), "{error}");
}

#[tokio::test]
async fn quarantined_rows_round_trip() {
    let (_dir, root) = local().await;
    let name = DatasetName("digits".into());
    let row = |id| BadRow { id, source: "a.csv".into(), message: format!("row {id}") };
    let put = async |task, rows: &[BadRow]| put_quarantine(&root, &name, EpochId(2), TaskId(task), Attempt(1), rows).await.unwrap();
    assert_eq!(put(0, &[]).await, None);
    let names = [put(1, &[row(5), row(6)]).await.unwrap(), put(2, &[row(9)]).await.unwrap()];
    let batches = read_quarantine(&root, &name, &names).await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
    assert_eq!(batches[0].schema().fields().len(), quarantine_schema().fields().len());
    assert_eq!(batches[0]["message"].as_string::<i32>().value(1), "row 6");
    let error = read_quarantine(&root, &name, &["quarantine/nix".into()]).await.unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt);
}
