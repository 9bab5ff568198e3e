//! `search` and `text_match` over shards with and without an index.

use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Int64Type};
use forebay_core::Kind;
use forebay_core::text::{BundleMeta, TextColumns, Tokenizer};
use forebay_storage::delta::{index_body, vacuum};
use proptest::prelude::*;
use std::collections::HashSet;

use super::*;
use crate::text::build::{BuildRequest, MEMORY_BUDGET};
use crate::text::{Condition, Matcher};

const CAPTIONS: [&str; 7] = [
    "a red car on a bridge",
    "the blue car",
    "red wine and cheese",
    "a boat under the bridge",
    "cars, cars, cars",
    "two dogs on red grass",
    "nothing of note",
];

fn name() -> DatasetName {
    DatasetName::parse("notes").unwrap()
}

/// Publishes an epoch of `notes` with two tasks of 40 rows, each in several row groups.
async fn publish_notes(root: &Root, epoch: u32) {
    let mut shards = Vec::new();
    let mut schema = None;
    for task in 0..2i64 {
        let ids: Vec<i64> = (task * 40..task * 40 + 40).collect();
        let caption = |i: &i64| (i % 9 != 8).then(|| format!("{} {}", CAPTIONS[(*i as usize * 5 + epoch as usize) % 7], i));
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("_id", Arc::new(Int64Array::from(ids.clone())) as ArrayRef, false),
            ("_source", Arc::new(StringArray::from_iter_values(ids.iter().map(|_| "a.csv"))), false),
            ("caption", Arc::new(StringArray::from_iter(ids.iter().map(caption))), true),
            ("label", Arc::new(Int64Array::from_iter_values(ids.iter().map(|i| i % 4))), true),
        ])
        .unwrap();
        let output = OutputSpec { row_group_size: 256, ..output() };
        let task = TaskId(task as u32);
        let mut writer = ShardWriter::new(root, &name(), EpochId(epoch), task, Attempt(0), batch.schema(), &output).unwrap();
        for start in (0..40).step_by(10) {
            writer.write(&batch.slice(start, 10)).await.unwrap();
        }
        shards.extend(writer.finish().await.unwrap());
        schema = Some(batch.schema());
    }
    let previous = open_version(root, &name(), None).await.ok();
    let commit = EpochCommit {
        name: name(),
        epoch: EpochId(epoch),
        schema: schema.unwrap(),
        shards,
        properties: BTreeMap::new(),
        replace: false,
        txn: (format!("notes/{epoch}"), 0),
        now_ms: 1_700_000_000_000,
    };
    let version = previous.as_ref().map_or(0, |p| p.version.0 + 1);
    commit_at(root, &name(), VersionId(version), &commit_body(previous.as_deref(), &commit).unwrap()).await.unwrap();
}

/// Indexes the shards that `which` takes.
async fn index_notes(root: &Root, columns: &TextColumns, which: impl Fn(usize) -> bool) {
    let version = open_version(root, &name(), None).await.unwrap();
    let request = BuildRequest { root, name: &name(), stored: &version.stored, columns, memory: MEMORY_BUDGET, variant: "" };
    let mut bundles: BTreeMap<String, BundleMeta> = BTreeMap::new();
    for (i, shard) in version.shards.iter().enumerate().filter(|(i, _)| which(*i)) {
        let bundle = request.shard(shard, || true).await.unwrap();
        // Work that was done is found again, not done again.
        assert_eq!(request.shard(shard, || true).await.unwrap(), bundle, "{i}");
        bundles.insert(shard.path.clone(), bundle);
    }
    let body = index_body(&version, columns, &bundles, 1_700_000_000_001).unwrap();
    commit_at(root, &name(), VersionId(version.version.0 + 1), &body).await.unwrap();
}

fn caption(tokenizer: Tokenizer) -> TextColumns {
    [("caption".to_owned(), tokenizer)].into()
}

impl World {
    async fn notes(epochs: u32, columns: &TextColumns, which: impl Fn(usize) -> bool) -> Self {
        let world = Self::new(0).await;
        for epoch in 0..epochs {
            publish_notes(&world.root, epoch).await;
        }
        index_notes(&world.root, columns, which).await;
        world
    }

    async fn ids(&self, sql: &str) -> Vec<i64> {
        let batches = self.batches(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        batches.iter().flat_map(|b| b.column_by_name("_id").unwrap().as_primitive::<Int64Type>().values().to_vec()).collect()
    }
}

const QUERIES: [&str; 9] =
    ["red", "red car", "red OR blue", "car*", "\"on a bridge\"", "bridge -red", "-red", "gras~", "(cheese OR dogs) red"];

/// What a query finds by evaluating each row.
async fn brute(world: &World, query: &str, tokenizer: Tokenizer, more: &str) -> Vec<i64> {
    let batches = world.batches(&format!("SELECT _id, caption FROM notes WHERE {more} ORDER BY epoch, _id")).await.unwrap();
    let mut found = Vec::new();
    for batch in batches {
        let column = batch.column_by_name("caption").unwrap();
        let condition = Condition::on_column(query, "caption", tokenizer).unwrap();
        let answers = Matcher::new(condition).matches(std::slice::from_ref(column)).unwrap();
        let ids = batch.column_by_name("_id").unwrap().as_primitive::<Int64Type>();
        found.extend((0..batch.num_rows()).filter(|i| !column.is_null(*i) && answers.value(*i)).map(|i| ids.value(i)));
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_filter_equals_evaluating_each_row() {
    for tokenizer in [Tokenizer::Default, "stemmed(english)".parse().unwrap()] {
        for which in [0b1111, 0b0101, 0] {
            let world = World::notes(2, &caption(tokenizer), |i| which & (1 << i) != 0).await;
            for query in QUERIES {
                for more in ["true", "label = 1", "epoch = 1 AND _id > 20"] {
                    let expected = brute(&world, query, tokenizer, more).await;
                    let text = query.replace('\'', "''");
                    let filter = format!("text_match(caption, '{text}')");
                    let sql = format!("SELECT _id FROM notes WHERE {filter} AND {more} ORDER BY epoch, _id");
                    assert_eq!(world.ids(&sql).await, expected, "{sql} with {which:b}");
                    // As a value, and under NOT and CASE, it is evaluated per row.
                    let sql =
                        format!("SELECT _id FROM notes WHERE CASE WHEN {filter} THEN true ELSE false END AND {more} ORDER BY epoch, _id");
                    assert_eq!(world.ids(&sql).await, expected, "{sql}");
                    let count = format!("SELECT count(*) FROM notes WHERE {filter} AND {more}");
                    assert_eq!(world.value(&count).await, expected.len().to_string(), "{count}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_filters_combine() {
    let world = World::notes(1, &caption(Tokenizer::Default), |i| i == 0).await;
    let ids = |filter: &str| {
        let sql = format!("SELECT _id FROM notes WHERE {filter} ORDER BY _id");
        let world = &world;
        async move { world.ids(&sql).await }
    };
    let red = ids("text_match(caption, 'red')").await;
    let car = ids("text_match(caption, 'car*')").await;
    let set = |v: &[i64]| v.iter().copied().collect::<HashSet<_>>();
    let sorted = |s: HashSet<i64>| {
        let mut v: Vec<_> = s.into_iter().collect();
        v.sort_unstable();
        v
    };
    assert!(!red.is_empty() && !car.is_empty());
    let both = "text_match(caption, 'red') AND text_match(caption, 'car*')";
    assert_eq!(ids(both).await, sorted(&set(&red) & &set(&car)));
    let any = "(text_match(caption, 'red') OR text_match(caption, 'car*'))";
    assert_eq!(ids(any).await, sorted(&set(&red) | &set(&car)));
    assert_eq!(ids("text_match(caption, 'red') AND NOT text_match(caption, 'car*')").await, sorted(&set(&red) - &set(&car)));
    assert_eq!(ids(&format!("{any} AND label = 2")).await, {
        let all = &set(&red) | &set(&car);
        sorted(all.into_iter().filter(|i| i % 4 == 2).collect())
    });
    // Null is neither found nor found by its absence.
    assert!(!ids("text_match(caption, '-red') IS NULL").await.is_empty());
    assert!(ids("text_match(caption, '-red')").await.iter().all(|i| i % 9 != 8));
    // A subquery, an alias, a join.
    assert_eq!(world.ids("SELECT n._id FROM (SELECT * FROM notes) n WHERE text_match(n.caption, 'red') ORDER BY n._id").await, red);
    let joined = "SELECT a._id FROM notes a JOIN notes b ON a._id = b._id WHERE text_match(a.caption, 'red') AND text_match(b.caption, 'car*') ORDER BY a._id";
    assert_eq!(world.ids(joined).await, sorted(&set(&red) & &set(&car)));
    let limited = world.ids("SELECT _id FROM notes WHERE text_match(caption, 'red') LIMIT 3").await;
    assert!(limited.len() == 3 && limited.iter().all(|i| red.contains(i)));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_the_text_filter_and_what_was_read() {
    let world = World::notes(1, &caption(Tokenizer::Default), |_| true).await;
    let plan = world.table("EXPLAIN SELECT _id FROM notes WHERE text_match(caption, 'red car') AND label > 0").await;
    assert!(plan.contains("text=[caption ~ 'red car']"), "{plan}");
    let scan = plan.lines().find(|l| l.contains("RowGroupScan")).unwrap();
    assert!(!scan.contains("columns=[_id, caption"), "the text itself is not read: {scan}");
    let run = world.table("EXPLAIN ANALYZE SELECT label FROM notes WHERE text_match(caption, '39')").await;
    assert!(run.contains("output_rows=1"), "{run}");
    let plan = world.table("EXPLAIN SELECT _id FROM search(notes, 'red', 3) WHERE epoch = 0").await;
    assert!(plan.contains("SearchScan: notes@v1, query='red', limit=3") && plan.contains("shards=2 of 2"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn search_ranks_and_joins_back() {
    let world = World::notes(2, &caption(Tokenizer::Default), |_| true).await;
    let batches = world.batches("SELECT epoch, _id, _score, caption, label FROM search(notes, 'red car', 5)").await.unwrap();
    let batch = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(batch.num_rows(), 5);
    let scores = batch.column_by_name("_score").unwrap().as_primitive::<Float32Type>();
    assert!(scores.values().windows(2).all(|w| w[0] >= w[1]) && scores.value(0) > 0.0, "{scores:?}");
    let captions = batch.column_by_name("caption").unwrap().as_string::<i32>();
    assert!((0..5).all(|i| captions.value(i).contains("red car")), "{captions:?}");
    // Each row's own columns, and the same again however often it is asked.
    let joined = world
        .value("SELECT count(*) FROM search(notes, 'red car', 5) s JOIN notes n ON s._id = n._id AND s.epoch = n.epoch AND s.caption = n.caption AND s.label = n.label")
        .await;
    assert_eq!(joined, "5");
    let sql = "SELECT epoch, _id, _score FROM search(notes, 'red OR bridge', 20)";
    let first = world.table(sql).await;
    for _ in 0..3 {
        assert_eq!(world.table(sql).await, first);
    }
    // All that the filter finds are in a ranking that is long enough, and no others.
    for query in QUERIES {
        let mut ranked = world.ids(&format!("SELECT _id FROM search(notes, '{query}', 1000) WHERE epoch = 1")).await;
        ranked.sort_unstable();
        let mut found = world.ids(&format!("SELECT _id FROM notes WHERE text_match(caption, '{query}') AND epoch = 1")).await;
        if query == "-red" {
            // A row without text has none of the words.
            found.extend((0..80).filter(|i| i % 9 == 8));
        }
        found.sort_unstable();
        assert_eq!(ranked, found, "{query}");
    }
    assert_eq!(world.value("SELECT count(*) FROM search(\"notes@v2\", 'red')").await, "10");
    assert_eq!(world.value("SELECT count(*) FROM search('notes', 'caption:red', limit => 2) AS s WHERE s._score > 0").await, "2");
    assert_eq!(world.value("SELECT count(*) FROM search(notes, 'zebra')").await, "0");
    assert_eq!(world.value("SELECT count(*) FROM search(notes, 'red', 3) a CROSS JOIN search(notes, 'blue', 2) b").await, "6");
    assert_eq!(world.value("WITH s AS (SELECT * FROM search(notes, 'red', 4)) SELECT count(*) FROM s").await, "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_to_do() {
    let world = World::notes(1, &caption(Tokenizer::Default), |i| i == 0).await;
    publish(&world.root, "digits", 0, 0).await;
    for (sql, kind, parts) in [
        ("SELECT * FROM search(notes, 'red')", Kind::FailedPrecondition, vec!["1 of 2 shards", "forebay index notes caption"]),
        (
            "SELECT * FROM search(digits, 'red')",
            Kind::FailedPrecondition,
            vec!["`digits` has no text index", "forebay index digits COLUMN"],
        ),
        ("SELECT * FROM search(note, 'red')", Kind::NotFound, vec!["did you mean `notes`?"]),
        ("SELECT * FROM search(notes, 'red AND')", Kind::BadInput, vec!["a word is missing at its end (character 8)"]),
        ("SELECT * FROM search(notes, 'title:red')", Kind::BadInput, vec!["no text column `title`", "(character 1)"]),
        ("SELECT * FROM search(notes)", Kind::BadInput, vec!["1 arguments", "search(dataset, 'query')"]),
        ("SELECT * FROM search(notes, caption)", Kind::BadInput, vec!["a text in quotes"]),
        ("SELECT * FROM search(notes, 'red', 0)", Kind::BadInput, vec!["1..=100000"]),
        ("SELECT * FROM search(notes, 'red', 10, 20)", Kind::BadInput, vec!["4 arguments"]),
        ("SELECT 1 FROM notes WHERE text_match(caption, '(red')", Kind::BadInput, vec!["without its `)` (character 1)"]),
        ("SELECT 1 FROM notes WHERE text_match(label, 'red')", Kind::BadInput, vec!["text_match looks at text"]),
        (
            "SELECT 1 FROM notes WHERE text_match(_source, 'red')",
            Kind::BadInput,
            vec!["`_source` has no text index", "forebay index DATASET"],
        ),
        ("SELECT 1 FROM notes WHERE text_match(upper(caption), 'red')", Kind::BadInput, vec!["takes the column itself"]),
        ("SELECT 1 FROM notes WHERE text_match(caption, caption)", Kind::BadInput, vec!["a text in quotes"]),
        ("SELECT 1 FROM notes WHERE text_match(caption)", Kind::BadInput, vec!["text_match(column, 'query')"]),
    ] {
        let error = world.error(sql).await;
        assert_eq!(error.kind, kind, "{sql}: {error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{sql}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_filter_may_search() {
    for which in [0b11, 0b01] {
        let world = World::notes(1, &caption(Tokenizer::Default), |i| which & (1 << i) != 0).await;
        let version = open_version(&world.root, &name(), None).await.unwrap();
        for filter in ["text_match(caption, 'red')", "text_match(caption, 'red OR car*') AND label < 2", "text_match(caption, 'zebra')"] {
            let selection = select_rows(&world.catalog, version.clone(), EpochId(0), filter).await.unwrap();
            let mut rows = Vec::new();
            let mut start = 0;
            for (group, (_, _, meta)) in version.row_groups(EpochId(0)).into_iter().enumerate() {
                rows.extend(selection.rows(group, 0, selection.count(group)).into_iter().map(|row| start + row as i64));
                start += meta.rows as i64;
            }
            let expected = world.ids(&format!("SELECT _id FROM notes WHERE {filter} ORDER BY _id")).await;
            assert_eq!(rows, expected, "{filter} with {which:b}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_index_costs_time_and_no_rows() {
    let world = World::notes(1, &caption(Tokenizer::Default), |_| true).await;
    let expected = brute(&world, "red", Tokenizer::Default, "true").await;
    let version = open_version(&world.root, &name(), None).await.unwrap();
    let folder = world.root.local_path().unwrap().join("datasets/notes");
    std::fs::remove_file(folder.join(&version.shards[0].index.as_ref().unwrap().path)).unwrap();
    std::fs::write(folder.join(&version.shards[1].index.as_ref().unwrap().path), b"rubbish").unwrap();
    assert_eq!(world.ids("SELECT _id FROM notes WHERE text_match(caption, 'red') ORDER BY _id").await, expected);
    let error = world.error("SELECT * FROM search(notes, 'red')").await;
    assert!(error.to_string().contains("--rebuild"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vacuum_keeps_the_indexes_in_use_and_sweeps_the_rest() {
    let world = World::notes(1, &caption(Tokenizer::Default), |_| true).await;
    let version = open_version(&world.root, &name(), None).await.unwrap();
    let raw = caption(Tokenizer::Raw);
    let request =
        BuildRequest { root: &world.root, name: &name(), stored: &version.stored, columns: &raw, memory: MEMORY_BUDGET, variant: "" };
    // As an attempt that was killed before its commit leaves it.
    let orphan = request.shard(&version.shards[0], || true).await.unwrap();
    let sweep = async |keep: &[&str]| {
        let keep = keep.iter().map(|k| (*k).to_owned()).collect();
        vacuum(&world.root, &name(), std::time::Duration::ZERO, false, &keep).await.unwrap().paths
    };
    assert_eq!(world.value("SELECT count(*) FROM search(notes, 'red', 3)").await, "3");
    assert_eq!(sweep(&[&orphan.path]).await, [] as [String; 0], "a staged bundle stays");
    assert_eq!(sweep(&[]).await, std::slice::from_ref(&orphan.path));
    assert_eq!(world.value("SELECT count(*) FROM search(notes, 'red', 3)").await, "3");
    // Another tokenizer takes the place of the first index, which goes when it is old.
    index_notes(&world.root, &raw, |_| true).await;
    assert_eq!(world.value("SELECT count(*) FROM search(notes, '\"the blue car 10\"', 3)").await, "1");
    let old: HashSet<String> = version.shards.iter().map(|s| s.index.clone().unwrap().path).collect();
    let kept = vacuum(&world.root, &name(), std::time::Duration::from_secs(3600), false, &HashSet::new()).await.unwrap();
    assert_eq!(kept.paths, [] as [String; 0]);
    assert_eq!(sweep(&[]).await.into_iter().collect::<HashSet<_>>(), old);
    assert_eq!(world.value("SELECT count(*) FROM search(notes, '\"the blue car 10\"', 3)").await, "1");
    assert_eq!(sweep(&[]).await, [] as [String; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whichever shards have an index, a filter finds what evaluating each row finds.
    #[test]
    fn whichever_shards_are_indexed(which in 0u8..16, words in prop::collection::vec(0usize..10, 1..4), joined in 0usize..3) {
        const WORDS: [&str; 10] = ["red", "car", "car*", "bridge", "\"a red\"", "grass~2", "1*", "-wine", "the", "\"on a b\"*"];
        let query = words.iter().map(|w| WORDS[*w]).collect::<Vec<_>>().join([" ", " OR ", " AND "][joined]);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::notes(2, &caption(Tokenizer::Default), |i| which & (1 << i) != 0).await;
            let expected = brute(&world, &query, Tokenizer::Default, "true").await;
            let sql = format!("SELECT _id FROM notes WHERE text_match(caption, '{query}') ORDER BY epoch, _id");
            assert_eq!(world.ids(&sql).await, expected, "{sql} with {which:b}");
        });
    }
}
