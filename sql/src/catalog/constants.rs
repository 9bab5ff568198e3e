//! Constants that are too large to stand in a query.
//!
//! An expression of constants is evaluated while planning, and where its value meets rows it is repeated for each of them, unseen by the memory
//! pool: a list of a megabyte beside a batch of 8,192 rows is eight gigabytes.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use forebay_core::{Error, Kind, Result};

use crate::guard::{from_error, to_error};

/// Bytes of a constant that is repeated for rows.
const REPEATED: usize = 256 << 10;

/// Refuses a plan that repeats a large constant.
pub(super) fn check_constants(plan: &LogicalPlan) -> Result<()> {
    let checked = plan.apply_with_subqueries(|node| {
        // A scan's filters meet all of its rows; nothing else without an input repeats anything.
        let scan = matches!(node, LogicalPlan::TableScan(_));
        let single = !scan && node.inputs().iter().all(|input| input.max_rows().is_some_and(|rows| rows <= 1));
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let size = match expr {
                    Expr::Literal(value, _) => value.size(),
                    _ => 0,
                };
                if size > REPEATED && !single {
                    return Err(from_error(too_large(size)));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    checked.map(drop).map_err(to_error)
}

fn too_large(size: usize) -> Error {
    Error::new(
        Kind::ResourceExhausted,
        format!("a constant of {} KiB would be repeated for every row; the limit is {} KiB", size >> 10, REPEATED >> 10),
    )
    .with_remedy("make it a table: `SELECT unnest(...)` in a subquery, or a dataset")
}
