//! The dispatcher's whole durable state: the fold of the journal.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;

use super::job_state::Job;
use super::run_state::Dataset;
use crate::ids::{DatasetName, Fence, JobName};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(/// One materialization run of a root, numbered from 0 and never reused.
    RunId);

/// One stream of one consumer, numbered from 0 and never reused within a root.
///
/// Every span of visits names one or none, and there are many spans: kept as the number above it, so that `Option<StreamId>` takes no more room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct StreamId(NonZero<u64>);

impl StreamId {
    pub const fn new(number: u64) -> Self {
        Self(NonZero::<u64>::MIN.saturating_add(number))
    }

    pub const fn get(self) -> u64 {
        self.0.get() - 1
    }
}

impl Default for StreamId {
    fn default() -> Self {
        Self::new(0)
    }
}

impl From<u64> for StreamId {
    fn from(number: u64) -> Self {
        Self::new(number)
    }
}

impl From<StreamId> for u64 {
    fn from(id: StreamId) -> Self {
        id.get()
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Everything durable. Its size is bounded by what is open: closed visits are in the ledger, published shards in the Delta log.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct State {
    /// The newest leader's fence: entries under an older one change nothing (I4).
    pub fence: Fence,
    /// Where the newest leader listens.
    pub leader: Option<String>,
    pub datasets: BTreeMap<DatasetName, Dataset>,
    pub jobs: BTreeMap<JobName, Job>,
    pub next_run: RunId,
    pub next_stream: StreamId,
}
