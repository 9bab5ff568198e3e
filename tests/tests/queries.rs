//! `[source] sql`: a query over datasets as the source of another one.

use crate::support::{Home, csv_pipeline, eventually, text};
use std::time::Duration;

/// `people` (600 rows in 12 files) and `labels` (7 rows), which join on `label`.
fn inputs(home: &Home) {
    for file in 0..12 {
        let rows: String = (0..50).map(|row| format!("{},{}\n", file * 50 + row, (file * 50 + row) % 7)).collect();
        home.write(&format!("data/{file:02}.csv"), format!("n,label\n{rows}"));
    }
    let labels: String = (0..7).map(|label| format!("{label},name-{label}\n")).collect();
    home.write("labels/labels.csv", format!("label,name\n{labels}"));
    home.write("people.toml", csv_pipeline("people", "SELECT n, label FROM input", ""));
    home.write("labels.toml", "name = \"labels\"\n[source]\nuri = \"labels/*.csv\"\nformat = \"csv\"\n");
    home.ok(&["materialize", "people.toml"]);
    home.ok(&["materialize", "labels.toml"]);
}

fn query_pipeline(name: &str, query: &str, extra: &str) -> String {
    format!("name = \"{name}\"\n[source]\nsql = \"\"\"{query}\"\"\"\noptions = {{ task_size = \"2KiB\" }}\n{extra}")
}

const JOIN: &str = "SELECT p.n, p.label, l.name, 2 * p.n AS twice FROM people p JOIN labels l ON p.label = l.label ORDER BY p.n";

fn refused(home: &Home, query: &str) -> String {
    home.write("bad.toml", query_pipeline("bad", query, ""));
    home.fails(2, &["materialize", "bad.toml"])
}

#[test]
fn a_join_is_staged_once_and_divided_into_tasks() {
    let home = Home::new();
    inputs(&home);
    let steps = "[[steps]]\nname = \"s\"\nsql = \"SELECT n, name, twice + 1 AS odd FROM input\"\n[epochs]\ncount = 2\n";
    home.write("joined.toml", query_pipeline("joined", JOIN, steps));
    home.ok(&["materialize", "joined.toml"]);
    // The position in the ordered result is the key, in both epochs, and the columns of a row belong together.
    let wrong = "SELECT count(*) AS n FROM joined WHERE _id <> n OR odd <> 2 * n + 1 OR name <> 'name-' || CAST(n % 7 AS VARCHAR)";
    assert_eq!(home.number(wrong), 0);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined"), 1200);
    assert_eq!(home.sql("SELECT DISTINCT _source FROM joined")[0]["_source"], "query.arrow");
    // Another layout is the same pipeline, and more epochs read the same staged rows.
    let spread = JOIN.replace(" FROM", "\n  -- the two\n  FROM");
    home.write("joined.toml", query_pipeline("joined", &spread, steps));
    let out = home.run(&["materialize", "joined.toml"]);
    assert!((text(&out.stdout) + &text(&out.stderr)).contains("already materialized"));
    home.ok(&["materialize", "joined.toml", "--epochs", "0..3"]);
    assert_eq!(home.number(wrong), 0);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined"), 1800);
    let staged = std::fs::read_dir(home.path("root/datasets/joined/_forebay/sql")).unwrap().count();
    assert_eq!(staged, 1);
    // A larger answer is several tasks.
    let pairs = "SELECT a.n * 40 + b.n AS pair FROM people a CROSS JOIN people b WHERE b.n < 40 ORDER BY pair";
    home.write("pairs.toml", query_pipeline("pairs", pairs, ""));
    home.ok(&["materialize", "pairs.toml"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM pairs WHERE _id = pair"), 24_000);
    assert!(home.number("SELECT count(DISTINCT path) AS n FROM system.shards WHERE dataset = 'pairs'") > 1);
}

#[test]
fn aggregates_sorts_and_deduplication_are_sources_too() {
    let home = Home::new();
    inputs(&home);
    let query = "SELECT label, count(*) AS many, max(n) AS most FROM people GROUP BY label HAVING count(*) > 85 ORDER BY most DESC LIMIT 3";
    home.write("g.toml", query_pipeline("grouped", query, ""));
    home.ok(&["materialize", "g.toml"]);
    let rows = home.sql("SELECT _id, label, many, most FROM grouped ORDER BY _id");
    let found: Vec<_> =
        rows.iter().map(|r| (r["_id"].as_i64().unwrap(), r["label"].as_i64().unwrap(), r["most"].as_i64().unwrap())).collect();
    // 600 = 85 * 7 + 5: the labels 0 to 4 have 86 rows.
    assert_eq!(found, [(0, 4, 599), (1, 3, 598), (2, 2, 597)]);
    home.write("d.toml", query_pipeline("distinct_labels", "SELECT DISTINCT label FROM people", ""));
    home.ok(&["materialize", "d.toml"]);
    assert_eq!(home.number("SELECT sum(label) AS n FROM distinct_labels"), 21);
}

#[test]
fn changed_inputs_are_named_and_pinned_ones_do_not_change() {
    let home = Home::new();
    inputs(&home);
    home.write("joined.toml", query_pipeline("joined", JOIN, ""));
    home.write("pinned.toml", query_pipeline("pinned", &JOIN.replace("labels l", "\"labels@v0\" l"), ""));
    home.ok(&["materialize", "joined.toml"]);
    home.ok(&["materialize", "pinned.toml"]);
    home.write("labels/more.csv", "label,name\n7,name-7\n3,again-3\n");
    home.ok(&["materialize", "labels.toml", "--replace"]);
    let said = home.fails(2, &["materialize", "joined.toml"]);
    assert!(said.contains("dataset labels: v0 -> v1") && said.contains("--replace") && !said.contains("people"), "{said}");
    let out = home.run(&["materialize", "pinned.toml"]);
    assert!((text(&out.stdout) + &text(&out.stderr)).contains("already materialized"), "{}", text(&out.stderr));
    let said = home.fails(2, &["materialize", "joined.toml", "--set", "source.sql=SELECT name FROM labels WHERE epoch = 0"]);
    assert!(said.contains("source.sql") && said.contains("SELECT name FROM labels"), "{said}");
    home.ok(&["materialize", "joined.toml", "--replace"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined"), 600 + 86);
    assert_eq!(home.number("SELECT min(_id) AS n FROM joined"), 600, "ids are not given to other rows");
    assert_eq!(home.number("SELECT count(*) AS n FROM pinned"), 600);
}

#[test]
fn what_is_no_source_is_refused_with_the_reason() {
    let home = Home::new();
    inputs(&home);
    let cases = [
        ("SELECT name FROM lables", "there is no dataset `lables`; did you mean `labels`?"),
        ("SELECT nam FROM labels", "nam"),
        ("SELEC name FROM labels", "source.sql"),
        ("SELECT name FROM labels; SELECT 1", "exactly one statement"),
        ("DROP TABLE labels", "DROP"),
        ("EXPLAIN SELECT name FROM labels", "EXPLAIN"),
        ("SELECT 1 AS one", "reads no dataset"),
        ("SELECT name FROM system.datasets", "has no versions"),
        ("SELECT name FROM labels WHERE label > 99", "no rows"),
        ("SELECT name, now() AS at FROM labels", "now"),
        ("SELECT * FROM labels", "`epoch` is reserved"),
        ("SELECT p.label, l.label FROM people p JOIN labels l ON p.label = l.label", "two columns are named `label`"),
        ("SELECT label FROM bad", "what this pipeline makes"),
        ("SELECT $1 AS x FROM labels", "$1"),
        ("SELECT name FROM \"labels@v9\"", "version 9"),
    ];
    for (query, expected) in cases {
        let said = refused(&home, query);
        assert!(said.contains(expected), "{query}\n{said}");
    }
    // What is wrong with the steps is told before the query runs.
    home.write("bad.toml", query_pipeline("bad", JOIN, "[[steps]]\nname = \"s\"\nsql = \"SELECT nme FROM input\"\n"));
    assert!(home.fails(2, &["materialize", "bad.toml"]).contains("nme"));
    // The query without rows was staged, and is gone; a local store leaves the folders.
    let folders = std::fs::read_dir(home.path("root/datasets/bad/_forebay/sql")).unwrap();
    assert_eq!(folders.flatten().filter(|f| f.path().join("query.arrow").exists()).count(), 0);
    let said = home.fails(2, &["sql", "SELECT count(*) FROM bad"]);
    assert!(said.contains("no dataset"), "{said}");
}

/// Each with what the next command may do: resume what was staged, or begin again.
#[test]
fn a_dead_owner_costs_no_row_of_the_staged_answer() {
    for point in ["after-staged", "after-publishing-entry", "after-commit"] {
        let home = Home::new();
        inputs(&home);
        home.write("joined.toml", query_pipeline("joined", JOIN, "[epochs]\ncount = 2\n"));
        let died = home.command(&["materialize", "joined.toml"]).env("FOREBAY_CRASH_AT", point).output().unwrap();
        assert!(!died.status.success(), "{point}: {}", text(&died.stderr));
        home.ok(&["materialize", "joined.toml", "--resume"]);
        assert_eq!(home.number("SELECT count(*) AS n FROM joined"), 1200, "{point}");
        assert_eq!(home.number("SELECT count(*) AS n FROM joined WHERE _id <> n"), 0, "{point}");
        assert_eq!(std::fs::read_dir(home.path("root/datasets/joined/_forebay/sql")).unwrap().count(), 1, "{point}: staged once");
    }
}

#[test]
fn a_lost_answer_is_made_again_where_it_is_the_same() {
    let home = Home::new();
    inputs(&home);
    home.write("joined.toml", query_pipeline("joined", JOIN, ""));
    home.ok(&["materialize", "joined.toml"]);
    let staged = home.path("root/datasets/joined/_forebay/sql");
    std::fs::remove_dir_all(&staged).unwrap();
    // Nothing is missing, so nothing is made.
    home.ok(&["materialize", "joined.toml"]);
    assert!(!staged.exists());
    home.ok(&["materialize", "joined.toml", "--epochs", "0..2"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined"), 1200);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined WHERE _id <> n"), 0);
    // And a third time, from the snapshot that was written then.
    home.ok(&["materialize", "joined.toml", "--epochs", "0..3"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined WHERE _id <> n"), 0);
    assert_eq!(std::fs::read_dir(&staged).unwrap().count(), 1);
}

#[test]
fn vacuum_takes_answers_that_nobody_needs_and_no_other() {
    let home = Home::new();
    inputs(&home);
    home.write("joined.toml", query_pipeline("joined", JOIN, ""));
    home.ok(&["materialize", "joined.toml"]);
    let staged = home.path("root/datasets/joined/_forebay/sql");
    std::fs::create_dir_all(staged.join("orphan")).unwrap();
    std::fs::write(staged.join("orphan/query.arrow"), b"left by a process that died").unwrap();
    home.ok(&["datasets", "vacuum", "joined", "--older-than", "0s"]);
    assert!(!staged.join("orphan/query.arrow").exists());
    home.ok(&["materialize", "joined.toml", "--epochs", "0..2"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined WHERE _id = n"), 1200);
    // A replaced answer goes, the new one stays.
    home.ok(&["materialize", "joined.toml", "--replace", "--set", "source.sql=SELECT n FROM people ORDER BY n LIMIT 10"]);
    home.ok(&["datasets", "vacuum", "joined", "--older-than", "0s"]);
    let left: usize = std::fs::read_dir(&staged).unwrap().flatten().filter(|d| d.path().join("query.arrow").exists()).count();
    assert_eq!(left, 1);
    home.ok(&["materialize", "joined.toml", "--epochs", "0..2", "--set", "source.sql=SELECT n FROM people ORDER BY n LIMIT 10"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM joined"), 20);
}

#[test]
fn s34_a_join_keeps_its_rows_together_at_any_worker_count() {
    let home = Home::new();
    inputs(&home);
    home.write("joined.toml", query_pipeline("joined", JOIN, "[epochs]\ncount = 2\n"));
    let mut digests = Vec::new();
    for workers in [1, 3] {
        let dispatcher = home.start(&["dispatcher", "--root", &home.root(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        let names: Vec<String> = (0..workers).map(|n| format!("w{n}")).collect();
        let started: Vec<_> = names
            .iter()
            .map(|name| {
                let address = dispatcher.address.as_str();
                home.start(&["worker", "--dispatcher", address, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--name", name])
            })
            .collect();
        let at = ["--server", dispatcher.address.as_str()];
        eventually("the workers register", Duration::from_secs(60), || {
            let rows = home.ok(&["workers", at[0], at[1], "--json"]);
            names.iter().all(|name| rows.contains(name.as_str()))
        });
        home.ok(&["materialize", "joined.toml", at[0], at[1]]);
        let ask = |query: &str| home.ok(&["sql", query, "--format", "csv", at[0], at[1]]);
        let wrong = "SELECT count(*) FROM joined WHERE _id <> n OR twice <> 2 * n OR name <> 'name-' || CAST(n % 7 AS VARCHAR)";
        assert_eq!(ask(wrong).lines().last(), Some("0"), "{workers} workers");
        digests.push(ask("SELECT epoch, _id, n, label, name, twice FROM joined ORDER BY epoch, _id"));
        home.ok(&["datasets", "drop", "joined", at[0], at[1]]);
        drop(started);
    }
    assert_eq!(digests[0].lines().count(), 1201);
    assert!(digests[0] == digests[1], "the same rows under the same keys");
}
