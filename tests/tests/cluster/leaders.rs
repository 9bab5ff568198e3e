//! Who leads: takeovers, and leaders that come back.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_core::Kind;
use forebay_core::ids::WorkerName;
use forebay_flight::control::{Ask, Beat, Call, ControlClient, Missed};
use forebay_storage::journal::{read_journal, read_owner};
use forebay_storage::root::Root;

use super::support::{Cluster, TAKEOVER, runtime, train};
use crate::support::eventually;

#[test]
fn s13_a_standby_takes_over_while_a_job_streams_and_the_stream_goes_on() {
    let cluster = Cluster::new(4, 100, "SELECT n FROM input");
    let mut first = cluster.dispatcher(0);
    cluster.leads(0, TAKEOVER);
    let _second = cluster.dispatcher(1);
    let _workers = [cluster.worker("a"), cluster.worker("b")];
    cluster.workers(2);
    cluster.ok(&["materialize", "p.toml"]);
    let servers = cluster.servers();
    let (tell, told) = std::sync::mpsc::channel();
    let training = std::thread::spawn(move || {
        runtime().block_on(train(&servers, "j", Duration::from_millis(200), move |n, _| {
            let _ = tell.send(n);
        }))
    });
    while told.recv_timeout(Duration::from_secs(30)).unwrap() < 5 {}
    first.kill();
    let took = cluster.leads(1, TAKEOVER);
    println!("the standby led after {took:?}");
    let seen = training.join().unwrap();
    assert_eq!(seen.broken, 0, "the stream went on: {seen:?}");
    let got = seen.once();
    // Whatever did not come is accounted for, and nothing that came is called lost without being acknowledged late.
    eventually("every batch is accounted for", Duration::from_secs(60), || {
        let lost = cluster.losses("j");
        (0..40).all(|batch| got.contains(&(0, batch)) || lost.contains_key(&(0, batch)))
    });
    let lost = cluster.losses("j");
    assert!(lost.len() <= 2, "a takeover loses at most what was being granted: {lost:?}");
}

/// Whom a standby names.
pub async fn leader_by(address: &str) -> Option<String> {
    let limit = Duration::from_secs(1);
    let control = ControlClient::connect(&format!("grpc://{address}"), None, limit).await.ok()?;
    let call = Call { worker: WorkerName("nobody".to_owned()), instance: "none".to_owned(), ask: Ask::Beat(Beat::default()) };
    match control.call(&call).await {
        Err(Missed::Elsewhere { leader, error }) if error.kind == Kind::Unavailable && error.message.contains("standby") => leader,
        _ => None,
    }
}

/// Files of a folder with their contents.
fn files(folder: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    let read = |e: std::io::Result<std::fs::DirEntry>| {
        let path = e.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap_or_default())
    };
    std::fs::read_dir(folder).unwrap().map(read).collect()
}

#[test]
fn i4_a_paused_leader_that_wakes_changes_nothing_and_stands_by() {
    let cluster = Cluster::new(2, 50, "SELECT n FROM input");
    let first = cluster.dispatcher(0);
    cluster.leads(0, TAKEOVER);
    let mut second = cluster.dispatcher(1);
    let _worker = cluster.worker("w");
    cluster.workers(1);
    first.signal("STOP");
    let took = cluster.leads(1, TAKEOVER);
    println!("the standby led after {took:?}");
    assert!(took > Duration::from_secs(3), "never while a heartbeat could still land: {took:?}");
    cluster.ok(&["materialize", "p.toml"]);
    let log = cluster.home.path("root/datasets/numbers/_delta_log");
    let (runtime, before) = (runtime(), files(&log));
    let root = runtime.block_on(Root::open(&cluster.home.root(), false)).unwrap();
    let journal = || {
        let loaded = runtime.block_on(read_journal(&root)).unwrap().unwrap();
        (loaded.snapshot, loaded.entries, loaded.upto)
    };
    let owner = || runtime.block_on(read_owner(&root)).unwrap().unwrap();
    let (state, led) = (journal(), owner());

    first.signal("CONT");
    let names_the_leader = || runtime.block_on(leader_by(&cluster.addresses[0])) == Some(format!("grpc://{}", cluster.addresses[1]));
    eventually("the woken leader is a standby that names the leader", Duration::from_secs(10), names_the_leader);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(files(&log), before, "the Delta log is as it was");
    assert!(journal() == state, "the journal's entries are as they were");
    let now = owner();
    assert!(now.fence == led.fence && now.beat > led.beat && now.address == led.address, "{led:?} {now:?}");

    // It is a standby like any other.
    second.kill();
    cluster.leads(0, TAKEOVER);
    cluster.workers(1);
    assert_eq!(cluster.number("SELECT count(*) AS n FROM numbers"), 100);
}

#[test]
fn s16_a_leader_that_ends_hands_over_and_one_whose_heartbeats_land_is_left_alone() {
    let cluster = Cluster::new(1, 10, "SELECT n FROM input");
    let mut first = cluster.dispatcher(0);
    cluster.leads(0, TAKEOVER);
    let _second = cluster.dispatcher(1);
    std::thread::sleep(Duration::from_secs(8));
    cluster.leads(0, Duration::from_secs(2));
    let (took, status) = first.end();
    assert!(took < Duration::from_secs(5) && status == Some(0), "{took:?} {status:?}");
    cluster.leads(1, Duration::from_secs(5));
}
