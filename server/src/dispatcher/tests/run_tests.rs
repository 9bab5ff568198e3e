//! Runs over a real journal: what is promised is there after a kill at any point of publication.

use forebay_core::Kind;
use forebay_core::dispatch::RunState;
use forebay_storage::journal::{Journal, read_journal};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::world::*;
use crate::dispatcher::{Dispatcher, RunStatus, fold};

async fn finished(dispatcher: &Dispatcher, name: &str) -> RunStatus {
    let mut watch = dispatcher.watch_run(&dataset(name)).await.unwrap();
    let done = watch.wait_for(|s| s.state != RunState::Running);
    tokio::time::timeout(Duration::from_secs(20), done).await.unwrap().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_worked_off_published_and_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let leader = Leader::start(dir.path(), Hang::Nowhere).await;
    // A worker that was there before the run is woken by it.
    let early = tokio::spawn({
        let dispatcher = leader.dispatcher.clone();
        async move { dispatcher.next_task(&worker(), Duration::from_secs(20)).await.unwrap().unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let status = leader.dispatcher.start_run(request("digits", "f", 4, 2)).await.unwrap();
    assert_eq!((status.state, status.progress.tasks), (RunState::Running, 8));
    let lease = early.await.unwrap();
    assert!(leader.dispatcher.report_progress(&lease, 5, 50).await);
    leader.dispatcher.task_failed(&lease, forebay_core::Error::internal("network")).await.unwrap();
    assert_eq!(leader.work(100).await.len(), 8);
    let status = finished(&leader.dispatcher, "digits").await;
    assert_eq!((status.state, status.published.len(), status.progress.rows), (RunState::Done, 2, 80));
    assert!(!leader.dispatcher.report_progress(&lease, 9, 90).await, "a run that is over still wants rows");
    // Whoever asks after the end hears of it at once.
    let mut late = leader.dispatcher.watch_run(&dataset("digits")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), late.changed()).await.unwrap().unwrap();
    assert_eq!((late.borrow().state, leader.dispatcher.violations()), (RunState::Done, 0));
    let again = leader.dispatcher.start_run(request("digits", "f", 4, 2)).await.unwrap();
    assert_eq!((again.state, again.version.map(|v| v.0)), (RunState::AlreadyMaterialized, Some(1)));
    let changed = leader.dispatcher.start_run(request("digits", "g", 4, 2)).await.unwrap_err();
    assert_eq!(changed.kind, Kind::FailedPrecondition);
    leader.kill().await;
    let leader = Leader::start(dir.path(), Hang::Nowhere).await;
    let again = leader.dispatcher.start_run(request("digits", "f", 4, 2)).await.unwrap();
    assert_eq!(again.state, RunState::AlreadyMaterialized);
    assert!(leader.work(1).await.is_empty());
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_each_point_of_publication_an_epoch_is_published_once() {
    for (hang, bodies) in [(Hang::BeforeBody, 1), (Hang::BeforeCommit, 0), (Hang::AfterCommit, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let leader = Leader::start(dir.path(), hang).await;
        leader.dispatcher.start_run(request("digits", "f", 3, 1)).await.unwrap();
        leader.work(3).await;
        leader.planner.hung.notified().await;
        let written = fold(&read_journal(&leader.root).await.unwrap().unwrap()).unwrap();
        let run = written.datasets[&dataset("digits")].run.clone().unwrap();
        let promised = run.publishing().map(|(_, v, body)| (v.0, serde_json::from_str::<serde_json::Value>(body).unwrap()));
        assert_eq!(promised.is_some(), hang != Hang::BeforeBody, "{hang:?}");
        assert_eq!(leader.versions("digits").await.len(), usize::from(hang == Hang::AfterCommit));
        leader.kill().await;

        let leader = Leader::start(dir.path(), Hang::Nowhere).await;
        assert_eq!(finished(&leader.dispatcher, "digits").await.state, RunState::Done);
        assert!(leader.work(1).await.is_empty(), "staged tasks are done again after {hang:?}");
        assert_eq!(leader.planner.bodies.load(Ordering::SeqCst), bodies, "{hang:?}");
        let versions = leader.versions("digits").await;
        assert_eq!(versions.len(), 1, "{hang:?}");
        if let Some((version, body)) = promised {
            assert_eq!(versions[usize::try_from(version).unwrap()], body, "other bytes than were written down");
        }
        leader.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_owner_resumes_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let leader = Leader::start(dir.path(), Hang::Nowhere).await;
    leader.dispatcher.start_run(request("digits", "f", 3, 1)).await.unwrap();
    leader.work(2).await;
    assert_eq!(leader.dispatcher.staged_paths(&dataset("digits")).await.unwrap().len(), 2);
    leader.kill().await;
    let leader = Leader::start_with(dir.path(), Hang::Nowhere, |c| c.continue_runs = false).await;
    assert!(leader.work(1).await.is_empty());
    let mut resumed = request("digits", "f", 3, 1);
    resumed.resume = true;
    leader.dispatcher.start_run(resumed).await.unwrap();
    assert_eq!(leader.work(9).await, [(0, 2, 0)]);
    assert_eq!(finished(&leader.dispatcher, "digits").await.state, RunState::Done);
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_owner_ends_this_one_and_nothing_more_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let old = Leader::start(dir.path(), Hang::Nowhere).await;
    old.dispatcher.start_run(request("digits", "f", 3, 1)).await.unwrap();
    let lease = old.dispatcher.next_task(&worker(), Duration::from_secs(5)).await.unwrap().unwrap();
    let new = Leader::start(dir.path(), Hang::Nowhere).await;
    let refused = old.dispatcher.next_task(&worker(), Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Unavailable, "{refused}");
    let ended = old.task.await.unwrap().unwrap_err();
    assert_eq!(ended.kind, Kind::FailedPrecondition, "{ended}");
    // The task that the old one granted was free again, and its attempt is not given twice.
    let again = new.dispatcher.next_task(&worker(), Duration::from_secs(5)).await.unwrap().unwrap();
    assert_eq!((again.task, again.attempt.0), (lease.task, lease.attempt.0 + 1));
    new.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_is_replaced_by_the_state_and_folds_to_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let leader = Leader::start_with(dir.path(), Hang::Nowhere, |c| c.compact_after = 16).await;
    leader.dispatcher.start_run(request("digits", "f", 30, 2)).await.unwrap();
    leader.work(45).await;
    let (state, _) = leader.dispatcher.snapshot().await.unwrap();
    let loaded = read_journal(&leader.root).await.unwrap().unwrap();
    assert!(loaded.upto > 60 && loaded.entries.len() < 40, "{} entries after {}", loaded.entries.len(), loaded.upto);
    assert_eq!(fold(&loaded).unwrap(), *state);
    let root = leader.root.clone();
    leader.stop().await;
    let journal = Journal::open(&root).await.unwrap();
    let loaded = journal.load().await.unwrap();
    assert!(loaded.entries.is_empty(), "a clean end leaves {} entries", loaded.entries.len());
    assert_eq!(fold(&loaded).unwrap().datasets, state.datasets);
    assert_eq!(loaded.owner, None, "it left properly");
    journal.close().await.unwrap();
}
