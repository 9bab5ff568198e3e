//! Which shards can hold rows for a filter, from the partition column and the statistics in the Delta log. No file is opened.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use datafusion::physical_plan::PhysicalExpr;
use forebay_core::shard::ShardMeta;
use serde_json::Value;

use super::table::EPOCH;

/// Per shard, whether it may hold rows for which all filters are true. Where that can't be told, it may.
pub(super) fn prune(session: &dyn Session, filters: &[Expr], schema: &SchemaRef, shards: &[ShardMeta]) -> Vec<bool> {
    let every = vec![true; shards.len()];
    let Some(filter) = conjunction(filters.iter().cloned()) else { return every };
    let Ok(names) = DFSchema::try_from(schema.as_ref().clone()) else { return every };
    match session.create_physical_expr(unqualified(filter), &names) {
        Ok(predicate) => prune_with(predicate, schema, shards),
        Err(_) => every,
    }
}

/// As [`prune`], for a predicate that is planned over `schema`.
pub(super) fn prune_with(predicate: Arc<dyn PhysicalExpr>, schema: &SchemaRef, shards: &[ShardMeta]) -> Vec<bool> {
    let statistics = Statistics { schema: schema.clone(), shards, parsed: std::sync::OnceLock::new() };
    let pruning = PruningPredicateBuilder::new().with_file_schema(schema.clone()).build(predicate);
    pruning.and_then(|p| p.prune(&statistics).ok()).unwrap_or_else(|| vec![true; shards.len()])
}

/// Filters arrive with the table's name on their columns, or its alias; the schema here has neither.
fn unqualified(filter: Expr) -> Expr {
    use datafusion::common::tree_node::{Transformed, TreeNode};
    let stripped = filter.clone().transform(|e| {
        Ok(match e {
            Expr::Column(column) => Transformed::yes(Expr::Column(Column::from_name(column.name))),
            other => Transformed::no(other),
        })
    });
    stripped.map_or(filter, |t| t.data)
}

struct Statistics<'a> {
    schema: SchemaRef,
    shards: &'a [ShardMeta],
    /// Each shard's statistics; parsed only when a filter asks for more than the epoch.
    parsed: std::sync::OnceLock<Vec<Option<Value>>>,
}

impl Statistics<'_> {
    fn parsed(&self) -> &[Option<Value>] {
        self.parsed.get_or_init(|| self.shards.iter().map(|s| s.stats.as_deref().and_then(|t| serde_json::from_str(t).ok())).collect())
    }

    fn bound(&self, column: &Column, which: &str) -> Option<ArrayRef> {
        if column.name == EPOCH {
            let epochs = self.shards.iter().map(|s| ScalarValue::Int32(i32::try_from(s.epoch.0).ok()));
            return ScalarValue::iter_to_array(epochs).ok();
        }
        let data_type = self.schema.field_with_name(&column.name).ok()?.data_type();
        // Not floats: their bounds leave out NaN, which DataFusion orders above all.
        if !data_type.is_integer() && *data_type != DataType::Utf8 {
            return None;
        }
        let null = ScalarValue::try_from(data_type).ok()?;
        let bound = |stats: &Option<Value>| {
            let value = stats.as_ref()?.get(which)?.get(&column.name)?;
            let number = value.as_i64().map(|n| n.to_string()).or_else(|| value.as_u64().map(|n| n.to_string()));
            let text = if data_type.is_integer() { number? } else { value.as_str()?.to_owned() };
            ScalarValue::try_from_string(text, data_type).ok()
        };
        ScalarValue::iter_to_array(self.parsed().iter().map(|s| bound(s).unwrap_or_else(|| null.clone()))).ok()
    }
}

impl PruningStatistics for Statistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bound(column, "minValues")
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bound(column, "maxValues")
    }

    fn num_containers(&self) -> usize {
        self.shards.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        if column.name == EPOCH {
            return Some(Arc::new(UInt64Array::from(vec![0; self.shards.len()])));
        }
        let counts = self.parsed().iter().map(|s| s.as_ref()?.get("nullCount")?.get(&column.name)?.as_u64());
        Some(Arc::new(UInt64Array::from_iter(counts)))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(UInt64Array::from_iter_values(self.shards.iter().map(ShardMeta::rows))))
    }

    fn contained(&self, _: &Column, _: &std::collections::HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
