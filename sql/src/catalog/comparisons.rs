//! Comparisons with ALL or ANY rows of a subquery.
//!
//! The planner moves the compared value into the subquery under the name that it has outside. Where the subquery has a column of that name, the
//! value is taken for the subquery's own, and the answer is wrong: such a comparison is refused.

use std::collections::HashSet;

use datafusion::common::TableReference;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use forebay_core::{Error, Result};

use crate::guard::{from_error, to_error};

/// Refuses comparisons whose value would be mistaken for a column of the subquery.
pub(super) fn check_comparisons(plan: &LogicalPlan) -> Result<()> {
    let checked = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::SetComparison(comparison) = expr {
                    let own = relations(&comparison.subquery.subquery).map_err(from_error)?;
                    let shared =
                        comparison.expr.column_refs().into_iter().filter_map(|column| column.relation.clone()).find(|r| own.contains(r));
                    if let Some(relation) = shared {
                        return Err(from_error(mistaken(&relation)));
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    checked.map(drop).map_err(to_error)
}

/// The names by which a subquery calls its columns. What lies behind an alias can't be mistaken.
fn relations(plan: &LogicalPlan) -> Result<HashSet<TableReference>> {
    let mut names = HashSet::new();
    plan.apply(|node| {
        names.extend(node.schema().iter().filter_map(|(relation, _)| relation.cloned()));
        Ok(if matches!(node, LogicalPlan::SubqueryAlias(_)) { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    })
    .map_err(to_error)?;
    Ok(names)
}

fn mistaken(relation: &TableReference) -> Error {
    Error::unsupported(format!("a comparison with ALL or ANY rows of a subquery that reads `{relation}` too"))
        .with_remedy(format!("give it another name in the subquery: FROM {relation} AS other"))
}
