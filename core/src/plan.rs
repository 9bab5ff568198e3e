//! The plan: a pass over an epoch is a deterministic sequence of batches, computed by arithmetic over row counts.
//!
//! Owns: which rows, in which order, make up batch `b` of a pass. The answer depends on the row groups (that is the dataset version), the selection,
//! the pass, the seed, the batch size, the window rows and the shuffle, and on nothing else: not on workers, consumers, timing or failures.
//! Must not know: what is in the rows, who reads them, or what became of a batch.
//!
//! Words: row groups come in (task, part, row group) order; permuted and laid end to end their rows are *positions* `0..N`; positions are cut into
//! *windows* of `W` rows; a permutation inside each window gives the order in which its batches are cut.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::ids::{BatchId, PassId, WindowId};
use crate::job::End;
use crate::pipeline::Shuffle;
use crate::random::{Rng, key, shuffle};

mod selection;
mod staged;
#[cfg(test)]
mod staged_tests;
#[cfg(test)]
mod tests;

pub use selection::{Bitmap, Selection};
pub use staged::{Blocks, staged_window_rows};

/// Tells the permutation of row groups from those inside windows: both are keyed by (seed, pass).
const ROW_GROUPS: u64 = 1;
const ROWS: u64 = 2;
/// The permutation of a window's rounds, with `bucket_by`.
const ROUNDS: u64 = 3;

/// What a plan knows of a row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanRowGroup {
    /// All rows, unfiltered.
    pub rows: u64,
    /// Stored uncompressed size of all columns, in bytes.
    pub bytes: u64,
}

/// What a plan's sequence depends on besides the row groups and the selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanSettings {
    pub seed: u64,
    pub pass: PassId,
    /// Rows of a batch, at least 1.
    pub batch_size: u64,
    /// Bytes of a window before rounding to whole rounds of batches.
    pub window_bytes: u64,
    pub shuffle: Shuffle,
    /// Batches of a round: 1 without `bucket_by`.
    pub round_size: u64,
    /// What becomes of the short last batch; changes no batch's rows.
    pub end: End,
}

/// What has to be read for one window, in position order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    pub id: WindowId,
    pub pieces: Vec<Piece>,
    /// Sum of the pieces' `len`.
    pub rows: u64,
}

/// A run of rows of one row group. With a selection, `start` and `len` count the rows that pass; [`Plan::physical_rows`] finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index into the row groups that the plan was made from.
    pub row_group: u32,
    pub start: u64,
    pub len: u64,
}

/// One pass's plan. Costs 12 bytes per row group, nothing per row; a window's order is made when the window is read.
#[derive(Debug, Clone)]
pub struct Plan {
    settings: PlanSettings,
    selection: Option<Arc<Selection>>,
    /// Row groups that have rows, in the pass's order.
    order: Vec<u32>,
    /// First position of each row group in `order`; the last item is the number of their rows.
    starts: Vec<u64>,
    /// Rows that are planned: all of them, but of an epoch that is still being written.
    rows: u64,
    window_rows: u64,
}

/// Rows of a window: `round * max(1, floor(window_bytes * rows / (bytes * round)))` with `round = batch_size * round_size`, in whole numbers.
///
/// `rows` counts the rows that pass the filter, `bytes` is the stored uncompressed size of all rows and columns; 0 bytes give one round.
pub fn window_rows(window_bytes: u64, rows: u64, bytes: u64, batch_size: u64, round_size: u64) -> Result<u64> {
    if batch_size == 0 || round_size == 0 {
        return Err(Error::bad_input("the batch size and the round size must be at least 1"));
    }
    let round = batch_size.checked_mul(round_size).ok_or_else(|| {
        Error::bad_input(format!("batch size {batch_size} times round size {round_size} does not fit 64 bits"))
            .with_remedy("use smaller batches")
    })?;
    if bytes == 0 {
        return Ok(round);
    }
    let rounds = (u128::from(window_bytes) * u128::from(rows)) / (u128::from(bytes) * u128::from(round));
    // Beyond u64 there is one window in any case; the clamp keeps W a whole number of rounds.
    let rounds = rounds.clamp(1, u128::from(u64::MAX / round)) as u64;
    Ok(round * rounds)
}

impl Plan {
    /// Plans one pass over `groups`, which are in (task, part, row group) order; `selection`, if any, must describe the same groups.
    ///
    /// `Shuffle::Full` orders a pass as `Window` does, so that passes over one stored epoch differ; whether the epoch was stored in full shuffle is for
    /// the caller to check. Fails on a batch size of 0, a selection of other row groups, and a window of more than 2^32-1 rows.
    pub fn new(groups: &[PlanRowGroup], selection: Option<Arc<Selection>>, settings: PlanSettings) -> Result<Self> {
        check_selection(groups, selection.as_deref())?;
        let count = |g: u32| selection.as_ref().map_or_else(|| groups[g as usize].rows, |s| s.count(g as usize));
        let mut order: Vec<u32> = (0..group_count(groups)?).collect();
        // All row groups are permuted, also those of which no row passes, so that a filter does not move the others.
        if settings.shuffle != Shuffle::None {
            let mut rng = Rng::new(key(&[ROW_GROUPS, settings.seed, u64::from(settings.pass.0)]));
            shuffle(&mut rng, &mut order);
        }
        order.retain(|g| count(*g) > 0);
        let mut starts = Vec::with_capacity(order.len() + 1);
        let mut rows = 0u64;
        let mut bytes = 0u64;
        starts.push(0);
        for g in &order {
            rows = rows.checked_add(count(*g)).ok_or_else(too_large)?;
            starts.push(rows);
        }
        for group in groups {
            bytes = bytes.checked_add(group.bytes).ok_or_else(too_large)?;
        }
        let window_rows = window_rows(settings.window_bytes, rows, bytes, settings.batch_size, settings.round_size)?;
        if window_rows.min(rows) > u64::from(u32::MAX) {
            return Err(Error::new(
                Kind::ResourceExhausted,
                format!("a window of {} bytes would hold {} rows; at most 4,294,967,295 fit", settings.window_bytes, window_rows.min(rows)),
            )
            .with_remedy("set a smaller `window`"));
        }
        Ok(Self { settings, selection, order, starts, rows, window_rows })
    }

    pub fn settings(&self) -> &PlanSettings {
        &self.settings
    }

    pub fn selection(&self) -> Option<&Arc<Selection>> {
        self.selection.as_ref()
    }

    /// Rows of the pass: those that pass the filter. Of an epoch that is still being written, those of the windows that are planned.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Batches of the pass, the short last one included whatever `end` says; [`Plan::dropped`] tells which of them nobody gets.
    pub fn batches(&self) -> u64 {
        self.rows().div_ceil(self.settings.batch_size)
    }

    /// The batches at the end that `end = "drop"` drops: the short last one, or none.
    pub fn dropped(&self) -> Range<u64> {
        let short = !self.rows().is_multiple_of(self.settings.batch_size);
        let dropped = self.settings.end == End::Drop && short;
        self.batches() - u64::from(dropped)..self.batches()
    }

    pub fn windows(&self) -> u64 {
        self.rows().div_ceil(self.window_rows)
    }

    /// `W`: rows of every window but the last, a multiple of the batch size.
    pub fn window_rows(&self) -> u64 {
        self.window_rows
    }

    /// Batches of every window but the last.
    pub fn batches_per_window(&self) -> u64 {
        self.window_rows / self.settings.batch_size
    }

    pub fn window_of(&self, batch: BatchId) -> WindowId {
        WindowId(batch.0 / self.batches_per_window())
    }

    /// The batches of a window; empty beyond the last window.
    pub fn batches_of(&self, window: WindowId) -> Range<u64> {
        let end = self.batches();
        let start = window.0.saturating_mul(self.batches_per_window()).min(end);
        start..start.saturating_add(self.batches_per_window()).min(end)
    }

    /// The positions of a window; empty beyond the last.
    fn positions(&self, window: WindowId) -> Range<u64> {
        let end = self.rows();
        let start = window.0.saturating_mul(self.window_rows).min(end);
        start..start.saturating_add(self.window_rows).min(end)
    }

    /// What has to be read for a window; without pieces beyond the last one.
    pub fn window(&self, window: WindowId) -> Window {
        let positions = self.positions(window);
        let mut pieces = Vec::new();
        let first = self.starts.partition_point(|start| *start <= positions.start).saturating_sub(1);
        for (bounds, group) in self.starts[first..].windows(2).zip(self.order.iter().skip(first)) {
            let start = bounds[0].max(positions.start);
            let end = bounds[1].min(positions.end);
            if start >= end {
                break;
            }
            pieces.push(Piece { row_group: *group, start: start - bounds[0], len: end - start });
        }
        Window { id: window, pieces, rows: positions.end - positions.start }
    }

    /// The order of a window's rows: item k is the offset, in the window's pieces laid end to end, of the row that comes k-th.
    /// Costs 4 bytes and one random step per row of the window.
    pub fn window_order(&self, window: WindowId) -> Vec<u32> {
        let positions = self.positions(window);
        // `new` made sure that a window's rows fit.
        let mut order: Vec<u32> = (0..(positions.end - positions.start) as u32).collect();
        if matches!(self.settings.shuffle, Shuffle::Window | Shuffle::Full) {
            let mut rng = Rng::new(key(&[ROWS, self.settings.seed, u64::from(self.settings.pass.0), window.0]));
            shuffle(&mut rng, &mut order);
        }
        order
    }

    /// [`Plan::window_order`] with `bucket_by`: rows of about one length stand together, so that the `round_size` batches of a round pad little, and
    /// the rounds are permuted. `lengths` has the length of each row of the window, by its offset.
    ///
    /// The rows of the pass that fill no round are set aside before they are ordered and stay the last: else they would always be the longest.
    pub fn bucketed_order(&self, window: WindowId, lengths: &[u64]) -> Result<Vec<u32>> {
        let mut order = self.window_order(window);
        if lengths.len() != order.len() {
            return Err(Error::internal(format!("{} lengths for a window of {} rows", lengths.len(), order.len())));
        }
        // `new` made sure that a round fits.
        let round = usize::try_from(self.settings.batch_size.saturating_mul(self.settings.round_size)).unwrap_or(usize::MAX);
        let rest = order.split_off(order.len() - order.len() % round);
        // Stable: rows of one length stay in the order of the window's shuffle.
        order.sort_by_key(|row| lengths[*row as usize]);
        let mut rounds: Vec<&[u32]> = order.chunks(round).collect();
        if matches!(self.settings.shuffle, Shuffle::Window | Shuffle::Full) {
            let mut rng = Rng::new(key(&[ROUNDS, self.settings.seed, u64::from(self.settings.pass.0), window.0]));
            shuffle(&mut rng, &mut rounds);
        }
        let mut bucketed = rounds.concat();
        bucketed.extend(rest);
        Ok(bucketed)
    }

    /// Values that padding each batch of the window to its longest row adds, in this order of its rows.
    pub fn padding(&self, order: &[u32], lengths: &[u64]) -> u64 {
        let batch = usize::try_from(self.settings.batch_size).unwrap_or(usize::MAX);
        let of = |rows: &[u32]| {
            let lengths = rows.iter().filter_map(|row| lengths.get(*row as usize));
            let longest = lengths.clone().max().copied().unwrap_or(0);
            lengths.map(|length| longest - length).sum::<u64>()
        };
        order.chunks(batch.max(1)).map(of).sum()
    }

    /// The rows of a batch, as a range of its window's [`Plan::window_order`]; empty beyond the last batch.
    pub fn batch_rows(&self, batch: BatchId) -> Range<u64> {
        let window = self.positions(self.window_of(batch));
        let rows = window.end - window.start;
        let start = ((batch.0 % self.batches_per_window()) * self.settings.batch_size).min(rows);
        start..(start + self.settings.batch_size).min(rows)
    }

    /// The rows of a piece as offsets in its row group, ascending; `None` when they are simply `start .. start + len`.
    pub fn physical_rows(&self, piece: &Piece) -> Option<Vec<u32>> {
        let selection = self.selection.as_ref()?;
        let group = piece.row_group as usize;
        if selection.count(group) == selection.group_rows(group) {
            return None;
        }
        Some(selection.rows(group, piece.start, piece.len))
    }

    /// Bytes of memory held, the selection (shared between the plans of a pass) not counted.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.order.capacity() * size_of::<u32>() + self.starts.capacity() * size_of::<u64>()
    }
}

fn check_selection(groups: &[PlanRowGroup], selection: Option<&Selection>) -> Result<()> {
    let Some(selection) = selection else { return Ok(()) };
    let same = selection.groups() == groups.len() && groups.iter().enumerate().all(|(i, g)| selection.group_rows(i) == g.rows);
    if same {
        return Ok(());
    }
    Err(Error::corrupt("the stored selection is of other row groups than the version's")
        .with_remedy("start the job again under another name"))
}

fn group_count(groups: &[PlanRowGroup]) -> Result<u32> {
    u32::try_from(groups.len()).map_err(|_| too_large())
}

fn too_large() -> Error {
    Error::new(Kind::ResourceExhausted, "the epoch is too large to plan: its rows, bytes or row groups do not fit")
}
