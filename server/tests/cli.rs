//! The binary as a shell sees it: exit statuses, what goes to stdout and what to stderr, closed pipes. What needs an engine is tested
//! in the whole-system tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn forebay(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(args).current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
        command.env_remove(name);
    }
    command.envs(env.iter().copied());
    command
}

fn run(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    forebay(folder, args, env).output().unwrap()
}

/// Runs a command that must fail with this status and say nothing on stdout; returns what it said.
fn fails(folder: &Path, status: i32, args: &[&str]) -> String {
    let out = run(folder, args, &[]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
    assert!(out.stdout.is_empty(), "{args:?} printed {}", String::from_utf8_lossy(&out.stdout));
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn help_and_version_are_answers_and_bad_usage_is_not() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["--version"][..], &["--help"], &["read", "--help"], &["help", "sql"]] {
        let out = run(folder.path(), args, &[]);
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        assert!(!out.stdout.is_empty() && out.stderr.is_empty(), "{args:?}");
    }
    assert!(fails(folder.path(), 2, &["materialise", "p.toml"]).contains("materialize"));
    assert!(fails(folder.path(), 2, &["read", "digits", "--sed", "7"]).contains("--seed"));
    assert!(fails(folder.path(), 2, &[]).contains("Usage"));
}

#[test]
fn where_to_go_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let said = fails(folder.path(), 2, &["datasets"]);
    assert!(said.contains("--root") && said.contains("--server") && said.contains("FOREBAY_ROOT"), "{said}");
    let out = run(folder.path(), &["datasets"], &[("FOREBAY_ROOT", "r"), ("FOREBAY_SERVER", "grpc://127.0.0.1:1")]);
    assert_eq!(out.status.code(), Some(2));
    // A flag settles it.
    let out = run(folder.path(), &["datasets", "--server", "grpc://127.0.0.1:1"], &[("FOREBAY_ROOT", "r")]);
    assert_eq!(out.status.code(), Some(3), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_server_that_is_not_there_is_status_3() {
    let folder = tempfile::tempdir().unwrap();
    let said = fails(folder.path(), 3, &["sql", "SELECT 1", "--server", "grpc://127.0.0.1:1,grpc://127.0.0.1:2"]);
    assert!(said.contains("127.0.0.1:1") && said.contains("127.0.0.1:2"), "{said}");
    assert!(fails(folder.path(), 2, &["sql", "SELECT 1", "--server", "smtp://x:1"]).contains("grpc://host:port"));
}

#[test]
fn a_read_of_a_root_that_is_not_there_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["datasets"][..], &["read", "digits"], &["jobs", "stop", "x"], &["datasets", "drop", "x"], &["sql", "SELECT 1"]] {
        fails(folder.path(), 2, &[args, &["--root", "nowhere"]].concat());
    }
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn a_wrong_pipeline_is_refused_whole_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), "name = \"d\"\n[source]\nurl = \"a.csv\"\n[epochs]\ncount = 0\n").unwrap();
    let said = fails(folder.path(), 2, &["materialize", "p.toml", "--root", "root"]);
    for part in ["p.toml: source.url: unknown key", "`uri`", "p.toml: epochs.count"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!folder.path().join("root").exists());
    assert!(fails(folder.path(), 2, &["materialize", "none.toml", "--root", "root"]).contains("none.toml"));
    assert!(fails(folder.path(), 2, &["materialize", "p.toml", "--root", "root", "--detach"]).contains("--detach"));
}

#[test]
fn what_this_version_lacks_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let said = fails(folder.path(), 2, &["read", "digits", "--visitation", "exactly_once", "--root", "root"]);
    assert!(said.contains("--visitation") && said.contains("relative to checkpoints"), "{said}");
    assert!(!folder.path().join("root").exists());
}

#[test]
fn settings_come_in_layers() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("forebay.toml"), "root = \"from-file\"\ntoken = \"secret\"\nslots = 2\n").unwrap();
    let out = run(folder.path(), &["config", "--dump", "--json"], &[("FOREBAY_SLOTS", "5")]);
    let dump: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(dump["root"], serde_json::json!({ "value": "from-file", "from": "forebay.toml" }));
    assert_eq!(dump["slots"], serde_json::json!({ "value": 5, "from": "FOREBAY_SLOTS" }));
    assert_eq!(dump["token"]["value"], "(hidden)");
    assert!(dump["server"]["value"].is_null());
    std::fs::write(folder.path().join("forebay.toml"), "rooot = \"x\"\n").unwrap();
    let said = fails(folder.path(), 2, &["datasets"]);
    assert!(said.contains("forebay.toml: rooot: unknown key; did you mean `root`?"), "{said}");
}

#[test]
fn an_open_port_without_a_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let said = fails(folder.path(), 2, &["serve", "--root", "root", "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0"]);
    assert!(said.contains("--token") && said.contains("--insecure"), "{said}");
    assert!(fails(folder.path(), 2, &["serve"]).contains("--root"));
}

#[test]
fn completions_are_scripts_and_a_closed_pipe_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let out = run(folder.path(), &["completions", shell], &[]);
        assert!(out.status.success() && String::from_utf8(out.stdout).unwrap().contains("materialize"), "{shell}");
    }
    // More than a pipe holds, read by somebody who wants only the beginning.
    let mut child = forebay(folder.path(), &["completions", "zsh"], &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut some = [0u8; 10];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut some).unwrap();
    drop(stdout);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}
