#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::*;
use crate::journal::Journal;

fn record(address: &str, beat: u64) -> OwnerRecord {
    OwnerRecord { address: address.into(), fence: Fence(1), pid: 77, beat, at_ms: 0 }
}

async fn local() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path().to_str().unwrap(), true).await.unwrap();
    (dir, root)
}

/// An address where nobody listens.
async fn nowhere() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_local_owner_is_found_in_milliseconds() {
    let (_dir, root) = local().await;
    assert_eq!(find_owner(&root).await.unwrap(), Owner::None);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut lock = LocalLock::acquire(&root).await.unwrap().unwrap();
    let owner = record(&format!("grpc://{}", listener.local_addr().unwrap()), 1);
    lock.announce(&owner).unwrap();
    let started = Instant::now();
    assert_eq!(find_owner(&root).await.unwrap(), Owner::Live(owner));
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    let error = LocalLock::acquire(&root).await.unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
    assert!(error.to_string().contains("process 77") && error.to_string().contains("127.0.0.1"), "{error}");
    lock.release().unwrap();
    assert_eq!(find_owner(&root).await.unwrap(), Owner::None);
    assert!(LocalLock::acquire(&root).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_still_starting_is_waited_for() {
    let (_dir, root) = local().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut lock = LocalLock::acquire(&root).await.unwrap().unwrap();
    let owner = record(&listener.local_addr().unwrap().to_string(), 1);
    let finding = tokio::spawn({
        let root = root.clone();
        async move { find_owner(&root).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!finding.is_finished());
    lock.announce(&owner).unwrap();
    assert_eq!(finding.await.unwrap().unwrap(), Owner::Live(owner));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_local_owner_is_dead_at_once() {
    let (_dir, root) = local().await;
    let mut lock = LocalLock::acquire(&root).await.unwrap().unwrap();
    lock.announce(&record(&nowhere().await, 1)).unwrap();
    // The kernel closes a killed process's files; nothing else happens.
    drop(lock);
    let started = Instant::now();
    assert_eq!(find_owner(&root).await.unwrap(), Owner::Dead);
    assert!(started.elapsed() < Duration::from_millis(500));
    assert!(LocalLock::acquire(&root).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_owner_that_cannot_be_reached_is_unavailable() {
    let (_dir, root) = local().await;
    let mut lock = LocalLock::acquire(&root).await.unwrap().unwrap();
    let address = nowhere().await;
    lock.announce(&record(&address, 1)).unwrap();
    let error = find_owner(&root).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(error.to_string().contains(&address), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_many_gets_the_lock() {
    let (_dir, root) = local().await;
    let root = Arc::new(root);
    let tries = (0..8).map(|_| {
        let root = root.clone();
        tokio::spawn(async move { LocalLock::acquire(&root).await.ok().flatten() })
    });
    let got = futures::future::join_all(tries).await.into_iter().filter_map(|l| l.unwrap()).collect::<Vec<_>>();
    assert_eq!(got.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_root_has_no_lock_and_no_owner() {
    let (dir, root) = local().await;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    assert_eq!(find_owner(&root).await.unwrap(), Owner::None);
    if std::fs::write(dir.path().join("probe"), "").is_err() {
        assert_eq!(LocalLock::acquire(&root).await.unwrap_err().kind, Kind::PermissionDenied);
    }
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
}

async fn beating(root: &Root, address: &str, every: Duration) -> (Journal, tokio::task::JoinHandle<()>) {
    let journal = Journal::open(root).await.unwrap();
    journal.put_owner(record(address, 0)).await.unwrap();
    let beats = journal.clone();
    let address = address.to_owned();
    let task = tokio::spawn(async move {
        for beat in 1.. {
            tokio::time::sleep(every).await;
            beats.put_owner(record(&address, beat)).await.unwrap();
        }
    });
    (journal, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_root_is_judged_by_its_heartbeat() {
    let root = Root::open("memory://", true).await.unwrap();
    assert!(LocalLock::acquire(&root).await.unwrap().is_none());
    assert_eq!(find_owner(&root).await.unwrap(), Owner::None);
    let address = nowhere().await;
    let (_journal, task) = beating(&root, &address, Duration::from_millis(700)).await;
    let error = find_owner_within(&root, Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(error.to_string().contains(&address), "{error}");
    task.abort();
    let started = Instant::now();
    assert_eq!(find_owner_within(&root, Duration::from_secs(2)).await.unwrap(), Owner::Dead);
    assert!(started.elapsed() >= Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_owner_that_answers_is_live_however_old_its_heartbeat() {
    let root = Root::open("memory://", true).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (_journal, task) = beating(&root, &address, Duration::from_secs(60)).await;
    assert_eq!(find_owner(&root).await.unwrap(), Owner::Live(record(&address, 0)));
    task.abort();
}
