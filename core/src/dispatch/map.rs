//! The fixed map of `static` and `rounds`: which rank gets which batch, at which step.

use serde::{Deserialize, Serialize};

use super::job_state::Job;

/// From batch `from` on, the ranks take turns in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub from: u64,
    /// The step of its first round.
    pub step: u64,
    pub ranks: Vec<u32>,
}

/// Segments in order. There is one, and one more each time a rank was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    segments: Vec<Segment>,
}

impl Map {
    pub(super) fn new(from: u64, ranks: Vec<u32>) -> Self {
        Self { segments: vec![Segment { from, step: 0, ranks }] }
    }

    /// How many ranks the pass began with: the batches of a window are laid out by it.
    pub fn world(&self) -> u64 {
        self.segments.first().map_or(1, Segment::width)
    }

    /// The segment that a batch is in.
    pub fn segment_of(&self, batch: u64) -> &Segment {
        let index = self.segments.partition_point(|s| s.from <= batch).saturating_sub(1);
        &self.segments[index]
    }

    /// The ranks that go on.
    pub fn last(&self) -> &Segment {
        &self.segments[self.segments.len() - 1]
    }

    pub fn is_single(&self) -> bool {
        self.segments.len() == 1
    }

    pub fn rank_of(&self, batch: u64) -> Option<u32> {
        self.segment_of(batch).rank_of(batch)
    }

    pub fn step_of(&self, batch: u64) -> u64 {
        self.segment_of(batch).step_of(batch)
    }

    /// The first batch of a step.
    pub fn batch_at(&self, step: u64) -> u64 {
        let index = self.segments.partition_point(|s| s.step <= step).saturating_sub(1);
        let segment = &self.segments[index];
        segment.from + (step - segment.step) * segment.width()
    }

    /// How many whole steps there are before a batch.
    pub(super) fn steps_before(&self, batch: u64) -> u64 {
        let last = self.last();
        if last.ranks.is_empty() { last.step } else { last.step + batch.saturating_sub(last.from) / last.width() }
    }

    /// The rank's first batch that is not below `from`.
    pub fn next_of(&self, rank: u32, from: u64) -> Option<u64> {
        for (index, segment) in self.segments.iter().enumerate() {
            let end = self.segments.get(index + 1).map_or(u64::MAX, |s| s.from);
            let Some(place) = segment.place_of(rank).filter(|_| from < end) else { continue };
            let least = segment.from + place;
            let batch = if from <= least { least } else { least + (from - least).div_ceil(segment.width()) * segment.width() };
            if batch < end {
                return Some(batch);
            }
        }
        None
    }

    /// From `from`, the first batch of a step, on the map goes on without a rank.
    pub(super) fn drop_rank(&mut self, rank: u32, from: u64) {
        let step = self.step_of(from);
        let ranks: Vec<u32> = self.last().ranks.iter().copied().filter(|r| *r != rank).collect();
        self.segments.retain(|s| s.from < from);
        self.segments.push(Segment { from, step, ranks });
    }
}

impl Segment {
    pub fn width(&self) -> u64 {
        (self.ranks.len() as u64).max(1)
    }

    pub fn place_of(&self, rank: u32) -> Option<u64> {
        self.ranks.iter().position(|r| *r == rank).map(|p| p as u64)
    }

    fn rank_of(&self, batch: u64) -> Option<u32> {
        let place = batch.checked_sub(self.from)? % self.width();
        self.ranks.get(usize::try_from(place).ok()?).copied()
    }

    fn step_of(&self, batch: u64) -> u64 {
        self.step + batch.saturating_sub(self.from) / self.width()
    }
}

/// How the batches of a window are laid out: those of one rank side by side, so that what a rank holds is one span.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    size: u64,
    world: u64,
}

impl Layout {
    pub(super) fn new(size: u64, world: u64) -> Self {
        Self { size, world: world.max(1) }
    }

    /// Where the batches with `offset % world == residue` begin.
    pub(super) fn start(self, residue: u64) -> u64 {
        residue * (self.size / self.world) + residue.min(self.size % self.world)
    }

    pub(super) fn place(self, offset: u64) -> u64 {
        self.start(offset % self.world) + offset / self.world
    }

    pub(super) fn offset(self, place: u64) -> u64 {
        let (short, longer) = (self.size / self.world, self.size % self.world);
        let (residue, index) = if place < longer * (short + 1) {
            (place / (short + 1), place % (short + 1))
        } else {
            let rest = place - longer * (short + 1);
            (longer + rest / short.max(1), rest % short.max(1))
        };
        index * self.world + residue
    }
}

impl Job {
    /// The ranks that a pass which starts now is for, where the job has ranks.
    pub(super) fn ranks(&self) -> Option<Vec<u32>> {
        let world = self.settings.world_size.filter(|_| self.settings.is_ranked())?;
        Some((0..world).filter(|r| !self.dropped_ranks.contains(r)).collect())
    }
}
