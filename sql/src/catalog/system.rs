//! A system table as a table of a query.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::{StreamExt, TryStreamExt, stream};

use crate::guard::from_error;
use crate::system::SystemTables;

/// Asked for its rows when the query runs, not when it is planned.
pub(super) struct SystemTable {
    from: Arc<dyn SystemTables>,
    name: &'static str,
    schema: SchemaRef,
}

impl SystemTable {
    pub(super) fn new(from: Arc<dyn SystemTables>, name: &'static str, schema: SchemaRef) -> Self {
        Self { from, name, schema }
    }
}

impl fmt::Debug for SystemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "system.{}", self.name)
    }
}

#[async_trait]
impl TableProvider for SystemTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let rows: Arc<dyn PartitionStream> = Arc::new(Self { from: self.from.clone(), name: self.name, schema: self.schema.clone() });
        Ok(Arc::new(StreamingTableExec::try_new(self.schema.clone(), vec![rows], projection, None, false, limit)?))
    }
}

impl PartitionStream for SystemTable {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (from, name) = (self.from.clone(), self.name);
        let rows = stream::once(async move { from.scan(name).await.map_err(from_error) })
            .map_ok(|batches| stream::iter(batches).map(Ok))
            .try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows))
    }
}
