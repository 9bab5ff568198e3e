use proptest::prelude::*;
use serde_json::json;

use super::super::*;
use crate::error::Kind;

/// The documented pipeline, without the parts that this version lacks.
pub(super) const DOCUMENTED: &str = r#"
name = "digits"
description = "..."

[source]
uri = "data/*.csv.gz"
format = "csv"
options = { has_header = true }

[[steps]]
name = "decode"
sql = "SELECT image_decode(content) AS image, label FROM input"

[[steps]]
name = "augment"
python = "augment:jitter"
options = { strength = 0.3 }
batch_size = 256

[epochs]
count = 3
seed = 42
shuffle = "window"

[output]
cut = "augment"
shard_size = "128MiB"
row_group_size = "8MiB"
compression = "zstd(1)"
on_error = "fail"

[split]
ratios = { train = 0.8, val = 0.1, test = 0.1 }
stratify = "label"
"#;

const SMALL: &str = "name = \"d\"\n[source]\nuri = \"a.csv\"\n";

pub(super) fn good(text: &str, set: &[&str]) -> ParsedPipeline {
    let set: Vec<String> = set.iter().map(|s| (*s).to_owned()).collect();
    parse(text, "p.toml", &set).unwrap()
}

fn bad(text: &str, set: &[&str]) -> crate::Error {
    let set: Vec<String> = set.iter().map(|s| (*s).to_owned()).collect();
    parse(text, "p.toml", &set).unwrap_err()
}

fn message(text: &str) -> String {
    bad(text, &[]).to_string()
}

#[test]
fn the_documented_pipeline_reads() {
    let spec = good(DOCUMENTED, &[]).spec;
    assert_eq!(spec.name.as_str(), "digits");
    assert_eq!(spec.source.uri, ["data/*.csv.gz"]);
    assert_eq!(spec.source.options["has_header"], json!(true));
    assert_eq!(spec.steps[0].kind, StepKind::Sql { query: "SELECT image_decode(content) AS image, label FROM input".into() });
    let StepKind::Python { module, function, options, batch_size } = &spec.steps[1].kind else { panic!("{:?}", spec.steps[1]) };
    assert_eq!((module.as_str(), function.as_str(), *batch_size), ("augment", "jitter", Some(256)));
    assert_eq!(options["strength"], json!(0.3));
    assert_eq!(spec.epochs, EpochsSpec { count: 3, seed: 42, shuffle: Shuffle::Window });
    assert_eq!(spec.output.cut, 2);
    let split = spec.split.clone().unwrap();
    assert_eq!(split.ratios, [("train".to_owned(), 0.8), ("val".to_owned(), 0.1), ("test".to_owned(), 0.1)]);
    assert_eq!(split.by, SplitBy::Stratify { column: "label".into() });
    assert_eq!(spec.python_modules(), ["augment"]);
    let stored: PipelineSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
    assert_eq!(stored, spec);
}

#[test]
fn defaults() {
    let spec = good(SMALL, &[]).spec;
    assert_eq!(spec.source.format, SourceFormat::Csv);
    assert_eq!(spec.epochs, EpochsSpec { count: 1, seed: 0, shuffle: Shuffle::Window });
    let output =
        OutputSpec { cut: 0, shard_size: 128 << 20, row_group_size: 8 << 20, compression: Compression::Zstd(1), on_error: OnError::Fail };
    assert_eq!(spec.output, output);
    assert!(spec.split.is_none() && spec.steps.is_empty());
    assert_eq!(
        good(&format!("{SMALL}[output]\non_error = \"quarantine\""), &[]).spec.output.on_error,
        OnError::Quarantine { max_errors: 1000 }
    );
    // A small shard brings its row groups down with it.
    assert_eq!(good(&format!("{SMALL}[output]\nshard_size = \"1MiB\""), &[]).spec.output.row_group_size, 1 << 20);
}

/// Stored in every dataset: equal pipelines must give these very bytes in every later version.
#[test]
fn the_canonical_form_is_pinned() {
    assert_eq!(
        good(DOCUMENTED, &[]).canonical,
        r#"{"epochs":{"seed":42,"shuffle":"window"},"output":{"compression":"zstd(1)","cut":"augment","on_error":"fail","row_group_size":8388608,"shard_size":134217728},"source":{"format":"csv","options":{"has_header":true},"uri":["data/*.csv.gz"]},"split":{"ratios":[["train",0.8],["val",0.1],["test",0.1]],"stratify":"label"},"steps":[{"name":"decode","sql":"SELECT image_decode(content) AS image, label FROM input"},{"batch_size":256,"name":"augment","options":{"strength":0.3},"python":"augment:jitter"}]}"#
    );
    assert_eq!(
        good(SMALL, &[]).canonical,
        r#"{"epochs":{"seed":0,"shuffle":"window"},"output":{"compression":"zstd(1)","cut":"source","on_error":"fail","row_group_size":8388608,"shard_size":134217728},"source":{"format":"csv","options":{},"uri":["a.csv"]},"steps":[]}"#
    );
}

#[test]
fn name_description_and_count_are_not_in_the_fingerprint() {
    let base = good(DOCUMENTED, &[]).canonical;
    assert_eq!(good(DOCUMENTED, &["name=other", "description=x", "epochs.count=9"]).canonical, base);
    // What is spelled differently and means the same.
    assert_eq!(good(DOCUMENTED, &["output.shard_size=134217728", "source.uri=[\"data/*.csv.gz\"]"]).canonical, base);
    assert_ne!(good(DOCUMENTED, &["epochs.seed=43"]).canonical, base);
}

#[test]
fn all_problems_are_reported_at_their_keys() {
    let text = r#"
name = "digits"
descripton = "typo"

[source]
uri = 3
format = "cvs"

[[steps]]
name = "decode"
slq = "SELECT 1"

[[steps]]
name = "decode"
sql = "SELECT label FROM input"
options = { x = 1 }

[[steps]]
name = "augment"
python = "augment.py:jitter"

[epochs]
count = 0
seed = "three"
shuffle = "windows"

[output]
cut = "augmnt"
shard_size = "128 parsecs"
compression = "gzip"
on_error = "ignore"
max_errors = 3

[split]
ratios = { train = 0.8, val = 0.3 }
stratify = "label"
group = "subject"
"#;
    assert_eq!(
        message(text),
        "p.toml: source.uri: expected text or a list of texts, found 3\n\
         p.toml: source.format: unknown format `cvs`; did you mean `csv`?\n\
         p.toml: steps.decode.sql: the step does nothing; give it `sql` = \"SELECT ... FROM input\" or `python` = \"module:function\"\n\
         p.toml: steps.decode.slq: unknown key; did you mean `sql`?\n\
         p.toml: steps.decode.options: an `sql` step takes none; remove it\n\
         p.toml: steps.augment.python: `augment.py:jitter` names a file; write the module without `.py`: \"augment:jitter\"\n\
         p.toml: epochs.count: expected a whole number in 1..=4294967295, found 0\n\
         p.toml: epochs.seed: expected a whole number in 0..=9223372036854775807, found \"three\"\n\
         p.toml: epochs.shuffle: unknown value `windows`; did you mean `window`? known are `none`, `row_groups`, `window` and `full`\n\
         p.toml: output.shard_size: `128 parsecs` is not a size; write a number and a unit, such as \"128MiB\"; units are B, KB, MB, GB, TB, KiB, MiB, GiB and TiB\n\
         p.toml: output.compression: `gzip` is not a compression; use \"none\", \"lz4\" or \"zstd(level)\" with a level from 1 to 22\n\
         p.toml: output.on_error: unknown value `ignore`; known are `fail` and `quarantine`\n\
         p.toml: output.max_errors: it belongs to on_error = \"quarantine\"; set `on_error`, or remove it\n\
         p.toml: split.ratios: the ratios sum to 1.1; make them sum to 1\n\
         p.toml: split.group: the split has `stratify` as well; give one of the two\n\
         p.toml: descripton: unknown key; did you mean `description`?"
    );
}

#[test]
fn single_problems() {
    let with = |extra: &str| format!("{SMALL}{extra}");
    let step = |body: &str| with(&format!("[[steps]]\n{body}"));
    let cases = [
        ("".to_owned(), "p.toml: name: missing"),
        ("name = \"select\"\n[source]\nuri=\"a.csv\"".to_owned(), "p.toml: name: `select` is a reserved word"),
        ("name = \"Digits\"\n[source]\nuri=\"a.csv\"".to_owned(), "p.toml: name: `Digits` is not a dataset name"),
        ("name = \"d\"".to_owned(), "p.toml: source: missing"),
        ("name = \"d\"\nsource = 1".to_owned(), "p.toml: source: expected a table, found 1"),
        ("name = \"d\"\n[source]\nformat = \"csv\"".to_owned(), "p.toml: source.uri: missing"),
        ("name = \"d\"\n[source]\nuri = []\nformat = \"csv\"".to_owned(), "p.toml: source.uri: an empty list"),
        ("name = \"d\"\n[source]\nsql = \" \"".to_owned(), "p.toml: source.sql: empty; write a SELECT over datasets"),
        ("name = \"d\"\n[source]\nsql = [1]".to_owned(), "p.toml: source.sql: expected text in quotes, found a list of 1"),
        ("name = \"d\"\n[source]\nsqll = \"x\"\nuri = \"a.csv\"".to_owned(), "p.toml: source.sqll: unknown key; did you mean `sql`?"),
        (
            "name = \"d\"\n[source]\nsql = \"SELECT 1\"\nuri = \"a.csv\"".to_owned(),
            "p.toml: source.uri: the source has `sql` as well; give `uri` and `format`, or `sql`",
        ),
        (
            "name = \"d\"\n[source]\nsql = \"SELECT 1\"\noptions = { has_header = true }".to_owned(),
            "p.toml: source.options.has_header: unknown key",
        ),
        (
            "name = \"d\"\n[source]\nuri = [\"a.csv\", \"b.json\"]".to_owned(),
            "p.toml: source.format: missing, and the names in `uri` don't tell it",
        ),
        (with("options = { hasheader = true }"), "p.toml: source.options.hasheader: unknown key; did you mean `has_header`?"),
        (with("options = { delimiter = \"||\" }"), "p.toml: source.options.delimiter: expected one ASCII character"),
        (with("options = { types = { a = 1 } }"), "p.toml: source.options.types.a: expected the name of a type, found 1"),
        (with("[steps]\nname = \"x\""), "p.toml: steps: expected a list of tables, found a table; write each step as [[steps]]"),
        (step("sql = \"SELECT 1\""), "p.toml: steps.0.name: missing"),
        (step("name = \"source\"\nsql = \"SELECT 1\""), "p.toml: steps.0.name: `source` can't name a step"),
        (step("name = \"a b\"\nsql = \"SELECT 1\""), "p.toml: steps.0.name: `a b` is not a step name"),
        (step("name = \"a\"\nsql = \"\""), "p.toml: steps.a.sql: empty"),
        (step("name = \"a\"\nsql = \"SELECT 1\"\npython = \"m:f\""), "p.toml: steps.a.sql: the step has `python` as well"),
        (step("name = \"a\"\npython = \"m\""), "p.toml: steps.a.python: `m` is not `module:function`"),
        (step("name = \"a\"\npython = \"m:f(x)\""), "is not `module:function`"),
        (step("name = \"a\"\npython = \"m:f\"\nbatch_size = 0"), "p.toml: steps.a.batch_size: expected a whole number in 1..="),
        (
            step("name = \"a\"\nsql = \"SELECT 1\"\n[[steps]]\nname = \"a\"\nsql = \"SELECT 1\""),
            "p.toml: steps.a.name: two steps have this name",
        ),
        (with("[output]\nshard_size = 0"), "p.toml: output.shard_size: a size of zero"),
        (
            with("[output]\nshard_size = \"1MiB\"\nrow_group_size = \"2MiB\""),
            "p.toml: output.row_group_size: 2097152 bytes is more than a whole shard",
        ),
        (with("[output]\non_error = \"quarantine\"\nmax_errors = 0"), "p.toml: output.max_errors: 0 allows no bad row"),
        (with("[output]\ncut = \"nope\""), "p.toml: output.cut: no step is named `nope`; known are `source`"),
        (with("[split]\n"), "p.toml: split.ratios: missing"),
        (with("[split]\nratios = { a = 0.5, b = -0.5 }"), "p.toml: split.ratios.b: expected a number above 0 and up to 1, found -0.5"),
        (with("[split]\nratios = { a = nan }"), "p.toml: split.ratios.a: expected a number above 0"),
        (with("[epochs]\nseed = -1"), "p.toml: epochs.seed: expected a whole number"),
    ];
    for (text, expected) in cases {
        let error = bad(&text, &[]);
        assert_eq!(error.kind, Kind::BadInput, "{text}\n{error}");
        assert!(error.to_string().contains(expected), "{text}\n{error}");
    }
}

#[test]
fn broken_toml_names_line_and_column() {
    let error = message("name = \"d\"\n[source\nuri = 1");
    assert!(error.starts_with("p.toml:2:"), "{error}");
    let twice = message("name = \"d\"\nname = \"e\"");
    assert!(twice.starts_with("p.toml:2:1: duplicate key"), "{twice}");
}

#[test]
fn what_this_version_lacks_is_refused_by_name() {
    let cases = [
        (
            "name = \"d\"\n[source]\nuri = \"x\"\nformat = \"webdataset\"".to_owned(),
            "p.toml: source.format: \"webdataset\" is not supported",
        ),
        ("name = \"d\"\n[source]\nuri = \"x\"\nformat = \"delta\"".to_owned(), "\"delta\" is not supported"),
        ("name = \"d\"\n[source]\nuri = \"x\"\nformat = \"tfrecord\"".to_owned(), "\"tfrecord\" is not supported"),
        ("name = \"d\"\n[source]\nuri = \"x\"\nformat = \"mds\"".to_owned(), "\"mds\" is not supported"),
        (format!("{SMALL}[epochs]\nshuffle = \"full\""), "p.toml: epochs.shuffle: \"full\" is not supported"),
        (format!("{SMALL}[[steps]]\nname = \"a\"\nexec = \"x\""), "p.toml: steps.a.exec: an `exec` step is not supported"),
    ];
    for (text, expected) in cases {
        let error = bad(&text, &[]);
        assert_eq!(error.kind, Kind::Unsupported, "{text}\n{error}");
        assert!(error.to_string().contains(expected), "{text}\n{error}");
    }
}

#[test]
fn overrides_reach_tables_and_steps() {
    let spec = good(
        DOCUMENTED,
        &[
            "steps.augment.options.strength=0.5",
            "steps.1.batch_size=64",
            "epochs.count=1",
            "source.uri=other/*.csv",
            "output.compression=zstd(3)",
            "output.cut=source",
            "split.ratios.train=0.7",
            "split.ratios.val=0.2",
        ],
    )
    .spec;
    let StepKind::Python { options, batch_size, .. } = &spec.steps[1].kind else { panic!("{:?}", spec.steps[1]) };
    assert_eq!((options["strength"].clone(), *batch_size), (json!(0.5), Some(64)));
    assert_eq!((spec.epochs.count, spec.output.cut, spec.output.compression), (1, 0, Compression::Zstd(3)));
    assert_eq!(spec.source.uri, ["other/*.csv"]);
    assert_eq!(good(SMALL, &["epochs.seed=7"]).spec.epochs.seed, 7);
    // Text with `=` in it is text.
    assert_eq!(
        good(DOCUMENTED, &["steps.decode.sql=SELECT label = 1 AS one FROM input"]).spec.steps[0].kind,
        StepKind::Sql { query: "SELECT label = 1 AS one FROM input".into() }
    );
}

#[test]
fn wrong_overrides() {
    let cases = [
        (
            "steps.augmnt.options.strength=1",
            "p.toml: --set steps.augmnt.options.strength=1: `steps` has no entry `augmnt`; did you mean `augment`?",
        ),
        ("steps.7.sql=x", "`steps` has no entry `7`"),
        ("epochs.count", "no `=`"),
        ("epochs..count=1", "an empty part in the key"),
        ("name.x=1", "`name` is \"digits\" and has no keys"),
        ("epochs.cuont=1", "p.toml: epochs.cuont: unknown key; did you mean `count`?"),
        ("steps.augment=1", "p.toml: steps.1: expected a table, found 1"),
    ];
    for (set, expected) in cases {
        let error = bad(DOCUMENTED, &[set]).to_string();
        assert!(error.contains(expected), "{set}\n{error}");
    }
}

#[test]
fn source_options_keep_what_was_written() {
    let text = format!(
        "{SMALL}options = {{ delimiter = \"\\t\", quote = \"\", null_values = \"NA\", types = {{ n = \"int64\" }}, columns = [\"n\"], task_size = \"1MiB\" }}"
    );
    let options = good(&text, &[]).spec.source.options;
    let expected =
        json!({ "delimiter": "\t", "quote": "", "null_values": ["NA"], "types": { "n": "int64" }, "columns": ["n"], "task_size": 1 << 20 });
    assert_eq!(json!(options), expected);
}

#[test]
fn unknown_steps_name_the_nearest() {
    let error = good(DOCUMENTED, &[]).spec.step_index("augmen").unwrap_err();
    assert_eq!(error.to_string(), "no step is named `augmen`; did you mean `augment`?");
}

proptest! {
    #[test]
    fn no_file_panics(text in ".{0,300}", set in ".{0,40}") {
        let _ = parse(&text, "p.toml", &[set]);
    }

    /// A value of any type at any key is read or refused, and a refusal names the file.
    #[test]
    fn any_value_at_any_key_is_read_or_refused(key in prop::sample::select(vec![
        "name", "description", "source", "source.uri", "source.format", "source.options", "source.options.delimiter", "steps", "steps.augment", "steps.decode.sql",
        "steps.augment.python", "steps.augment.options", "steps.augment.batch_size", "epochs", "epochs.count", "epochs.seed", "epochs.shuffle", "output.cut",
        "output.shard_size", "output.row_group_size", "output.compression", "output.on_error", "output.max_errors", "index", "split", "split.ratios", "split.stratify"]),
        value in prop::sample::select(vec!["1", "-1", "0", "1.5", "nan", "true", "[]", "[1]", "{}", "{ a = 1 }", "\"\"", "text", "1979-05-27T07:32:00Z", "9223372036854775807"])) {
        if let Err(error) = parse(DOCUMENTED, "p.toml", &[format!("{key}={value}")]) {
            prop_assert!(error.to_string().lines().all(|line| line.starts_with("p.toml: ")), "{error}");
        }
    }
}

#[test]
fn text_columns_have_tokenizers_and_stay_out_of_the_fingerprint() {
    use crate::text::{Language, Tokenizer};
    let plain = parse(SMALL, "p.toml", &[]).unwrap();
    let text = format!("{SMALL}[index]\ntext = [\"caption\", \"title\"]\ntokenizers = {{ title = \"stemmed(german)\" }}");
    let indexed = parse(&text, "p.toml", &[]).unwrap();
    let columns: Vec<_> = indexed.spec.index.columns().into_iter().collect();
    assert_eq!(columns, [("caption".to_owned(), Tokenizer::Default), ("title".to_owned(), Tokenizer::Stemmed(Language::German))]);
    assert_eq!(IndexSpec::of(&indexed.spec.index.columns()), indexed.spec.index);
    assert_eq!(indexed.canonical, plain.canonical);
    let one = parse(&format!("{SMALL}[index]\ntext = \"caption\""), "p.toml", &["index.tokenizers.caption=raw".to_owned()]).unwrap();
    assert_eq!(one.spec.index.columns(), [("caption".to_owned(), Tokenizer::Raw)].into());
}

#[test]
fn what_is_wrong_with_an_index_is_said_at_its_key() {
    for (index, expected) in [
        ("text = 3", "p.toml: index.text: expected text or a list of texts, found 3"),
        ("", "p.toml: index.text: missing; name the columns"),
        ("text = [\"a\", \"a\"]", "p.toml: index.text: `a` is there twice"),
        (
            "text = [\"caption\"]\ntokenizers = { capton = \"raw\" }",
            "index.tokenizers.capton: no column of that name in `text`; did you mean `caption`?",
        ),
        (
            "text = [\"a\"]\ntokenizers = { a = \"stemmed(englsh)\" }",
            "index.tokenizers.a: no stemmer for the language `englsh`; did you mean `english`?",
        ),
        ("text = [\"a\"]\ntokenizers = { a = 1 }", "index.tokenizers.a: expected text in quotes, found 1"),
        ("texts = [\"a\"]", "unknown key"),
    ] {
        let error = bad(&format!("{SMALL}[index]\n{index}"), &[]);
        assert!(error.to_string().contains(expected), "{index}\n{error}");
    }
}
