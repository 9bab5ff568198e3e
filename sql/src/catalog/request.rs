//! A query and what it is asked with.

use std::collections::BTreeMap;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use forebay_core::ids::VersionId;

/// Versions of datasets, by the names under which a query has them.
pub(super) type Pins = BTreeMap<String, VersionId>;

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
    /// At which versions its datasets are read; the others at their newest.
    pub(super) pins: Pins,
    /// Not held to the catalog's limit on rows.
    pub(super) unlimited: bool,
}

impl Request {
    /// A query as it stands.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), ..Self::default() }
    }
}
