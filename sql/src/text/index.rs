//! One shard's index: a single segment whose document numbers are the rows' numbers in the shard.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::text::{TextColumns, Tokenizer};
use forebay_core::{Error, Kind, Result};
use forebay_storage::bundle::Bundle;
use serde::{Deserialize, Serialize};
use tantivy::collector::TopDocs;
use tantivy::query::{Bm25StatisticsProvider, BooleanQuery, EnableScoring, Occur, Query, TermQuery};
use tantivy::schema::{FAST, Field, INDEXED, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::{DocSet, Index, ReloadPolicy, Searcher, TERMINATED, Term};

use super::compile::compile;
use super::condition::Condition;
use super::directory::BundleDirectory;

/// Changes when bundles are made in another way; part of their names.
pub(super) const FORMAT: &str = "1";
/// The fast fields of the row's key.
pub(super) const ID: &str = "id";
pub(super) const PART: &str = "part";
/// Numbers of the text columns that are null in a row.
pub(super) const ABSENT: &str = "absent";

/// Words that the last word of a phrase may go on to: each holds two kilobytes while the phrase is looked for.
const MAX_BEGINNINGS: u32 = 10_000;

/// What a bundle says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) format: String,
    pub(super) shard: String,
    pub(super) shard_size: u64,
    pub(super) rows: u64,
    /// Whether rows have `_part`.
    pub(super) part: bool,
    pub(super) columns: TextColumns,
}

/// The fields of an index: column `i` is `t{i}`, because tantivy's names are not as free as ours.
pub(super) fn schema(columns: &TextColumns, part: bool) -> Schema {
    let mut schema = Schema::builder();
    for (i, tokenizer) in columns.values().enumerate() {
        let indexing =
            TextFieldIndexing::default().set_tokenizer(&tokenizer.to_string()).set_index_option(IndexRecordOption::WithFreqsAndPositions);
        schema.add_text_field(&field_name(i), TextOptions::default().set_indexing_options(indexing));
    }
    schema.add_u64_field(ABSENT, INDEXED);
    schema.add_i64_field(ID, FAST);
    if part {
        schema.add_i64_field(PART, FAST);
    }
    schema.build()
}

pub(super) fn field_name(column: usize) -> String {
    format!("t{column}")
}

pub(super) fn failed(error: tantivy::TantivyError) -> Error {
    if let tantivy::TantivyError::IoError(io) = &error
        && let Some(ours) = io.get_ref().and_then(|e| e.downcast_ref::<Error>())
    {
        return ours.clone();
    }
    Error::corrupt(format!("a text index can't be read: {error}")).with_remedy("build it again: forebay index DATASET COLUMN --rebuild")
}

/// An index that is open. Its calls read from disk or the store: they must not be made on threads that drive async work.
pub(crate) struct ShardIndex {
    searcher: Searcher,
    columns: Vec<(String, Tokenizer, Field)>,
    absent: Field,
    part: bool,
    rows: u64,
    memory: usize,
}

impl std::fmt::Debug for ShardIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardIndex").field("rows", &self.rows).field("columns", &self.columns).finish_non_exhaustive()
    }
}

/// How often words are, over all shards that a query ranks. By the condition's columns.
#[derive(Debug, Clone, Default)]
pub(super) struct Frequencies {
    pub(super) rows: u64,
    pub(super) tokens: Vec<u64>,
    pub(super) words: HashMap<(usize, String), u64>,
}

impl Frequencies {
    /// Adds another shard's.
    pub(super) fn add(&mut self, other: Frequencies) {
        self.rows += other.rows;
        self.tokens.resize(self.tokens.len().max(other.tokens.len()), 0);
        for (sum, tokens) in self.tokens.iter_mut().zip(other.tokens) {
            *sum += tokens;
        }
        for (word, count) in other.words {
            *self.words.entry(word).or_default() += count;
        }
    }
}

/// The merged frequencies in the terms of one index.
struct Merged<'a> {
    all: &'a Frequencies,
    fields: &'a [Field],
}

impl Merged<'_> {
    fn column(&self, field: Field) -> Option<usize> {
        self.fields.iter().position(|f| *f == field)
    }
}

impl Bm25StatisticsProvider for Merged<'_> {
    fn total_num_tokens(&self, field: Field) -> tantivy::Result<u64> {
        Ok(self.column(field).and_then(|c| self.all.tokens.get(c)).copied().unwrap_or(0))
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        Ok(self.all.rows)
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        let word = self.column(term.field()).zip(term.value().as_str().map(str::to_owned));
        Ok(word.and_then(|word| self.all.words.get(&word)).copied().unwrap_or(0))
    }
}

/// A row of a shard with its score.
pub(super) type Scored = (f32, u32);

impl ShardIndex {
    /// Opens the index in a bundle, which must be of this shard.
    pub(super) fn open(bundle: Bundle, shard: &str, rows: u64) -> Result<Self> {
        let about: About = serde_json::from_value(bundle.about().clone())
            .map_err(|e| Error::corrupt(format!("an index bundle without its description: {e}")))?;
        if about.format != FORMAT || about.shard != shard || about.rows != rows {
            return Err(Error::corrupt(format!("the index bundle of {shard} is of {} with {} rows", about.shard, about.rows))
                .with_remedy("build it again: forebay index DATASET COLUMN --rebuild"));
        }
        let memory = bundle.memory();
        let index = Index::open(BundleDirectory(Arc::new(bundle))).map_err(failed)?;
        // Most of the hot bytes are held a second time by the readers, decoded or as they are.
        Self::of(index, &about, 2 * memory + 4096)
    }

    pub(super) fn of(index: Index, about: &About, memory: usize) -> Result<Self> {
        let schema = index.schema();
        let columns = about.columns.iter().enumerate().map(|(i, (column, tokenizer))| {
            let field = schema.get_field(&field_name(i)).map_err(failed)?;
            Ok((column.clone(), *tokenizer, field))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let absent = schema.get_field(ABSENT).map_err(failed)?;
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(failed)?;
        let opened = Self { searcher: reader.searcher(), columns, absent, part: about.part, rows: about.rows, memory };
        opened.touch()?;
        Ok(opened)
    }

    /// Opens what every query needs: word lists and lengths. What is read for it is what a bundle keeps hot.
    fn touch(&self) -> Result<()> {
        let segment = self.segment()?;
        for (_, _, field) in &self.columns {
            segment.inverted_index(*field).map_err(failed)?;
            segment.fieldnorms_readers().get_field(*field).map_err(failed)?;
        }
        segment.inverted_index(self.absent).map_err(failed)?;
        Ok(())
    }

    fn segment(&self) -> Result<&tantivy::SegmentReader> {
        match self.searcher.segment_readers() {
            [segment] if u64::from(segment.max_doc()) == self.rows => Ok(segment),
            other => Err(Error::corrupt(format!("a text index has {} segments, or not one row per row of its shard", other.len()))),
        }
    }

    /// Bytes that it holds.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// The fields of a condition's columns; `None` where it lacks one, or has it with another tokenizer.
    fn fields(&self, condition: &Condition) -> Option<Vec<Field>> {
        let field = |(name, tokenizer): &(String, Tokenizer)| {
            self.columns.iter().find(|(n, t, _)| n == name && t == tokenizer).map(|(_, _, field)| *field)
        };
        condition.columns().iter().map(field).collect()
    }

    fn known_fields(&self, condition: &Condition) -> Result<Vec<Field>> {
        self.fields(condition).ok_or_else(|| Error::internal("a text index was asked for a column that it lacks"))
    }

    /// How many words of a field begin so.
    fn beginnings(&self, field: Field, prefix: &str) -> Result<u32> {
        let words = self.segment()?.inverted_index(field).map_err(failed)?;
        let mut end = prefix.as_bytes().to_vec();
        // The last byte of a text is never the largest that a byte can be.
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        let mut stream = words.terms().range().ge(prefix.as_bytes()).lt(&end).into_stream().map_err(|e| failed(e.into()))?;
        let mut count = 0;
        while stream.advance() {
            count += 1;
            if count > MAX_BEGINNINGS {
                let shown = prefix.escape_debug();
                return Err(Error::new(
                    Kind::ResourceExhausted,
                    format!("more than {MAX_BEGINNINGS} different words begin with `{shown}`"),
                )
                .with_remedy("write more of the phrase's last word"));
            }
        }
        Ok(count)
    }

    /// The rows that meet a condition on one column, ascending. A row whose value is null meets none, as in SQL.
    pub(crate) fn rows(&self, condition: &Condition) -> Result<Vec<u32>> {
        let fields = self.known_fields(condition)?;
        let mut query = compile(&condition.test, &fields, &|field, text| self.beginnings(field, text))?;
        if condition.meets_nothing() {
            let mut clauses: Vec<(Occur, Box<dyn Query>)> = vec![(Occur::Must, query)];
            for field in &fields {
                let number = self.columns.iter().position(|(_, _, f)| f == field).unwrap_or(0) as u64;
                let absent = TermQuery::new(Term::from_field_u64(self.absent, number), IndexRecordOption::Basic);
                clauses.push((Occur::MustNot, Box::new(absent)));
            }
            query = Box::new(BooleanQuery::new(clauses));
        }
        let weight = query.weight(EnableScoring::disabled_from_searcher(&self.searcher)).map_err(failed)?;
        let mut documents = weight.scorer(self.segment()?, 1.0).map_err(failed)?;
        let mut rows = Vec::new();
        let mut row = documents.doc();
        while row != TERMINATED {
            rows.push(row);
            row = documents.advance();
        }
        Ok(rows)
    }

    /// How often the words that score are here.
    pub(super) fn frequencies(&self, condition: &Condition) -> Result<Frequencies> {
        let (fields, segment) = (self.known_fields(condition)?, self.segment()?);
        let mut found = Frequencies { rows: self.rows, ..Frequencies::default() };
        for field in &fields {
            found.tokens.push(segment.inverted_index(*field).map_err(failed)?.total_num_tokens());
        }
        for (column, word) in condition.scored_words() {
            let Some(field) = fields.get(column) else { continue };
            let count = self.searcher.doc_freq(&Term::from_field_text(*field, word)).map_err(failed)?;
            found.words.insert((column, word.to_owned()), count);
        }
        Ok(found)
    }

    /// The best rows, best first; of equal ones the first in the shard.
    pub(super) fn best(&self, condition: &Condition, all: &Frequencies, limit: usize) -> Result<Vec<Scored>> {
        if limit == 0 || self.rows == 0 {
            return Ok(Vec::new());
        }
        let fields = self.known_fields(condition)?;
        let query = compile(&condition.test, &fields, &|field, text| self.beginnings(field, text))?;
        let limit = limit.min(usize::try_from(self.rows).unwrap_or(usize::MAX));
        let merged = Merged { all, fields: &fields };
        let best = self
            .searcher
            .search_with_statistics_provider(query.as_ref(), &TopDocs::with_limit(limit).order_by_score(), &merged)
            .map_err(failed)?;
        Ok(best.into_iter().map(|(score, address)| (score, address.doc_id)).collect())
    }

    /// The keys of rows: `_id`, and `_part` where rows have one.
    pub(super) fn keys(&self, rows: &[u32]) -> Result<Vec<(i64, Option<i32>)>> {
        let fast = self.segment()?.fast_fields();
        let ids = fast.i64(ID).map_err(failed)?;
        let parts = if self.part { Some(fast.i64(PART).map_err(failed)?) } else { None };
        let missing = || Error::corrupt("a text index has a row without its key");
        let key = |row: &u32| {
            let part = match &parts {
                None => None,
                Some(parts) => Some(i32::try_from(parts.first(*row).ok_or_else(missing)?).map_err(|_| missing())?),
            };
            Ok((ids.first(*row).ok_or_else(missing)?, part))
        };
        rows.iter().map(key).collect()
    }
}
