//! One attempt of one task writes its shards through this.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_core::ids::{Attempt, DatasetName, EpochId, TaskId};
use forebay_core::pipeline::OutputSpec;
use forebay_core::shard::ShardMeta;
use forebay_core::{Error, Result};
use std::time::{SystemTime, UNIX_EPOCH};

use super::blocking;
use super::encode::{Closed, Encoder, Step};
use super::name::{ShardName, shard_path};
use super::upload::{Upload, delete, exists};
use crate::root::Root;
use crate::types::to_stored;

/// How often a taken name is stepped over before that is taken for a fault.
const MAX_GENERATIONS: u32 = 10_000;

/// Turns a task's rows into shards. Rows arrive in key order, `_id`, `_part` (where rows were multiplied) and `_source` first; nothing is
/// visible to anyone until a commit names the shards. No rows give no shards.
pub struct ShardWriter {
    root: Root,
    name: DatasetName,
    next: ShardName,
    /// Taken while a blocking thread encodes; a write that was cancelled there leaves it empty.
    encoder: Option<Encoder>,
    upload: Option<Upload>,
    done: Vec<ShardMeta>,
    rows: u64,
    bytes: u64,
}

impl std::fmt::Debug for ShardWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardWriter").field("name", &self.name).field("next", &self.next).field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl ShardWriter {
    /// `schema` is logical, with the key columns.
    ///
    /// # Errors
    /// Refused column names and types, as [`to_stored`]; a compression level out of range.
    pub fn new(
        root: &Root,
        name: &DatasetName,
        epoch: EpochId,
        task: TaskId,
        attempt: Attempt,
        schema: SchemaRef,
        output: &OutputSpec,
    ) -> Result<Self> {
        let next = ShardName { epoch, task, part: 0, attempt, generation: 0 };
        let encoder = Encoder::new(to_stored(&schema)?, output, next)?;
        let (root, name) = (root.clone(), name.clone());
        Ok(Self { root, name, next, encoder: Some(encoder), upload: None, done: Vec::new(), rows: 0, bytes: 0 })
    }

    /// Rows taken so far.
    pub fn rows_written(&self) -> u64 {
        self.rows
    }

    /// Bytes of Parquet made so far.
    pub fn bytes_written(&self) -> u64 {
        self.bytes
    }

    /// Adds a batch. Encoding happens on a blocking thread, one row group at a time, and each one's bytes are on their way before the next
    /// begins.
    ///
    /// # Errors
    /// Values that can't be stored (column and row named), and failures of the store. After an error only [`ShardWriter::abort`] makes
    /// sense.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = batch.clone();
        let mut step = self.encode(move |encoder| encoder.start(&batch)).await?;
        loop {
            let more = step.more;
            self.rows += step.rows as u64;
            self.take(step).await?;
            if !more {
                return Ok(());
            }
            step = self.encode(Encoder::step).await?;
        }
    }

    /// Closes the last shard. Every shard was read back before its description is given.
    ///
    /// # Errors
    /// Failures of the store, and a shard that isn't there as it was written.
    pub async fn finish(mut self) -> Result<Vec<ShardMeta>> {
        let step = self.encode(Encoder::finish).await?;
        self.take(step).await?;
        Ok(std::mem::take(&mut self.done))
    }

    /// Gives up and removes what was written, as far as that is possible now; vacuum removes the rest.
    pub async fn abort(mut self) {
        if let Some(upload) = self.upload.take() {
            upload.abort().await;
        }
        for shard in std::mem::take(&mut self.done) {
            if let Err(error) = delete(&self.root, &shard_path(&self.name, &shard.path)).await {
                tracing::warn!(%error, shard = shard.path, "an abandoned shard stays behind until vacuum");
            }
        }
    }

    async fn encode(&mut self, work: impl FnOnce(&mut Encoder) -> Result<Step> + Send + 'static) -> Result<Step> {
        let mut encoder =
            self.encoder.take().ok_or_else(|| Error::internal("the shard writer was interrupted in the middle of a write"))?;
        let (encoder, step) = blocking(move || {
            let step = work(&mut encoder);
            Ok((encoder, step))
        })
        .await?;
        self.encoder = Some(encoder);
        step
    }

    async fn take(&mut self, step: Step) -> Result<()> {
        if !step.bytes.is_empty() {
            self.bytes += step.bytes.len() as u64;
            if self.upload.is_none() {
                self.upload = Some(Upload::new(self.root.clone(), self.free_name().await?));
            }
            if let Some(upload) = &mut self.upload {
                upload.push(step.bytes).await?;
            }
        }
        if let Some(closed) = step.closed {
            let upload = self.upload.take().ok_or_else(|| Error::internal("a shard was closed that never began"))?;
            upload.finish().await?;
            self.done.push(self.describe(closed));
            self.next = ShardName { part: self.next.part + 1, generation: 0, ..self.next };
        }
        Ok(())
    }

    /// Shards are never overwritten: a version that was replaced stays readable under the names that it has.
    async fn free_name(&mut self) -> Result<object_store::path::Path> {
        for _ in 0..MAX_GENERATIONS {
            let path = shard_path(&self.name, &self.next.path());
            if !exists(&self.root, &path).await? {
                return Ok(path);
            }
            self.next.generation += 1;
        }
        Err(Error::internal(format!("every name like {} is taken", self.next.path())).with_remedy("run vacuum"))
    }

    fn describe(&self, closed: Closed) -> ShardMeta {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
        ShardMeta {
            path: self.next.path(),
            epoch: self.next.epoch,
            task: self.next.task,
            part: self.next.part,
            attempt: self.next.attempt,
            size: closed.size,
            modified_ms: i64::try_from(now).unwrap_or(i64::MAX),
            row_groups: closed.row_groups,
            staging: None,
            stats: Some(closed.stats),
            index: None,
        }
    }
}
