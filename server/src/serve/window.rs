//! A window in memory: its row groups, read concurrently and shared, and the order of its rows.
//!
//! Owns: reading what a plan's window needs, and finding a batch's rows and digest in it. Must not know: who gets the batch, what steps make of it. The same plan identity and batch index give the same rows from any worker, cold or cached (I7).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arrow::array::{Array as _, RecordBatch};
use forebay_core::digest::batch_digest;
use forebay_core::ids::{BatchId, PassId, VersionId, WindowId};
use forebay_core::plan::{Piece, Plan};
use forebay_core::{Error, Result};
use forebay_storage::root::Root;
use forebay_storage::shard::read_row_group;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use super::cache::{Admission, Cache, Limits, Pins, Usage};
use super::kept::Kept;
use super::pass::PassPlan;
use super::served::{Keys, Served};
use crate::metrics::Metrics;

#[cfg(test)]
#[path = "window_tests.rs"]
pub(super) mod tests;

/// Bytes that a row's place in the window costs.
const PLACE_BYTES: u64 = size_of::<(u32, u32)>() as u64;

/// Names a decoded row group. Files are written once, so a path with its size and time is that file, in whichever version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct GroupKey {
    dataset: Arc<str>,
    path: Arc<str>,
    size: u64,
    modified_ms: i64,
    row_group: u32,
    columns: Option<Arc<[String]>>,
}

/// Names rows of a window as a consumer gets them: those that steps behind the cut made, or stored ones in the plan's order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct MadeKey {
    window: Arc<WindowKey>,
    /// Its pipeline says the steps.
    version: VersionId,
    columns: Vec<String>,
    rows: Range<u64>,
}

impl MadeKey {
    pub(super) fn new(data: &WindowData, pass: &PassPlan, served: &Served, rows: Range<u64>) -> Self {
        let columns = served.schema.fields().iter().map(|f| f.name().clone()).collect();
        Self { window: Arc::clone(&data.key), version: pass.version.version, columns, rows }
    }
}

/// What is kept in memory, under one budget.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Group(GroupKey),
    Made(MadeKey),
}

type Items = Cache<Item, Vec<RecordBatch>>;
type ItemPins = Pins<Item, Vec<RecordBatch>>;

/// What a window's rows and their order depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WindowKey {
    dataset: Arc<str>,
    /// Of the epoch's files, or the window's.
    stamp: u64,
    selection: Option<u64>,
    seed: u64,
    pass: PassId,
    window_rows: u64,
    shuffle: u8,
    columns: Vec<String>,
    /// With the batches of a round.
    bucket_by: Option<(String, u64)>,
    window: WindowId,
}

type Cell = OnceCell<Arc<WindowData>>;

/// Keeps a window that is being loaded or used; whoever asks for the same one meanwhile shares it.
#[derive(Debug, Clone)]
pub(crate) struct WindowHandle {
    cell: Arc<Cell>,
    key: Arc<WindowKey>,
}

/// Loads windows for all jobs of a process.
#[derive(Debug)]
pub(crate) struct Loader {
    root: Root,
    pub(super) items: Arc<Items>,
    pub(super) metrics: Metrics,
    pub(super) kept: Kept,
    open: Mutex<HashMap<Arc<WindowKey>, Weak<Cell>>>,
    /// Row groups that are read and decoded at once.
    reads: Semaphore,
    parallel: usize,
    /// Of the rows made last: an estimate for the next.
    made_bytes: AtomicU64,
}

impl Loader {
    pub(crate) fn new(root: Root, limits: Limits, metrics: Metrics) -> Self {
        let parallel = std::thread::available_parallelism().map_or(4, usize::from).clamp(4, 32);
        Self {
            root,
            items: Cache::new(limits),
            metrics,
            kept: Kept::default(),
            open: Mutex::default(),
            reads: Semaphore::new(parallel),
            parallel,
            made_bytes: AtomicU64::new(1 << 20),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        self.items.usage()
    }

    /// A handle to a window, loaded or not. Dropping the last handle lets the window go; its row groups stay while the budget allows.
    pub(crate) fn handle(&self, pass: &Arc<PassPlan>, served: &Arc<Served>, window: WindowId) -> WindowHandle {
        let settings = pass.plan.settings();
        let key = WindowKey {
            dataset: pass.version.name.as_str().into(),
            stamp: pass.stamp(window),
            selection: pass.selection_key,
            seed: settings.seed,
            pass: settings.pass,
            window_rows: pass.plan.window_rows(),
            shuffle: settings.shuffle as u8,
            columns: served.chunk_schema.fields().iter().map(|f| f.name().clone()).collect(),
            bucket_by: served.bucket_by.clone().map(|name| (name, settings.round_size)),
            window,
        };
        let key = Arc::new(key);
        let mut open = self.open.lock();
        if let Some(cell) = open.get(&key).and_then(Weak::upgrade) {
            return WindowHandle { cell, key };
        }
        open.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::new(Cell::new());
        open.insert(Arc::clone(&key), Arc::downgrade(&cell));
        WindowHandle { cell, key }
    }

    /// Rows of a window as the steps behind the cut make them: by `make` once for all jobs that want the same ones, while there is room for them.
    pub(crate) async fn made<F>(
        &self,
        data: &WindowData,
        pass: &PassPlan,
        served: &Served,
        rows: Range<u64>,
        make: F,
    ) -> Result<RecordBatch>
    where
        F: Future<Output = Result<RecordBatch>>,
    {
        let key = MadeKey::new(data, pass, served, rows);
        let counted = async {
            self.metrics.batches_made.inc();
            make.await
        };
        let estimate = self.made_bytes.load(Ordering::Relaxed);
        // Whoever waited for room here would hold a window meanwhile, for which others may wait.
        let Some(pins) = self.items.pin(&[(Item::Made(key), estimate)], 0, Admission::IfRoom).await? else { return counted.await };
        let made = pins.get(0, async {
            let made = counted.await?;
            let bytes = made.get_array_memory_size() as u64;
            self.made_bytes.store(bytes, Ordering::Relaxed);
            Ok((vec![made], bytes))
        });
        made.await?.first().cloned().ok_or_else(|| Error::internal("made rows are gone"))
    }

    /// The window's rows, loaded by whoever comes first. `None` when there is no room and the reader does not wait for it.
    pub(crate) async fn load(
        &self,
        handle: &WindowHandle,
        pass: &Arc<PassPlan>,
        served: &Arc<Served>,
        window: WindowId,
        admission: Admission,
    ) -> Result<Option<Arc<WindowData>>> {
        let loaded = handle.cell.get_or_try_init(|| async {
            match self.read(&handle.key, pass, served, window, admission).await {
                Ok(Some(data)) => Ok(Arc::new(data)),
                Ok(None) => Err(None),
                Err(error) => Err(Some(error)),
            }
        });
        match loaded.await {
            Ok(data) => Ok(Some(Arc::clone(data))),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    async fn read(
        &self,
        key: &Arc<WindowKey>,
        pass: &Arc<PassPlan>,
        served: &Arc<Served>,
        window: WindowId,
        admission: Admission,
    ) -> Result<Option<WindowData>> {
        let wanted = pass.plan.window(window);
        let keys: Vec<(Item, u64)> = wanted.pieces.iter().map(|piece| self.group_key(pass, served, piece)).collect::<Result<_>>()?;
        let places = wanted.rows * PLACE_BYTES;
        let Some(pins) = self.items.pin(&keys, places, admission).await? else { return Ok(None) };

        let reads: Vec<BoxFuture<'_, Result<Vec<Chunk>>>> =
            wanted.pieces.iter().enumerate().map(|(at, piece)| self.read_piece(pass, served, &pins, at, piece).boxed()).collect();
        let pieces: Vec<Vec<Chunk>> = stream::iter(reads).buffered(self.parallel).try_collect().await?;
        let chunks: Vec<Chunk> = pieces.into_iter().flatten().collect();
        let (order_of, key, metrics) = (Arc::clone(pass), Arc::clone(key), self.metrics.clone());
        let ordered = move || {
            let order = order(&order_of.plan, window, &chunks, &metrics)?;
            WindowData::new(key, chunks, &order, pins)
        };
        let data = tokio::task::spawn_blocking(ordered).await.map_err(|e| Error::internal(format!("ordering a window failed: {e}")))??;
        if data.places.len() as u64 != wanted.rows {
            return Err(Error::corrupt(format!(
                "dataset `{}`: window {window} has {} rows, its plan says {}",
                pass.version.name,
                data.places.len(),
                wanted.rows
            )));
        }
        Ok(Some(data))
    }

    fn group_key(&self, pass: &Arc<PassPlan>, served: &Arc<Served>, piece: &Piece) -> Result<(Item, u64)> {
        let (shard, row_group, meta) = group_of(pass, piece)?;
        let file =
            pass.version.shards.get(shard).ok_or_else(|| Error::internal(format!("shard {shard} of the plan is not in the version")))?;
        let key = GroupKey {
            dataset: pass.version.name.as_str().into(),
            path: file.path.as_str().into(),
            size: file.size,
            modified_ms: file.modified_ms,
            row_group: u32::try_from(row_group).map_err(|_| Error::corrupt("a shard with more than 2^32 row groups"))?,
            columns: served.read.clone(),
        };
        Ok((Item::Group(key), meta.bytes))
    }

    /// The rows of one piece, in storage order.
    async fn read_piece(
        &self,
        pass: &Arc<PassPlan>,
        served: &Arc<Served>,
        pins: &ItemPins,
        at: usize,
        piece: &Piece,
    ) -> Result<Vec<Chunk>> {
        let (shard, row_group, meta) = group_of(pass, piece)?;
        let load = async {
            let _slot = self.reads.acquire().await.map_err(|_| Error::internal("reading is over"))?;
            let batches = read_row_group(&self.root, &pass.version, shard, row_group, served.read.as_deref(), None).await?;
            self.metrics.row_groups_read.inc();
            self.metrics.bytes_read.inc_by(meta.bytes);
            if pins.was_evicted(at) {
                self.metrics.row_groups_reread.inc();
            }
            let bytes = batches.iter().map(|b| b.get_array_memory_size() as u64).sum();
            Ok((batches, bytes))
        };
        let batches = pins.get(at, load).await?;
        let chosen = pass.plan.physical_rows(piece);
        let mut chunks = Vec::with_capacity(batches.len());
        for (batch, chosen) in cut(&batches, piece, chosen.as_deref()) {
            let (rows, keys) = served.chunk(batch)?;
            chunks.push(Chunk { rows, keys, chosen });
        }
        Ok(chunks)
    }
}

fn group_of(pass: &PassPlan, piece: &Piece) -> Result<(usize, usize, forebay_core::shard::RowGroupMeta)> {
    let group = pass.groups.get(piece.row_group as usize).copied();
    group.ok_or_else(|| Error::internal(format!("row group {} of the plan does not exist", piece.row_group)))
}

/// Cuts a piece out of a row group's batches: slices, or whole batches with the rows that pass the filter.
fn cut(batches: &[RecordBatch], piece: &Piece, chosen: Option<&[u32]>) -> Vec<(RecordBatch, Option<Vec<u32>>)> {
    let mut out = Vec::new();
    let mut before = 0u64;
    for batch in batches {
        let rows = batch.num_rows() as u64;
        match chosen {
            Some(chosen) => {
                let from = chosen.partition_point(|row| u64::from(*row) < before);
                let to = chosen.partition_point(|row| u64::from(*row) < before + rows);
                if from < to {
                    // Offsets inside a batch fit, as the batch's own rows do.
                    out.push((batch.clone(), Some(chosen[from..to].iter().map(|row| row - before as u32).collect())));
                }
            }
            None => {
                let from = piece.start.clamp(before, before + rows) - before;
                let to = (piece.start + piece.len).clamp(before, before + rows) - before;
                if from < to {
                    out.push((batch.slice(from as usize, (to - from) as usize), None));
                }
            }
        }
        before += rows;
    }
    out
}

/// Rows of one piece or a part of it.
#[derive(Debug)]
struct Chunk {
    rows: RecordBatch,
    keys: Keys,
    /// The rows that count; null: all.
    chosen: Option<Vec<u32>>,
}

/// A window's rows. Dropping it frees what it holds, save what the cache keeps.
#[derive(Debug)]
pub(crate) struct WindowData {
    pub(super) key: Arc<WindowKey>,
    /// Of the consumer's schema, or of the stored one where steps stand behind the cut.
    pub(crate) chunks: Arc<Vec<RecordBatch>>,
    keys: Vec<Keys>,
    /// (chunk, row of the chunk) of the window's rows in the plan's order.
    places: Vec<(u32, u32)>,
    /// Mean of the chunks' rows.
    row_bytes: u64,
    _pins: ItemPins,
}

/// A batch's rows as (chunk, row of the chunk), and their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchOfRows {
    pub(crate) rows: Vec<(u32, u32)>,
    pub(crate) ids: Vec<i64>,
    /// Null where the dataset has no `_part`.
    pub(crate) parts: Option<Vec<i32>>,
    pub(crate) digest: u64,
}

/// The order of a window's rows; with `bucket_by` it depends on their lengths.
fn order(plan: &Plan, window: WindowId, chunks: &[Chunk], metrics: &Metrics) -> Result<Vec<u32>> {
    let mut all: Vec<u64> = Vec::new();
    for chunk in chunks {
        let Some(lengths) = &chunk.keys.lengths else { return Ok(plan.window_order(window)) };
        match &chunk.chosen {
            Some(rows) => all.extend(rows.iter().filter_map(|row| lengths.get(*row as usize))),
            None => all.extend(lengths),
        }
    }
    if chunks.is_empty() {
        return Ok(plan.window_order(window));
    }
    let order = plan.bucketed_order(window, &all)?;
    let (padding, otherwise) = (plan.padding(&order, &all), plan.padding(&plan.window_order(window), &all));
    metrics.padding.inc_by(padding);
    metrics.padding_saved.inc_by(otherwise.saturating_sub(padding));
    Ok(order)
}

impl WindowData {
    fn new(key: Arc<WindowKey>, chunks: Vec<Chunk>, order: &[u32], pins: ItemPins) -> Result<Self> {
        let mut flat: Vec<(u32, u32)> = Vec::with_capacity(order.len());
        for (number, chunk) in (0u32..).zip(&chunks) {
            match &chunk.chosen {
                Some(rows) => flat.extend(rows.iter().map(|row| (number, *row))),
                None => flat.extend((0..chunk.rows.num_rows() as u32).map(|row| (number, row))),
            }
        }
        let places: Option<Vec<(u32, u32)>> = order.iter().map(|offset| flat.get(*offset as usize).copied()).collect();
        let places = places.filter(|places| places.len() == flat.len()).ok_or_else(|| {
            Error::corrupt(format!("a window of {} rows was read as {}: a shard differs from the log", order.len(), flat.len()))
        })?;
        let (rows, keys): (Vec<RecordBatch>, Vec<Keys>) = chunks.into_iter().map(|c| (c.rows, c.keys)).unzip();
        let count: usize = rows.iter().map(RecordBatch::num_rows).sum();
        let bytes = rows.iter().flat_map(RecordBatch::columns).filter_map(|c| c.to_data().get_slice_memory_size().ok()).sum::<usize>();
        Ok(Self { key, chunks: Arc::new(rows), keys, places, row_bytes: bytes.div_ceil(count.max(1)) as u64, _pins: pins })
    }

    /// About how many bytes one row takes.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// The rows of a batch of this window; `rows` is [`forebay_core::plan::Plan::batch_rows`].
    pub(crate) fn batch(&self, batch: BatchId, rows: Range<u64>) -> Result<BatchOfRows> {
        let missing = || Error::internal(format!("batch {batch} is not in its window"));
        let places = self.places.get(rows.start as usize..rows.end as usize).filter(|p| !p.is_empty()).ok_or_else(missing)?;
        let has_parts = self.keys.iter().any(|k| k.parts.is_some());
        let mut ids = Vec::with_capacity(places.len());
        let mut parts = has_parts.then(|| Vec::with_capacity(places.len()));
        for (chunk, row) in places {
            let keys = self.keys.get(*chunk as usize).ok_or_else(missing)?;
            let row = *row as usize;
            ids.push(*keys.ids.values().get(row).ok_or_else(missing)?);
            if let Some(parts) = &mut parts {
                let part = keys.parts.as_ref().and_then(|p| p.values().get(row)).ok_or_else(missing)?;
                parts.push(*part);
            }
        }
        let digest = batch_digest(&ids, parts.as_deref());
        Ok(BatchOfRows { rows: places.to_vec(), ids, parts, digest })
    }
}
