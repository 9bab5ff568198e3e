//! The query language, and that indexes and rows agree.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use forebay_core::text::{Language, TextColumns, Tokenizer};
use proptest::prelude::*;
use tantivy::Index;
use tantivy::directory::MmapDirectory;

use super::build::Builder;
use super::index::{About, FORMAT, Frequencies};
use super::query::parse;
use super::tokenize::{analyzer, words};
use super::*;

fn columns(of: &[(&str, Tokenizer)]) -> TextColumns {
    of.iter().map(|(name, tokenizer)| ((*name).to_owned(), *tokenizer)).collect()
}

fn batch(of: &[(&str, Vec<Option<&str>>)]) -> RecordBatch {
    let rows = of[0].1.len() as i64;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let texts = of.iter().map(|(name, values)| (*name, Arc::new(StringArray::from(values.clone())) as ArrayRef));
    RecordBatch::try_from_iter([("_id", ids)].into_iter().chain(texts)).unwrap()
}

/// An index of the batches in a folder, as the builder leaves it before it is a bundle.
fn index(columns: &TextColumns, batches: &[RecordBatch], memory: usize) -> (tempfile::TempDir, ShardIndex) {
    let about = About {
        format: FORMAT.to_owned(),
        shard: "s".to_owned(),
        shard_size: 1,
        rows: batches.iter().map(|b| b.num_rows() as u64).sum(),
        part: false,
        columns: columns.clone(),
    };
    let mut builder = Builder::new(about.clone(), memory).unwrap();
    batches.iter().for_each(|b| builder.add(b).unwrap());
    let (folder, path) = builder.whole().unwrap();
    let index = Index::open(MmapDirectory::open(path).unwrap()).unwrap();
    (folder, ShardIndex::of(index, &about, 0).unwrap())
}

fn matches(query: &str, tokenizer: Tokenizer, values: &[Option<&str>]) -> Vec<usize> {
    let condition = Condition::on_column(query, "t", tokenizer).unwrap_or_else(|e| panic!("{query}: {e}"));
    let column: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
    let by_rows = Matcher::new(condition.clone()).matches(&[column]).unwrap();
    let by_rows: Vec<usize> = (0..values.len()).filter(|i| values[*i].is_some() && by_rows.value(*i)).collect();
    let (_folder, index) = index(&columns(&[("t", tokenizer)]), &[batch(&[("t", values.to_vec())])], 64 << 20);
    let by_index: Vec<usize> = index.rows(&condition).unwrap().into_iter().map(|r| r as usize).collect();
    assert_eq!(by_index, by_rows, "{query}");
    by_rows
}

const ROWS: [Option<&str>; 8] = [
    Some("A red car, parked."),
    Some("the blue car"),
    Some("Red red wine"),
    None,
    Some(""),
    Some("car red"),
    Some("cars and colours"),
    Some("a colour photograph of a car in red"),
];

#[test]
fn queries_mean_what_they_say() {
    for (query, expected) in [
        ("red car", vec![0, 5, 7]),
        ("red AND car", vec![0, 5, 7]),
        ("red OR blue", vec![0, 1, 2, 5, 7]),
        ("car -red", vec![1]),
        ("car NOT red", vec![1]),
        ("+car +blue", vec![1]),
        ("-car", vec![2, 4, 6]),
        ("-(car OR wine)", vec![4, 6]),
        ("blue OR -car", vec![1, 2, 4, 6]),
        ("(blue OR wine) AND (car OR red)", vec![1, 2]),
        ("blue car OR wine", vec![1, 2]),
        ("\"red car\"", vec![0]),
        ("\"car red\"", vec![5]),
        ("\"red red\"", vec![2]),
        ("\"car in red\"", vec![7]),
        ("\"car a\"*", vec![]),
        ("\"red c\"*", vec![0]),
        ("car*", vec![0, 1, 5, 6, 7]),
        ("CAR*", vec![0, 1, 5, 6, 7]),
        ("colour~", vec![6, 7]),
        ("colours~", vec![6, 7]),
        ("rad~", vec![0, 2, 5, 7]),
        ("erd~", vec![0, 2, 5, 7]),
        ("photgrph~", vec![]),
        ("photgrph~2", vec![7]),
        ("red-car", vec![0]),
        ("red & car", vec![0, 5, 7]),
        ("- car", vec![0, 1, 5, 7]),
        ("c\\ar", vec![0, 1, 5, 7]),
        ("\\OR", vec![]),
        ("and", vec![6]),
        ("missing", vec![]),
        ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", vec![]),
    ] {
        assert_eq!(matches(query, Tokenizer::Default, &ROWS), expected, "{query}");
    }
}

#[test]
fn tokenizers_cut_as_they_say() {
    let cut = |tokenizer, text: &str| words(&mut analyzer(tokenizer), text).into_iter().map(|(_, w)| w).collect::<Vec<_>>();
    assert_eq!(cut(Tokenizer::Default, "It's 2 Cats!"), ["it", "s", "2", "cats"]);
    assert_eq!(cut(Tokenizer::Stemmed(Language::English), "Running dogs"), ["run", "dog"]);
    assert_eq!(cut(Tokenizer::Raw, "Running dogs"), ["Running dogs"]);
    assert_eq!(cut(Tokenizer::Cjk, "我爱Rust語言 2x"), ["我", "爱", "rust", "語", "言", "2x"]);
    let texts = [Some("北京大学"), Some("京北"), Some("東京タワー"), Some("서울 tower"), Some("Rust in 北京")];
    assert_eq!(matches("北京", Tokenizer::Cjk, &texts), [0, 4]);
    assert_eq!(matches("京", Tokenizer::Cjk, &texts), [0, 1, 2, 4]);
    assert_eq!(matches("rust 北京", Tokenizer::Cjk, &texts), [4]);
    assert_eq!(matches("서울", Tokenizer::Cjk, &texts), [3]);
    let texts = [Some("Running dogs"), Some("He runs"), Some("a run")];
    assert_eq!(matches("runs", Tokenizer::Stemmed(Language::English), &texts), [0, 1, 2]);
    assert_eq!(matches("\"running dog\"", Tokenizer::Stemmed(Language::English), &texts), [0]);
    assert_eq!(matches("\"Running dogs\"", Tokenizer::Raw, &texts), [0]);
    assert_eq!(matches("Running*", Tokenizer::Raw, &texts), [0]);
    assert_eq!(matches("running", Tokenizer::Raw, &texts), [] as [usize; 0]);
}

#[test]
fn a_bad_query_says_where() {
    for (query, expected) in [
        ("", "a word is missing at its end (character 1)"),
        ("red AND", "a word is missing at its end (character 8)"),
        ("red OR", "a word is missing at its end (character 7)"),
        ("AND red", "a word is missing before AND (character 1)"),
        ("(red", "a `(` without its `)` (character 1)"),
        ("red)", "a `)` without its `(` (character 4)"),
        ("()", "a word is missing before `)` (character 2)"),
        ("é \"red", "a `\"` without its end (character 3)"),
        ("c*r", "a `*` stands at the end of a word (character 2)"),
        ("*", "a word is missing before it (character 1)"),
        ("red~3", "behind `~` stands 1 or 2 (character 5)"),
        ("\"red car\"~2", "a phrase has no `~` (character 10)"),
        ("& ...", "it has no word to look for (character 1)"),
        ("title:red", "text_match looks at one column, and `title:` names one (character 1)"),
        ("red-car~", "`red-car~` is 2 words in the column `t` (character 1)"),
    ] {
        let error = Condition::on_column(query, "t", Tokenizer::Default).unwrap_err();
        assert!(error.message.contains(expected), "{query}: {error}");
    }
    let deep = "(".repeat(100) + "a" + &")".repeat(100);
    assert!(parse(&deep).unwrap_err().message.contains("too many parentheses"));
    assert!(parse(&"-".repeat(10_000)).is_err() && parse(&("+".repeat(10_000) + "a")).is_ok());
    assert!(parse(&"a ".repeat(2000)).unwrap_err().message.contains("more than 1000 words"));
    assert!(parse(&"a".repeat(20_000)).unwrap_err().message.contains("the limit is"));
    let error = Condition::on_columns("titel:red", &columns(&[("title", Tokenizer::Default), ("body", Tokenizer::Raw)])).unwrap_err();
    assert!(error.to_string().contains("no text column `titel`") && error.to_string().contains("did you mean `title`?"), "{error}");
}

#[test]
fn only_the_columns_that_a_query_may_look_at_are_asked() {
    let all = columns(&[("a", Tokenizer::Default), ("b", Tokenizer::Default), ("c", Tokenizer::Raw)]);
    let asked = |query| Condition::on_columns(query, &all).unwrap().columns().iter().map(|(c, _)| c.clone()).collect::<Vec<_>>();
    assert_eq!(asked("x"), ["a", "b", "c"]);
    assert_eq!(asked("c:x a:(y OR z)"), ["a", "c"]);
    let condition = Condition::on_columns("c:x OR c:y", &all).unwrap();
    assert_eq!(condition.scored_words(), [(0, "x"), (0, "y")]);
}

#[test]
fn what_cannot_be_searched_says_so() {
    use arrow::datatypes::{DataType, Field, Schema};
    let schema = Schema::new(vec![Field::new("label", DataType::Int64, true), Field::new("caption", DataType::Utf8, true)]);
    let check = |name: &str| check_columns(&columns(&[(name, Tokenizer::Default)]), &schema).map_err(|e| e.to_string());
    assert_eq!(check("caption"), Ok(()));
    assert!(check("capton").unwrap_err().contains("did you mean `caption`?"));
    assert!(check("label").unwrap_err().contains("column `label` is int64, and only text can be searched"));
}

#[test]
fn pieces_are_merged_in_the_rows_order() {
    let texts: Vec<String> = (0..3000).map(|i| format!("word{} common w{}", i % 7, i)).collect();
    let rows: Vec<RecordBatch> = texts.chunks(500).map(|c| batch(&[("t", c.iter().map(|s| Some(s.as_str())).collect())])).collect();
    let all = columns(&[("t", Tokenizer::Default)]);
    // So little memory that nearly every batch becomes a piece.
    let (_folder, small) = index(&all, &rows, 1);
    let condition = Condition::on_column("word3", "t", Tokenizer::Default).unwrap();
    let expected: Vec<u32> = (0..3000).filter(|i| i % 7 == 3).collect();
    assert_eq!(small.rows(&condition).unwrap(), expected);
    let one = Condition::on_column("w2999", "t", Tokenizer::Default).unwrap();
    assert_eq!(small.rows(&one).unwrap(), [2999]);
}

/// BM25 by the textbook, with lengths as the index keeps them.
fn bm25(rows: u64, tokens: u64, frequency: u64, times: f32, length: u32) -> f32 {
    let (n, f) = (rows as f32, frequency as f32);
    let idf = (1.0 + (n - f + 0.5) / (f + 0.5)).ln();
    let average = tokens as f32 / n;
    idf * 2.2 * times / (times + 1.2 * (0.25 + 0.75 * length as f32 / average))
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_compare_over_shards() {
    let all = columns(&[("t", Tokenizer::Default)]);
    let first = batch(&[("t", vec![Some("cat"), Some("cat dog"), Some("bird bird bird"), None])]);
    let second = batch(&[("t", vec![Some("cat"), Some("fish fish"), Some("cat cat fish")])]);
    let (_a, one) = index(&all, &[first], 64 << 20);
    let (_b, two) = index(&all, &[second], 64 << 20);
    let shards = vec![(7, Arc::new(one)), (9, Arc::new(two))];
    let condition = Arc::new(Condition::on_columns("cat", &all).unwrap());
    let hits = rank_shards(shards.clone(), condition.clone(), 10).await.unwrap();
    let found: Vec<(usize, u32)> = hits.iter().map(|h| (h.shard, h.row)).collect();
    // Seven rows, twelve words, four rows with the word; equal rows score equally wherever they are, and the first comes first.
    assert_eq!(found, [(7, 0), (9, 0), (9, 2), (7, 1)]);
    assert_eq!(hits[0].score.to_bits(), hits[1].score.to_bits());
    for (hit, (times, length)) in hits.iter().zip([(1.0, 1), (1.0, 1), (2.0, 3), (1.0, 2)]) {
        let expected = bm25(7, 12, 4, times, length);
        assert!((hit.score - expected).abs() < 1e-5, "{hit:?} {expected}");
    }
    assert_eq!(rank_shards(shards.clone(), condition.clone(), 2).await.unwrap(), hits[..2]);
    let other = rank_shards(shards, Arc::new(Condition::on_columns("fish -cat", &all).unwrap()), 10).await.unwrap();
    assert_eq!(other.iter().map(|h| (h.shard, h.row, h.id)).collect::<Vec<_>>(), [(9, 1, 1)]);
    let mut sum = Frequencies { rows: 1, tokens: vec![2], words: [((0, "a".to_owned()), 1)].into() };
    sum.add(Frequencies { rows: 2, tokens: vec![3], words: [((0, "a".to_owned()), 4), ((0, "b".to_owned()), 1)].into() });
    assert_eq!((sum.rows, sum.tokens, sum.words[&(0, "a".to_owned())]), (3, vec![5], 5));
}

const VOCABULARY: [&str; 12] = ["cat", "cats", "car", "card", "dog", "dig", "running", "run", "Übung", "北京", "a-b", "x"];

fn text() -> impl Strategy<Value = Option<String>> {
    let word = prop::sample::select(VOCABULARY.to_vec());
    prop::option::weighted(0.9, prop::collection::vec(word, 0..7).prop_map(|words| words.join(" ")))
}

/// Queries of every kind of part.
fn query() -> impl Strategy<Value = String> {
    let word = || prop::sample::select(VOCABULARY.to_vec());
    let leaf = prop_oneof![
        4 => word().prop_map(str::to_owned),
        2 => prop::collection::vec(word(), 1..4).prop_map(|w| format!("\"{}\"", w.join(" "))),
        1 => prop::collection::vec(word(), 1..3).prop_map(|w| format!("\"{}\"*", w.join(" "))),
        2 => (word(), 1usize..4).prop_map(|(w, n)| format!("{}*", w.chars().filter(|c| c.is_alphanumeric()).take(n).collect::<String>())),
        2 => (word(), 1u8..3).prop_map(|(w, n)| format!("{}~{n}", w.chars().filter(|c| c.is_ascii_alphabetic() || *c == 'Ü').chain("q".chars()).collect::<String>())),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(|q| q.join(" ")),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|q| format!("({})", q.join(" OR "))),
            inner.clone().prop_map(|q| format!("-({q})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a} AND NOT {b})")),
        ]
    })
}

fn tokenizer() -> impl Strategy<Value = Tokenizer> {
    prop::sample::select(vec![Tokenizer::Default, Tokenizer::Raw, Tokenizer::Cjk, Tokenizer::Stemmed(Language::English)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// An index, made in one piece or in several, finds exactly the rows that evaluating each row finds.
    #[test]
    fn an_index_finds_what_the_rows_say(
        texts in prop::collection::vec(text(), 1..40),
        queries in prop::collection::vec(query(), 1..8),
        tokenizer in tokenizer(),
        pieces in 1usize..4,
    ) {
        let all = columns(&[("t", tokenizer)]);
        let values: Vec<Option<&str>> = texts.iter().map(Option::as_deref).collect();
        let batches: Vec<RecordBatch> = values.chunks(values.len().div_ceil(pieces)).map(|c| batch(&[("t", c.to_vec())])).collect();
        let (_folder, index) = index(&all, &batches, if pieces > 1 { 1 } else { 64 << 20 });
        for query in queries {
            // Some are refused: several words where one belongs.
            let Ok(condition) = Condition::on_column(&query, "t", tokenizer) else { continue };
            let column: ArrayRef = Arc::new(StringArray::from(values.clone()));
            let answers = Matcher::new(condition.clone()).matches(&[column]).unwrap();
            let expected: Vec<u32> =
                (0..values.len()).filter(|i| values[*i].is_some() && answers.value(*i)).map(|i| i as u32).collect();
            prop_assert_eq!(index.rows(&condition).unwrap(), expected, "{} by {}: {:?}", query, tokenizer, condition);
        }
    }

    /// No text at all makes the parser panic, and what it reads it can evaluate.
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}", noise in r#"["()*~+\-:a-c \\]{0,24}"#) {
        for query in [text, noise] {
            if let Ok(condition) = Condition::on_column(&query, "t", Tokenizer::Default) {
                let column: ArrayRef = Arc::new(StringArray::from(vec![Some("a b c"), None]));
                Matcher::new(condition).matches(&[column]).unwrap();
            }
        }
    }
}
