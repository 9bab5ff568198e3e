use super::super::*;
use super::parse_tests::{DOCUMENTED, good};
use crate::source::{SourceFile, SourceSnapshot};

fn changed(set: &[&str]) -> Vec<String> {
    difference(&good(DOCUMENTED, &[]).spec, &good(DOCUMENTED, set).spec)
}

fn snapshot(files: &[(&str, u64, &str)]) -> SourceSnapshot {
    let file = |(path, size, stamp): &(&str, u64, &str)| SourceFile {
        path: (*path).to_owned(),
        size: *size,
        stamp: (*stamp).to_owned(),
        id_base: 0,
        id_range: 1,
    };
    let mut snapshot: SourceSnapshot = serde_json::from_str(r#"{"base":"/data","files":[],"tasks":[]}"#).unwrap();
    snapshot.files = files.iter().map(file).collect();
    snapshot
}

#[test]
fn differences_are_in_the_words_of_the_file() {
    assert_eq!(changed(&["steps.augment.options.strength=0.5"]), ["steps.augment.options.strength: 0.3 -> 0.5"]);
    assert_eq!(
        changed(&["output.compression=lz4", "epochs.seed=1", "output.on_error=quarantine"]),
        [
            "epochs.seed: 42 -> 1",
            "output.compression: \"zstd(1)\" -> \"lz4\"",
            "output.on_error: \"fail\" -> \"quarantine\"",
            "output.max_errors: (absent) -> 1000"
        ]
    );
    assert_eq!(changed(&["name=x", "description=y", "epochs.count=8"]), Vec::<String>::new());
    assert_eq!(changed(&["output.cut=decode"]), ["output.cut: \"augment\" -> \"decode\""]);
}

#[test]
fn steps_that_come_go_or_move() {
    let renamed = changed(&["steps.decode.name=read"]);
    assert_eq!(renamed.first().unwrap(), "steps.decode.sql: \"SELECT image_decode(content) AS image, label FROM input\" -> (absent)");
    assert_eq!(renamed.last().unwrap(), "steps: decode, augment -> read, augment");
    let mut moved = good(DOCUMENTED, &[]).spec;
    moved.steps.swap(0, 1);
    moved.output.cut = 1;
    assert_eq!(difference(&good(DOCUMENTED, &[]).spec, &moved), ["steps: decode, augment -> augment, decode"]);
}

#[test]
fn long_texts_are_shown_where_they_differ() {
    let long = format!("SELECT {} AS a FROM input", "x + ".repeat(100));
    let old = good(DOCUMENTED, &[&format!("steps.decode.sql={long}1")]).spec;
    let new = good(DOCUMENTED, &[&format!("steps.decode.sql={long}2")]).spec;
    let lines = difference(&old, &new);
    assert_eq!(lines, ["steps.decode.sql: ...x +  AS a FROM input1\" -> ...x +  AS a FROM input2\""]);
}

#[test]
fn code_and_files() {
    let code = |text: &str| vec![("augment".to_owned(), text.to_owned())];
    assert_eq!(code_difference(&code("a"), &code("a")), Vec::<String>::new());
    assert_eq!(code_difference(&code("a"), &code("b")), ["module augment: changed"]);
    assert_eq!(code_difference(&code("a"), &[("other".to_owned(), "a".to_owned())]), ["module augment: removed", "module other: added"]);
    let old = snapshot(&[("a", 1, "1"), ("b", 1, "1"), ("c", 1, "1")]);
    let new = snapshot(&[("a", 1, "2"), ("c", 1, "1"), ("d", 1, "1"), ("e", 1, "1"), ("f", 1, "1"), ("g", 1, "1")]);
    assert_eq!(
        snapshot_difference(&old, &new),
        ["source: 4 files added (d, e, f and 1 more)", "source: 1 file removed (b)", "source: 1 file changed (a)"]
    );
    assert_eq!(snapshot_difference(&old, &old), Vec::<String>::new());
}

/// Stored with every dataset: a change here makes every dataset look changed.
#[test]
fn the_fingerprint_is_pinned() {
    let canonical = good(DOCUMENTED, &[]).canonical;
    let code = [("augment".to_owned(), "def jitter(batch): ...".to_owned())];
    let files = snapshot(&[("data/a.csv.gz", 10, "1"), ("data/b.csv.gz", 20, "2")]);
    assert_eq!(fingerprint(&canonical, &code, &files), "06241110debc52232258ec781b8cbe0f2955d8d52f8785a45651622a573e8372");
}

#[test]
fn the_fingerprint_depends_on_all_its_parts_and_on_nothing_else() {
    let code = |text: &str| vec![("a".to_owned(), text.to_owned()), ("b".to_owned(), String::new())];
    let files = snapshot(&[("x", 1, "1"), ("y", 2, "2")]);
    let base = fingerprint("{}", &code("1"), &files);
    assert_ne!(fingerprint("{ }", &code("1"), &files), base);
    assert_ne!(fingerprint("{}", &code("2"), &files), base);
    assert_ne!(fingerprint("{}", &code("1"), &snapshot(&[("x", 1, "1"), ("y", 3, "2")])), base);
    assert_ne!(fingerprint("{}", &code("1"), &snapshot(&[("x", 1, "1"), ("y", 2, "3")])), base);
    assert_ne!(fingerprint("{}", &code("1"), &snapshot(&[("x", 1, "1"), ("z", 2, "2")])), base);
    let mut moved = files.clone();
    moved.base = "s3://elsewhere".to_owned();
    moved.files[0].id_base = 77;
    assert_eq!(fingerprint("{}", &code("1"), &moved), base);
    let mut reordered = code("1");
    reordered.reverse();
    assert_eq!(fingerprint("{}", &reordered, &files), base);
}

const QUERY: &str = "name = \"pairs\"\n[source]\nsql = \"SELECT a FROM x\"\noptions = { task_size = \"1MiB\" }\n";

/// Journaled and stored with datasets: what is written today must mean the same for ever.
#[test]
fn a_source_that_is_a_query_is_written_as_it_always_was() {
    let spec = good(QUERY, &[]);
    assert_eq!(
        spec.canonical,
        r#"{"epochs":{"seed":0,"shuffle":"window"},"output":{"compression":"zstd(1)","cut":"source","on_error":"fail","row_group_size":8388608,"shard_size":134217728},"source":{"options":{"task_size":1048576},"sql":"SELECT a FROM x"},"steps":[]}"#
    );
    let written = r#"{"uri":[],"format":"sql","options":{"task_size":1048576},"sql":"SELECT a FROM x"}"#;
    assert_eq!(serde_json::to_string(&spec.spec.source).unwrap(), written);
    assert_eq!(serde_json::from_str::<SourceSpec>(written).unwrap(), spec.spec.source);
}

/// A snapshot of `x` at a version, staged in a file.
fn staged(version: u64, table: &str, file: &str) -> SourceSnapshot {
    let mut snapshot = snapshot(&[(file, 10, file)]);
    let query = format!(r#"{{"inputs":[{{"dataset":"x","version":{version},"table":"{table}"}}],"rows":2,"digest":"00000000000000ff"}}"#);
    snapshot.query = Some(serde_json::from_str(&query).unwrap());
    snapshot
}

#[test]
fn the_fingerprint_of_a_query_is_its_text_and_what_it_reads() {
    let base = fingerprint("{}", &[], &staged(3, "t", "one"));
    assert_eq!(base, "31906720ab2ab870ac78ba51f094bc0c49feeb278bdf1f76e48949572ef56caf");
    assert_eq!(fingerprint("{}", &[], &staged(3, "t", "two")), base, "where the answer is staged doesn't matter");
    assert_ne!(fingerprint("{}", &[], &staged(4, "t", "one")), base);
    assert_ne!(fingerprint("{}", &[], &staged(3, "u", "one")), base);
    assert_ne!(fingerprint("{ }", &[], &staged(3, "t", "one")), base);
}
