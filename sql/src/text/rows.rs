//! A condition evaluated row by row, without an index.

use std::collections::HashSet;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use forebay_core::{Error, Result};
use tantivy::tokenizer::TextAnalyzer;

use super::condition::{Condition, Test};
use super::tokenize::{Word, analyzer, words};

/// Evaluates a condition over arrays of its columns.
#[derive(Clone)]
pub struct Matcher {
    condition: Condition,
    analyzers: Vec<TextAnalyzer>,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("condition", &self.condition).finish_non_exhaustive()
    }
}

impl Matcher {
    pub fn new(condition: Condition) -> Self {
        let analyzers = condition.columns().iter().map(|(_, tokenizer)| analyzer(*tokenizer)).collect();
        Self { condition, analyzers }
    }

    /// Which rows meet the condition. `columns` are those of [`Condition::columns`], in their order; a null has no words.
    ///
    /// # Errors
    /// `BadInput` for a column that isn't text.
    pub fn matches(&mut self, columns: &[ArrayRef]) -> Result<BooleanArray> {
        let columns = columns.iter().map(text).collect::<Result<Vec<_>>>()?;
        let rows = columns.first().map_or(0, |c| c.len());
        let mut found: Vec<Vec<Word>> = vec![Vec::new(); columns.len()];
        let mut answers = Vec::with_capacity(rows);
        for row in 0..rows {
            for ((column, analyzer), found) in columns.iter().zip(&mut self.analyzers).zip(&mut found) {
                let column = column.as_string::<i32>();
                *found = if column.is_valid(row) { words(analyzer, column.value(row)) } else { Vec::new() };
            }
            answers.push(meets(&self.condition.test, &found));
        }
        Ok(answers.into())
    }
}

/// A text column as plain strings.
pub(super) fn text(column: &ArrayRef) -> Result<ArrayRef> {
    match column.data_type() {
        DataType::Utf8 => Ok(column.clone()),
        other if super::is_text(other) => cast(column, &DataType::Utf8).map_err(|e| Error::bad_input(e.to_string())),
        other => Err(Error::bad_input(format!("{other} is not text"))),
    }
}

fn meets(test: &Test, row: &[Vec<Word>]) -> bool {
    let of = |column: &usize| row.get(*column).map_or(&[] as &[Word], Vec::as_slice);
    match test {
        Test::Always(answer) => *answer,
        Test::All(tests) => tests.iter().all(|t| meets(t, row)),
        Test::Any(tests) => tests.iter().any(|t| meets(t, row)),
        Test::Not(test) => !meets(test, row),
        Test::Term { column, text } => of(column).iter().any(|(_, word)| word == text),
        Test::Prefix { column, text } => of(column).iter().any(|(_, word)| word.starts_with(text.as_str())),
        Test::Fuzzy { column, text, edits } => of(column).iter().any(|(_, word)| near(word, text, *edits)),
        Test::Phrase { column, words, prefix } => phrase(of(column), words, *prefix),
    }
}

/// Whether two words are within so many edits: an insertion, a deletion, another character, or two neighbours exchanged.
fn near(a: &str, b: &str, edits: u8) -> bool {
    let (x, y) = (a.chars().count(), b.chars().count());
    x.abs_diff(y) <= usize::from(edits) && strsim::osa_distance(a, b) <= usize::from(edits)
}

fn phrase(row: &[Word], wanted: &[Word], prefix: bool) -> bool {
    let at: HashSet<(usize, &str)> = row.iter().map(|(place, word)| (*place, word.as_str())).collect();
    let Some(((_, first), rest)) = wanted.split_first() else { return true };
    let Some(((last_place, last), middle)) = rest.split_last() else { return true };
    row.iter().filter(|(_, word)| word == first).any(|(start, _)| {
        let there = |place: &usize, word: &String| at.contains(&(start + place, word.as_str()));
        let ends = if prefix {
            row.iter().any(|(place, word)| *place == start + last_place && word.starts_with(last.as_str()))
        } else {
            there(last_place, last)
        };
        ends && middle.iter().all(|(place, word)| there(place, word))
    })
}
