//! Full-text search by the real binary: built while materializing and afterwards, published whole or not at all.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::support::{Home, csv_pipeline, text};

const WORDS: [&str; 5] = ["red car", "blue car", "red wine", "old bridge", "red bridge and car"];

/// Six files of 40 captions each.
fn captions(home: &Home) {
    for file in 0..6 {
        let rows: String = (0..40).map(|row| format!("{},{} number{}\n", row % 4, WORDS[(file + row) % 5], file * 40 + row)).collect();
        home.write(&format!("data/{file}.csv"), format!("label,caption\n{rows}"));
    }
}

fn pipeline(extra: &str) -> String {
    csv_pipeline("notes", "SELECT label, caption FROM input", extra)
}

/// Index bundles below a root, relative to the dataset's table.
fn bundles(home: &Home) -> BTreeSet<String> {
    fn walk(folder: &Path, base: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, base, found);
            } else if path.extension().is_some_and(|e| e == "idx") {
                found.insert(path.strip_prefix(base).unwrap().display().to_string());
            }
        }
    }
    let (table, mut found) = (home.path("root/datasets/notes"), BTreeSet::new());
    walk(&table, &table, &mut found);
    found
}

fn ids(home: &Home, sql: &str) -> Vec<i64> {
    home.sql(sql).iter().map(|row| row["_id"].as_i64().unwrap()).collect()
}

/// What a search prints with `--json`, in order.
fn found(home: &Home, args: &[&str]) -> Vec<Value> {
    let mut all = vec!["search", "notes"];
    all.extend(args);
    all.push("--json");
    home.ok(&all).lines().filter(|l| !l.trim().is_empty()).map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn an_index_is_built_while_materializing_and_answers_after_a_restart() {
    let home = Home::new();
    captions(&home);
    home.write("p.toml", pipeline("[index]\ntext = [\"caption\"]\n"));
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(bundles(&home).len() as i64, home.number("SELECT count(*) AS n FROM system.shards WHERE dataset = 'notes'"));
    let rows = found(&home, &["red bridge", "--limit", "3"]);
    assert_eq!(rows.len(), 3);
    assert!(
        rows.iter().all(|r| r["caption"].as_str().unwrap().starts_with("red bridge") && r["_score"].as_f64().unwrap() > 0.0),
        "{rows:?}"
    );
    let by_like = ids(&home, "SELECT _id FROM notes WHERE caption LIKE '%red%' AND caption LIKE '%car%' ORDER BY _id");
    assert_eq!(by_like.len(), 96);
    assert_eq!(ids(&home, "SELECT _id FROM notes WHERE text_match(caption, 'red car') ORDER BY _id"), by_like);
    assert_eq!(ids(&home, "SELECT _id FROM search(notes, 'red car', 1000) ORDER BY _id"), by_like);
    // The same through a server, and through another after it.
    for _ in 0..2 {
        let mut server = home.serve(&[]);
        assert_eq!(found(&home, &["number17"]), found(&home, &["number17"]));
        assert_eq!(ids(&home, "SELECT _id FROM notes WHERE text_match(caption, 'red car') ORDER BY _id"), by_like);
        assert_eq!(server.end().1, Some(0));
    }
    // More epochs are indexed too.
    home.ok(&["materialize", "p.toml", "--set", "epochs.count=2"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM search(notes, 'red car', 1000) WHERE epoch = 1"), 96);
    let shown = home.ok(&["datasets", "show", "notes"]);
    assert!(shown.contains("text index, default"), "{shown}");
}

#[test]
fn epochs_that_exist_are_indexed_once_and_all_at_once() {
    let home = Home::new();
    captions(&home);
    home.write("p.toml", pipeline(""));
    home.ok(&["materialize", "p.toml", "--set", "epochs.count=2"]);
    let said = home.fails(2, &["search", "notes", "red"]);
    assert!(said.contains("has no text index") && said.contains("forebay index notes"), "{said}");
    let said = home.fails(2, &["sql", "SELECT 1 FROM notes WHERE text_match(caption, 'red')"]);
    assert!(said.contains("forebay index"), "{said}");
    let said = home.fails(2, &["index", "notes", "label"]);
    assert!(said.contains("label") && said.contains("only text"), "{said}");
    assert!(home.fails(2, &["index", "notes", "capton"]).contains("did you mean `caption`?"));
    assert!(home.fails(2, &["index", "note", "caption"]).contains("did you mean `notes`?"));
    assert!(home.fails(2, &["index", "notes", "caption", "--tokenizer", "stemmed(klingon)"]).contains("klingon"));
    let before = home.number("SELECT max(version) AS v FROM system.versions");
    let done: Value = serde_json::from_str(&home.ok(&["index", "notes", "caption", "--json"])).unwrap();
    assert_eq!((done["state"].as_str(), done["version"].as_i64()), (Some("done"), Some(before + 1)), "{done}");
    assert_eq!(done["rows_done"], 480, "{done}");
    let again: Value = serde_json::from_str(&home.ok(&["index", "notes", "caption", "--json"])).unwrap();
    assert_eq!((again["state"].as_str(), again["version"].as_i64()), (Some("already_indexed"), Some(before + 1)), "{again}");
    assert_eq!(found(&home, &["red bridge", "--epochs", "0..1", "--limit", "100"]).len(), 48);
    // Rows are what they were, and the version before has no index.
    assert_eq!(home.number("SELECT count(*) AS n FROM notes"), 480);
    let old = format!("SELECT 1 FROM search(\"notes@v{before}\", 'red')");
    assert!(home.fails(2, &["sql", &old]).contains("no text index"));
    // Another tokenizer takes its place; through a server this time.
    let server = home.serve(&[]);
    let said = home.ok(&["index", "notes", "caption", "--tokenizer", "stemmed(english)"]);
    assert!(said.contains("`caption` indexed (version") && said.contains("480 rows"), "{said}");
    assert_eq!(found(&home, &["bridges", "--limit", "1000"]).len(), 192);
    let said = home.fails(2, &["search", "notes", "red AND"]);
    assert!(said.contains("(character 8)"), "{said}");
    drop(server);
    // Later epochs of the same pipeline get the index that the dataset has.
    home.ok(&["materialize", "p.toml", "--set", "epochs.count=3"]);
    assert_eq!(found(&home, &["bridges", "--epochs", "2..3", "--limit", "1000"]).len(), 96);
    // A pipeline that wants another index than there is says what to do.
    home.write("q.toml", pipeline("[index]\ntext = [\"caption\"]\n"));
    let said = home.fails(2, &["materialize", "q.toml", "--set", "epochs.count=4"]);
    assert!(said.contains("stemmed(english)") && said.contains("forebay index notes caption"), "{said}");
}

#[test]
fn a_killed_attempt_leaves_nothing_that_is_seen_and_vacuum_takes_the_rest() {
    let home = Home::new();
    captions(&home);
    home.write("p.toml", pipeline("[index]\ntext = [\"caption\"]\n"));
    let out = home.command(&["materialize", "p.toml"]).env("FOREBAY_CRASH_AT", "after-publishing-entry").output().unwrap();
    assert!(!out.status.success(), "{}", text(&out.stdout));
    assert!(!bundles(&home).is_empty(), "it died with its bundles written");
    home.fails(2, &["search", "notes", "red"]);
    home.ok(&["materialize", "p.toml", "--resume"]);
    let expected = ids(&home, "SELECT _id FROM notes WHERE caption LIKE '%wine%' ORDER BY _id");
    assert_eq!(ids(&home, "SELECT _id FROM notes WHERE text_match(caption, 'wine') ORDER BY _id"), expected);
    // A bundle that nobody names, as an attempt that lost its lease leaves it.
    let one = bundles(&home).into_iter().next().unwrap();
    let stray = home.path("root/datasets/notes").join(one.replace(".idx", "0.idx"));
    std::fs::copy(home.path("root/datasets/notes").join(&one), &stray).unwrap();
    let kept = home.ok(&["datasets", "vacuum", "notes", "--json"]);
    assert!(!kept.contains(".idx"), "young ones stay: {kept}");
    let swept = home.ok(&["datasets", "vacuum", "notes", "--older-than", "0s", "--json"]);
    assert!(swept.contains(stray.file_name().unwrap().to_str().unwrap()), "{swept}");
    assert!(!stray.exists());
    assert_eq!(bundles(&home).len() as i64, home.number("SELECT count(*) AS n FROM system.shards WHERE dataset = 'notes'"));
    assert_eq!(ids(&home, "SELECT _id FROM search(notes, 'wine', 1000) ORDER BY _id"), expected);
}

#[test]
fn an_index_that_was_cut_short_goes_on_where_it_stopped() {
    let home = Home::new();
    captions(&home);
    home.write("p.toml", pipeline("[source.options]\ntask_size = 256\n"));
    home.ok(&["materialize", "p.toml"]);
    let before = home.number("SELECT max(version) AS v FROM system.versions");
    let mut child = home.command(&["index", "notes", "caption"]).spawn().unwrap();
    crate::support::eventually("a bundle", std::time::Duration::from_secs(60), || {
        !bundles(&home).is_empty() || child.try_wait().unwrap().is_some()
    });
    // Whether it still runs or just ended: what it leaves is nothing, or all.
    let _ = child.kill();
    child.wait().unwrap();
    let version = home.number("SELECT max(version) AS v FROM system.versions");
    assert!(version == before || version == before + 1);
    let done: Value = serde_json::from_str(&home.ok(&["index", "notes", "caption", "--json"])).unwrap();
    assert_eq!(done["version"].as_i64(), Some(before + 1), "{done}");
    assert_eq!(bundles(&home).len() as i64, home.number("SELECT count(*) AS n FROM system.shards WHERE dataset = 'notes'"));
    assert_eq!(home.number("SELECT count(*) AS n FROM search(notes, 'red car', 1000)"), 96);
}

#[test]
fn a_job_draws_the_rows_that_a_search_finds() {
    let home = Home::new();
    captions(&home);
    home.write("p.toml", pipeline("[index]\ntext = [\"caption\"]\n"));
    home.ok(&["materialize", "p.toml"]);
    let read = |filter: &str| home.ok(&["read", "notes", "--filter", filter, "--batch-size", "7", "--json"]);
    let last = |out: String| -> Value { serde_json::from_str(out.lines().last().unwrap()).unwrap() };
    let searched = last(read("text_match(caption, 'red car') AND label = 1"));
    let liked = last(read("caption LIKE '%red%' AND caption LIKE '%car%' AND label = 1"));
    assert_eq!(searched["rows"], liked["rows"], "{searched}");
    assert!(searched["rows"].as_u64().unwrap() > 0, "{searched}");
    let said = home.fails(2, &["read", "notes", "--filter", "text_match(caption, 'red OR')"]);
    assert!(said.contains("(character 7)"), "{said}");
}
