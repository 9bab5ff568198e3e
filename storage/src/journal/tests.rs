#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use forebay_core::ids::Fence;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

async fn local(dir: &Path) -> Root {
    Root::open(dir.to_str().unwrap(), true).await.unwrap()
}

fn entries(range: std::ops::Range<u64>) -> Vec<Bytes> {
    range.map(|n| Bytes::from(format!("entry {n}"))).collect()
}

fn numbers(loaded: &Loaded) -> Vec<u64> {
    loaded.entries.iter().map(|(n, _)| *n).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_numbered_and_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    assert_eq!(read_journal(&root).await.unwrap(), None);
    let journal = Journal::open(&root).await.unwrap();
    assert_eq!(journal.load().await.unwrap(), Loaded::default());
    assert_eq!(journal.append(entries(1..4)).await.unwrap(), 3);
    assert_eq!(journal.append(vec![]).await.unwrap(), 3);
    assert_eq!(journal.append(entries(4..5)).await.unwrap(), 4);
    let first = journal.fence();
    journal.close().await.unwrap();
    journal.close().await.unwrap();
    let journal = Journal::open(&root).await.unwrap();
    assert!(journal.fence() > first);
    let loaded = journal.load().await.unwrap();
    assert_eq!((numbers(&loaded), loaded.entries[2].1.clone()), (vec![1, 2, 3, 4], Bytes::from("entry 3")));
    assert_eq!(journal.load().await.unwrap(), loaded, "a second load reads again");
    assert_eq!(journal.append(entries(5..6)).await.unwrap(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_replaces_the_entries_it_contains() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let journal = Journal::open(&root).await.unwrap();
    journal.append(entries(1..11)).await.unwrap();
    journal.compact(7, "state 7".into()).await.unwrap();
    let check = |loaded: Loaded| {
        assert_eq!((loaded.snapshot.clone(), loaded.upto, numbers(&loaded)), (Some("state 7".into()), 7, vec![8, 9, 10]));
    };
    check(journal.load().await.unwrap());
    check(journal.load().await.unwrap());
    check(read_journal(&root).await.unwrap().unwrap());
    assert!(journal.compact(11, Bytes::new()).await.unwrap_err().to_string().contains("up to entry 11"));
    assert!(journal.compact(5, Bytes::new()).await.is_err());
    journal.compact(10, "state 10".into()).await.unwrap();
    journal.close().await.unwrap();
    let journal = Journal::open(&root).await.unwrap();
    assert_eq!(journal.append(entries(11..12)).await.unwrap(), 11, "numbers go on behind the state");
    let loaded = read_journal(&root).await.unwrap().unwrap();
    assert_eq!((loaded.snapshot.clone(), numbers(&loaded), loaded.last()), (Some("state 10".into()), vec![11], 11));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_opener_fences_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let first = Journal::open(&root).await.unwrap();
    first.append(entries(1..3)).await.unwrap();
    let second = Journal::open(&local(dir.path()).await).await.unwrap();
    assert!(second.fence() > first.fence());
    let error = first.append(entries(90..91)).await.unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition, "{error}");
    assert!(error.to_string().contains("fenced"), "{error}");
    assert!(first.put_owner(record(1)).await.is_err());
    assert!(first.compact(1, Bytes::new()).await.is_err());
    assert_eq!(second.append(entries(3..4)).await.unwrap(), 3);
    let loaded = read_journal(&root).await.unwrap().unwrap();
    assert!(loaded.entries.iter().all(|(_, e)| !e.ends_with(b"90")));
    first.close().await.unwrap_or_default();
}

/// Both try to write all the time; whatever was acknowledged is there, once, and nothing of the loser comes after the winner's fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_takeover() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let first = Journal::open(&root).await.unwrap();
    let writer = tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        loop {
            let text = Bytes::from(format!("first {}", acknowledged.len()));
            match first.append(vec![text.clone()]).await {
                Ok(n) => acknowledged.push((n, text)),
                Err(e) => return (acknowledged, e),
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let second = Journal::open(&root).await.unwrap();
    let n = second.append(vec!["second".into()]).await.unwrap();
    let (acknowledged, error) = writer.await.unwrap();
    assert_eq!(error.kind, Kind::FailedPrecondition, "{error}");
    assert!(acknowledged.len() > 3);
    let loaded = read_journal(&root).await.unwrap().unwrap();
    for pair in &acknowledged {
        assert!(loaded.entries.contains(pair), "{pair:?}");
    }
    assert_eq!(loaded.entries.last().unwrap(), &(n, "second".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_appends_share_writes() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let journal = Journal::open(&root).await.unwrap();
    let started = Instant::now();
    let appends = (0..2000).map(|_| journal.append(entries(0..1)));
    let mut found = futures::future::try_join_all(appends).await.unwrap();
    found.sort_unstable();
    assert_eq!(found, (1..=2000).collect::<Vec<_>>());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let files = std::fs::read_dir(dir.path().join("journal/wal")).unwrap().count();
    assert!(files < 1500, "{files} files for 2,000 appends");
}

/// The process is gone without a word: nothing is closed, nothing flushed.
#[test]
fn reopening_after_the_process_vanished() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let journal = Journal::open(&local(dir.path()).await).await.unwrap();
            assert_eq!(journal.load().await.unwrap().last(), round * 50);
            for n in 0..50 {
                journal.append(entries(n..n + 1)).await.unwrap();
            }
            // Never durable before the runtime is gone, or durable: either is fine, and here it is not asked.
            std::mem::forget(journal);
        });
        runtime.shutdown_background();
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn record(beat: u64) -> OwnerRecord {
    OwnerRecord { address: "127.0.0.1:1".into(), fence: Fence(1), pid: 1, beat, at_ms: 5 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_follows_without_writing() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let journal = Journal::open(&root).await.unwrap();
    journal.append(entries(1..3)).await.unwrap();
    journal.put_owner(record(1)).await.unwrap();
    let reader = Root::open(dir.path().to_str().unwrap(), false).await.unwrap();
    assert_eq!(read_journal(&reader).await.unwrap().unwrap().owner, Some(record(1)));
    journal.put_owner(record(2)).await.unwrap();
    assert_eq!(read_journal(&reader).await.unwrap().unwrap().owner, Some(record(2)));
    assert_eq!(journal.append(entries(3..4)).await.unwrap(), 3, "the reader fenced nobody");
    journal.leave().await.unwrap();
    assert_eq!(read_journal(&reader).await.unwrap().unwrap().owner, None);
    journal.close().await.unwrap();
    let before = tree(dir.path());
    let loaded = read_journal(&reader).await.unwrap().unwrap();
    assert_eq!(numbers(&loaded), [1, 2, 3]);
    assert_eq!(tree(dir.path()), before);
}

/// Names and sizes of everything below a folder.
fn tree(dir: &Path) -> Vec<(std::path::PathBuf, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                folders.push(entry.path());
            }
            found.push((entry.path(), if meta.is_file() { meta.len() } else { 0 }));
        }
    }
    found.sort();
    found
}

fn set_modes(dir: &Path, folder: u32, file: u32) {
    for (path, _) in tree(dir) {
        let mode = if path.is_dir() { folder } else { file };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(folder)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_folder_can_be_read_and_says_why_it_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let journal = Journal::open(&root).await.unwrap();
    journal.append(entries(1..3)).await.unwrap();
    journal.close().await.unwrap();
    set_modes(dir.path(), 0o555, 0o444);
    let reader = Root::open(dir.path().to_str().unwrap(), false).await.unwrap();
    assert_eq!(numbers(&read_journal(&reader).await.unwrap().unwrap()), [1, 2]);
    // The superuser writes everywhere.
    if std::fs::write(dir.path().join("probe"), "").is_err() {
        let error = Journal::open(&reader).await.unwrap_err();
        assert_eq!(error.kind, Kind::PermissionDenied, "{error}");
    }
    set_modes(dir.path(), 0o755, 0o644);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_journal_is_corrupt_not_empty() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let journal = Journal::open(&root).await.unwrap();
    journal.append(entries(1..3)).await.unwrap();
    journal.close().await.unwrap();
    for (path, size) in tree(&dir.path().join("journal/manifest")) {
        if size > 0 {
            std::fs::write(path, vec![7; usize::try_from(size).unwrap()]).unwrap();
        }
    }
    assert!(read_journal(&root).await.is_err());
    assert!(Journal::open(&root).await.is_err());
}

/// Many openings and closings, as embedded commands do: neither files nor the time to open grow without bound, and closing never hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_lived_owners() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    for round in 0..25 {
        let started = Instant::now();
        let journal = Journal::open(&root).await.unwrap();
        assert_eq!(journal.load().await.unwrap().last(), round * 3);
        journal.append(entries(0..3)).await.unwrap();
        journal.close().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(10), "round {round}: {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_files_are_folded_and_swept() {
    let dir = tempfile::tempdir().unwrap();
    let root = local(dir.path()).await;
    let journal = Journal::open(&root).await.unwrap();
    for n in 0..FOLD_AFTER + 10 {
        journal.append(entries(n..n + 1)).await.unwrap();
    }
    let files = || std::fs::read_dir(dir.path().join("journal/wal")).unwrap().count() as u64;
    let before = files();
    assert!(before > FOLD_AFTER);
    // The fold runs beside the appends.
    let folded = async {
        while journal.inner.db.manifest().l0().is_empty() && journal.inner.db.manifest().compacted().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), folded).await.unwrap();
    settings::sweep_once(root.clone(), Duration::ZERO).await;
    assert!(files() < 100, "{} of {before} files are left", files());
    assert_eq!(read_journal(&root).await.unwrap().unwrap().last(), FOLD_AFTER + 10);
    journal.append(entries(0..1)).await.unwrap();
    journal.close().await.unwrap();
    assert_eq!(Journal::open(&root).await.unwrap().load().await.unwrap().last(), FOLD_AFTER + 11);
}

const CHILD: &str = "FOREBAY_TEST_JOURNAL_CHILD";

/// Run by the test below in a process of its own: owns the root, appends and says what is durable, until it is killed.
#[test]
fn child_that_appends() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let root = Root::open(&path, true).await.unwrap();
        let mut lock = crate::owner::LocalLock::acquire(&root).await.unwrap().unwrap();
        let journal = Journal::open(&root).await.unwrap();
        lock.announce(&record(1)).unwrap();
        let mut last = journal.load().await.unwrap().last();
        loop {
            if last % 40 == 39 {
                journal.compact(last, Bytes::from(format!("state {last}"))).await.unwrap();
            }
            last = journal.append(vec![Bytes::from(format!("entry {}", last + 1))]).await.unwrap();
            // Straight to the descriptor: the harness would keep what is printed.
            std::io::Write::write_all(&mut std::io::stderr(), format!("durable {last}\n").as_bytes()).unwrap();
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_durable_survives_kill_9() {
    use std::io::BufRead;
    let dir = tempfile::tempdir().unwrap();
    let mut durable = 0;
    for round in 1..=3 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "journal::tests::child_that_appends", "--nocapture"])
            .env(CHILD, dir.path())
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        for _ in 0..round * 37 {
            let line = lines.next().unwrap().unwrap();
            durable = line.strip_prefix("durable ").unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        }
        child.kill().unwrap();
        for line in lines {
            // A line that was cut off says nothing.
            durable = line.unwrap().strip_prefix("durable ").and_then(|n| n.parse().ok()).filter(|n| *n == durable + 1).unwrap_or(durable);
        }
        child.wait().unwrap();
        let root = local(dir.path()).await;
        let started = Instant::now();
        assert_eq!(crate::owner::find_owner(&root).await.unwrap(), crate::owner::Owner::Dead);
        assert!(started.elapsed() < Duration::from_secs(1), "its lock is free at once");
        let loaded = read_journal(&root).await.unwrap().unwrap();
        assert!(loaded.last() >= durable, "{} < {durable}", loaded.last());
        assert_eq!(loaded.snapshot, (loaded.upto > 0).then(|| Bytes::from(format!("state {}", loaded.upto))));
        for (n, entry) in &loaded.entries {
            assert_eq!(entry, &Bytes::from(format!("entry {n}")));
        }
    }
    assert!(durable > 100);
}
