#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;

use super::*;

fn load(file: &str, env: &[(&str, &str)], flags: &[(&'static str, Value)]) -> Result<Config> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.toml");
    std::fs::write(&path, file).unwrap();
    let env: BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let named = path.to_str().unwrap().to_owned();
    Config::load(flags, |name| env.get(name).cloned(), Some(&named)).map_err(|mut e| {
        e.message = e.message.replace(&named, "f.toml");
        e
    })
}

#[test]
fn flags_beat_the_environment_and_that_beats_the_file() {
    let file =
        "root = \"file\"\ntoken = \"t\"\nslots = 3\ncache_limit = \"2GiB\"\n[sources]\nallow = [\"/data\"]\n[python]\nallow = true\n";
    let env = [("FOREBAY_ROOT", "env"), ("FOREBAY_SLOTS", "5"), ("FOREBAY_SERVER", "grpc://a:1, grpc://b:2")];
    let config = load(file, &env, &[("root", json!("flag"))]).unwrap();
    assert_eq!((config.text("root"), config.origin("root")), (Some("flag"), Some(&Origin::Flag)));
    assert_eq!((config.number("slots"), config.origin("slots").unwrap().to_string()), (Some(5), "FOREBAY_SLOTS".to_owned()));
    assert_eq!(config.number("cache_limit"), Some(2 << 30));
    assert_eq!(config.texts("server").unwrap(), ["grpc://a:1", "grpc://b:2"]);
    assert_eq!(config.texts("sources.allow").unwrap(), ["/data"]);
    assert!(config.flag("python.allow") && !config.flag("insecure"));
    assert_eq!(config.address("listen"), None);
}

#[test]
fn times_are_kept_in_milliseconds() {
    let config = load("[query]\ntimeout = \"1.5s\"\nrow_limit = 10\n", &[("FOREBAY_QUERY_CONCURRENT", "3")], &[]).unwrap();
    assert_eq!(config.number("query.timeout"), Some(1_500));
    assert_eq!((config.number("query.row_limit"), config.number("query.concurrent")), (Some(10), Some(3)));
    for (file, part) in [
        ("[query]\ntimeout = 60\n", "expected a time such as \"60s\""),
        ("[query]\ntimeout = \"0s\"\n", "more than 0s"),
        ("[query]\ntimeout = \"soon\"\n", "is not a duration"),
        ("[query]\nrow_limit = 0\n", "at least 1"),
        ("[query]\ntimeouts = \"1s\"\n", "did you mean `query.timeout`"),
    ] {
        let error = load(file, &[], &[]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn unknown_and_ill_typed_keys_are_refused_together() {
    let error = load("rot = \"x\"\nslots = \"many\"\nlisten = \"here\"\n[python]\nalow = true\n", &[], &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "f.toml: rot: unknown key; did you mean `root`?\n\
         f.toml: slots: expected a whole number of at least 1, found \"many\"\n\
         f.toml: listen: expected an address such as \"127.0.0.1:7070\", found \"here\"; give an IP address and a port\n\
         f.toml: python.alow: unknown key; did you mean `python.allow`?"
    );
    assert!(load("x = [", &[], &[]).unwrap_err().to_string().starts_with("f.toml: "));
}

#[test]
fn wrong_values_of_the_environment_name_the_variable() {
    let error = load("", &[("FOREBAY_INSECURE", "maybe")], &[]).unwrap_err().to_string();
    assert_eq!(error, "FOREBAY_INSECURE: `maybe` is not true or false; use true or false");
    let error = load("", &[("FOREBAY_SLOTS", "0")], &[]).unwrap_err().to_string();
    assert_eq!(error, "FOREBAY_SLOTS: expected a whole number of at least 1, found 0");
    let error = load("", &[], &[("cache_limit", json!("much"))]).unwrap_err().to_string();
    assert!(error.starts_with("--cache-limit: `much` is not a size"), "{error}");
    assert!(load("", &[("FOREBAY_ROOT", "")], &[]).unwrap().text("root").is_none());
}

#[test]
fn a_named_file_must_exist_and_the_dump_hides_the_token() {
    let error = Config::load(&[], |_| None, Some("/nowhere/forebay.toml")).unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
    let config = load("token = \"hunter2\"", &[], &[]).unwrap();
    let dump = format!("{:?}", config.dump());
    assert!(dump.contains("(hidden)") && !dump.contains("hunter2"), "{dump}");
}
