//! How a pass grows whose epoch is still being written, and how it is closed.

use super::pass_state::{Pass, PassShape};
use super::spans::{Reason, VisitState};
use super::state::RunId;
use super::streams::Streams;
use crate::ids::BatchId;
use crate::job::{End, JobSettings, Steps};

impl Pass {
    /// Whether windows may still be added to it.
    pub fn is_growing(&self) -> bool {
        self.shape.growth.is_some()
    }

    /// Who writes its epoch.
    pub(super) fn writer(&self) -> Option<RunId> {
        self.shape.growth.as_ref().map(|growth| growth.run)
    }

    /// Takes up how far the epoch has come. Windows that are there stay what they are.
    pub(super) fn grow(&mut self, streams: &mut Streams, shape: &PassShape, settings: &JobSettings, at_ms: i64) {
        if !self.is_growing() || self.ended || shape.rows < self.shape.rows {
            return;
        }
        self.shape = shape.clone();
        self.batches = shape.rows.div_ceil(settings.batch_size.max(1));
        self.deliverable = self.batches;
        if self.is_growing() {
            self.open_steps(settings);
        } else {
            self.close_grown(streams, settings, at_ms);
        }
        if self.rounds {
            self.advance_lead();
        }
    }

    /// Where steps are equal, those that all ranks can make with what is there may be begun.
    pub(super) fn open_steps(&mut self, settings: &JobSettings) {
        if let Some(map) = self.map.as_ref().filter(|_| settings.steps == Steps::Equal) {
            self.end = Some(map.steps_before(self.batches));
        }
    }

    /// The epoch is whole: `end` and equal steps are settled as for a pass that begins, by the map as it is now.
    fn close_grown(&mut self, streams: &mut Streams, settings: &JobSettings, at_ms: i64) {
        let short = !self.shape.rows.is_multiple_of(settings.batch_size.max(1));
        let whole = self.batches - u64::from(settings.end == End::Drop && short);
        let mut left_over = 0;
        if let Some(map) = self.map.as_ref().filter(|_| settings.steps == Steps::Equal) {
            let (last, rest) = (map.last(), whole.saturating_sub(map.last().from));
            let pads = settings.end == End::Pad && !last.ranks.is_empty();
            self.end = Some(if pads { last.step + rest.div_ceil(last.width()) } else { map.steps_before(whole) });
            left_over = if pads || last.ranks.is_empty() { 0 } else { rest % last.width() };
        }
        let dropped: Vec<u64> = (whole - left_over..self.batches).filter(|b| self.is_pending(BatchId(*b))).collect();
        self.deliverable = dropped.first().copied().unwrap_or(self.batches);
        for batch in dropped {
            self.cover(streams, batch..batch + 1, VisitState::Dropped, Some(Reason::EndOfPass), at_ms);
        }
    }
}
