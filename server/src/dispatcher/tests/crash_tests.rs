//! Processes that die at a named point of publication, and what their successor makes of it.

use forebay_core::dispatch::RunState;
use std::process::Command;
use std::time::Duration;

use super::world::*;

const ROOT: &str = "FOREBAY_TEST_ROOT";

/// Runs in a process of its own, with `FOREBAY_CRASH_AT` set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other half of a test in this file"]
async fn child() {
    let Some(dir) = std::env::var_os(ROOT) else { return };
    let leader = Leader::start(std::path::Path::new(&dir), Hang::Nowhere).await;
    leader.dispatcher.start_run(request("digits", "f", 2, 2)).await.unwrap();
    leader.work(4).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    panic!("it was to die before this");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_at_a_named_point_leaves_what_its_successor_needs() {
    for (point, versions, tasks) in
        [("after-staged", 0, 1), ("after-publishing-entry", 0, 2), ("after-commit", 1, 2), ("after-published", 1, 2)]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let status = tokio::task::spawn_blocking(move || {
            let me = std::env::current_exe().unwrap();
            let name = concat!(module_path!(), "::child");
            let name = name.split_once("::").unwrap().1;
            Command::new(me).args(["--exact", name, "--ignored"]).env("FOREBAY_CRASH_AT", point).env(ROOT, path).output().unwrap()
        })
        .await
        .unwrap();
        assert!(!status.status.success(), "{point}");
        let signal = std::os::unix::process::ExitStatusExt::signal(&status.status);
        assert!(signal.is_some(), "{point}: {}", String::from_utf8_lossy(&status.stdout));

        let leader = Leader::start_with(dir.path(), Hang::Nowhere, |c| c.continue_runs = false).await;
        // A commit that was written down is finished whether or not anybody asks; nothing else is published by itself.
        let written_down = usize::from(point == "after-publishing-entry");
        tokio::time::timeout(Duration::from_secs(10), async {
            while leader.versions("digits").await.len() < versions + written_down {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap();
        assert_eq!(leader.versions("digits").await.len(), versions + written_down, "{point}");
        let mut resumed = request("digits", "f", 2, 2);
        resumed.resume = true;
        leader.dispatcher.start_run(resumed).await.unwrap();
        let done = leader.work(9).await;
        // The child's worker may have staged more before it died; what it staged is not done again.
        assert!(done.len() <= 4 - tasks, "{point}: {done:?}");
        let mut watch = leader.dispatcher.watch_run(&dataset("digits")).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), watch.wait_for(|s| s.state == RunState::Done)).await.unwrap().unwrap();
        let epochs: Vec<_> = leader.versions("digits").await.iter().map(|b| b["epoch"].as_u64().unwrap()).collect();
        assert_eq!(epochs, [0, 1], "{point}");
        leader.stop().await;
    }
}
