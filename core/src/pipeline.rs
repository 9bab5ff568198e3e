//! The pipeline spec: source + ordered steps + epochs + output, in one TOML file.
//!
//! Owns: the spec's types, reading and checking the file, its canonical form, its fingerprint and what changed between two. Must not
//! know: whether the source exists, what SQL means, what a Python module holds; `sql` and `storage` check those.

mod canonical;
mod diff;
pub(crate) mod fields;
mod fingerprint;
mod options;
mod overrides;
mod parse;
pub mod size;
mod validate;

pub use diff::{code_difference, difference, snapshot_difference};
pub use fingerprint::fingerprint;
pub use parse::{ParsedPipeline, parse};
pub use size::{parse_compression, parse_duration_ms, parse_size, show_size};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::ids::DatasetName;
use crate::text::{TextColumns, Tokenizer};

/// A whole, validated pipeline. Equal specs have equal canonical JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PipelineSpec {
    pub name: DatasetName,
    #[serde(default)]
    pub description: String,
    pub source: SourceSpec,
    #[serde(default)]
    pub steps: Vec<StepSpec>,
    pub epochs: EpochsSpec,
    pub output: OutputSpec,
    #[serde(default)]
    pub index: IndexSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitSpec>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceFormat {
    Csv,
    Json,
    Parquet,
    Arrow,
    Files,
    /// A client's own stream, staged by `DoPut`; never written by hand.
    Put,
    /// The result of a query over datasets, staged once; written as `sql`, not as a format.
    Sql,
}

impl SourceFormat {
    /// Whether the source's files lie under the root, because we wrote them: no client names them.
    pub fn is_staged(self) -> bool {
        matches!(self, SourceFormat::Put | SourceFormat::Sql)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// Paths, globs or URLs, relative to the pipeline file. None where `sql` says what to read.
    #[serde(default)]
    pub uri: Vec<String>,
    pub format: SourceFormat,
    /// Per format; keys are checked when the spec is validated.
    #[serde(default)]
    pub options: BTreeMap<String, serde_json::Value>,
    /// One SELECT over datasets; of [`SourceFormat::Sql`] and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSpec {
    pub name: String,
    pub kind: StepKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// One row-local SELECT over `input`.
    Sql { query: String },
    /// `module:function(batch, **options)` in its own process.
    Python {
        module: String,
        function: String,
        options: BTreeMap<String, serde_json::Value>,
        /// Rows per call; the default is 1,024.
        batch_size: Option<u64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shuffle {
    /// Storage order.
    None,
    /// Row groups are permuted, rows inside stay in order.
    RowGroups,
    /// Row groups, then rows inside each window.
    #[default]
    Window,
    /// Rows were placed by a keyed permutation when the epoch was stored.
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochsSpec {
    pub count: u32,
    pub seed: u64,
    pub shuffle: Shuffle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    None,
    Lz4,
    Zstd(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The first bad row fails the epoch and is named.
    Fail,
    /// Bad rows are put aside, queryable as `system.quarantine`; more than `max_errors` in an epoch fail it.
    Quarantine { max_errors: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputSpec {
    /// How many steps run before the rows are stored: 0 is "source", `steps.len()` the default.
    pub cut: usize,
    /// Target bytes of a shard.
    pub shard_size: u64,
    /// Target uncompressed bytes of a row group.
    pub row_group_size: u64,
    pub compression: Compression,
    pub on_error: OnError,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IndexSpec {
    /// Full-text columns.
    #[serde(default)]
    pub text: Vec<String>,
    /// How some of them are cut into words; the others by the default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokenizers: BTreeMap<String, Tokenizer>,
}

impl IndexSpec {
    /// Each column with its tokenizer.
    pub fn columns(&self) -> TextColumns {
        self.text.iter().map(|c| (c.clone(), self.tokenizers.get(c).copied().unwrap_or_default())).collect()
    }

    /// The index of these columns.
    pub fn of(columns: &TextColumns) -> Self {
        let tokenizers = columns.iter().filter(|(_, t)| **t != Tokenizer::Default).map(|(c, t)| (c.clone(), *t)).collect();
        Self { text: columns.keys().cloned().collect(), tokenizers }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitSpec {
    /// In file order; they sum to 1.
    pub ratios: Vec<(String, f64)>,
    pub by: SplitBy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitBy {
    /// By a hash of the row key.
    Key,
    /// Exact ratios within each value of a column.
    Stratify { column: String },
    /// All rows of one value go to one split.
    Group { column: String },
}

/// Rows per call of a Python step that does not say.
pub const DEFAULT_PYTHON_BATCH_SIZE: u64 = 1024;
pub const DEFAULT_SHARD_SIZE: u64 = 128 << 20;
pub const DEFAULT_ROW_GROUP_SIZE: u64 = 8 << 20;
pub const DEFAULT_COMPRESSION: Compression = Compression::Zstd(1);
/// Bad rows that `on_error = "quarantine"` puts aside in an epoch before it fails, unless `max_errors` says otherwise.
pub const DEFAULT_MAX_ERRORS: u64 = 1000;

#[cfg(test)]
mod tests;
