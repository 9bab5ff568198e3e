//! Bodies of commands, actions and their answers: plain JSON, so that a Flight client in any language can write them by hand.

use forebay_core::Error;
use forebay_core::view::ViewCost;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// `forebay.materialize`: the pipeline file as text, with the code of its Python modules sent along.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaterializeRequest {
    /// The pipeline's TOML text.
    pub pipeline: String,
    /// Shown in errors: the file's name as the user typed it.
    #[serde(default)]
    pub file: String,
    /// Folder (absolute path or URL) that relative source URIs start from.
    #[serde(default)]
    pub base: String,
    /// `key.path=value` overrides, in order.
    #[serde(default)]
    pub set: Vec<String>,
    /// Module name -> Python source text, for every `.py` file that a Python step's module needs beside the pipeline file.
    #[serde(default)]
    pub modules: BTreeMap<String, String>,
    /// `[from, to)`; null is all epochs of the pipeline.
    #[serde(default)]
    pub epochs: Option<(u32, u32)>,
    /// Stream [`MaterializeProgress`] until done; false returns after the run is durably accepted.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Take up the shards that an interrupted run staged; without it they are redone.
    #[serde(default)]
    pub resume: bool,
    /// Publish a changed pipeline as a new version without the old epochs.
    #[serde(default)]
    pub replace: bool,
}

fn yes() -> bool {
    true
}

/// One answer message of `forebay.materialize`; the last has a final `state`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MaterializeProgress {
    pub dataset: String,
    /// `running | done | already_materialized | failed`
    pub state: String,
    /// Epochs asked for and published so far.
    pub epochs: Vec<u32>,
    pub published: Vec<u32>,
    pub tasks: u64,
    pub tasks_done: u64,
    pub rows: u64,
    /// Source bytes of all tasks and of those done, the base of the ETA.
    pub source_bytes: u64,
    pub source_bytes_done: u64,
    /// Stored bytes.
    pub bytes: u64,
    pub quarantined: u64,
    pub version: Option<u64>,
    pub error: Option<Error>,
}

/// `forebay.index`: builds the text index of a column for every epoch that exists; answers with [`IndexProgress`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexRequest {
    pub dataset: String,
    pub column: String,
    /// `default | raw | cjk | stemmed(LANGUAGE)`; null keeps what the column has.
    #[serde(default)]
    pub tokenizer: Option<String>,
    /// Build also what is there already.
    #[serde(default)]
    pub rebuild: bool,
}

/// One answer message of `forebay.index`; the last has a final `state`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IndexProgress {
    pub dataset: String,
    pub column: String,
    pub tokenizer: String,
    /// `running | done | already_indexed`
    pub state: String,
    /// All shards of the dataset, and those that have the index.
    pub shards: u64,
    pub shards_done: u64,
    pub rows: u64,
    pub rows_done: u64,
    /// Bytes of the index that this run made.
    pub bytes: u64,
    /// The version that names the index.
    pub version: Option<u64>,
}

/// `forebay.datasets`: `{"op":"list"}`, `{"op":"show","name":..}`, `{"op":"drop","name":..}`, `{"op":"vacuum","name":..}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum DatasetsRequest {
    List,
    Show {
        name: String,
        #[serde(default)]
        version: Option<u64>,
    },
    Epochs {
        name: String,
    },
    Drop {
        name: String,
    },
    Vacuum {
        name: String,
        /// Unnamed files younger than this many seconds stay; default a week.
        #[serde(default)]
        older_than_s: Option<u64>,
        #[serde(default)]
        dry_run: bool,
    },
}

/// `forebay.views`: `{"op":"list"}`, `{"op":"show","name":..}`, `{"op":"create","name":..,"sql":..}`, `{"op":"drop","name":..}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ViewsRequest {
    List,
    Show { name: String },
    Create { name: String, sql: String },
    Drop { name: String },
}

/// One view: what it is, and what it costs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ViewInfo {
    pub name: String,
    pub sql: String,
    /// `selection`: rows and columns of one dataset, which a job can read; `query`: anything else; `broken`: see `error`.
    pub kind: String,
    /// The dataset of a selection.
    pub dataset: Option<String>,
    /// The version that a selection pins.
    pub version: Option<u64>,
    /// The predicate of a selection.
    pub filter: Option<String>,
    pub columns: Vec<ColumnInfo>,
    /// The tables that its text names.
    pub reads: Vec<String>,
    /// Why a query can't be read as a job, or what is broken.
    pub error: Option<String>,
    pub cost: Option<ViewCost>,
    /// The selected part of the rows, in 0..=1.
    pub share: Option<f64>,
    pub created_ms: i64,
}

/// One dataset in a listing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DatasetSummary {
    pub name: String,
    pub description: String,
    pub version: u64,
    pub epochs: Vec<u32>,
    pub rows: u64,
    /// Stored bytes of the newest version.
    pub bytes: u64,
    pub shards: u64,
}

/// `datasets show NAME`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DatasetDetail {
    #[serde(flatten)]
    pub summary: DatasetSummary,
    pub fingerprint: String,
    pub columns: Vec<ColumnInfo>,
    pub epochs_detail: Vec<EpochInfo>,
    /// The version's file list, for Parquet-only readers: paths relative to `table`.
    pub files: Vec<FileInfo>,
    /// URL of the Delta table.
    pub table: String,
    /// The pipeline's canonical spec.
    pub pipeline: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ColumnInfo {
    pub name: String,
    /// As shown to users: `int64`, `string`, `uint8[224,224,3]`, ...
    pub r#type: String,
    pub nullable: bool,
    /// The tokenizer of its text index, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_index: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EpochInfo {
    pub epoch: u32,
    pub rows: u64,
    pub bytes: u64,
    pub shards: u64,
    pub row_groups: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileInfo {
    pub path: String,
    pub epoch: u32,
    pub rows: u64,
    pub bytes: u64,
}

/// `forebay.plan`: the plan of a dataset or job, or the rows of one step.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanRequest {
    pub dataset: Option<String>,
    pub job: Option<String>,
    pub version: Option<u64>,
    pub pass: u32,
    pub batch_size: Option<u64>,
    pub seed: Option<u64>,
    pub shuffle: Option<String>,
    /// `published | staged`
    pub order: Option<String>,
    pub window: Option<String>,
    pub filter: Option<String>,
    /// Rounds have as many batches as there are ranks.
    pub bucket_by: Option<String>,
    pub world_size: Option<u32>,
    pub step: Option<u64>,
    pub batch: Option<u64>,
    pub consumer: Option<String>,
}

/// The answer of `forebay.plan`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanInfo {
    pub dataset: String,
    /// Null while the epoch is being written: then the plan is that of the windows which can be read by now.
    pub version: Option<u64>,
    pub pass: u32,
    pub epoch: u32,
    pub rows: u64,
    pub row_groups: u64,
    pub windows: u64,
    pub window_rows: u64,
    pub batches: u64,
    pub batch_size: u64,
    pub seed: u64,
    pub shuffle: String,
    /// `published | staged`
    pub order: String,
    /// Of the batches asked for: (batch, window, row keys in order).
    pub selected: Vec<PlanBatch>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanBatch {
    pub batch: u64,
    pub window: u64,
    pub ids: Vec<i64>,
    /// Empty where the dataset has no `_part`.
    pub parts: Vec<i32>,
    pub digest: String,
}

/// `app_metadata` of each batch message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchMeta {
    pub job: String,
    pub pass: u32,
    pub epoch: u32,
    pub step: Option<u64>,
    pub batch: u64,
    /// This message is part `part` of `parts` of the batch.
    pub part: u32,
    pub parts: u32,
    pub window: u64,
    /// Rows in this message.
    pub rows: u64,
    /// XXH3-64 over the whole batch's row keys, 16 hex digits.
    pub digest: String,
    /// Repeats an earlier batch, so that every rank has as many steps (`end = "pad"`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub padding: bool,
}

/// `app_metadata` of the message that ends a stream: `{"end":"pass"|"job"|"drain"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Pass,
    Job,
    Drain,
}

/// What a consumer says on the `DoExchange` stream, in `app_metadata`: more credits, and batches taken by the trainer. Half-closing the
/// stream is the same as `close`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsumerMessage {
    /// Further batches that may be sent.
    pub credits: u32,
    /// Batches of the current pass taken by the trainer since the last message.
    pub ack: Vec<u64>,
    /// The pass that `ack` speaks of.
    pub pass: Option<u32>,
    /// The consumer is leaving: what it holds unacknowledged is lost (or returns).
    pub close: bool,
}

/// A consumer's place in a job: the `app_metadata` of the job's `FlightInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlace {
    pub job: String,
    pub incarnation: u32,
    pub consumer: String,
    /// The pass that the consumer is in, or will be; null when all are over.
    pub pass: Option<u32>,
    /// A consumer that gives no sign of life for this long is taken for dead.
    pub lease_ms: u64,
    /// When the incarnation began, in milliseconds since 1970. A consumer that comes back and finds another time here finds another job: the
    /// dispatcher has lost what it knew.
    #[serde(default)]
    pub created_ms: i64,
}

impl JobPlace {
    /// Whether a consumer that was here and joins again as `later` found another job of the same name: incarnations count up, and each has one
    /// beginning.
    pub fn is_of_another_job(&self, later: &Self) -> bool {
        let same = self.incarnation == later.incarnation;
        later.incarnation < self.incarnation || (same && later.created_ms != self.created_ms)
    }
}

/// Batches of one pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassBatches {
    pub pass: u32,
    pub batches: Vec<u64>,
}

/// `forebay.job.ack`: acknowledgements beside the stream. Durable when it is answered; an empty one is a sign of life.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AckRequest {
    pub job: String,
    pub consumer: String,
    /// Of [`JobPlace`]; null is the job's present one.
    #[serde(default)]
    pub incarnation: Option<u32>,
    #[serde(default)]
    pub session: Option<u64>,
    /// With `batches`; or `taken` for several passes at once.
    #[serde(default)]
    pub pass: Option<u32>,
    #[serde(default)]
    pub batches: Vec<u64>,
    #[serde(default)]
    pub taken: Vec<PassBatches>,
}

/// `forebay.job.report`: the consumer lost streams, and received this of what it has not acknowledged. The rest may go to others from the answer
/// on, so it drops what it did not name, and opens no stream before.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportRequest {
    pub job: String,
    pub consumer: String,
    #[serde(default)]
    pub incarnation: Option<u32>,
    #[serde(default)]
    pub session: Option<u64>,
    /// The consumer's own count of reports, from 1.
    pub number: u64,
    #[serde(default)]
    pub received: Vec<PassBatches>,
}

/// `forebay.job.leave`: the consumer takes part no more. What it holds unacknowledged is lost, or returns, as after its death.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveRequest {
    pub job: String,
    pub consumer: String,
    #[serde(default)]
    pub incarnation: Option<u32>,
    #[serde(default)]
    pub session: Option<u64>,
}

/// `forebay.job.commit`: the consumer's `call`-th commit, from 1. Complete when every live consumer of the job made its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    pub job: String,
    pub consumer: String,
    #[serde(default)]
    pub incarnation: Option<u32>,
    #[serde(default)]
    pub session: Option<u64>,
    pub call: u64,
    /// What the trainer took and was not told to be durable.
    #[serde(default)]
    pub taken: Vec<PassBatches>,
    /// How long to wait for the others before the answer says that it is not complete; at most a minute.
    #[serde(default = "commit_wait")]
    pub wait_ms: u64,
}

fn commit_wait() -> u64 {
    10_000
}

/// The answer of `forebay.job.commit`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommitAnswer {
    /// False: other consumers have not made their call; say it again.
    pub complete: bool,
    /// For `forebay.job.restore`; null while it is not complete.
    pub token: Option<Value>,
}

/// `forebay.job.restore`: goes on from a commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreRequest {
    /// As `forebay.job.commit` gave it.
    pub token: Value,
    /// Named alike by all consumers that restore together; null where they can't agree on a name.
    #[serde(default)]
    pub attempt: Option<String>,
    /// The job's whole command, as for `GetFlightInfo`. The world size may be another one.
    pub command: Value,
}

/// `forebay.job.status | forebay.job.stop`; `job: null` lists all.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobRequest {
    pub job: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobStatus {
    pub job: String,
    pub dataset: String,
    /// `open | finished | stopped | failed`
    pub state: String,
    pub incarnation: u32,
    pub pass: Option<u32>,
    pub batches: u64,
    pub pending: u64,
    pub granted: u64,
    pub sent: u64,
    pub acknowledged: u64,
    pub lost: u64,
    pub dropped: u64,
    pub consumers: Vec<String>,
    /// The job's digest over all acknowledged batches so far, 16 hex digits; null while a batch is granted or sent.
    pub digest: Option<String>,
    pub settings: Value,
}

/// The message that ends a stream, in `app_metadata`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndMessage {
    pub end: End,
}

/// `DoPut`'s descriptor command: `{"dataset":"digits","mode":"append"}`. A path descriptor `[name]` is the same without a mode; the mode may
/// also stand in the `app_metadata` of the first message, as `{"mode":"append"}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PutCommand {
    pub dataset: String,
    /// `append | replace`; null or `create` makes a new dataset.
    #[serde(default)]
    pub mode: Option<String>,
}
