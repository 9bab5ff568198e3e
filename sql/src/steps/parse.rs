//! The text of a SQL step as one row-local SELECT.
//!
//! Owns: refusing what can't be row-local while it still has the name that the user gave it, and marking random calls: the `n`-th random
//! call of a step, in textual order, gets the hidden argument `__draw(n)`. Must not know: types, plans.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::parser::{DFParserBuilder, Statement as DfStatement};
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, GroupByExpr, Ident, ObjectName, Query, Select,
    SetExpr, Statement, TableFactor, Value, VisitMut, VisitorMut,
};
use forebay_core::{Error, Result};

use super::INPUT;
use crate::functions::is_random;
use crate::functions::random::DRAW;
use crate::guard::{TextLimits, check_text, to_error};

/// Generous for what people write, small enough for any stack.
const LIMITS: TextLimits = TextLimits { bytes: 256 << 10, operators: 2_000 };

/// A step's statement with marked random calls.
#[derive(Debug, Clone)]
pub(super) struct ParsedStep {
    pub statement: Statement,
    /// Bounds how deep its expressions are nested.
    pub operators: usize,
    /// Whether it makes large values out of small ones.
    pub decodes: bool,
}

/// Parses and checks one step. Errors name the construct and carry DataFusion's position.
pub(super) fn parse(sql: &str) -> Result<ParsedStep> {
    let operators = check_text(sql, LIMITS)?;
    let mut statements = DFParserBuilder::new(sql).build().and_then(|mut p| p.parse_statements()).map_err(to_error)?;
    let (Some(statement), true) = (statements.pop_front(), statements.is_empty()) else {
        return Err(Error::bad_input("a step is exactly one SELECT").with_remedy("split it into several steps"));
    };
    let mut query = match statement {
        DfStatement::Statement(inner) => match *inner {
            Statement::Query(query) => query,
            other => return Err(not_select(&other.to_string())),
        },
        other => return Err(not_select(&other.to_string())),
    };
    let mut marker = Marker::default();
    match VisitMut::visit(query.as_mut(), &mut marker) {
        ControlFlow::Break(error) => Err(*error),
        ControlFlow::Continue(()) => Ok(ParsedStep { statement: Statement::Query(query), operators, decodes: marker.decodes }),
    }
}

fn not_select(text: &str) -> Error {
    let word = text.split_whitespace().next().unwrap_or("nothing").to_uppercase();
    Error::bad_input(format!("a step is one SELECT over `{INPUT}`, not {word}"))
}

/// The refusal of everything that needs other rows.
pub(super) fn not_row_local(construct: &str) -> Error {
    Error::bad_input(format!("{construct} needs other rows, and a step sees one row at a time (it may project, filter and unnest)"))
        .with_remedy("do it in `[source] sql`, before the steps")
}

/// Refuses constructs, and marks random calls from left to right.
#[derive(Default)]
struct Marker {
    tables: HashSet<String>,
    lambdas: usize,
    decodes: bool,
    calls: u32,
    /// Ordinals of the random calls that the walk is inside of.
    open: Vec<u32>,
}

type Walk = ControlFlow<Box<Error>>;

fn refuse(error: Error) -> Walk {
    ControlFlow::Break(Box::new(error))
}

fn normal(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// A function's name if it has just one part.
fn function_name(function: &Function) -> Option<String> {
    match function.name.0.as_slice() {
        [part] => part.as_ident().map(|i| i.value.to_lowercase()),
        _ => None,
    }
}

impl Marker {
    fn query(&mut self, query: &Query) -> Result<()> {
        if let Some(with) = &query.with {
            if with.recursive {
                return Err(not_row_local("WITH RECURSIVE"));
            }
            self.tables.extend(with.cte_tables.iter().map(|c| normal(&c.alias.name)));
        }
        let found = [
            (query.order_by.is_some(), "ORDER BY"),
            (query.limit_clause.is_some(), "LIMIT"),
            (query.fetch.is_some(), "FETCH"),
            (!query.pipe_operators.is_empty(), "a pipe operator"),
            (!query.locks.is_empty(), "FOR UPDATE"),
        ];
        if let Some((_, construct)) = found.iter().find(|(there, _)| *there) {
            return Err(not_row_local(construct));
        }
        match query.body.as_ref() {
            SetExpr::SetOperation { op, .. } => Err(not_row_local(&op.to_string())),
            SetExpr::Values(_) => Err(Error::bad_input(format!("VALUES makes rows out of nothing; a step reads `{INPUT}`"))),
            SetExpr::Select(_) | SetExpr::Query(_) | SetExpr::Table(_) => Ok(()),
            other => Err(not_select(&other.to_string())),
        }
    }

    fn select(select: &Select) -> Result<()> {
        let grouped = match &select.group_by {
            GroupByExpr::All(_) => true,
            GroupByExpr::Expressions(by, modifiers) => !by.is_empty() || !modifiers.is_empty(),
        };
        let found = [
            (select.distinct.is_some(), "DISTINCT"),
            (grouped, "GROUP BY"),
            (select.having.is_some(), "HAVING"),
            (select.qualify.is_some(), "QUALIFY"),
            (!select.named_window.is_empty(), "a window function"),
            (!select.sort_by.is_empty(), "SORT BY"),
            (select.top.is_some(), "TOP"),
        ];
        if let Some((_, construct)) = found.iter().find(|(there, _)| *there) {
            return Err(not_row_local(construct));
        }
        if select.into.is_some() {
            return Err(Error::bad_input("SELECT INTO writes a table; a step only selects"));
        }
        if select.from.is_empty() {
            return Err(Error::bad_input("the SELECT reads nothing").with_remedy(format!("add `FROM {INPUT}`")));
        }
        if select.from.len() > 1 || select.from.iter().any(|f| !f.joins.is_empty()) {
            return Err(not_row_local("a join").with_remedy("do it in `[source] sql`; to unnest a list, select `unnest(column)`"));
        }
        Ok(())
    }

    fn table(&self, table: &TableFactor) -> Result<()> {
        match table {
            TableFactor::Table { name, args: None, sample: None, .. } => self.named(name),
            TableFactor::Table { name, args: Some(_), .. } | TableFactor::Function { name, .. } => {
                Err(Error::bad_input(format!("a step reads only `{INPUT}`, not the table function {name}")))
            }
            TableFactor::Table { .. } => {
                Err(Error::bad_input("TABLESAMPLE is not repeatable").with_remedy("filter with `WHERE random_bool(0.1)`"))
            }
            TableFactor::Derived { lateral: false, sample: None, .. } => Ok(()),
            TableFactor::UNNEST { .. } => {
                Err(Error::bad_input("UNNEST stands in the FROM clause").with_remedy("select `unnest(column) AS name` instead"))
            }
            other => Err(not_row_local(&format!("`{other}` in the FROM clause"))),
        }
    }

    fn named(&self, name: &ObjectName) -> Result<()> {
        let known = match name.0.as_slice() {
            [part] => part.as_ident().map(normal).is_some_and(|n| n == INPUT || self.tables.contains(&n)),
            _ => false,
        };
        if known {
            return Ok(());
        }
        Err(Error::bad_input(format!("a step reads only `{INPUT}` (the step before it), not `{name}`"))
            .with_remedy("other datasets are joined in `[source] sql`"))
    }

    fn expression(&mut self, expr: &Expr) -> Result<()> {
        match expr {
            Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } | Expr::AnyOp { .. } | Expr::AllOp { .. } => {
                Err(not_row_local("a subquery in an expression"))
            }
            Expr::Lambda(_) => {
                self.lambdas += 1;
                Ok(())
            }
            Expr::Function(function) => self.function(function),
            _ => Ok(()),
        }
    }

    fn function(&mut self, function: &Function) -> Result<()> {
        if function.over.is_some() {
            return Err(not_row_local("a window function"));
        }
        let Some(name) = function_name(function) else { return Ok(()) };
        if name.starts_with("__") {
            return Err(Error::bad_input(format!("`{name}` is not a function that a step may call")));
        }
        self.decodes |= name == "image_decode";
        if !is_random(&name) {
            return Ok(());
        }
        if self.lambdas > 0 {
            return Err(Error::bad_input(format!("`{name}` stands in a lambda, where every element would draw the same"))
                .with_remedy("unnest the list in one step and draw in the next"));
        }
        if !matches!(function.args, FunctionArguments::List(_)) {
            return Err(Error::bad_input(format!("`{name}` is called with parentheses")));
        }
        self.open.push(self.calls);
        self.calls += 1;
        Ok(())
    }
}

/// `__draw(ordinal)`, to be completed once the plan says where the key columns are.
fn marker(ordinal: u32) -> FunctionArg {
    let number = Expr::Value(Value::Number(ordinal.to_string(), false).with_empty_span());
    FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(DRAW)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(number))],
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })))
}

impl VisitorMut for Marker {
    type Break = Box<Error>;

    fn pre_visit_query(&mut self, query: &mut Query) -> Walk {
        self.query(query).map_or_else(refuse, ControlFlow::Continue)
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> Walk {
        Self::select(select).map_or_else(refuse, ControlFlow::Continue)
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> Walk {
        self.table(table).map_or_else(refuse, ControlFlow::Continue)
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> Walk {
        self.expression(expr).map_or_else(refuse, ControlFlow::Continue)
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> Walk {
        match expr {
            Expr::Lambda(_) => self.lambdas = self.lambdas.saturating_sub(1),
            Expr::Function(function) if function_name(function).is_some_and(|n| is_random(&n)) => {
                if let (FunctionArguments::List(list), Some(ordinal)) = (&mut function.args, self.open.pop()) {
                    list.args.push(marker(ordinal));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
