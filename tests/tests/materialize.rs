//! Materialization by the real binary: published whole or not at all, resumed after every kind of death, never done twice.

use std::time::{Duration, Instant};

use crate::support::{Home, csv_pipeline, eventually, repo, text};

const CRASH_POINTS: &[&str] = &["after-staged", "after-publishing-entry", "after-commit", "after-published"];

/// 12 files of 50 rows: several tasks.
fn many_files(home: &Home) {
    for file in 0..12 {
        let rows: String = (0..50).map(|row| format!("{},{}\n", file * 50 + row, row % 7)).collect();
        home.write(&format!("data/{file:02}.csv"), format!("n,label\n{rows}"));
    }
}

#[test]
fn digits_become_three_epochs_that_differ_and_are_split_exactly() {
    let home = Home::new();
    let pipeline = repo().join("examples/digits/digits.toml");
    home.ok(&["materialize", pipeline.to_str().unwrap()]);
    assert_eq!(home.number("SELECT count(*) AS n FROM digits"), 3 * 1797);
    assert_eq!(home.number("SELECT count(DISTINCT epoch) AS n FROM digits"), 3);
    // 80 % of each of ten labels by largest remainder.
    for row in home.sql(
        "SELECT label, count(*) AS n, sum(CASE WHEN split = 'train' THEN 1 ELSE 0 END) AS train FROM digits WHERE epoch = 0 GROUP BY label",
    ) {
        let (n, train) = (row["n"].as_i64().unwrap(), row["train"].as_i64().unwrap());
        assert!((train as f64 - 0.8 * n as f64).abs() < 1.0, "{row}");
    }
    assert_eq!(
        home.number(
            "SELECT count(*) AS n FROM digits a JOIN digits b ON a._id = b._id AND a.epoch = 0 AND b.epoch = 1 WHERE a.split <> b.split"
        ),
        0
    );
    let means = home.sql("SELECT epoch, sum(tensor_mean(image)) AS m FROM digits GROUP BY epoch ORDER BY epoch");
    assert_ne!(means[0]["m"], means[1]["m"], "every epoch is augmented anew");
    assert_ne!(means[1]["m"], means[2]["m"]);
}

#[test]
fn running_it_again_reads_nothing_and_says_so() {
    let home = Home::new();
    many_files(&home);
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", ""));
    home.ok(&["materialize", "p.toml"]);
    let before = home.number("SELECT max(version) AS v FROM system.versions");
    // Content that changed under the same size and time would be read if anything were.
    let path = home.path("data/00.csv");
    let (modified, content) = (std::fs::metadata(&path).unwrap().modified().unwrap(), std::fs::read(&path).unwrap());
    std::fs::write(&path, vec![b'x'; content.len()]).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    let out = home.run(&["materialize", "p.toml"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let said = text(&out.stdout) + &text(&out.stderr);
    assert!(said.contains("already materialized"), "{said}");
    assert_eq!(home.number("SELECT max(version) AS v FROM system.versions"), before);
}

#[test]
fn a_changed_pipeline_says_what_changed_and_replace_publishes_it() {
    let home = Home::new();
    many_files(&home);
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", ""));
    home.ok(&["materialize", "p.toml"]);
    home.write("p.toml", csv_pipeline("numbers", "SELECT n * 2 AS n, label FROM input", ""));
    let said = home.fails(2, &["materialize", "p.toml"]);
    assert!(said.contains("step") && said.contains("n * 2") && said.contains("--replace"), "{said}");
    home.ok(&["materialize", "p.toml", "--replace"]);
    assert_eq!(home.number("SELECT sum(n) AS n FROM numbers"), 599 * 600);
    assert_eq!(home.number("SELECT sum(n) AS n FROM \"numbers@v0\""), 599 * 300, "the old version stays readable");
    // A source that changed says so too.
    home.write("data/12.csv", "n,label\n600,0\n");
    let said = home.fails(2, &["materialize", "p.toml"]);
    assert!(said.contains("source"), "{said}");
}

#[test]
fn more_epochs_of_the_same_pipeline_are_just_more_epochs() {
    let home = Home::new();
    many_files(&home);
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", ""));
    home.ok(&["materialize", "p.toml", "--epochs", "0..1"]);
    home.ok(&["materialize", "p.toml", "--epochs", "0..3"]);
    let epochs = home.sql("SELECT epoch, count(*) AS n FROM numbers GROUP BY epoch ORDER BY epoch");
    assert_eq!(epochs.iter().map(|e| e["n"].as_i64().unwrap()).collect::<Vec<_>>(), [600, 600, 600]);
}

#[test]
fn killed_at_each_point_of_publishing_no_half_epoch_is_seen_and_resume_finishes() {
    for point in CRASH_POINTS {
        let home = Home::new();
        many_files(&home);
        home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", ""));
        let out = home.command(&["materialize", "p.toml", "--epochs", "0..2"]).env("FOREBAY_CRASH_AT", point).output().unwrap();
        assert!(!out.status.success(), "{point}: the process was to die");
        let seen = home.run(&["sql", "SELECT epoch, count(*) AS n FROM numbers GROUP BY epoch", "--format", "json"]);
        if seen.status.success() {
            for line in text(&seen.stdout).lines() {
                let row: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(row["n"], 600, "{point}: half an epoch is visible: {row}");
            }
        }
        home.ok(&["materialize", "p.toml", "--epochs", "0..2", "--resume"]);
        let epochs = home.sql("SELECT epoch, count(*) AS n, count(DISTINCT _id) AS ids FROM numbers GROUP BY epoch ORDER BY epoch");
        assert_eq!(epochs.len(), 2, "{point}");
        for row in epochs {
            assert_eq!((row["n"].as_i64(), row["ids"].as_i64()), (Some(600), Some(600)), "{point}: {row}");
        }
    }
}

#[test]
fn killed_at_any_moment_and_resumed_until_done() {
    let home = Home::new();
    many_files(&home);
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", ""));
    let args = ["materialize", "p.toml", "--epochs", "0..4", "--resume"];
    let mut killed = 0;
    for delay in [20, 60, 110, 170, 240, 320, 410, 510] {
        let mut child = home.command(&args).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(delay) && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        killed += i32::from(child.try_wait().unwrap().is_none());
        let _ = child.kill();
        child.wait().unwrap();
    }
    assert!(killed > 0, "no run was killed: the test is too slow to mean anything");
    home.ok(&args);
    let epochs = home.sql("SELECT epoch, count(*) AS n, count(DISTINCT _id) AS ids FROM numbers GROUP BY epoch ORDER BY epoch");
    assert_eq!(epochs.len(), 4);
    for row in epochs {
        assert_eq!((row["n"].as_i64(), row["ids"].as_i64()), (Some(600), Some(600)), "{row}");
    }
}

#[test]
fn an_interrupt_cleans_up_and_says_how_to_go_on() {
    let home = Home::new();
    many_files(&home);
    home.write("slow.py", "import time\n\ndef nap(batch):\n    time.sleep(0.4)\n    return batch\n");
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", "") + "[[steps]]\nname = \"nap\"\npython = \"slow:nap\"\n");
    let mut child = home.command(&["materialize", "p.toml", "--epochs", "0..20"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let started = Instant::now();
    eventually("the run ends", Duration::from_secs(20), || child.try_wait().unwrap().is_some());
    assert!(started.elapsed() < Duration::from_secs(20));
    let out = child.wait_with_output().unwrap();
    let said = text(&out.stderr);
    assert!(!out.status.success());
    assert!(said.contains("--resume"), "{said}");
    home.ok(&["datasets"]);
}
