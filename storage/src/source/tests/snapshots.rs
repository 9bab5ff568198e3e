use forebay_core::Kind;
use forebay_core::pipeline::SourceFormat::{Csv, Files, Json};
use forebay_core::source::Piece;
use futures::StreamExt;
use serde_json::json;
use std::fs;
use std::time::Duration;

use super::super::{read_task, snapshot};
use super::*;

fn ranges(snapshot: &SourceSnapshot) -> Vec<(String, i64, i64)> {
    snapshot.files.iter().map(|f| (f.path.clone(), f.id_base, f.id_range)).collect()
}

fn triple(name: &str, base: i64, range: i64) -> (String, i64, i64) {
    (name.to_owned(), base, range)
}

async fn again(spec: &SourceSpec, dir: &Path, previous: &SourceSnapshot) -> SourceSnapshot {
    snapshot(spec, dir.to_str().unwrap(), Some(previous), &everything).await.unwrap()
}

#[tokio::test]
async fn ids_are_never_reassigned() {
    let dir = folder(&[("b.csv", b"x\n1\n"), ("d.csv", b"x\n22\n"), ("e.csv", b"x\n333\n")]);
    let spec = spec(Csv, &["*.csv"]);
    let first = take(&spec, dir.path()).await.unwrap();
    assert_eq!(ranges(&first), [triple("b.csv", 0, 4), triple("d.csv", 4, 5), triple("e.csv", 9, 6)]);
    assert_eq!(first.next_id, 15);
    // Path order of new files, behind everything that was ever used.
    fs::write(dir.path().join("a.csv"), "x\n4\n").unwrap();
    fs::write(dir.path().join("c.csv"), "x\n55\n").unwrap();
    fs::remove_file(dir.path().join("e.csv")).unwrap();
    let second = again(&spec, dir.path(), &first).await;
    assert_eq!(ranges(&second), [triple("a.csv", 15, 4), triple("b.csv", 0, 4), triple("c.csv", 19, 5), triple("d.csv", 4, 5)]);
    let rows = read(&spec, &second).await.unwrap();
    assert!(rows.ids().is_sorted(), "rows come in id order: {:?}", rows.ids());
    assert_eq!(rows.texts("x"), some(&["1", "22", "4", "55"]));
    // A changed file gets new ids, and those of one that vanished stay unused.
    fs::remove_file(dir.path().join("c.csv")).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::write(dir.path().join("d.csv"), "x\n66\n").unwrap();
    let third = again(&spec, dir.path(), &second).await;
    assert_eq!(ranges(&third), [triple("a.csv", 15, 4), triple("b.csv", 0, 4), triple("d.csv", 24, 5)]);
    assert_eq!(again(&spec, dir.path(), &third).await, third, "nothing changed");
    let text = serde_json::to_string(&third).unwrap();
    assert_eq!(serde_json::from_str::<SourceSnapshot>(&text).unwrap(), third);
}

#[tokio::test]
async fn ranges_by_format() {
    let dir = folder(&[("a.csv", b"x\n1\n"), ("b.csv.gz", b""), ("c.json", b"{\"x\":1}\n")]);
    let files = take(&spec(Files, &["*"]), dir.path()).await.unwrap();
    assert_eq!(ranges(&files), [triple("a.csv", 0, 1), triple("b.csv.gz", 1, 1), triple("c.json", 2, 1)]);
    let text = take(&spec(Csv, &["a.csv", "b.csv.gz"]), dir.path()).await;
    // An empty gzip file is not gzip.
    assert_says(&text.unwrap_err(), &["b.csv.gz"]);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gz, b"x\n2\n").unwrap();
    fs::write(dir.path().join("b.csv.gz"), gz.finish().unwrap()).unwrap();
    let text = take(&spec(Csv, &["a.csv", "b.csv.gz"]), dir.path()).await.unwrap();
    assert_eq!(ranges(&text), [triple("a.csv", 0, 4), triple("b.csv.gz", 4, 1 << 36)]);
    assert_eq!(text.next_id, 4 + (1 << 36));
}

#[tokio::test]
async fn small_files_share_tasks_and_large_ones_are_divided() {
    let names: Vec<String> = (0..30).map(|n| format!("{n:02}.csv")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), b"x\n1\n".as_slice())).collect();
    let dir = folder(&files);
    let spec = with(spec(Csv, &["*.csv"]), "task_size", json!(40));
    let taken = take(&spec, dir.path()).await.unwrap();
    assert_eq!(taken.tasks.iter().map(|t| t.pieces.len()).collect::<Vec<_>>(), [10, 10, 10]);
    assert_eq!(taken.tasks.iter().map(|t| t.task.0).collect::<Vec<_>>(), [0, 1, 2]);
    let few =
        super::super::snapshot::take(&spec, dir.path().to_str().unwrap(), None, &everything, Limits { task_files: 7, ..Limits::default() })
            .await
            .unwrap();
    assert_eq!(few.tasks.iter().map(|t| t.pieces.len()).collect::<Vec<_>>(), [7, 7, 7, 7, 2]);
    let rows = read(&spec, &few).await.unwrap();
    assert_eq!((rows.all().num_rows(), rows.batches.len()), (30, 5), "one batch for many small files");
    let lines: String = (0..100).map(|n| format!("{{\"x\":{n}}}\n")).collect();
    let dir = folder(&[("a.json", lines.as_bytes())]);
    let spec = with(super::spec(Json, &["a.json"]), "task_size", json!(200));
    let taken = take(&spec, dir.path()).await.unwrap();
    assert!(taken.tasks.len() >= 4);
    for task in &taken.tasks {
        let [(0, Piece::Bytes { start, end })] = task.pieces.as_slice() else { panic!("{task:?}") };
        assert!(*start == 0 || lines.as_bytes()[*start as usize - 1] == b'\n');
        assert!(*end == lines.len() as u64 || lines.as_bytes()[*end as usize - 1] == b'\n');
    }
}

#[tokio::test]
async fn a_file_that_changed_or_vanished_is_named() {
    for (format, text) in [(Csv, "x\n1\n2\n"), (Json, "{\"x\":1}\n"), (Files, "any")] {
        let dir = folder(&[("a.csv", text.as_bytes()), ("b.csv", text.as_bytes())]);
        let spec = spec(format, &["*.csv"]);
        let taken = take(&spec, dir.path()).await.unwrap();
        std::thread::sleep(Duration::from_millis(20));
        fs::write(dir.path().join("b.csv"), text).unwrap();
        let error = read(&spec, &taken).await.unwrap_err();
        assert_eq!(error.kind, Kind::FailedPrecondition);
        assert_says(&error, &["`b.csv`", "changed", "again"]);
        fs::write(dir.path().join("b.csv"), format!("{text}{text}")).unwrap();
        assert_says(&read(&spec, &taken).await.unwrap_err(), &["`b.csv`", "changed"]);
        fs::remove_file(dir.path().join("b.csv")).unwrap();
        assert_says(&read(&spec, &taken).await.unwrap_err(), &["`b.csv`", "vanished"]);
    }
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_named() {
    let lines: String = (0..200_000).map(|n| format!("{n},{n}\n")).collect();
    let dir = folder(&[("a.csv", format!("x,y\n{lines}").as_bytes())]);
    let spec = spec(Csv, &["a.csv"]);
    let taken = Arc::new(take(&spec, dir.path()).await.unwrap());
    let limits = Limits { batch_rows: 1000, ..Limits::default() };
    let mut rows = stream::read_task(spec, taken.clone(), taken.tasks[0].clone(), limits);
    assert!(rows.next().await.unwrap().is_ok());
    let mut file = fs::OpenOptions::new().append(true).open(dir.path().join("a.csv")).unwrap();
    std::io::Write::write_all(&mut file, b"1,1\n").unwrap();
    let last = rows.collect::<Vec<_>>().await.pop().unwrap();
    assert_says(&last.unwrap_err(), &["a.csv", "changed"]);
}

#[tokio::test]
async fn dropping_the_stream_ends_the_reading() {
    let lines: String = (0..300_000).map(|n| format!("{n}\n")).collect();
    let dir = folder(&[("a.csv", format!("x\n{lines}").as_bytes())]);
    let spec = spec(Csv, &["a.csv"]);
    let taken = Arc::new(take(&spec, dir.path()).await.unwrap());
    let mut rows = read_task(&spec, taken.clone(), &taken.tasks[0]);
    assert!(rows.next().await.unwrap().is_ok());
    drop(rows);
    // A reader that went on would keep this from returning: the runtime waits for its blocking threads.
}

#[tokio::test]
async fn a_base_that_is_not_absolute_is_an_error() {
    let error = snapshot(&spec(Csv, &["a.csv"]), "data", None, &everything).await.unwrap_err();
    assert_says(&error, &["`data`", "not absolute"]);
}

#[tokio::test]
async fn a_base_with_odd_bytes_in_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("100%41 %zz");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("a.csv"), "x\n1\n").unwrap();
    for uri in ["a.csv", "*.csv", "."] {
        let spec = spec(Csv, &[uri]);
        let taken = take(&spec, &odd).await.unwrap();
        assert_eq!(taken.files[0].path, "a.csv");
        assert_eq!(read(&spec, &taken).await.unwrap().texts("x"), some(&["1"]));
    }
}

/// Callers box these futures behind async traits and spawn them.
#[tokio::test]
async fn futures_can_be_boxed_and_sent() {
    fn boxed<'a>(
        spec: &'a SourceSpec,
        base: &'a str,
        allow: &'a (dyn Fn(&str) -> bool + Send + Sync),
    ) -> futures::future::BoxFuture<'a, Result<usize>> {
        Box::pin(async move {
            let taken = snapshot(spec, base, None, allow).await?;
            let schema = super::super::source_schema(spec, &taken).await?;
            Ok(schema.fields().len())
        })
    }
    let dir = folder(&[("a.csv", b"x\n1\n")]);
    let base = dir.path().to_str().unwrap().to_owned();
    let spawned = tokio::spawn(async move { boxed(&spec(Csv, &["a.csv"]), &base, &everything).await });
    assert_eq!(spawned.await.unwrap().unwrap(), 3);
}
