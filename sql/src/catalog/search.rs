//! `search(dataset, 'query' [, limit])` in FROM: the best rows of a dataset for a query, as a table.
//!
//! A call is found in the parsed statement and becomes a table of its own name, because its dataset has to be opened before planning, as every
//! other table's. Which shards are asked depends on the filters on `epoch`; what a shard's rows score does not depend on the shard.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, ObjectNamePart, TableAlias, TableFactor, Value, VisitMut, VisitorMut,
};
use forebay_core::{Error, Result};

/// The function's name.
const NAME: &str = "search";
/// Rows that are found unless the call says otherwise.
const DEFAULT_LIMIT: usize = 10;
/// More rows than these are not a ranking; `text_match` finds all.
const MAX_LIMIT: usize = 100_000;

/// A call in a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SearchCall {
    /// The name of the table that stands for it; no dataset can have it.
    pub(super) table: String,
    /// `name` or `name@v3`
    pub(super) dataset: String,
    pub(super) query: String,
    pub(super) limit: usize,
}

/// Takes the calls out of a statement.
///
/// # Errors
/// `BadInput` for a call with other arguments.
pub(super) fn extract(mut statement: DfStatement) -> Result<(DfStatement, Vec<SearchCall>)> {
    let mut finder = Finder { calls: Vec::new() };
    if let ControlFlow::Break(error) = visit(&mut statement, &mut finder) {
        return Err(*error);
    }
    Ok((statement, finder.calls))
}

fn visit(statement: &mut DfStatement, finder: &mut Finder) -> ControlFlow<Box<Error>> {
    match statement {
        DfStatement::Statement(inner) => inner.visit(finder),
        DfStatement::Explain(explain) => visit(&mut explain.statement, finder),
        _ => ControlFlow::Continue(()),
    }
}

struct Finder {
    calls: Vec<SearchCall>,
}

impl VisitorMut for Finder {
    type Break = Box<Error>;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Self::Break> {
        let TableFactor::Table { name, alias, args, .. } = factor else { return ControlFlow::Continue(()) };
        let called = matches!(name.0.as_slice(), [ObjectNamePart::Identifier(ident)] if ident.value.eq_ignore_ascii_case(NAME));
        let Some(found) = args.as_ref().filter(|_| called) else { return ControlFlow::Continue(()) };
        let table = format!("{NAME}#{}", self.calls.len());
        match call(&found.args, table.clone()) {
            Ok(call) => self.calls.push(call),
            Err(error) => return ControlFlow::Break(Box::new(error)),
        }
        *args = None;
        *name = ObjectName(vec![ObjectNamePart::Identifier(Ident::with_quote('"', table))]);
        if alias.is_none() {
            *alias = Some(TableAlias { explicit: true, name: Ident::new(NAME), columns: Vec::new(), at: None });
        }
        ControlFlow::Continue(())
    }
}

fn usage(what: impl std::fmt::Display) -> Error {
    Error::bad_input(format!("search: {what}")).with_remedy("call it as search(dataset, 'query') or search(dataset, 'query', 20)")
}

fn call(args: &[FunctionArg], table: String) -> Result<SearchCall> {
    let mut plain = Vec::with_capacity(args.len());
    let mut limit = DEFAULT_LIMIT;
    for arg in args {
        match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => plain.push(expr),
            FunctionArg::Named { name, arg: FunctionArgExpr::Expr(expr), .. } if name.value.eq_ignore_ascii_case("limit") => {
                limit = number(expr)?;
            }
            other => return Err(usage(format!("`{other}` is no argument of it"))),
        }
    }
    let (dataset, query) = match plain.as_slice() {
        [dataset, query] => (dataset, query),
        [dataset, query, rows] => {
            limit = number(rows)?;
            (dataset, query)
        }
        other => return Err(usage(format!("{} arguments", other.len()))),
    };
    let query = text(query).ok_or_else(|| usage(format!("the query is a text in quotes, not `{query}`")))?;
    Ok(SearchCall { table, dataset: dataset_name(dataset)?, query, limit })
}

fn text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) | Value::NationalStringLiteral(text) => Some(text.clone()),
            Value::DollarQuotedString(text) => Some(text.value.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn dataset_name(expr: &Expr) -> Result<String> {
    match expr {
        // As names of tables are read: lower case unless quoted.
        Expr::Identifier(ident) if ident.quote_style.is_none() => Ok(ident.value.to_lowercase()),
        Expr::Identifier(ident) => Ok(ident.value.clone()),
        other => text(other).ok_or_else(|| usage(format!("`{other}` does not name a dataset"))),
    }
}

fn number(expr: &Expr) -> Result<usize> {
    let digits = match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => digits.to_string(),
            other => other.to_string(),
        },
        other => other.to_string(),
    };
    match digits.parse() {
        Ok(limit @ 1..=MAX_LIMIT) => Ok(limit),
        _ => Err(usage(format!("the limit is a whole number in 1..={MAX_LIMIT}, not {digits}"))),
    }
}
