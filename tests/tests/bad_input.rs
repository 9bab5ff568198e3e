//! Bad input: each ends in a clear error or in the right rows; nothing is lost and no process dies.

use crate::support::{Home, csv_pipeline};

#[test]
fn an_empty_source_names_what_matched_nothing() {
    let home = Home::new();
    home.write("p.toml", csv_pipeline("numbers", "SELECT n FROM input", ""));
    let said = home.fails(2, &["materialize", "p.toml"]);
    assert!(said.contains("data/*.csv"), "{said}");
}

#[test]
fn a_zero_row_result_is_an_epoch_of_zero_rows() {
    let home = Home::new();
    home.write("data/a.csv", "n\n1\n2\n");
    home.write("p.toml", csv_pipeline("numbers", "SELECT n FROM input WHERE n > 100", ""));
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM numbers"), 0);
    home.ok(&["materialize", "p.toml"]);
    home.ok(&["read", "numbers"]);
}

#[test]
fn one_row_travels() {
    let home = Home::new();
    home.write("data/a.csv", "n\n41\n");
    home.write("p.toml", csv_pipeline("numbers", "SELECT n + 1 AS n FROM input", ""));
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(home.number("SELECT n FROM numbers"), 42);
    assert!(home.ok(&["read", "numbers", "--json"]).contains('1'));
}

#[test]
fn a_row_of_a_hundred_megabytes_is_stored_served_and_queried() {
    let home = Home::new();
    home.write("files/big/blob.bin", vec![7u8; 100 << 20]);
    home.write("files/small/blob.bin", b"tiny");
    home.write("p.toml", "name = \"blobs\"\n[source]\nuri = \"files/**\"\nformat = \"files\"\n");
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(home.number("SELECT max(size) AS n FROM blobs"), 100 << 20);
    home.ok(&["read", "blobs", "--json"]);
}

#[test]
fn nulls_everywhere_stay_nulls() {
    let home = Home::new();
    home.write("data/a.jsonl", "{\"a\":null,\"b\":null}\n{\"a\":null,\"b\":\"x\"}\n{\"a\":1.5,\"b\":null}\n");
    home.write("p.toml", "name = \"nulls\"\n[source]\nuri = \"data/*.jsonl\"\nformat = \"json\"\n");
    home.ok(&["materialize", "p.toml"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM nulls WHERE a IS NULL"), 2);
    assert_eq!(home.number("SELECT count(*) AS n FROM nulls WHERE b IS NULL"), 2);
}

#[test]
fn reserved_and_duplicate_columns_are_refused_with_a_remedy() {
    let home = Home::new();
    home.write("data/a.csv", "n,m\n1,2\n");
    for (step, word) in [
        ("SELECT n AS _id FROM input", "_id"),
        ("SELECT n AS epoch FROM input", "epoch"),
        ("SELECT n, m AS n FROM input", "n"),
        ("SELECT n AS \\\"a b\\\" FROM input", "a b"),
    ] {
        home.write("p.toml", csv_pipeline("numbers", step, ""));
        let said = home.fails(2, &["materialize", "p.toml"]);
        assert!(said.contains(word) && said.contains("AS"), "{step}: {said}");
    }
    home.write("data/a.csv", "_id,m\n1,2\n");
    home.write("p.toml", csv_pipeline("numbers", "SELECT m FROM input", ""));
    assert!(home.fails(2, &["materialize", "p.toml"]).contains("_id"));
    home.write("data/a.csv", "m,m\n1,2\n");
    let said = home.fails(2, &["materialize", "p.toml"]);
    assert!(said.contains("`m`"), "{said}");
}

#[cfg(unix)]
#[test]
fn file_names_that_are_not_utf8_survive() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let folder = home.path("files/cats");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(std::ffi::OsStr::from_bytes(b"caf\xe9.txt")), b"meow").unwrap();
    home.write("p.toml", "name = \"blobs\"\n[source]\nuri = \"files/**\"\nformat = \"files\"\n");
    home.ok(&["materialize", "p.toml"]);
    let rows = home.sql("SELECT _source, label, octet_length(encode(content, 'hex')) / 2 AS n FROM blobs");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0]["label"].as_str(), rows[0]["n"].as_i64()), (Some("cats"), Some(4)));
    assert!(rows[0]["_source"].as_str().unwrap().contains("caf%E9.txt"), "{rows:?}");
}

#[test]
fn a_truncated_jpeg_fails_by_name_or_is_set_aside() {
    let home = Home::new();
    home.write("files/a/broken.jpg", [0xff, 0xd8, 0xff, 0xe0, 0, 16, b'J', b'F', b'I', b'F', 0]);
    let pipeline = |output: &str| {
        format!(
            "name = \"pictures\"\n[source]\nuri = \"files/**\"\nformat = \"files\"\n[[steps]]\nname = \"decode\"\nsql = \"SELECT image_resize(image_decode(content), 8, 8) AS image, label FROM input\"\n{output}"
        )
    };
    home.write("p.toml", pipeline(""));
    let said = home.fails(2, &["materialize", "p.toml"]);
    assert!(said.contains("broken.jpg") && said.contains("decode") && said.contains("quarantine"), "{said}");
    home.write("p.toml", pipeline("[output]\non_error = \"quarantine\"\nmax_errors = 3\n"));
    home.ok(&["materialize", "p.toml", "--replace"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM pictures"), 0);
    let rows = home.sql("SELECT _source, message FROM system.quarantine WHERE dataset = 'pictures'");
    assert_eq!(rows.len(), 1);
    assert!(rows[0]["_source"].as_str().unwrap().contains("broken.jpg"));
}

#[test]
fn a_csv_whose_types_change_in_row_10001_names_file_line_and_column() {
    let home = Home::new();
    let mut rows: String = (0..10_000).map(|i| format!("{i},x\n")).collect();
    rows.push_str("ten thousand,x\n");
    home.write("data/a.csv", format!("n,label\n{rows}"));
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", ""));
    let said = home.fails(2, &["materialize", "p.toml"]);
    assert!(said.contains("a.csv") && said.contains("10002") && said.contains("`n`") && said.contains("ten thousand"), "{said}");
    home.write("p.toml", csv_pipeline("numbers", "SELECT n, label FROM input", "[output]\non_error = \"quarantine\"\nmax_errors = 1\n"));
    home.ok(&["materialize", "p.toml", "--replace"]);
    assert_eq!(home.number("SELECT count(*) AS n FROM numbers"), 10_000);
}

#[test]
fn wrong_pipelines_name_the_key_and_the_nearest_known_one() {
    let home = Home::new();
    home.write("data/a.csv", "n\n1\n");
    for (text, words) in [
        ("name = \"x\"\n[source]\nurl = \"data/*.csv\"\nformat = \"csv\"\n", vec!["source.url", "uri"]),
        ("name = \"Upper\"\n[source]\nuri = \"data/*.csv\"\nformat = \"csv\"\n", vec!["name", "Upper"]),
        ("name = \"x\"\n[source]\nuri = \"data/*.csv\"\nformat = \"cvs\"\n", vec!["source.format", "csv"]),
        ("name = \"x\"\n[source]\nuri = \"data/*.csv\"\nformat = \"csv\"\n[epochs]\ncount = \"three\"\n", vec!["epochs.count"]),
        (
            "name = \"x\"\n[source]\nuri = \"data/*.csv\"\nformat = \"csv\"\n[[steps]]\nname = \"s\"\nsql = \"SELECT m FROM input\"\n",
            vec!["sql", "m"],
        ),
        (
            "name = \"x\"\n[source]\nuri = \"data/*.csv\"\nformat = \"csv\"\n[[steps]]\nname = \"s\"\nsql = \"SELECT max(n) AS n FROM input\"\n",
            vec!["sql", "aggregate"],
        ),
        (
            "name = \"x\"\n[source]\nuri = \"data/*.csv\"\nformat = \"csv\"\n[[steps]]\nname = \"s\"\npython = \"nowhere:run\"\n",
            vec!["nowhere"],
        ),
        (
            "name = \"x\"\n[source]\nuri = \"data/*.csv\"\nformat = \"csv\"\n[[steps]]\nname = \"s\"\nsql = \"SELECT n FROM input WHERE n > 1\"\n[output]\ncut = \"source\"\n",
            vec!["cut"],
        ),
    ] {
        home.write("p.toml", text);
        let said = home.fails(2, &["materialize", "p.toml"]);
        for word in words {
            assert!(said.contains(word), "{text}\n -> {said}");
        }
        assert!(said.contains("p.toml"), "the file is named: {said}");
    }
}

#[test]
fn a_root_that_cannot_be_written_says_which() {
    let home = Home::new();
    home.write("data/a.csv", "n\n1\n");
    home.write("p.toml", csv_pipeline("numbers", "SELECT n FROM input", ""));
    let blocked = home.write("blocked", "a file, not a folder");
    let out = home.command(&["materialize", "p.toml", "--root", blocked.to_str().unwrap()]).output().unwrap();
    assert!(!out.status.success());
    let said = crate::support::text(&out.stderr);
    assert!(said.contains("blocked"), "{said}");
}
