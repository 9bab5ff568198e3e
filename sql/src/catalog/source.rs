//! A query as a pipeline's source: pinned to the versions that it reads, and the same rows whenever it is asked.
//!
//! Owns: what such a query may say, its text without comments and layout, the versions. Must not know: where its answer is kept.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer};
use forebay_core::ids::DatasetName;
use forebay_core::source::SourceInput;
use forebay_core::{Error, Result};

use super::request::{Pins, Request};
use super::resolve::{self, PUBLIC};
use super::{Catalog, Named, QueryStream, physical};
use crate::guard::{check_text, from_error, to_error};

/// A checked query.
#[derive(Debug, Clone)]
pub struct SourceQuery {
    /// Without comments, and with one space wherever there was any.
    pub sql: String,
    /// Every version that it reads, in the order of their names.
    pub inputs: Vec<SourceInput>,
    /// The columns of its answer.
    pub schema: SchemaRef,
    pins: Pins,
}

impl Catalog {
    /// Checks a query as the source of the pipeline `own`, and pins what it reads. Datasets without a version are pinned at their newest.
    ///
    /// # Errors
    /// `BadInput` for what is not one SELECT over datasets, names the pipeline's own output, or gives other rows each time; `NotFound` for a
    /// dataset that isn't there.
    pub async fn source(&self, sql: &str, own: &DatasetName) -> Result<SourceQuery> {
        check_text(sql, self.text_limits())?;
        let sql = plain_text(sql)?;
        let request = Request::new(sql.clone());
        let Named { statement, names, searches, .. } = self.names(&request).await?;
        if !matches!(statement, DfStatement::Statement(_)) {
            return Err(Error::bad_input("EXPLAIN tells of a query and is no source of rows"));
        }
        let mut datasets = Vec::new();
        for name in &names {
            if name.schema().is_some_and(|schema| schema != PUBLIC) {
                return Err(Error::bad_input(format!("`{name}` has no versions, and a source is pinned to one"))
                    .with_remedy("read datasets; write what a system table says as a dataset first"));
            }
            match searches.iter().find(|call| call.table == name.table()) {
                Some(call) => datasets.push(call.dataset.clone()),
                None => datasets.push(name.table().to_owned()),
            }
        }
        if datasets.is_empty() {
            return Err(Error::bad_input("the query reads no dataset").with_remedy("name at least one in FROM"));
        }
        let mut pins = Pins::default();
        let mut inputs = BTreeMap::new();
        for text in datasets {
            // Whether it is there already or not.
            if text.split('@').next() == Some(own.as_str()) {
                return Err(Error::bad_input(format!("the query reads `{own}`, which is what this pipeline makes"))
                    .with_remedy("give the pipeline another name"));
            }
            if self.view_of(&text).await?.is_some() {
                return Err(Error::bad_input(format!("`{text}` is a view, which may mean something else tomorrow"))
                    .with_remedy("write its SELECT into the source's query: `forebay view list` shows it"));
            }
            let version = resolve::open(&self.inner.root, &text, &pins).await?;
            let input = SourceInput { dataset: version.name.clone(), version: version.version, table: version.table_id().to_owned() };
            inputs.insert((input.dataset.clone(), input.version), input);
            pins.insert(text, version.version);
        }
        let request = Request { pins: pins.clone(), ..request };
        let (session, plan) = self.bound(&request).await?;
        let schema = self
            .plan(move || {
                check_repeatable(&plan)?;
                physical(&session, &plan).map(|(_, schema)| schema)
            })
            .await?;
        Ok(SourceQuery { sql, inputs: inputs.into_values().collect(), schema, pins })
    }

    /// Runs a source's query within the limits of all queries, but for that on the rows of an answer: nobody has to take these in.
    pub async fn rows_of(&self, query: &SourceQuery) -> Result<QueryStream> {
        let request = Request { pins: query.pins.clone(), unlimited: true, ..Request::new(query.sql.clone()) };
        self.ask(&request).await
    }
}

/// The text with everything that means nothing taken out: two that differ only in layout are the same query.
fn plain_text(sql: &str) -> Result<String> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().map_err(|e| Error::bad_input(format!("bad SQL: {e}")))?;
    let mut places = Places::new(sql);
    let mut plain = String::with_capacity(sql.len());
    let mut apart = false;
    for token in tokens {
        match token.token {
            Token::Whitespace(_) => apart = true,
            Token::EOF => {}
            Token::Placeholder(name) => {
                return Err(Error::bad_input(format!("`{name}` stands for a value that a source doesn't have"))
                    .with_remedy("write the value itself"));
            }
            _ => {
                if apart && !plain.is_empty() {
                    plain.push(' ');
                }
                apart = false;
                // As it was written: quotes and escapes of a token that was read can't be told from its value.
                plain.push_str(places.between(token.span.start, token.span.end));
            }
        }
    }
    plain.truncate(plain.trim_end_matches([';', ' ']).len());
    Ok(plain)
}

/// Finds places given by line and column (in characters, both from 1), each not before the last.
struct Places<'a> {
    text: &'a str,
    chars: std::iter::Peekable<std::str::CharIndices<'a>>,
    line: u64,
    column: u64,
}

impl<'a> Places<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, chars: text.char_indices().peekable(), line: 1, column: 1 }
    }

    fn byte(&mut self, place: Location) -> usize {
        while (self.line, self.column) < (place.line, place.column) {
            match self.chars.next() {
                Some((_, '\n')) => (self.line, self.column) = (self.line + 1, 1),
                Some(_) => self.column += 1,
                None => return self.text.len(),
            }
        }
        self.chars.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn between(&mut self, start: Location, end: Location) -> &'a str {
        let (start, end) = (self.byte(start), self.byte(end));
        self.text.get(start..end).unwrap_or_default()
    }
}

/// Rows are staged once, and made again where they got lost: they must not depend on when that is.
fn check_repeatable(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            datafusion::common::tree_node::TreeNode::apply(expr, |e| match e {
                Expr::ScalarFunction(f) if f.func.signature().volatility != Volatility::Immutable => Err(from_error(
                    Error::bad_input(format!("`{}` gives another value each time, and a source is staged once", f.func.name()))
                        .with_remedy("write the value itself, or draw in a step"),
                )),
                _ => Ok(TreeNodeRecursion::Continue),
            })
        })
    })
    .map(|_| ())
    .map_err(to_error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::plain_text;

    #[test]
    fn layout_and_comments_mean_nothing_and_texts_mean_everything() {
        let one = plain_text("SELECT  a, -- the first\n\t'it''s  -- no' AS \"B c\"\r\nFROM x /* old */ WHERE b=1;\n").unwrap();
        assert_eq!(one, "SELECT a, 'it''s  -- no' AS \"B c\" FROM x WHERE b=1");
        assert_eq!(plain_text(&one).unwrap(), one);
        assert_eq!(plain_text("SELECT 'ä\nö' ,\"ü\" FROM x").unwrap(), "SELECT 'ä\nö' ,\"ü\" FROM x");
        assert_eq!(
            plain_text("SELECT E'a\\'b', $$ x  y $$, 1.50, x.\"Y\" FROM x").unwrap(),
            "SELECT E'a\\'b', $$ x  y $$, 1.50, x.\"Y\" FROM x"
        );
        assert_ne!(plain_text("SELECT 'a  b'").unwrap(), plain_text("SELECT 'a b'").unwrap());
    }
}
