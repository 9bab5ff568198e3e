//! How large a column's expression becomes when everything that it is made of is written out.
//!
//! The optimizer moves conditions below the projections that they stand on, and puts each column's expression in its place. Forty
//! subqueries that each use the column before twice are short to write, and 2^40 terms there.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result as DfResult};
use datafusion::logical_expr::{Expr, LogicalPlan};
use forebay_core::{Error, Kind, Result};

use crate::functions::capped::creates;
use crate::guard::{from_error, to_error};

/// Terms of one expression, written out.
const LIMIT: u64 = 100_000;
/// Bytes of a constant that count as one term.
const BYTES: u64 = 256;
/// Terms that a call counts whose result is large where its arguments are small.
const CREATED: u64 = 2_000;

/// Refuses a plan with an expression that would grow beyond the limit.
pub(super) fn check_weight(plan: &LogicalPlan) -> Result<()> {
    columns(plan).map(drop).map_err(to_error)
}

/// The terms behind each column of a plan's answer.
fn columns(plan: &LogicalPlan) -> DfResult<Vec<u64>> {
    let mut inputs = Vec::new();
    let mut schema = DFSchema::empty();
    for input in plan.inputs() {
        inputs.extend(columns(input)?);
        schema = schema.join(input.schema()).unwrap_or(schema);
    }
    let heaviest = inputs.iter().copied().max().unwrap_or(0);
    let mut expressions = Vec::new();
    plan.apply_expressions(|expr| {
        expressions.push(weight(expr, &schema, &inputs, heaviest)?);
        Ok(TreeNodeRecursion::Continue)
    })?;
    let wanted = plan.schema().fields().len();
    Ok(match plan {
        LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) if expressions.len() == wanted => expressions,
        LogicalPlan::Window(_) if inputs.len() + expressions.len() == wanted => [inputs, expressions].concat(),
        // Columns as they come, and from above where they are told apart otherwise.
        _ if inputs.len() == wanted && plan.inputs().len() == 1 => inputs,
        LogicalPlan::Join(_) if inputs.len() == wanted => inputs,
        _ => vec![heaviest.max(expressions.into_iter().max().unwrap_or(0)); wanted],
    })
}

fn weight(expr: &Expr, schema: &DFSchema, inputs: &[u64], heaviest: u64) -> DfResult<u64> {
    let mut terms = 0u64;
    expr.apply(|expr| {
        let more = match expr {
            Expr::Column(column) => schema.maybe_index_of_column(column).and_then(|i| inputs.get(i).copied()).unwrap_or(heaviest).max(1),
            Expr::ScalarSubquery(query) => columns(&query.subquery)?.into_iter().max().unwrap_or(1),
            Expr::Exists(exists) => columns(&exists.subquery.subquery)?.into_iter().max().unwrap_or(1),
            Expr::InSubquery(within) => columns(&within.subquery.subquery)?.into_iter().max().unwrap_or(1),
            // Copied wherever the expression is: so many bytes count as a term, as does what a call may make.
            Expr::Literal(value, _) => 1 + value.size() as u64 / BYTES,
            Expr::ScalarFunction(call) if creates(call.func.name()) => CREATED,
            _ => 1,
        };
        terms = terms.saturating_add(more);
        if terms > LIMIT {
            return Err(from_error(
                Error::new(Kind::ResourceExhausted, format!("an expression has over {LIMIT} terms when its subqueries are written out"))
                    .with_remedy("use a column of a subquery less often in the next one"),
            ));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(terms)
}
