//! Jobs as they stand: consumers, streams, passes, windows and their open visits.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::commit_state::{CommitRecord, Restored};
use super::consumers::Consumers;
use super::entry::JobEnd;
use super::pass_state::{Counts, Pass, PassShape};
use super::ranges::Ranges;
use super::state::StreamId;
use super::streams::Streams;
use crate::error::{Error, Result};
use crate::ids::{ConsumerName, EpochId, Incarnation, PassId, Session, WindowId, WorkerName};
use crate::job::{JobSettings, Passes};

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
    /// Its process, where it says so: calls of another one are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// What its own count of calls is behind the job's count of commits; null before its first call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<i64>,
    /// The commit of its newest call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called: Option<u64>,
    /// Number of its newest report of lost streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<u64>,
}

/// The newest grant to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    /// Its place among the stream's grants, from 1.
    pub number: u64,
    pub pass: PassId,
    pub window: WindowId,
    /// Places in the window.
    pub from: u32,
    pub to: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub padding: bool,
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
    /// Its consumer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<Newest>,
    /// Visits and repetitions in the state that name it.
    #[serde(skip)]
    pub(super) named: u64,
    /// Windows where it has visits that may still move, in order, and how many.
    #[serde(skip)]
    pub(super) movable: Vec<(PassId, WindowId, u32)>,
}

impl Stream {
    pub(super) fn shift_movable(&mut self, pass: PassId, window: WindowId, more: i64) {
        let more = |n: u32| u32::try_from(i64::from(n).saturating_add(more)).unwrap_or(0);
        match self.movable.binary_search_by_key(&(pass, window), |(p, w, _)| (*p, *w)) {
            Ok(index) => {
                self.movable[index].2 = more(self.movable[index].2);
                if self.movable[index].2 == 0 {
                    self.movable.remove(index);
                }
            }
            Err(index) => self.movable.insert(index, (pass, window, more(0))),
        }
    }
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
#[serde(remote = "Self")]
pub struct Job {
    #[serde(with = "super::entry::arc")]
    pub settings: Arc<JobSettings>,
    pub incarnation: Incarnation,
    /// The C epochs that existed or were being written when this incarnation began.
    pub epochs: Vec<EpochId>,
    pub phase: JobPhase,
    pub created_ms: i64,
    pub consumers: Consumers,
    pub streams: Streams,
    /// Passes started and ended so far, by place in the sequence; at most one is started and not ended, but where ranks go at their own pace.
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
    /// The newest commits, by number, all incarnations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub commits: BTreeMap<u64, CommitRecord>,
    /// The commit that is open.
    #[serde(default)]
    pub next_commit: u64,
    /// What this incarnation goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Box<Restored>>,
    /// The newest attempts at restoring it, this incarnation's included: each is made once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) attempts: Vec<String>,
    /// What is done of the next pass to start, where its shape was not known when it was restored.
    #[serde(default, skip_serializing_if = "Ranges::is_empty")]
    pub(super) resume: Ranges,
    /// Shapes of the newest passes of a fixed map: a checkpoint computed by its ranks names only the pass.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) shapes: BTreeMap<PassId, PassShape>,
    /// Ranks that a consumer of this incarnation had.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub seen_ranks: BTreeSet<u32>,
    /// Ranks that `rank_lost` dropped from this incarnation.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dropped_ranks: BTreeSet<u32>,
}

impl Serialize for Job {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// What is derived is not written down: it is made again here.
impl<'de> Deserialize<'de> for Job {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut job = Self::deserialize(deserializer)?;
        job.reindex();
        Ok(job)
    }
}

impl Job {
    /// Makes everything that is derived again.
    pub(super) fn reindex(&mut self) {
        self.streams.reset();
        for (id, pass) in &mut self.passes {
            pass.reindex(*id, &mut self.streams);
        }
    }

    pub(super) fn new(settings: JobSettings, epochs: Vec<EpochId>, incarnation: Incarnation, at_ms: i64) -> Self {
        Self {
            settings: Arc::new(settings),
            incarnation,
            epochs,
            phase: JobPhase::Open,
            created_ms: at_ms,
            consumers: Consumers::default(),
            streams: Streams::default(),
            started: 0,
            ended: 0,
            passes: BTreeMap::new(),
            closed: Counts::default(),
            next_ledger: 0,
            ledger: Vec::new(),
            commits: BTreeMap::new(),
            next_commit: 0,
            restored: None,
            attempts: Vec::new(),
            resume: Ranges::default(),
            shapes: BTreeMap::new(),
            seen_ranks: BTreeSet::new(),
            dropped_ranks: BTreeSet::new(),
        }
    }

    /// Some consumer made its call of the commit that is open.
    pub fn is_committing(&self) -> bool {
        self.consumers.called(self.next_commit) > 0
    }

    /// The place of a pass in the job's sequence.
    pub fn place_of(&self, pass: PassId) -> Option<u32> {
        match &self.settings.epochs {
            Passes::List(list) => list.iter().position(|p| *p == pass.0).and_then(|p| u32::try_from(p).ok()),
            _ => Some(pass.0).filter(|place| self.pass_at(*place).is_some()),
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

    /// The epoch that a pass reads.
    pub fn epoch_of(&self, pass: PassId) -> Option<EpochId> {
        self.epochs.get(pass.0 as usize % self.epochs.len().max(1)).copied()
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
