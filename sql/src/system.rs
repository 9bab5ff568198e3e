//! The tables of schema `system`, seen from SQL.

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use forebay_core::Result;

/// What fills `system.*`: jobs, visits, workers and the like are known to others; SQL only asks for them, a whole table at a time.
#[async_trait]
pub trait SystemTables: Send + Sync + 'static {
    /// Names without `system.`, with their columns. Constant while the process runs.
    fn tables(&self) -> Vec<(&'static str, SchemaRef)>;

    /// The rows of one table as they are now. Batches have the table's columns.
    async fn scan(&self, table: &str) -> Result<Vec<RecordBatch>>;
}

/// No system tables: for one-off queries without a server around.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSystemTables;

#[async_trait]
impl SystemTables for NoSystemTables {
    fn tables(&self) -> Vec<(&'static str, SchemaRef)> {
        Vec::new()
    }

    async fn scan(&self, table: &str) -> Result<Vec<RecordBatch>> {
        Err(forebay_core::Error::not_found(format!("there is no table `system.{table}`")))
    }
}
