use forebay_core::Kind;
use forebay_core::pipeline::SourceFormat::{Csv, Files, Json};
use object_store::ObjectStoreExt;
use object_store::path::Path as Key;
use std::os::unix::fs::symlink;

use super::super::Allow;
use super::*;

const ONE: &[u8] = b"x\n1\n";

async fn names(spec: &SourceSpec, dir: &Path) -> Vec<String> {
    take(spec, dir).await.unwrap().files.into_iter().map(|f| f.path).collect()
}

#[tokio::test]
async fn patterns_folders_and_lists() {
    let zst = zstd::encode_all(ONE, 1).unwrap();
    let dir = folder(&[
        ("a.csv", ONE),
        ("b.tsv", ONE),
        ("d/c.csv", ONE),
        ("d/e/f.csv.zst", &zst),
        ("d/e/readme.md", ONE),
        ("d/.h/i.csv", ONE),
        ("we[i]rd.csv", ONE),
        (".j.csv", ONE),
    ]);
    for (uri, expected) in [
        (vec!["*.csv"], vec!["a.csv", "we[i]rd.csv"]),
        (vec!["**/*.csv"], vec!["a.csv", "d/c.csv", "we[i]rd.csv"]),
        (vec!["d/*/f*"], vec!["d/e/f.csv.zst"]),
        (vec!["*/e/f.csv.zst"], vec!["d/e/f.csv.zst"]),
        (vec!["?.[ct]sv"], vec!["a.csv", "b.tsv"]),
        (vec!["we[i]rd.csv"], vec!["we[i]rd.csv"]),
        (vec!["d"], vec!["d/c.csv", "d/e/f.csv.zst"]),
        (vec!["./d/"], vec!["d/c.csv", "d/e/f.csv.zst"]),
        (vec!["d/../a.csv", "a.csv", "*.tsv"], vec!["a.csv", "b.tsv"]),
        (vec!["d/**"], vec!["d/c.csv", "d/e/f.csv.zst", "d/e/readme.md"]),
        (vec![".j.csv"], vec![".j.csv"]),
    ] {
        assert_eq!(names(&spec(Csv, &uri), dir.path()).await, expected, "{uri:?}");
    }
    let outside = folder(&[("z.csv", ONE)]);
    let absolute = outside.path().canonicalize().unwrap().join("z.csv");
    let absolute = absolute.to_str().unwrap();
    for uri in [absolute.to_owned(), format!("file://{absolute}")] {
        assert_eq!(names(&spec(Csv, &[&uri]), dir.path()).await, [absolute]);
    }
}

#[tokio::test]
async fn what_matches_nothing_is_named() {
    let dir = folder(&[("a.csv", ONE)]);
    let base = dir.path().to_str().unwrap();
    for uri in ["*.json", "nix/*.csv", "b.csv", "a.csv/x"] {
        let error = take(&spec(Csv, &["a.csv", uri]), dir.path()).await.unwrap_err();
        assert_eq!(error.kind, Kind::BadInput);
        assert_says(&error, &[uri, base, "no file matches"]);
    }
    assert_says(&take(&spec(Csv, &["[a"]), dir.path()).await.unwrap_err(), &["[a"]);
    assert_says(&take(&spec(Csv, &[""]), dir.path()).await.unwrap_err(), &["source.uri", "empty"]);
    assert_says(&take(&spec(Csv, &["ftp://host/x"]), dir.path()).await.unwrap_err(), &["ftp://", "s3://"]);
    assert_says(&take(&spec(Csv, &["s3://user:secret@host/x"]), dir.path()).await.unwrap_err(), &["credentials"]);
}

#[tokio::test]
async fn links_are_followed_and_rings_end() {
    let dir = folder(&[("d/a.csv", ONE), ("real/b.csv", ONE)]);
    symlink("../real/b.csv", dir.path().join("d/link.csv")).unwrap();
    symlink("../real", dir.path().join("d/linked")).unwrap();
    symlink("..", dir.path().join("d/ring")).unwrap();
    symlink("..", dir.path().join("real/back")).unwrap();
    let found = names(&spec(Csv, &["d/**/*.csv"]), &dir.path().canonicalize().unwrap()).await;
    for name in ["d/a.csv", "d/link.csv", "d/linked/b.csv"] {
        assert!(found.contains(&name.to_owned()), "{found:?}");
    }
    assert!(found.len() < 50, "{found:?}");
    symlink("nowhere", dir.path().join("d/dead.csv")).unwrap();
    assert_says(&take(&spec(Csv, &["d/*.csv"]), dir.path()).await.unwrap_err(), &["dead.csv", "leads nowhere"]);
}

#[tokio::test]
async fn what_is_not_allowed_is_refused_before_it_is_touched() {
    let secret = folder(&[("s.csv", ONE)]);
    let dir = folder(&[("data/a.csv", ONE), ("data2/a.csv", ONE)]);
    symlink(secret.path().join("s.csv"), dir.path().join("data/link.csv")).unwrap();
    let base = dir.path().to_str().unwrap();
    let allow = Allow::prefixes(&[format!("file://{base}/data/"), "s3://bucket/raw".into()]);
    let ask = |location: &str| allow.covers(location);
    let took = async |uri: &str| snapshot(&spec(Csv, &[uri]), base, None, &ask).await;
    assert_eq!(took("data/a.csv").await.unwrap().files.len(), 1);
    let inside = spec(Csv, &["data/[a].csv"]);
    assert_eq!(snapshot(&inside, base, None, &ask).await.unwrap().files.len(), 1);
    for uri in [
        "data2/a.csv",
        "data/../data2/a.csv",
        "*/a.csv",
        "data/link.csv",
        "data/*.csv",
        "/etc/passwd",
        "s3://bucket/raw2/x.csv",
        "s3://bucket/raw/../x.csv",
        "s3://bucket/*.csv",
    ] {
        let error = took(uri).await.unwrap_err();
        assert_eq!(error.kind, Kind::PermissionDenied, "{uri}: {error}");
        assert_says(&error, &["sources.allow"]);
    }
    std::fs::remove_file(dir.path().join("data/link.csv")).unwrap();
    symlink(secret.path(), dir.path().join("data/folder")).unwrap();
    assert_eq!(took("data/**/*.csv").await.unwrap_err().kind, Kind::PermissionDenied);
    assert_eq!(took("data/folder/s.csv").await.unwrap_err().kind, Kind::PermissionDenied);
    let nothing = Allow::prefixes(&[]);
    let error = snapshot(&spec(Csv, &["data/a.csv"]), base, None, &|l| nothing.covers(l)).await.unwrap_err();
    assert_eq!(error.kind, Kind::PermissionDenied);
    assert!(Allow::everything().covers("/etc/passwd"));
    let schemes = Allow::prefixes(&["/".into(), "s3://".into()]);
    assert!(schemes.covers("/etc/passwd") && schemes.covers("s3://bucket/x") && !schemes.covers("gs://bucket/x"));
    assert!(!Allow::prefixes(&["s3://buck".into()]).covers("s3://bucket/x"));
}

#[tokio::test]
async fn remote_files_read_as_local_ones() {
    let store = memory_store("remote");
    let big = format!("x,t\n{}", (0..5000).map(|n| format!("{n},row {n}\n")).collect::<String>());
    for (name, text) in
        [("raw/a.csv", big.as_bytes()), ("raw/deep/b.csv", b"x,t\n1,2\n"), ("raw2/c.csv", b"x\n1\n"), ("raw/.d.csv", b"x\n")]
    {
        store.put(&Key::from(name), text.to_vec().into()).await.unwrap();
    }
    let asked = Mutex::new(Vec::new());
    let allow = |location: &str| {
        asked.lock().push(location.to_owned());
        true
    };
    for (uri, files) in
        [("memory://remote/raw", 2), ("memory://remote/raw/*.csv", 1), ("memory://remote/**/*.csv", 3), ("memory://remote/raw/a.csv", 1)]
    {
        let spec = spec(Csv, &[uri]);
        // Listing only: `raw2` has other columns.
        let found = snapshot(&super::with(SourceSpec { format: Files, ..spec }, "task_size", serde_json::json!(1)), "/base", None, &allow)
            .await
            .unwrap();
        assert_eq!(found.files.len(), files, "{uri}");
        assert!(found.files.iter().all(|f| f.path.starts_with("memory://remote/raw") && !f.stamp.is_empty()));
    }
    assert!(asked.lock().iter().all(|a| a.starts_with("memory://remote")));
    let spec = super::with(spec(Csv, &["raw/*.csv"]), "task_size", serde_json::json!(10_000));
    let found = snapshot(&spec, "memory://remote", None, &everything).await.unwrap();
    assert_eq!((found.files[0].path.as_str(), found.tasks.len() > 3), ("raw/a.csv", true));
    let rows = read(&spec, &found).await.unwrap();
    assert_eq!((rows.ids().len(), rows.bad.len()), (5000, 0));
    // A file larger than one request.
    let large = vec![5; (17 << 20) + 3];
    store.put(&Key::from("large/a.bin"), large.clone().into()).await.unwrap();
    let whole = super::spec(Files, &["memory://remote/large/a.bin"]);
    let found_large = snapshot(&whole, "/base", None, &everything).await.unwrap();
    assert_eq!(read(&whole, &found_large).await.unwrap().all()["content"].as_binary::<i32>().value(0), large);
    // The same size and another content.
    store.put(&Key::from("raw/a.csv"), big.replace("row", "cow").into_bytes().into()).await.unwrap();
    assert_says(&read(&spec, &found).await.unwrap_err(), &["raw/a.csv", "changed"]);
    store.delete(&Key::from("raw/a.csv")).await.unwrap();
    assert_says(&read(&spec, &found).await.unwrap_err(), &["raw/a.csv", "vanished"]);
}

#[tokio::test]
async fn special_files_are_skipped_and_unreadable_ones_named() {
    let dir = folder(&[("a.json", b"{\"x\":1}\n")]);
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe.json")).status();
    if made.is_ok_and(|s| s.success()) {
        assert_eq!(names(&spec(Json, &["*.json"]), dir.path()).await, ["a.json"]);
        assert_says(&take(&spec(Json, &["pipe.json"]), dir.path()).await.unwrap_err(), &["pipe.json", "not a regular file"]);
    }
}
