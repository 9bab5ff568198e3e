//! A query and what it is asked with.

use std::time::Duration;

use arrow::record_batch::RecordBatch;

/// One query. Its own limits only tighten those of the catalog.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub sql: String,
    /// Values of the parameters `$1`, `$2`, ... or `?` in order: the columns of one row.
    pub parameters: Option<RecordBatch>,
    /// Where tables without a schema are looked for; `public` by default.
    pub schema: Option<String>,
    /// Wall-clock time.
    pub deadline: Option<Duration>,
    /// Rows of the answer.
    pub rows: Option<u64>,
}

impl Request {
    /// A query as it stands.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), ..Self::default() }
    }
}
