//! The settings of a job, as users give them and as they are pinned.
//!
//! Owns: the job's JSON, its defaults and what this version refuses. Must not know: plans, datasets' contents, transports.

mod passes;
mod request;
mod settings;

use serde::{Deserialize, Serialize};

use crate::ids::{ConsumerName, DatasetName, JobName, VersionId};
use crate::pipeline::Shuffle;
use crate::view::JobView;

pub use request::JobRequest;
pub(crate) use request::SHUFFLES;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Assignment {
    /// First come, first served; consumers come and go.
    #[default]
    Dynamic,
    /// Rank r gets the batches b = r mod world_size, at its own pace.
    Static,
    /// The same map, released step by step: coordinated reads.
    Rounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visitation {
    #[default]
    AtMostOnce,
    AtLeastOnce,
    ExactlyOnce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steps {
    #[default]
    Any,
    Equal,
}

/// What becomes of the short last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    #[default]
    Short,
    Drop,
    Pad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    #[default]
    Published,
    Staged,
}

/// What a rank that disappears from a job in rounds means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankLost {
    #[default]
    Wait,
    Drop,
    Fail,
}

/// How a consumer acknowledges when its stream can't carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acks {
    /// By `forebay.job.ack`, for `DoGet`.
    Action,
}

/// Which passes a job makes. In JSON: a number, a list of numbers, "forever", or null for all stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Passes {
    /// One pass for each epoch stored when the job is created.
    #[default]
    All,
    Count(u32),
    /// These passes in this order, none twice.
    List(Vec<u32>),
    Forever,
}

/// Settings that all consumers of a job share, resolved: no nulls that mean a default remain, except where null is itself a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSettings {
    pub job: JobName,
    pub dataset: DatasetName,
    /// Pinned version, or null for the newest when each pass starts.
    pub version: Option<VersionId>,
    pub epochs: Passes,
    pub batch_size: u64,
    pub seed: u64,
    pub shuffle: Shuffle,
    pub order: Order,
    /// Bytes of a window before rounding to whole rounds of batches.
    pub window: u64,
    pub assignment: Assignment,
    pub visitation: Visitation,
    pub world_size: Option<u32>,
    pub steps: Steps,
    pub end: End,
    pub bucket_by: Option<String>,
    pub round_size: Option<u32>,
    pub columns: Option<Vec<String>>,
    pub filter: Option<String>,
    #[serde(default)]
    pub rank_lost: RankLost,
    #[serde(default = "default_rank_timeout_ms")]
    pub rank_timeout_ms: u64,
    /// Milliseconds without any live consumer after which the job is collected.
    pub idle_timeout_ms: u64,
    /// Commits that may be restored: the newest ones.
    #[serde(default = "default_kept_commits", skip_serializing_if = "is_default_kept_commits")]
    pub kept_commits: u32,
    /// The view that the job was opened by; dataset, version, columns and filter are what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<Box<JobView>>,
}

/// What one consumer says of itself when it opens its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerSettings {
    pub consumer: ConsumerName,
    /// Its number in `0..world_size`.
    pub rank: Option<u32>,
    /// It acknowledges by `forebay.job.ack` although it reads with `DoGet`.
    pub acks_by_action: bool,
    /// Start the job again if it is finished or stopped.
    pub restart: bool,
}

fn default_rank_timeout_ms() -> u64 {
    DEFAULT_RANK_TIMEOUT_MS
}

fn default_kept_commits() -> u32 {
    DEFAULT_KEPT_COMMITS
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_default_kept_commits(kept: &u32) -> bool {
    *kept == DEFAULT_KEPT_COMMITS
}

pub const DEFAULT_BATCH_SIZE: u64 = 256;
pub const DEFAULT_WINDOW: u64 = 256 << 20;
pub const DEFAULT_RANK_TIMEOUT_MS: u64 = 60_000;
pub const DEFAULT_IDLE_TIMEOUT_MS: u64 = 600_000;
pub const DEFAULT_KEPT_COMMITS: u32 = 100;

#[cfg(test)]
mod tests;
