//! Materializing and reading on a store that fails, with processes that are killed.

use std::process::Stdio;
use std::time::Duration;

use forebay_tests::s3::{Fault, Options, Rule};
use http::Method;

use super::support::{BUCKET, Store};
use crate::cluster::runs::{STEP, alone, staged, stored};
use crate::cluster::support::Cluster;
use crate::support::{Home, Server, csv_pipeline, eventually, text};

/// Of a thousand requests, so many fail.
const FAULTS: u32 = 60;

/// A home with `data/*.csv` and a pipeline over two epochs.
fn numbers(home: Home) -> Home {
    for file in 0..4 {
        let lines: String = (0..250).map(|n| format!("{}\n", file * 250 + n)).collect();
        home.write(&format!("data/f{file}.csv"), format!("n\n{lines}"));
    }
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, random_uniform() AS noise FROM input", "").replace("count = 1", "count = 2"));
    home
}

/// Allows the home's own files to its servers.
fn allowed(home: &Home) {
    home.write("forebay.toml", format!("sources.allow = [\"{}\"]\npython.allow = true\n", home.path("data").display()));
}

const ALL: &str = "SELECT epoch, _id, _source, n, noise FROM numbers ORDER BY epoch, _id";
const READ: [&str; 7] = ["read", "numbers", "--batch-size", "50", "--consumers", "2", "--json"];

/// Rows and digest of a read of everything.
fn read(home: &Home) -> (u64, String) {
    let said: serde_json::Value = serde_json::from_str(&home.ok(&READ)).unwrap();
    (said["rows"].as_u64().unwrap(), said["digest"].as_str().unwrap().to_owned())
}

fn through(home: &Home, server: &Server) {
    allowed(home);
    home.ok(&["materialize", "p.toml", "--server", &server.address]);
}

#[test]
fn a_served_root_gives_the_same_rows_as_a_local_one_whatever_the_store_does() {
    let local = numbers(Home::new());
    local.ok(&["materialize", "p.toml"]);
    for (seed, faults) in [(1, 0), (2, FAULTS), (3, FAULTS)] {
        let store = Store::faulty(seed, faults);
        let home = numbers(store.home());
        allowed(&home);
        let mut server = home.serve(&[]);
        through(&home, &server);
        assert!(home.ok(&["sql", ALL, "--format", "csv"]) == local.ok(&["sql", ALL, "--format", "csv"]), "seed {seed}");
        assert_eq!(read(&home), read(&local), "seed {seed}");
        let (_, status) = server.end();
        assert_eq!(status, Some(0), "seed {seed}");
        assert_eq!(faults > 0, !store.endpoint.shown().is_empty(), "{:?}", store.endpoint.shown());
    }
}

#[test]
fn virtual_hosts_serve_a_root_as_paths_do() {
    let store = Store::with(|options| Options { domain: Some("s3.test".to_owned()), ..options });
    let mut home = numbers(store.home());
    let proxied = [
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true".to_owned()),
        ("AWS_ENDPOINT", format!("http://{BUCKET}.s3.test")),
        ("AWS_PROXY_URL", store.endpoint.url()),
    ];
    home.env.extend(proxied.map(|(name, value)| (name.to_owned(), value)));
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(read(&home).0, 2000);
    assert!(store.objects("root/datasets/numbers/_delta_log").contains_key("00000000000000000000.json"), "in the bucket itself");
}

#[test]
fn each_lost_or_doubtful_commit_is_made_once() {
    for fault in [Fault::LostAnswer, Fault::LostConnection, Fault::Conflict, Fault::LostConflict] {
        let store = Store::reliable();
        let home = numbers(store.home());
        store.endpoint.inject(Rule { times: 3, ..Rule::once(fault, Method::PUT, "_delta_log/0") });
        store.endpoint.inject(Rule { times: 2, ..Rule::once(fault, Method::PUT, "epoch%3D") });
        store.endpoint.inject(Rule { times: 4, ..Rule::once(fault, Method::PUT, "/journal/") });
        home.ok(&["materialize", "p.toml"]);
        let rows = home.sql("SELECT epoch, count(*) AS n, count(DISTINCT _id) AS ids FROM numbers GROUP BY epoch ORDER BY epoch");
        let counts: Vec<_> = rows.iter().map(|r| (r["n"].as_i64(), r["ids"].as_i64())).collect();
        assert_eq!(counts, [(Some(1000), Some(1000)); 2], "{fault:?}");
        let commits = store.objects("root/datasets/numbers/_delta_log").into_keys().filter(|k| k.ends_with(".json")).count();
        assert_eq!(commits, 2, "one commit per epoch: {fault:?}");
        assert_eq!(home.number("SELECT count(*) AS n FROM system.tasks WHERE failures > 0"), 0, "no task failed for it: {fault:?}");
        assert!(store.endpoint.shown()[fault.name()] >= 7, "{fault:?}: {:?}", store.endpoint.shown());
    }
}

#[test]
fn a_killed_server_resumes_its_run_where_it_was() {
    let store = Store::faulty(5, FAULTS);
    let cluster = Cluster::napping_at(store.home(), 8, 200, STEP);
    let home = &cluster.home;
    allowed(home);
    let mut server = home.serve(&["--slots", "2"]);
    home.ok(&["materialize", "p.toml", "--detach", "--server", &server.address]);
    let done = || home.number("SELECT count(*) AS n FROM system.tasks WHERE state = 'staged'");
    eventually("two tasks are staged", Duration::from_secs(90), || done() >= 2);
    server.kill();
    let before = store.objects("root/datasets/numbers");
    let server = home.serve(&["--slots", "2"]);
    home.ok(&["materialize", "p.toml", "--resume", "--server", &server.address]);
    let after = store.objects("root/datasets/numbers");
    assert!(before.iter().all(|(name, bytes)| !name.ends_with(".parquet") || after.get(name) == Some(bytes)), "what was stored stays");
    assert!(stored(|query| home.ok(&["sql", query, "--format", "csv"])) == alone(&cluster), "the rows differ from an undisturbed run");
    let log = store.objects("root/datasets/numbers/_delta_log");
    assert_eq!(log.keys().filter(|name| name.ends_with(".json")).count(), 1, "{:?}", log.keys());
}

#[test]
fn workers_die_on_a_failing_store_and_every_row_is_there_once() {
    let store = Store::faulty(6, FAULTS);
    let cluster = Cluster::napping_at(store.home(), 12, 200, STEP);
    let _dispatcher = cluster.dispatcher(0);
    let mut killed = cluster.worker("killed");
    let _others = [cluster.worker("a"), cluster.worker("b")];
    cluster.workers(3);
    let servers = cluster.servers();
    let mut run = cluster.home.command(&["materialize", "p.toml", "--server", &servers]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the first task is staged", Duration::from_secs(90), || staged(&cluster) >= 1);
    killed.kill();
    let out = run.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    assert!(stored(|query| cluster.ok(&["sql", query, "--format", "csv"])) == alone(&cluster), "the rows differ from a run in one process");
    assert!(store.endpoint.shown().values().sum::<u64>() > 10, "{:?}", store.endpoint.shown());
}
