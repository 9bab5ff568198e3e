//! The ledger: visits that are closed, as Parquet files under the job's folder, so that the journal can forget them.
//!
//! Owns: the files' names, schema and bounds. Must not know: when a visit closes, or which files count: the journal names those, and a file that
//! nothing names (a crash came between) is ignored by [`read_files`].

use arrow::array::{ArrayRef, BooleanArray, Int32Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use forebay_core::ids::{BatchId, EpochId, Incarnation, JobName, PassId};
use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, LazyLock};

use crate::artifact::{self, Of};
use crate::root::Root;

/// Most rows of one file (about 3 MB); [`append_all`] cuts longer lists.
pub const MAX_FILE_ROWS: usize = 1 << 17;
const FOLDER: &str = "ledger";

/// What became of one batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisitRow {
    pub incarnation: Incarnation,
    pub pass: PassId,
    pub epoch: EpochId,
    pub batch: BatchId,
    /// The rank's or round's step, where it has one.
    pub step: Option<u64>,
    pub consumer: Option<String>,
    pub worker: Option<String>,
    /// `acknowledged`, `lost` or `dropped`.
    pub state: String,
    pub rows: u64,
    pub committed: bool,
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Why it was lost or dropped.
    pub reason: Option<String>,
    /// Digest of the batch's row keys, where its consumer reported it.
    pub digest: Option<u64>,
}

static VISITS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let field = Field::new;
    Arc::new(Schema::new(vec![
        field("job", DataType::Utf8, false),
        field("incarnation", DataType::UInt32, false),
        field("pass", DataType::UInt32, false),
        field("epoch", DataType::Int32, false),
        field("batch", DataType::UInt64, false),
        field("step", DataType::UInt64, true),
        field("consumer", DataType::Utf8, true),
        field("worker", DataType::Utf8, true),
        field("state", DataType::Utf8, false),
        field("rows", DataType::UInt64, false),
        field("committed", DataType::Boolean, false),
        field("at", DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())), false),
        field("reason", DataType::Utf8, true),
        field("digest", DataType::UInt64, true),
    ]))
});

/// Columns of the ledger's batches and of `system.visits` in order, then `reason` (for `system.losses`) and `digest`.
pub fn visits_schema() -> SchemaRef {
    VISITS.clone()
}

/// Visits as a batch of [`visits_schema`]: open ones are shown beside the ledger's in the same form.
pub fn visits_batch(job: &JobName, rows: &[VisitRow]) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| job.as_str()))),
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|r| r.incarnation.0))),
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|r| r.pass.0))),
        Arc::new(Int32Array::from_iter_values(rows.iter().map(|r| r.epoch.0.cast_signed()))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.batch.0))),
        Arc::new(rows.iter().map(|r| r.step).collect::<UInt64Array>()),
        Arc::new(rows.iter().map(|r| r.consumer.as_deref()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|r| r.worker.as_deref()).collect::<StringArray>()),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.state))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.rows))),
        Arc::new(rows.iter().map(|r| Some(r.committed)).collect::<BooleanArray>()),
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|r| r.at_ms)).with_timezone("UTC")),
        Arc::new(rows.iter().map(|r| r.reason.as_deref()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|r| r.digest).collect::<UInt64Array>()),
    ];
    RecordBatch::try_new(visits_schema(), columns).map_err(|e| Error::internal(format!("ledger: {e}")))
}

/// Writes one file and returns its name, for the journal entry that forgets these visits to name. The name is made of the content, so a retry
/// after a crash writes the same file again. At most [`MAX_FILE_ROWS`] rows.
pub async fn append(root: &Root, job: &JobName, rows: Vec<VisitRow>) -> Result<String> {
    if rows.len() > MAX_FILE_ROWS {
        let message = format!("{} visits are too many for one ledger file; the most is {MAX_FILE_ROWS}", rows.len());
        return Err(Error::new(Kind::ResourceExhausted, message));
    }
    let Some(first) = rows.first() else { return Err(Error::bad_input("a ledger file needs at least one visit")) };
    let at = format!("{:06}-{:06}-{:012}", first.incarnation.0, first.pass.0, first.batch.0);
    let bytes = artifact::to_parquet(&visits_batch(job, &rows)?)?;
    let name = format!("{FOLDER}/{at}-{}.parquet", &blake3::hash(&bytes).to_hex()[..16]);
    artifact::put_bytes(root, Of::Job(job), &name, bytes).await?;
    Ok(name)
}

/// [`append`] for any number of visits: as many files as it takes, named in order.
pub async fn append_all(root: &Root, job: &JobName, mut rows: Vec<VisitRow>) -> Result<Vec<String>> {
    let mut names = Vec::new();
    while !rows.is_empty() {
        let rest = rows.split_off(rows.len().min(MAX_FILE_ROWS));
        names.push(append(root, job, std::mem::replace(&mut rows, rest)).await?);
    }
    Ok(names)
}

/// Reads the named files in the order given. A missing one is `Corrupt`: the journal says that it was written.
pub async fn read_files(root: &Root, job: &JobName, names: &[String]) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    for name in names {
        let bytes = artifact::get_bytes(root, Of::Job(job), name).await?;
        let bytes = bytes.ok_or_else(|| Error::corrupt(format!("the ledger file `jobs/{job}/{name}` is missing")))?;
        batches.extend(artifact::from_parquet(bytes).map_err(|e| e.context(format!("jobs/{job}/{name}")))?);
    }
    Ok(batches)
}

/// Reads every file of the job's ledger, also such as nothing names (yet).
pub async fn read(root: &Root, job: &JobName) -> Result<Vec<RecordBatch>> {
    let names = artifact::list(root, Of::Job(job), FOLDER).await?;
    read_files(root, job, &names).await
}

#[cfg(test)]
mod tests;
