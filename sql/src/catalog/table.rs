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
use super::text_match::TextTest;
use super::text_rows::TextRows;
use crate::text::{TOKENIZER_KEY, TextIndexes};

/// The partition column, as the Delta schema has it (`integer`).
pub(super) const EPOCH: &str = "epoch";

/// `epoch`, then the stored columns in their logical types.
pub(super) struct DatasetTable {
    root: Root,
    version: Arc<DatasetVersion>,
    schema: SchemaRef,
    indexes: TextIndexes,
}

impl fmt::Debug for DatasetTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@v{}", self.version.name, self.version.version)
    }
}

/// A version's columns as SQL sees them.
pub(super) fn sql_schema(version: &DatasetVersion) -> SchemaRef {
    let texts = version.text_columns();
    let mut fields = vec![Arc::new(Field::new(EPOCH, DataType::Int32, false))];
    fields.extend(version.schema.fields().iter().map(|field| match texts.get(field.name()) {
        None => field.clone(),
        // What `text_match` needs to know of a column.
        Some(tokenizer) => {
            let mut said = field.metadata().clone();
            said.insert(TOKENIZER_KEY.to_owned(), tokenizer.to_string());
            Arc::new(field.as_ref().clone().with_metadata(said))
        }
    }));
    Arc::new(Schema::new(fields))
}

impl DatasetTable {
    pub(super) fn new(root: Root, version: Arc<DatasetVersion>, indexes: TextIndexes) -> Self {
        let schema = sql_schema(&version);
        Self { root, version, schema, indexes }
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
        // Filters choose shards; the rows of those are filtered above the scan, but for text, which indexes answer row by row.
        let answer = |filter: &&Expr| match TextTest::of(filter, &self.schema) {
            Some(_) => TableProviderFilterPushDown::Exact,
            None => TableProviderFilterPushDown::Inexact,
        };
        Ok(filters.iter().map(answer).collect())
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
        let test = TextTest::all(filters.iter().filter_map(|f| TextTest::of(f, &self.schema)).collect());
        let text = test.map(|test| Arc::new(TextRows::new(self.root.clone(), self.version.clone(), self.indexes.clone(), test)));
        let scan = RowGroupScan::new(self.root.clone(), self.version.clone(), schema, groups, all, partitions);
        Ok(Arc::new(scan.with_text(text)))
    }
}
