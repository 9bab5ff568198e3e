//! Jobs over a real journal and ledger.

use forebay_core::Kind;
use forebay_core::dispatch::{Granted, OpenedJob, StreamId};
use forebay_core::ids::*;
use forebay_core::job::Passes;
use forebay_storage::ledger;
use std::collections::BTreeMap;
use std::time::Duration;

use super::world::*;
use crate::dispatcher::{Dispatcher, Member};

async fn materialized(leader: &Leader, epochs: u32) {
    leader.dispatcher.start_run(request("digits", "f", 1, epochs)).await.unwrap();
    leader.work(9).await;
    let mut watch = leader.dispatcher.watch_run(&dataset("digits")).await.unwrap();
    watch.wait_for(|s| s.published.len() == epochs as usize).await.unwrap();
}

async fn join(dispatcher: &Dispatcher, name: &str, passes: Passes, who: &str, acks: bool) -> (OpenedJob, StreamId) {
    let opened = dispatcher.open_job(settings(name, 10, passes), consumer(who, false), None).await.unwrap();
    let stream = dispatcher.open_stream(&Member::of(&opened, who), &worker(), acks).await.unwrap();
    (opened, stream)
}

/// Reads to the end of the job; returns what it got.
async fn consume(dispatcher: Dispatcher, opened: OpenedJob, stream: StreamId, who: &'static str, acks: bool) -> Vec<(u32, u64)> {
    let mut got = Vec::new();
    loop {
        match dispatcher.next_grant(&opened.job, stream, 5).await.unwrap() {
            Granted::Batches(grant) => {
                let sent = grant.batches.clone().map(|b| (BatchId(b), b)).collect();
                dispatcher.sent(&opened.job, stream, grant.pass, sent).await.unwrap();
                got.extend(grant.batches.clone().map(|b| (grant.pass.0, b)));
                if acks {
                    let taken = grant.batches.map(|b| (BatchId(b), None)).collect();
                    dispatcher.acknowledge(&Member::of(&opened, who), grant.pass, taken).await.unwrap();
                }
            }
            Granted::EndOfPass(_) => {}
            Granted::EndOfJob => break,
            Granted::Drain => panic!("nobody drains"),
        }
    }
    dispatcher.close_stream(&opened.job, stream, true).await.unwrap();
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_consumers_share_passes_and_the_ledger_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let leader = Leader::start(dir.path(), Hang::Nowhere).await;
    materialized(&leader, 2).await;
    let (a, sa) = join(&leader.dispatcher, "run", Passes::Count(3), "a", true).await;
    let (b, sb) = join(&leader.dispatcher, "run", Passes::Count(3), "b", false).await;
    let one = tokio::spawn(consume(leader.dispatcher.clone(), a.clone(), sa, "a", true));
    let two = tokio::spawn(consume(leader.dispatcher.clone(), b, sb, "b", false));
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    assert!(!one.is_empty() && !two.is_empty(), "one consumer got nothing: {} and {}", one.len(), two.len());
    let mut counts = BTreeMap::new();
    for batch in one.iter().chain(&two) {
        *counts.entry(*batch).or_insert(0) += 1;
    }
    assert_eq!((counts.len(), counts.values().max()), (300, Some(&1)));
    let info = loop {
        let info = leader.dispatcher.job_status(&a.job).await.unwrap().unwrap();
        if info.counts.total() == 300 && info.state == "finished" && !info.ledger.is_empty() {
            break info;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(info.counts.acknowledged, 300);
    let late = leader.dispatcher.open_job(settings("run", 10, Passes::Count(3)), consumer("c", false), None).await.unwrap_err();
    assert_eq!((late.kind, late.message.contains("finished")), (Kind::FailedPrecondition, true), "{late}");
    // Starting it again waits for the ledger, so all visits of the first time are there.
    let again = leader.dispatcher.open_job(settings("run", 10, Passes::Count(1)), consumer("a", true), None).await.unwrap();
    assert_eq!(again.incarnation, Incarnation(1));
    let info = leader.dispatcher.job_status(&a.job).await.unwrap().unwrap();
    let rows: usize = ledger::read_files(&leader.root, &a.job, &info.ledger).await.unwrap().iter().map(|b| b.num_rows()).sum();
    assert_eq!(rows, 300);
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_may_be_killed_again_and_again_and_nothing_is_granted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut leader = Leader::start(dir.path(), Hang::Nowhere).await;
    materialized(&leader, 1).await;
    let (mut got, mut acknowledged) = (Vec::new(), Vec::new());
    for round in 0.. {
        let (opened, stream) = match leader.dispatcher.open_job(settings("run", 10, Passes::All), consumer("a", false), None).await {
            Ok(opened) => {
                let stream = leader.dispatcher.open_stream(&Member::of(&opened, "a"), &worker(), true).await.unwrap();
                (opened, stream)
            }
            Err(error) => {
                assert!(error.message.contains("finished") && round > 3, "{error}");
                break;
            }
        };
        for step in 0..8 {
            let Granted::Batches(grant) = leader.dispatcher.next_grant(&opened.job, stream, 3).await.unwrap() else { break };
            got.extend(grant.batches.clone());
            if step < 7 {
                let taken = grant.batches.clone().map(|b| (BatchId(b), Some(b))).collect();
                leader.dispatcher.acknowledge(&Member::of(&opened, "a"), grant.pass, taken).await.unwrap();
                acknowledged.extend(grant.batches);
            }
        }
        leader.kill().await;
        leader = Leader::start(dir.path(), Hang::Nowhere).await;
    }
    let all: std::collections::BTreeSet<_> = got.iter().copied().collect();
    assert_eq!((all.len(), got.len()), (100, 100), "a batch was granted twice or never");
    let info = leader.dispatcher.job_status(&JobName::parse("run").unwrap()).await.unwrap().unwrap();
    assert_eq!(info.counts.acknowledged, acknowledged.len() as u64);
    assert_eq!(info.counts.lost, 100 - acknowledged.len() as u64);
    leader.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_stream_is_woken_by_room_and_by_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let leader = Leader::start(dir.path(), Hang::Nowhere).await;
    materialized(&leader, 1).await;
    let (a, stream) = join(&leader.dispatcher, "run", Passes::All, "a", true).await;
    let mut held = Vec::new();
    while held.len() < 8 {
        let Granted::Batches(grant) = leader.dispatcher.next_grant(&a.job, stream, 4).await.unwrap() else { panic!() };
        held.extend(grant.batches);
    }
    let ask = || {
        let (dispatcher, job) = (leader.dispatcher.clone(), a.job.clone());
        tokio::spawn(async move { dispatcher.next_grant(&job, stream, 4).await })
    };
    let waiting = ask();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "more than two windows are in flight");
    leader.dispatcher.acknowledge(&Member::of(&a, "a"), PassId(0), vec![(BatchId(0), None)]).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap();
    assert!(matches!(woken, Granted::Batches(g) if g.batches == (8..9)));
    let waiting = ask();
    tokio::time::sleep(Duration::from_millis(50)).await;
    leader.stop().await;
    assert_eq!(waiting.await.unwrap().unwrap(), Granted::Drain);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_waits_for_an_epoch_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let leader = Leader::start(dir.path(), Hang::Nowhere).await;
    leader.dispatcher.start_run(request("digits", "f", 1, 1)).await.unwrap();
    let (a, stream) = join(&leader.dispatcher, "run", Passes::All, "a", true).await;
    let (dispatcher, job) = (leader.dispatcher.clone(), a.job.clone());
    let waiting = tokio::spawn(async move { dispatcher.next_grant(&job, stream, 4).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    leader.work(1).await;
    let granted = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap();
    assert!(matches!(granted, Granted::Batches(g) if g.epoch == EpochId(0)));
    leader.stop().await;
}
