//! `serve` and the commands that go through it: one owner per root, tokens, jobs with several consumers, and what is left after a kill.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{Home, csv_pipeline, text};

fn thousand_rows() -> Home {
    let home = Home::new();
    let rows: String = (0..1000).map(|n| format!("{n}\n")).collect();
    home.write("data/a.csv", format!("n\n{rows}"));
    home.write("p.toml", csv_pipeline("numbers", "SELECT n FROM input", ""));
    home.ok(&["materialize", "p.toml"]);
    home
}

#[test]
fn s01_two_consumers_of_one_job_get_every_row_once_between_them() {
    let home = thousand_rows();
    home.ok(&["read", "numbers", "--job", "pair", "--consumers", "2", "--batch-size", "10", "--epochs", "1"]);
    let visits = home.sql(
        "SELECT consumer, state, count(*) AS batches, sum(rows) AS rows FROM system.visits WHERE job = 'pair' GROUP BY consumer, state",
    );
    assert_eq!(visits.iter().map(|v| v["rows"].as_i64().unwrap()).sum::<i64>(), 1000, "{visits:?}");
    assert!(visits.iter().all(|v| v["state"] == "acknowledged"), "{visits:?}");
    assert_eq!(visits.len(), 2, "both consumers took part: {visits:?}");
    assert_eq!(home.number("SELECT count(DISTINCT batch) AS n FROM system.visits WHERE job = 'pair'"), 100);
    assert_eq!(home.number("SELECT count(*) AS n FROM system.losses WHERE job = 'pair'"), 0);
}

#[test]
fn s02_a_finished_job_says_so_and_restart_begins_again() {
    let home = thousand_rows();
    let args = ["read", "numbers", "--job", "once", "--epochs", "1"];
    home.ok(&args);
    assert!(home.fails(2, &args).contains("finished"));
    home.ok(&["read", "numbers", "--job", "once", "--epochs", "1", "--restart"]);
    assert_eq!(home.number("SELECT count(DISTINCT incarnation) AS n FROM system.visits WHERE job = 'once'"), 2);
}

#[test]
fn s03_another_setting_under_the_same_name_is_refused_with_the_difference() {
    let home = thousand_rows();
    let server = home.serve(&[]);
    let mut first = home
        .command(&["read", "numbers", "--job", "same", "--epochs", "forever", "--seed", "1"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::support::eventually("the job exists", std::time::Duration::from_secs(20), || {
        home.number("SELECT count(*) AS n FROM system.jobs WHERE job = 'same'") == 1
    });
    let said = home.fails(2, &["read", "numbers", "--job", "same", "--epochs", "forever", "--seed", "2"]);
    assert!(said.contains("seed"), "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
    drop(server);
}

#[test]
fn the_digest_is_the_same_for_any_number_of_consumers_and_differs_by_seed() {
    let home = thousand_rows();
    let digest = |consumers: &str, seed: &str| {
        let out = home.ok(&[
            "read",
            "numbers",
            "--digest",
            "--json",
            "--consumers",
            consumers,
            "--seed",
            seed,
            "--batch-size",
            "16",
            "--epochs",
            "1",
        ]);
        let line = out.lines().rev().find(|l| l.contains("digest")).unwrap_or_else(|| panic!("{out}")).to_owned();
        serde_json::from_str::<Value>(&line).unwrap()["digest"].as_str().unwrap().to_owned()
    };
    let one = digest("1", "5");
    assert_eq!(one, digest("2", "5"));
    assert_eq!(one, digest("3", "5"));
    assert_ne!(one, digest("1", "6"));
}

#[test]
fn a_root_has_one_owner_and_embedded_commands_go_through_it() {
    let home = thousand_rows();
    let server = home.serve(&[]);
    let out = home.run(&["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    assert!(!out.status.success());
    let said = text(&out.stderr);
    assert!(
        said.contains(&server.child.id().to_string()) || said.contains(server.address.trim_start_matches("grpc://")),
        "names the owner: {said}"
    );
    // Embedded commands find the owner by the root alone, and write through it.
    assert_eq!(home.number("SELECT count(*) AS n FROM numbers"), 1000);
    home.ok(&["read", "numbers", "--job", "through", "--epochs", "1"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM system.jobs WHERE job = 'through'"), 1);
}

/// The command that came first owns the root; when its own work is done it stays for those who came through it.
#[test]
fn an_embedded_owner_outlasts_its_own_work_while_others_use_it() {
    let home = thousand_rows();
    let spawn = |job: &str, epochs: &str| {
        let mut command = home.command(&["read", "numbers", "--job", job, "--epochs", epochs, "--batch-size", "4"]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let taken = |job: &str| home.number(&format!("SELECT count(*) AS n FROM system.visits WHERE job = '{job}' AND state = 'acknowledged'"));
    let patience = std::time::Duration::from_secs(60);
    let first = spawn("first", "8");
    crate::support::eventually("the first is read", patience, || taken("first") > 0);
    let mut second = spawn("second", "forever");
    crate::support::eventually("the second is read", patience, || taken("second") > 0);
    crate::support::eventually("the first is done", patience, || {
        home.number("SELECT count(*) AS n FROM system.jobs WHERE job = 'first' AND state = 'finished'") == 1
    });
    let so_far = taken("second");
    crate::support::eventually("the second goes on", patience, || taken("second") > so_far);
    second.kill().unwrap();
    second.wait().unwrap();
    let out = first.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("others use this root"), "{}", text(&out.stderr));
}

#[test]
fn a_killed_owner_is_replaced_at_once_and_its_job_goes_on_without_repeats() {
    let home = thousand_rows();
    let mut server = home.serve(&[]);
    let mut reader = home
        .command(&["read", "numbers", "--job", "survivor", "--epochs", "forever", "--batch-size", "4"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::support::eventually("the job is read", std::time::Duration::from_secs(20), || {
        home.number("SELECT count(*) AS n FROM system.visits WHERE job = 'survivor' AND state = 'acknowledged'") > 0
    });
    server.kill();
    let _ = reader.kill();
    reader.wait().unwrap();
    // Nobody owns the root now: the next command does, and every batch of the journal has exactly one state.
    let twice =
        home.sql("SELECT pass, batch, count(*) AS n FROM system.visits WHERE job = 'survivor' GROUP BY pass, batch HAVING count(*) > 1");
    assert!(twice.is_empty(), "{twice:?}");
    let server = home.serve(&[]);
    assert_eq!(home.number("SELECT count(*) AS n FROM numbers"), 1000);
    drop(server);
}

#[test]
fn a_token_guards_every_call_and_open_ports_need_one() {
    let home = thousand_rows();
    let said = home.fails(2, &["serve", "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0"]);
    assert!(said.contains("--token") && said.contains("--insecure"), "{said}");
    let server = home.serve(&["--token", "secret-word"]);
    let call = |token: Option<&str>| {
        let mut command = home.command(&["datasets", "--server", &server.address]);
        command.env_remove("FOREBAY_ROOT");
        if let Some(token) = token {
            command.env("FOREBAY_TOKEN", token);
        }
        command.output().unwrap()
    };
    for wrong in [None, Some("other-word")] {
        let out = call(wrong);
        assert!(!out.status.success());
        assert!(!text(&out.stderr).contains("secret-word"));
    }
    let out = call(Some("secret-word"));
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("numbers"));
}

#[test]
fn a_port_in_use_is_named() {
    let home = thousand_rows();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let out = home.run(&["serve", "--listen", &address, "--http", "127.0.0.1:0"]);
    assert!(!out.status.success());
    let said = text(&out.stderr);
    assert!(said.contains(&address) && said.contains("--listen"), "{said}");
}

#[test]
fn an_unreachable_server_is_exit_status_3() {
    let home = Home::new();
    let out = home.command(&["datasets", "--server", "grpc://127.0.0.1:1"]).env_remove("FOREBAY_ROOT").output().unwrap();
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("127.0.0.1:1"));
}

#[test]
fn a_filter_serves_exactly_the_rows_that_pass() {
    let home = thousand_rows();
    home.ok(&["read", "numbers", "--job", "some", "--filter", "n % 3 = 0 AND n < 500", "--batch-size", "8", "--epochs", "1"]);
    assert_eq!(home.number("SELECT sum(rows) AS n FROM system.visits WHERE job = 'some' AND state = 'acknowledged'"), 167);
    let said = home.fails(2, &["read", "numbers", "--filter", "m > 1"]);
    assert!(said.contains('m'), "{said}");
}

#[test]
fn a_step_is_replayed_as_it_was() {
    let home = thousand_rows();
    home.ok(&["read", "numbers", "--job", "seen", "--batch-size", "16", "--seed", "3", "--epochs", "2"]);
    let ids = |args: &[&str]| {
        let answer: Value = serde_json::from_str(&home.ok(args)).unwrap();
        answer["selected"][0]["ids"].clone()
    };
    let mut seen = BTreeMap::new();
    for batch in ["0", "5", "62"] {
        let of_job = ids(&["plan", "numbers", "--job", "seen", "--pass", "1", "--batch", batch, "--json"]);
        let of_dataset = ids(&["plan", "numbers", "--pass", "1", "--seed", "3", "--batch-size", "16", "--batch", batch, "--json"]);
        assert_eq!(of_job, of_dataset, "the same plan identity gives the same rows");
        seen.insert(batch, of_job);
    }
    assert_ne!(seen["0"], seen["5"]);
}

#[test]
fn a_dataset_dropped_while_it_is_read_ends_the_read_and_leaves_no_process_dead() {
    let home = thousand_rows();
    let said = {
        let _server = home.serve(&[]);
        home.fails(1, &["materialize", "p.toml", "--epochs", "1..2"])
    };
    assert!(said.contains("sources.allow"), "a server reads what its settings allow: {said}");
    home.write("forebay.toml", format!("[sources]\nallow = [\"{}\"]\n", home.path("data").display()));
    let server = home.serve(&[]);
    let mut reader = home
        .command(&["read", "numbers", "--job", "cut", "--epochs", "forever"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::support::eventually("the job is read", std::time::Duration::from_secs(20), || {
        home.number("SELECT count(*) AS n FROM system.jobs WHERE job = 'cut'") == 1
    });
    home.ok(&["datasets", "drop", "numbers"]);
    crate::support::eventually("the reader ends", std::time::Duration::from_secs(30), || reader.try_wait().unwrap().is_some());
    assert!(!home.ok(&["datasets"]).contains("numbers"));
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM numbers"), 1000);
    drop(server);
}

/// One plain HTTP request; returns (status, body).
fn get(server: &crate::support::Server, path: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let address = server.http.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn health_metrics_and_console_answer_and_data_needs_the_token() {
    let home = thousand_rows();
    let server = home.serve(&["--token", "secret-word"]);
    assert_eq!(get(&server, "/healthz").0, 200);
    assert_eq!(get(&server, "/readyz").0, 200);
    let (status, metrics) = get(&server, "/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("forebay_materialized_rows_total") && !metrics.contains("secret-word"), "{metrics}");
    assert!(get(&server, "/").1.contains("<title>Forebay</title>"));
    assert_eq!(get(&server, "/api/v1/overview").0, 401);
}

#[test]
fn a_server_that_is_asked_to_end_accounts_for_what_was_granted() {
    let home = thousand_rows();
    let mut server = home.serve(&[]);
    let mut reader = home
        .command(&["read", "numbers", "--job", "left", "--epochs", "forever", "--batch-size", "4"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::support::eventually("the job is read", std::time::Duration::from_secs(20), || {
        home.number("SELECT count(*) AS n FROM system.visits WHERE job = 'left' AND state = 'acknowledged'") > 0
    });
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert!(std::process::Command::new("kill").args(["-INT", &server.child.id().to_string()]).status().unwrap().success());
    crate::support::eventually("the server ends", std::time::Duration::from_secs(10), || server.child.try_wait().unwrap().is_some());
    let open = home.number("SELECT count(*) AS n FROM system.visits WHERE job = 'left' AND state IN ('granted', 'sent')");
    assert_eq!(open, 0, "nothing is left granted by a server that ended properly");
    let unexplained = home.number("SELECT count(*) AS n FROM system.losses WHERE job = 'left' AND reason IS NULL");
    assert_eq!(unexplained, 0);
}
