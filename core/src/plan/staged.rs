//! Staged order: row groups in the order in which their tasks were staged, permuted within consecutive blocks of about one window.
//!
//! What is planned of an epoch that is still being written stays as it is while the epoch grows: a block is permuted when it is full, and a window is
//! planned when all of its rows are in full blocks. Once the epoch is whole, the last block and the last window are whatever is left. So every way in
//! which an epoch may grow gives the plan of the published one.

use serde::{Deserialize, Serialize};

use super::{Plan, PlanRowGroup, PlanSettings, group_count, too_large, window_rows};
use crate::error::{Error, Kind, Result};
use crate::pipeline::Shuffle;
use crate::random::{Rng, key, shuffle};

/// The permutation of a block's row groups.
const BLOCKS: u64 = 4;

/// Cuts row groups, as they come, into blocks of at least a window's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Blocks {
    /// Rows of full blocks.
    full: u64,
    /// Rows of the block that is being filled.
    open: u64,
}

impl Blocks {
    /// Takes the next row group up; says whether its block is full with it.
    ///
    /// # Errors
    /// `ResourceExhausted` beyond 2^64-1 rows.
    pub fn push(&mut self, rows: u64, window_rows: u64) -> Result<bool> {
        self.open = self.open.checked_add(rows).ok_or_else(too_large)?;
        if self.open < window_rows {
            return Ok(false);
        }
        self.full = self.full.checked_add(self.open).ok_or_else(too_large)?;
        self.open = 0;
        Ok(true)
    }

    /// Rows of the windows that lie wholly in full blocks.
    pub fn whole_windows(&self, window_rows: u64) -> u64 {
        self.full - self.full % window_rows.max(1)
    }
}

/// Rows of a window in staged order: [`window_rows`] of the first staged task that has rows, whose row groups these are. No window has more than
/// 2^32-1 rows, because how many the epoch will have is not known.
///
/// # Errors
/// `BadInput` and `ResourceExhausted` for a round that is too large.
pub fn staged_window_rows(first: &[PlanRowGroup], settings: &PlanSettings) -> Result<u64> {
    let (mut rows, mut bytes) = (0u64, 0u64);
    for group in first {
        rows = rows.checked_add(group.rows).ok_or_else(too_large)?;
        bytes = bytes.checked_add(group.bytes).ok_or_else(too_large)?;
    }
    let window = window_rows(settings.window_bytes, rows, bytes, settings.batch_size, settings.round_size)?;
    let round = settings.batch_size.saturating_mul(settings.round_size);
    let most = u64::from(u32::MAX) / round * round;
    if most == 0 {
        return Err(Error::new(Kind::ResourceExhausted, format!("a round of {round} rows does not fit a window"))
            .with_remedy("use smaller batches, or a smaller `round_size`"));
    }
    Ok(window.min(most))
}

impl Plan {
    /// Plans one pass in staged order over `groups`, which are in (staging number, part, row group) order. `complete`: the epoch is whole; else only
    /// the windows whose rows will not change are planned.
    ///
    /// # Errors
    /// `ResourceExhausted` for numbers that do not fit.
    pub fn staged(groups: &[PlanRowGroup], window_rows: u64, settings: PlanSettings, complete: bool) -> Result<Self> {
        let all: Vec<u32> = (0..group_count(groups)?).collect();
        let mut blocks = Blocks::default();
        let (mut order, mut from, mut number) = (Vec::with_capacity(all.len()), 0, 0u64);
        for (index, group) in groups.iter().enumerate() {
            let full = blocks.push(group.rows, window_rows)?;
            let last = complete && index + 1 == groups.len();
            if !(full || last) {
                continue;
            }
            let start = order.len();
            order.extend_from_slice(&all[from..=index]);
            if settings.shuffle != Shuffle::None {
                let mut rng = Rng::new(key(&[BLOCKS, settings.seed, u64::from(settings.pass.0), number]));
                shuffle(&mut rng, &mut order[start..]);
            }
            (from, number) = (index + 1, number + 1);
        }
        let count = |g: u32| groups[g as usize].rows;
        order.retain(|g| count(*g) > 0);
        let mut starts = Vec::with_capacity(order.len() + 1);
        starts.push(0);
        let mut rows = 0;
        for group in &order {
            // Blocks made sure that the sum fits.
            rows += count(*group);
            starts.push(rows);
        }
        let rows = if complete { rows } else { blocks.whole_windows(window_rows) };
        Ok(Self { settings, selection: None, order, starts, rows, window_rows })
    }
}
