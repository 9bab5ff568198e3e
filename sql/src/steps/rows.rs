//! Row-local plans: what a step's plan may consist of, and how keys travel through it.
//!
//! Owns: the check that a plan only projects, filters and unnests with functions that depend on nothing but their arguments; carrying the
//! key columns through every projection; completing random calls with the row's key. Works on the plan as the planner leaves it, before the
//! optimizer, where every SELECT is one projection and wildcards are spelled out. Must not know: batches, execution.

use std::sync::Arc;

use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, ExprSchemable, Filter, LogicalPlan, Projection, SubqueryAlias, Unnest, Volatility};
use forebay_core::random::call_key;
use forebay_core::{Error, Result};

use super::parse::not_row_local;
use super::{ID, INPUT, KEYS, PART};
use crate::functions::random::{DRAW, EPOCH, SEED};
use crate::guard::{from_error, to_error};

/// What a plan does to the number of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Effect {
    pub drops: bool,
    pub multiplies: bool,
}

/// Which run a plan is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draws<'a> {
    pub seed: u64,
    pub epoch: u32,
    pub step: &'a str,
}

/// Refuses every node and expression that is not row-local. `optimized` plans may also hold a relation that the optimizer found empty.
pub(super) fn check(plan: &LogicalPlan, optimized: bool) -> Result<Effect> {
    let mut effect = Effect::default();
    plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {}
            LogicalPlan::Filter(_) => effect.drops = true,
            // An empty list drops its row.
            LogicalPlan::Unnest(unnest) if !unnest.list_type_columns.is_empty() => {
                effect = Effect { drops: true, multiplies: true };
            }
            LogicalPlan::Unnest(_) => {}
            LogicalPlan::TableScan(scan) if scan.table_name.table() == INPUT => {}
            LogicalPlan::EmptyRelation(empty) if optimized && !empty.produce_one_row => {}
            other => return Err(from_error(refusal(other))),
        }
        node.apply_expressions(|expr| expr.apply(|e| check_expr(e).map(|()| TreeNodeRecursion::Continue).map_err(from_error)))
    })
    .map_err(to_error)?;
    Ok(effect)
}

fn refusal(node: &LogicalPlan) -> Error {
    match node {
        LogicalPlan::Aggregate(_) => not_row_local("an aggregate function"),
        LogicalPlan::Window(_) => not_row_local("a window function"),
        LogicalPlan::Sort(_) => not_row_local("ORDER BY"),
        LogicalPlan::Limit(_) => not_row_local("LIMIT"),
        LogicalPlan::Distinct(_) => not_row_local("DISTINCT"),
        LogicalPlan::Join(_) => not_row_local("a join"),
        LogicalPlan::Union(_) => not_row_local("UNION"),
        LogicalPlan::Subquery(_) => not_row_local("a subquery in an expression"),
        LogicalPlan::RecursiveQuery(_) => not_row_local("WITH RECURSIVE"),
        LogicalPlan::TableScan(scan) => Error::bad_input(format!("a step reads only `{INPUT}`, not `{}`", scan.table_name)),
        LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => {
            Error::bad_input("the SELECT reads nothing").with_remedy(format!("add `FROM {INPUT}`"))
        }
        other => Error::bad_input(format!("a step is one SELECT over `{INPUT}`, not {}", other.display())),
    }
}

fn check_expr(expr: &Expr) -> Result<()> {
    match expr {
        Expr::AggregateFunction(f) => Err(not_row_local(&format!("the aggregate function `{}`", f.func.name()))),
        Expr::WindowFunction(f) => Err(not_row_local(&format!("the window function `{}`", f.fun.name()))),
        Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_) | Expr::OuterReferenceColumn(..) => {
            Err(not_row_local("a subquery in an expression"))
        }
        Expr::Placeholder(p) => Err(Error::bad_input(format!("`{}` stands for a value that a step doesn't have", p.id))),
        Expr::ScalarVariable(_, name) => Err(Error::bad_input(format!("`{}`: a step has no variables", name.join(".")))),
        Expr::ScalarFunction(f) if f.func.signature().volatility != Volatility::Immutable => {
            let remedy = match f.func.name() {
                "random" => "use random_uniform(), whose draws depend on seed, epoch and row",
                "uuid" => "use `_id`, which is unique and stable",
                _ => "a step's rows must be the same whenever and wherever it runs; keep such values in the source",
            };
            Err(Error::bad_input(format!("`{}` gives another value each time", f.func.name())).with_remedy(remedy))
        }
        _ => Ok(()),
    }
}

/// The plan with key columns at every level, draws completed, and `epoch()` and `seed()` as literals. Needs a plan that [`check`] passed.
pub(super) fn carry(plan: LogicalPlan, draws: Draws<'_>) -> Result<LogicalPlan> {
    Ok(Carrier { draws }.plan(plan)?.0)
}

struct Carrier<'a> {
    draws: Draws<'a>,
}

impl Carrier<'_> {
    /// The rewritten plan, and whether rows were multiplied in it.
    fn plan(&self, plan: LogicalPlan) -> Result<(LogicalPlan, bool)> {
        match plan {
            LogicalPlan::Projection(p) => {
                let (input, multiplied) = self.plan(Arc::unwrap_or_clone(p.input))?;
                let mut exprs = Vec::with_capacity(p.expr.len() + KEYS.len());
                for expr in p.expr {
                    exprs.push(self.projected(expr, input.schema(), multiplied)?);
                }
                add_keys(&mut exprs, input.schema())?;
                let projection = Projection::try_new(exprs, Arc::new(input)).map_err(to_error)?;
                Ok((LogicalPlan::Projection(projection), multiplied))
            }
            LogicalPlan::Filter(f) => {
                let (input, multiplied) = self.plan(Arc::unwrap_or_clone(f.input))?;
                let predicate = self.complete(f.predicate, input.schema(), multiplied)?;
                Ok((LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input)).map_err(to_error)?), multiplied))
            }
            LogicalPlan::SubqueryAlias(s) => {
                let (input, multiplied) = self.plan(Arc::unwrap_or_clone(s.input))?;
                Ok((LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(input), s.alias).map_err(to_error)?), multiplied))
            }
            LogicalPlan::Unnest(u) => {
                let (input, multiplied) = self.plan(Arc::unwrap_or_clone(u.input))?;
                let multiplied = multiplied || !u.list_type_columns.is_empty();
                let unnest = Unnest::try_new(Arc::new(input), u.exec_columns, u.options).map_err(to_error)?;
                Ok((LogicalPlan::Unnest(unnest), multiplied))
            }
            scan => Ok((scan, false)),
        }
    }

    /// An expression of a projection under its old name, with the extension type of its branches if it chooses between tensors.
    fn projected(&self, expr: Expr, schema: &DFSchema, multiplied: bool) -> Result<Expr> {
        let name = NamePreserver::new_for_projection().save(&expr);
        let expr = name.restore(self.complete(expr, schema, multiplied)?);
        let Some(extension) = lost_extension(&expr, schema)? else { return Ok(expr) };
        Ok(match expr {
            Expr::Alias(alias) => Expr::Alias(alias.with_metadata(Some(extension))),
            other => {
                let (_, name) = other.qualified_name();
                other.alias_with_metadata(name, Some(extension))
            }
        })
    }

    fn complete(&self, expr: Expr, schema: &DFSchema, multiplied: bool) -> Result<Expr> {
        let completed = expr.transform_up(|e| match e {
            Expr::ScalarFunction(f) if f.func.name() == EPOCH => {
                Ok(Transformed::yes(Expr::Literal(ScalarValue::Int64(Some(i64::from(self.draws.epoch))), None)))
            }
            Expr::ScalarFunction(f) if f.func.name() == SEED => {
                Ok(Transformed::yes(Expr::Literal(ScalarValue::UInt64(Some(self.draws.seed)), None)))
            }
            Expr::ScalarFunction(f) if f.func.name() == DRAW => self.draw(f, schema, multiplied).map(Transformed::yes).map_err(from_error),
            other => Ok(Transformed::no(other)),
        });
        Ok(completed.map_err(to_error)?.data)
    }

    /// `__draw(ordinal)` as `__draw(call, _id[, _part])`.
    fn draw(&self, marked: ScalarFunction, schema: &DFSchema, multiplied: bool) -> Result<Expr> {
        if multiplied {
            return Err(Error::bad_input("a random function stands above `unnest`, where all rows out of one would draw the same")
                .with_remedy("unnest in one step and draw in the next"));
        }
        let ordinal = match marked.args.first() {
            Some(Expr::Literal(value, _)) => {
                u32::try_from(value.clone().cast_to(&arrow::datatypes::DataType::Int64).map_or(-1, |v| match v {
                    ScalarValue::Int64(Some(n)) => n,
                    _ => -1,
                }))
            }
            _ => return Ok(Expr::ScalarFunction(marked)),
        };
        let ordinal = ordinal.map_err(|_| Error::internal("a random call without its number"))?;
        let call = call_key(self.draws.seed, self.draws.epoch, self.draws.step, ordinal);
        let mut args = vec![Expr::Literal(ScalarValue::UInt64(Some(call)), None)];
        args.push(key(schema, ID).ok_or_else(|| Error::internal("a step's input without `_id`"))?);
        args.extend(key(schema, PART));
        Ok(Expr::ScalarFunction(ScalarFunction { func: marked.func, args }))
    }
}

/// The key column of that name, if the schema has it.
fn key(schema: &DFSchema, name: &str) -> Option<Expr> {
    let mut found = schema.columns().into_iter().filter(|c| c.name == name);
    let column = found.next();
    column.filter(|_| found.next().is_none()).map(Expr::Column)
}

/// Appends the key columns that a projection doesn't already pass on, and refuses other expressions under their names.
fn add_keys(exprs: &mut Vec<Expr>, schema: &DFSchema) -> Result<()> {
    for name in KEYS {
        let column = key(schema, name);
        let mut present = false;
        for expr in exprs.iter_mut() {
            let (_, output) = expr.qualified_name();
            if output != name {
                continue;
            }
            let source = match &*expr {
                Expr::Alias(alias) => alias.expr.as_ref(),
                other => other,
            };
            if column.as_ref().is_none_or(|c| !same_column(c, source, schema)) || present {
                return Err(Error::bad_input(format!("a column is named `{name}`, which is a key that is carried along by itself"))
                    .with_remedy("give it another name with AS"));
            }
            present = true;
            if let Some(column) = &column {
                *expr = column.clone();
            }
        }
        if !present {
            exprs.extend(column);
        }
    }
    Ok(())
}

fn same_column(key: &Expr, expr: &Expr, schema: &DFSchema) -> bool {
    let index = |e: &Expr| match e {
        Expr::Column(c) => schema.index_of_column(c).ok(),
        _ => None,
    };
    index(key).is_some() && index(key) == index(expr)
}

/// The extension metadata that an expression's branches share and that the expression itself has lost: CASE and COALESCE between tensors.
fn lost_extension(expr: &Expr, schema: &DFSchema) -> Result<Option<FieldMetadata>> {
    let (_, field) = expr.to_field(schema).map_err(to_error)?;
    if field.metadata().contains_key(EXTENSION_NAME) {
        return Ok(None);
    }
    let inner = match expr {
        Expr::Alias(alias) => alias.expr.as_ref(),
        other => other,
    };
    let branches: Vec<&Expr> = match inner {
        Expr::Case(case) => {
            let thens = case.when_then_expr.iter().map(|(_, then)| then.as_ref());
            thens.chain(case.else_expr.as_deref()).collect()
        }
        Expr::ScalarFunction(f) if matches!(f.func.name(), "coalesce" | "nvl" | "nvl2" | "nullif") => f.args.iter().collect(),
        _ => return Ok(None),
    };
    let mut shared: Option<FieldMetadata> = None;
    for branch in branches {
        if matches!(branch, Expr::Literal(value, _) if value.is_null()) {
            continue;
        }
        let (_, of_branch) = branch.to_field(schema).map_err(to_error)?;
        if of_branch.data_type() != field.data_type() || !of_branch.metadata().contains_key(EXTENSION_NAME) {
            return Ok(None);
        }
        let metadata = FieldMetadata::from(of_branch.as_ref());
        match &shared {
            Some(other) if *other != metadata => return Ok(None),
            _ => shared = Some(metadata),
        }
    }
    Ok(shared)
}

const EXTENSION_NAME: &str = "ARROW:extension:name";
