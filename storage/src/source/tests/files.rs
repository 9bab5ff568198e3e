use arrow::datatypes::TimestampMicrosecondType;
use forebay_core::pipeline::SourceFormat::Files;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

#[tokio::test]
async fn a_tree_of_files() {
    let dir = folder(&[
        ("images/cat/1.jpg", b"meow"),
        ("images/dog/b/2.jpg", b""),
        ("images/.hidden/3", b"no"),
        ("images/top", b"t"),
        ("other", b"no"),
    ]);
    let spec = spec(Files, &["images"]);
    let snapshot = take(&spec, dir.path()).await.unwrap();
    let rows = read(&spec, &snapshot).await.unwrap();
    assert_eq!(rows.texts("path"), some(&["images/cat/1.jpg", "images/dog/b/2.jpg", "images/top"]));
    assert_eq!(rows.texts("label"), some(&["cat", "b", "images"]));
    assert_eq!((rows.texts("size"), rows.ids()), (some(&["4", "0", "1"]), vec![0, 1, 2]));
    let all = rows.all();
    assert_eq!(all["content"].as_binary::<i32>().value(0), b"meow");
    let modified = std::fs::metadata(dir.path().join("images/top")).unwrap().modified().unwrap();
    let modified = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    assert_eq!(all["mtime"].as_primitive::<TimestampMicrosecondType>().value(2) as u128, modified);
}

#[tokio::test]
async fn names_that_are_not_utf8_survive() {
    let dir = tempfile::tempdir().unwrap();
    let names: [&[u8]; 5] = [b"caf\xE9.txt", b"caf%E9.txt", b"100%.txt", b"a b\n.txt", "日本.txt".as_bytes()];
    for (at, name) in names.iter().enumerate() {
        std::fs::write(dir.path().join(OsStr::from_bytes(name)), [at as u8]).unwrap();
    }
    for uri in ["*.txt", "."] {
        let spec = spec(Files, &[uri]);
        let snapshot = take(&spec, dir.path()).await.unwrap();
        let rows = read(&spec, &snapshot).await.unwrap();
        let all = rows.all();
        let mut found: Vec<(String, u8)> = rows
            .texts("_source")
            .into_iter()
            .zip(all["content"].as_binary::<i32>().iter())
            .map(|(n, c)| (n.unwrap(), c.unwrap()[0]))
            .collect();
        found.sort_by_key(|(_, at)| *at);
        let names: Vec<&str> = found.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["caf%E9.txt", "caf%25E9.txt", "100%.txt", "a b\n.txt", "日本.txt"]);
    }
    // A name as `_source` shows it can be given as the source.
    for (uri, content) in [("caf%25E9.txt", 1), ("100%.txt", 2)] {
        let spec = spec(Files, &[uri]);
        let snapshot = take(&spec, dir.path()).await.unwrap();
        assert_eq!(read(&spec, &snapshot).await.unwrap().all()["content"].as_binary::<i32>().value(0), [content]);
    }
}

#[tokio::test]
async fn batches_are_bounded_by_bytes() {
    let big = vec![7; 3000];
    let names: Vec<String> = (0..10).map(|n| format!("{n}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), big.as_slice())).collect();
    let dir = folder(&files);
    let spec = spec(Files, &["*"]);
    let snapshot = take(&spec, dir.path()).await.unwrap();
    let limits = Limits { batch_bytes: 10_000, ..Limits::default() };
    let rows = read_with(&spec, &snapshot, limits).await.unwrap();
    assert_eq!(rows.batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [3, 3, 3, 1]);
    let limits = Limits { batch_bytes: 100, ..Limits::default() };
    assert_eq!(read_with(&spec, &snapshot, limits).await.unwrap().batches.len(), 10);
}
