//! Jobs as they stand: consumers, streams, passes, windows and their open visits.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::entry::JobEnd;
use super::spans::{Reason, Span, Spans, VisitState};
use super::state::StreamId;
use crate::error::{Error, Result};
use crate::ids::{Attempt, BatchId, ConsumerName, EpochId, Incarnation, PassId, VersionId, WindowId, WorkerName};
use crate::job::{End, JobSettings, Passes};

/// How many batches are in each state; pending ones are what is left of the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    pub granted: u64,
    pub sent: u64,
    pub acknowledged: u64,
    pub lost: u64,
    pub dropped: u64,
}

impl Counts {
    pub fn total(&self) -> u64 {
        self.granted + self.sent + self.acknowledged + self.lost + self.dropped
    }

    /// Granted and sent: what may still be acknowledged or lost.
    pub fn open(&self) -> u64 {
        self.granted + self.sent
    }

    pub fn plus(&self, other: &Counts) -> Counts {
        Counts {
            granted: self.granted + other.granted,
            sent: self.sent + other.sent,
            acknowledged: self.acknowledged + other.acknowledged,
            lost: self.lost + other.lost,
            dropped: self.dropped + other.dropped,
        }
    }

    fn slot(&mut self, state: VisitState) -> &mut u64 {
        match state {
            VisitState::Granted => &mut self.granted,
            VisitState::Sent => &mut self.sent,
            VisitState::Acknowledged => &mut self.acknowledged,
            VisitState::Lost => &mut self.lost,
            VisitState::Dropped => &mut self.dropped,
        }
    }

    fn add(&mut self, state: VisitState, n: u64) {
        *self.slot(state) += n;
    }

    fn remove(&mut self, state: VisitState, n: u64) {
        let slot = self.slot(state);
        *slot = slot.saturating_sub(n);
    }
}

/// What a change of spans did: to the window's counts, and to how many batches each stream holds.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: Counts,
    held: Vec<(StreamId, i64)>,
}

impl Tally {
    pub(super) fn start(counts: Counts) -> Self {
        Self { counts, held: Vec::new() }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn add(&mut self, span: &Span, n: u64) {
        self.counts.add(span.state, n);
        self.hold(span, i64::try_from(n).unwrap_or(i64::MAX));
    }

    pub(super) fn remove(&mut self, span: &Span, n: u64) {
        self.counts.remove(span.state, n);
        self.hold(span, -i64::try_from(n).unwrap_or(i64::MAX));
    }

    fn hold(&mut self, span: &Span, n: i64) {
        if let (false, Some(stream)) = (span.state.is_final(), span.stream) {
            self.held.push((stream, n));
        }
    }
}

/// What a plan says about a pass, pinned when the pass starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassShape {
    pub version: VersionId,
    pub epoch: EpochId,
    /// Rows that pass the filter.
    pub rows: u64,
    /// Rows of a window; the last may have fewer.
    pub window_rows: u64,
    pub batches_per_window: u64,
    /// Where the filter's selection is kept under the root, pinned with the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
}

/// One window with its visits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Of the newest lease.
    pub attempt: Attempt,
    /// Who has the lease; null when it was taken back.
    pub worker: Option<WorkerName>,
    pub size: u32,
    pub spans: Spans,
    /// Digests of sent batches by their place in the window, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<(u32, u64)>,
    pub(super) counts: Counts,
}

impl Window {
    pub(super) fn new(size: u32) -> Self {
        Self { attempt: Attempt(0), worker: None, size, spans: Spans::default(), digests: Vec::new(), counts: Counts::default() }
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn pending(&self) -> u64 {
        u64::from(self.size) - self.counts.total()
    }

    /// Every visit is final.
    pub fn is_closed(&self) -> bool {
        self.pending() == 0 && self.counts.open() == 0
    }

    pub fn digest(&self, at: u32) -> Option<u64> {
        self.digests.binary_search_by_key(&at, |d| d.0).ok().map(|i| self.digests[i].1)
    }

    pub(super) fn set_digest(&mut self, at: u32, digest: u64) {
        match self.digests.binary_search_by_key(&at, |d| d.0) {
            Ok(i) => self.digests[i].1 = digest,
            Err(i) => self.digests.insert(i, (at, digest)),
        }
    }
}

/// One traversal, from the decision to start it until all of it is in the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    pub shape: PassShape,
    /// All batches, dropped ones included.
    pub batches: u64,
    /// Batches below this may be granted; the others were dropped when the pass began.
    pub deliverable: u64,
    /// Windows below this have been leased.
    pub next_window: WindowId,
    /// Windows with visits that are not in the ledger, and windows with a lease.
    pub windows: BTreeMap<WindowId, Window>,
    /// Of those, the ones with pending batches.
    pub(super) available: BTreeSet<WindowId>,
    /// Of those, the ones whose visits are all final.
    pub(super) closed: BTreeSet<WindowId>,
    /// Batches of those.
    pub(super) closed_batches: u64,
    /// Of the whole pass, the ledger's part included.
    pub counts: Counts,
    /// What is in the ledger.
    pub ledger: Counts,
    /// Nothing is pending any more: told to all as one decision.
    pub ended: bool,
}

impl Pass {
    pub(super) fn new(shape: PassShape, settings: &JobSettings, at_ms: i64) -> Self {
        let size = settings.batch_size.max(1);
        let batches = shape.rows.div_ceil(size);
        let mut pass = Self {
            shape,
            batches,
            deliverable: batches,
            next_window: WindowId(0),
            windows: BTreeMap::new(),
            available: BTreeSet::new(),
            closed: BTreeSet::new(),
            closed_batches: 0,
            counts: Counts::default(),
            ledger: Counts::default(),
            ended: false,
        };
        if settings.end == End::Drop && !pass.shape.rows.is_multiple_of(size) {
            pass.deliverable -= 1;
            let (id, at) = pass.place(BatchId(batches - 1));
            let window = Window::new(pass.window_size(id));
            let span = Span { from: at, to: at + 1, state: VisitState::Dropped, stream: None, at_ms, reason: Some(Reason::EndOfPass) };
            pass.windows.insert(id, window);
            pass.change(&mut BTreeMap::new(), id, |window, tally| window.spans.cover(span, tally));
        }
        pass
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

    /// A batch's window and its place in it.
    pub fn place(&self, batch: BatchId) -> (WindowId, u32) {
        let per = self.batches_per_window();
        (WindowId(batch.0 / per), u32::try_from(batch.0 % per).unwrap_or(u32::MAX))
    }

    /// The batch at a place of a window.
    pub fn batch(&self, window: WindowId, at: u32) -> BatchId {
        BatchId(window.0 * self.batches_per_window() + u64::from(at))
    }

    /// Rows of a batch: all are full but the last.
    pub fn batch_rows(&self, batch: BatchId, batch_size: u64) -> u64 {
        self.shape.rows.saturating_sub(batch.0.saturating_mul(batch_size)).min(batch_size)
    }

    pub fn pending(&self) -> u64 {
        self.batches - self.counts.total()
    }

    /// Windows whose visits are final and not in the ledger yet.
    pub fn closed_windows(&self) -> impl Iterator<Item = WindowId> {
        self.closed.iter().copied()
    }

    /// Lets `f` change a window's spans, then carries that over to the counts of the pass, its indexes, and what each stream holds.
    pub(super) fn change(
        &mut self,
        streams: &mut BTreeMap<StreamId, Stream>,
        id: WindowId,
        f: impl FnOnce(&mut Window, &mut Tally) -> u64,
    ) -> u64 {
        let Some(window) = self.windows.get_mut(&id) else { return 0 };
        let before = window.counts;
        let mut tally = Tally::start(before);
        let moved = f(window, &mut tally);
        let after = tally.counts();
        window.counts = after;
        for state in [VisitState::Granted, VisitState::Sent, VisitState::Acknowledged, VisitState::Lost, VisitState::Dropped] {
            let (mut from, mut to) = (before, after);
            self.counts.remove(state, *from.slot(state));
            self.counts.add(state, *to.slot(state));
        }
        for (stream, n) in tally.held {
            if let Some(stream) = streams.get_mut(&stream) {
                stream.held = stream.held.saturating_add_signed(n);
            }
        }
        self.refresh(id);
        moved
    }

    /// Keeps the two indexes of a window right.
    pub(super) fn refresh(&mut self, id: WindowId) {
        let window = self.windows.get(&id);
        let (pending, closed) = (window.is_some_and(|w| w.pending() > 0), window.is_some_and(Window::is_closed));
        let size = u64::from(self.window_size(id));
        if pending {
            self.available.insert(id)
        } else {
            self.available.remove(&id)
        };
        if closed && self.closed.insert(id) {
            self.closed_batches += size;
        } else if !closed && self.closed.remove(&id) {
            self.closed_batches -= size;
        }
    }
}

/// One trainer process that takes part now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    pub rank: Option<u32>,
    /// Acknowledges by action rather than by the stream.
    pub acks_by_action: bool,
    /// Which of the job's passes, by place in their sequence, it is in.
    pub at: u32,
    /// The last pass of which it was granted something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fed: Option<PassId>,
    pub joined_ms: i64,
}

/// One connection of a consumer to a worker; kept while a visit that is not in the ledger names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    pub consumer: ConsumerName,
    pub worker: WorkerName,
    /// Whether batches on it are acknowledged one by one; else a clean end acknowledges all.
    pub acks: bool,
    pub open: bool,
    /// Batches granted to it or sent on it that are not final.
    #[serde(default)]
    pub held: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    Open,
    /// All passes have ended; visits may still be open.
    Ending,
    Ended {
        end: JobEnd,
        at_ms: i64,
    },
}

/// A named group of consumers with one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    #[serde(with = "super::entry::arc")]
    pub settings: Arc<JobSettings>,
    pub incarnation: Incarnation,
    /// The C epochs that existed or were being written when this incarnation began.
    pub epochs: Vec<EpochId>,
    pub phase: JobPhase,
    pub created_ms: i64,
    pub consumers: BTreeMap<ConsumerName, Consumer>,
    pub streams: BTreeMap<StreamId, Stream>,
    /// Passes started and ended so far, by place in the sequence; at most one is started and not ended.
    pub started: u32,
    pub ended: u32,
    pub passes: BTreeMap<PassId, Pass>,
    /// Of passes that are wholly in the ledger.
    pub closed: Counts,
    /// Number of the next ledger file. A file with this number or above is a crash's leftover.
    pub next_ledger: u64,
    /// The ledger's files, all incarnations, in order.
    #[serde(default)]
    pub ledger: Vec<String>,
}

impl Job {
    pub(super) fn new(settings: JobSettings, epochs: Vec<EpochId>, incarnation: Incarnation, at_ms: i64) -> Self {
        Self {
            settings: Arc::new(settings),
            incarnation,
            epochs,
            phase: JobPhase::Open,
            created_ms: at_ms,
            consumers: BTreeMap::new(),
            streams: BTreeMap::new(),
            started: 0,
            ended: 0,
            passes: BTreeMap::new(),
            closed: Counts::default(),
            next_ledger: 0,
            ledger: Vec::new(),
        }
    }

    /// The pass at a place of the job's sequence, or none behind its end.
    pub fn pass_at(&self, place: u32) -> Option<PassId> {
        match &self.settings.epochs {
            Passes::All => (u64::from(place) < self.epochs.len() as u64).then_some(PassId(place)),
            Passes::Count(n) => (place < *n).then_some(PassId(place)),
            Passes::List(list) => list.get(place as usize).map(|p| PassId(*p)),
            Passes::Forever => Some(PassId(place)),
        }
    }

    /// The pass that is going on.
    pub fn current(&self) -> Option<PassId> {
        if self.started > self.ended { self.pass_at(self.ended) } else { None }
    }

    pub fn is_last(&self, place: u32) -> bool {
        place.checked_add(1).is_none_or(|next| self.pass_at(next).is_none())
    }

    pub fn is_over(&self) -> bool {
        !matches!(self.phase, JobPhase::Open)
    }

    /// Batches of all passes started so far.
    pub fn counts(&self) -> Counts {
        self.passes.values().fold(self.closed, |sum, p| sum.plus(&p.counts))
    }

    pub fn open_visits(&self) -> u64 {
        self.passes.values().map(|p| p.counts.open()).sum()
    }

    pub fn stream(&self, id: StreamId) -> Result<&Stream> {
        self.streams.get(&id).filter(|s| s.open).ok_or_else(|| {
            Error::failed_precondition(format!("stream {id} of job `{}` is closed", self.settings.job))
                .with_remedy("ask for the job's endpoints again")
        })
    }

    pub(super) fn check_incarnation(&self, incarnation: Incarnation) -> Result<()> {
        if incarnation == self.incarnation {
            return Ok(());
        }
        Err(Error::failed_precondition(format!(
            "job `{}` was restarted: incarnation {} is over, {} is running",
            self.settings.job, incarnation, self.incarnation
        ))
        .with_remedy("open the job again"))
    }
}
