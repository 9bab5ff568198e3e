//! From a condition to tantivy's query over one index.

use tantivy::Term;
use tantivy::query::{
    AllQuery, BooleanQuery, ConstScoreQuery, EmptyQuery, FuzzyTermQuery, Occur, PhrasePrefixQuery, PhraseQuery, Query, TermQuery,
};
use tantivy::schema::{Field, IndexRecordOption};

use super::condition::Test;

/// The query of a condition; `fields` are the index's fields of the condition's columns. Words and phrases score by BM25; beginnings and words
/// within some edits score 1, because their expansions differ from shard to shard.
pub(super) fn compile(test: &Test, fields: &[Field]) -> Box<dyn Query> {
    match test {
        Test::Always(false) => Box::new(EmptyQuery),
        Test::Always(true) => everything(),
        Test::All(tests) => {
            let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::with_capacity(tests.len() + 1);
            for test in tests {
                clauses.push(match test {
                    Test::Not(inner) => (Occur::MustNot, compile(inner, fields)),
                    other => (Occur::Must, compile(other, fields)),
                });
            }
            if clauses.iter().all(|(occur, _)| *occur == Occur::MustNot) {
                clauses.push((Occur::Must, everything()));
            }
            Box::new(BooleanQuery::new(clauses))
        }
        Test::Any(tests) => Box::new(BooleanQuery::new(tests.iter().map(|t| (Occur::Should, compile(t, fields))).collect())),
        Test::Not(inner) => Box::new(BooleanQuery::new(vec![(Occur::Must, everything()), (Occur::MustNot, compile(inner, fields))])),
        Test::Term { column, text } => Box::new(TermQuery::new(term(fields, *column, text), IndexRecordOption::WithFreqs)),
        Test::Phrase { column, words, prefix } => {
            let terms = words.iter().map(|(place, text)| (*place, term(fields, *column, text))).collect();
            if *prefix {
                let mut query = PhrasePrefixQuery::new_with_offset(terms);
                query.set_max_expansions(u32::MAX);
                // Its own scores would know nothing of the other shards.
                Box::new(ConstScoreQuery::new(Box::new(query), 1.0))
            } else {
                Box::new(PhraseQuery::new_with_offset(terms))
            }
        }
        Test::Prefix { column, text } => Box::new(FuzzyTermQuery::new_prefix(term(fields, *column, text), 0, true)),
        Test::Fuzzy { column, text, edits } => Box::new(FuzzyTermQuery::new(term(fields, *column, text), *edits, true)),
    }
}

fn everything() -> Box<dyn Query> {
    Box::new(ConstScoreQuery::new(Box::new(AllQuery), 0.0))
}

fn term(fields: &[Field], column: usize, text: &str) -> Term {
    // A column without a field in this index is checked before; field 0 always exists and has no such word.
    Term::from_field_text(fields.get(column).copied().unwrap_or(Field::from_field_id(0)), text)
}
