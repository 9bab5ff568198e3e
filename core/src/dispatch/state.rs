//! The dispatcher's whole durable state: the fold of the journal.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

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
counter!(/// One stream of one consumer, numbered from 0 and never reused within a root.
    StreamId);

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
