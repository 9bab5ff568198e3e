//! A dataset at one version as a table.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result as DfResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use forebay_storage::delta::DatasetVersion;
use forebay_storage::root::Root;

use super::prune::prune;
use super::scan::{Group, RowGroupScan};

/// The partition column, as the Delta schema has it (`integer`).
pub(super) const EPOCH: &str = "epoch";

/// `epoch`, then the stored columns in their logical types.
pub(super) struct DatasetTable {
    root: Root,
    version: Arc<DatasetVersion>,
    schema: SchemaRef,
}

impl fmt::Debug for DatasetTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@v{}", self.version.name, self.version.version)
    }
}

/// A version's columns as SQL sees them.
pub(super) fn sql_schema(version: &DatasetVersion) -> SchemaRef {
    let mut fields = vec![Arc::new(Field::new(EPOCH, DataType::Int32, false))];
    fields.extend(version.schema.fields().iter().cloned());
    Arc::new(Schema::new(fields))
}

impl DatasetTable {
    pub(super) fn new(root: Root, version: Arc<DatasetVersion>) -> Self {
        let schema = sql_schema(&version);
        Self { root, version, schema }
    }

    /// The row groups of the shards that may hold rows for the filters, in storage order.
    fn groups(&self, keep: &[bool], limit: Option<usize>) -> Vec<Group> {
        let mut groups = Vec::new();
        let mut left = limit.map_or(u64::MAX, |limit| limit as u64);
        for (shard, meta) in self.version.shards.iter().enumerate().filter(|(i, _)| keep.get(*i).copied().unwrap_or(true)) {
            for (row_group, group) in meta.row_groups.iter().enumerate() {
                if left == 0 {
                    return groups;
                }
                left = left.saturating_sub(group.rows);
                groups.push(Group { shard, row_group, epoch: meta.epoch, rows: group.rows, bytes: group.bytes });
            }
        }
        groups
    }
}

#[async_trait]
impl TableProvider for DatasetTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DfResult<Vec<TableProviderFilterPushDown>> {
        // Filters choose shards; the rows of those are filtered above the scan.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => self.schema.clone(),
        };
        let keep = prune(session, filters, &self.schema, &self.version.shards);
        let all: usize = self.version.shards.iter().map(|s| s.row_groups.len()).sum();
        let groups = self.groups(&keep, limit.filter(|_| filters.is_empty()));
        let partitions = session.config().target_partitions();
        Ok(Arc::new(RowGroupScan::new(self.root.clone(), self.version.clone(), schema, groups, all, partitions)))
    }
}
