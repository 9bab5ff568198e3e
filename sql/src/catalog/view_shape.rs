//! Whether a SELECT only chooses rows and columns of one table: then a job can read what it answers.

use std::ops::ControlFlow;

use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, ObjectNamePart, Query, Select, SelectFlavor, SelectItem, SetExpr, Statement, TableFactor, TableWithJoins,
    WildcardAdditionalOptions, visit_expressions, visit_expressions_mut,
};

use super::table::EPOCH;

/// `SELECT columns FROM table WHERE filter`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// `name` or `name@v3`
    pub(super) table: String,
    /// Null for `*`.
    pub(super) columns: Option<Vec<String>>,
    pub(super) filter: Option<String>,
}

/// The shape of a planned SELECT, or why it has none.
pub(super) fn shape_of(statement: &DfStatement, plan: &LogicalPlan) -> Result<Shape, String> {
    let DfStatement::Statement(inner) = statement else { return Err("it is no SELECT".to_owned()) };
    let Statement::Query(query) = inner.as_ref() else { return Err("it is no SELECT".to_owned()) };
    let select = plain_select(query)?;
    let (table, alias) = one_table(&select.from)?;
    let qualifier = alias.unwrap_or_else(|| table.clone());
    let columns = columns(&select.projection, &qualifier, plan)?;
    if columns.as_ref().is_some_and(|names| names.iter().any(|name| name == EPOCH)) {
        return Err("a job has no column `epoch`: each of its batches says its epoch".to_owned());
    }
    if select.selection.as_ref().is_some_and(has_subquery) {
        return Err("its condition has a subquery".to_owned());
    }
    let filter = select.selection.clone().map(|filter| unqualified(filter, &qualifier).to_string());
    Ok(Shape { table, columns, filter })
}

/// The SELECT, if nothing else is in the query: with its columns, table and condition taken out, nothing but the word is left.
fn plain_select(query: &Query) -> Result<&Select, String> {
    let SetExpr::Select(select) = query.body.as_ref() else {
        return Err("it is more than one SELECT".to_owned());
    };
    let (projection, from) = (Vec::new(), Vec::new());
    let bare = Select { projection, from, selection: None, flavor: SelectFlavor::Standard, ..select.as_ref().clone() };
    let rest = Query { body: Box::new(SetExpr::Select(Box::new(bare))), ..query.clone() }.to_string();
    match rest.replacen("SELECT", "", 1).trim() {
        "" => Ok(select.as_ref()),
        more => Err(format!("it has `{more}`")),
    }
}

fn one_table(from: &[TableWithJoins]) -> Result<(String, Option<String>), String> {
    let [TableWithJoins { relation, joins }] = from else { return Err("it reads not one table".to_owned()) };
    if !joins.is_empty() {
        return Err("it joins".to_owned());
    }
    let TableFactor::Table { name, alias, .. } = relation else { return Err(format!("it reads `{relation}`")) };
    let text = relation.to_string();
    let shown = alias.as_ref().map_or_else(|| name.to_string(), |alias| format!("{name} {alias}"));
    if text != shown || alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
        return Err(format!("it reads `{text}`"));
    }
    let parts = parts(name).ok_or_else(|| format!("it reads `{name}`"))?;
    let table = match parts.as_slice() {
        [table] => table,
        [schema, table] if schema == super::resolve::PUBLIC => table,
        [catalog, schema, table] if catalog == super::CATALOG && schema == super::resolve::PUBLIC => table,
        _ => return Err(format!("`{name}` is no dataset")),
    };
    if table.contains('#') {
        return Err("it ranks by `search`; `text_match` in WHERE chooses".to_owned());
    }
    Ok((table.clone(), alias.as_ref().map(|alias| plain(&alias.name))))
}

/// As names are read: lower case unless quoted.
fn plain(ident: &Ident) -> String {
    if ident.quote_style.is_none() { ident.value.to_lowercase() } else { ident.value.clone() }
}

fn parts(name: &ObjectName) -> Option<Vec<String>> {
    name.0.iter().map(|part| if let ObjectNamePart::Identifier(ident) = part { Some(plain(ident)) } else { None }).collect()
}

/// Named columns, as they are; null for all.
fn columns(items: &[SelectItem], qualifier: &str, plan: &LogicalPlan) -> Result<Option<Vec<String>>, String> {
    if let [SelectItem::Wildcard(more) | SelectItem::QualifiedWildcard(_, more)] = items {
        let left = WildcardAdditionalOptions { opt_exclude: None, opt_except: None, ..more.clone() };
        if left.to_string() != WildcardAdditionalOptions::default().to_string() {
            return Err(format!("it changes columns: `*{more}`"));
        }
        if more.opt_exclude.is_none() && more.opt_except.is_none() {
            return Ok(None);
        }
        let names = plan.schema().fields().iter().map(|f| f.name().clone()).filter(|name| name != EPOCH);
        return Ok(Some(names.collect()));
    }
    // `FROM digits` alone.
    if items.is_empty() {
        return Ok(None);
    }
    let column = |item: &SelectItem| -> Result<String, String> {
        let (name, alias) = match item {
            SelectItem::UnnamedExpr(expr) => (column_of(expr, qualifier), None),
            SelectItem::ExprWithAlias { expr, alias } => (column_of(expr, qualifier), Some(plain(alias))),
            _ => (None, None),
        };
        name.filter(|name| alias.as_ref().is_none_or(|alias| alias == name))
            .ok_or_else(|| format!("`{item}` is not a column as it is stored"))
    };
    items.iter().map(column).collect::<Result<Vec<_>, _>>().map(Some)
}

fn column_of(expr: &Expr, qualifier: &str) -> Option<String> {
    match expr {
        Expr::Identifier(ident) => Some(plain(ident)),
        Expr::CompoundIdentifier(parts) => match parts.as_slice() {
            [table, column] if plain(table) == qualifier => Some(plain(column)),
            _ => None,
        },
        _ => None,
    }
}

fn has_subquery(filter: &Expr) -> bool {
    let found = visit_expressions(filter, |expr| match expr {
        Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. } | Expr::AnyOp { .. } | Expr::AllOp { .. } => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// The condition with its columns' names alone: a filter knows no table.
fn unqualified(mut filter: Expr, qualifier: &str) -> Expr {
    let _ = visit_expressions_mut(&mut filter, |expr| {
        if let Expr::CompoundIdentifier(parts) = expr
            && parts.first().is_some_and(|first| plain(first) == qualifier)
        {
            parts.remove(0);
            if let [column] = parts.as_slice() {
                *expr = Expr::Identifier(column.clone());
            }
        }
        ControlFlow::<()>::Continue(())
    });
    filter
}
