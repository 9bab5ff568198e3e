//! Which rows of a scan meet its text filter: by the shards' indexes, and row by row where a shard has none.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::compute::{and, is_not_null, or};
use forebay_core::{Error, Kind, Result};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::root::Root;
use forebay_storage::shard::read_row_group;
use tokio::sync::OnceCell;

use super::text_match::TextTest;
use crate::text::{Matcher, ShardIndex, TextIndexes};

/// The rows of one version that meet a text filter, found shard by shard when they are first asked for.
pub(super) struct TextRows {
    root: Root,
    version: Arc<DatasetVersion>,
    indexes: TextIndexes,
    test: TextTest,
    /// The stored columns that the filter looks at.
    columns: Vec<String>,
    shards: Vec<OnceCell<Found>>,
}

/// What an index said of a shard.
#[derive(Debug, Clone)]
enum Found {
    /// Ascending row numbers in the shard.
    Rows(Arc<Vec<u32>>),
    /// There is none that knows: its rows are read.
    NoIndex,
}

impl TextRows {
    pub(super) fn new(root: Root, version: Arc<DatasetVersion>, indexes: TextIndexes, test: TextTest) -> Self {
        let mut columns: Vec<String> = Vec::new();
        test.each(&mut |column, _| {
            if !columns.iter().any(|c| c == column) {
                columns.push(column.to_owned());
            }
        });
        let shards = version.shards.iter().map(|_| OnceCell::new()).collect();
        Self { root, version, indexes, test, columns, shards }
    }

    pub(super) fn test(&self) -> &TextTest {
        &self.test
    }

    /// The rows of a row group that meet the filter, as ascending ranges.
    ///
    /// # Errors
    /// What the store says of an index or of the shard.
    pub(super) async fn in_group(&self, shard: usize, row_group: usize) -> Result<Vec<Range<u64>>> {
        let meta = self.version.shards.get(shard).ok_or_else(|| Error::internal(format!("{} has no shard {shard}", self.version.name)))?;
        let cell = self.shards.get(shard).ok_or_else(|| Error::internal("a text filter over another version"))?;
        let start: u64 = meta.row_groups.iter().take(row_group).map(|g| g.rows).sum();
        let rows = meta.row_groups.get(row_group).map_or(0, |g| g.rows);
        match cell.get_or_try_init(|| self.by_index(shard)).await? {
            Found::Rows(found) => {
                let from = found.partition_point(|row| u64::from(*row) < start);
                let to = found.partition_point(|row| u64::from(*row) < start + rows);
                Ok(ranges(found[from..to].iter().map(|row| u64::from(*row) - start)))
            }
            Found::NoIndex => self.by_rows(shard, row_group).await,
        }
    }

    async fn by_index(&self, shard: usize) -> Result<Found> {
        let meta = &self.version.shards[shard];
        let columns = self.version.text_columns();
        let covers = |column: &String| {
            let wanted = columns.get(column);
            meta.index.as_ref().zip(wanted).is_some_and(|(index, tokenizer)| index.covers(column, *tokenizer))
        };
        if !self.columns.iter().all(covers) {
            return Ok(Found::NoIndex);
        }
        let index = match self.indexes.get(&self.version.name, meta).await {
            Ok(Some(index)) => index,
            Ok(None) => return Ok(Found::NoIndex),
            // The rows say the same; only more slowly.
            Err(error) if matches!(error.kind, Kind::NotFound | Kind::Corrupt | Kind::Unsupported) => {
                tracing::warn!(dataset = %self.version.name, shard = meta.path, %error, "a text index can't be used; its shard is read row by row");
                return Ok(Found::NoIndex);
            }
            Err(error) => return Err(error),
        };
        let test = self.test.clone();
        let found = tokio::task::spawn_blocking(move || answer(&test, &index)).await;
        let rows = found.map_err(|e| Error::internal(format!("a text index's search failed: {e}")))??;
        Ok(Found::Rows(Arc::new(rows)))
    }

    async fn by_rows(&self, shard: usize, row_group: usize) -> Result<Vec<Range<u64>>> {
        let batches = read_row_group(&self.root, &self.version, shard, row_group, Some(&self.columns), None).await?;
        let test = self.test.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut before = 0;
            let mut rows: Vec<u64> = Vec::new();
            for batch in batches {
                let column = |name: &str| {
                    batch.column_by_name(name).cloned().ok_or_else(|| Error::internal(format!("a shard was read without `{name}`")))
                };
                let answers = evaluate(&test, &column)?;
                rows.extend(answers.values().set_indices().map(|row| before + row as u64));
                before += batch.num_rows() as u64;
            }
            Ok(ranges(rows.into_iter()))
        });
        work.await.map_err(|e| Error::internal(format!("a text filter failed: {e}")))?
    }
}

/// Ascending numbers as ranges.
fn ranges(rows: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for row in rows {
        match ranges.last_mut() {
            Some(last) if last.end == row => last.end += 1,
            _ => ranges.push(row..row + 1),
        }
    }
    ranges
}

fn answer(test: &TextTest, index: &ShardIndex) -> Result<Vec<u32>> {
    match test {
        TextTest::Match { condition, .. } => index.rows(condition),
        TextTest::All(tests) => combined(tests, index, |a, b| {
            let mut b = b.iter().peekable();
            a.retain(|row| {
                while b.next_if(|other| **other < *row).is_some() {}
                b.peek() == Some(&row)
            });
        }),
        TextTest::Any(tests) => combined(tests, index, |a, b| {
            a.extend_from_slice(b);
            a.sort_unstable();
            a.dedup();
        }),
    }
}

fn combined(tests: &[TextTest], index: &ShardIndex, join: impl Fn(&mut Vec<u32>, &[u32])) -> Result<Vec<u32>> {
    let Some((first, rest)) = tests.split_first() else { return Ok(Vec::new()) };
    let mut rows = answer(first, index)?;
    for test in rest {
        join(&mut rows, &answer(test, index)?);
    }
    Ok(rows)
}

/// The filter over rows that were read; null is false.
fn evaluate(test: &TextTest, column: &impl Fn(&str) -> Result<ArrayRef>) -> Result<BooleanArray> {
    let many = |tests: &[TextTest], join: fn(&BooleanArray, &BooleanArray) -> Result<BooleanArray, arrow::error::ArrowError>| {
        let Some((first, rest)) = tests.split_first() else { return Err(Error::internal("an empty text filter")) };
        rest.iter().try_fold(evaluate(first, column)?, |all, test| {
            join(&all, &evaluate(test, column)?).map_err(|e| Error::internal(e.to_string()))
        })
    };
    match test {
        TextTest::Match { column: name, condition, .. } => {
            let values = column(name)?;
            let found = Matcher::new(condition.as_ref().clone()).matches(std::slice::from_ref(&values))?;
            let there = match values.logical_nulls() {
                None => return Ok(found),
                Some(_) => is_not_null(&values).map_err(|e| Error::internal(e.to_string()))?,
            };
            and(&found, &there).map_err(|e| Error::internal(e.to_string()))
        }
        TextTest::All(tests) => many(tests, and),
        TextTest::Any(tests) => many(tests, or),
    }
}
