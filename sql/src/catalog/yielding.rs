//! Joins that give way.
//!
//! A join can answer with a billion rows out of two batches. DataFusion lets scans and exchanges give way to other tasks, counting what they read, so a
//! join that reads no more keeps its thread: deadlines and cancelling, which wait for the task to give way, don't reach it. Counting what joins give out
//! ends that.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec};

/// Wraps each join, after every other rule.
#[derive(Debug)]
pub(crate) struct YieldingJoins;

impl PhysicalOptimizerRule for YieldingJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            Ok(if is_join(node.as_ref()) { Transformed::yes(Arc::new(CooperativeExec::new(node)) as _) } else { Transformed::no(node) })
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "yielding_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn is_join(node: &dyn ExecutionPlan) -> bool {
    node.is::<CrossJoinExec>()
        || node.is::<HashJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<PiecewiseMergeJoinExec>()
        || node.is::<SortMergeJoinExec>()
}
