//! Commits: what a checkpoint's token stands for.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use super::pass_state::PassShape;
use super::ranges::Ranges;
use crate::ids::{ConsumerName, Incarnation, PassId};

/// What `state_dict()` holds beside the job's name. Of constant size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Token {
    /// Names a commit record in the journal.
    Commit { incarnation: Incarnation, commit: u64 },
    /// Of `static` and `rounds`: the ranks stand before batch `next`. They may compute it themselves.
    At { pass: PassId, next: u64 },
}

/// One complete commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    pub incarnation: Incarnation,
    /// Passes before this place in the job's sequence are done.
    pub place: u32,
    /// The pass at that place, if it had begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<CommittedPass>,
    pub at_ms: i64,
    /// Why it holds nothing: the ranks did not stand at the same step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uneven: Option<String>,
}

/// What of a pass is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedPass {
    pub pass: PassId,
    /// As it was pinned; null where nobody remembers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<PassShape>,
    /// Its batches that are not served again.
    pub taken: Ranges,
}

/// What an incarnation goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    pub token: Token,
    /// Named alike by all consumers that restore together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    pub place: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<CommittedPass>,
    /// Who took part in this incarnation so far.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub joined: BTreeSet<ConsumerName>,
}
