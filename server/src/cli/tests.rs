#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use clap::error::ErrorKind;

use super::*;

fn parsed(words: &[&str]) -> Result<Cli, clap::Error> {
    parse(std::iter::once("forebay").chain(words.iter().copied()).map(OsString::from))
}

#[test]
fn the_definition_holds_together() {
    definition().debug_assert();
}

/// Every line of every help text's examples that begins with `forebay` has to parse.
#[test]
fn the_examples_in_the_help_parse() {
    let mut seen = 0;
    let top = definition();
    let texts = top.get_subcommands().chain([&top]).filter_map(|c| c.get_after_help()).map(ToString::to_string);
    for line in texts.collect::<Vec<_>>().join("\n").lines() {
        let Some(rest) = line.trim_start().strip_prefix("forebay ") else { continue };
        // The explanation stands behind at least two spaces.
        let command = rest.replace(" \\\"", " \"");
        let command = command.split("  ").next().unwrap().split(" > ").next().unwrap().trim();
        let words = words(command);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if let Err(e) = parsed(&words) {
            assert_eq!(e.kind(), ErrorKind::DisplayHelp, "{line}\n{e}");
        }
        seen += 1;
    }
    assert!(seen > 30, "only {seen} examples");
}

/// Splits at spaces outside of quotes.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut quote, mut open) = (Vec::new(), None, false);
    for c in command.chars() {
        match (quote, c) {
            (None, '"' | '\'') => {
                (quote, open) = (Some(c), {
                    if !open {
                        words.push(String::new())
                    };
                    true
                })
            }
            (Some(q), c) if q == c => quote = None,
            (None, ' ') => open = false,
            (_, c) => {
                if !open {
                    words.push(String::new());
                    open = true;
                }
                words.last_mut().unwrap().push(c);
            }
        }
    }
    words
}

#[test]
fn unknown_names_are_answered_with_near_ones() {
    let text = |words: &[&str]| parsed(words).unwrap_err().to_string();
    assert!(text(&["materialise", "p.toml"]).contains("materialize"));
    assert!(text(&["read", "digits", "--batch-sise", "3"]).contains("--batch-size"));
    assert!(text(&["read", "digits", "--shuffle", "windw"]).contains("did you mean `window`?"));
    assert!(text(&["sql", "SELECT 1", "--format", "jsn"]).contains("json"));
    assert!(text(&["materialize", "p.toml", "--epochs", "3..3"]).contains("ranges exclude their end"));
    assert!(text(&["datasets", "--server", "grpc://a:1", "--root", "x"]).contains("cannot be used with"));
}

#[test]
fn connection_flags_may_stand_anywhere() {
    for words in [["--root", "r", "datasets"], ["datasets", "--root", "r"]] {
        assert_eq!(parsed(&words).unwrap().connection.root.as_deref(), Some("r"));
    }
    assert!(parsed(&["datasets", "show", "digits", "--json"]).unwrap().connection.json);
}

#[test]
fn views_are_listed_unless_something_else_is_said() {
    for words in [&["view"][..], &["view", "list"], &["view", "create", "hard", "SELECT 1"], &["view", "drop", "hard"]] {
        assert!(matches!(parsed(words).unwrap().command, Command::View(_)), "{words:?}");
    }
    assert!(parsed(&["view", "creat", "x", "y"]).unwrap_err().to_string().contains("create"));
}

#[test]
fn each_kind_has_its_exit_status() {
    assert_eq!(status(Kind::BadInput), 2);
    assert_eq!(status(Kind::NotFound), 2);
    assert_eq!(status(Kind::FailedPrecondition), 2);
    assert_eq!(status(Kind::Unsupported), 2);
    assert_eq!(status(Kind::Unavailable), 3);
    assert_eq!(status(Kind::Internal), 1);
    assert_eq!(status(Kind::Cancelled), 1);
}

#[test]
fn ranges_and_passes() {
    use forebay_core::job::Passes;
    assert_eq!(args::epoch_range("0..3").unwrap(), (0, 3));
    assert_eq!(args::epoch_range("..2").unwrap(), (0, 2));
    for text in ["", "3", "a..b", "3..", "2..2", "-1..2"] {
        assert!(args::epoch_range(text).is_err(), "{text}");
    }
    assert_eq!(args::passes("0..2").unwrap(), Passes::List(vec![0, 1]));
    assert_eq!(args::passes("3").unwrap(), Passes::Count(3));
    assert_eq!(args::passes("0, 4").unwrap(), Passes::List(vec![0, 4]));
    assert_eq!(args::passes("forever").unwrap(), Passes::Forever);
    for text in ["", "0", "all", "1,1", "1,x", "-1"] {
        assert!(args::passes(text).is_err(), "{text}");
    }
}

#[test]
fn tables_line_up() {
    let rows = vec![vec!["digits".to_owned(), "1,797".to_owned()], vec!["a".to_owned(), "3".to_owned()]];
    assert_eq!(output::table(&["name", "rows"], &rows), "name     rows\ndigits  1,797\na           3");
    assert_eq!(output::table(&["name"], &[]), "name");
    assert_eq!(output::count(1_234_567), "1,234,567");
    assert_eq!((output::count(0), output::count(999)), ("0".to_owned(), "999".to_owned()));
    assert_eq!(output::ranges(&[0, 1, 2, 5, 7, 8]), "0..3, 5, 7..9");
}

#[test]
fn the_nearest_layer_says_where_to_go() {
    use crate::config::Config;
    use connect::{Target, target};
    let go = |flags: &[(&'static str, &str)], env: &[(&str, &str)]| {
        let flags: Vec<_> = flags.iter().map(|(name, value)| (*name, serde_json::Value::from(*value))).collect();
        let env: std::collections::BTreeMap<String, String> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f.toml");
        std::fs::write(&file, "root = \"file\"\n").unwrap();
        target(&Config::load(&flags, |name| env.get(name).cloned(), file.to_str()).unwrap())
    };
    let server = || Target::Server(vec!["grpc://a:1".to_owned(), "b:2".to_owned()]);
    assert_eq!(go(&[], &[]).unwrap(), Target::Root("file".to_owned()));
    assert_eq!(go(&[], &[("FOREBAY_SERVER", "grpc://a:1,b:2")]).unwrap(), server());
    assert_eq!(go(&[("root", "flag")], &[("FOREBAY_SERVER", "grpc://a:1,b:2")]).unwrap(), Target::Root("flag".to_owned()));
    assert_eq!(go(&[("server", "grpc://a:1,b:2")], &[("FOREBAY_ROOT", "env")]).unwrap(), server());
    let both = go(&[], &[("FOREBAY_SERVER", "grpc://a:1"), ("FOREBAY_ROOT", "env")]).unwrap_err();
    assert_eq!(both.kind, Kind::BadInput);
}
