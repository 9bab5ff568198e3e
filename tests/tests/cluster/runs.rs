//! Materialization over several workers.

use std::process::Stdio;
use std::time::Duration;

use super::support::{Cluster, LEASE, TAKEOVER};
use crate::support::{Home, eventually, text};

pub const STEP: &str = "SELECT n, encode(sha256(CAST(n AS VARCHAR)), 'hex') AS h FROM input";

/// All stored rows in key order, as text.
pub fn stored(sql: impl Fn(&str) -> String) -> String {
    sql("SELECT _id, _source, n, h FROM numbers ORDER BY _id")
}

/// The same pipeline over the same files in one process.
pub fn alone(cluster: &Cluster) -> String {
    let home = Home::new();
    for entry in std::fs::read_dir(cluster.home.path("data")).unwrap() {
        let path = entry.unwrap().path();
        home.write(&format!("data/{}", path.file_name().unwrap().to_str().unwrap()), std::fs::read(&path).unwrap());
    }
    for name in ["p.toml", "nap.py"] {
        home.write(name, std::fs::read(cluster.home.path(name)).unwrap());
    }
    home.ok(&["materialize", "p.toml"]);
    stored(|query| home.ok(&["sql", query, "--format", "csv"]))
}

pub fn staged(cluster: &Cluster) -> i64 {
    cluster.number("SELECT count(*) AS n FROM system.tasks WHERE state = 'staged'")
}

#[test]
fn s05_s25_a_run_survives_a_killed_and_a_paused_worker_with_every_row_once() {
    let cluster = Cluster::napping(16, 250, STEP);
    let _dispatcher = cluster.dispatcher(0);
    let mut killed = cluster.worker("killed");
    let paused = cluster.worker("paused");
    let _third = cluster.worker("third");
    cluster.workers(3);
    let servers = cluster.servers();
    let mut run = cluster.home.command(&["materialize", "p.toml", "--server", &servers]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the first task is staged", Duration::from_secs(60), || staged(&cluster) >= 1);
    killed.kill();
    paused.signal("STOP");
    // Past its lease, by the dispatcher's clock and by its own.
    std::thread::sleep(LEASE + Duration::from_secs(3));
    paused.signal("CONT");
    let out = run.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    let rows = cluster.sql("SELECT count(*) AS n, count(DISTINCT _id) AS ids FROM numbers");
    assert_eq!((rows[0]["n"].as_i64(), rows[0]["ids"].as_i64()), (Some(4000), Some(4000)));
    assert!(stored(|query| cluster.ok(&["sql", query, "--format", "csv"])) == alone(&cluster), "the rows differ from a run in one process");
    // The woken worker works again.
    cluster.workers(2);
}

#[test]
fn s18_client_and_worker_may_start_before_the_dispatcher() {
    let cluster = Cluster::new(2, 50, "SELECT n FROM input");
    let _worker = cluster.worker("early");
    let servers = cluster.servers();
    let mut client = cluster.home.command(&["materialize", "p.toml", "--server", &servers]);
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let _dispatcher = cluster.dispatcher(1);
    let out = client.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    assert!(text(&out.stderr).contains("waiting for a server at"), "{}", text(&out.stderr));
    assert_eq!(cluster.number("SELECT count(*) AS n FROM numbers"), 100);
}

#[test]
fn s13_a_run_goes_on_under_the_standby_when_the_leader_is_killed() {
    let cluster = Cluster::napping(12, 200, STEP);
    let mut first = cluster.dispatcher(0);
    cluster.leads(0, TAKEOVER);
    let _second = cluster.dispatcher(1);
    let _workers = [cluster.worker("a"), cluster.worker("b")];
    cluster.workers(2);
    let servers = cluster.servers();
    let mut run = cluster.home.command(&["materialize", "p.toml", "--server", &servers]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the first task is staged", Duration::from_secs(60), || staged(&cluster) >= 1);
    first.kill();
    cluster.leads(1, TAKEOVER);
    let out = run.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    let rows = cluster.sql("SELECT count(*) AS n, count(DISTINCT _id) AS ids FROM numbers");
    assert_eq!((rows[0]["n"].as_i64(), rows[0]["ids"].as_i64()), (Some(2400), Some(2400)));
    // The workers' leases lasted: no task was tried twice because of the change.
    assert_eq!(cluster.number("SELECT count(*) AS n FROM system.shards WHERE attempt > 0"), 0);
}
