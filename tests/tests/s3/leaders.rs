//! Two dispatchers on one S3 root: there is no lock, the journal's fence is everything.

use std::time::Duration;

use super::support::Store;
use crate::cluster::leaders::leader_by;
use crate::cluster::support::{Cluster, TAKEOVER, runtime, train};
use crate::support::eventually;

#[test]
fn a_standby_takes_over_on_s3_and_the_stream_goes_on() {
    let store = Store::reliable();
    let cluster = Cluster::at(store.home(), 4, 100, "SELECT n FROM input");
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
    eventually("every batch is accounted for", Duration::from_secs(60), || {
        let lost = cluster.losses("j");
        (0..40).all(|batch| got.contains(&(0, batch)) || lost.contains_key(&(0, batch)))
    });
    assert!(cluster.losses("j").len() <= 2, "a takeover loses at most what was being granted: {:?}", cluster.losses("j"));
}

#[test]
fn i4_a_paused_leader_that_wakes_changes_no_object_on_s3() {
    let store = Store::reliable();
    let cluster = Cluster::at(store.home(), 2, 50, "SELECT n FROM input");
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
    let state = || cluster.sql("SELECT dataset, epoch, task, state, attempt, worker, failures FROM system.tasks ORDER BY task");
    let (tasks, before) = (state(), store.objects("root"));

    first.signal("CONT");
    let names_the_leader = || runtime().block_on(leader_by(&cluster.addresses[0])) == Some(format!("grpc://{}", cluster.addresses[1]));
    eventually("the woken leader is a standby that names the leader", Duration::from_secs(10), names_the_leader);
    std::thread::sleep(Duration::from_secs(3));
    let after = store.objects("root");
    for (name, bytes) in &before {
        // The new leader's housekeeping may delete the journal's old files; nobody writes an object again.
        let same = after.get(name).map_or(name.starts_with("journal/"), |now| now == bytes);
        assert!(same, "{name} changed");
    }
    let added: Vec<_> = after.keys().filter(|name| !before.contains_key(*name) && !name.starts_with("journal/")).collect();
    assert!(added.is_empty(), "{added:?}");
    assert_eq!(state(), tasks);

    // It is a standby like any other.
    second.kill();
    cluster.leads(0, TAKEOVER);
    cluster.workers(1);
    assert_eq!(cluster.number("SELECT count(*) AS n FROM numbers"), 100);
}
