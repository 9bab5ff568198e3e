//! Clauses that the parser reads and the planner passes over: a query that has one would be answered as if it were not there.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement, TableFactor, Visit, Visitor};
use forebay_core::{Error, Result};

/// Refuses a statement that has such a clause, by the clause's name.
pub(super) fn check_clauses(statement: &Statement) -> Result<()> {
    match statement.visit(&mut Finder) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break((clause, remedy)) => Err(Error::unsupported(format!("{clause} in a query")).with_remedy(remedy)),
    }
}

struct Finder;

type Found = (&'static str, &'static str);

const LEAVE: &str = "leave it out";

impl Visitor for Finder {
    type Break = Found;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Found> {
        let found = [
            (!query.locks.is_empty(), ("FOR UPDATE", "leave it out: queries change nothing")),
            (query.for_clause.is_some(), ("FOR XML, JSON or BROWSE", LEAVE)),
            (query.settings.is_some(), ("SETTINGS", "leave it out: limits are settings of the server")),
            (query.format_clause.is_some(), ("FORMAT", "choose a format where the answer is written")),
        ];
        first(&found)?;
        in_body(&query.body)
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Found> {
        const SAMPLE: Found = ("TABLESAMPLE", "write a condition, such as `_id % 10 = 0`");
        match table {
            TableFactor::Table { sample, partitions, with_hints, index_hints, version, .. } => first(&[
                (sample.is_some(), SAMPLE),
                (!partitions.is_empty(), ("PARTITION", "write a condition on `epoch`")),
                (!with_hints.is_empty() || !index_hints.is_empty(), ("a table hint", LEAVE)),
                (version.is_some(), ("a table's version in this form", "write \"name@v3\"")),
            ]),
            TableFactor::Derived { sample, .. } => first(&[(sample.is_some(), SAMPLE)]),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn in_body(body: &SetExpr) -> ControlFlow<Found> {
    match body {
        SetExpr::Select(select) => first(&[
            (select.prewhere.is_some(), ("PREWHERE", "write WHERE")),
            (!select.connect_by.is_empty(), ("CONNECT BY", "write WITH RECURSIVE")),
            (!select.lateral_views.is_empty(), ("LATERAL VIEW", "write unnest(...)")),
            (!select.cluster_by.is_empty(), ("CLUSTER BY", LEAVE)),
            (!select.distribute_by.is_empty(), ("DISTRIBUTE BY", LEAVE)),
            (!select.sort_by.is_empty(), ("SORT BY", "write ORDER BY")),
        ]),
        SetExpr::SetOperation { left, right, .. } => {
            in_body(left)?;
            in_body(right)
        }
        _ => ControlFlow::Continue(()),
    }
}

fn first(found: &[(bool, Found)]) -> ControlFlow<Found> {
    match found.iter().find(|(is, _)| *is) {
        Some((_, clause)) => ControlFlow::Break(*clause),
        None => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use forebay_core::Kind;

    use super::super::parse;

    #[test]
    fn clauses_that_would_be_passed_over_are_refused_by_name() {
        for (sql, name) in [
            ("SELECT k FROM a TABLESAMPLE (10)", "TABLESAMPLE"),
            ("SELECT count(*) FROM (SELECT k FROM a TABLESAMPLE (10 ROWS)) AS q", "TABLESAMPLE"),
            ("SELECT k FROM a PREWHERE k = 3", "PREWHERE"),
            ("SELECT 1 UNION ALL SELECT k FROM a PREWHERE k = 3", "PREWHERE"),
            ("WITH q AS (SELECT k FROM a PREWHERE k = 3) SELECT * FROM q", "PREWHERE"),
            ("SELECT k FROM a PARTITION (p0)", "PARTITION"),
            ("SELECT k FROM a SETTINGS max_threads = 1", "SETTINGS"),
            ("SELECT k FROM a FOR UPDATE", "FOR UPDATE"),
            ("SELECT k FROM a WITH (NOLOCK)", "hint"),
            ("SELECT k FROM a WHERE k IN (SELECT k FROM a SORT BY k)", "SORT BY"),
            ("EXPLAIN SELECT k FROM a TABLESAMPLE (10)", "TABLESAMPLE"),
        ] {
            let error = parse(sql).unwrap_err();
            assert!(error.kind == Kind::Unsupported && error.message.contains(name), "{sql}: {error}");
        }
        for sql in
            ["SELECT k FROM a WHERE k > 3 ORDER BY k LIMIT 3", "SELECT DISTINCT k, sum(x) OVER (PARTITION BY k) FROM a", "EXPLAIN SELECT 1"]
        {
            parse(sql).unwrap();
        }
    }
}
