//! From a condition to tantivy's query over one index.

use forebay_core::Result;
use tantivy::Term;
use tantivy::query::{
    AllQuery, BooleanQuery, ConstScoreQuery, EmptyQuery, FuzzyTermQuery, Occur, PhrasePrefixQuery, PhraseQuery, Query, TermQuery,
};
use tantivy::schema::{Field, IndexRecordOption};

use super::condition::Test;

/// How many words of a field begin in some way.
pub(super) type Beginnings<'a> = dyn Fn(Field, &str) -> Result<u32> + 'a;

/// The query of a condition; `fields` are the index's fields of the condition's columns. Words and phrases score by BM25; beginnings and words
/// within some edits score 1, because their expansions differ from shard to shard.
pub(super) fn compile(test: &Test, fields: &[Field], beginnings: &Beginnings<'_>) -> Result<Box<dyn Query>> {
    Ok(match test {
        Test::Always(false) => Box::new(EmptyQuery),
        Test::Always(true) => everything(),
        Test::All(tests) => {
            let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::with_capacity(tests.len() + 1);
            for test in tests {
                clauses.push(match test {
                    Test::Not(inner) => (Occur::MustNot, excluded(compile(inner, fields, beginnings)?)),
                    other => (Occur::Must, compile(other, fields, beginnings)?),
                });
            }
            if clauses.iter().all(|(occur, _)| *occur == Occur::MustNot) {
                clauses.push((Occur::Must, everything()));
            }
            Box::new(BooleanQuery::new(clauses))
        }
        Test::Any(tests) => {
            let clauses = tests.iter().map(|t| Ok((Occur::Should, compile(t, fields, beginnings)?))).collect::<Result<Vec<_>>>()?;
            Box::new(BooleanQuery::new(clauses))
        }
        Test::Not(inner) => {
            Box::new(BooleanQuery::new(vec![(Occur::Must, everything()), (Occur::MustNot, excluded(compile(inner, fields, beginnings)?))]))
        }
        Test::Term { column, text } => Box::new(TermQuery::new(term(fields, *column, text), IndexRecordOption::WithFreqs)),
        Test::Phrase { column, words, prefix: false } => {
            let terms = words.iter().map(|(place, text)| (*place, term(fields, *column, text))).collect();
            Box::new(PhraseQuery::new_with_offset(terms))
        }
        Test::Phrase { column, words, prefix: true } => {
            let last = words.last().map_or("", |(_, text)| text.as_str());
            // The query makes room for as many words as it is told, before it looks how many there are.
            let room = beginnings(field(fields, *column), last)?;
            if room == 0 {
                return Ok(Box::new(EmptyQuery));
            }
            let terms = words.iter().map(|(place, text)| (*place, term(fields, *column, text))).collect();
            let mut query = PhrasePrefixQuery::new_with_offset(terms);
            query.set_max_expansions(room);
            // Its own scores would know nothing of the other shards.
            Box::new(ConstScoreQuery::new(Box::new(query), 1.0))
        }
        Test::Prefix { column, text } => Box::new(FuzzyTermQuery::new_prefix(term(fields, *column, text), 0, true)),
        Test::Fuzzy { column, text, edits } => Box::new(FuzzyTermQuery::new(term(fields, *column, text), *edits, true)),
    })
}

/// What is excluded is asked about rows that it has passed, which phrases of tantivy 0.27 can't bear (an assertion in their `seek_danger`); a union can.
fn excluded(query: Box<dyn Query>) -> Box<dyn Query> {
    Box::new(BooleanQuery::new(vec![(Occur::Should, query.box_clone()), (Occur::Should, query)]))
}

fn everything() -> Box<dyn Query> {
    Box::new(ConstScoreQuery::new(Box::new(AllQuery), 0.0))
}

fn term(fields: &[Field], column: usize, text: &str) -> Term {
    Term::from_field_text(field(fields, column), text)
}

fn field(fields: &[Field], column: usize) -> Field {
    // A column without a field in this index is refused before; field 0 always exists.
    fields.get(column).copied().unwrap_or(Field::from_field_id(0))
}
