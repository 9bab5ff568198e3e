//! Steps behind the cut: each batch's rows are made when the batch is about to be sent, a few batches at once.
//!
//! Owns: how far making runs ahead of sending. A window holds stored rows only, so that steps that multiply bytes (decoding, say) cost memory for a
//! few batches and not for a window.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use forebay_core::ids::BatchId;
use forebay_core::{Error, Result};
use tokio_util::task::AbortOnDropHandle;

use super::Reader;
use super::pass::PassPlan;
use super::served::Served;
use super::window::WindowData;

/// Batches of one stream that are being made or wait to be sent.
const AHEAD: usize = 4;

/// The batches of one stream's block that are being made, in order.
#[derive(Debug, Default)]
pub(crate) struct Making {
    queue: VecDeque<(BatchId, AbortOnDropHandle<Result<RecordBatch>>)>,
}

/// What making needs of a window.
#[derive(Debug, Clone)]
pub(crate) struct MakingOf {
    pub(crate) pass: Arc<PassPlan>,
    pub(crate) served: Arc<Served>,
    pub(crate) data: Arc<WindowData>,
    pub(crate) reader: Arc<Reader>,
}

impl Making {
    /// The first of `batches` as the consumer gets it; those behind it are begun. All are of one window.
    pub(crate) async fn first(&mut self, from: &MakingOf, batches: Range<u64>) -> Result<RecordBatch> {
        while self.queue.front().is_some_and(|(id, _)| id.0 != batches.start) {
            self.queue.pop_front();
        }
        let begun = self.queue.back().map_or(batches.start, |(id, _)| id.0 + 1);
        for batch in (begun..batches.end).take(AHEAD.saturating_sub(self.queue.len())).map(BatchId) {
            let made = make(from.clone(), batch);
            self.queue.push_back((batch, AbortOnDropHandle::new(tokio::spawn(made))));
        }
        let Some((_, made)) = self.queue.front_mut() else { return Err(Error::internal("an empty block of batches")) };
        let made = made.await.map_err(|e| Error::internal(format!("the steps behind the cut failed: {e}")))?;
        self.queue.pop_front();
        made
    }
}

async fn make(from: MakingOf, batch: BatchId) -> Result<RecordBatch> {
    let MakingOf { reader, data, pass, served } = &from;
    let rows = pass.plan.batch_rows(batch);
    reader.loader.made(data, pass, served, rows, compute(from.clone(), batch)).await
}

async fn compute(from: MakingOf, batch: BatchId) -> Result<RecordBatch> {
    let _slot = Arc::clone(&from.reader.making).acquire_owned().await.map_err(|_| Error::internal("making rows is over"))?;
    let runtime = tokio::runtime::Handle::current();
    // Steps compute, so they keep off the threads that move messages.
    let made = tokio::task::spawn_blocking(move || {
        let found = from.data.batch(batch, from.pass.plan.batch_rows(batch))?;
        let chunks: Vec<&RecordBatch> = from.data.chunks.iter().collect();
        let rows: Vec<(usize, usize)> = found.rows.iter().map(|(chunk, row)| (*chunk as usize, *row as usize)).collect();
        let stored = interleave_record_batch(&chunks, &rows).map_err(|e| Error::internal(format!("taking a batch's rows: {e}")))?;
        let settings = from.pass.plan.settings();
        runtime.block_on(from.served.make(settings.seed, settings.pass, stored))
    });
    made.await.map_err(|e| Error::internal(format!("the steps behind the cut failed: {e}")))?
}
