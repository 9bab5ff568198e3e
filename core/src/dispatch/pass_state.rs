//! A pass as it stands: its windows and their open visits.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::digests::Digests;
use super::growth::Growth;
use super::map::Map;
use super::ranges::Ranges;
use super::spans::{Mark, Span, Spans, VisitState};
use super::state::StreamId;
use crate::ids::{Attempt, BatchId, EpochId, PassId, VersionId, WindowId, WorkerName};

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

    pub(super) fn slot(&mut self, state: VisitState) -> &mut u64 {
        match state {
            VisitState::Granted => &mut self.granted,
            VisitState::Sent => &mut self.sent,
            VisitState::Acknowledged => &mut self.acknowledged,
            VisitState::Lost => &mut self.lost,
            VisitState::Dropped => &mut self.dropped,
        }
    }

    pub(super) fn add(&mut self, state: VisitState, n: u64) {
        *self.slot(state) += n;
    }

    pub(super) fn remove(&mut self, state: VisitState, n: u64) {
        let slot = self.slot(state);
        *slot = slot.saturating_sub(n);
    }
}

/// What a change of spans did: to the window's counts, and to what each stream has.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: Counts,
    pub(super) uncommitted: u64,
    /// Of the acknowledged ones: what more the ledger has.
    pub(super) folded: i64,
    /// An acknowledged batch may return until it is committed.
    returns: bool,
    pub(super) streams: Vec<(StreamId, Share)>,
    /// Places that are pending again.
    pub(super) returned: Vec<(u32, u32)>,
    /// Places whose state changed.
    pub(super) moved: Vec<(u32, u32)>,
}

/// How a stream's share of the visits changed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    /// Granted and sent.
    pub held: i64,
    /// Granted, sent and acknowledged.
    pub given: i64,
    pub lost: i64,
    /// All that name it.
    pub named: i64,
    /// Those that something else than a report may move.
    pub movable: i64,
}

impl Tally {
    pub(super) fn start(counts: Counts, uncommitted: u64, returns: bool) -> Self {
        Self { counts, uncommitted, returns, ..Self::default() }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn add(&mut self, span: &Span, n: u64) {
        self.counts.add(span.state, n);
        self.uncommitted += if is_uncommitted(span) { n } else { 0 };
        self.share(span, i64::try_from(n).unwrap_or(i64::MAX));
    }

    pub(super) fn remove(&mut self, span: &Span, n: u64) {
        self.counts.remove(span.state, n);
        self.uncommitted = self.uncommitted.saturating_sub(if is_uncommitted(span) { n } else { 0 });
        self.share(span, -i64::try_from(n).unwrap_or(i64::MAX));
    }

    /// What a stream was given stays given.
    pub(super) fn fold(&mut self, span: &Span, n: u64) {
        let uncommitted = is_uncommitted(span);
        self.uncommitted = self.uncommitted.saturating_sub(if uncommitted { n } else { 0 });
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        let returns = self.returns && uncommitted;
        let Some(stream) = span.stream else { return };
        self.folded += n;
        let share = self.share_of(stream);
        share.named -= n;
        share.movable -= if returns { n } else { 0 };
    }

    fn share_of(&mut self, stream: StreamId) -> &mut Share {
        let last = self.streams.len().wrapping_sub(1);
        let index = if self.streams.get(last).is_some_and(|(id, _)| *id == stream) { last } else { self.streams.len() };
        if index == self.streams.len() {
            self.streams.push((stream, Share::default()));
        }
        &mut self.streams[index].1
    }

    fn share(&mut self, span: &Span, n: i64) {
        let Some(stream) = span.stream else {
            self.folded += if span.is_folded() { n } else { 0 };
            return;
        };
        let returns = self.returns && is_uncommitted(span);
        let share = self.share_of(stream);
        share.named += n;
        match span.state {
            VisitState::Granted | VisitState::Sent => {
                share.held += n;
                share.given += n;
                share.movable += n;
            }
            VisitState::Acknowledged => {
                share.given += n;
                share.movable += if returns { n } else { 0 };
            }
            VisitState::Lost => share.lost += n,
            VisitState::Dropped => {}
        }
    }
}

fn is_uncommitted(span: &Span) -> bool {
    span.state == VisitState::Acknowledged && span.mark != Mark::Committed
}

/// What a plan says about a pass, pinned when the pass starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassShape {
    /// Null while the epoch is being written.
    pub version: Option<VersionId>,
    pub epoch: EpochId,
    /// Rows that pass the filter; while the epoch is being written, those of the windows that can be read.
    pub rows: u64,
    /// Rows of a window; the last may have fewer.
    pub window_rows: u64,
    pub batches_per_window: u64,
    /// Where the filter's selection is kept under the root, pinned with the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
    /// How far an epoch has come that is still being written; null once it is published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// One window with its visits. There are many, so what is counted is counted in 32 bits, and a worker's name is there once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Of the newest lease.
    pub attempt: Attempt,
    /// Who has the lease; null when it was taken back.
    #[serde(with = "super::entry::arc_option")]
    pub worker: Option<Arc<WorkerName>>,
    pub size: u32,
    pub spans: Spans,
    /// Digests of sent batches by their place in the window, in order.
    #[serde(default, skip_serializing_if = "Digests::is_empty")]
    pub digests: Digests,
    #[serde(rename = "counts")]
    tallied: SmallCounts,
    /// Acknowledged batches that are in no commit.
    #[serde(default, skip_serializing_if = "is_zero")]
    uncommitted: u32,
    /// Acknowledged batches that are in the ledger already.
    #[serde(skip)]
    folded: u32,
}

/// [`Counts`] of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct SmallCounts {
    granted: u32,
    sent: u32,
    acknowledged: u32,
    lost: u32,
    dropped: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Window {
    pub(super) fn new(size: u32) -> Self {
        Self {
            attempt: Attempt(0),
            worker: None,
            size,
            spans: Spans::default(),
            digests: Digests::default(),
            tallied: SmallCounts::default(),
            uncommitted: 0,
            folded: 0,
        }
    }

    pub fn counts(&self) -> Counts {
        let SmallCounts { granted, sent, acknowledged, lost, dropped } = self.tallied;
        Counts { granted: granted.into(), sent: sent.into(), acknowledged: acknowledged.into(), lost: lost.into(), dropped: dropped.into() }
    }

    /// None of these is above the window's size.
    pub(super) fn set_counts(&mut self, tally: &Tally) {
        let (counts, uncommitted) = (tally.counts, tally.uncommitted);
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        self.tallied = SmallCounts {
            granted: small(counts.granted),
            sent: small(counts.sent),
            acknowledged: small(counts.acknowledged),
            lost: small(counts.lost),
            dropped: small(counts.dropped),
        };
        self.uncommitted = small(uncommitted);
        self.folded = small(u64::from(self.folded).saturating_add_signed(tally.folded));
    }

    /// Of a state that was read.
    pub(super) fn recount(&mut self) {
        let folded = self.spans.iter().filter(|s| s.is_folded()).map(|s| s.to - s.from).sum();
        self.folded = folded;
    }

    /// Acknowledged batches that the ledger may take before the whole window is closed.
    pub(super) fn foldable(&self, exactly_once: bool) -> u64 {
        if self.may_forget(exactly_once) {
            return 0;
        }
        let returns = if exactly_once { self.uncommitted } else { 0 };
        u64::from(self.tallied.acknowledged.saturating_sub(self.folded).saturating_sub(returns))
    }

    /// Where those are; `all`: those that are in no commit too.
    pub(super) fn foldable_parts(&self, all: bool) -> impl Iterator<Item = (u32, u32)> {
        let may = move |s: &&Span| s.state == VisitState::Acknowledged && s.stream.is_some() && (all || s.mark == Mark::Committed);
        self.spans.iter().filter(may).map(|s| (s.from, s.to))
    }

    pub fn pending(&self) -> u64 {
        u64::from(self.size) - self.counts().total()
    }

    /// Every visit is final.
    pub fn is_closed(&self) -> bool {
        self.pending() == 0 && self.counts().open() == 0
    }

    pub fn digest(&self, at: u32) -> Option<u64> {
        self.digests.get(at)
    }

    pub fn uncommitted(&self) -> u64 {
        self.uncommitted.into()
    }

    /// Every visit is final, and nothing may return.
    pub(super) fn may_forget(&self, exactly_once: bool) -> bool {
        self.is_closed() && !(exactly_once && self.uncommitted > 0)
    }

    /// Bytes of memory behind it.
    pub(super) fn memory(&self) -> usize {
        self.spans.memory() + self.digests.memory()
    }
}

/// One traversal, from the decision to start it until all of it is in the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Its own id.
    #[serde(skip)]
    pub(super) id: PassId,
    pub shape: PassShape,
    /// All batches, dropped ones included.
    pub batches: u64,
    /// Batches below this may be granted; the others were dropped when the pass began.
    pub deliverable: u64,
    /// Windows below this have been leased.
    pub next_window: WindowId,
    /// Windows with visits that are not in the ledger, and windows with a lease.
    pub windows: BTreeMap<WindowId, Box<Window>>,
    /// Of those, the ones with pending batches.
    pub(super) available: BTreeSet<WindowId>,
    /// Of those, the ones that nobody has the lease of.
    #[serde(skip)]
    pub(super) unheld: BTreeSet<WindowId>,
    /// Of those, the ones whose visits are all final.
    pub(super) closed: BTreeSet<WindowId>,
    /// Batches of those.
    pub(super) closed_batches: u64,
    /// Batches that acknowledging streams hold.
    #[serde(skip)]
    pub(super) held_acks: u64,
    /// Acknowledged batches in windows that are not closed, and not in the ledger.
    #[serde(skip)]
    pub(super) foldable: u64,
    /// Of the whole pass, the ledger's part included.
    pub counts: Counts,
    /// What is in the ledger.
    pub ledger: Counts,
    /// Nothing is pending any more: told to all as one decision.
    pub ended: bool,
    /// Closed windows keep acknowledged batches that a consumer's death may return until they are committed.
    #[serde(default)]
    pub(super) exactly_once: bool,
    /// Where this incarnation began in it.
    #[serde(default)]
    pub first: u64,
    /// Of `static` and `rounds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<Map>,
    /// The common end in steps, where steps are equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// By rank: what it has, padding included; what it lost; and what it got beside its own share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) ranks: Vec<RankShare>,
    /// In `rounds`: batches below this were sent, or are final.
    #[serde(default)]
    pub(super) lead: u64,
    #[serde(default)]
    pub(super) rounds: bool,
    /// Acknowledged batches that are in the ledger, or in an earlier incarnation's commit. For dynamic jobs.
    #[serde(default, skip_serializing_if = "Ranges::is_empty")]
    pub(super) taken: Ranges,
    /// Windows that went to the ledger before anybody leased them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) skipped: BTreeSet<WindowId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pads: Vec<Pad>,
}

/// What a rank has of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankShare {
    /// Granted, sent and acknowledged batches, and padding.
    pub given: u64,
    pub lost: u64,
    /// Batches from the pass's tail, and padding.
    pub filled: u64,
    /// It was told that its pass is over: it is not called back.
    #[serde(default)]
    pub told: bool,
    /// No window below this has a pending batch of the rank.
    pub(super) cursor: WindowId,
}

/// A batch that was repeated for a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pad {
    pub stream: StreamId,
    pub rank: u32,
    pub batch: BatchId,
    pub acknowledged: bool,
    /// Whether it is in a commit.
    pub mark: Mark,
}
