//! The visits of one window: spans of batches that share a state, so that memory follows how often things changed hands, not how many
//! batches there are.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

use super::pass_state::Tally;
use super::state::StreamId;

/// What happened to a batch. A batch without one is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VisitState {
    /// This consumer may get it.
    Granted,
    /// It was handed to the transport.
    Sent,
    /// The trainer took it.
    Acknowledged,
    /// Possibly delivered, and never handed out again in this incarnation.
    Lost,
    /// Left out by the user's own choice of `end`.
    Dropped,
}

impl VisitState {
    pub fn is_final(self) -> bool {
        matches!(self, Self::Acknowledged | Self::Lost | Self::Dropped)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Sent => "sent",
            Self::Acknowledged => "acknowledged",
            Self::Lost => "lost",
            Self::Dropped => "dropped",
        }
    }
}

/// Why a batch was lost or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The consumer's lease ran out.
    ConsumerDied,
    /// The consumer left without acknowledging it.
    ConsumerLeft,
    /// The stream of a consumer that does not acknowledge broke.
    StreamBroken,
    /// The stream ended before the batch was sent.
    NeverSent,
    /// The worker that held the window died or its lease ran out.
    WorkerDied,
    JobStopped,
    /// `end = "drop"`: the short last batch, or the partial last round.
    EndOfPass,
    /// The consumer lost a stream and says that it did not receive the batch.
    NotReceived,
    /// Another process took the consumer's place.
    Replaced,
    /// The rank's share of the steps that were open when it was dropped.
    RankDropped,
    /// What is left behind the common end after it moved earlier.
    EndMoved,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConsumerDied => "the consumer's lease ran out",
            Self::ConsumerLeft => "the consumer left without acknowledging it",
            Self::StreamBroken => "the stream broke",
            Self::NeverSent => "the stream ended before the batch was sent",
            Self::WorkerDied => "the worker died",
            Self::JobStopped => "the job ended",
            Self::EndOfPass => "end = \"drop\"",
            Self::NotReceived => "the consumer lost a stream and had not received it",
            Self::Replaced => "another process took the consumer's place",
            Self::RankDropped => "rank_lost = \"drop\"",
            Self::EndMoved => "the common end moved earlier because batches were lost",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether an acknowledged batch is in a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    #[default]
    Open,
    /// Its consumer made its call of the commit that is open now.
    Called,
    Committed,
}

impl Mark {
    fn is_open(&self) -> bool {
        *self == Self::Open
    }
}

/// What becomes of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    To(VisitState, Option<Reason>),
    /// It may be granted again.
    Pending,
    Mark(Mark),
    /// An acknowledged one is in the ledger: only that it was taken is kept.
    Fold,
}

impl Fate {
    pub(super) fn lost(reason: Reason) -> Self {
        Self::To(VisitState::Lost, Some(reason))
    }
}

/// Batches `[from, to)` of a window, counted from the window's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    #[serde(rename = "f")]
    pub from: u32,
    #[serde(rename = "t")]
    pub to: u32,
    #[serde(rename = "s")]
    pub state: VisitState,
    /// Whose it is or was; null for dropped batches.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamId>,
    /// When its last batch got here.
    #[serde(rename = "a")]
    pub at_ms: i64,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(rename = "m", default, skip_serializing_if = "Mark::is_open")]
    pub mark: Mark,
}

impl Span {
    /// It was taken, and the ledger knows by whom.
    pub fn is_folded(&self) -> bool {
        self.state == VisitState::Acknowledged && self.stream.is_none()
    }

    fn joins(&self, next: &Span) -> bool {
        self.to == next.from
            && self.state == next.state
            && self.stream == next.stream
            && self.reason == next.reason
            && self.mark == next.mark
            && self.at_ms.div_euclid(1_000) == next.at_ms.div_euclid(1_000)
    }
}

/// Spans in order, without overlap; the gaps are pending. Written as a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spans {
    list: Vec<Span>,
    /// Where the first gap begins.
    full: u32,
}

impl Serialize for Spans {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Spans {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut spans = Self { list: Vec::deserialize(deserializer)?, full: 0 };
        spans.fill();
        Ok(spans)
    }
}

impl Spans {
    pub fn iter(&self) -> impl Iterator<Item = &Span> {
        self.list.iter()
    }

    /// Those that have a batch of `[from, to)`.
    pub fn within(&self, from: u32, to: u32) -> impl Iterator<Item = &Span> {
        let first = self.list.partition_point(|s| s.to <= from);
        self.list[first..].iter().take_while(move |s| s.from < to)
    }

    /// The span that covers a batch.
    pub fn get(&self, at: u32) -> Option<&Span> {
        let index = self.list.partition_point(|s| s.to <= at);
        self.list.get(index).filter(|s| s.from <= at)
    }

    /// Batches that are not pending.
    pub fn covered(&self) -> u64 {
        self.list.iter().map(|s| u64::from(s.to - s.from)).sum()
    }

    /// The first pending batches of a window of `size`, at most `limit` of them.
    pub fn first_gap(&self, size: u32, limit: u32) -> Option<(u32, u32)> {
        if self.full >= size {
            return None;
        }
        let next = self.list.partition_point(|s| s.to <= self.full);
        let end = self.list.get(next).map_or(size, |s| s.from.min(size));
        Some((self.full, end.min(self.full.saturating_add(limit))))
    }

    /// Finds the first gap again: nothing before `full` was taken away.
    fn fill(&mut self) {
        let mut next = self.list.partition_point(|s| s.to <= self.full);
        while let Some(span) = self.list.get(next).filter(|s| s.from <= self.full) {
            self.full = span.to;
            next += 1;
        }
    }

    /// Covers the pending part of `[from, to)` with `span`'s state; what is covered already stays. Returns how many batches were taken.
    pub(super) fn cover(&mut self, span: Span, tally: &mut Tally) -> u64 {
        let mut taken = 0;
        let mut from = span.from;
        while from < span.to {
            let index = self.list.partition_point(|s| s.to <= from);
            let (covered_from, covered_to) = self.list.get(index).map_or((u32::MAX, u32::MAX), |s| (s.from, s.to));
            let to = span.to.min(covered_from);
            if to > from {
                self.insert(index, Span { from, to, ..span });
                tally.add(&span, u64::from(to - from));
                taken += u64::from(to - from);
                self.join(index.saturating_sub(1), index + 1);
            }
            if covered_to >= span.to {
                break;
            }
            from = covered_to;
        }
        self.fill();
        taken
    }

    /// The first pending batches of places `[from, to)`, at most `limit` of them.
    pub fn gap_in(&self, from: u32, to: u32, limit: u32) -> Option<(u32, u32)> {
        let mut at = from;
        let first = self.list.partition_point(|s| s.to <= from);
        for span in &self.list[first..] {
            if at >= to || span.from > at {
                break;
            }
            at = span.to;
        }
        if at >= to {
            return None;
        }
        let next = self.list.partition_point(|s| s.to <= at);
        let end = self.list.get(next).map_or(to, |s| s.from.min(to));
        Some((at, end.min(at.saturating_add(limit))))
    }

    /// Lets `rule` move the batches of `[from, to)` to another state. Returns how many moved.
    pub(super) fn change(
        &mut self,
        from: u32,
        to: u32,
        at_ms: i64,
        tally: &mut Tally,
        rule: impl Fn(&Span) -> Option<(VisitState, Option<Reason>)>,
    ) -> u64 {
        self.turn(from, to, at_ms, tally, |span| rule(span).map_or(Fate::Keep, |(state, reason)| Fate::To(state, reason)))
    }

    /// Lets `rule` decide what becomes of the batches of `[from, to)`. Returns how many it changed.
    pub(super) fn turn(&mut self, from: u32, to: u32, at_ms: i64, tally: &mut Tally, rule: impl Fn(&Span) -> Fate) -> u64 {
        let mut moved = 0;
        let mut full = self.full;
        self.split(from);
        self.split(to);
        let first = self.list.partition_point(|s| s.to <= from);
        let mut last = first;
        while let Some(span) = self.list.get_mut(last).filter(|s| s.from < to) {
            let n = u64::from(span.to - span.from);
            match rule(span) {
                Fate::Keep => {}
                Fate::To(state, reason) => {
                    tally.remove(span, n);
                    (span.state, span.reason, span.at_ms, span.mark) = (state, reason, at_ms, Mark::Open);
                    tally.add(span, n);
                    tally.moved.push((span.from, span.to));
                    moved += n;
                }
                Fate::Mark(mark) => {
                    tally.remove(span, n);
                    span.mark = mark;
                    tally.add(span, n);
                    moved += n;
                }
                Fate::Fold => {
                    tally.fold(span, n);
                    (span.stream, span.reason, span.at_ms, span.mark) = (None, None, 0, Mark::Committed);
                    moved += n;
                }
                Fate::Pending => {
                    tally.remove(span, n);
                    tally.returned.push((span.from, span.to));
                    moved += n;
                    full = full.min(span.from);
                    self.list.remove(last);
                    continue;
                }
            }
            last += 1;
        }
        self.join(first.saturating_sub(1), last);
        self.full = full;
        moved
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.list.capacity() * size_of::<Span>()
    }

    /// There are many lists: they grow by a little.
    fn insert(&mut self, index: usize, span: Span) {
        if self.list.len() == self.list.capacity() {
            self.list.reserve_exact(2 + self.list.len() / 8);
        }
        self.list.insert(index, span);
    }

    /// Gives memory back when many spans were joined.
    pub(super) fn shrink(&mut self) {
        if self.list.len() * 2 < self.list.capacity() {
            self.list.shrink_to(self.list.len() + self.list.len() / 8);
        }
    }

    fn split(&mut self, at: u32) {
        let index = self.list.partition_point(|s| s.to <= at);
        if let Some(span) = self.list.get_mut(index).filter(|s| s.from < at) {
            let right = Span { from: at, ..*span };
            span.to = at;
            self.insert(index + 1, right);
        }
    }

    /// Joins equal neighbours among the spans `first..=last`.
    fn join(&mut self, first: usize, last: usize) {
        let mut index = first;
        let mut left = last.saturating_sub(first);
        while left > 0 && index + 1 < self.list.len() {
            let next = self.list[index + 1];
            if self.list[index].joins(&next) {
                self.list[index].to = next.to;
                self.list[index].at_ms = self.list[index].at_ms.max(next.at_ms);
                self.list.remove(index + 1);
            } else {
                index += 1;
            }
            left -= 1;
        }
    }
}
