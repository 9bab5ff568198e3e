//! How a pass begins, where its batches are, and how a change of visits is carried over to everything that is counted.

use std::collections::{BTreeMap, BTreeSet};

use super::map::{Layout, Map};
use super::pass_state::{Counts, Pass, PassShape, RankShare, Share, Tally, Window};
use super::ranges::Ranges;
use super::spans::{Fate, Mark, Reason, Span, VisitState};
use super::streams::Streams;
use crate::ids::{Attempt, BatchId, PassId, WindowId, WorkerName};
use crate::job::{Assignment, End, JobSettings, Steps, Visitation};

impl Pass {
    /// A pass that begins; `ranks` where the job has ranks, `taken` what earlier incarnations did of it.
    pub(super) fn new(id: PassId, shape: PassShape, settings: &JobSettings, ranks: Option<Vec<u32>>, taken: &Ranges, at_ms: i64) -> Self {
        let batches = shape.rows.div_ceil(settings.batch_size.max(1));
        let fixed = settings.assignment != Assignment::Dynamic;
        let first = if fixed { taken.end_of(0).unwrap_or(0).min(batches) } else { 0 };
        let shares = ranks.as_ref().map_or(0, |r| r.iter().max().map_or(0, |m| *m as usize + 1));
        let mut pass = Self {
            id,
            shape,
            batches,
            deliverable: batches,
            next_window: WindowId(0),
            windows: BTreeMap::new(),
            available: BTreeSet::new(),
            closed: BTreeSet::new(),
            closed_batches: 0,
            unheld: BTreeSet::new(),
            held_acks: 0,
            foldable: 0,
            counts: Counts::default(),
            ledger: Counts::default(),
            ended: false,
            exactly_once: settings.visitation == Visitation::ExactlyOnce,
            first,
            map: ranks.clone().filter(|_| fixed).map(|ranks| Map::new(first, ranks)),
            end: None,
            ranks: vec![RankShare::default(); shares],
            lead: first,
            rounds: settings.assignment == Assignment::Rounds,
            taken: Ranges::default(),
            skipped: BTreeSet::new(),
            pads: Vec::new(),
        };
        pass.take(taken, at_ms);
        if pass.is_growing() {
            pass.open_steps(settings);
        } else {
            let width = ranks.filter(|_| settings.steps == Steps::Equal).map(|r| (r.len() as u64).max(1));
            pass.close_end(settings, width, at_ms);
        }
        pass
    }

    /// What an earlier incarnation's commit holds is acknowledged here from the beginning.
    fn take(&mut self, taken: &Ranges, at_ms: i64) {
        let per = self.batches_per_window();
        let batches = self.batches;
        // Nobody holds anything of it yet.
        let none = &mut Streams::default();
        for (from, to) in taken.iter().map(|(from, to)| (from, to.min(batches))).filter(|(from, to)| from < to) {
            self.taken.insert(from, to);
            let first = from.div_ceil(per) * per;
            let last = if to == self.batches { to } else { to / per * per };
            if first < last {
                self.counts.acknowledged += last - first;
                self.ledger.acknowledged += last - first;
                self.cover(none, from..first, VisitState::Acknowledged, None, at_ms);
                self.cover(none, last..to, VisitState::Acknowledged, None, at_ms);
            } else {
                self.cover(none, from..to, VisitState::Acknowledged, None, at_ms);
            }
        }
    }

    /// `end` and equal steps: drops the short last batch and the partial last round, and sets the common end.
    fn close_end(&mut self, settings: &JobSettings, width: Option<u64>, at_ms: i64) {
        let short = !self.shape.rows.is_multiple_of(settings.batch_size.max(1));
        let whole = self.batches - u64::from(settings.end == End::Drop && short);
        let done = self.taken.iter().map(|(from, to)| to.min(whole).saturating_sub(from)).sum::<u64>();
        let rest = whole - done.min(whole);
        let mut left_over = 0;
        if let Some(width) = width {
            left_over = if settings.end == End::Pad { 0 } else { rest % width };
            self.end = Some((rest - left_over).div_ceil(width));
        }
        let untaken = |b: &u64| !self.taken.contains(*b);
        let mut all: BTreeSet<u64> = (whole..self.batches).filter(untaken).collect();
        all.extend((0..whole).rev().filter(untaken).take(usize::try_from(left_over).unwrap_or(usize::MAX)));
        self.deliverable = all.first().copied().unwrap_or(self.batches);
        for batch in all {
            self.cover(&mut Streams::default(), batch..batch + 1, VisitState::Dropped, Some(Reason::EndOfPass), at_ms);
        }
    }

    /// Gives batches that nobody was granted a final state.
    pub(super) fn cover(
        &mut self,
        streams: &mut Streams,
        batches: std::ops::Range<u64>,
        state: VisitState,
        reason: Option<Reason>,
        at_ms: i64,
    ) {
        let mark = if state == VisitState::Acknowledged { Mark::Committed } else { Mark::Open };
        for batch in batches {
            let (id, at) = self.place(BatchId(batch));
            self.begin_window(streams, id);
            let span = Span { from: at, to: at + 1, state, stream: None, at_ms, reason, mark };
            self.change(streams, id, |window, tally| window.spans.cover(span, tally));
        }
    }

    /// A window gets its place in the state.
    pub(super) fn begin_window(&mut self, streams: &mut Streams, id: WindowId) {
        if !self.windows.contains_key(&id) {
            self.windows.insert(id, Box::new(Window::new(self.window_size(id))));
            self.refresh(streams, id);
        }
    }

    pub(super) fn lease(&mut self, streams: &mut Streams, id: WindowId, worker: &WorkerName, attempt: Attempt) {
        self.begin_window(streams, id);
        self.unlease(streams, id);
        let worker = streams.intern(worker);
        let Some(window) = self.windows.get_mut(&id) else { return };
        (window.worker, window.attempt) = (Some(worker.clone()), attempt);
        streams.lease(&worker, (self.id, id), window.pending() > 0);
        self.unheld.remove(&id);
        self.next_window = self.next_window.max(WindowId(id.0 + 1));
    }

    /// Visits of an open window are in the ledger: of acknowledged ones it is enough to know that they are.
    pub(super) fn fold(&mut self, streams: &mut Streams, id: WindowId, parts: &[(u32, u32)]) {
        self.change(streams, id, |window, tally| {
            let mut moved = 0;
            for (from, to) in parts {
                window.digests.forget(*from, *to);
                moved +=
                    window.spans.turn(*from, *to, 0, tally, |s| if s.state == VisitState::Acknowledged { Fate::Fold } else { Fate::Keep });
            }
            window.spans.shrink();
            moved
        });
    }

    /// The next worker that asks may take it.
    pub(super) fn unlease(&mut self, streams: &mut Streams, id: WindowId) {
        let Some(window) = self.windows.get_mut(&id) else { return };
        if let Some(worker) = window.worker.take() {
            streams.unlease(&worker, (self.id, id));
            if window.pending() > 0 {
                self.unheld.insert(id);
            }
        }
    }

    /// A window leaves the state.
    pub(super) fn remove_window(&mut self, streams: &mut Streams, id: WindowId) -> Option<Box<Window>> {
        self.unlease(streams, id);
        let window = self.windows.remove(&id)?;
        self.foldable = self.foldable.saturating_sub(window.foldable(self.exactly_once));
        streams.forget_visits((self.id, id), window.spans.iter(), self.exactly_once);
        self.refresh(streams, id);
        Some(window)
    }

    pub fn batches_per_window(&self) -> u64 {
        self.shape.batches_per_window.max(1)
    }

    /// How many windows have something to grant.
    pub fn window_count(&self) -> u64 {
        self.deliverable.div_ceil(self.batches_per_window())
    }

    pub fn window_size(&self, id: WindowId) -> u32 {
        let first = id.0.saturating_mul(self.batches_per_window());
        u32::try_from(self.batches.saturating_sub(first).min(self.batches_per_window())).unwrap_or(u32::MAX)
    }

    pub(super) fn layout(&self, id: WindowId) -> Option<Layout> {
        self.map.as_ref().map(|map| Layout::new(u64::from(self.window_size(id)), map.world()))
    }

    /// A batch's window and its place in it.
    pub fn place(&self, batch: BatchId) -> (WindowId, u32) {
        let per = self.batches_per_window();
        let (id, offset) = (WindowId(batch.0 / per), batch.0 % per);
        let at = self.layout(id).map_or(offset, |layout| layout.place(offset));
        (id, u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// The batch at a place of a window.
    pub fn batch(&self, window: WindowId, at: u32) -> BatchId {
        let offset = self.layout(window).map_or(u64::from(at), |layout| layout.offset(u64::from(at)));
        BatchId(window.0 * self.batches_per_window() + offset)
    }

    /// Rows of a batch: all are full but the last.
    pub fn batch_rows(&self, batch: BatchId, batch_size: u64) -> u64 {
        self.shape.rows.saturating_sub(batch.0.saturating_mul(batch_size)).min(batch_size)
    }

    /// What happened to a batch; none while it is pending, or when it is in the ledger.
    pub fn visit(&self, batch: BatchId) -> Option<&Span> {
        let (id, at) = self.place(batch);
        self.windows.get(&id)?.spans.get(at)
    }

    pub(super) fn is_in_ledger(&self, id: WindowId) -> bool {
        !self.windows.contains_key(&id)
            && (id < self.next_window || self.skipped.contains(&id) || id.0 >= self.window_count() || self.is_taken(id))
    }

    fn is_taken(&self, id: WindowId) -> bool {
        let from = id.0 * self.batches_per_window();
        self.taken.covers(from, from + u64::from(self.window_size(id)))
    }

    pub(super) fn is_pending(&self, batch: BatchId) -> bool {
        let (id, at) = self.place(batch);
        match self.windows.get(&id) {
            Some(window) => window.spans.get(at).is_none(),
            None => !self.is_in_ledger(id),
        }
    }

    /// The first window that nobody has leased and that has something to grant.
    pub(super) fn next_fresh(&self, from: WindowId) -> Option<WindowId> {
        let per = self.batches_per_window();
        let mut id = from.max(self.next_window);
        while id.0 < self.window_count() {
            match self.windows.get(&id) {
                Some(window) if window.pending() > 0 => return Some(id),
                Some(_) => id.0 += 1,
                None if self.skipped.contains(&id) => id.0 += 1,
                None if self.is_taken(id) => id.0 = self.taken.end_of(id.0 * per).map_or(id.0 + 1, |end| (end / per).max(id.0 + 1)),
                None => return Some(id),
            }
        }
        None
    }

    /// Of a window's next lease.
    pub(super) fn next_attempt(&self, id: WindowId) -> Attempt {
        Attempt(self.windows.get(&id).map_or(0, |w| w.attempt.0 + 1))
    }

    pub fn pending(&self) -> u64 {
        self.batches - self.counts.total()
    }

    /// Windows whose visits are final and not in the ledger yet.
    pub fn closed_windows(&self) -> impl Iterator<Item = WindowId> {
        self.closed.iter().copied()
    }

    pub fn shares(&self) -> &[RankShare] {
        &self.ranks
    }

    /// Lets `f` change a window's spans, then carries that over to the counts of the pass, its indexes, and what streams and ranks have.
    pub(super) fn change(&mut self, streams: &mut Streams, id: WindowId, f: impl FnOnce(&mut Window, &mut Tally) -> u64) -> u64 {
        let Some(window) = self.windows.get_mut(&id) else { return 0 };
        let (before, foldable) = (window.counts(), window.foldable(self.exactly_once));
        let stood = self.available.contains(&id);
        let mut tally = Tally::start(before, window.uncommitted(), self.exactly_once);
        let moved = f(window, &mut tally);
        let after = tally.counts();
        window.set_counts(&tally);
        self.foldable = (self.foldable + window.foldable(self.exactly_once)).saturating_sub(foldable);
        let (pending, closed) = (window.pending() > 0, window.may_forget(self.exactly_once));
        for state in [VisitState::Granted, VisitState::Sent, VisitState::Acknowledged, VisitState::Lost, VisitState::Dropped] {
            let (mut from, mut to) = (before, after);
            self.counts.remove(state, *from.slot(state));
            self.counts.add(state, *to.slot(state));
        }
        for (stream, share) in &tally.streams {
            let Some((rank, acks)) = streams.shift(*stream, (self.id, id), share) else { continue };
            if acks {
                self.held_acks = self.held_acks.saturating_add_signed(share.held);
            }
            if let Some(rank) = rank.and_then(|r| self.ranks.get_mut(r as usize)) {
                rank.given = rank.given.saturating_add_signed(share.given);
                rank.lost = rank.lost.saturating_add_signed(share.lost);
            }
        }
        self.went_back(id, &tally.returned);
        if self.rounds {
            self.advance_lead();
        }
        if pending != stood || closed != self.closed.contains(&id) {
            self.refresh(streams, id);
        }
        moved
    }

    /// Batches of a fixed map that are pending again are looked for from there.
    fn went_back(&mut self, id: WindowId, places: &[(u32, u32)]) {
        if self.map.is_none() {
            return;
        }
        for batch in places.iter().flat_map(|(from, to)| *from..*to).map(|at| self.batch(id, at)).collect::<Vec<_>>() {
            self.lead = self.lead.min(batch.0);
            let rank = self.map.as_ref().and_then(|m| m.rank_of(batch.0));
            if let Some(share) = rank.and_then(|r| self.ranks.get_mut(r as usize)) {
                share.cursor = share.cursor.min(id);
            }
        }
    }

    pub(super) fn advance_lead(&mut self) {
        while self.lead < self.deliverable {
            let batch = BatchId(self.lead);
            let passed = match self.visit(batch) {
                Some(span) => span.state != VisitState::Granted,
                None => !self.is_pending(batch),
            };
            if !passed {
                return;
            }
            self.lead += 1;
        }
    }

    /// Keeps the indexes of a window right.
    fn refresh(&mut self, streams: &mut Streams, id: WindowId) {
        let window = self.windows.get(&id);
        let pending = window.is_some_and(|w| w.pending() > 0);
        let closed = window.is_some_and(|w| w.may_forget(self.exactly_once));
        let holder = window.and_then(|w| w.worker.clone());
        let size = u64::from(self.window_size(id));
        if pending {
            self.available.insert(id);
        } else {
            self.available.remove(&id);
        }
        match holder {
            Some(worker) => streams.pend(&worker, (self.id, id), pending),
            None if pending => drop(self.unheld.insert(id)),
            None => drop(self.unheld.remove(&id)),
        }
        if closed && self.closed.insert(id) {
            self.closed_batches += size;
        } else if !closed && self.closed.remove(&id) {
            self.closed_batches -= size;
        }
    }

    /// Makes what is derived from the windows and repetitions again, here and in the job's streams.
    pub(super) fn reindex(&mut self, id: PassId, streams: &mut Streams) {
        (self.id, self.held_acks, self.foldable) = (id, 0, 0);
        self.unheld = BTreeSet::new();
        let exactly_once = self.exactly_once;
        for (window_id, window) in &mut self.windows {
            let place = (id, *window_id);
            let is_pending = window.pending() > 0;
            window.recount();
            self.foldable += window.foldable(exactly_once);
            match &mut window.worker {
                Some(worker) => {
                    *worker = streams.intern(worker);
                    streams.lease(worker, place, is_pending);
                }
                None if is_pending => drop(self.unheld.insert(*window_id)),
                None => {}
            }
            let mut tally = Tally::start(Counts::default(), 0, exactly_once);
            window.spans.iter().for_each(|span| tally.add(span, u64::from(span.to - span.from)));
            for (stream, share) in &tally.streams {
                let kept = Share { held: 0, ..*share };
                if let Some((_, true)) = streams.shift(*stream, place, &kept) {
                    self.held_acks = self.held_acks.saturating_add_signed(share.held);
                }
            }
        }
        for pad in &self.pads {
            streams.name(pad.stream, 1);
        }
    }

    /// Bytes of memory for its windows and their visits: the nodes of the maps are about three quarters full.
    pub fn memory(&self) -> usize {
        let nodes = |n: usize, bytes: usize| n * bytes * 4 / 3;
        let windows = self.windows.values().map(|w| w.memory()).sum::<usize>()
            + nodes(self.windows.len(), size_of::<(WindowId, Box<Window>)>() + size_of::<Window>());
        windows
            + nodes(self.available.len() + self.unheld.len() + self.closed.len(), size_of::<WindowId>())
            + self.taken.parts() * size_of::<(u64, u64)>()
    }
}
